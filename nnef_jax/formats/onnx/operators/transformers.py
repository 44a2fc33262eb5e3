"""Functions for attention operators of com.microsoft.

The optimiser of onnxruntime and some exporters write these operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from nnef_jax.flattening.operators.attributes import flag, integer, number
from nnef_jax.flattening.site import Operand, Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.heads import (
    Mask,
    angles,
    attended,
    joined_heads,
    rotated,
    split_heads,
)
from nnef_jax.formats.onnx.operators.quantizers import MICROSOFT
from nnef_jax.formats.onnx.operators.registry import operator

_ATTENTION: dict[str, Any] = {
    "count": integer("num_heads"),
    "scale": number("scale", 0),
    "is_causal": flag("unidirectional"),
    "least": number("mask_filter_value", -10000.0),
}


def require_supported(site: NodeSite, inputs: int, outputs: int = 99, **attributes: object) -> None:
    """Raise InvalidOperation for unsupported inputs, outputs or attributes of a node.

    Only the first `inputs` inputs and the first `outputs` outputs are supported. `attributes` maps
    the name of an attribute to the only value that is supported.
    """
    for i in range(inputs, len(site.operands)):
        if site.has(i):
            raise InvalidOperation(f"input {i} is not supported")
    for i in range(outputs, len(site.node.outputs)):
        if site.is_read(i):
            raise InvalidOperation(f"output {i} is not supported")
    for name, supported in attributes.items():
        value = site.node.attributes.get(name, supported)
        if value != supported:
            raise InvalidOperation(f"attribute '{name}' must be {supported!r}, it is {value!r}")


def _mask_padding(
    site: NodeSite, mask: Mask, i: int, keys: int, query: Tensor, least: float
) -> None:
    """Add `least`, a large negative number, to the scores of keys that are padding.

    `keys` is the number of keys. Input `i` has one of these shapes:

    - (batch, keys) or (batch, time, keys): 0 for padding, and positive numbers for other keys;
    - (batch,): the lengths of the sequences;
    - (2 * batch,): the ends of all sequences, then the starts of all sequences.
    """
    if not site.has(i):
        return
    step = site.step
    batch = site.extent(query, 0)
    rank = site.rank(i)
    numbers = site.as_integer(i)
    # `is_item` is true for keys that are not padding. It broadcasts to (batch, heads, time, keys).
    if rank == 1:
        count = site.extent(i, 0)
        if count not in (batch, 2 * batch):
            raise InvalidShape(f"a mask {show(site.shape(i))} is not supported for {batch} samples")
        index = site.positions(keys, axis=3, rank=4)
        parts = [
            site.part(numbers, axis=0, first=k, last=k + batch) for k in range(0, count, batch)
        ]
        end, *starts = (site.unsqueezed(x, (1, 2, 3)) for x in parts)
        is_item = step.lt(index, end)
        for start in starts:  # `starts` is empty, or has one item.
            is_item = step.and_(is_item, step.ge(index, start))
    elif rank in (2, 3):
        new_axes = (1, 2) if rank == 2 else (1,)
        is_item = site.unsqueezed(step.gt(numbers, 0), new_axes)
    else:
        raise InvalidShape(f"a mask of {rank} axes is not supported")
    mask.add_bias(step.select(is_item, 0, site.constant(least, site.dtype_of(query))))


def _split(site: NodeSite, x: Tensor, sizes: Sequence[int], axis: int) -> list[Any]:
    """Split a tensor along an axis into parts with the extents `sizes`."""
    bounds = np.cumsum([0, *sizes]).tolist()
    if bounds[-1] != site.extent(x, axis):
        raise InvalidShape(f"{show(site.shape(x))} cannot be split into {list(sizes)} items")
    return [site.part(x, axis, first, last) for first, last in pairwise(bounds)]


def _unpacked(site: NodeSite, x: Tensor, axis: int) -> list[Any]:
    """Return the slices of a tensor along an axis. The slices do not have the axis."""
    parts = _split(site, x, [1] * site.extent(x, axis), axis)
    return [site.squeezed(part, axis) for part in parts]


def _with_past(site: NodeSite, past: Tensor | None, x: Tensor) -> Any:
    """Append `x`, heads of new keys or values, to the heads `past`, unless `past` is None."""
    if past is None:
        return x
    return site.step.concat([past, x], axis=2)


def _attended(
    site: NodeSite, q: Tensor, k: Tensor, v: Tensor, padding: int, bias: int, *, scale: float,
    is_causal: bool, least: float,
) -> Any:  # fmt: skip
    """Compute attention of heads; return the result in the shape (batch, time, heads * items).

    Input `padding` says which keys are padding, and `least` is added to the scores of these keys;
    see `_mask_padding`. Input `bias` is added to all scores. If `is_causal`, a query attends to no
    later keys.
    """
    query_count = site.extent(q, 2)
    key_count = site.extent(k, 2)
    mask = Mask(site)
    _mask_padding(site, mask, padding, key_count, q, least)
    if site.has(bias):
        mask.add_bias(site.operand(bias))
    if is_causal:
        past_count = key_count - query_count
        mask.restrict_to_window(query_count, key_count, past_count, right=0)
    result, _ = attended(mask, q, k, v, scale=scale)
    return joined_heads(site, result)


@operator("Attention", domain=MICROSOFT, **_ATTENTION)
def _attention(
    site: NodeSite,
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    *,
    count: int,
    **attributes: Any,
) -> tuple[Any, ...]:
    """Compute attention to past and new keys.

    Return the result, and a stack of all keys and all values. The products of x and the weights are
    queries, keys and values. Input 3 is the mask, input 4 is a stack of past keys and values, and
    input 5 is a bias of the scores. `count` is the number of heads.
    """
    require_supported(site, inputs=6, do_rotary=0, past_present_share_buffer=0)
    packed = site.product(x, site.unsqueezed(weights, (0,)))
    if bias is not None:
        packed = site.step.add(packed, bias)
    equal_sizes = [site.extent(packed, 2) // 3] * 3
    sizes = site.ints("qkv_hidden_sizes", equal_sizes)
    q, k, v = (split_heads(site, part, count) for part in _split(site, packed, sizes, axis=2))
    if site.has(4):
        past_k, past_v = _unpacked(site, site.tensor(4), axis=0)
        k = _with_past(site, past_k, k)
        v = _with_past(site, past_v, v)
    result = _attended(site, q, k, v, padding=3, bias=5, **attributes)
    present = site.step.stack([k, v], axis=0) if site.is_read(1) else None
    return result, present


@operator("MultiHeadAttention", domain=MICROSOFT, **_ATTENTION)
def _multi_head_attention(
    site: NodeSite, x: Tensor, *, count: int, **attributes: Any
) -> tuple[Any, ...]:
    """Compute attention; return the result, the keys and the values.

    Inputs 0 to 2 are queries, keys and values. Input 3 is the bias of all three, and inputs 6 and 7
    are past keys and values. `count` is the number of heads.

    If inputs 1 and 2 are left out, input 0 has queries, keys and values packed along axis 3. If
    only input 2 is left out, input 1 has keys and values packed along axis 3.
    """
    require_supported(site, inputs=8, outputs=3)
    x = site.tensor(x)
    parts = _queries_keys_and_values(site, x)
    # In cross-attention, keys and values may already be heads of shape (batch, heads, time, items).
    # Then they have no bias.
    are_heads = site.rank(x) == 3 and site.rank(1) == 4
    flat_count = 1 if are_heads else 3  # the number of parts that are not heads yet
    for i, part in enumerate(parts[:flat_count]):
        if site.rank(part) == 4:
            # A part of a packed input has shape (batch, time, heads, items). It is reshaped to
            # (batch, time, heads * items), like the inputs that are not packed.
            parts[i] = site.reshaped(part, (0, 0, -1))
    if site.has(3):
        # The bias has `width` items for queries, `width` for keys, and `value_width` for values.
        width = site.extent(parts[0], 2)
        value_width = site.extent(3, 0) - 2 * width
        sizes = [width, width, value_width]
        biases = _split(site, site.tensor(3), sizes, axis=0)
        for i, bias in enumerate(biases[:flat_count]):
            parts[i] = site.step.add(parts[i], bias)
    for i, part in enumerate(parts):
        if site.rank(part) != 4:
            parts[i] = split_heads(site, part, count)
    q, k, v = parts
    k = _with_past(site, site.optional(6), k)
    v = _with_past(site, site.optional(7), v)
    return _attended(site, q, k, v, padding=4, bias=5, **attributes), k, v


def _queries_keys_and_values(site: NodeSite, x: Tensor) -> list[Any]:
    """Return the queries, keys and values of a MultiHeadAttention. `x` is input 0.

    Packed parts lie along axis 3 of an input of 5 axes.
    """
    if site.rank(x) == 5:
        return _unpacked(site, x, axis=3)
    if site.rank(1) == 5:
        return [x, *_unpacked(site, site.tensor(1), axis=3)]
    return [x, site.tensor(1), site.tensor(2)]


@operator("RotaryEmbedding", domain=MICROSOFT)
def _rotary_embedding(
    site: NodeSite,
    x: Tensor,
    *,
    count: int = integer("num_heads", 0),
    interleaved: bool = flag("interleaved"),
) -> Any:
    """Rotate the items of heads by angles that depend on the positions of time steps.

    Input 1 has the positions, or only the position of the first time step. Inputs 2 and 3 are the
    cosines and sines at all positions. `count` is the number of heads. It may be 0 if all items of
    a head are rotated.
    """
    require_supported(site, inputs=4, scale=1.0, is_packed_batching=0)
    x = site.tensor(x)
    is_flat = site.rank() == 3  # (batch, time, heads * items)
    if is_flat:
        if count == 0:
            # Each angle rotates two items of a head.
            items_of_head = 2 * site.extent(2, 1)
            count = site.extent(0, 2) // items_of_head
        x = split_heads(site, x, count)
    positions = site.as_integer(1)
    has_first_position_only = site.rank(1) == 1
    if has_first_position_only:
        steps = site.positions(site.extent(x, 2), axis=1, rank=2)
        positions = site.step.add(steps, positions)
    cos, sin = angles(site, positions, caches=(2, 3))
    x = rotated(site, x, cos, sin, interleaved=interleaved)
    return joined_heads(site, x) if is_flat else x


@operator(
    "GroupQueryAttention", domain=MICROSOFT, scale=number("scale", 0), softcap=number("softcap", 0)
)
def _group_query_attention(
    site: NodeSite,
    *,
    query_heads: int = integer("num_heads"),
    key_heads: int = integer("kv_num_heads"),
    rotates: bool = flag("do_rotary"),
    interleaved: bool = flag("rotary_interleaved"),
    window: int = integer("local_window_size", -1),
    is_smooth: bool = flag("smooth_softmax"),
    **scaling: Any,
) -> tuple[Any, ...]:
    """Compute causal attention. New keys and values are appended to past ones in buffers.

    The inputs are:

    - 0 to 2: queries, keys and values.
    - 3 and 4: the buffers of past keys and values.
    - 5: the number of past and new keys of each sequence, minus 1.
    - 6: the total length, which is the number of keys of the longest sequence.
    - 7 and 8: cosines and sines at all positions.
    - 9: the positions of the queries.
    - 10: a bias of the scores.
    - 11: the score of an additional key for each head.

    If `rotates`, queries and keys are rotated by their positions. If `window` is positive, a query
    attends only to its own key and to the `window` - 1 keys before it.

    The results include buffers of all keys and values. If the total length is a constant, these
    buffers are at least this long. If the total length is computed in a run, the resulting buffers
    are as long as the buffers of past keys and values. A sequence may have more keys than such a
    buffer can hold. Then the result for this sequence is NaN, where onnxruntime would make a longer
    buffer.
    """
    require_supported(
        site, inputs=12, outputs=3, sliding_window_cache=0, k_quant_type="NONE",
        v_quant_type="NONE", causal=1,
    )  # fmt: skip
    step = site.step
    q, k, v = _packed_heads(site, (query_heads, key_heads, key_heads))
    batch, _, query_count, items = site.known_shape(q)
    for i in (3, 4):
        if site.has(i):
            # onnxruntime-genai leaves the number of items of a key open.
            site.imply(i, axis=3, extent=items)
    buffer_length = site.extent(3, 2) if site.has(3) else 0
    past_count: Any = 0
    if buffer_length:
        last_keys = site.reshaped(site.as_integer(5), (batch, 1))  # the index of the last key
        past_count = step.max(step.sub(last_keys, query_count - 1), 0)  # of shape (batch, 1)
    if rotates:
        q, k = _rotated_by_position(site, [q, k], past_count, interleaved=interleaved)
    total = site.operand(6)
    is_total_known = isinstance(total, Constant)
    least_count = int(total.array.reshape(-1)[0]) if is_total_known else query_count
    key_count = max(least_count, buffer_length)
    if buffer_length:
        k = _buffer_with_new(site, site.tensor(3), k, past_count, key_count)
        v = _buffer_with_new(site, site.tensor(4), v, past_count, key_count)
        past_count = site.unsqueezed(past_count, (2, 3))
    elif key_count > query_count:
        k = site.cut_or_padded(k, axis=2, size=key_count)
        v = site.cut_or_padded(v, axis=2, size=key_count)
    mask = Mask(site)
    left = window - 1 if window > 0 else -1  # The window includes the key of the query itself.
    mask.restrict_to_window(query_count, key_count, past_count, left=left, right=0)
    if site.has(10):
        mask.add_bias(site.part(site.tensor(10), axis=3, first=0, last=key_count))
    sink = site.reshaped(site.tensor(11), (-1, 1, 1)) if site.has(11) else None
    if is_smooth and sink is None:
        # A smooth softmax has an additional key with the score 0.
        sink = site.constant([[[0]]], site.dtype_of(q))
    result, _ = attended(mask, q, k, v, sink=sink, **scaling)
    if buffer_length and not is_total_known:
        result = _nan_if_too_long(site, result, key_count)
    return joined_heads(site, result), k, v


def _rotated_by_position(
    site: NodeSite, heads: Sequence[Tensor], past_count: Operand, *, interleaved: bool
) -> list[Any]:
    """Rotate new queries and new keys by the angles of their positions; see `rotated`.

    `heads` are the queries and the keys, of shape (batch, heads, time, items). Input 9 has the
    positions of the time steps. By default, the first position is `past_count`.
    """
    if site.has(9):
        positions = site.as_integer(9)
    else:
        time = site.extent(heads[0], 2)
        positions = site.step.add(site.positions(time, axis=1, rank=2), past_count)
    rotated_heads: list[Any] = []
    for x in heads:
        cos, sin = angles(site, positions, caches=(7, 8))
        rotated_heads.append(rotated(site, x, cos, sin, interleaved=interleaved))
    return rotated_heads


def _nan_if_too_long(site: NodeSite, result: Tensor, key_count: int) -> Any:
    """Replace the result of a sequence by NaN if the sequence has more than `key_count` keys.

    `result` has shape (batch, heads, time, items). Input 5 has the number of keys of each sequence,
    minus 1.
    """
    step = site.step
    batch = site.extent(result, 0)
    last_keys = site.reshaped(site.as_integer(5), (batch, 1, 1, 1))  # the index of the last key
    fits = step.lt(last_keys, key_count)
    fits_as_number = site.cast(fits, site.dtype_of(result))
    # The factor is 1 / 1, or 0 / 0, which is NaN. NNEF has no literal for NaN.
    factor = step.div(fits_as_number, fits_as_number)
    return step.mul(result, factor)


def _packed_heads(site: NodeSite, counts: tuple[int, int, int]) -> list[Any]:
    """Return the heads of queries, keys and values.

    Inputs 0 to 2 are queries, keys and values, or input 0 has all three packed along axis 2.
    `counts` has the numbers of heads of queries, keys and values.
    """
    if site.has(1):
        parts: list[Any] = [site.tensor(i) for i in range(3)]
    else:
        items_of_head = site.extent(0, 2) // sum(counts)
        sizes = [count * items_of_head for count in counts]
        parts = _split(site, site.tensor(0), sizes, axis=2)
    return [split_heads(site, x, n) for x, n in zip(parts, counts, strict=True)]


def _buffer_with_new(
    site: NodeSite, past: Tensor, new: Tensor, past_count: Tensor, length: int
) -> Any:
    """Make a buffer of `length` keys or values: past ones, followed by new ones and by zeros.

    `past` and `new` are keys or values of shape (batch, heads, keys, items). `past_count` has shape
    (batch, 1). It is the number of past keys of each sequence.
    """
    step = site.step
    batch, heads, new_count, items = site.known_shape(new)
    past_length = site.extent(past, 2)
    zero = site.filled(0, site.dtype_of(new), (batch, heads, 1, items))
    table = step.concat([past, new, zero], axis=2)
    # `index` has, for each key of the buffer, the index of the key in `table`. With 2 past keys in
    # a buffer of 4, and 1 new key, the table has the past keys at 0 to 3, the new key at 4 and zero
    # at 5. The index is 0, 1, 4, 5.
    past_index = site.positions(length, axis=1, rank=2)
    new_index = step.sub(past_index, past_count)
    is_past = step.lt(new_index, 0)
    is_new = step.and_(step.ge(new_index, 0), step.lt(new_index, new_count))
    zero_index = past_length + new_count
    index = step.select(is_new, step.add(new_index, past_length), zero_index)
    index = step.select(is_past, past_index, index)
    index_of_heads = step.tile(site.unsqueezed(index, (1,)), repeats=(1, heads, 1))
    return step.gather_in_batches(table, index_of_heads, axis=2, batch_dims=2)
