"""Neural network layers of OpenVX in its fixed-point arithmetic, bit by bit.

Pure functions of the extension KHR_NN_8 and KHR_NN_16 (OpenVX Neural Network Extension): eight
layers over tensors of uint8, int8 or Q7.8.
"""

from __future__ import annotations

from nnef_jax.openvx.errors import VxError
from nnef_jax.openvx.layers.convolution import convolution_layer
from nnef_jax.openvx.tensor import StaticWeights, Tensor, static_weights

__all__ = ["StaticWeights", "Tensor", "VxError", "convolution_layer", "static_weights"]
