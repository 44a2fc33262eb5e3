"""The site of a layer: its operands and attributes, and shorthands that add operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import MAX_RANK, volume
from lowering.graph import TensorType, Value, is_float
from lowering.location import Span
from nnef_jax.flattening.emission import ByName
from nnef_jax.flattening.hostvalues import NotFolded
from nnef_jax.flattening.site import Site, Tensor, is_folded
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.document import Blob, Body, Net, NetLayer, PortRef
from nnef_jax.formats.openvino.element_types import (
    Weights,
    computation_dtype,
    element_type,
    size_of,
    unpacked,
)
from nnef_jax.formats.openvino.layer_graph import LayerGraph
from nnef_jax.storage.bitstream import CODES_PER_STEP

# Types of layers that may be folded, that is, computed while the network is read. A layer is folded
# only if all operands are constant, and the layer is probably part of the computation of a shape
# (`is_folded`). Before version 10, only the types in `_FOLDED_OLD` are folded. A conversion is
# folded only if an operand was computed from shapes or from other constants. Conversions of stored
# numbers are left to the network.
_CONVERSIONS = ("convert", "convertlike")
_FOLDED_OLD = ("gather", "concat", "squeeze", "unsqueeze")
_FOLDED = frozenset({
    *_CONVERSIONS, *_FOLDED_OLD, "abs", "add", "broadcast", "ceiling", "divide", "equal", "floor",
    "floormod", "greater", "greaterequal", "less", "lessequal", "logicaland", "logicalnot",
    "logicalor", "maximum", "minimum", "mod", "multiply", "negative", "notequal",
    "power", "reducemax", "reducemean", "reducemin", "reduceprod", "reducesum", "reshape", "round",
    "scatterupdate", "select", "slice", "split", "sqrt", "stridedslice", "subtract", "tile",
    "transpose", "variadicsplit",
})  # fmt: skip
# The texts that stand for true and for false in attributes.
_TRUE = ("1", "true", "yes")
_FALSE = ("0", "false", "no", "")


@dataclass(frozen=True, slots=True, eq=False)
class _FoldedTensor(Value):
    """A constant tensor that stands in for a tensor of the graph while a layer is folded.

    A folded layer is computed when the network is loaded. The function that normally adds the
    layer's operations to the graph then gets these constants as operands.
    """

    constant: Constant = field(kw_only=True)


@dataclass(slots=True, eq=False)
class LayerSite(Site[LayerGraph]):
    """A layer while it is flattened, with its operands and the graph to which operations are added.

    `operands` has None for each port that is not connected.
    """

    layer: NetLayer
    net: Net
    version: int  # the version of the document
    graph: LayerGraph
    weights: Weights
    operands: Sequence[Tensor | None]
    # The method `flatten_body` of the `Flattener` that flattens the network.
    flatten: Callable[..., dict[PortRef, Tensor]]
    prefix: str = ""  # the start of labels and names in a body, such as "loop."
    # Whether operations are computed at once instead of being added to the graph.
    folds: bool = False

    # Operands

    @property
    def operator(self) -> str:
        """Return the type of the layer in lower case."""
        return self.layer.kind

    def input(self, i: int) -> Value:
        """Return input `i` as a tensor of the graph."""
        return self.tensor(i)

    def is_read(self, i: int) -> bool:
        """Tell whether another layer reads output `i` of this layer."""
        ports = self.layer.outputs
        return i < len(ports) and (self.layer.id, ports[i].id) in self.net.read

    def tensors(self) -> list[Value]:
        """Return all connected inputs as tensors of the graph."""
        return [self.tensor(x) for x in self.operands if x is not None]

    def tensor(self, x: int | Tensor) -> Value:
        """Return an operand as a tensor of the graph.

        `x` is the operand, or the index of an input. A constant operand is added to the graph,
        unless the layer is folded.
        """
        operand = self.operand(x) if isinstance(x, int) else x
        if self.folds:
            return self._wrapped(operand)
        return Site.tensor(self, operand)

    def body(self, name: str) -> Body:
        """Return the body in the element `<name>` of the layer.

        Raises InvalidOperation if the layer has no such element.
        """
        body = self.layer.bodies.get(name)
        if body is None:
            raise InvalidOperation(f"it has no <{name}>")
        return body

    # Attributes

    def has_attribute(self, name: str) -> bool:
        """Tell whether the layer has an attribute."""
        return name in self.layer.attributes

    def text(self, name: str, default: str | None = None) -> str:
        """Return an attribute as text in lower case.

        Return `default` if the attribute is missing. Raises InvalidOperation if the attribute is
        missing and `default` is None.
        """
        text = self.layer.attributes.get(name)
        if text is None:
            if default is None:
                raise InvalidOperation(f"attribute '{name}' is missing")
            return default
        return text.strip().lower()

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute as a bool, such as True for "yes"."""
        default_text = "1" if default else "0"
        text = self.text(name, default_text)
        if text not in (*_TRUE, *_FALSE):
            raise self.wrong(name, "true or false", text)
        return text in _TRUE

    def numbers(self, name: str, default: Sequence[float] | None = None) -> list[float]:
        """Return an attribute as a list of numbers, such as [1.0, 2.5] for "1,2.5".

        If the attribute is missing or blank, return `default` unless `default` is None.
        """
        is_blank = not self.layer.attributes.get(name, "").strip()
        if is_blank and default is not None:
            return [float(number) for number in default]
        text = self.text(name)
        try:
            return [float(part) for part in text.split(",") if part.strip()]
        except ValueError:
            raise self.wrong(name, "a list of numbers", text) from None

    def ints(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Return an attribute as a list of whole numbers, such as [1, 2] for "1,2"."""
        numbers = self.numbers(name, default)
        are_whole = all(number.is_integer() for number in numbers)
        if not are_whole:
            raise self.wrong(name, "a list of whole numbers", numbers)
        return [int(number) for number in numbers]

    def number(self, name: str, default: float | None = None) -> float:
        """Return an attribute as a number. The attribute has one item."""
        default_items = None if default is None else [default]
        items = self.numbers(name, default_items)
        if len(items) != 1:
            raise self.wrong(name, "a number", items)
        return items[0]

    def int(self, name: str, default: int | None = None) -> int:
        """Return an attribute as a whole number. The attribute has one item."""
        number = self.number(name, default)
        if not number.is_integer():
            raise self.wrong(name, "a whole number", number)
        return int(number)

    def dtype(self, name: str, default: str | None = None) -> str:
        """Return the computation dtype of the element type that is in the attribute `name`.

        For example, return "int32" for "i64", unless jax's x64 mode is on.
        """
        type = element_type(self.text(name, default))
        return computation_dtype(type, self.graph.options.real)

    # Operations

    def results(self, run: Callable[[Any], Any]) -> Any:
        """Add the operations of the layer by the function `run`, and return the layer's results.

        If all operands are constant and the layer's type allows it, the layer is folded: the
        results are computed now, as constant tensors.
        """
        kind = self.layer.kind
        folded_kinds = _FOLDED_OLD if self.net.is_legacy else _FOLDED
        operands = [x for x in self.operands if x is not None]
        folds = kind in folded_kinds and is_folded(operands)
        if kind in _CONVERSIONS:
            has_derived = any(isinstance(x, Constant) and x.derived for x in operands)
            folds = folds and has_derived
        if folds:
            with suppress(NotFolded):
                folding_site = replace(self, folds=True)
                return _unwrapped(run(folding_site))
        return run(self)

    def _emit(self, kind: str, operands: ByName, attributes: ByName, inserted: bool) -> Any:
        """Add an operation of a kind to the graph.

        While the layer is folded, compute its result instead.
        """
        if self.folds:
            constants = _unwrapped([*operands.values()])
            return self._wrapped(self.folded(kind, constants, attributes))
        return Site._emit(self, kind, operands, attributes, inserted)

    def evaluate(self, function: Callable[..., Any], *operands: Tensor | float) -> Value:
        """Apply a numpy function to constant tensors.

        This method may be called only while the layer is folded.
        """
        return self._wrapped(self.evaluated(function, _unwrapped(operands)))

    def _wrapped(self, x: Any) -> Any:
        """Replace each constant by a `_FoldedTensor`, also within lists.

        Anything that is not a constant is returned unchanged.
        """
        if isinstance(x, list):
            return [self._wrapped(item) for item in cast("list[Any]", x)]
        if not isinstance(x, Constant):
            return x
        type = TensorType(x.array.shape, self.graph.computation_dtype(x.type))
        no_name = ""  # the tensor is not in the graph
        return _FoldedTensor(no_name, type, constant=x)

    @property
    def span(self) -> Span:
        """Return the position (file, line and column) of the layer in the document."""
        return self.layer.span

    @property
    def title(self) -> str:
        """Return the layer's description in errors, such as "layer 'conv1'"."""
        return f"layer '{self.name}'"

    @property
    def name(self) -> str:
        """Return the layer's name in the graph. In a body, the name begins with `prefix`."""
        return self.prefix + self.layer.name

    @property
    def real(self) -> str:
        """Return the dtype in which f32 is computed."""
        return self.graph.options.real

    def has_one_weight(self) -> bool:
        """Tell whether the layer stores only one number as its weights, for all channels.

        If the layer has no weights, tell whether it stores only one number as its bias.
        """
        blob = self.layer.blobs.get("weights") or self.layer.blobs.get("biases")
        return blob is not None and blob.size == size_of(self._stored_type(blob), 1)

    def blob(self, tag: str, shape: Sequence[int], type: str = "") -> Constant | None:
        """Return the weights in the layer's element `tag`, such as "biases", as a constant.

        The constant has the shape `shape`. Return None if the weights are missing or have 0 bytes.
        If `type` is not "", it replaces the element type that the layer declares.
        """
        blob = self.layer.blobs.get(tag)
        if blob is None or blob.size == 0:
            return None
        type = type or self._stored_type(blob)
        size = size_of(type, volume(shape))
        if size != blob.size:
            message = f"'{tag}' has {blob.size} bytes, {list(shape)} items of {type} take {size}"
            raise InvalidShape(message)
        data = self.weights.slice(blob.offset, blob.size)
        is_entire_layer = tag == "custom"  # the blob of a Const layer
        label = self.name if is_entire_layer else f"{self.name}.{tag}"
        return self.read(data, type, tuple(shape), label)

    def read(self, data: memoryview, type: str, shape: tuple[int, ...], label: str) -> Constant:
        """Make a constant with the label `label` from the bytes of a tensor in a file."""
        count = volume(shape)
        if len(data) < count:  # elements are smaller than a byte, and each becomes a byte
            self.spend(count // CODES_PER_STEP)
            self.graph.meter.expand(count, self.title)
        return Constant(unpacked(data, type, shape), type, label)

    def _stored_type(self, blob: Blob) -> str:
        """Return the element type of weights.

        The file may declare the type for the weights, for the layer, or for an output of the layer.
        The first of these declarations counts. If there is none, return "f32".
        """
        if blob.type:
            return blob.type
        if self.layer.precision:
            return self.layer.precision
        for port in self.layer.outputs:
            if port.type:
                return port.type
        return "f32"

    # Shorthands

    @property
    def integer(self) -> str:
        """Return the dtype in which i64 is computed."""
        return self.graph.builder.integer

    @property
    def declared(self) -> tuple[int, ...]:
        """Return the shape that the file declares for the first output.

        Return () if the rank is open.
        """
        return self.layer.outputs[0].shape or ()

    def first_inputs(self, count: int) -> list[Value]:
        """Return the first `count` inputs as tensors of the graph."""
        return [self.tensor(i) for i in range(count)]

    def integer_tensor(self, i: int) -> Value:
        """Return input `i` in the dtype in which i64 is computed.

        Old files store whole numbers as real numbers.
        """
        return self.cast(self.tensor(i), self.integer)

    def indices(self, x: int | Tensor) -> Value:
        """Return a tensor of indices. Real numbers are cast to int32.

        `x` is the tensor, or the index of an input.
        """
        tensor = self.tensor(x)
        if is_float(tensor.type.dtype):
            return self.cast(tensor, "int32")
        return tensor

    def axes(self, i: int) -> list[int]:
        """Return axes of input 0. Their indices are in input `i`, which must be a constant.

        A negative index counts from the last axis of input 0.
        """
        return [self.axis(axis) for axis in self.integers(i)]

    def required_weights(self, tag: str, shape: Sequence[int], type: str = "") -> Constant:
        """Return the layer's weights in the element `tag` as a constant of shape `shape`.

        If `type` is not "", it replaces the element type that the layer declares. Raises
        InvalidOperation if the layer has no such weights.
        """
        weights = self.blob(tag, shape, type)
        if weights is None:
            raise InvalidOperation("it has no weights")
        return weights

    def broadcast(self) -> list[Any]:
        """Return inputs 0 and 1, reshaped to the same rank so that they broadcast.

        In the mode "pdpd" of the attribute `auto_broadcast`, the first axis of input 1 lies along
        the axis `axis` of input 0. In all other modes, the last axis of input 1 lies along the last
        axis of input 0.
        """
        mode = self.word("auto_broadcast", "numpy", "none", "pdpd")
        x = self.operand(0)
        y = self.operand(1)
        if mode == "pdpd" and self.rank(x) > self.rank(y):
            axis = self.int("axis", -1)
            if axis >= 0:
                axes_before = range(axis)
                axes_after = range(axis + self.rank(y), self.rank(x))
                y = self.unsqueezed(y, (*axes_before, *axes_after))
        return self.aligned(x, y)

    def unsqueezed(self, x: Tensor, axes: Sequence[int]) -> Value:
        """Insert axes of extent 1 into a tensor. `axes` are their indices in the result."""
        tensor = self.tensor(x)
        return self.step.unsqueeze(tensor, axes=tuple(axes)) if axes else tensor

    def padded(
        self, x: Tensor, padding_by_axis: Mapping[int, Sequence[int]], value: float = 0.0
    ) -> Value:
        """Pad a tensor with a value.

        `padding_by_axis` has a pair for each padded axis: the numbers of items to add before and
        after the items of the axis.
        """
        rank = len(self.shape(x))
        padding = [padding_by_axis.get(axis, (0, 0)) for axis in range(rank)]
        return self.step.pad(x, padding=padding, border="constant", value=value)

    def filled(self, item: float, dtype: str, shape: Sequence[int] = ()) -> Value:
        """Make a tensor of shape `shape` in which each element is `item`."""
        items = (item if is_float(dtype) else int(item),)
        return self.step.constant(shape=shape, value=items, dtype=dtype)

    def number_like(self, x: Value, item: float) -> Value | float:
        """Return the number `item` as an operand of an operation on `x`.

        The operand is a Python number if `x` has the default dtype for real numbers or for
        integers. Otherwise the operand is a constant tensor in the dtype of `x`.
        """
        dtype = x.type.dtype
        if dtype == self.real:
            return float(item)
        if dtype == self.integer:
            return int(item)
        return self.filled(item, dtype)

    def flattened(self, x: Value, first: int, last: int) -> Value:
        """Join the axes `first` to `last` (inclusive) by the last operation of the layer."""
        count = last - first + 1
        return self.last.reshape(x, shape=(-1,), axis_start=first, axis_count=count)

    def truths(self, x: Value) -> Value:
        """Return a tensor of bool that is true where `x` is not 0."""
        if x.type.dtype == "bool":
            return x
        return self.step.ne(x, self.number_like(x, 0))

    def count(self, x: Value, axis: int, dtype: str = "") -> Value:
        """Count the true items along an axis. The axis remains in the result, with extent 1."""
        numbers = self.step.cast(x, dtype=dtype or self.integer)
        return self.step.sum_reduce(numbers, axes=(axis,), normalize=False)


def _unwrapped(x: Any) -> Any:
    """Replace each `_FoldedTensor` by its constant, also within lists and tuples.

    Anything else is returned unchanged.
    """
    if isinstance(x, list | tuple):
        return [_unwrapped(item) for item in cast("Sequence[Any]", x)]
    return x.constant if isinstance(x, _FoldedTensor) else x


def derived(array: Any) -> Constant:
    """Return an array as a constant that is computed during reading, not stored in the file."""
    items = np.asarray(array)
    return Constant(items, LayerGraph.TYPES[items.dtype.kind], derived=True)


def stored(site: LayerSite, type: str = "") -> Constant:
    """Return the constant that the Const layer of `site` stores.

    If `type` is not "", it replaces the element type that the layer declares.
    """
    layer = site.layer
    if not layer.outputs:
        raise InvalidOperation("it has no output")
    output = layer.outputs[0]
    # Before version 10, a blob declares the position of the items in the .bin file. Usually its tag
    # is "custom". Later versions have the attributes `offset` and `size` instead.
    is_stored_as_blob = "element_type" not in layer.attributes and len(layer.blobs) > 0
    if is_stored_as_blob:
        return _stored_as_blob(site, output.shape or ())
    declared_type = layer.attributes.get("element_type", output.type or "f32")
    type = type or element_type(declared_type)
    shape = output.shape or ()
    if "shape" in layer.attributes:
        shape = tuple(site.ints("shape", []))
    if len(shape) > MAX_RANK:
        raise InvalidOperation(f"it has {len(shape)} axes, arrays have at most {MAX_RANK}")
    if any(extent < 0 for extent in shape):
        raise InvalidOperation(f"a constant cannot have the shape {list(shape)}")
    items = volume(shape)
    expected_size = size_of(type, items)
    size = site.int("size", expected_size)
    if items == 0:
        return site.read(memoryview(b""), type, shape, site.name)
    if size != expected_size:
        message = f"it has {size} bytes, {list(shape)} items of {type} take {expected_size}"
        raise InvalidOperation(message)
    data = site.weights.slice(site.int("offset", 0), size)
    return site.read(data, type, shape, site.name)


def _stored_as_blob(site: LayerSite, shape: Sequence[int]) -> Constant:
    """Return the constant that a Const layer stores as a blob, or zeros if the blob is empty."""
    first_tag = next(iter(site.layer.blobs))  # in some files the tag is not "custom"
    constant = site.blob("custom", shape) or site.blob(first_tag, shape)
    return constant or Constant(np.zeros(shape, np.float32), "f32", site.name)
