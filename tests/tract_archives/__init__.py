"""Archives of small ONNX networks, written by tract itself, with results of ONNX Runtime.

`export.py`, which needs tract and ONNX, writes the files; `networks.py` says what is in them.
"""
