"""Functions for operators on sequences and optional values.

While the model is flattened, a sequence is a list of tensors. The length of a sequence must
therefore be known before the model runs. An empty optional value is None.
"""

from __future__ import annotations

from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from nnef_jax.flattening.along_axes import split_by_lengths
from nnef_jax.flattening.operators.attributes import attribute, axis, flag, integer
from nnef_jax.flattening.site import Tensor
from nnef_jax.formats.onnx.document import ModelGraph
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator

_STEPS_OF_PART = 10  # steps of the meter for each part of a split tensor


def _sequence(site: NodeSite) -> list[Any]:
    """Return the items of input 0, which must be a sequence."""
    items = site.operands[0]
    if not isinstance(items, list):
        raise InvalidOperation("input 0 must be a sequence, it is a tensor")
    return items


def _index(site: NodeSite, i: int, count: int, *, end: int) -> int:
    """Return input `i`, an index into a sequence of `count` items, as a number of 0 or more.

    In the input, -1 stands for the last item of the sequence, -2 for the item before, and so on.
    Raises InvalidShape if the index is below -count or not below `end`.
    """
    index = site.integer(i)
    is_valid = -count <= index < end
    if not is_valid:
        raise InvalidShape(f"there is no index {index} in a sequence of {count} items")
    return index + count if index < 0 else index


operator("SequenceEmpty", "SequenceConstruct")(lambda site, *items: [*items])
operator("SequenceLength")(lambda site: site.constant(len(_sequence(site)), "int64"))
operator("Optional")(lambda site: site.operands[0] if site.has(0) else None)
operator("OptionalHasElement")(lambda site: site.constant(site.has(0), "bool"))


@operator("SequenceAt")
def _at(site: NodeSite) -> Any:
    """Return item i of a sequence. Input 1 is i."""
    items = _sequence(site)
    index = _index(site, 1, len(items), end=len(items))
    return items[index]


@operator("SequenceInsert")
def _insert(site: NodeSite) -> Any:
    """Insert a tensor into a sequence before item i. Input 2 is i, by default the length."""
    items = _sequence(site)
    index = len(items)
    if site.has(2):
        # The index `len(items)` is allowed too: the tensor is appended.
        index = _index(site, 2, len(items), end=len(items) + 1)
    return [*items[:index], site.operand(1), *items[index:]]


@operator("SequenceErase")
def _erase(site: NodeSite) -> Any:
    """Remove item i from a sequence. Input 1 is i. By default, remove the last item."""
    items = _sequence(site)
    index = len(items) - 1
    if site.has(1):
        index = _index(site, 1, len(items), end=len(items))
    if not items:
        raise InvalidShape("there is nothing to take away from an empty sequence")
    return [*items[:index], *items[index + 1 :]]


@operator("SplitToSequence")
def _split_to_sequence(
    site: NodeSite,
    x: Tensor,
    *,
    axis: int = axis("axis", 0),
    keeps_axes: bool = flag("keepdims", True),
) -> Any:
    """Split a tensor along an axis into a sequence of parts.

    If input 1 is a vector, it has the lengths of the parts. If input 1 is a number, it is the
    length of all parts, but the last part may be shorter. If input 1 is left out, the length is 1,
    and the parts lose the axis unless `keeps_axes`.
    """
    is_vector = site.has(1) and site.rank(1) > 0
    if is_vector:
        return split_by_lengths(site, x, axis, site.integers(1))
    extent = site.known_shape()[axis]
    length = site.integer(1, default=1)
    if length < 1:
        raise InvalidShape(f"the parts must have a positive length, it is {length}")
    starts = range(0, extent, length)
    site.spend(_STEPS_OF_PART * len(starts))
    lengths = [min(length, extent - start) for start in starts]
    parts = split_by_lengths(site, x, axis, lengths)
    if site.has(1) or keeps_axes:
        return parts
    return [site.squeezed(part, axis) for part in parts]


@operator("ConcatFromSequence")
def _concat_from_sequence(
    site: NodeSite, *, axis: int = integer("axis"), stacks: bool = flag("new_axis")
) -> Any:
    """Join the items of a sequence along an axis. If `stacks`, this is a new axis."""
    items = _sequence(site)
    if not items:
        raise InvalidShape("an empty sequence cannot be joined")
    item_rank = site.rank(items[0])
    if stacks:
        return site.last.stack(items, axis=site.axis(axis, item_rank + 1))
    return site.last.concat(items, axis=site.axis(axis, item_rank))


@operator("SequenceMap")
def _map(site: NodeSite, *, body: ModelGraph = attribute("body", "subgraph")) -> Any:
    """Apply a graph to the items of sequences, one after the other.

    Item i of each result is computed from item i of each input. An input may also be a tensor. Then
    the tensor is passed to the graph for each i.
    """
    count = len(_sequence(site))
    for operand in site.operands:
        if isinstance(operand, list) and len(operand) != count:
            raise InvalidShape(f"its sequences have {count} and {len(operand)} items")
    names = [port.name for port in body.inputs]
    results: list[list[Any]] = [[] for _ in body.outputs]
    for i in range(count):
        site.spend(len(body.nodes))
        operands = [x[i] if isinstance(x, list) else x for x in site.operands]
        inputs = dict(zip(names, operands, strict=True))
        outputs = site.flatten_subgraph(body, site.graph, inputs)
        for result, item in zip(results, outputs, strict=True):
            result.append(item)
    return tuple(results)


@operator("OptionalGetElement")
def _get_element(site: NodeSite) -> Any:
    """Return the tensor or sequence in an optional value, which must not be empty."""
    if not site.has(0):
        raise InvalidOperation("the optional value is empty")
    return site.operands[0]
