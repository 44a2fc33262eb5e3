"""Attention and rotary embedding; heads are [batch,heads,time,items]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, differ, show
from lowering.graph import Value
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator
from nnef_jax.formats.onnx.tensor_types import dtype_of


def heads(site: NodeSite, x: Any, count: int) -> Any:
    """Return [batch,time,heads*items] as heads."""
    if count < 1 or (site.shape(x)[-1] is not UNKNOWN and site.shape(x)[-1] % count):
        raise InvalidShape(f"{show(site.shape(x))} are no {count} heads of equal size")
    split = site.reshaped(x, (0, 0, count, -1))
    return site.transposed(split, (0, 2, 1, 3))


def joined(site: NodeSite, x: Any) -> Any:
    """Return heads as [batch,time,heads*items]."""
    return site.reshaped(site.transposed(x, (0, 2, 1, 3)), (0, 0, -1))


def both(site: NodeSite, a: Any, b: Any) -> Any:
    """Return where both conditions hold; None is everywhere."""
    if a is None or b is None:
        return b if a is None else a
    return site.term("and", a, b)


@dataclass(slots=True)
class Mask:
    """Which scores count, and what is added to them: broadcast to [batch,heads,time,keys]."""

    site: NodeSite
    allowed: Any = None
    bias: Any = None

    def allow(self, condition: Any) -> None:
        """Keep scores where a condition holds alone."""
        self.allowed = both(self.site, self.allowed, condition)

    def add(self, bias: Any) -> None:
        """Add to scores."""
        self.bias = bias if self.bias is None else self.site.term("add", self.bias, bias)

    def take(self, mask: Any, keys: int) -> None:
        """Take a mask of logical or real values; further keys than it has do not count."""
        missing = 0 if keys is UNKNOWN else keys - self.site.extent(mask, -1)
        is_logical = self.site.dtype_of(mask) == "bool"
        if missing > 0:
            around = [(0, 0)] * (self.site.rank(mask) - 1) + [(0, missing)]
            fill = 0.0 if is_logical else -math.inf
            mask = self.site.insert(
                "pad", {"input": mask}, padding=around, border="constant", value=fill
            )
        if is_logical:
            self.allow(mask)
        else:
            self.add(mask)

    def within(self, times: int, keys: int, before: Any, left: int = -1, right: int = -1) -> None:
        """Let a query see keys so many before it and behind it; `before` its first come others.

        A bound below 0 is none. `before` broadcasts to [batch,heads,time,keys].
        """
        site = self.site
        query = site.term("add", site.places(times, 0, 2), before)
        ahead = site.term("sub", site.places(keys, 1, 2), query)
        if right >= 0:
            self.allow(site.term("le", ahead, right))
        if left >= 0:
            self.allow(site.term("ge", ahead, -left))

    def whole(self, dtype: str) -> Any:
        """Return one mask for scores of a dtype, None if nothing is masked."""
        bias = None if self.bias is None else self.site.cast(self.bias, dtype)
        if self.allowed is None or bias is None:
            return self.allowed if bias is None else bias
        return self.site.chosen(self.allowed, bias, -math.inf)


def repeated(site: NodeSite, x: Any, count: int) -> Any:
    """Return heads, each so many times, one after the other."""
    if count == 1:
        return x
    tiled = site.insert("tile", {"input": site.unsqueezed(x, (2,))}, repeats=(1, 1, count, 1, 1))
    return site.insert("reshape", {"input": tiled}, shape=(-1,), axis_start=1, axis_count=2)


def attended(
    site: NodeSite,
    query: Value,
    key: Any,
    value: Any,
    mask: Any = None,
    *,
    scale: float = 0.0,
    softcap: float = 0.0,
    stage: int | None = None,
    precision: str = "",
    sink: Any = None,
) -> tuple[Any, Any]:
    """Return attention, and the scores of a stage if one is asked for.

    `scale` 0 is 1 / sqrt(items). A sink [heads,1,1] is a score more, of a value of zeros.
    """
    dtype = site.dtype_of(query)
    scale = scale or 1 / math.sqrt(site.extent(query, -1))
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    if softcap == 0 and stage is None and precision in ("", dtype, wide) and sink is None:
        given = {"query": query, "key": key, "value": value}
        given["mask"] = False if mask is None else mask
        return site.insert("attention", given, scale=scale, is_causal=False), None
    groups, rest = divmod(site.extent(query, 1), site.extent(key, 1))
    if rest:
        raise InvalidShape(
            f"the heads of {show(site.shape(query))} are no multiple of those of "
            f"{show(site.shape(key))}"
        )
    key, value = (site.tensor(repeated(site, x, groups)) for x in (key, value))
    query, key = (site.term("mul", x, math.sqrt(scale)) for x in (query, key))
    scores = site.insert("matmul", {"A": query, "B": key}, transposeA=False, transposeB=True)
    stages = [scores]
    if softcap:
        bent = site.term("tanh", site.term("div", scores, softcap))
        scores = site.term("mul", bent, softcap)
    stages.append(scores)
    if mask is not None and site.dtype_of(mask) == "bool":
        scores = site.chosen(mask, scores, -math.inf)
    elif mask is not None:
        scores = site.term("add", scores, mask)
    stages.append(scores)
    scores = site.cast(scores, precision or dtype)
    keys = site.extent(scores, -1)
    if sink is not None:
        shape = (*site.known_shape(scores)[:-1], 1)
        sink = site.cast(site.tensor(sink), site.dtype_of(scores))
        sink = site.insert("broadcast", {"input": site.aligned(scores, sink)[1]}, shape=shape)
        scores = site.insert("concat", {"values": [scores, sink]}, axis=3)
    weights = site.insert("masked_softmax", {"input": scores, "mask": True}, scale=1.0)
    weights = site.cast(site.part(weights, 3, 0, keys), dtype)
    stages.append(weights)
    result = site.insert("matmul", {"A": weights, "B": value}, transposeA=False, transposeB=False)
    return result, None if stage is None else stages[stage]


@operator("Attention", since=23)
def _attention(site: NodeSite) -> tuple[Any, ...]:
    """Attend with the keys and values of before, within windows, to as many keys as count."""
    is_flat = site.rank() == 3
    counts = [site.int(f"{x}_num_heads", 0) for x in ("q", "kv", "kv")]
    if not is_flat and any(counts) and site.version >= 25:
        raise InvalidOperation("'q_num_heads' and 'kv_num_heads' are for inputs of 3 axes")
    query, key, value = (
        heads(site, site.tensor(i), n) if is_flat else site.tensor(i) for i, n in enumerate(counts)
    )
    before: Any = 0
    if site.has(4) != site.has(5) or (site.has(4) and site.has(6)):
        raise InvalidOperation("keys and values of before go together, without 'nonpad_kv_seqlen'")
    if site.has(4):
        before = site.extent(4, 2)
        key, value = (
            site.insert("concat", {"values": [site.tensor(i), x]}, axis=2)
            for i, x in ((4, key), (5, value))
        )
    times, keys = site.extent(query, 2), site.extent(key, 2)
    mask = Mask(site)
    if site.has(3):
        mask.take(site.operand(3), keys)
    if site.has(6):
        lengths = site.cast(site.operand(6), site.graph.builder.integer)
        lengths = site.unsqueezed(lengths, (1, 2, 3))
        mask.allow(site.term("lt", site.places(keys, 3, 4), lengths))
        before = site.term("sub", lengths, times)
    left, right = (site.int(f"{x}_window_size", -1) for x in ("left", "right"))
    if min(left, right) < -1:
        raise InvalidOperation("windows have a size of 0 or more, or -1")
    if site.flag("is_causal"):
        right = 0
    if max(left, right) >= 0:
        mask.within(times, keys, before, left, right)
    code = site.int("softmax_precision", 0)
    dtype = site.dtype_of(query)
    found, scores = attended(
        site, query, key, site.cast(value, dtype), mask.whole(dtype),
        scale=site.number("scale", 0), softcap=site.number("softcap", 0),
        stage=site.int("qk_matmul_output_mode", 0) if site.wants(3) else None,
        precision=site.computed(dtype_of(code)) if code else "",
    )  # fmt: skip
    return joined(site, found) if is_flat else found, key, value, scores


@operator("FlexAttention", domain="ai.onnx.preview")
def _flex_attention(site: NodeSite) -> Any:
    """Attend; graphs may change scores and weights, which have the precision of the softmax."""
    query, key, value = (site.tensor(i) for i in range(3))
    dtype, code = site.dtype_of(query), site.int("softmax_precision", 0)
    half = dtype in ("float16", "bfloat16")
    wide = site.computed(dtype_of(code)) if code else "float32" if half else dtype
    groups, rest = divmod(site.extent(query, 1), site.extent(key, 1))
    if rest:
        raise InvalidShape(f"{show(site.shape(query))} has no multiple of the heads of input 1")
    root = math.sqrt(site.number("scale", 0) or 1 / math.sqrt(site.extent(query, -1)))
    key, value = (site.tensor(repeated(site, x, groups)) for x in (key, value))
    query, key = (site.term("mul", x, root) for x in (query, key))
    scores = site.insert("matmul", {"A": query, "B": key}, transposeA=False, transposeB=True)
    scores = _changed(site, "score_mod", site.cast(scores, wide))
    weights = site.insert("masked_softmax", {"input": scores, "mask": True}, scale=1.0)
    weights = _changed(site, "prob_mod", weights)
    value = site.cast(value, wide)
    result = site.insert("matmul", {"A": weights, "B": value}, transposeA=False, transposeB=False)
    return site.cast(result, dtype)


def _changed(site: NodeSite, name: str, x: Any) -> Any:
    """Apply the graph that an attribute holds to a tensor."""
    if name not in site.node.attributes:
        return site.tensor(x)
    graph = site.subgraph(name)
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise InvalidOperation(f"'{name}' must have one input and one output")
    (found,) = site.within(graph, site.graph, {graph.inputs[0].name: x})
    found = site.tensor(found)
    if site.dtype_of(found) != site.dtype_of(x) or any(
        map(differ, site.shape(found), site.shape(x))
    ):
        raise InvalidShape(f"'{name}' makes {show(site.shape(found))} of {show(site.shape(x))}")
    return found


def rotated(site: NodeSite, x: Any, cos: Any, sin: Any, *, interleaved: bool) -> Any:
    """Rotate the first items of heads: as many as twice those of cos and sin [batch,time,items].

    Pairs are items that lie half of these apart, or neighbours if `interleaved`.
    """
    size, half = site.extent(x, 3), site.extent(cos, -1)
    if not 0 < 2 * half <= size:
        raise InvalidShape(f"{half} angles do not fit heads of {size} items")
    part, rest = site.part(x, 3, 0, 2 * half), site.part(x, 3, 2 * half, size)
    cos, sin = (site.unsqueezed(site.cast(v, site.dtype_of(x)), (1,)) for v in (cos, sin))
    cos, sin = (site.insert("concat", {"values": [v, v]}, axis=3) for v in (cos, sin))
    if interleaved:
        part = _regrouped(site, part, (half, 2))
    given = {"input": part, "cos": cos, "sin": sin}
    part = site.insert("rotary_embedding", given)
    if interleaved:
        part = _regrouped(site, part, (2, half))
    return site.insert("concat", {"values": [part, rest]}, axis=3) if 2 * half < size else part


def _regrouped(site: NodeSite, x: Any, shape: tuple[int, int]) -> Any:
    """Transpose the matrices that the last axis holds."""
    split = site.reshaped(x, (0, 0, 0, *shape))
    return site.reshaped(site.transposed(split, (0, 1, 2, 4, 3)), (0, 0, 0, -1))


@operator("RotaryEmbedding", since=23)
def _rotary_embedding(site: NodeSite) -> Any:
    is_flat = site.rank() == 3
    x = heads(site, site.tensor(0), site.int("num_heads")) if is_flat else site.tensor(0)
    angles = [site.operand(1), site.operand(2)]
    if site.has(3):
        angles = [
            site.insert("gather", {"input": a, "indices": site.operand(3)}, axis=0) for a in angles
        ]
    half = site.extent(angles[0], -1)
    if 2 * half != (site.int("rotary_embedding_dim", 0) or site.extent(x, -1)):
        raise InvalidShape(f"'cos_cache' has {half} angles, not half of what is rotated")
    x = rotated(site, x, angles[0], angles[1], interleaved=site.flag("interleaved"))
    return joined(site, x) if is_flat else x
