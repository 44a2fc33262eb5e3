"""Functions for attention and for rotary embedding.

Heads are tensors of shape (batch, heads, time, items).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lowering import rounding
from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, is_symbolic, shapes_differ, show
from nnef_jax.flattening.operators.attributes import flag, integer, number
from nnef_jax.flattening.site import Operand, Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator
from nnef_jax.formats.onnx.tensor_types import dtype_of


def split_heads(site: NodeSite, x: Tensor, count: int) -> Any:
    """Split a tensor of shape (batch, time, count * items) into `count` heads.

    The result has shape (batch, count, time, items).
    """
    total = site.shape(x)[-1]
    is_divisible = count >= 1 and (total is UNKNOWN or total % count == 0)
    if not is_divisible:
        raise InvalidShape(f"{show(site.shape(x))} cannot be divided into {count} equal heads")
    # In a new shape, 0 keeps the extent, and -1 stands for all remaining items.
    split = site.reshaped(x, (0, 0, count, -1))  # (batch, time, count, items)
    return site.transposed(split, (0, 2, 1, 3))


def joined_heads(site: NodeSite, x: Tensor) -> Any:
    """Join heads of shape (batch, heads, time, items) to (batch, time, heads * items)."""
    by_time = site.transposed(x, (0, 2, 1, 3))  # (batch, time, heads, items)
    return site.reshaped(by_time, (0, 0, -1))


@dataclass(slots=True)
class Mask:
    """A mask of attention scores of shape (batch, heads, time, keys).

    `allowed` is a tensor of bool. A score does not count where `allowed` is False. `bias` is added
    to the scores. `allowed` and `bias` broadcast to the shape of the scores. Either may be None.
    """

    site: NodeSite
    allowed: Tensor | None = None
    bias: Tensor | None = None

    def restrict(self, condition: Tensor) -> None:
        """Exclude the scores for which `condition`, a tensor of bool, is False."""
        if self.allowed is not None:
            condition = self.site.step.and_(self.allowed, condition)
        self.allowed = condition

    def add_bias(self, bias: Tensor) -> None:
        """Add a bias of scores to the sum of the earlier biases."""
        if self.bias is not None:
            bias = self.site.step.add(self.bias, bias)
        self.bias = bias

    def apply(self, mask: Tensor, key_count: int) -> None:
        """Exclude scores by a mask of bool, or add a mask of numbers to the scores.

        Keys beyond the extent of the mask do not count.
        """
        is_logical = self.site.dtype_of(mask) == "bool"
        if key_count is not UNKNOWN and key_count > self.site.extent(mask, -1):
            excluded = 0.0 if is_logical else -math.inf
            mask = self.site.cut_or_padded(mask, axis=-1, size=key_count, value=excluded)
        if is_logical:
            self.restrict(mask)
        else:
            self.add_bias(mask)

    def restrict_to_window(
        self, query_count: int, key_count: int, start: Operand, left: int = -1, right: int = -1
    ) -> None:
        """Restrict attention to a window of `left` keys before and `right` keys after each query.

        Query i is at the position `start + i` among the keys. `start` is a number, or a tensor that
        broadcasts to (batch, heads, time, keys). A negative `left` or `right` stands for no bound.
        """
        step = self.site.step
        # Queries lie along axis 0, and keys along axis 1. The shape of distances is
        # (..., queries, keys).
        if is_symbolic(start):
            first: Any = start  # the type of symbolic extents is not declared
            query_positions = self.site.positions(query_count, axis=0, rank=2, start=first)
        else:
            query_positions = step.add(self.site.positions(query_count, axis=0, rank=2), start)
        key_positions = self.site.positions(key_count, axis=1, rank=2)
        distances = step.sub(key_positions, query_positions)
        if right >= 0:
            self.restrict(step.le(distances, right))
        if left >= 0:
            self.restrict(step.ge(distances, -left))

    def combined(self, dtype: str) -> Any:
        """Return `allowed` and `bias` as a single mask for scores of a dtype.

        If there is a bias, the mask is a tensor of numbers. A number is -inf where a score does not
        count. Without a bias, the mask is a tensor of bool, or None if all scores count.
        """
        if self.bias is None:
            return self.allowed
        bias = self.site.cast(self.bias, dtype)
        if self.allowed is None:
            return bias
        return self.site.step.select(self.allowed, bias, -math.inf)


def _repeated(site: NodeSite, x: Tensor, count: int) -> Any:
    """Repeat each head `count` times: if `count` is 2, the heads a, b become a, a, b, b."""
    if count == 1:
        return site.tensor(x)
    with_axis = site.unsqueezed(x, (2,))  # (batch, heads, 1, time, items)
    tiled = site.step.tile(with_axis, repeats=(1, 1, count, 1, 1))
    # Axes 1 and 2 become one axis of heads.
    return site.reshaped(tiled, (-1,), first=1, count=2)


def _scores(
    site: NodeSite, query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Any, Any]:
    """Return the scores scale * query key^T, and the values.

    There may be fewer heads of keys and values than heads of queries. The heads of keys and values
    are then repeated.
    """
    repetitions, remainder = divmod(site.extent(query, 1), site.extent(key, 1))
    if remainder:
        raise InvalidShape(
            f"the heads of the queries {show(site.shape(query))} must be a multiple of those of "
            f"the keys {show(site.shape(key))}"
        )
    key = _repeated(site, key, repetitions)
    value = _repeated(site, value, repetitions)
    # As in ONNX's definition, query and key are each multiplied by the root of the scale.
    query = site.step.mul(query, math.sqrt(scale))
    key = site.step.mul(key, math.sqrt(scale))
    return site.product(query, key, flips=True), value


def attended(
    mask: Mask, query: Tensor, key: Tensor, value: Tensor, *, scale: float, softcap: float = 0,
    stage: int | None = None, precision: str = "", sink: Tensor | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Compute attention; return the result, and the scores after one of the stages.

    Args:
        mask: the mask of scores.
        query: heads of queries.
        key: heads of keys.
        value: heads of values.
        scale: the factor of scores. 0 stands for 1 / sqrt(items), for heads of `items` items.
        softcap: the bound c of scores, which become c * tanh(scores / c). 0 stands for no bound.
        stage: the stage after which scores are returned. 0 is the product of queries and keys, 1 is
            the softcap, 2 is the mask, and 3 is the softmax. None stands for no scores.
        precision: the dtype of the softmax, or "" for the dtype of the query.
        sink: the score of an additional key, of shape (heads, 1, 1). The value of this key is 0.
    """
    site = mask.site
    step = site.step
    dtype = site.dtype_of(query)
    combined_mask = mask.combined(dtype)
    scale = scale or 1 / math.sqrt(site.extent(query, -1))
    wide = "float32" if dtype in rounding.HALVES else dtype
    changes_scores = softcap != 0 or sink is not None
    has_default_precision = precision in ("", dtype, wide)
    if stage is None and has_default_precision and not changes_scores:
        mask_operand = False if combined_mask is None else combined_mask
        return step.attention(query, key, value, mask_operand, scale=scale, is_causal=False), None
    scores, value = _scores(site, query, key, value, scale)
    capped_scores = scores
    if softcap:
        capped_scores = step.mul(step.tanh(step.div(scores, softcap)), softcap)
    masked_scores = _masked(site, capped_scores, combined_mask)
    softmax_input = site.cast(masked_scores, precision or dtype)
    key_count = site.extent(softmax_input, -1)
    if sink is not None:
        softmax_input = _with_sink(site, softmax_input, sink)
    all_scores = True  # the mask is already applied
    weights = step.masked_softmax(softmax_input, all_scores, scale=1.0)
    weights = site.part(weights, axis=3, first=0, last=key_count)  # without the weight of the sink
    weights = site.cast(weights, dtype)
    result = site.product(weights, value)
    stages = [scores, capped_scores, masked_scores, weights]
    scores_of_stage = None if stage is None else stages[stage]
    return result, scores_of_stage


def _masked(site: NodeSite, scores: Tensor, mask: Tensor | None) -> Any:
    """Apply a mask to scores.

    A mask of bool replaces scores by -inf where the mask is False. A mask of numbers is added.
    """
    if mask is None:
        return scores
    if site.dtype_of(mask) == "bool":
        return site.step.select(mask, scores, -math.inf)
    return site.step.add(scores, mask)


def _with_sink(site: NodeSite, scores: Tensor, sink: Tensor) -> Any:
    """Append `sink`, the score of an additional key, to the scores of all queries.

    `sink` has shape (heads, 1, 1), and the result has shape (batch, heads, time, keys + 1).
    """
    shape_of_one_key = (*site.known_shape(scores)[:-1], 1)
    sink_score = site.cast(site.tensor(sink), site.dtype_of(scores))
    _, sink_score = site.aligned(scores, sink_score)  # (1, heads, 1, 1)
    sink_scores = site.step.broadcast(sink_score, shape=shape_of_one_key)
    return site.step.concat([scores, sink_scores], axis=3)


@operator("Attention", since=23, scale=number("scale", 0), softcap=number("softcap", 0))
def _attention(
    site: NodeSite,
    *,
    query_heads: int = integer("q_num_heads", 0),
    key_heads: int = integer("kv_num_heads", 0),
    left: int = integer("left_window_size", -1),
    right: int = integer("right_window_size", -1),
    is_causal: bool = flag("is_causal"),
    code: int = integer("softmax_precision", 0),
    stage: int = integer("qk_matmul_output_mode", 0),
    **scaling: Any,
) -> tuple[Any, ...]:
    """Compute attention to past and new keys.

    Inputs 0 to 2 are the queries, keys and values, input 3 is the mask, and inputs 4 and 5 are the
    past keys and values. Input 6 has the number of keys of each sequence, if the keys are padded.

    A query attends only to the `left` keys before it and the `right` keys after it. -1 stands for
    no bound. `code` is the code of the dtype of the softmax, or 0 for the default. `stage` says
    which scores are output 3; see `attended`.

    Return the result, the past and new keys, the past and new values, and the scores.
    """
    query, key, value = _heads_of_inputs(site, query_heads, key_heads)
    past_count: Any = 0  # the number of keys before the first query
    has_past = site.has(4)
    has_lengths = site.has(6)
    if site.has(5) != has_past or (has_past and has_lengths):
        raise InvalidOperation(
            "past keys and past values go together, and exclude 'nonpad_kv_seqlen'"
        )
    if has_past:
        past_count = site.extent(4, 2)
        key = site.step.concat([site.tensor(4), key], axis=2)
        value = site.step.concat([site.tensor(5), value], axis=2)
    query_count = site.extent(query, 2)
    key_count = site.extent(key, 2)
    mask = Mask(site)
    if site.has(3):
        mask.apply(site.operand(3), key_count)
    if has_lengths:
        lengths = site.unsqueezed(site.as_integer(6), (1, 2, 3))  # (batch, 1, 1, 1)
        key_positions = site.positions(key_count, axis=3, rank=4)
        mask.restrict(site.step.lt(key_positions, lengths))
        # The queries belong to the last keys of each sequence.
        past_count = site.step.sub(lengths, query_count)
    if min(left, right) < -1:
        raise InvalidOperation("window sizes must be 0 or more, or -1 for no bound")
    if is_causal:
        right = 0
    has_window = max(left, right) >= 0
    if has_window:
        mask.restrict_to_window(query_count, key_count, past_count, left, right)
    read_stage = stage if site.is_read(3) else None
    precision = site.computation_dtype(dtype_of(code)) if code else ""
    result, scores = attended(
        mask, query, key, site.cast(value, site.dtype_of(query)), stage=read_stage,
        precision=precision, **scaling,
    )  # fmt: skip
    if site.rank() == 3:
        result = joined_heads(site, result)
    return result, key, value, scores


def _heads_of_inputs(site: NodeSite, query_heads: int, key_heads: int) -> tuple[Any, Any, Any]:
    """Return inputs 0 to 2 as heads of queries, keys and values.

    `query_heads` and `key_heads` are the numbers of heads. They are used for inputs of shape
    (batch, time, heads * items).
    """
    is_split = site.rank() != 3
    if is_split:
        has_counts = query_heads != 0 or key_heads != 0
        if has_counts and site.version >= 25:
            raise InvalidOperation("'q_num_heads' and 'kv_num_heads' are for inputs of 3 axes")
        return site.tensor(0), site.tensor(1), site.tensor(2)
    query = split_heads(site, site.tensor(0), query_heads)
    key = split_heads(site, site.tensor(1), key_heads)
    value = split_heads(site, site.tensor(2), key_heads)
    return query, key, value


@operator("FlexAttention", domain="ai.onnx.preview")
def _flex_attention(
    site: NodeSite,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    code: int = integer("softmax_precision", 0),
    scale: float = number("scale", 0),
) -> Any:
    """Compute attention. Graphs of the node may change the scores before and after the softmax.

    `code` is the code of the dtype of the softmax, or 0 for the default. A scale of 0 stands for
    1 / sqrt(items).
    """
    dtype = site.dtype_of(query)
    # The dtype of the softmax is a dtype of the file. The network may compute in another dtype, if
    # the user sets `load(dtype=)`.
    softmax_dtype = dtype
    if code:
        softmax_dtype = site.computation_dtype(dtype_of(code))
    elif dtype in rounding.HALVES:
        softmax_dtype = site.computation_dtype("float32")
    scale = scale or 1 / math.sqrt(site.extent(query, -1))
    scores, value = _scores(site, query, key, value, scale)
    scores = _changed(site, "score_mod", site.cast(scores, softmax_dtype))
    all_scores = True  # a mask that excludes no score
    weights = site.step.masked_softmax(scores, all_scores, scale=1.0)
    weights = _changed(site, "prob_mod", weights)
    result = site.product(weights, site.cast(value, softmax_dtype))
    return site.cast(result, dtype)


def _changed(site: NodeSite, name: str, x: Tensor) -> Any:
    """Apply the graph in the attribute `name` to the tensor `x`.

    If the node does not have the attribute, return the tensor unchanged.
    """
    if not site.has_attribute(name):
        return site.tensor(x)
    graph = site.subgraph(name)
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise InvalidOperation(f"'{name}' must have one input and one output")
    inputs = {graph.inputs[0].name: x}
    (output,) = site.flatten_subgraph(graph, site.graph, inputs)
    result = site.tensor(output)
    old_shape = site.shape(x)
    new_shape = site.shape(result)
    has_same_dtype = site.dtype_of(result) == site.dtype_of(x)
    if not has_same_dtype or shapes_differ(new_shape, old_shape):
        raise InvalidShape(
            f"'{name}' must keep shape and dtype, it maps {show(old_shape)} to {show(new_shape)}"
        )
    return result


def rotated(site: NodeSite, x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Any:
    """Rotate the first 2n items of each head by n angles.

    `x` has shape (batch, heads, time, items), and `cos` and `sin` have shape (batch, time, n).
    Angle i rotates the items i and i + n, or the items 2i and 2i + 1 if `interleaved`.
    """
    size = site.extent(x, 3)
    angle_count = site.extent(cos, -1)
    rotated_size = 2 * angle_count
    if not 0 < rotated_size <= size:
        raise InvalidShape(f"{angle_count} angles do not fit heads of {size} items")
    part = site.part(x, axis=3, first=0, last=rotated_size)
    fixed = site.part(x, axis=3, first=rotated_size, last=size)
    # Angle i rotates a pair of items. The cosine and the sine of the angle are repeated for both.
    repeated: list[Any] = []
    for cos_or_sin in (cos, sin):
        by_head = site.unsqueezed(site.cast(cos_or_sin, site.dtype_of(x)), (1,))
        repeated.append(site.step.concat([by_head, by_head], axis=3))
    if interleaved:  # The operation `rotary_embedding` rotates the items i and i + n.
        part = _regrouped(site, part, (angle_count, 2))
    part = site.step.rotary_embedding(part, *repeated)
    if interleaved:
        part = _regrouped(site, part, (2, angle_count))
    return site.step.concat([part, fixed], axis=3) if rotated_size < size else part


def _regrouped(site: NodeSite, x: Tensor, shape: tuple[int, int]) -> Any:
    """Transpose the matrices that lie flat along the last axis of heads.

    `shape` is the shape of a matrix before it is transposed. With the shape (3, 2), the items
    a, b, c, d, e, f become a, c, e, b, d, f.
    """
    matrices = site.reshaped(x, (0, 0, 0, *shape))
    transposed = site.transposed(matrices, (0, 1, 2, 4, 3))
    return site.reshaped(transposed, (0, 0, 0, -1))


def angles(site: NodeSite, positions: Tensor, caches: tuple[int, int]) -> list[Any]:
    """Return the cosines and the sines of the angles at `positions`.

    `positions` has shape (batch, time), and the results have shape (batch, time, angles). `caches`
    are the indices of two inputs. These inputs have the cosines and the sines at all positions.
    """
    return [site.step.gather(site.operand(i), positions, axis=0) for i in caches]


@operator("RotaryEmbedding", since=23)
def _rotary_embedding(
    site: NodeSite,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    size: int = integer("rotary_embedding_dim", 0),
    interleaved: bool = flag("interleaved"),
) -> Any:
    """Rotate the first `size` items of each head; see `rotated`. By default, rotate all items.

    If `positions` is None, `cos` and `sin` are for the time steps of x. Otherwise `cos` and `sin`
    are for all positions.
    """
    is_flat = site.rank() == 3  # (batch, time, heads * items)
    x = site.tensor(x)
    if is_flat:
        x = split_heads(site, x, site.int("num_heads"))
    if positions is not None:
        cos, sin = angles(site, positions, caches=(1, 2))
    angle_count = site.extent(cos, -1)
    rotated_size = size or site.extent(x, -1)
    if 2 * angle_count != rotated_size:
        raise InvalidShape(
            f"'cos_cache' has {angle_count} angles, it must have half of the rotated items"
        )
    x = rotated(site, x, cos, sin, interleaved=interleaved)
    return joined_heads(site, x) if is_flat else x
