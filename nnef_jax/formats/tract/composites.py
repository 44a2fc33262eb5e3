"""Products, normalisation, attention, recurrence, indices and resampling, made those of kinds.

Products have operands of several ranks, and letters of Einstein's notation for axes.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

import jax.numpy as jnp

from lowering import resampling
from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import differ, is_known, padded, show
from lowering.graph import is_float
from lowering.ops import require
from lowering.ops.require import normal_axes
from nnef_jax.formats.tract import geometry
from nnef_jax.formats.tract.meaning import Draft


def same_rank(draft: Draft) -> None:
    """Give the operand of fewer axes leading ones; a vector is a column."""
    shapes = {name: draft.shape(name) for name in list(draft.operands)[:2]}
    rank = max(map(len, shapes.values()))
    for name, shape in shapes.items():
        matrix = padded(shape, 2)
        if len(shape) < rank:
            leading, trailing = max(rank - len(matrix), 0), len(matrix) - len(shape)
            axes = [*range(leading), *range(rank - trailing, rank)]
            draft.before(name, "unsqueeze", axes=axes)


def einsum(draft: Draft) -> None:
    """Return the type of the sums unless another one is asked for."""
    draft.attributes["dtype"] = draft.attributes["dtype"] or draft.attributes["accumulator"]


def legacy_matmul(draft: Draft) -> None:
    """Write the axes of a product in letters."""
    a, b, c = _terms(draft)
    dtype = draft.dtype("a")
    draft.operands = {"inputs": [draft.operands["a"], draft.operands["b"]]}
    draft.attributes = {"expr": f"{a},{b}->{c}", "accumulator": dtype, "dtype": dtype}


def _terms(draft: Draft) -> tuple[str, str, str]:
    """Return the letters of two operands and the result for the `axes` [a_m,a_k,b_k,b_n,c_m,c_n].

    They are m, k and n, and capitals for the batch: the other axes of each, in their order. Without
    axes the matrices are in the last two.
    """
    axes, ranks = draft.attributes.pop("axes"), {len(draft.shape(x)) for x in ("a", "b")}
    if len(ranks) > 1 or min(ranks) < 2:
        raise InvalidShape(
            f"'A' {show(draft.shape('a'))} and 'B' {show(draft.shape('b'))} must have one rank, "
            "of at least two",
            hint="`unsqueeze` the one of lower rank",
        )
    (rank,) = ranks
    if axes:
        require.length("axes", axes, 6, "axes a_m, a_k, b_k, b_n, c_m and c_n")
    a_m, a_k, b_k, b_n, c_m, c_n = axes or (rank - 2, rank - 1) * 3

    def term(axes: Sequence[int], letters: str) -> str:
        named = dict(zip(normal_axes(axes, rank), letters, strict=True))
        batch = iter(string.ascii_uppercase)
        return "".join(named.get(axis) or next(batch) for axis in range(rank))

    return term((a_m, a_k), "mk"), term((b_k, b_n), "kn"), term((c_m, c_n), "mn")


def paired(draft: Draft) -> None:
    """Split the list of two inputs into the operands a and b."""
    inputs = draft.operands.pop("inputs")
    if len(inputs) != 2:
        raise InvalidOperation(f"there must be two inputs, there are {len(inputs)}")
    draft.operands["a"], draft.operands["b"] = inputs
    sums, dtype = draft.attributes.pop("acc"), draft.attributes.pop("output")
    draft.attributes["dtype"] = dtype or sums


def quantized_matmul(draft: Draft) -> None:
    """Take bias, a0 and a_scale for each row, b0 and b_scale for each column, or one for all."""
    a, b, c = _terms(draft)
    draft.attributes["expr"] = f"{a},{b},m,m,m,n,n,,->{c}"


# Layers and their parts


def power(draft: Draft) -> None:
    """Raise to a power of the type of the base."""
    dtype = jnp.dtype(draft.dtype("x"))
    draft.operands["y"] = dtype.type(draft.attributes.pop("exponent"))


def norm(draft: Draft) -> None:
    """Scale by 1 where nothing else is given."""
    geometry.one(draft)
    if "scale" not in draft.operands:
        input, epsilon = draft.operands.values()
        one = jnp.dtype(draft.dtype("input")).type(1)
        draft.operands = {"input": input, "scale": one, "epsilon": epsilon}


def attention(draft: Draft) -> None:
    """Compute in `acc_datum_type`; the result has the type of the operands."""
    dtype, wide = draft.dtype("query"), draft.attributes.pop("acc_datum_type")
    if wide in ("", dtype):
        return
    if not is_float(wide):
        raise InvalidOperation(f"'acc_datum_type' must be a type of real numbers, it is {wide}")
    for name in ("query", "key", "value"):
        draft.before(name, "cast", dtype=wide)
    draft.after("cast", dtype=dtype)


def masked_softmax(draft: Draft) -> None:
    """Refuse a mask that is added, and has to act once more behind."""
    dtype = draft.dtype("mask")
    if draft.attributes.pop("post_softmax_mask") and dtype != "bool":  # a bool mask acts so
        message = f"'post_softmax_mask' takes a mask of logical values, this one holds {dtype}"
        raise InvalidOperation(message)


def experts(draft: Draft) -> None:
    """Lay weights as `canonical` has them."""
    layout = draft.attributes.pop("expert_layout")
    require.one_of("expert_layout", layout, ("canonical", "linear"))
    if len(draft.shape("router")) == 3:
        draft.before("router", "squeeze", axes=(0,))
    for name in ("w1", "w2", "w3"):
        if layout == "linear" and draft.operands[name] is not False:
            draft.before(name, "transpose", axes=(0, 2, 1))


def hidden(draft: Draft, name: str) -> None:
    """Check how many items an operand has along its last axis."""
    items, shape = draft.attributes.pop("hidden"), draft.shape(name)
    if not shape or differ(shape[-1], items):
        message = f"'{name}' {show(shape)} must have 'hidden' {items} items along its last axis"
        raise InvalidShape(message)


def gru_sequence(draft: Draft) -> None:
    """Go through the sequence from its start or end."""
    hidden(draft, "recurrent_weight")
    chunk = draft.attributes.pop("chunk")
    if chunk not in (1, -1):
        message = f"'chunk' must be 1, or -1 for the sequence from its end, it is {chunk}"
        raise InvalidOperation(message)
    draft.attributes["reverse"] = chunk < 0
    if not draft.attributes.pop("has_bias"):
        draft.operands["bias"] = False
    if draft.attributes.pop("projected"):
        draft.operands["weight"] = False


def gather(draft: Draft) -> None:
    """Cast the gathered items to a type."""
    dtype = draft.attributes.pop("datum_type")
    geometry.one(draft)
    if dtype not in ("", draft.dtype("input")):
        draft.after("cast", dtype=dtype)


def one_hot(draft: Draft) -> None:
    """Cut off indices that are real numbers."""
    if is_float(draft.dtype("indices")):
        draft.before("indices", "cast", dtype="int32")


def tree_ensemble(draft: Draft) -> None:
    """Check the number of features: the trees find all that they read."""
    last, shape = draft.attributes.pop("max_used_feature"), draft.shape("input")
    if shape and shape[-1] <= last:
        raise InvalidShape(
            f"the trees read feature {last}, 'input' {show(shape)} has only {shape[-1]} features"
        )


def core_resize(draft: Draft) -> None:
    """Resize to sizes where scales of aligned corners leave a part of an item over."""
    draft.operands["roi"] = False
    given, shape = draft.attributes, draft.shape("input")
    mode = given["coordinate_transformation_mode"]
    require.one_of(
        "coord_transformer",
        mode,
        tuple(name for name in resampling.COORDINATES if name != resampling.CROP),
    )
    if mode == "pytorch_half_pixel":  # no exception for a single item
        given["coordinate_transformation_mode"] = "half_pixel"
    scales = given["scales"]
    whole = mode == "align_corners" and len(scales) == len(shape) and is_known(shape)
    if whole and not given["sizes"] and all(0 < scale < math.inf for scale in scales):
        # The last item is aligned where the scale leaves a part of one over.
        given["sizes"], given["scales"] = tuple(map(int, map(resampling.length, shape, scales))), ()


def response(draft: Draft) -> None:
    """Sum along the axis of the channels."""
    shape, size = draft.shape("input"), draft.attributes["size"]
    if len(shape) < 2:
        raise InvalidShape(f"'input' {show(shape)} must have channels along its second axis")
    draft.attributes["size"] = (1, size) + (1,) * (len(shape) - 2)
