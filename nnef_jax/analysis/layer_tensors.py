"""Lists a network's layers: tensors, each with its operation and parameters. Computes losses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from lowering.graph import Graph, Operation, Value, is_float, values_of
from lowering.ops import rules
from nnef_jax import Model
from nnef_jax.analysis.argument_checks import array_from
from nnef_jax.analysis.differentiability import require_derivatives
from nnef_jax.analysis.question import bound
from nnef_jax.calls.arguments import Params, Sample
from nnef_jax.errors import InputError
from nnef_jax.execution.probe import Probe
from nnef_jax.options import names_of, shown
from nnef_jax.wording.similar import did_you_mean
from nnef_jax.workings import graph_for, without_mesh

Arrays = Mapping[str, Any]  # The keys are names of tensors, or labels of parameters.
Loss = Callable[..., ArrayLike]


@dataclass(frozen=True, slots=True)
class LayerTensor:
    """A tensor that a network computes from inputs or states, with the operation that computes it.

    Args:
        name: the name of the tensor.
        kind: the kind of the operation, such as "conv".
        value: the tensor in the graph.
        operation: the operation that computes the tensor.
        params: labels of the parameters that the operation reads. A parameter may be rearranged
            first, for instance by a reshape.
        weights: labels of the parameters in `params` that are multiplied with a tensor. Biases are
            left out.
        unit_axis: the axis of channels or features; None for a tensor with a single axis.
    """

    name: str
    kind: str
    value: Value
    operation: Operation
    params: tuple[str, ...]
    weights: tuple[str, ...]
    unit_axis: int | None


def on_one_device(
    model: Model, inputs: Sequence[Sample], params: Params | None
) -> tuple[Model, list[Any]]:
    """Return the model on one device, and the inputs in graph order.

    A model on a mesh is moved to the default device, since matrix decompositions are not
    distributed. `params` replaces the parameters of the model, unless it is None.
    """
    if params is not None:
        model = model.with_params(params)
    values = bound(model, inputs)
    model_on_one_device = without_mesh(model)
    was_on_mesh = model_on_one_device is not model
    if was_on_mesh:
        values = list(map(np.asarray, values))
    return model_on_one_device, values


def layers_of(graph: Graph, names: Iterable[str] | None = None) -> dict[str, LayerTensor]:
    """Return a dict from tensor names to layers, in order of computation.

    If `names` is None, the result has all layers. If `names` is a list of names and patterns, the
    result has the layers that they match. Raises TypeError for any other `names`, and InputError
    for a name or pattern without a layer.
    """
    layers = {layer.name: layer for layer in _layers(graph)}
    if names is None:
        return layers
    patterns = names_of("names", names, "names of tensors")
    chosen = set(Probe(capture=patterns).captured(graph))
    for name in patterns:
        if name in graph.values and name not in layers:
            message = f"'{name}' is no tensor that is computed from the inputs for the outputs"
            raise InputError(message, hint="model.summary() lists the names")
    return {name: layer for name, layer in layers.items() if name in chosen}


def _layers(graph: Graph) -> Iterable[LayerTensor]:
    """Yield the layers of a graph, in order of computation.

    A layer is a tensor that has a name, depends on inputs or states, and is needed for the outputs.
    """
    varying = {*graph.inputs, *(state.value for state in graph.states)}
    labels: dict[Value, tuple[str, ...]] = {
        parameter.value: (parameter.label,) for parameter in graph.parameters
    }
    unit_axes: dict[Value, int | None] = {}
    for value in varying:
        unit_axes[value] = 1 if len(value.type.shape) > 1 else None
    for operation in graph.operations:
        reads = list(operation.reads())
        only_rearranges_parameters = varying.isdisjoint(reads)
        if only_rearranges_parameters:
            source_labels = [label for value in reads for label in labels.get(value, ())]
            distinct_labels = tuple(dict.fromkeys(source_labels))
            for value in operation.writes():
                labels[value] = distinct_labels
            continue
        params, weights = _parameters(operation, labels)
        for value in operation.writes():
            varying.add(value)
            axis = _unit_axis(operation, value, unit_axes)
            unit_axes[value] = axis
            has_name = value.name in graph.values and not value.inserted
            if has_name and value in graph.needed:
                yield LayerTensor(
                    name=value.name,
                    kind=operation.kind,
                    value=value,
                    operation=operation,
                    params=params,
                    weights=weights,
                    unit_axis=axis,
                )


def _parameters(
    operation: Operation, labels: Mapping[Value, tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the labels of the parameters, and of the weights, that an operation reads.

    The two tuples are the fields `params` and `weights` of `LayerTensor`. `labels` maps each value
    that is a parameter, or is rearranged from parameters, to the labels of these parameters.
    """
    rule = operation.rule or rules[operation.kind]
    has_weights = rule.work is not None
    # The keys of both dicts are labels. Dicts are used instead of sets, because a dict keeps the
    # order of its keys.
    params: dict[str, None] = {}
    weights: dict[str, None] = {}
    for name, operand in operation.operands:
        for value in values_of(operand):
            operand_labels = dict.fromkeys(labels.get(value, ()))
            params |= operand_labels
            if has_weights and name != "bias":
                weights |= operand_labels
    return tuple(params), tuple(weights)


def _unit_axis(operation: Operation, value: Value, axes: Mapping[Value, int | None]) -> int | None:
    """Return the axis of channels or features of a tensor.

    The result is None for a tensor with fewer than two axes. The last product or convolution before
    the tensor creates the axis, and later operations may move the axis.

    Args:
        operation: the operation that computes the tensor.
        value: the tensor.
        axes: the axis of channels or features of each earlier tensor.
    """
    shape = value.type.shape
    rank = len(shape)
    if rank < 2:
        return None
    last_axis = rank - 1
    if "conv" in operation.kind:
        # The results of convolutions are [batch, channel, *positions].
        return 1
    rule = operation.rule or rules[operation.kind]
    # Products and convolutions have `work`. A resampling has it too, but keeps the channels.
    creates_channels = rule.work is not None and "resample" not in operation.kind
    sources = [operand for operand in operation.reads() if axes.get(operand) is not None]
    if not sources or creates_channels:
        return last_axis
    source = sources[0]
    axis = axes[source]
    assert axis is not None
    if operation.kind == "transpose":
        order: Any = dict(operation.attributes)["axes"]
        return order.index(axis) if axis < len(order) else axis
    source_shape = source.type.shape
    # If an operation keeps the number of axes, or the extent of the axis of units, this axis stays
    # where it is. After any other operation, such as a flattening, the last axis has the units.
    keeps_rank = rank == len(source_shape)
    keeps_extent = axis < rank and shape[axis] == source_shape[axis]
    return axis if keeps_rank or keeps_extent else last_axis


def real_layers(layers: Mapping[str, LayerTensor]) -> dict[str, LayerTensor]:
    """Return the layers whose tensors are floating-point.

    Raises InputError if there are no such layers.
    """
    real = {name: x for name, x in layers.items() if is_float(x.value.type.dtype)}
    if not real:
        message = "no tensor that is computed, or chosen, is of real numbers"
        raise InputError(message, hint="integers have no derivatives")
    return real


def chosen_params(params: Mapping[str, Array], labels: Iterable[str] | None) -> dict[str, Array]:
    """Return a dict from labels to floating-point parameters.

    If `labels` is None, the result has all floating-point parameters. If `labels` is a list of
    labels and patterns of `fnmatch`, the result has the parameters that they match. Raises
    TypeError for any other `labels`. Raises InputError for a label or pattern without a
    floating-point parameter, and if no parameter is floating-point.
    """
    real = {label: x for label, x in params.items() if jnp.issubdtype(x.dtype, jnp.floating)}
    if labels is not None:
        matching: set[str] = set()
        for pattern in names_of("labels", labels, "labels of parameters"):
            matching |= _matching_labels(pattern, real)
        real = {label: x for label, x in real.items() if label in matching}
    if not real:
        raise InputError("no parameter of the network, or of those chosen, is of real numbers")
    return real


def _matching_labels(pattern: str, labels: Collection[str]) -> set[str]:
    """Return the labels that equal or match a pattern. Raises InputError if there are none."""
    # Labels may contain characters such as "[" or "*". Used as a pattern, such a label may not
    # match itself. A label that equals the pattern is therefore accepted too.
    matching = {label for label in labels if label == pattern or fnmatchcase(label, pattern)}
    if not matching:
        hint = did_you_mean(pattern, labels) or "model.params has the labels"
        raise InputError(f"no real parameter has the label '{pattern}'", hint=hint)
    return matching


def require_gradients(
    model: Model, graph: Graph, layers: Mapping[str, LayerTensor], labels: Collection[str]
) -> None:
    """Raise InputError if the gradient at a layer or parameter is 0 because of rounding.

    `labels` are the labels of the parameters.
    """
    tensors = [layer.value for layer in layers.values()]
    tensors += [parameter.value for parameter in graph.parameters if parameter.label in labels]
    require_derivatives(model, graph, tensors)


def require_callable(name: str, value: object, expected: str) -> None:
    """Raise TypeError unless the value is a function. `name` and `expected` are for the message."""
    if not callable(value):
        raise TypeError(f"{name} must be {expected}, it is {shown(value)}")


def zeros_at(model: Model, inputs: Sequence[Array], names: Sequence[str]) -> dict[str, Array]:
    """Return a dict from names of tensors to zeros of their shapes and dtypes."""
    values = graph_for(model, inputs).values
    zeros: dict[str, Array] = {}
    for name in names:
        type = values[name].type
        zeros[name] = jnp.zeros([int(extent) for extent in type.shape], type.dtype)
    return zeros


def loss_of(
    model: Model, params: Arrays, inputs: Sequence[Array], loss: Loss, added: Arrays
) -> tuple[Array, dict[str, Any]]:
    """Run the model with arrays added to some tensors, and return the loss and these tensors.

    `added` maps names of tensors to the arrays that are added. The returned dict maps the same
    names to the tensors of this run.
    """

    def adding(array: Array) -> Callable[[Array], Array]:
        """Return a function that adds the array to a tensor."""
        return lambda tensor: tensor + array

    edits = {name: adding(array) for name, array in added.items()}
    outputs, captured = model.apply(params, *inputs, edit=edits, capture=list(added))
    return scalar(loss(outputs)), captured


def scalar(value: object) -> Array:
    """Convert a loss to at least 32 bits.

    Raises TypeError unless the loss is a single floating-point number.
    """
    array = array_from("loss", value)
    if array.shape != () or not jnp.issubdtype(array.dtype, jnp.floating):
        type = f"{array.dtype}{list(array.shape)}"
        raise TypeError(f"loss must return a single real number, it returns {type}")
    return array.astype(np.promote_types(array.dtype, np.float32))
