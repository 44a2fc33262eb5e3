"""The functions that flatten OpenVINO's layers, with a module for each family of layers.

The module `rows` has a table of the layers that need a single operation or line of code. All other
layers have functions. The positional arguments of a function, after the site, are the first inputs
of the layer as tensors of the graph. The function returns the tensors of the output ports. A type
of layer has one function for all versions, or one for versions 2 to 9 and another for the operation
sets of versions 10 and 11.
"""

from __future__ import annotations

from nnef_jax.formats.openvino.layers.registry import OPERATORS

OPERATORS.families = (
    "nnef_jax.formats.openvino.layers.rows",
    "nnef_jax.formats.openvino.layers.elementwise_layers",
    "nnef_jax.formats.openvino.layers.product_layers",
    "nnef_jax.formats.openvino.layers.window_layers",
    "nnef_jax.formats.openvino.layers.reduction_layers",
    "nnef_jax.formats.openvino.layers.shape_layers",
    "nnef_jax.formats.openvino.layers.slicing_layers",
    "nnef_jax.formats.openvino.layers.indexing_layers",
    "nnef_jax.formats.openvino.layers.counted_layers",
    "nnef_jax.formats.openvino.layers.image_layers",
    "nnef_jax.formats.openvino.layers.signal_layers",
    "nnef_jax.formats.openvino.layers.recurrent_layers",
    "nnef_jax.formats.openvino.layers.sequence_layers",
    "nnef_jax.formats.openvino.layers.choice_layers",
    "nnef_jax.formats.openvino.layers.loop_layers",
    "nnef_jax.formats.openvino.layers.state_layers",
    "nnef_jax.formats.openvino.layers.detection_layers",
    "nnef_jax.formats.openvino.layers.region_layers",
)
