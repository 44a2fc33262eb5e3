"""One description of a network, built for each engine: `base` says what a builder can do.

`nnef_builder` writes an NNEF archive, `onnx_builder` an ONNX model, `torch_builder` a module.
"""
