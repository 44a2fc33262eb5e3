"""A loss as a function of what is added to tensors inside a network, for gradients at these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from nnef_jax import Model
from nnef_jax.analysis.question import array_from, graph_for

Arrays = Mapping[str, Any]
Loss = Callable[..., Any]


def zeros_at(model: Model, inputs: Sequence[Any], names: Sequence[str]) -> dict[str, Array]:
    """Return zeros of the types of tensors, by name."""
    types = {name: graph_for(model, inputs).values[name].type for name in names}
    return {name: jnp.zeros([int(n) for n in t.shape], t.dtype) for name, t in types.items()}


def loss_of(
    model: Model, params: Arrays, inputs: Sequence[Any], loss: Callable[[Any], Any], added: Arrays
) -> tuple[Array, dict[str, Any]]:
    """Return the loss where something is added to tensors, and what these are then, by name."""
    edits = {name: lambda x, y=y: x + y for name, y in added.items()}
    if not added:
        return scalar(loss(model.apply(params, *inputs))), {}
    outputs, inside = model.apply(params, *inputs, edit=edits, capture=list(added))
    return scalar(loss(outputs)), inside


def scalar(value: Any) -> Array:
    """Return what a loss returned, as a number of 32 bits; TypeError for no real number."""
    found = array_from("loss", value)
    if found.shape != () or not jnp.issubdtype(found.dtype, jnp.floating):
        said = f"it returns {found.dtype}{list(found.shape)}"
        raise TypeError(f"loss must return a single real number, {said}")
    return found.astype(jnp.promote_types(found.dtype, jnp.float32))
