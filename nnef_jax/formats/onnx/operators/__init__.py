"""The functions that flatten ONNX's operators, with a module for each family of operators.

The module `rows` has the operators that become a single operation of the graph. The operands of a
function are constant or computed tensors, and lists of tensors for sequences. An operator without a
function here is replaced by the nodes by which the standard defines the operator; see the module
`schemas`.

Where is `auto_pad` converted to padding? `filters`
"""

from __future__ import annotations

from nnef_jax.formats.onnx.operators.registry import OPERATORS

OPERATORS.families = (
    "nnef_jax.formats.onnx.operators.rows",
    "nnef_jax.formats.onnx.operators.sources",
    "nnef_jax.formats.onnx.operators.arithmetic",
    "nnef_jax.formats.onnx.operators.filters",
    "nnef_jax.formats.onnx.operators.pool_windows",
    "nnef_jax.formats.onnx.operators.normalizations",
    "nnef_jax.formats.onnx.operators.samplers",
    "nnef_jax.formats.onnx.operators.spectra",
    "nnef_jax.formats.onnx.operators.optimizers",
    "nnef_jax.formats.onnx.operators.control",
    "nnef_jax.formats.onnx.operators.scans",
    "nnef_jax.formats.onnx.operators.cells",
    "nnef_jax.formats.onnx.operators.quantizers",
    "nnef_jax.formats.onnx.operators.products",
    "nnef_jax.formats.onnx.operators.heads",
    "nnef_jax.formats.onnx.operators.layout",
    "nnef_jax.formats.onnx.operators.indices",
    "nnef_jax.formats.onnx.operators.reducers",
    "nnef_jax.formats.onnx.operators.lists",
    "nnef_jax.formats.onnx.operators.estimators",
    "nnef_jax.formats.onnx.operators.transformers",
    "nnef_jax.formats.onnx.operators.fusions",
    "nnef_jax.formats.onnx.operators.trees",
    "nnef_jax.formats.onnx.operators.support_vectors",
    "nnef_jax.formats.onnx.operators.lengths",
    "nnef_jax.formats.onnx.operators.n_grams",
)
