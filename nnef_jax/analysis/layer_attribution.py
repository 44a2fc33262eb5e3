"""Attribution by layers: Grad-CAM, conductance, internal influence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax import Array, lax
from numpy.typing import ArrayLike

from lowering.extents import show
from lowering.graph import is_float
from nnef_jax.analysis.argument_checks import require_count
from nnef_jax.analysis.attribution import (
    Attribution,
    array_of,
    attributed,
    line_from,
    quadrature,
    sums,
    zeros,
)
from nnef_jax.analysis.question import Question, QuestionOptions, ask, tensor_named
from nnef_jax.calls.arguments import Input
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import require, require_flags


def grad_cam(
    model: Model,
    *inputs: Input,
    layer: str,
    upsample: bool = True,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Compute Grad-CAM of a layer's maps (Selvaraju et al. 2017, arXiv:1610.02391).

    Each channel of the layer has a map. The gradient of the score at a map has an entry for each
    position. The mean of these entries is the weight of the channel. The values are
    relu(sum over channels of weight * map), an array [batch, *positions].

    >>> nnef_jax.analysis.grad_cam(model, images, layer="relu2", target=3).plot()

    Args:
        layer: the name of the tensor with the maps, [batch, channel, *positions].
        upsample: whether the values are resized linearly to the positions of the tensor `wrt`.

    All other arguments, and the errors, are as in `saliency`.
    """
    require_flags(upsample=upsample)
    question = ask("grad_cam", model, inputs, options)
    _require_layer(question, layer)
    values = question.graph.values
    layer_shape = values[layer].type.shape
    wrt_shape = values[question.wrt].type.shape
    if len(layer_shape) < 3:
        message = f"layer: '{layer}' is {show(layer_shape)}"
        raise InputError(message, hint="name a tensor [batch, channel, *positions]")
    if upsample and len(wrt_shape) != len(layer_shape):
        message = f"'{layer}' is {show(layer_shape)}, it cannot be resized to '{question.wrt}'"
        hint = "upsample=False leaves its positions"
        raise InputError(f"{message}, {show(wrt_shape)}", hint=hint)
    return _grad_cam(question, layer=layer, upsample=upsample)


@partial(jax.jit, static_argnames=("layer", "upsample"))
def _grad_cam(question: Question, *, layer: str, upsample: bool) -> Attribution:
    """Return relu(sum over channels of weight * map). A weight is the mean gradient at a map."""
    x = question.value()
    question = question.with_classes(x)
    # The maps and their gradient are [batch, channel, *positions].
    scores, maps, gradient = question.layer_gradient(x, layer)
    position_axes = tuple(range(2, maps.ndim))
    weights = gradient.mean(axis=position_axes, keepdims=True)
    values = jax.nn.relu((weights * maps).sum(axis=1))
    if upsample:
        batch = values.shape[0]
        positions_of_x = x.shape[2:]
        values = jax.image.resize(values, (batch, *positions_of_x), "linear")
    return attributed(question, "Grad-CAM", values, scores=scores, x=x, of=layer)


def layer_conductance(
    model: Model,
    *inputs: Input,
    layer: str,
    baseline: ArrayLike = 0.0,
    steps: int = 50,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Compute the conductance of each unit of a layer (Dhamdhere et al. 2018, arXiv:1805.12233).

    The conductance of a unit is the part of the integrated gradients that flows through the unit.
    If all paths to the score pass through the layer, the values of an item add up to its score
    minus the score of the baseline, plus `gap`. The gap is the error of the quadrature.

    Args:
        layer: the name of a tensor inside the network.
        baseline: the start of the line, as in `integrated_gradients`.
        steps: the number of gradients at the layer. Each gradient is computed in the middle of a
            step.

    All other arguments, and the errors, are as in `saliency`.
    """
    require_count("steps", steps)
    question = ask("layer_conductance", model, inputs, options)
    _require_layer(question, layer)
    return _layer_conductance(question, array_of("baseline", baseline), layer=layer, steps=steps)


@partial(jax.jit, static_argnames=("layer", "steps"))
def _layer_conductance(
    question: Question, baseline: Array, *, layer: str, steps: int
) -> Attribution:
    """Add up the conductances of the steps on the line from the baseline.

    The conductance of a step is the gradient at the layer, in the middle of the step, times the
    change of the layer from the start of the step to its end.
    """
    x, question, x0 = line_from(question, baseline)

    def point_at(share: Array) -> Array:
        return x0 + share * (x - x0)

    def layer_at(share: Array) -> Array:
        _outputs, captured = question.run(point_at(share), capture=[layer])
        return captured[layer]

    def add_step(state: tuple[Array, Array], share: Array) -> tuple[tuple[Array, Array], None]:
        """Add the conductance of a step. The middle of the step is at `share`, from 0 to 1."""
        total, layer_before = state
        half_step = jnp.asarray(0.5 / steps, x.dtype)
        gradient = question.layer_gradient(point_at(share), layer).gradient
        layer_after = layer_at(share + half_step)
        conductance = gradient * (layer_after - layer_before)
        return (total + conductance.astype(total.dtype), layer_after), None

    first_layer = layer_at(jnp.zeros((), x.dtype))
    shares, _weights = quadrature("riemann_middle", steps, x)
    initial_state = (zeros(first_layer), first_layer)
    (values, last_layer), _ = lax.scan(add_step, initial_state, shares)
    scores = question.scores_at(x)
    score_change = scores - question.scores_at(x0)
    gap = sums(values) - score_change.astype(values.dtype)
    return attributed(
        question, "conductance", values, scores=scores, x=last_layer, gap=gap, of=layer
    )


def internal_influence(
    model: Model,
    *inputs: Input,
    layer: str,
    baseline: ArrayLike = 0.0,
    steps: int = 50,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Average a layer's gradients along a line from a baseline (Leino 2018, arXiv:1802.03788).

    Args:
        layer: the name of a tensor inside the network.
        baseline: the start of the line, as in `integrated_gradients`.
        steps: the number of gradients at the layer. Each gradient is computed in the middle of a
            step.

    All other arguments, and the errors, are as in `saliency`.
    """
    require_count("steps", steps)
    question = ask("internal_influence", model, inputs, options)
    _require_layer(question, layer)
    baseline = array_of("baseline", baseline)
    return _internal_influence(question, baseline, layer=layer, steps=steps)


@partial(jax.jit, static_argnames=("layer", "steps"))
def _internal_influence(
    question: Question, baseline: Array, *, layer: str, steps: int
) -> Attribution:
    """Average the gradients at a layer along the line from the baseline."""
    x, question, x0 = line_from(question, baseline)

    def gradient_at(point: Array) -> Array:
        return question.layer_gradient(point, layer).gradient

    _outputs, captured = question.run(x, capture=[layer])
    tensor = captured[layer]
    mean = _mean_along_line(gradient_at, x0, x, zeros(tensor), steps)
    scores = question.scores_at(x)
    return attributed(question, "internal influence", mean, scores=scores, x=tensor, of=layer)


def neuron_conductance(
    model: Model,
    *inputs: Input,
    neuron: tuple[str, *tuple[int, ...]],
    baseline: ArrayLike = 0.0,
    steps: int = 50,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Compute the part of integrated gradients that flows through one unit (arXiv:1805.12233).

    The unit is an entry of a tensor inside the network. The result has a value for each entry of
    the tensor `wrt`.

    >>> nnef_jax.analysis.neuron_conductance(model, images, neuron=("relu2", 5, 2, 2))

    Args:
        neuron: the name of a tensor inside the network, followed by the indices of the unit in an
            item of this tensor.
        baseline: the start of the line, as in `integrated_gradients`.
        steps: the number of gradients. Each gradient is computed in the middle of a step.

    All other arguments, and the errors, are as in `saliency`.
    """
    require_count("steps", steps)
    require("neuron", neuron, tuple, "a name of a tensor and indices")
    # For an empty tuple, `layer` stays "". `_require_layer` then raises an error.
    layer: Any = ""
    unit: tuple[Any, ...] = ()
    if neuron:
        layer, *indices = neuron
        unit = tuple(indices)
    question = ask("neuron_conductance", model, inputs, options)
    _require_layer(question, layer)
    extents = [int(extent) for extent in question.graph.values[layer].type.shape[1:]]
    if not _is_unit(unit, extents):
        raise InputError(f"neuron: {unit} is no unit of '{layer}', whose items are {show(extents)}")
    baseline = array_of("baseline", baseline)
    return _neuron_conductance(question, baseline, layer=layer, unit=unit, steps=steps)


def _is_unit(unit: tuple[Any, ...], extents: Sequence[int]) -> bool:
    """Tell whether a tuple has an index for each axis, an integer from 0 to extent - 1."""
    if len(unit) != len(extents):
        return False
    for index, extent in zip(unit, extents, strict=True):
        is_index = isinstance(index, int) and 0 <= index < extent
        if not is_index:
            return False
    return True


@partial(jax.jit, static_argnames=("layer", "unit", "steps"))
def _neuron_conductance(
    question: Question, baseline: Array, *, layer: str, unit: tuple[int, ...], steps: int
) -> Attribution:
    """Integrate gradients at the tensor `wrt`. Only gradients through one unit are included."""
    x, question, x0 = line_from(question, baseline)

    def conductance_at(point: Array) -> Array:
        """Return the gradient at `wrt` that flows through the unit, times the change of `wrt`.

        The gradient is (derivative of the score by the unit) * (gradient of the unit at `wrt`).
        """

        def sum_of_unit(point: Array) -> Array:
            _outputs, captured = question.run(point, capture=[layer])
            return captured[layer][:, *unit].sum()

        layer_gradient = question.layer_gradient(point, layer).gradient
        derivative = layer_gradient[:, *unit]  # [batch]
        derivative_by_item = derivative.reshape(-1, *[1] * (x.ndim - 1))  # [batch, 1, ...]
        return derivative_by_item * jax.grad(sum_of_unit)(point) * (x - x0)

    mean = _mean_along_line(conductance_at, x0, x, zeros(x), steps)
    method = f"conductance by {layer}{list(unit)}"
    return attributed(question, method, mean, scores=question.scores_at(x), x=x)


def _mean_along_line(
    function: Callable[[Array], Array], x0: Array, x: Array, zero: Array, steps: int
) -> Array:
    """Return the mean of a function along the line from `x0` to `x`.

    The line has `steps` steps, and the function is computed in the middle of each step. `zero` is
    an array of zeros with the shape and dtype of the mean.
    """

    def add_value(total: Array, share: Array) -> tuple[Array, None]:
        value = function(x0 + share * (x - x0))
        return total + value.astype(total.dtype), None

    shares, _weights = quadrature("riemann_middle", steps, x)
    total, _ = lax.scan(add_value, zero, shares)
    return total / steps


def _require_layer(question: Question, layer: str) -> None:
    """Raise InputError unless `layer` names a floating-point tensor with axes."""
    value = tensor_named(question.graph, "layer", layer)
    if not is_float(value.type.dtype) or not value.type.shape:
        raise InputError(f"layer: '{layer}' is {value.type}", hint="name a real tensor with axes")
