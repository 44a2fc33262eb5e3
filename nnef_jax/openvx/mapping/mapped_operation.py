"""The argument and result of a mapping: an operation with facts about its operands, and a layer."""

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
    """Raised with the reason if no node of OpenVX computes an operation."""


@dataclass(frozen=True, slots=True)
class NodeInputs:
    """The inputs of a layer.

    Args:
        tensors: maps names to operands. An operand is a tensor, a list of tensors, an array or a
            number.
        choices: the arguments of `lower`.
        position: the fixed-point position of the results.
    """

    tensors: Mapping[str, Any]
    choices: Choices
    position: int

    def __getitem__(self, name: str) -> Any:
        return self.tensors[name]

    def get(self, name: str) -> Any:
        """Return the operand `name`, or None if it is missing."""
        return self.tensors.get(name)

    @property
    def output(self) -> dict[str, Any]:
        """Return the keyword arguments `strict` and `output_position`, which all layers take."""
        return {"strict": self.choices.strict, "output_position": self.position}

    @property
    def products(self) -> dict[str, Any]:
        """Return the keyword arguments for layers that compute sums of products."""
        return {
            **self.output,
            "report_overflow": True,
            "overflow_policy": self.choices.overflow_policy,
            "rounding_policy": self.choices.rounding_policy,
            "semantics": self.choices.semantics,
        }


# A pair: the result of a layer (or a list of several results), and a mask of the items that
# overflow. The mask is None if no item can overflow.
Computed = tuple[Any, Array | None]
# A function that multiplies weights by factors. The array of factors has an item for each channel
# of the result.
Scaling = Callable[[Array, Array], Array]


@dataclass(frozen=True, slots=True)
class VxLayer:
    """The layer of an operation: the nodes of OpenVX that compute it.

    Fixed operands are those that depend only on parameters and constants.
    Args:
        name: the name of the node in OpenVX, preceded by a count if there are several nodes.
        run: the computation on raw integers.
        arrange: maps the name of a fixed operand to a function that converts the operand to
            OpenVX's layout.
        static: the names of operands that are weights of products. They are prepared once.
        scale: the name of the weights, and a function that multiplies the weights by a factor for
            each channel. `scale` is None if no operation can be folded into the weights.
        channels: the number of channels of the result.
        axis: the axis of the channels in the result.
        is_unit: whether all weights are 1 before the operation itself is folded into the weights.
        real: the computation in floating point, or None to compute by the operation's rule.
        saturates: whether results can overflow although `run` returns no mask.
        takes_numbers: whether fixed operands stay floating-point numbers, as parameters of the
            layer.
        is_table: whether the layer reads a table of the function instead of fixed operands.
        keeps_position: whether results have the fixed-point position of the operand.
    """

    name: str
    run: Callable[[NodeInputs], Computed]
    arrange: Mapping[str, Callable[[Array], Array]] = field(default_factory=dict[str, Any])
    static: tuple[str, ...] = ()
    scale: tuple[str, Scaling] | None = None
    channels: int = 0
    axis: int = 1
    is_unit: bool = False
    real: Callable[[Mapping[str, Array]], Array] | None = None
    saturates: bool = False
    takes_numbers: bool = False
    is_table: bool = False
    keeps_position: bool = False


@dataclass(frozen=True, slots=True)
class MappedOperation:
    """An operation of a graph, and facts about tensors of the graph.

    Args:
        source: the operation in the graph.
        profile: the fixed-point type of all tensors.
        semantics: "spec" or "khronos".
        fixed: the tensors that depend only on parameters and constants.
        not_negative: the tensors that have no negative items for any inputs.
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
        """Return the attributes by name, with the defaults of the rule."""
        return dict(self.source.attributes)

    @property
    def operands(self) -> dict[str, Operand]:
        """Return the operands by name."""
        return dict(self.source.operands)

    def operand(self, name: str) -> Operand:
        """Return the operand `name`."""
        return self.operands[name]

    def type(self, name: str) -> TensorType:
        """Return the type of an operand that is a tensor."""
        tensor = self.operand(name)
        assert isinstance(tensor, Value)
        return tensor.type

    @property
    def result(self) -> TensorType:
        """Return the type of the operation's first result."""
        return next(self.source.writes()).type

    def is_fixed(self, name: str) -> bool:
        """Tell whether an operand depends only on parameters and constants."""
        operand = self.operand(name)
        if isinstance(operand, Value):
            return operand in self.fixed
        is_list = isinstance(operand, tuple)  # a list of tensors counts as computed from inputs
        return not is_list

    def number(self, name: str) -> float | None:
        """Return an operand as a float if it is a literal number, else None."""
        operand: Any = self.operand(name)
        is_number = not isinstance(operand, tuple | Value | bool)
        return float(operand) if is_number else None

    def shape(self, name: str) -> Shape:
        """Return the shape of an operand, which is () for a number."""
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
        """Raise Unfit if one of the operands `names` depends on inputs.

        These operands are weights, and OpenVX reads weights when it verifies a graph.
        """
        for name in names:
            if not self.is_fixed(name):
                raise Unfit(
                    f"'{name}' is computed from inputs, but weights of a layer are [static]"
                )

    def require_planes(self, name: str) -> Shape:
        """Return the shape (batch, channels, ...) of an operand.

        Raises Unfit unless the operand has 3 or 4 axes.
        """
        shape = self.shape(name)
        if len(shape) not in (3, 4):
            raise Unfit(f"'{name}' has {len(shape)} axes, a layer has width, height, IFM and batch")
        return shape


def is_real(value: Operand) -> bool:
    """Tell whether an operand is a tensor of floating-point numbers."""
    return isinstance(value, Value) and is_float(value.type.dtype)


def array_as_planes(data: Array) -> Array:
    """Insert an axis of height 1 into an array (batch, channels, width).

    An array (batch, channels, height, width) is returned unchanged.
    """
    return data[:, :, None] if data.ndim == 3 else data


def as_planes(x: Tensor) -> Tensor:
    """Insert an axis of height 1 into a tensor (batch, channels, width).

    A tensor (batch, channels, height, width) is returned unchanged.
    """
    return Tensor(array_as_planes(x.data), x.fixed_point_position)


def reshaped(x: Tensor, shape: Shape) -> Tensor:
    """Return a tensor in another shape. In OpenVX the result is a view."""
    return Tensor(x.data.reshape(shape), x.fixed_point_position)


def is_single(shape: Shape) -> bool:
    """Tell whether a shape has one item."""
    return volume(shape) == 1
