"""Attention of com.microsoft, as onnxruntime's optimiser and exporters of transformers write it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator
from nnef_jax.formats.onnx.operators.heads import (
    Mask,
    attended,
    heads,
    joined,
    rotated,
)
from nnef_jax.formats.onnx.operators.quantizers import MICROSOFT


def only(site: NodeSite, inputs: int, outputs: int = 99, **attributes: Any) -> None:
    """Raise InvalidOperation for further inputs or outputs, and for other values of attributes."""
    for i in range(inputs, len(site.operands)):
        if site.has(i):
            raise InvalidOperation(f"input {i} is not supported")
    for i in range(outputs, len(site.node.outputs)):
        if site.wants(i):
            raise InvalidOperation(f"output {i} is not supported")
    for name, value in attributes.items():
        found = site.node.attributes.get(name, value)
        if found != value:
            raise InvalidOperation(f"attribute '{name}' must be {value!r}, it is {found!r}")


def _integers(site: NodeSite, i: int) -> Any:
    return site.cast(site.operand(i), site.graph.builder.integer)


def _pad(site: NodeSite, mask: Mask, i: int, keys: int, real: Any) -> None:
    """Add a large negative number to scores of keys that are no items of a sequence.

    An input tells them: a number for each key [batch,keys] or score [batch,time,keys], 0 for none;
    lengths [batch]; or ends, then starts [2*batch].
    """
    if not site.has(i):
        return
    batch, rank = site.extent(real, 0), site.rank(i)
    found = _integers(site, i)
    if rank == 1:
        count = site.extent(i, 0)
        if count not in (batch, 2 * batch):
            raise InvalidShape(f"a mask {show(site.shape(i))} is not supported for {batch} samples")
        places = site.places(keys, 3, 4)
        ends = site.unsqueezed(site.part(found, 0, 0, batch), (1, 2, 3))
        counts = site.term("lt", places, ends)
        if count == 2 * batch:
            starts = site.unsqueezed(site.part(found, 0, batch, count), (1, 2, 3))
            counts = site.term("and", counts, site.term("ge", places, starts))
    elif rank in (2, 3):
        counts = site.unsqueezed(site.term("gt", found, 0), (1, 2) if rank == 2 else (1,))
    else:
        raise InvalidShape(f"a mask of {rank} axes is not supported")
    least = site.constant(site.number("mask_filter_value", -10000.0), site.dtype_of(real))
    mask.add(site.chosen(counts, 0, least))


def _split(site: NodeSite, x: Any, sizes: Sequence[int], axis: int) -> list[Any]:
    ends = np.cumsum([0, *sizes]).tolist()
    if ends[-1] != site.extent(x, axis):
        raise InvalidShape(f"{show(site.shape(x))} has no parts of {list(sizes)} items")
    return [site.part(x, axis, a, b) for a, b in pairwise(ends)]


def _unpacked(site: NodeSite, x: Any, axis: int) -> list[Any]:
    """Split a tensor along an axis, and drop the axis."""
    count = site.extent(x, axis)
    parts = _split(site, x, [1] * count, axis)
    return [site.insert("squeeze", {"input": part}, axes=(axis,)) for part in parts]


def _behind(site: NodeSite, past: Any, x: Any) -> Any:
    return x if past is None else site.insert("concat", {"values": [past, x]}, axis=2)


def _whole(site: NodeSite, q: Any, k: Any, v: Any, padding: int, bias: int) -> Any:
    """Attend as Attention and MultiHeadAttention do, given which inputs are masks."""
    times, keys = site.extent(q, 2), site.extent(k, 2)
    mask = Mask(site)
    _pad(site, mask, padding, keys, q)
    if site.has(bias):
        mask.add(site.operand(bias))
    if site.flag("unidirectional"):
        mask.within(times, keys, keys - times, right=0)
    scale = site.number("scale", 0)
    return joined(site, attended(site, q, k, v, mask.whole(site.dtype_of(q)), scale=scale)[0])


@operator("Attention", domain=MICROSOFT)
def _attention(site: NodeSite) -> tuple[Any, ...]:
    only(site, 6, do_rotary=0, past_present_share_buffer=0)
    x, weights = site.tensor(0), site.unsqueezed(site.tensor(1), (0,))
    flags = {"transposeA": False, "transposeB": False}
    x = site.insert("matmul", {"A": x, "B": weights}, **flags)
    if site.has(2):
        x = site.term("add", x, site.operand(2))
    sizes = site.ints("qkv_hidden_sizes", [site.extent(x, 2) // 3] * 3)
    count = site.int("num_heads")
    q, k, v = (heads(site, part, count) for part in _split(site, x, sizes, 2))
    if site.has(4):
        past = _unpacked(site, site.tensor(4), 0)
        k, v = (_behind(site, p, x) for p, x in zip(past, (k, v), strict=True))
    result = _whole(site, q, k, v, 3, 5)
    present = site.insert("stack", {"values": [k, v]}, axis=0) if site.wants(1) else None
    return result, present


@operator("MultiHeadAttention", domain=MICROSOFT)
def _multi_head_attention(site: NodeSite) -> tuple[Any, ...]:
    """Attend; heads of queries, keys and values may be packed in one tensor."""
    only(site, 8, 3)
    count, x = site.int("num_heads"), site.tensor(0)
    parts: list[Any]
    if site.rank(x) == 5:
        parts = _unpacked(site, x, 3)
    elif site.rank(1) == 5:
        parts = [x, *_unpacked(site, site.tensor(1), 3)]
    else:
        parts = [x, site.tensor(1), site.tensor(2)]
    # [batch,time,heads*items], but what is unpacked [batch,time,heads,items]; keys of before,
    # which are another's, [batch,heads,time,items].
    is_past = site.rank(x) == 3 and site.rank(1) == 4
    parts = [
        p if is_past and i else site.reshaped(p, (0, 0, -1)) if site.rank(p) == 4 else p
        for i, p in enumerate(parts)
    ]
    if site.has(3):
        width = site.extent(parts[0], 2)
        values = site.extent(3, 0) - 2 * width
        biases = _split(site, site.tensor(3), [width, width, values], 0)
        parts = [
            p if is_past and i else site.term("add", p, bias)
            for i, (p, bias) in enumerate(zip(parts, biases, strict=True))
        ]
    q, k, v = (p if site.rank(p) == 4 else heads(site, p, count) for p in parts)
    k, v = _behind(site, site.optional(6), k), _behind(site, site.optional(7), v)
    return _whole(site, q, k, v, 4, 5), k, v


def _angles(site: NodeSite, positions: Any, caches: Sequence[int]) -> list[Any]:
    """Return cosines and sines [batch,time,angles] at positions [batch,time]."""
    return [
        site.insert("gather", {"input": site.operand(i), "indices": positions}, axis=0)
        for i in caches
    ]


@operator("RotaryEmbedding", domain=MICROSOFT)
def _rotary_embedding(site: NodeSite) -> Any:
    only(site, 4, scale=1.0, is_packed_batching=0)
    x, is_flat = site.tensor(0), site.rank() == 3
    half = site.extent(2, 1)
    if is_flat:
        count = site.int("num_heads", 0) or site.extent(0, 2) // (2 * half)
        x = heads(site, x, count)
    positions = _integers(site, 1)
    if site.rank(1) == 1:  # that of the first
        positions = site.term("add", site.places(site.extent(x, 2), 1, 2), positions)
    cos, sin = _angles(site, positions, (2, 3))
    x = rotated(site, x, cos, sin, interleaved=site.flag("interleaved"))
    return joined(site, x) if is_flat else x


@operator("GroupQueryAttention", domain=MICROSOFT)
def _group_query_attention(site: NodeSite) -> tuple[Any, ...]:
    """Attend causally, with keys and values kept in buffers: new ones come behind old ones.

    `seqlens_k` has how many there are with the new ones, less 1. A buffer is as long as its
    contents, or as the longest ones.
    """
    only(site, 12, 3, sliding_window_cache=0, k_quant_type="NONE", v_quant_type="NONE")
    counts = [site.int("num_heads"), site.int("kv_num_heads")]
    parts: list[Any] = [site.tensor(0)]
    if site.has(1):
        parts += [site.tensor(1), site.tensor(2)]
    else:
        size = site.extent(0, 2) // (counts[0] + 2 * counts[1])
        parts = _split(site, parts[0], [n * size for n in (*counts, counts[1])], 2)
    q, k, v = (heads(site, x, n) for x, n in zip(parts, (*counts, counts[1]), strict=True))
    batch, _, times, _ = site.known_shape(q)
    kept = site.extent(3, 2) if site.has(3) else 0
    before: Any = 0
    if kept:
        lengths = site.reshaped(_integers(site, 5), (batch, 1))
        before = site.term("max", site.term("sub", lengths, times - 1), 0)  # [batch,1]
    if site.flag("do_rotary"):
        places = _integers(site, 9) if site.has(9) else None
        if places is None:
            places = site.term("add", site.places(times, 1, 2), before)
        cos, sin = _angles(site, places, (7, 8))
        is_mixed = site.flag("rotary_interleaved")
        q, k = (rotated(site, x, cos, sin, interleaved=is_mixed) for x in (q, k))
    keys = kept + times
    total = site.operand(6)
    if isinstance(total, Constant):
        keys = max(int(total.array.reshape(-1)[0]), kept)
    if kept:
        k, v = (_placed(site, site.tensor(i), x, before, keys) for i, x in ((3, k), (4, v)))
        before = site.unsqueezed(before, (2, 3))
    elif keys > times:
        around = ((0, 0), (0, 0), (0, keys - times), (0, 0))
        k, v = (
            site.insert("pad", {"input": x}, padding=around, border="constant", value=0.0)
            for x in (k, v)
        )
    mask = Mask(site)
    window = site.int("local_window_size", -1)
    causal = site.flag("causal", True)
    mask.within(
        times, keys, before, left=window - 1 if window > 0 else -1, right=0 if causal else -1
    )
    if not causal:
        only(site, 12, causal=1)
    if site.has(10):
        mask.add(site.part(site.tensor(10), 3, 0, keys))
    sink = site.reshaped(site.tensor(11), (-1, 1, 1)) if site.has(11) else None
    if site.flag("smooth_softmax") and sink is None:
        sink = site.constant([[[0]]], site.dtype_of(q))
    result, _ = attended(
        site, q, k, v, mask.whole(site.dtype_of(q)),
        scale=site.number("scale", 0), softcap=site.number("softcap", 0),
        sink=sink,
    )  # fmt: skip
    return joined(site, result), k, v


def _placed(site: NodeSite, past: Any, new: Any, before: Any, keys: int) -> Any:
    """Return a buffer of so many keys: those `before` [batch,1], new ones, and zeros."""
    batch, heads, times, items = site.known_shape(new)
    kept = site.extent(past, 2)
    zero = site.constant([[[[0]]]], site.dtype_of(new))
    none = site.insert("broadcast", {"input": zero}, shape=(batch, heads, 1, items))
    whole = site.insert("concat", {"values": [past, new, none]}, axis=2)
    places = site.places(keys, 1, 2)
    behind = site.term("sub", places, before)
    is_new = site.term("and", site.term("ge", behind, 0), site.term("lt", behind, times))
    index = site.chosen(is_new, site.term("add", behind, kept), kept + times)
    index = site.chosen(site.term("lt", behind, 0), places, index)
    index = site.insert("tile", {"input": site.unsqueezed(index, (1,))}, repeats=(1, heads, 1))
    return site.insert(
        "gather_in_batches", {"input": whole, "indices": index}, axis=2, batch_dims=2
    )
