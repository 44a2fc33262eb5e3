"""Builders that turn one description of a network into the input of each engine.

`base` defines the interface of a builder. `nnef_builder` writes an NNEF archive, `onnx_builder`
makes an ONNX model, `torch_builder` makes a torch module, and `jax_builder` makes a function in
plain jax.
"""
