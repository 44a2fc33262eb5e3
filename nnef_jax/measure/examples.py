"""Prepares subjects of measurements: an entry of a model, with the user's or random inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.extents import UNKNOWN, is_known, show
from lowering.graph import Graph
from nnef_jax.errors import InputError, raise_all
from nnef_jax.model import Model
from nnef_jax.options import require_choice
from nnef_jax.workings import bind, compiled, graph_for, network_of

_CYCLES_OF_SCAN = 16  # A scan of random inputs has this many cycles.
_GIVE = "give example inputs, or shapes by load(..., input_shapes=...): on the command line"


@dataclass(frozen=True, slots=True)
class Subject:
    """An entry of a model, with the arrays on which it runs.

    Attributes:
        run: a function that runs the entry, waits for the results, and returns them.
        compiled: a function that returns the compiled program of the entry.
        arrays: the states, followed by the inputs. The entry "apply" has no states.
        graph: the network's graph for the shapes of the inputs in one call or cycle.
    """

    run: Callable[[], Any]
    compiled: Callable[[], jax.stages.Compiled]
    arrays: list[Any]
    graph: Graph


def subject_of(
    model: Model, args: Sequence[Any], named: Mapping[str, Any], entry: str = "apply", seed: int = 0
) -> Subject:
    """Return an entry of a model with the arrays on which it runs.

    The entry is "apply" (a call), "step" (one cycle from the initial state) or "scan" (many
    cycles). Without `args` and `named`, the inputs are random, and a scan has 16 cycles. Raises
    ValueError for another entry. Raises InputError in the same cases as a call, and if shapes are
    open and no inputs are passed.
    """
    require_choice("entry", entry, ("apply", "step", "scan"))
    # The inputs of a scan have a first axis for time.
    time_extents = (_CYCLES_OF_SCAN,) if entry == "scan" else ()
    time_axis_count = len(time_extents)
    if not args and not named:
        args = tuple(random_inputs(model, seed, *time_extents).values())
    inputs = [jnp.asarray(x) for x in bind(model, tuple(args), named, time_axis_count)]
    graph = network_of(model).specialise([x.shape[time_axis_count:] for x in inputs])
    state = {} if entry == "apply" else model.init_state()
    states = [state[variable.label] for variable in graph.states] if state else []

    def run_entry() -> Any:
        if entry == "apply":
            results = model(*inputs)
        elif entry == "step":
            # A step may write its results into the memory of the state. The old state is then
            # invalid, so each call gets a new state.
            results = model.step(model.init_state(), *inputs)
        else:
            results = model.scan(*inputs)
        return jax.block_until_ready(results)

    entry_name = "outputs" if entry == "apply" else entry
    compile_entry = partial(compiled, model, entry_name, state, inputs)
    return Subject(run_entry, compile_entry, [*states, *inputs], graph)


def random_inputs(
    model: Model, seed: int = 0, *leading: int, batch: int | None = None
) -> dict[str, Any]:
    """Return random inputs by name.

    Floating-point numbers are normally distributed, and integers are 0 or 1. `leading` are extents
    that precede the declared extents, such as the number of cycles. If a declared first extent is
    open, `batch` takes its place. Raises InputError in the same cases as `declared_types`, and
    LimitError for too many numbers.
    """
    random = np.random.default_rng(seed)
    inputs: dict[str, Any] = {}
    types = declared_types(model, batch)
    graph_for(model, types)  # This raises LimitError if the tensors have too many numbers.
    for value, type in zip(model.graph.inputs, types, strict=True):
        shape = (*leading, *type.shape)
        if jnp.issubdtype(type.dtype, jnp.inexact):
            numbers = random.normal(size=shape)
        else:
            numbers = random.integers(2, size=shape)
        inputs[value.name] = np.asarray(numbers).astype(type.dtype)
    return inputs


def declared_types(
    model: Model, batch: int | None = None, hint: str = _GIVE
) -> list[jax.ShapeDtypeStruct]:
    """Return the declared types of inputs, with `batch` in place of an open first extent.

    Raises InputError if an extent is still open. `hint` is the first part of the error's hint.
    """
    errors: list[InputError] = []
    types: list[jax.ShapeDtypeStruct] = []
    for value in model.graph.inputs:
        shape = list(value.type.shape)
        has_open_batch = bool(shape) and shape[0] is UNKNOWN
        if batch is not None and has_open_batch:
            shape[0] = batch
        if is_known(shape):
            types.append(jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(value.type.dtype)))
        else:
            # The hint shows how to give a shape. For the shape [?,3] it has the example 1,3.
            example = show(shape)[1:-1].replace("?", "1")
            names = network_of(model).extent_names.get(value.name, ())
            shape_text = show(shape, names)
            message = f"the shape of input '{value.name}' is not known, it is {shape_text}"
            errors.append(InputError(message, hint=f"{hint} --shape {value.name}={example}"))
    raise_all(errors)
    return types


def devices_of(results: Any) -> str:
    """Return the devices that hold some results, as text: "cpu" or "8 x TPU v4"."""
    kinds: set[str] = set()
    device_count = 1
    for x in jax.tree.leaves(results):
        kinds.update(device.device_kind for device in x.devices())
        device_count = max(device_count, len(x.devices()))
    kinds_text = ", ".join(sorted(kinds))
    return f"{device_count} x {kinds_text}" if device_count > 1 else kinds_text
