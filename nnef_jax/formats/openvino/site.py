"""Holds a layer while it is flattened: what it reads, its attributes, what it adds to the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, is_symbolic, volume
from lowering.graph import Value
from nnef_jax.formats.base import ExtentNeeded
from nnef_jax.formats.openvino.bin_file import Weights
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.document import Blob, Body, Net, NetLayer
from nnef_jax.formats.openvino.element_types import computed, element_type, size_of, unpacked
from nnef_jax.formats.openvino.layer_graph import LayerGraph
from nnef_jax.similar import did_you_mean

Tensor = Value | Constant
_TRUE, _FALSE = ("1", "true", "yes"), ("0", "false", "no", "")


@dataclass(slots=True, eq=False)
class Site:
    """A layer that is flattened into a graph. `operands` are by input port, None if unconnected."""

    layer: NetLayer
    net: Net
    graph: LayerGraph
    weights: Weights
    operands: Sequence[Tensor | None]
    flatten: Callable[..., Any]  # a body, into a graph of its own
    prefix: str = ""  # of labels and names, in a body

    # What it reads

    def has(self, i: int) -> bool:
        """Tell whether an input is connected."""
        return i < len(self.operands) and self.operands[i] is not None

    def is_read(self, i: int) -> bool:
        """Tell whether something reads an output."""
        ports = self.layer.outputs
        return i < len(ports) and (self.layer.id, ports[i].id) in self.net.read

    def operand(self, i: int) -> Tensor:
        """Return an input, known or not."""
        found = self.operands[i] if i < len(self.operands) else None
        if found is None:
            raise InvalidOperation(f"input {i} is not connected")
        return found

    def tensor(self, x: int | Tensor) -> Value:
        """Return an input as a tensor of the graph."""
        found = self.operand(x) if isinstance(x, int) else x
        if isinstance(found, Value):
            return found
        name = found.label or f"{self.name}.constant"
        return self.graph.tensor(found, name, self.layer.span)

    def tensors(self) -> list[Value]:
        """Return all inputs that are connected as tensors of the graph."""
        return [self.tensor(x) for x in self.operands if x is not None]

    def known(self, i: int) -> NDArray[Any]:
        """Return an input that decides the structure of the graph; raise where it is computed."""
        found = self.operand(i)
        if isinstance(found, Constant):
            return found.array
        raise InvalidOperation(
            f"input {i} is computed by the network, it must be known when the network is read",
            self.graph.fixing(found),
        )

    def integers(self, i: int) -> list[int]:
        """Return the items of a known input as whole numbers, which may be symbolic."""
        return [x if is_symbolic(x) else int(x) for x in self.known(i).reshape(-1).tolist()]

    def shape(self, x: int | Tensor = 0) -> Shape:
        """Return the shape of an input; extents may be UNKNOWN."""
        found = self.operand(x) if isinstance(x, int) else x
        return found.type.shape if isinstance(found, Value) else found.array.shape

    def known_shape(self, x: int | Tensor = 0) -> Shape:
        """Return the shape of an input; raise ExtentNeeded where an extent is open.

        Extents are symbolic where `jax.export` keeps them open.
        """
        found = self.operand(x) if isinstance(x, int) else x
        shape = self.shape(found)
        if UNKNOWN not in shape:
            return shape
        if self.graph.symbolic is None or isinstance(found, Constant):
            raise ExtentNeeded
        return self.graph.symbolic.of(found)

    def axis(self, axis: int, rank: int | None = None) -> int:
        """Return an axis, counted from the end where it is negative."""
        rank = len(self.shape()) if rank is None else rank
        if not -rank <= axis < max(rank, 1):
            raise InvalidOperation(f"there is no axis {axis} of {rank}")
        return axis % rank if rank else 0

    def body(self, name: str) -> Body:
        """Return a network inside the layer."""
        found = self.layer.bodies.get(name)
        if found is None:
            raise InvalidOperation(f"it has no <{name}>")
        return found

    # Attributes

    def text(self, name: str, default: str | None = None) -> str:
        """Return an attribute in lower case."""
        found = self.layer.attributes.get(name)
        if found is None:
            if default is None:
                raise InvalidOperation(f"attribute '{name}' is missing")
            return default
        return found.strip().lower()

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is true or false."""
        found = self.text(name, "1" if default else "0")
        if found not in (*_TRUE, *_FALSE):
            raise InvalidOperation(f"attribute '{name}' is {found[:40]!r}, neither true nor false")
        return found in _TRUE

    def choice(self, name: str, *allowed: str, default: str | None = None) -> str:
        """Return an attribute that is one of some words, in lower case."""
        found = self.text(name, default)
        if found not in allowed:
            known = ", ".join(filter(None, allowed))
            raise InvalidOperation(
                f"attribute '{name}' is {found[:40]!r}, known are {known}",
                did_you_mean(found, allowed, meter=self.graph.options.meter),
            )
        return found

    def numbers(self, name: str, default: Sequence[float] | None = None) -> list[float]:
        """Return an attribute that is a list of numbers."""
        if default is not None and not self.layer.attributes.get(name, "").strip():
            return [float(x) for x in default]
        parts = self.text(name).split(",")
        try:
            return [float(part) for part in parts if part.strip()]
        except ValueError:
            raise InvalidOperation(f"attribute '{name}' is no list of numbers") from None

    def ints(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Return an attribute that is a list of whole numbers."""
        found = self.numbers(name, default)
        if any(x != int(x) if np.isfinite(x) else True for x in found):
            raise InvalidOperation(f"attribute '{name}' has {found}, no whole numbers")
        return [int(x) for x in found]

    def number(self, name: str, default: float | None = None) -> float:
        """Return an attribute that is a number."""
        found = self.numbers(name, None if default is None else [default])
        if len(found) != 1:
            raise InvalidOperation(f"attribute '{name}' must be one number, it has {len(found)}")
        return found[0]

    def int(self, name: str, default: int | None = None) -> int:
        """Return an attribute that is a whole number."""
        found = self.number(name, default)
        if found != int(found):
            raise InvalidOperation(f"attribute '{name}' is {found}, no whole number")
        return int(found)

    def dtype(self, name: str, default: str | None = None) -> str:
        """Return an attribute that is an element type, as the dtype that is computed in."""
        return computed(element_type(self.text(name, default)), self.graph.options.real)

    def dtype_of(self, i: int) -> str:
        """Return the dtype that an input is computed in, known or not."""
        found = self.operand(i)
        return found.type.dtype if isinstance(found, Value) else computed(found.type, self.real)

    # What it adds

    def spend(self, steps: int) -> None:
        """Count steps before they are done while it is read; raise LimitError for too many."""
        self.graph.options.meter.spend(steps, f"layer '{self.name}'", self.layer.span)

    @property
    def name(self) -> str:
        """Return the name of the layer, as the graph has it."""
        return self.prefix + self.layer.name

    @property
    def real(self) -> str:
        """Return the dtype of real numbers of 32 bits."""
        return self.graph.options.real

    def emit(self, kind: str, operands: Mapping[str, Any], /, **attributes: Any) -> Any:
        """Add the operation that the layer is; return its result, several as a tuple."""
        return self._emit(kind, operands, attributes, self.name, inserted=False)

    def insert(self, kind: str, operands: Mapping[str, Any], /, **attributes: Any) -> Any:
        """Add an operation before it; return its result, several as a tuple."""
        return self._emit(kind, operands, attributes, f"{self.name}.{kind}", inserted=True)

    def _emit(
        self,
        kind: str,
        operands: Mapping[str, Any],
        attributes: dict[str, Any],
        name: str,
        *,
        inserted: bool,
    ) -> Any:
        def operand(x: Any) -> Any:
            if isinstance(x, list):
                return [operand(item) for item in cast("list[Any]", x)]
            return self.tensor(x) if isinstance(x, Constant) else x

        given = {key: operand(x) for key, x in operands.items()}
        frozen = {k: _frozen(x) for k, x in attributes.items()}
        builder = self.graph.builder
        wanted = (
            [name] if not inserted and not builder.is_taken(name) else [builder.unreserved(name)]
        )
        results = self.graph.add(kind, given, frozen, wanted, self.layer.span, inserted=inserted)
        return results[0] if len(results) == 1 else results

    def has_one_weight(self) -> bool:
        """Tell whether weights, or biases without these, are a single item, for all channels."""
        blob = self.layer.blobs.get("weights") or self.layer.blobs.get("biases")
        return blob is not None and blob.size == size_of(self._stored_type(blob), 1)

    def blob(self, tag: str, shape: Sequence[int], type: str = "") -> Constant | None:
        """Return weights of the layer in a shape, None without them or of size 0.

        `type` is what they hold whatever the layer says.
        """
        blob = self.layer.blobs.get(tag)
        if blob is None or blob.size == 0:
            return None
        type = type or self._stored_type(blob)
        needed = size_of(type, volume(shape))
        if needed != blob.size:
            raise InvalidShape(
                f"'{tag}' has {blob.size} bytes, {list(shape)} items of {type} take {needed}"
            )
        data = self.weights.slice(blob.offset, blob.size)
        label = f"{self.name}.{tag}" if tag != "custom" else self.name
        return Constant(unpacked(data, type, tuple(shape)), type, label)

    def _stored_type(self, blob: Blob) -> str:
        known = blob.type or self.layer.precision
        return known or next((port.type for port in self.layer.outputs if port.type), "f32")

    # Shorthands

    def cast(self, x: Value, dtype: str) -> Value:
        """Return a tensor in a dtype."""
        return x if x.type.dtype == dtype else self.insert("cast", {"input": x}, dtype=dtype)

    def reshaped(self, x: Value, shape: Sequence[int]) -> Value:
        """Return a tensor in another shape."""
        if tuple(shape) == x.type.shape:
            return x
        return self.insert("reshape", {"input": x}, shape=tuple(shape), axis_start=0, axis_count=-1)

    def transposed(self, x: Value, axes: Sequence[int]) -> Value:
        """Return a tensor with permuted axes."""
        if list(axes) == list(range(len(axes))):
            return x
        return self.insert("transpose", {"input": x}, axes=tuple(axes))

    def places(self, count: int, axis: int = 0, rank: int = 1) -> Value:
        """Return the whole numbers from 0 to before a count along an axis, others of extent 1."""
        dtype = self.graph.builder.integer
        found = self.insert("range", {}, start=0, end=count, step=1, dtype=dtype)
        rest = tuple(i for i in range(rank) if i != axis)
        return self.insert("unsqueeze", {"input": found}, axes=rest) if rest else found

    def aligned(self, *operands: Tensor | float, first_axis: int | None = None) -> list[Any]:
        """Return operands of one rank, axes put before their own, as numpy broadcasts.

        A known single item is a literal. `first_axis` puts axes behind instead, but so many before.
        """
        rank = max(len(self.shape(x)) for x in operands if isinstance(x, Tensor))

        def align(x: Tensor | float) -> Any:
            if not isinstance(x, Tensor):
                return x
            shape = self.shape(x)
            others = [y for y in operands if y is not x and isinstance(y, Value)]
            if isinstance(x, Constant) and x.array.size == 1 and others:
                same = any(len(y.type.shape) == rank for y in others)
                if same and x.type in ("f32", "i32", "i64", "boolean"):
                    dtype = computed(x.type, self.real)
                    if dtype in (self.real, self.graph.builder.integer, "bool"):
                        return x.array.reshape(-1)[0].item()
            value = self.tensor(x)
            missing = rank - len(shape)
            if not missing or not shape:
                return value
            before = missing if first_axis is None else first_axis
            axes = (*range(before), *range(before + len(shape), rank))
            return self.insert("unsqueeze", {"input": value}, axes=axes)

        return [align(x) for x in operands]


def _frozen(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return tuple(map(_frozen, cast("Sequence[Any]", x)))
    return x.item() if isinstance(x, np.generic) else x
