"""An operation of a graph while it is mapped onto OpenVX: its operands, and which are fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jax import Array

from lowering.extents import Shape, volume
from lowering.graph import Operand, Operation, TensorType, Value, is_float
from nnef_jax.openvx.profiles import Choices, FixedPointProfile
from nnef_jax.openvx.tensor import Tensor


class Unfit(Exception):
    """No node of OpenVX computes an operation; the message says why."""


@dataclass(frozen=True, slots=True)
class NodeInputs:
    """Gives a layer what it computes with.

    Args:
        tensors: operands that are tensors or arrays of tensors, by name.
        choices: as of `lower`.
        position: of the results.
    """

    tensors: Mapping[str, Any]
    choices: Choices
    position: int

    def __getitem__(self, name: str) -> Any:
        return self.tensors[name]

    def get(self, name: str) -> Any:
        """Return an operand, None where it has none."""
        return self.tensors.get(name)

    @property
    def output(self) -> dict[str, Any]:
        """Return the arguments of layers without policies: positions and checks of results."""
        return {"strict": self.choices.strict, "output_position": self.position}

    @property
    def products(self) -> Any:
        """Return the arguments of layers that multiply and add."""
        return {
            **self.output,
            "report_overflow": True,
            "overflow_policy": self.choices.overflow_policy,
            "rounding_policy": self.choices.rounding_policy,
            "semantics": self.choices.semantics,
        }


# Results of an operation: a tensor, and where it left the range of the type if that may be.
Computed = tuple[Any, Array | None]
Scaling = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class VxLayer:
    """Computes an operation as nodes of OpenVX do.

    Args:
        name: what OpenVX calls the node, with how often it is used where that is more than once.
        run: the computation, on raw integers.
        arrange: how the integers of a fixed operand lie in OpenVX, by operand.
        static: the operands that are weights of products, to be prepared once.
        scale: takes a fixed operand and a factor for each channel: where following factors and
            terms can become part of the weights; `channels` is how many there are.
        axis: of the result, along which channels lie.
        is_unit: whether the weights are 1 and the operation itself is what follows.
        real: the same in real numbers, where that is not the operation's own rule.
        saturates: whether results may be beyond the type, where the layer does not tell.
        takes_numbers: whether operands that inputs do not change are no tensors but parameters.
        is_table: whether a table of all values takes their place.
        keeps_position: whether results have the position of what is read.
    """

    name: str
    run: Callable[[NodeInputs], Computed]
    arrange: Mapping[str, Callable[[Array], Array]] = field(default_factory=dict[str, Any])
    static: tuple[str, ...] = ()
    scale: tuple[str, Scaling] | None = None
    channels: int = 0
    axis: int = 1
    is_unit: bool = False
    real: Callable[[Mapping[str, Any]], Any] | None = None
    saturates: bool = False
    takes_numbers: bool = False
    is_table: bool = False
    keeps_position: bool = False


@dataclass(frozen=True, slots=True)
class MappedOperation:
    """An operation of a graph, and facts about the tensors that it reads.

    Args:
        source: the operation in the graph.
        fixed: tensors that depend on parameters and constants alone.
        not_negative: tensors without negative items, whatever the inputs are.
    """

    source: Operation
    profile: FixedPointProfile
    semantics: str
    fixed: frozenset[Value]
    not_negative: frozenset[Value]

    @property
    def kind(self) -> str:
        """Return the kind of the operation."""
        return self.source.kind

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the attributes, with defaults of the rule for those that are not written."""
        return dict(self.source.attributes)

    @property
    def operands(self) -> dict[str, Operand]:
        """Return the operands by name."""
        return dict(self.source.operands)

    def operand(self, name: str) -> Operand:
        """Return an operand."""
        return self.operands[name]

    def type(self, name: str) -> TensorType:
        """Return the type of an operand that is a tensor."""
        tensor = self.operand(name)
        assert isinstance(tensor, Value)
        return tensor.type

    @property
    def result(self) -> TensorType:
        """Return the type of the first result."""
        return next(self.source.writes()).type

    def is_fixed(self, name: str) -> bool:
        """Tell whether an operand depends on parameters and constants alone."""
        operand = self.operand(name)
        return not isinstance(operand, tuple) and (
            not isinstance(operand, Value) or operand in self.fixed
        )

    def number(self, name: str) -> float | None:
        """Return an operand that is a number in the document, else None."""
        operand: Any = self.operand(name)
        return None if isinstance(operand, tuple | Value | bool) else float(operand)

    def shape(self, name: str) -> Shape:
        """Return the shape of an operand: () for a number."""
        operand = self.operand(name)
        return operand.type.shape if isinstance(operand, Value) else ()

    @property
    def arguments(self) -> list[str]:
        """Return the names of the operands."""
        return list(self.operands)

    def computed(self) -> list[str]:
        """Return the names of the operands that depend on inputs."""
        return [name for name in self.operands if not self.is_fixed(name)]

    def require_fixed(self, *names: str) -> None:
        """Refuse weights that are computed: those of a layer are there before it is verified."""
        for name in names:
            if not self.is_fixed(name):
                raise Unfit(f"'{name}' is computed from inputs, weights of a layer are [static]")

    def require_planes(self, name: str) -> Shape:
        """Return the shape of an operand with the batch, channels and one or two more axes."""
        shape = self.shape(name)
        if len(shape) not in (3, 4):
            raise Unfit(f"'{name}' has {len(shape)} axes; a layer has width, height, IFM, batch")
        return shape


def is_real(value: Operand) -> bool:
    """Tell whether an operand is a tensor of real numbers."""
    return isinstance(value, Value) and is_float(value.type.dtype)


def plane(data: Array) -> Array:
    """Return an array [N,C,W] as [N,C,1,W], [N,C,H,W] as it is."""
    return data[:, :, None] if data.ndim == 3 else data


def planes(x: Tensor) -> Tensor:
    """Return a tensor as one of planes."""
    return Tensor(plane(x.data), x.fixed_point_position)


def like(x: Tensor, shape: Shape) -> Tensor:
    """Return a tensor in another shape, without a copy in OpenVX: a view."""
    return Tensor(x.data.reshape(shape), x.fixed_point_position)


def is_single(shape: Shape) -> bool:
    """Tell whether a shape has one item."""
    return volume(shape) == 1
