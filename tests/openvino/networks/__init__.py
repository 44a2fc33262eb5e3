"""Small networks of PyTorch, a file for each family, which OpenVINO converts.

`base.py` says what a network is, and has what its weights and inputs are made of.
"""
