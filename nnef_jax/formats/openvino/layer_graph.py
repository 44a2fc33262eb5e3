"""The graph into which the layers and weights of a network or body are flattened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowering.graph import Attribute, TensorType, Value
from lowering.location import Span
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph
from nnef_jax.formats.base import Options
from nnef_jax.formats.openvino.element_types import BY_DTYPE, NF4, computation_dtype, storage_dtype
from nnef_jax.formats.openvino.network_ends import Variable


class LayerGraph(TensorGraph):
    """A graph under construction, with the element types and variables of OpenVINO."""

    # Maps numpy's letter for a kind of dtype, such as "b" for bool, to an element type.
    TYPES: ClassVar[Mapping[str, str]] = {"b": "boolean", "i": "i64", "f": "f32"}

    def __init__(
        self, options: Options, data: dict[str, NDArray[Any]], outer: TensorGraph | None = None
    ) -> None:
        super().__init__(options, data, outer)
        self.variables: Mapping[str, Variable] = {}

    @staticmethod
    def computation_dtype_with(options: Options, type: str) -> str:
        """Return the dtype in which tensors of an element type are computed."""
        return computation_dtype(type, options.real)

    def array_dtype(self, type: str) -> np.dtype[Any]:
        """Return the dtype of the arrays that hold constant tensors of an element type.

        Integers are held in int64 and real numbers in float32 even if the element type is narrower,
        since constant tensors may be computed from tensors of wider types.
        """
        if type == "boolean":
            return np.dtype(np.bool_)
        is_integer = type.startswith(("i", "u"))
        return np.dtype(np.int64) if is_integer else np.dtype(np.float32)

    def is_literal(self, constant: Constant) -> bool:
        """Tell whether operations contain a constant tensor as a literal, not as a variable.

        A literal has a single item, of the type f32, i32, i64 or boolean.
        """
        has_literal_type = constant.type in ("f32", "i32", "i64", "boolean")
        return has_literal_type and super().is_literal(constant)

    def element(self, dtype: str) -> str:
        """Return the name of a dtype's element type, such as "f32" for "float32"."""
        return BY_DTYPE[dtype]

    def variable(self, constant: Constant, name: str, span: Span) -> Value:
        """Add weights to the graph as a variable, and cast the variable to its computation dtype.

        `constant` holds the weights, and `name` is the variable's name. Codes of the type nf4 are
        replaced by the numbers that they stand for. Return the tensor that operations read.
        """
        self.data[constant.label] = constant.array
        dtype_of_storage = storage_dtype(constant.type, self.options.real)
        type = TensorType(constant.array.shape, dtype_of_storage)
        value = self.builder.variable(name, constant.label, type, span)
        if constant.type == "nf4":
            return self._looked_up(value, name, span)
        dtype = self.computation_dtype(constant.type)
        if type.dtype == dtype:
            return value
        cast_name = self.builder.unreserved(f"{name}.{dtype}")
        (cast,) = self.add(
            "cast", {"input": value}, {"dtype": dtype}, [cast_name], span, inserted=True
        )
        return cast

    def _looked_up(self, codes: Value, name: str, span: Span) -> Value:
        """Replace each item of `codes` by `NF4[item]`. An item is a 4-bit index.

        The names of the new tensors begin with `name`.
        """

        def add(kind: str, operands: Mapping[str, Any], **attributes: Attribute) -> Value:
            names = [self.builder.unreserved(f"{name}.{kind}")]
            (result,) = self.add(kind, operands, attributes, names, span, inserted=True)
            return result

        no_operands: dict[str, Any] = {}
        shape = (len(NF4),)
        table = add("constant", no_operands, shape=shape, value=NF4, dtype=self.options.real)
        indices = add("cast", {"input": codes}, dtype="int32")
        return add("gather", {"input": table, "indices": indices}, axis=0)
