"""Attributions: what each entry of a tensor adds to a score. Methods are in modules beside."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from lowering.extents import show
from lowering.graph import is_float
from nnef_jax.analysis.question import Question, require_real
from nnef_jax.errors import InputError
from nnef_jax.options import numpy_of, shown
from nnef_jax.results import Axes, Result, Table, result, static, table_of


@result
class Attribution(Result):
    """What each entry of a tensor adds to a score, for each item of a batch.

    Args:
        values: the attributions; the first axis is the batch.
        scores: what is explained, [batch].
        x: the tensor that the values lie on, for pictures.
        classes: which class the score is of, int32 [batch]; None where a function says the score.
        gap: by how much the values of an item miss the change of its score, [batch], for methods
            whose values add up to that: 0 for a path of infinitely many steps.
        method: the name of the function that computed them.
        of: the name of the tensor that the values are of.
        output: the name of the tensor that scores are of.
    """

    values: Array
    scores: Array
    x: Array
    classes: Array | None
    gap: Array | None = None
    method: str = static()
    of: str = static()
    output: str = static()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the values as an array of numpy."""
        return np.array(self.values, dtype, copy=copy)

    def table(self) -> Table:
        """Return a table with a row for each item: class, score, sum and largest attribution."""
        values = np.asarray(self.values, np.float64)
        rows: list[tuple[Any, ...]] = []
        for item, each in enumerate(values):
            at = np.unravel_index(np.abs(each).argmax(), each.shape) if each.size else ()
            row = [item, self.classes[item]] if self.classes is not None else [item]
            row += [self.scores[item], each.sum(), each[at] if each.size else None]
            row += [show([int(i) for i in at]), *([] if self.gap is None else [self.gap[item]])]
            rows.append(tuple(row))
        heads = ["item", *(["class"] if self.classes is not None else []), "score", "sum"]
        heads += ["largest", "at", *(["gap"] if self.gap is not None else [])]
        return table_of(f"{self.method} of {self.of} for {self.output}", heads, rows)

    def plot(self, ax: Axes | None = None, *, items: int = 16) -> Axes:
        """Draw the attributions of the first items over these, each in a scale of its own.

        Red is what speaks for the score, blue what speaks against it. Channels are added up.
        Returns the axes of matplotlib.
        """
        from nnef_jax.analysis.tiles import heat_maps

        titles = [f"{s:.3g}" for s in np.asarray(self.scores[:items], np.float64)]
        if self.classes is not None:
            titles = [f"{c}: {s}" for c, s in zip(np.asarray(self.classes), titles, strict=False)]
        return heat_maps(ax, self.values[:items], self.x[:items], titles)


def attributed(
    question: Question,
    method: str,
    values: Array,
    scores: Array,
    x: Array,
    gap: Array | None = None,
    of: str | None = None,
) -> Attribution:
    """Return the attribution that answers a question; values are `of` the tensor that explains."""
    return Attribution(
        values=values,
        scores=scores,
        x=x,
        classes=question.classes,
        gap=gap,
        method=method,
        of=of or question.wrt,
        output=question.output or "outputs",
    )


def line_from(question: Question, baseline: Array) -> tuple[Array, Question, Array]:
    """Return the tensor, the question with its classes, and the tensor at the baseline."""
    x = question.value()
    return x, question.settled(x), question.start(baseline)


METHODS = ("riemann_left", "riemann_middle", "riemann_right", "riemann_trapezoid", "gausslegendre")


def places(method: str, steps: int, x: Array) -> tuple[Array, Array]:
    """Return the places of steps along a line from 0 to 1, and the weights of each in their sum."""
    points, weights = (np.arange(steps) + 0.5) / steps, np.full(steps, 1 / steps)
    if method == "riemann_left":
        points = np.arange(steps) / steps
    elif method == "riemann_right":
        points = np.arange(1, steps + 1) / steps
    elif method == "riemann_trapezoid":
        points, weights = np.linspace(0, 1, steps), np.full(steps, 1 / max(1, steps - 1))
        weights[[0, -1]] /= 2
    elif method == "gausslegendre":
        points, weights = np.polynomial.legendre.leggauss(steps)
        points, weights = (points + 1) / 2, weights / 2
    return jnp.asarray(points, x.dtype), jnp.asarray(weights, zeros(x).dtype)


def require_method(method: Any) -> None:
    """Raise InputError unless `method` names a way to place steps."""
    if method not in METHODS:
        raise InputError(f"method {shown(method)} is none of {', '.join(METHODS)}")


def zeros(x: Array) -> Array:
    """Return zeros to add to in 32 bits at least."""
    return jnp.zeros(x.shape, jnp.float64 if x.dtype == jnp.float64 else jnp.float32)


def sums(values: Array) -> Array:
    """Return the sum of each item."""
    return values.reshape(values.shape[0], -1).sum(1)


def array_of(name: str, value: Any) -> Any:
    """Return an argument that is a real number or an array; raise InputError for others."""
    message = f"{name} must be a number or an array"
    array = value if isinstance(value, jax.Array) else numpy_of(value, InputError, message)
    if not (is_float(str(array.dtype)) or array.dtype.kind in "iu"):
        raise InputError(f"{message}, it is {shown(value)}")
    return array


def sizes_of(question: Question, name: str, value: Any) -> Any:
    """Return a length, or one for each item."""
    sizes = array_of(name, value)
    if sizes.shape not in ((), (question.batch,)):
        message = f"{name} is {show(sizes.shape)}, '{question.wrt}' has {question.batch} items"
        raise InputError(message, hint="give a number, or one for each item")
    if not isinstance(sizes, Tracer):
        for extreme in (np.min, np.max):
            require_real(name, float(extreme(np.asarray(sizes), initial=0)))
    return sizes
