"""Gives other subpackages access to a model's internals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from lowering.graph import Graph, Value
from nnef_jax.execution.definition import Inputs
from nnef_jax.execution.meshes import Layout
from nnef_jax.execution.probe import Probe
from nnef_jax.execution.run_options import Params
from nnef_jax.execution.runnable import Runnable, execution_of
from nnef_jax.reading.network import Network

_Model = TypeVar("_Model", bound=Runnable)
_ByLabel = Mapping[str, Any]  # arrays or types
_NOTHING: Mapping[str, object] = {}


def network_of(model: Runnable) -> Network:
    """Return the network that a model runs, with its document and its graph."""
    return execution_of(model).network


def graph_for(model: Runnable, inputs: Inputs) -> Graph:
    """Return the graph for the shapes of `inputs`. No extent in this graph is open."""
    return network_of(model).specialise([x.shape for x in inputs])


def stored(model: Runnable) -> Mapping[str, Any]:
    """Return a dict from labels to all arrays of a model, without copying the arrays.

    Arrays from a file are numpy arrays until they are put on a device. Raises InputError if the
    model has only the types of its arrays.
    """
    require_arrays(model)
    return execution_of(model).arrays.by_label


def stored_or_types(model: Runnable) -> Mapping[str, Any]:
    """Return a dict from labels to all arrays of a model, without copying the arrays.

    If the model has only the types of its arrays, the dict has the types.
    """
    return execution_of(model).arrays.by_label


def require_arrays(model: Runnable) -> None:
    """Raise InputError if the model has only the types of its arrays."""
    execution_of(model).arrays.require()


def has_arrays(model: Runnable) -> bool:
    """Tell whether the model has arrays, and not only their types."""
    return not execution_of(model).arrays.are_types


def bind(
    model: Runnable,
    args: Sequence[object],
    kwargs: Mapping[str, object] = _NOTHING,
    time_axis_count: int = 0,
) -> list[Any]:
    """Return the inputs of a call in the order of the graph.

    `time_axis_count` is the number of time axes before the declared axes of each input: 1 for
    `Model.scan`. Raises InputError in the same cases as a call of the model.
    """
    return execution_of(model).bind(tuple(args), kwargs, time_axis_count)


def types_of(model: Runnable, args: Sequence[object], kwargs: Mapping[str, object]) -> list[Any]:
    """Return the shapes and dtypes of the inputs of a call, as `jax.ShapeDtypeStruct`s.

    The arguments of the call are arrays or types. For a call without arguments, the function
    returns the types that the network declares.
    """
    return execution_of(model).types(tuple(args), kwargs)


def checked_params(model: Runnable, params: Params) -> Any:
    """Check parameters and put them on the model's devices.

    Raises InputError if the parameters do not fit the network.
    """
    return execution_of(model).check_params(params)


def packed(model: Runnable, outputs: Inputs) -> Any:
    """Return the result of a call from its outputs.

    The result is the output itself if there is only one output, and otherwise a namedtuple.
    """
    return execution_of(model).packed(outputs)


def rounds_straight_through(model: Runnable) -> bool:
    """Tell whether the model was loaded with quantization="ste".

    The derivative of a rounding is then not 0.
    """
    return execution_of(model).definition.options.straight_through


def layout_of(model: Runnable) -> Layout | None:
    """Return the model's mesh and the shardings of arrays over the mesh; None without a mesh."""
    return execution_of(model).definition.layout


def with_layout(model: _Model, layout: Layout) -> _Model:
    """Return the model on the mesh of a layout. The layout determines how arrays are sharded."""
    return type(model)(execution_of(model).with_layout(layout))


def without_mesh(model: _Model) -> _Model:
    """Return the model on the default device instead of a mesh."""
    execution = execution_of(model)
    on_default_device = execution.without_mesh()
    if on_default_device is execution:
        return model
    return type(model)(on_default_device)


def for_one_call(model: _Model, inputs: Inputs) -> _Model:
    """Return a variant of a model that takes the least time for compilation and one call."""
    return type(model)(execution_of(model).for_one_call(inputs))


def compiled(model: Runnable, entry: str, state: _ByLabel, inputs: Inputs) -> jax.stages.Compiled:
    """Return the compiled program of a call, a step or a scan, for a state and inputs.

    `entry` is "outputs" for a call of the model, or the name of the method, "step" or "scan".
    """
    execution = execution_of(model)
    return execution.compiled(getattr(execution, entry), state, inputs)


def program_on(
    model: Runnable, inputs: Inputs, platform: str, compute_capability: float | None = None
) -> tuple[Any, tuple[Any, ...]]:
    """Return the function that runs when the model is called, and the types of its arguments.

    `platform` is the platform on which the call would run. `compute_capability` is that of GPUs of
    CUDA, or None if it is unknown.
    """
    execution = execution_of(model)
    return execution.program(
        execution.outputs, inputs, platform, compute_capability=compute_capability
    )


def call_with_probe(
    model: Runnable, args: Sequence[object], kwargs: Mapping[str, object], probe: Probe
) -> Any:
    """Call the model with a probe, which edits or captures tensors, and return the result."""
    return execution_of(model).call(tuple(args), kwargs, probe=probe)


# This function has the parameters of `Definition.tensors`.
Evaluation = Callable[..., dict[Value, Any]]


def evaluation(model: Runnable) -> Evaluation:
    """Return a function that computes tensors of a graph from parameters, state and inputs."""
    return execution_of(model).definition.tensors


def cycle_of(model: Runnable) -> Callable[..., Any]:
    """Return a function that runs the network once (one cycle). The function is not compiled.

    The function's arguments are the parameters, the state, the inputs and a probe.
    """
    return execution_of(model).definition.cycle


def arrays_read(
    model: Runnable, inputs: Inputs, probe: Probe
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two dicts from labels to arrays: the parameters that a run reads, and the state.

    The run is one cycle from the initial state. It also reads the parameters that the probe needs.
    """
    execution = execution_of(model)
    state = execution.arrays.initial_state()
    labels = execution.definition.labels_read(inputs, probe, state)
    return execution.arrays.select(labels), state
