"""Computes the fixed-point arithmetic of the OpenVX Neural Network Extension, bit by bit.

This package has the eight layers of the profiles KHR_NN_8 and KHR_NN_16, as pure functions of
tensors of uint8, int8 or int16 (Q7.8). The function `lower` turns a network into a function of
these layers.

Where is a network planned as nodes, and run? `plan`, `plan_evaluation`
Where are products summed and rounded? `exact_sums`, `stepwise`
"""

from __future__ import annotations

from nnef_jax.openvx.error_statistics import Stats, TensorStats
from nnef_jax.openvx.integer_function import Lowered, lower
from nnef_jax.openvx.kernel_import import Kernel, KernelParameter, import_kernel_from_url
from nnef_jax.openvx.layers.pointwise import (
    activation_layer,
    normalization_layer,
    softmax_layer,
)
from nnef_jax.openvx.layers.pooling_layers import pooling_layer, roi_pooling_layer
from nnef_jax.openvx.layers.product_layers import (
    convolution_layer,
    deconvolution_layer,
    fully_connected_layer,
)
from nnef_jax.openvx.positions import search_positions
from nnef_jax.openvx.profile import NodeReport, ProfileReport, check_profile
from nnef_jax.openvx.tables import table, table_layer
from nnef_jax.openvx.tensor import StaticWeights, Tensor, static_weights
from nnef_jax.openvx.vx_errors import VxError

__all__ = [
    "Kernel",
    "KernelParameter",
    "Lowered",
    "NodeReport",
    "ProfileReport",
    "StaticWeights",
    "Stats",
    "Tensor",
    "TensorStats",
    "VxError",
    "activation_layer",
    "check_profile",
    "convolution_layer",
    "deconvolution_layer",
    "fully_connected_layer",
    "import_kernel_from_url",
    "lower",
    "normalization_layer",
    "pooling_layer",
    "roi_pooling_layer",
    "search_positions",
    "softmax_layer",
    "static_weights",
    "table",
    "table_layer",
]
