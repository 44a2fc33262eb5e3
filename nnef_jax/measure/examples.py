"""Makes inputs for a network where none are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.extents import is_known, show
from nnef_jax.arguments import bind_inputs
from nnef_jax.errors import InputError, raise_all
from nnef_jax.model import Model
from nnef_jax.network import Network


def network_of(model: Model) -> Network:
    """Return the document of a model, read and checked."""
    return model._execution.network  # pyright: ignore[reportPrivateUsage]


def bound(model: Model, args: Sequence[Any], named: Mapping[str, Any], seed: int = 0) -> list[Any]:
    """Return the inputs of a call as arrays of jax, where it takes them: without any, random ones.

    Raises InputError as a call does, and for open shapes where no inputs are given.
    """
    inputs = [] if args or named else list(random_inputs(model, seed).values())
    arrays = model._bind(tuple(args) or tuple(inputs), named)  # pyright: ignore[reportPrivateUsage]
    return [jnp.asarray(x) for x in arrays]


def types_of(model: Model, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """Return what has the shape and dtype of each input: what is given, or as declared.

    Raises InputError as `bound` does.
    """
    declared = () if args or named else declared_types(model)
    return bind_inputs(network_of(model), tuple(args) or tuple(declared), named, abstract=True)


def random_inputs(model: Model, seed: int = 0, batch: int | None = None) -> dict[str, Any]:
    """Return inputs by name: real numbers of a normal distribution, integers that are 0 or 1.

    Raises InputError as `declared_types` does.
    """
    random = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for value, type in zip(model.graph.inputs, declared_types(model, batch), strict=True):
        is_real = jnp.issubdtype(type.dtype, jnp.inexact)
        numbers = random.normal(size=type.shape) if is_real else random.integers(2, size=type.shape)
        found[value.name] = np.asarray(numbers).astype(type.dtype)
    return found


def declared_types(model: Model, batch: int | None = None) -> list[jax.ShapeDtypeStruct]:
    """Return the types of inputs as declared, with a batch where the first extent is open.

    Raises InputError for other extents that are open.
    """
    errors: list[InputError] = []
    found: list[jax.ShapeDtypeStruct] = []
    for value in model.graph.inputs:
        shape = list(value.type.shape)
        if batch is not None and shape and not is_known(shape[:1]):
            shape[0] = batch
        if not is_known(shape):
            wanted = show(shape)[1:-1].replace("?", "1")
            message = f"the shape of input '{value.name}' is not known, it is {show(shape)}"
            hint = "give example inputs, or shapes by load(..., input_shapes=...): on the command "
            errors.append(InputError(message, hint=f"{hint}line --shape {value.name}={wanted}"))
        else:
            found.append(jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(value.type.dtype)))
    raise_all(errors)
    return found


def call_of(model: Model, inputs: Sequence[Any]) -> Any:
    """Return a function that calls a model on arrays and waits for what it computes."""

    def call() -> Any:
        return jax.block_until_ready(model(*inputs))

    return call


def devices_of(results: Any) -> str:
    """Return what has computed some results, such as "cpu" or "8 x TPU v4"."""
    devices = sorted({d.device_kind for x in jax.tree.leaves(results) for d in x.devices()})
    count = max([len(x.devices()) for x in jax.tree.leaves(results)], default=1)
    return f"{count} x {', '.join(devices)}" if count > 1 else ", ".join(devices)
