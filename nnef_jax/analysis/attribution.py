"""The result of attribution methods, and helper functions that the methods share."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from numpy.typing import DTypeLike, NDArray

from lowering.extents import show
from lowering.graph import is_float
from nnef_jax.analysis.argument_checks import require_real
from nnef_jax.analysis.question import Question
from nnef_jax.errors import InputError
from nnef_jax.options import numpy_of, shown
from nnef_jax.results import Axes, Result, Table, result, static, table_of


@result
class Attribution(Result):
    """The contribution of each entry of a tensor to a score, for each item of a batch.

    Args:
        values: the attributions, [batch, ...].
        scores: the explained scores, [batch].
        x: the tensor over which `plot` draws the values.
        classes: the class of each score, int32 [batch]; None if the target is a function.
        gap: the sum of an item's values, minus the score at the item, plus the score at the
            baseline, [batch].
            The gap is None for methods whose values do not add up to the change of the score. For a
            method that integrates along a line, the gap would be 0 with infinitely many steps.
        method: the name of the method.
        of: the name of the attributed tensor.
        output: the name of the tensor with the scores.
    """

    values: Array
    scores: Array
    x: Array
    classes: Array | None
    gap: Array | None = None
    method: str = static()
    of: str = static()
    output: str = static()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the values as a numpy array."""
        return np.array(self.values, dtype, copy=copy)

    def table(self) -> Table:
        """Return a table with a row for each item: class, score, sum and largest attribution."""
        values = np.asarray(self.values, np.float64)
        largest: list[float | None] = []
        positions: list[str] = []
        for item_values in values:
            if not item_values.size:
                # An empty item has no largest value.
                largest.append(None)
                positions.append(show([]))
                continue
            flat_index = np.abs(item_values).argmax()
            index = np.unravel_index(flat_index, item_values.shape)
            largest.append(item_values[index])
            positions.append(show([int(i) for i in index]))
        item_sums = [item_values.sum() for item_values in values]
        columns: dict[str, Any] = {"item": range(len(values))}
        if self.classes is not None:
            columns["class"] = self.classes
        columns |= {"score": self.scores, "sum": item_sums, "largest": largest, "at": positions}
        if self.gap is not None:
            columns["gap"] = self.gap
        title = f"{self.method} of {self.of} for {self.output}"
        return table_of(title, [*columns], zip(*columns.values(), strict=True))

    def plot(self, ax: Axes | None = None, *, items: int = 16) -> Axes:
        """Draw the attributions of the first items as heat maps over the tensor `x`.

        Positive values are red and negative values are blue, with a separate scale for each item.
        The values of all channels are added up. Return the axes of matplotlib.
        """
        from nnef_jax.analysis.tiles import heat_maps

        titles = [f"{score:.3g}" for score in np.asarray(self.scores[:items], np.float64)]
        if self.classes is not None:
            classes = np.asarray(self.classes[:items])
            titles = [f"{class_}: {text}" for class_, text in zip(classes, titles, strict=True)]
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
    """Return an `Attribution`, with the names and classes of a question.

    `of` is the name of the attributed tensor, by default the tensor `wrt` of the question. All
    other arguments are fields of the result.
    """
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


class Line(NamedTuple):
    """A line between two values of the tensor `wrt` of a question.

    Args:
        x: the value at the inputs.
        question: the question, with the classes at `x`.
        x0: the value at the baseline.
    """

    x: Array
    question: Question
    x0: Array


def line_from(question: Question, baseline: Array) -> Line:
    """Return the line from a baseline to the tensor `wrt` of a question."""
    x = question.value()
    return Line(x, question.with_classes(x), question.value_at_baseline(baseline))


METHODS = ("riemann_left", "riemann_middle", "riemann_right", "riemann_trapezoid", "gausslegendre")


def quadrature(method: str, steps: int, x: Array) -> tuple[Array, Array]:
    """Return the points and the weights of a quadrature rule on the interval from 0 to 1.

    The points have the dtype of the tensor `x`, and the weights have at least 32 bits.
    """
    weights = np.full(steps, 1 / steps)
    if method == "riemann_left":
        points = np.arange(steps) / steps
    elif method == "riemann_right":
        points = np.arange(1, steps + 1) / steps
    elif method == "riemann_trapezoid":
        points = np.linspace(0, 1, steps)
        intervals = max(1, steps - 1)
        weights = np.full(steps, 1 / intervals)
        weights[[0, -1]] /= 2  # Each end belongs to one interval, and other points to two.
    elif method == "gausslegendre":
        # numpy returns a rule for the interval from -1 to 1. The lines below convert the rule to
        # the interval from 0 to 1, which is half as long.
        points, weights = np.polynomial.legendre.leggauss(steps)
        points = (points + 1) / 2
        weights = weights / 2
    else:  # "riemann_middle"
        points = (np.arange(steps) + 0.5) / steps
    weight_dtype = zeros(x).dtype
    return jnp.asarray(points, x.dtype), jnp.asarray(weights, weight_dtype)


def require_method(method: object) -> None:
    """Raise InputError unless `method` is the name of a quadrature rule."""
    if method not in METHODS:
        raise InputError(f"method {shown(method)} is none of {', '.join(METHODS)}")


def zeros(x: Array) -> Array:
    """Return zeros in the shape of a tensor. The zeros have at least 32 bits.

    A sum that starts with these zeros loses little precision, even if its terms have 16 bits.
    """
    dtype = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    return jnp.zeros(x.shape, dtype)


def sums(values: Array) -> Array:
    """Return the sum of the entries of each item, [batch]."""
    return values.reshape(values.shape[0], -1).sum(1)


def array_of(name: str, value: object) -> Any:
    """Return the argument `name` as an array of numbers.

    Raises InputError if the argument is not numeric.
    """
    message = f"{name} must be a number or an array"
    array = value if isinstance(value, jax.Array) else numpy_of(value, InputError, message)
    is_integer = array.dtype.kind in "iu"
    if is_integer or is_float(str(array.dtype)):
        return array
    raise InputError(f"{message}, it is {shown(value)}")


def require_lengths(question: Question, name: str, value: object) -> Any:
    """Return an argument, after checking that it is a length, or an array of lengths [batch].

    `name` is the name of the argument in error messages. Raises InputError for an array of another
    shape, and ValueError for a length that is negative or infinite.
    """
    sizes = array_of(name, value)
    if sizes.shape not in ((), (question.batch,)):
        message = f"{name} is {show(sizes.shape)}, '{question.wrt}' has {question.batch} items"
        raise InputError(message, hint="give a number, or one for each item")
    if not isinstance(sizes, Tracer):
        # The initial value 0 is a valid length, so an empty array passes.
        numbers = np.asarray(sizes)
        require_real(name, float(np.min(numbers, initial=0)))
        require_real(name, float(np.max(numbers, initial=0)))
    return sizes
