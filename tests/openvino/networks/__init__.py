"""Small networks of PyTorch, a file a family, which OpenVINO converts to its representation.

`base.py` says what a network is, and has what its weights and inputs are made of.
"""
