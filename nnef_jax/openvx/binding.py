"""Checks what a lowered network is called with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from lowering.graph import is_float
from nnef_jax.call_arguments import bind_inputs
from nnef_jax.model import Model
from nnef_jax.openvx.profiles import FixedPointProfile
from nnef_jax.openvx.tensor import Tensor
from nnef_jax.openvx.vx_errors import wrong_format


def bind_tensors(model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the tensors of a call in the order of the graph; inputs of integers are arrays.

    Raises TypeError for what is no tensor, InputError for other names and shapes.
    """
    types = {value.name: value.type.dtype for value in model.graph.inputs}
    given = dict(zip(types, args, strict=False)) | dict(kwargs)
    for name, x in given.items():
        if is_float(types.get(name, "float32")) and not isinstance(x, Tensor):
            hint = "Tensor.quantize makes one, .float(...) takes real numbers"
            raise TypeError(f"'{name}' must be a Tensor, not {type(x).__name__}: {hint}")

    def spec(name: str, x: Any) -> Any:
        is_tensor = isinstance(x, Tensor)
        return jax.ShapeDtypeStruct(x.shape, types.get(name, "float32")) if is_tensor else x

    known = [spec(name, x) for name, x in zip(types, args, strict=False)]
    named = {name: spec(name, x) for name, x in kwargs.items()}
    bind_inputs(model.execution.network, (*known, *args[len(types) :]), named, abstract=True)
    return [given[name] for name in types]


def require_format(name: str, x: Tensor, profile: FixedPointProfile, position: int) -> None:
    """Raise VxError for a tensor of another type or position."""
    if str(x.dtype) != profile.dtype:
        wrong_format(f"input '{name}' is of {x.dtype}, {profile.name} takes {profile.dtype}")
    if x.fixed_point_position != position:
        found = x.fixed_point_position
        wrong_format(f"input '{name}' has the fixed_point_position {found}, it must be {position}")
