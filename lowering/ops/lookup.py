"""Lookup tables, and ensembles of decision trees."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.ops import segment_max, segment_min, segment_sum

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from lowering.graph import TensorType
from lowering.ops import require, rules


def _lookup_type(input: TensorType, values: TensorType, fallback: TensorType) -> TensorType:
    """Check the arguments of `direct_lookup`, and return the type of its result."""
    require.integer(input=input)
    require.same_dtype(values=values, fallback=fallback)
    require.one(fallback=fallback)
    _require_vector("values", values)
    return TensorType(input.shape, values.dtype)


def _require_vector(name: str, operand: TensorType) -> None:
    """Raise InvalidShape unless an operand is a vector with at least one item."""
    if len(operand.shape) != 1 or operand.shape[0] == 0:
        raise InvalidShape(
            f"'{name}' must have one axis and an item, its shape is {show(operand.shape)}"
        )


@rules.rule("direct_lookup", _lookup_type)
def direct_lookup(input: Array, values: Array, fallback: Array) -> Array:
    """Return `values[i]` for each index i of the input, or `fallback` if i is out of range.

    A negative index is out of range.
    """
    index, values = jnp.asarray(input), jnp.asarray(values)
    exists = (index >= 0) & (index < len(values))
    entries = jnp.take(values, index, mode="clip")
    return jnp.where(exists, entries, jnp.asarray(fallback).reshape(()))


def _reverse_type(input: TensorType, keys: TensorType, fallback: int) -> TensorType:
    require.int32(fallback=fallback)
    require.same_dtype(require.ordered, input=input, keys=keys)
    _require_vector("keys", keys)
    return TensorType(input.shape, "int32")


@rules.rule("reverse_lookup", _reverse_type, not_differentiable="its results are indices")
def reverse_lookup(input: Array, keys: Array, fallback: int) -> Array:
    """Return the index in `keys` of each item of the input, or `fallback` if no key is equal.

    If several keys equal the item, the result is the least of their indices.
    """
    x, keys = jnp.asarray(input), jnp.asarray(keys)
    order = jnp.argsort(keys, stable=True).astype(jnp.int32)
    # The candidate for an item is the first of the sorted keys that is not below the item. If all
    # keys are below the item, the candidate is the last key, which is not equal to the item.
    sorted_index = jnp.minimum(jnp.searchsorted(keys[order], x), len(keys) - 1)
    candidate = order[sorted_index]
    return jnp.where(keys[candidate] == x, candidate, jnp.int32(fallback))


_TABLES = {"trees": "[?]", "nodes": "[?,5]", "leaves": "[?,2]"}
_AGGREGATES = ("SUM", "AVERAGE", "MIN", "MAX")
# Row i belongs to the code i of a comparison. The row tells whether the comparison holds if the
# value is less than the threshold, equal to the threshold, and greater than the threshold.
_COMPARISONS = np.array(
    [
        [False, False, False],  # code 0 marks a leaf
        [False, True, False],  # ==
        [True, False, True],  # !=
        [True, False, False],  # <
        [False, False, True],  # >
        [True, True, False],  # <=
        [False, True, True],  # >=
    ]
)


def _ensemble_type(
    input: TensorType, classes: int, aggregate: str, **tables: TensorType
) -> TensorType:
    """Check the arguments of `tree_ensemble`, and return the type of its result."""
    require.ordered(input=input)
    if len(input.shape) not in (1, 2):
        raise InvalidShape(
            f"'input' must have the shape [features] or [batch,features], it has "
            f"{show(input.shape)}"
        )
    for name, table in tables.items():
        if table.dtype not in ("int32", "uint32"):
            raise InvalidOperation(f"'{name}' must hold 32 bits an item, it holds {table.dtype}")
        require.layout(_TABLES[name], "", **{name: table})
    if classes < 1:
        raise InvalidOperation(f"'classes' must be positive, it is {classes}")
    require.one_of("aggregate", aggregate, _AGGREGATES)
    return TensorType((*input.shape[:-1], classes), "float32")


@rules.rule(
    "tree_ensemble",
    _ensemble_type,
    not_differentiable="its result is piecewise constant",
)
def tree_ensemble(
    input: Array, trees: Array, nodes: Array, leaves: Array, classes: int, aggregate: str
) -> Array:
    """Return the score of each class in float32, from the leaves that the input reaches.

    The input has the shape (features,) or (batch, features), and the result has the classes in
    the place of the features. `trees` holds, for each tree, the number of the root's row in
    `nodes`. A row of `nodes` stands for a comparison of a feature with a threshold. The row has
    five numbers: the feature, the next row if the comparison is true, the next row if it is false,
    the bits of the float32 threshold, and the code of the comparison. The codes 1 to 6 stand for
    == != < > <= >=. If NaN counts as true, 256 is added to the code.

    Code 0 marks a leaf. The first two numbers of a leaf are the number of its first row in
    `leaves`, and the number after its last row. A row of `leaves` has a class and the bits of a
    float32 weight for this class.

    The score of a class is computed from its weights in all reached leaves. `aggregate` is 'SUM',
    'AVERAGE' (the sum divided by the number of weights), 'MIN' or 'MAX'. A class without weights
    has the score 0.
    """
    x = jnp.asarray(input).astype(jnp.float32)
    node_table = _integers(nodes)
    leaf_table = _integers(leaves)
    codes = node_table[:, 4] & 0xFF
    thresholds = lax.bitcast_convert_type(node_table[:, 3], jnp.float32)

    def descend(state: tuple[Array, Array]) -> tuple[Array, Array]:
        """Go from each node to the next one. A leaf stays as it is."""
        depth, index = state  # the index of a node, for each row of the input and each tree
        node = node_table[index]
        feature, child_if_true, child_if_false = node[..., 0], node[..., 1], node[..., 2]
        is_nan_true = node[..., 4] & 0x100 != 0
        value = jnp.take_along_axis(x, feature, axis=-1, mode="clip")
        threshold = thresholds[index]
        code = codes[index]
        # One of the three relations holds, or none of them if the value is NaN. The comparison is
        # true if the row of its code has True for this relation.
        relations = jnp.stack([value < threshold, value == threshold, value > threshold], axis=-1)
        is_true = jnp.any(relations & jnp.asarray(_COMPARISONS)[code], axis=-1)
        is_true |= jnp.isnan(value) & is_nan_true
        child = jnp.where(is_true, child_if_true, child_if_false)
        is_leaf = code == 0
        return depth + 1, jnp.where(is_leaf, index, child)

    def is_above_leaves(state: tuple[Array, Array]) -> Array:
        depth, index = state
        # A path longer than the number of nodes is a cycle.
        return (depth < len(node_table)) & jnp.any(codes[index] != 0)

    roots = jnp.broadcast_to(_integers(trees), (*x.shape[:-1], len(trees)))
    _, index = lax.while_loop(is_above_leaves, descend, (jnp.int32(0), roots))
    reached = node_table[index]
    first_row, end_row = reached[..., 0], reached[..., 1]  # the leaf's rows in `leaf_table`
    return _votes(first_row, end_row, leaf_table, classes, aggregate)


def _integers(table: Array) -> Array:
    """Return a table of 32-bit items as int32, with unchanged bits."""
    return lax.bitcast_convert_type(jnp.asarray(table), jnp.int32)


def _votes(first: Array, end: Array, leaves: Array, classes: int, aggregate: str) -> Array:
    """Return the scores (..., classes) of classes from the rows of `leaves` that were reached.

    A tree has reached the rows `first` to `end` - 1. `first` and `end` have the shape (...,
    trees). A row of `leaves` has a class and the bits of a float32 weight. `aggregate` is
    'SUM', 'AVERAGE', 'MIN' or 'MAX'.
    """
    batch_axes = range(first.ndim - 1)
    batch = tuple(lax.broadcasted_iota(jnp.int32, first.shape, axis) for axis in batch_axes)
    # A tree adds 1 at its first row, and subtracts 1 after its last row. The running sums are the
    # numbers of trees that reach each row. A tree that reaches the rows 1 and 2 of 4 rows has the
    # changes 0 1 0 -1 0, and the sums 0 1 1 0 0.
    changes = jnp.zeros((*first.shape[:-1], len(leaves) + 1), jnp.int32)
    changes = changes.at[(*batch, first)].add(1)
    changes = changes.at[(*batch, end)].add(-1)
    tree_counts = jnp.cumsum(changes, axis=-1)[..., :-1]
    tree_counts = jnp.moveaxis(tree_counts, -1, 0)  # (rows, ...)
    row_classes = leaves[:, 0]
    weights = lax.bitcast_convert_type(leaves[:, 1], jnp.float32)
    weights = weights.reshape(-1, *[1] * (tree_counts.ndim - 1))  # (rows, 1, ...)
    vote_counts = segment_sum(tree_counts, row_classes, classes)  # (classes, ...)
    match aggregate:
        case "MAX":
            reached_weights = jnp.where(tree_counts > 0, weights, -jnp.inf)
            scores = segment_max(reached_weights, row_classes, classes)
        case "MIN":
            reached_weights = jnp.where(tree_counts > 0, weights, jnp.inf)
            scores = segment_min(reached_weights, row_classes, classes)
        case _:
            scores = segment_sum(tree_counts.astype(jnp.float32) * weights, row_classes, classes)
            if aggregate == "AVERAGE":
                scores = scores / jnp.maximum(vote_counts, 1).astype(jnp.float32)
    return jnp.moveaxis(jnp.where(vote_counts > 0, scores, 0.0), 0, -1)
