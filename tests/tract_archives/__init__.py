"""Archives that tract itself wrote, of small ONNX networks, with what ONNX Runtime computes.

`export.py`, which needs tract and ONNX, writes the files; `networks.py` says what is in them.
"""
