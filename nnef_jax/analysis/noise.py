"""Attribution over random copies, and how much attributions are worth."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from lowering import rounding
from lowering.extents import show
from lowering.graph import is_float
from nnef_jax.analysis.attribution import Attribution, array_of, attributed, sizes_of, sums, zeros
from nnef_jax.analysis.captum_names import KEYWORDS, NT_TYPES
from nnef_jax.analysis.question import (
    Question,
    QuestionOptions,
    ask,
    broadcast,
    require_count,
    require_key,
    require_real,
)
from nnef_jax.analysis.reference import several
from nnef_jax.calls.arguments import Input, has_values
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import require, require_keywords, shown
from nnef_jax.results import Result, Table, result, static, table_of

Method = Callable[..., Attribution]  # of a model and the inputs of a call
_KINDS = ("mean", "square", "variance")
_ASKED = "target", "output", "wrt", "params"


def gradient_shap(
    model: Model,
    *inputs: Input,
    key: Array,
    baselines: ArrayLike,
    samples: int = 5,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Average gradients at random places between baselines and items (arXiv:1705.07874).

    Args:
        key: of `jax.random`.
        baselines: an array of baselines along its first axis: each sample of an item has one.
        samples: how many places are drawn for each item.

    The other arguments, and errors, are those of `saliency`.
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
    question = question.settled(x)
    starts = lax.map(question.start, jnp.asarray(baselines))
    items = jnp.arange(x.shape[0])

    def add(total: Array, key: Array) -> tuple[Array, None]:
        which, where = jax.random.split(key)
        x0 = starts[jax.random.randint(which, items.shape, 0, len(starts)), items]
        share = jax.random.uniform(where, items.shape, x.dtype)
        share = share.reshape(-1, *[1] * (x.ndim - 1))
        gradient = question.gradient(x0 + share * (x - x0))[1]
        return total + (gradient * (x - x0)).astype(total.dtype), None

    total, _ = lax.scan(add, zeros(x), jax.random.split(key, samples))
    return attributed(question, "gradient SHAP", total / samples, question.at(x), x)


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
    """Compute any attribution of noisy copies (Smilkov et al. 2017; Adebayo et al. 2018).

    The mean of `saliency` is SmoothGrad.

    >>> nnef_jax.analysis.noise_tunnel(model, saliency, images, key=key, kind="variance")

    Args:
        method: a function of this module that attributes; it gets the options.
        key: of `jax.random`.
        noise: the deviation of the normal noise, in units of the input: a number, or one for each
            item. The default suits inputs of about 1. Noise that rounding loses is a warning.
        samples: how many copies of the batch are computed.
        kind: "mean" of attributions, mean "square" or "variance".
        options: of the method, such as `target`. If `wrt` is a tensor inside, noise is added to the
            first real input. A method that takes a `key` gets one that is split off, the same for
            all copies.
    """
    if kind not in _KINDS:
        known = NT_TYPES.get(str(kind))
        hint = f"it is kind={known!r} here" if known else ""
        raise InputError(f"kind {kind!r} is none of {', '.join(_KINDS)}", hint=hint)
    copies = _Copies("noise_tunnel", model, method, inputs, key, options)
    deviation = sizes_of(copies.question, "noise", noise)

    def noisy(key: Array, x: Array) -> Array:
        each = jnp.asarray(deviation, x.dtype).reshape(-1, *[1] * (x.ndim - 1))
        return each * jax.random.normal(key, x.shape, x.dtype)

    drawn = [x.values for x in copies.drawn(samples, noisy)]
    mean, square = sum(drawn) / samples, sum(x * x for x in drawn) / samples
    values = {"mean": mean, "square": square, "variance": square - mean * mean}[kind]
    first = copies.first
    return replace(first, values=values, gap=None, method=f"{kind} of noisy {first.method}")


@result
class MaxSensitivity(Result):
    """How far attributions move near each item of a batch: see `max_sensitivity`.

    Args:
        values: the largest change of the attributions, as a share of their norm, [batch].
        method: the name of the function that attributes.
        of: the name of the tensor that the attributions are of.
        output: the name of the tensor that scores are of.
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
    """Compute how far attributions move near an item (Yeh et al. 2019, arXiv:1901.09392).

    It is the largest change of any copy, in the root of the sum of squares, as a share.

    >>> nnef_jax.analysis.max_sensitivity(model, saliency, images, key=key).values

    Args:
        method: a function of this module that attributes; it gets the options.
        key: of `jax.random`.
        radius: the largest change of an entry; changes are even. The default suits inputs of about
            1. Changes that rounding loses are a warning.
        samples: how many copies of the batch are computed.
        options: of the method, as those of `noise_tunnel`.
    """
    radius = require_real("radius", radius)
    copies = _Copies("max_sensitivity", model, method, inputs, key, options)

    def near(key: Array, x: Array) -> Array:
        return jax.random.uniform(key, x.shape, x.dtype, -radius, radius)

    first = copies.first
    moves = [x.values - first.values for x in copies.drawn(samples, near)]
    changes = jnp.stack([jnp.sqrt(sums(move**2)) for move in moves])
    largest, norm = changes.max(0), jnp.sqrt(sums(first.values**2))
    values = jnp.where(largest > 0, largest / norm, largest)  # 0 / 0 is 0, NaN stays
    return MaxSensitivity(values=values, method=first.method, of=first.of, output=first.output)


@result
class Infidelity(Result):
    """How badly attributions foretell changes of the score of each item: see `infidelity`.

    Args:
        values: the mean square of the error, [batch].
        of: the name of the tensor that the attributions are of.
        output: the name of the tensor that scores are of.
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
    """Compute how badly attributions foretell changes of a score (arXiv:1901.09392).

    It is the mean over noise n of (n . values - (score(x) - score(x - n)))^2, where n is what is
    left of the noise once x - n is rounded to the dtype of x.

    >>> nnef_jax.analysis.infidelity(model, images, values=gradients, key=key).values

    Args:
        values: attributions in the place of the gradient: a number, or an array that broadcasts to
            the tensor. Divide attributions times the input by the input. An `Attribution` of
            classes also sets `wrt`, `target` and `output` if they are left out.
        key: of `jax.random`.
        noise: the deviation of the normal noise, in units of the input. The default suits inputs of
            about 1. Noise that rounding loses is a warning.
        samples: how many copies of the batch are computed.

    The other arguments, and errors, are those of `saliency`.
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
    """Return the options of an attribution, replaced by the options of a call."""
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
    """Return the errors [batch], and whether rounding lost all noise of a copy [samples]."""
    x = question.value()
    question = question.settled(x)
    wide, scores = x.astype(zeros(x).dtype), question.at(x)

    def error(key: Array) -> tuple[Array, Array]:
        drawn = noise.astype(wide.dtype) * jax.random.normal(key, x.shape, wide.dtype)
        near = rounding.rounded_to(wide - drawn, x.dtype)
        change = wide - near.astype(wide.dtype)
        fall = (scores - question.at(near)).astype(wide.dtype)
        return (sums(change * values) - fall) ** 2, drawn.any() & ~change.any()

    errors, lost = lax.map(error, jax.random.split(key, samples))
    return errors.mean(0), lost


def _warn_lost(question: Question, lost: Array) -> None:
    """Warn if rounding lost all noise of a copy; in a traced function there is no warning."""
    if has_values(lost) and np.asarray(lost).any():
        message = f"noise of '{question.wrt}' is lost to rounding: a copy did not move"
        warnings.warn(message, stacklevel=3)


class _Copies:
    """Attributions of changed copies of an input, all of the classes of the input itself."""

    def __init__(
        self,
        function: str,
        model: Model,
        method: Method,
        inputs: tuple[Any, ...],
        key: Array,
        options: dict[str, Any],
    ) -> None:
        _require_order(function, model, method)
        require_key(key)
        parameters = signature(method).parameters
        if not any(x.kind is x.VAR_KEYWORD for x in parameters.values()):
            require_keywords(function, options, parameters, KEYWORDS)
        taken = parameters.get("key")
        if taken is not None and taken.default is taken.empty:
            key, of_method = jax.random.split(key)
            options = {**options, "key": of_method}
        self._key, self.first = key, method(model, *inputs, **options)
        require("the result of method", self.first, Attribution, "an Attribution")
        asked = {name: x for name, x in options.items() if name in _ASKED}
        names = [v.name for v in model.graph.inputs]
        real = [v.name for v in model.graph.inputs if is_float(v.type.dtype)]
        if asked.get("wrt") not in names:  # inside
            if not real:
                raise InputError("no input is real", hint="noise is added to an input")
            asked["wrt"] = real[0]
        self.question = question = ask("", model, inputs, asked)
        assert question.position is not None
        self._inputs, self._place = question.inputs, question.position
        classes = {} if self.first.classes is None else {"target": self.first.classes}
        self._attribute = partial(method, model, **{**options, **classes})

    def drawn(self, samples: int, change: Callable[[Array, Array], Array]) -> Iterator[Attribution]:
        """Yield the attributions of copies, with what a function of a key adds to each."""
        for each in jax.random.split(self._key, require_count("samples", samples)):
            inputs = list(self._inputs)
            x = jnp.asarray(inputs[self._place])
            wide = x.astype(zeros(x).dtype)
            noise = change(each, wide)
            inputs[self._place] = near = (wide + noise).astype(x.dtype)
            _warn_lost(self.question, noise.any() & (near == x).all())
            yield self._attribute(*inputs)


def _require_order(function: str, model: Any, method: Any) -> None:
    if not isinstance(model, Model) or isinstance(method, Model) or not callable(method):
        message = f"{function} takes a model, then a function that attributes"
        call = f"{function}(model, saliency, ...)"
        raise TypeError(f"{message}: {call}, not {shown(model)} and {shown(method)}")
