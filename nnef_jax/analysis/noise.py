"""Attribution over random copies of the input, and measures of the quality of attributions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from lowering import rounding
from lowering.extents import show
from lowering.graph import is_float
from nnef_jax.analysis.argument_checks import broadcast, require_count, require_key, require_real
from nnef_jax.analysis.attribution import (
    Attribution,
    array_of,
    attributed,
    require_lengths,
    sums,
    zeros,
)
from nnef_jax.analysis.captum_names import KEYWORDS, NT_TYPES
from nnef_jax.analysis.question import Question, QuestionOptions, ask
from nnef_jax.analysis.reference import several
from nnef_jax.calls.arguments import Input, has_values
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import require, require_keywords, shown
from nnef_jax.results import Result, Table, result, static, table_of

Method = Callable[..., Attribution]  # The function takes a model and the inputs of a call.
_KINDS = ("mean", "square", "variance")


def gradient_shap(
    model: Model,
    *inputs: Input,
    key: Array,
    baselines: ArrayLike,
    samples: int = 5,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Average gradients at random points between baselines and items (arXiv:1705.07874).

    Args:
        key: a key of `jax.random`.
        baselines: an array whose first axis counts baselines. For each sample of an item, a
            baseline is drawn at random.
        samples: the number of random points for each item.

    All other arguments, and the errors, are as in `saliency`.
    """
    require_key(key)
    require_count("samples", samples)
    question = ask("gradient_shap", model, inputs, options)
    return _gradient_shap(question, key, several("baselines", baselines), samples=samples)


@partial(jax.jit, static_argnames="samples")
def _gradient_shap(
    question: Question, key: Array, baselines: Array, *, samples: int
) -> Attribution:
    """Average gradient * (item - baseline) over random points between baselines and items."""
    x = question.value()
    question = question.with_classes(x)
    starts = lax.map(question.value_at_baseline, jnp.asarray(baselines))  # [baseline, batch, ...]
    items = jnp.arange(x.shape[0])

    def add_gradient(total: Array, sample_key: Array) -> tuple[Array, None]:
        """Add the gradient at a random point between a random baseline and each item."""
        baseline_key, share_key = jax.random.split(sample_key)
        # Each item gets a random baseline, and a random share of the line from the baseline.
        baseline_indices = jax.random.randint(
            baseline_key, items.shape, minval=0, maxval=len(starts)
        )
        x0 = starts[baseline_indices, items]
        shares = jax.random.uniform(share_key, items.shape, x.dtype)
        share_by_item = shares.reshape(-1, *[1] * (x.ndim - 1))  # [batch, 1, ...]
        change = x - x0
        _scores, gradient = question.gradient(x0 + share_by_item * change)
        return total + (gradient * change).astype(total.dtype), None

    total, _ = lax.scan(add_gradient, zeros(x), jax.random.split(key, samples))
    mean = total / samples
    scores = question.scores_at(x)
    return attributed(question, "gradient SHAP", mean, scores=scores, x=x)


def noise_tunnel(
    model: Model,
    method: Method,
    *inputs: Input,
    key: Array,
    noise: ArrayLike = 1.0,
    samples: int = 5,
    kind: str = "mean",
    **options: object,
) -> Attribution:
    """Average attributions over noisy copies of the input (Smilkov et al. 2017; Adebayo 2018).

    The mean of `saliency` is SmoothGrad.

    >>> nnef_jax.analysis.noise_tunnel(model, saliency, images, key=key, kind="variance")

    Args:
        method: an attribution function of `nnef_jax.analysis`.
        key: a key of `jax.random`.
        noise: the standard deviation of the normal noise, in units of the input: a number, or a
            number for each item. The default suits inputs of about 1. If noise is lost to rounding,
            there is a warning.
        samples: the number of copies of the batch.
        kind: "mean" of the attributions, "square" (the mean of their squares) or "variance".
        options: options of the method, such as `target`. If `wrt` is no input, noise is added
            to the first floating-point input. A method with a parameter `key` gets another key of
            `jax.random`, the same key for all copies.
    """
    if kind not in _KINDS:
        equivalent = NT_TYPES.get(str(kind))
        hint = f"it is kind={equivalent!r} here" if equivalent else ""
        raise InputError(f"kind {kind!r} is none of {', '.join(_KINDS)}", hint=hint)
    copies = _Copies("noise_tunnel", model, method, inputs, key, options)
    deviations = require_lengths(copies.question, "noise", noise)

    def normal_noise(copy_key: Array, x: Array) -> Array:
        # A number becomes an array [1, 1, ...]. An array [batch] becomes an array [batch, 1, ...].
        deviation_by_item = jnp.asarray(deviations, x.dtype).reshape(-1, *[1] * (x.ndim - 1))
        return deviation_by_item * jax.random.normal(copy_key, x.shape, x.dtype)

    values_of_copies = [copy.values for copy in copies.attributed(samples, normal_noise)]
    mean = sum(values_of_copies) / samples
    mean_square = sum(values * values for values in values_of_copies) / samples
    by_kind = {"mean": mean, "square": mean_square, "variance": mean_square - mean * mean}
    first = copies.first
    method_name = f"{kind} of noisy {first.method}"
    return replace(first, values=by_kind[kind], gap=None, method=method_name)


@result
class MaxSensitivity(Result):
    """The relative change of attributions near each item of a batch, from `max_sensitivity`.

    Args:
        values: the largest norm of a change of the attributions, divided by the norm of the
            attributions, [batch].
        method: the name of the attribution method.
        of: the name of the attributed tensor.
        output: the name of the tensor with the scores.
    """

    values: Array
    method: str = static()
    of: str = static()
    output: str = static()

    def table(self) -> Table:
        """Return a table with a row for each item."""
        title = f"largest change of {self.method} of {self.of} for {self.output}"
        return table_of(title, ["item", "share"], enumerate(np.asarray(self.values)))


def max_sensitivity(
    model: Model,
    method: Method,
    *inputs: Input,
    key: Array,
    radius: float = 0.02,
    samples: int = 10,
    **options: object,
) -> MaxSensitivity:
    """Compute the largest change of attributions near an item (Yeh et al. 2019, arXiv:1901.09392).

    The value of an item x is max |a(x + n) - a(x)| / |a(x)|. Here a(x) are the attributions of x,
    |.| is the L2 norm, and the maximum is over random copies x + n.

    >>> nnef_jax.analysis.max_sensitivity(model, saliency, images, key=key).values

    Args:
        method: an attribution function of `nnef_jax.analysis`.
        key: a key of `jax.random`.
        radius: the largest change of an entry; changes are uniformly distributed. The default suits
            inputs of about 1. If changes are lost to rounding, there is a warning.
        samples: the number of copies of the batch.
        options: options of the method, as in `noise_tunnel`.
    """
    radius = require_real("radius", radius)
    copies = _Copies("max_sensitivity", model, method, inputs, key, options)

    def uniform_noise(copy_key: Array, x: Array) -> Array:
        return jax.random.uniform(copy_key, x.shape, x.dtype, minval=-radius, maxval=radius)

    def norms(attributions: Array) -> Array:
        return jnp.sqrt(sums(attributions**2))

    first = copies.first
    changes: list[Array] = []
    for copy in copies.attributed(samples, uniform_noise):
        changes.append(norms(copy.values - first.values))
    largest = jnp.stack(changes).max(axis=0)
    # A largest change of 0 or NaN is not divided by the norm, because 0 / 0 would give NaN.
    values = jnp.where(largest > 0, largest / norms(first.values), largest)
    return MaxSensitivity(values=values, method=first.method, of=first.of, output=first.output)


@result
class Infidelity(Result):
    """The error of attributions as predictions of score changes, from `infidelity`.

    Args:
        values: the mean square of the error, [batch].
        of: the name of the attributed tensor.
        output: the name of the tensor with the scores.
    """

    values: Array
    of: str = static()
    output: str = static()

    def table(self) -> Table:
        """Return a table with a row for each item."""
        title = f"infidelity of attributions of {self.of} for {self.output}"
        return table_of(title, ["item", "infidelity"], enumerate(np.asarray(self.values)))


def infidelity(
    model: Model,
    *inputs: Input,
    values: ArrayLike | Attribution,
    key: Array,
    noise: float = 0.03,
    samples: int = 10,
    **options: Unpack[QuestionOptions],
) -> Infidelity:
    """Compute the error of attributions as predictions of score changes (arXiv:1901.09392).

    For noise n, the predicted fall of the score is sum(n * values), and the true fall is score(x) -
    score(x - n). The error of an item x is the mean of (predicted fall - true fall)^2 over random
    noise. Here n is the noise that remains after x - n is rounded to the dtype of x.

    >>> nnef_jax.analysis.infidelity(model, images, values=gradients, key=key).values

    Args:
        values: attributions that stand for the gradient: a number, or an array that broadcasts to
            the tensor. Attributions that are multiplied by the input must first be divided by it.
            If `values` is an `Attribution` of classes, it also gives the defaults of `wrt`,
            `target` and `output`.
        key: a key of `jax.random`.
        noise: the standard deviation of the normal noise, in units of the input. The default suits
            inputs of about 1. If noise is lost to rounding, there is a warning.
        samples: the number of copies of the batch.

    All other arguments, and the errors, are as in `saliency`.
    """
    require_key(key)
    require_count("samples", samples)
    noise = require_real("noise", noise)
    if isinstance(values, Attribution):
        options = _explained(values, options)
        values = values.values
    question = ask("infidelity", model, inputs, options)
    shape = question.graph.values[question.wrt].type.shape
    array = broadcast("values", array_of("values", values), question.wrt, shape)
    errors, lost = _infidelity(question, array, key, np.float32(noise), samples=samples)
    _warn_lost(question, lost)
    return Infidelity(values=errors, of=question.wrt, output=question.output or "outputs")


def _explained(attribution: Attribution, options: QuestionOptions) -> QuestionOptions:
    """Return `options`, completed by the `wrt`, `target` and `output` of an attribution.

    `options` are the options of the call, and take precedence over those of the attribution. Raises
    InputError if the attribution does not have a value for each entry of its tensor. Also raises
    InputError if the attribution explains a function of the outputs, and `options` have no such
    function as target.
    """
    if attribution.values.shape != attribution.x.shape:
        shapes = f"{show(attribution.values.shape)}, the tensor is {show(attribution.x.shape)}"
        message = f"values: {attribution.method} is {shapes}"
        raise InputError(message, hint="give a value for each entry")
    defaults: QuestionOptions = {"wrt": attribution.of}
    if attribution.classes is not None:
        defaults |= {"target": attribution.classes, "output": attribution.output}
    elif options.get("target") is None:
        raise InputError("values explain a function of the outputs", hint="give it as target")
    return {**defaults, **options}


@partial(jax.jit, static_argnames="samples")
def _infidelity(
    question: Question, values: Array, key: Array, noise: Array, *, samples: int
) -> tuple[Array, Array]:
    """Return the mean square of the error, [batch], and whether noise is lost, bool [samples].

    The noise of a copy is lost if rounding to the dtype of the input removes all of it.
    """
    x = question.value()
    question = question.with_classes(x)
    wide_x = x.astype(zeros(x).dtype)
    wide_dtype = wide_x.dtype
    scores = question.scores_at(x)

    def squared_error(sample_key: Array) -> tuple[Array, Array]:
        """Return the squared error of one copy, [batch], and whether its noise is lost."""
        normal = jax.random.normal(sample_key, x.shape, wide_dtype)
        drawn_noise = noise.astype(wide_dtype) * normal
        copy = rounding.rounded_to(wide_x - drawn_noise, x.dtype)
        change = wide_x - copy.astype(wide_dtype)
        fall = (scores - question.scores_at(copy)).astype(wide_dtype)
        predicted_fall = sums(change * values.astype(wide_dtype))
        is_lost = drawn_noise.any() & ~change.any()
        return (predicted_fall - fall) ** 2, is_lost

    squared_errors, lost = lax.map(squared_error, jax.random.split(key, samples))
    return squared_errors.mean(axis=0), lost


def _warn_lost(question: Question, lost: Array) -> None:
    """Warn if rounding removes all noise of a copy.

    `lost` is a mask of the copies from which all noise is removed. In a traced function there is no
    warning.
    """
    if has_values(lost) and np.asarray(lost).any():
        message = f"noise of '{question.wrt}' is lost to rounding: a copy did not move"
        warnings.warn(message, stacklevel=3)


class _Copies:
    """The attributions of noisy copies of an input.

    The attributions explain the scores of the classes that the input has without noise.
    """

    def __init__(
        self,
        function: str,
        model: Model,
        method: Method,
        inputs: tuple[Input, ...],
        key: Array,
        options: dict[str, object],
    ) -> None:
        _require_order(function, model, method)
        require_key(key)
        _require_options(function, method, options)
        if _needs_key(method):
            key, method_key = jax.random.split(key)
            options = {**options, "key": method_key}
        self._key = key
        self.first = method(model, *inputs, **options)
        require("the result of method", self.first, Attribution, "an Attribution")
        # The tensor `wrt` of the question is the input to which noise is added.
        names = QuestionOptions.__annotations__
        question_options = {name: options[name] for name in names if name in options}
        question_options["wrt"] = _noisy_input(model, options.get("wrt"))
        self.question: Question = ask("", model, inputs, question_options)
        assert self.question.input_position is not None
        self._inputs = self.question.inputs
        self._position = self.question.input_position
        if self.first.classes is not None:
            # Noise may change the class of an item. The copies explain the class without noise.
            options = {**options, "target": self.first.classes}
        self._attribute = partial(method, model, **options)

    def attributed(
        self, samples: int, noise_of: Callable[[Array, Array], Array]
    ) -> Iterator[Attribution]:
        """Yield the attribution of each of `samples` noisy copies of the input.

        `noise_of` is a function that returns the noise. Its arguments are a key of `jax.random` and
        the input.
        """
        count = require_count("samples", samples)
        x = jnp.asarray(self._inputs[self._position])
        wide_x = x.astype(zeros(x).dtype)
        for copy_key in jax.random.split(self._key, count):
            noise = noise_of(copy_key, wide_x)
            copy = (wide_x + noise).astype(x.dtype)
            is_lost = noise.any() & (copy == x).all()
            _warn_lost(self.question, is_lost)
            inputs = list(self._inputs)
            inputs[self._position] = copy
            yield self._attribute(*inputs)


def _require_options(function: str, method: Method, options: dict[str, object]) -> None:
    """Raise TypeError if an attribution method does not take one of the options.

    `function` is the name of the function that was called with the options.
    """
    parameters = signature(method).parameters
    takes_all_keywords = any(x.kind is x.VAR_KEYWORD for x in parameters.values())
    if not takes_all_keywords:
        require_keywords(function, options, parameters, KEYWORDS)


def _needs_key(method: Method) -> bool:
    """Tell whether an attribution method has an argument `key` without a default."""
    key = signature(method).parameters.get("key")
    return key is not None and key.default is key.empty


def _noisy_input(model: Model, wrt: object) -> object:
    """Return the name of the input to which noise is added.

    The name is `wrt` if an input has this name, and otherwise the name of the first floating-point
    input. Raises InputError if there is no floating-point input.
    """
    inputs = model.graph.inputs
    if wrt in [value.name for value in inputs]:
        return wrt
    for value in inputs:
        if is_float(value.type.dtype):
            return value.name
    raise InputError("no input is real", hint="noise is added to an input")


def _require_order(function: str, model: object, method: object) -> None:
    """Raise TypeError unless the first arguments of a call are a model and then a method."""
    is_method = callable(method) and not isinstance(method, Model)
    if not isinstance(model, Model) or not is_method:
        message = f"{function} takes a model, then an attribution function"
        call = f"{function}(model, saliency, ...)"
        raise TypeError(f"{message}: {call}, not {shown(model)} and {shown(method)}")
