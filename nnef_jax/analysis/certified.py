"""Certified bounds: intervals that contain the scores of all inputs near an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from lowering import described, jaxpr_evaluation, jaxprs
from nnef_jax.analysis.argument_checks import require_bounds
from nnef_jax.analysis.attack import Bounds as Ends
from nnef_jax.analysis.attribution import require_lengths
from nnef_jax.analysis.intervals import Interval, NoBounds, interval
from nnef_jax.analysis.linear_bounds import Walk
from nnef_jax.analysis.question import Question, QuestionOptions, ask
from nnef_jax.calls.arguments import Input
from nnef_jax.errors import NnefError, UnsupportedError
from nnef_jax.model import Model
from nnef_jax.options import require_choice
from nnef_jax.results import Result, Table, result, static, table_of
from nnef_jax.workings import graph_for, types_of

Method = Literal["interval", "crown-ibp", "crown"]


@result
class Bounds(Result):
    """Bounds of the outputs for all small changes of the input, for each item of a batch.

    Args:
        lower: the lower bound of each entry of the output, [batch, ...]; a tuple if there are
            several outputs.
        upper: the upper bound of each entry of the output, in the form of `lower`.
        margins: for each class, a lower bound of (score of the item's class - score of this class),
            [batch, class]. The margin of the item's class is 0. If the target is a function, the
            margins are lower bounds of the function's score, [batch].
        classes: the class of each item, int32 [batch]; None if the target is a function.
        method: the name of the method.
        output: the name of the bounded tensor.
        of: the name of the tensor that changes.
    """

    lower: Any
    upper: Any
    margins: Array
    classes: Array | None
    method: str = static()
    output: str = static()
    of: str = static()

    @property
    def margin(self) -> Array:
        """Return a lower bound of (score of the item's class - highest other score), [batch].

        If the target is a function, return the lower bound of its score.
        """
        if self.classes is None:
            return self.margins
        is_own_class = _is_class(self.margins, self.classes)
        return jnp.where(is_own_class, jnp.inf, self.margins).min(1)

    @property
    def certified(self) -> Array:
        """Return the mask of the items whose answer no change can alter, bool [batch]."""
        return self.margin > 0

    def table(self) -> Table:
        """Return a table. The row of an item has its class, whether it is certified, its margin."""
        columns = {"certified": self.certified, "margin": self.margin}
        if self.classes is not None:
            columns = {"class": self.classes, **columns}
        arrays = [np.asarray(column) for column in columns.values()]
        items = range(len(self.margin))
        rows = zip(items, *arrays, strict=True)
        title = f"{self.method} bounds of {self.output} for {self.of}"
        return table_of(title, ["item", *columns], rows)


def bounds(
    model: Model,
    *inputs: Input,
    epsilon: ArrayLike,
    method: Method = "crown",
    bounds: Ends | None = None,
    **options: Unpack[QuestionOptions],
) -> Bounds:
    """Compute bounds of the outputs for all inputs whose entries change by at most epsilon.

    The bounds hold for the network as it is written. They hold in exact arithmetic, and also in 32
    bits for any order of summation, because they include the largest rounding errors of all values
    that depend on the changed input. They include neither the rounding errors of values that depend
    only on parameters, nor the rounding errors of products in fewer than 32 bits.

    >>> nnef_jax.analysis.bounds(model, images, epsilon=2, bounds=(0, 255)).certified

    Args:
        epsilon: the largest change of an entry: a number, or a number for each item.
        method: "interval" propagates intervals (Gowal et al. 2018, arXiv:1810.12715), and takes
            about as long as two calls. "crown" makes a backward pass to the input for each entry of
            the outputs and for each entry of an operand of a nonlinear operation (Zhang et al.
            2018, arXiv:1811.00866). "crown" gives the tightest bounds, and suits small networks.
            "crown-ibp" makes backward passes only for the outputs, and propagates intervals inside
            (Zhang et al. 2019, arXiv:1906.06316). "crown-ibp" suits training.
        bounds: the least and the largest value of an entry.

    All other arguments, and the errors, are as in `saliency`. The margins of the result are
    computed for the class `target`. If `target` is a function, the margins are its scores. Items of
    a batch must not depend on one another. Raises UnsupportedError for an operation without a rule,
    and for a network that computes in 16 bits.
    """
    require_choice("method", method, ("interval", "crown-ibp", "crown"))
    question = ask("bounds", model, inputs, options)
    ends = None if bounds is None else require_bounds(bounds)
    dtype = question.graph.values[question.wrt].type.dtype
    if dtype not in ("float32", "float64"):
        message = f"'{question.wrt}' is of {dtype}, bounds are computed in 32 bits"
        raise UnsupportedError(message, hint="load(..., dtype='float32')")
    distances = require_lengths(question, "epsilon", epsilon)
    try:
        return _bounds(question, distances, ends, method=method)
    except NoBounds as error:
        raise _located(question, error) from None


@partial(jax.jit, static_argnames="method")
def _bounds(question: Question, epsilon: Array, ends: Ends | None, *, method: Method) -> Bounds:
    """Compute bounds of the outputs. Each item is computed separately, in a batch of one item.

    If the network does not take a batch of one item, the item is repeated to fill the batch.
    """
    x = question.value()
    question = question.with_classes(x)
    # The bounds are for the network as it is written, so its operations are not optimised.
    question = replace(question, model=question.model.with_options(optimize=False))
    changed = _changed_inputs(x, epsilon, ends)
    batched_indices: list[int] = []
    for index, input in enumerate(question.inputs):
        has_batch_axis = input.ndim > 0 and input.shape[0] == len(x)
        if has_batch_axis:
            batched_indices.append(index)
    repetitions = 1 if _takes_batch_of_one(question, batched_indices) else len(x)

    def bounds_of_item(item: tuple[Any, ...]) -> tuple[Any, Interval]:
        """Return intervals of the outputs and of the margins of one item.

        `item` is a tuple: the item's inputs, the low end and the high end of its changed tensor,
        and its class.
        """
        item_inputs, item_low, item_high, item_class = item
        inputs = list(question.inputs)
        for index, item_input in zip(batched_indices, item_inputs, strict=True):
            inputs[index] = jnp.repeat(item_input[None], repetitions, 0)
        classes = None if item_class is None else jnp.full(repetitions, item_class)
        item_question = replace(question, inputs=tuple(inputs), classes=classes)
        return _item_bounds(item_question, Interval(item_low, item_high), repetitions, method)

    batched_inputs = [question.inputs[index] for index in batched_indices]
    # `bounds_of_item` takes the ends of an interval as a batch of one item, [1, ...]. The new axis
    # 1 becomes this batch axis.
    items = (batched_inputs, changed.low[:, None], changed.high[:, None], question.classes)
    if method == "crown":
        # "crown" makes many backward passes for an item, so only one item is computed at a time.
        outputs, margins = lax.map(bounds_of_item, items)
    else:
        outputs, margins = jax.vmap(bounds_of_item)(items)

    lower = jax.tree.map(lambda y: y.low, outputs, is_leaf=_is_interval)
    upper = jax.tree.map(lambda y: y.high, outputs, is_leaf=_is_interval)
    lower_margins = margins.low
    if question.classes is not None:
        # The margin of a class over itself is 0. Its computed lower bound may be below 0, because
        # the bound includes rounding errors.
        is_own_class = _is_class(lower_margins, question.classes)
        lower_margins = jnp.where(is_own_class, 0, lower_margins)
    return Bounds(
        lower=lower,
        upper=upper,
        margins=lower_margins,
        classes=question.classes,
        method=method,
        output=question.output or "outputs",
        of=question.wrt,
    )


def _changed_inputs(x: Array, epsilon: Array, ends: Ends | None) -> Interval:
    """Return the interval of all tensors whose entries differ from `x` by at most epsilon.

    `epsilon` is a number, or a number for each item. The interval is clipped to `ends`.
    """
    change_by_item = jnp.broadcast_to(jnp.asarray(epsilon, x.dtype), x.shape[:1])
    other_extents = [1] * (x.ndim - 1)
    change = change_by_item.reshape(-1, *other_extents)  # [batch, 1, ...]
    low = x - change
    high = x + change
    if ends is None:
        return Interval(low, high)
    lowest = jnp.asarray(ends[0], x.dtype)
    highest = jnp.asarray(ends[1], x.dtype)
    return Interval(jnp.clip(low, lowest, highest), jnp.clip(high, lowest, highest))


def _item_bounds(
    question: Question, item: Interval, repetitions: int, method: Method
) -> tuple[Any, Interval]:
    """Return an interval for each output of an item, and an interval of the item's margins.

    If the target is a function, the margin is the function's score.

    Args:
        question: the question, with inputs in which the item is repeated.
        item: the interval of the changed tensor, with a batch axis of extent 1.
        repetitions: the number of times that the item is repeated in the batch of a run.
        method: the name of the method.
    """

    def outputs_and_margins(x: Array) -> tuple[Any, Array]:
        """Return the outputs and margins of the first item, each with a batch axis of extent 1."""
        outputs, _ = question.run(jnp.repeat(x, repetitions, 0))
        scores = question.scores(outputs)
        first_outputs = jax.tree.map(lambda y: y[:1], outputs)
        if question.classes is None:
            return first_outputs, scores[:1]
        margins = scores[:1, None] - question.class_scores(outputs)[:1]
        return first_outputs, margins

    closed, result_types = jaxpr_evaluation.make_jaxpr_and_types(outputs_and_margins, item.low)
    has_backward_bounds = method != "interval"
    is_sharp = method == "crown"
    walk = Walk(jaxprs.inlined(closed), [item], linear=has_backward_bounds, sharp=is_sharp)
    intervals: list[Interval] = []
    for bounded_result in walk.results:
        batch_of_one = interval(bounded_result)
        intervals.append(Interval(batch_of_one.low[0], batch_of_one.high[0]))
    # The intervals get the nested structure of `result_types`, a pair of outputs and margins.
    return jax.tree.unflatten(jax.tree.structure(result_types), intervals)


def _is_class(margins: Array, classes: Array) -> Array:
    """Return the mask that is True at each item's class, bool [batch, class]."""
    return jnp.arange(margins.shape[1], dtype=classes.dtype)[None] == classes[:, None]


def _is_interval(x: object) -> bool:
    return isinstance(x, Interval)


def _takes_batch_of_one(question: Question, batched_indices: Sequence[int]) -> bool:
    """Tell whether the network takes a batch of one item.

    `batched_indices` are the positions of the inputs with a batch axis.
    """
    inputs: list[Any] = list(question.inputs)
    for index in batched_indices:
        x = question.inputs[index]
        inputs[index] = jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype)
    try:
        # This raises an error if the network does not take a batch of one item.
        graph_for(question.model, types_of(question.model, inputs, kwargs={}))
    except NnefError:
        return False
    return True


def _located(question: Question, error: NoBounds) -> UnsupportedError:
    """Return an UnsupportedError that names the operation that cannot be bounded.

    `error` has an equation that no rule bounds. The outer name scope of the equation is the name of
    the operation.
    """
    equation = error.equation
    assert equation is not None
    name = jaxprs.outer_scope(equation)
    operations = [operation for operation in question.graph.operations if operation.name == name]
    if not operations:
        return UnsupportedError(f"no rule bounds {described(equation)}")
    (operation,) = operations
    message = f"no rule bounds '{operation.kind}', which computes '{equation.primitive.name}'"
    first_operand = next(operation.reads())
    hint = f"bound its operand: output='{first_operand.name}'"
    return UnsupportedError(message, span=operation.span, calls=operation.calls, hint=hint)
