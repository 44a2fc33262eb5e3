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
from nnef_jax.analysis.attribution import Attribution, array_of, attributed, sizes_of, sums, zeros
from nnef_jax.analysis.captum_names import KEYWORDS, NT_TYPES
from nnef_jax.analysis.question import Question, QuestionOptions, ask
from nnef_jax.analysis.reference import several
from nnef_jax.calls.arguments import Input, has_values
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import require, require_keywords, shown
from nnef_jax.results import Result, Table, result, static, table_of

Method = Callable[..., Attribution]  # a function from a model and the inputs of a call
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

    The other arguments, and the errors, are those of `saliency`.
    """
    require_key(key)
    require_count("samples", samples)
    question = ask("gradient_shap", model, inputs, options)
    return _gradient_shap(question, key, several("baselines", baselines), samples=samples)


@partial(jax.jit, static_argnames="samples")
def _gradient_shap(
    question: Question, key: Array, baselines: Array, *, samples: int
) -> Attribution:
    x = question.value()
    question = question.with_classes(x)
    starts = lax.map(question.start, jnp.asarray(baselines))
    items = jnp.arange(x.shape[0])

    def add_gradient(total: Array, key: Array) -> tuple[Array, None]:
        for_start, for_share = jax.random.split(key)
        x0 = starts[jax.random.randint(for_start, items.shape, 0, len(starts)), items]
        share = jax.random.uniform(for_share, items.shape, x.dtype)
        share = share.reshape(-1, *[1] * (x.ndim - 1))
        gradient = question.gradient(x0 + share * (x - x0))[1]
        return total + (gradient * (x - x0)).astype(total.dtype), None

    total, _ = lax.scan(add_gradient, zeros(x), jax.random.split(key, samples))
    return attributed(question, "gradient SHAP", total / samples, question.scores_at(x), x)


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
        options: options of the method, such as `target`. If `wrt` is a tensor inside, noise is
            added to the first floating-point input. A method with a parameter `key` gets another
            key of `jax.random`, which is equal for all copies.
    """
    if kind not in _KINDS:
        here = NT_TYPES.get(str(kind))
        hint = f"it is kind={here!r} here" if here else ""
        raise InputError(f"kind {kind!r} is none of {', '.join(_KINDS)}", hint=hint)
    copies = _Copies("noise_tunnel", model, method, inputs, key, options)
    deviation = sizes_of(copies.question, "noise", noise)

    def normal(key: Array, x: Array) -> Array:
        by_item = jnp.asarray(deviation, x.dtype).reshape(-1, *[1] * (x.ndim - 1))
        return by_item * jax.random.normal(key, x.shape, x.dtype)

    attributions = [x.values for x in copies.attributed(samples, normal)]
    mean = sum(attributions) / samples
    square = sum(x * x for x in attributions) / samples
    values = {"mean": mean, "square": square, "variance": square - mean * mean}[kind]
    first = copies.first
    return replace(first, values=values, gap=None, method=f"{kind} of noisy {first.method}")


@result
class MaxSensitivity(Result):
    """The relative change of attributions near each item of a batch, from `max_sensitivity`.

    Args:
        values: the largest norm of a change, divided by the norm of the attributions, [batch].
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

    def uniform(key: Array, x: Array) -> Array:
        return jax.random.uniform(key, x.shape, x.dtype, -radius, radius)

    first = copies.first
    moves = [x.values - first.values for x in copies.attributed(samples, uniform)]
    changes = jnp.stack([jnp.sqrt(sums(move**2)) for move in moves])
    largest = changes.max(0)
    norm = jnp.sqrt(sums(first.values**2))
    values = jnp.where(largest > 0, largest / norm, largest)  # 0 / 0 becomes 0, and NaN stays.
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

    The error of an item x is the mean of (n . values - (score(x) - score(x - n)))^2 over random
    noise n. For the computation, n is the change that remains after x - n is rounded to the dtype
    of x.

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

    The other arguments, and the errors, are those of `saliency`.
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


def _explained(values: Attribution, options: QuestionOptions) -> QuestionOptions:
    """Return `wrt`, `target` and `output` of an attribution, updated by the options of the call."""
    if values.values.shape != values.x.shape:
        shapes = f"{show(values.values.shape)}, the tensor is {show(values.x.shape)}"
        raise InputError(f"values: {values.method} is {shapes}", hint="give a value for each entry")
    if values.classes is not None:
        return {"wrt": values.of, "target": values.classes, "output": values.output, **options}
    if options.get("target") is None:
        raise InputError("values explain a function of the outputs", hint="give it as target")
    return {"wrt": values.of, **options}


@partial(jax.jit, static_argnames="samples")
def _infidelity(
    question: Question, values: Array, key: Array, noise: Array, *, samples: int
) -> tuple[Array, Array]:
    """Return the errors [batch], and for each copy whether its noise is lost, bool [samples]."""
    x = question.value()
    question = question.with_classes(x)
    wide = x.astype(zeros(x).dtype)
    scores = question.scores_at(x)

    def error(key: Array) -> tuple[Array, Array]:
        drawn = noise.astype(wide.dtype) * jax.random.normal(key, x.shape, wide.dtype)
        copy = rounding.rounded_to(wide - drawn, x.dtype)
        change = wide - copy.astype(wide.dtype)
        fall = (scores - question.scores_at(copy)).astype(wide.dtype)
        predicted_fall = sums(change * values.astype(wide.dtype))
        return (predicted_fall - fall) ** 2, drawn.any() & ~change.any()

    errors, lost = lax.map(error, jax.random.split(key, samples))
    return errors.mean(0), lost


def _warn_lost(question: Question, lost: Array) -> None:
    """Warn if rounding removes all noise of one of the copies, as the mask `lost` tells.

    In a traced function there is no warning.
    """
    if has_values(lost) and np.asarray(lost).any():
        message = f"noise of '{question.wrt}' is lost to rounding: a copy did not move"
        warnings.warn(message, stacklevel=3)


class _Copies:
    """The attributions of noisy copies of an input, for the classes of the input without noise."""

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
        parameters = signature(method).parameters
        takes_all_keywords = any(x.kind is x.VAR_KEYWORD for x in parameters.values())
        if not takes_all_keywords:
            require_keywords(function, options, parameters, KEYWORDS)
        key_parameter = parameters.get("key")
        if key_parameter is not None and key_parameter.default is key_parameter.empty:
            key, for_method = jax.random.split(key)
            options = {**options, "key": for_method}
        self._key = key
        self.first = method(model, *inputs, **options)
        require("the result of method", self.first, Attribution, "an Attribution")
        keywords = {x: options[x] for x in QuestionOptions.__annotations__ if x in options}
        names = [value.name for value in model.graph.inputs]
        real = [value.name for value in model.graph.inputs if is_float(value.type.dtype)]
        if keywords.get("wrt") not in names:  # It is a tensor inside, or the default.
            if not real:
                raise InputError("no input is real", hint="noise is added to an input")
            keywords["wrt"] = real[0]
        self.question: Question = ask("", model, inputs, keywords)
        assert self.question.position is not None
        self._inputs = self.question.inputs
        self._position = self.question.position
        if self.first.classes is not None:
            options = {**options, "target": self.first.classes}
        self._attribute = partial(method, model, **options)

    def attributed(
        self, samples: int, noise_of: Callable[[Array, Array], Array]
    ) -> Iterator[Attribution]:
        """Yield the attribution of each of `samples` noisy copies of the input.

        `noise_of` is a function from a key of `jax.random` and the input to the noise.
        """
        for key in jax.random.split(self._key, require_count("samples", samples)):
            inputs = list(self._inputs)
            x = jnp.asarray(inputs[self._position])
            wide = x.astype(zeros(x).dtype)
            noise = noise_of(key, wide)
            copy = (wide + noise).astype(x.dtype)
            inputs[self._position] = copy
            _warn_lost(self.question, noise.any() & (copy == x).all())
            yield self._attribute(*inputs)


def _require_order(function: str, model: object, method: object) -> None:
    is_method = callable(method) and not isinstance(method, Model)
    if not isinstance(model, Model) or not is_method:
        message = f"{function} takes a model, then an attribution function"
        call = f"{function}(model, saliency, ...)"
        raise TypeError(f"{message}: {call}, not {shown(model)} and {shown(method)}")
