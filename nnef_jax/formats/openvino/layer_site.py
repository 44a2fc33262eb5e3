"""A layer while it is said in operations: what these take of it, and what adds them by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import volume
from lowering.graph import Value, is_float
from lowering.ops import rules
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.element_types import element_type, size_of, unpacked
from nnef_jax.formats.openvino.site import Site, Tensor

_TYPES = {"b": "boolean", "f": "f32", "i": "i64"}


class ByKind:
    """Adds operations by kind: `steps.mul(x, y)` has operands in the order of the kind's rule.

    What is given by name is an attribute. Kinds that are words of Python end with `_`.
    """

    __slots__ = ("_add",)

    def __init__(self, add: Callable[..., Any]) -> None:
        self._add = add

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        kind = kind.removesuffix("_")
        rule = rules.get(kind)
        if rule is None:
            raise AttributeError(f"there is no kind '{kind}'")
        names = rule.parameters

        def add(*operands: Any, **attributes: Any) -> Any:
            return self._add(kind, dict(zip(names, operands, strict=False)), **attributes)

        return add


class LayerSite(Site):
    """The place of a layer, whose meaning is said by `step` and `last`."""

    __slots__ = ()

    @property
    def step(self) -> ByKind:
        """Return what adds operations on the way to the layer's result."""
        return ByKind(self.insert)

    @property
    def last(self) -> ByKind:
        """Return what adds the operation that the layer is, which has its name."""
        return ByKind(self.emit)

    def step_or_last(self, is_last: bool) -> ByKind:
        """Return `last` for the operation that the layer is, else `step`."""
        return self.last if is_last else self.step

    # What it reads

    @property
    def integer(self) -> str:
        """Return the dtype of whole numbers of 64 bits."""
        return self.graph.builder.integer

    @property
    def declared(self) -> tuple[int, ...]:
        """Return the declared shape of the first output, () where it is open."""
        return self.layer.outputs[0].shape or ()

    def first(self, count: int) -> list[Value]:
        """Return so many inputs."""
        return [self.tensor(i) for i in range(count)]

    def scalar(self, i: int, default: float | None = None) -> float:
        """Return the first item of a known input; a default where it is not connected."""
        return float(self.known(i).flat[0]) if default is None or self.has(i) else default

    def number_at(self, i: int, attribute: str, default: float) -> float:
        """Return a number that operation sets have as an input, older versions as an attribute."""
        return self.number(attribute, default) if self.net.is_legacy else self.scalar(i)

    def integers_at(self, i: int, attribute: str) -> list[int]:
        """Return whole numbers that are an input, or before version 10 an attribute."""
        return self.ints(attribute) if self.net.is_legacy else self.integers(i)

    def whole(self, i: int) -> Value:
        """Return an input of whole numbers, which old files store as real ones."""
        return self.cast(self.tensor(i), self.integer)

    def indices(self, x: int | Tensor) -> Value:
        """Return whole numbers of any type as they are, real ones in 32 bits."""
        found = self.tensor(x)
        return self.cast(found, "int32") if is_float(found.type.dtype) else found

    def axes(self, i: int) -> list[int]:
        """Return the axes of input 0 that a known input names."""
        return [self.axis(axis) for axis in self.integers(i)]

    def axis_of(self, attribute: str, default: int | None = None) -> int:
        """Return the axis of input 0 that an attribute names."""
        return self.axis(self.int(attribute, default))

    def attribute(self, *names: str) -> str:
        """Return which of the spellings of an attribute the layer has, the last without any."""
        return next((name for name in names if name in self.layer.attributes), names[-1])

    def needed(self, tag: str, shape: Sequence[int], type: str = "") -> Constant:
        """Return weights in a shape; raise InvalidOperation without them."""
        found = self.blob(tag, shape, type)
        if found is None:
            raise InvalidOperation("it has no weights")
        return found

    def broadcast(self) -> list[Any]:
        """Return inputs 0 and 1 in one rank, as `auto_broadcast` says."""
        mode = self.choice("auto_broadcast", "numpy", "none", "pdpd", default="numpy")
        more, first_axis = len(self.shape(0)) - len(self.shape(1)), None
        if mode == "pdpd" and more > 0:
            axis = self.int("axis", -1)
            first_axis = more if axis < 0 else axis
        return self.aligned(self.operand(0), self.operand(1), first_axis=first_axis)

    # What it adds

    def unsqueezed(self, x: Tensor, *axes: int) -> Value:
        """Return a tensor with axes of extent 1 more."""
        found = self.tensor(x)
        return self.step.unsqueeze(found, axes=axes) if axes else found

    def part(self, x: Value, axis: int, begin: int, end: int, step: int = 1) -> Value:
        """Return the items from one to before another along an axis."""
        window = {"axes": (axis,), "begin": (begin,), "end": (end,), "stride": (step,)}
        return self.step.slice(x, **window)

    def padded(self, x: Tensor, around: Mapping[int, Sequence[int]], value: float = 0.0) -> Value:
        """Return a tensor with items of a value before and after it along axes."""
        pairs = [around.get(axis, (0, 0)) for axis in range(len(self.shape(x)))]
        return self.step.pad(x, padding=pairs, border="constant", value=value)

    def cropped(self, x: Value, around: Mapping[int, Sequence[int]]) -> Value:
        """Return a tensor without what negative padding takes away along axes."""
        axes = [axis for axis, pair in around.items() if min(pair) < 0]
        if not axes:
            return x
        begin = [max(-around[axis][0], 0) for axis in axes]
        end = [x.type.shape[axis] + min(around[axis][1], 0) for axis in axes]
        return self.step.slice(x, axes=axes, begin=begin, end=end, stride=[1] * len(axes))

    def fitted(self, x: Value, axis: int, size: int, value: float = 0.0) -> Value:
        """Return a tensor with so many items along an axis: cut off, or with a value behind."""
        extent = x.type.shape[axis]
        if size < extent:
            return self.part(x, axis, 0, size)
        return x if size == extent else self.padded(x, {axis: (0, size - extent)}, value)

    def filled(self, item: float, dtype: str, shape: Sequence[int] = ()) -> Value:
        """Return a tensor of one item everywhere."""
        items = (item if is_float(dtype) else int(item),)
        return self.step.constant(shape=shape, value=items, dtype=dtype)

    def last_reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """Add a reshape that is the layer itself."""
        return self.last.reshape(x, shape=shape, axis_start=0, axis_count=-1)

    def flattened(self, x: Value, first: int, last: int) -> Value:
        """Add what joins the axes from one to another as the layer itself."""
        return self.last.reshape(x, shape=(-1,), axis_start=first, axis_count=last - first + 1)

    def truths(self, x: Value) -> Value:
        """Return which items are not 0."""
        if x.type.dtype == "bool":
            return x
        return self.step.ne(x, 0.0 if is_float(x.type.dtype) else 0)

    def count(self, x: Value, axis: int, dtype: str = "") -> Value:
        """Return how often a condition is true along an axis, which stays with extent 1."""
        numbers = self.step.cast(x, dtype=dtype or self.integer)
        return self.step.sum_reduce(numbers, axes=(axis,), normalize=False)


def derived(array: Any) -> Constant:
    """Return what follows from shapes and attributes as a known tensor."""
    items = np.asarray(array)
    return Constant(items, _TYPES[items.dtype.kind], derived=True)


def ends_of(dtype: str) -> tuple[Any, Any]:
    """Return the least and the greatest number of a dtype; real ones are those of 32 bits."""
    ends = np.finfo(np.float32) if is_float(dtype) else np.iinfo(dtype)
    return ends.min, ends.max


def stored(site: LayerSite, type: str = "") -> Constant:
    """Return what a Const layer stores, read as a type if one is given."""
    layer = site.layer
    if not layer.outputs:
        raise InvalidOperation("it has no output")
    if "element_type" not in layer.attributes and layer.blobs:
        shape = layer.outputs[0].shape or ()
        found = site.blob("custom", shape) or site.blob(next(iter(layer.blobs)), shape)
        if found is not None:
            return found
        return Constant(np.zeros(shape, np.float32), "f32", site.name)
    declared = layer.attributes.get("element_type", layer.outputs[0].type or "f32")
    type = type or element_type(declared)
    text = layer.attributes.get("shape")
    shape = tuple(site.ints("shape", [])) if text is not None else layer.outputs[0].shape or ()
    if any(n < 0 for n in shape):
        raise InvalidOperation(f"a constant cannot have the shape {list(shape)}")
    items = volume(shape)
    needed = size_of(type, items)
    size = site.int("size", needed)
    if size != needed and items:
        message = f"it has {size} bytes, {list(shape)} items of {type} take {needed}"
        raise InvalidOperation(message)
    data = site.weights.slice(site.int("offset", 0), size) if items else memoryview(b"")
    return Constant(unpacked(data, type, shape), type, site.name)
