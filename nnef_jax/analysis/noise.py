"""Attribution over random copies, and how much attributions are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from nnef_jax.analysis.attribution import Attribution, array_of, attributed, sizes_of, sums, zeros
from nnef_jax.analysis.question import (
    Question,
    QuestionOptions,
    ask,
    require_count,
    require_key,
    require_real,
)
from nnef_jax.analysis.reference import several
from nnef_jax.call_arguments import Input
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import shown

Method = Callable[..., Attribution]
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
    method: Method,
    model: Model,
    *inputs: Input,
    key: Array,
    noise: ArrayLike = 1.0,
    samples: int = 5,
    kind: str = "mean",
    **options: Any,
) -> Attribution:
    """Compute any attribution of noisy copies (Smilkov et al. 2017; Adebayo et al. 2018).

    The mean of `saliency` is SmoothGrad.

    >>> nnef_jax.analysis.noise_tunnel(saliency, model, images, key=key, kind="variance")

    Args:
        method: a function of this module that attributes; it gets the options.
        key: of `jax.random`.
        noise: the deviation of the normal noise, in units of the input: a number, or one for each
            item.
        samples: how many copies of the batch are computed.
        kind: "mean" of attributions, mean "square" or "variance".
        options: of the method, such as `target`.
    """
    if kind not in _KINDS:
        raise InputError(f"kind {kind!r} is none of {', '.join(_KINDS)}")
    copies = _Copies(method, model, inputs, options)
    deviation = sizes_of(copies.question, "noise", noise)

    def noisy(key: Array, x: Array) -> Array:
        each = jnp.asarray(deviation, x.dtype).reshape(-1, *[1] * (x.ndim - 1))
        return each * jax.random.normal(key, x.shape, x.dtype)

    found = [x.values for x in copies.drawn(key, samples, noisy)]
    mean, square = sum(found) / samples, sum(x * x for x in found) / samples
    values = {"mean": mean, "square": square, "variance": square - mean * mean}[kind]
    first = copies.first
    return replace(first, values=values, gap=None, method=f"{kind} of noisy {first.method}")


def max_sensitivity(
    method: Method,
    model: Model,
    *inputs: Input,
    key: Array,
    radius: float = 0.02,
    samples: int = 10,
    **options: Any,
) -> Array:
    """Compute how far attributions move near an item (Yeh et al. 2019, arXiv:1901.09392), [batch].

    It is the largest change of any copy, in the root of the sum of squares, as a share.

    Args:
        method: a function of this module that attributes; it gets the options.
        key: of `jax.random`.
        radius: the largest change of an entry; changes are even.
        samples: how many copies of the batch are computed.
        options: of the method, such as `target`.
    """
    radius = require_real("radius", radius)
    copies = _Copies(method, model, inputs, options)

    def near(key: Array, x: Array) -> Array:
        return jax.random.uniform(key, x.shape, x.dtype, -radius, radius)

    own = copies.first.values
    moved = [jnp.sqrt(sums((x.values - own) ** 2)) for x in copies.drawn(key, samples, near)]
    return jnp.stack(moved).max(0) / jnp.sqrt(sums(own**2))


def infidelity(
    model: Model,
    *inputs: Input,
    values: ArrayLike,
    key: Array,
    noise: float = 0.03,
    samples: int = 10,
    **options: Unpack[QuestionOptions],
) -> Array:
    """Compute how badly attributions foretell changes of a score (arXiv:1901.09392), [batch].

    It is the mean square of what noise changes less what the values say, by their product with it.

    Args:
        values: attributions that stand for the gradient: of those times the input, divide by it.
        key: of `jax.random`.
        noise: the deviation of the normal noise, in units of the input.
        samples: how many copies of the batch are computed.

    The other arguments, and errors, are those of `saliency`.
    """
    require_key(key)
    require_count("samples", samples)
    noise = require_real("noise", noise)
    question = ask("infidelity", model, inputs, options)
    shape = tuple(int(n) for n in question.graph.values[question.wrt].type.shape)
    given = array_of("values", values)
    if given.shape != shape:
        raise InputError(f"values are {given.shape}, '{question.wrt}' is {shape}")
    return _infidelity(question, given, key, np.float32(noise), samples=samples)


@partial(jax.jit, static_argnames="samples")
def _infidelity(
    question: Question, values: Array, key: Array, noise: Array, *, samples: int
) -> Array:
    x = question.value()
    question = question.settled(x)
    scores = question.at(x)

    def error(key: Array) -> Array:
        change = noise.astype(x.dtype) * jax.random.normal(key, x.shape, x.dtype)
        return (sums(change * values) - (scores - question.at(x - change))) ** 2

    return lax.map(error, jax.random.split(key, samples)).mean(0)


class _Copies:
    """Attributions of changed copies of an input, all of the classes of the input itself."""

    def __init__(
        self, method: Method, model: Model, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        if not callable(method):
            raise TypeError(f"method must be a function that attributes, it is {shown(method)}")
        self.first = method(model, *inputs, **options)
        asked = {name: x for name, x in options.items() if name in _ASKED}
        self.question = question = ask("", model, inputs, asked)
        if question.position is None:
            raise InputError(
                f"wrt: '{question.wrt}' is no input", hint="noise is added to an input"
            )
        self._inputs, self._place = question.inputs, question.position
        classes = {} if self.first.classes is None else {"target": self.first.classes}
        self._attribute = partial(method, model, **{**options, **classes})

    def drawn(
        self, key: Array, samples: int, change: Callable[[Array, Array], Array]
    ) -> Iterator[Attribution]:
        """Yield the attributions of copies, with what a function of a key adds to each."""
        require_key(key)
        for each in jax.random.split(key, require_count("samples", samples)):
            inputs = list(self._inputs)
            x = jnp.asarray(inputs[self._place])
            inputs[self._place] = x + change(each, x)
            yield self._attribute(*inputs)
