"""Certified bounds: between which ends scores stay whatever small change an input undergoes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from lowering import described, jaxprs
from nnef_jax.analysis.attack import Bounds as Ends
from nnef_jax.analysis.attribution import sizes_of
from nnef_jax.analysis.intervals import Interval, NoBounds, interval
from nnef_jax.analysis.linear_bounds import Walk
from nnef_jax.analysis.question import (
    Question,
    QuestionOptions,
    ask,
    require_bounds,
)
from nnef_jax.calls.arguments import Input
from nnef_jax.errors import NnefError, UnsupportedError
from nnef_jax.model import Model
from nnef_jax.options import require_choice
from nnef_jax.results import Result, Table, result, static, table_of
from nnef_jax.workings import graph_for, types_of

Method = Literal["interval", "crown-ibp", "crown"]


@result
class Bounds(Result):
    """Between which ends the outputs stay, for each item of a batch.

    Args:
        lower: what no item of the output falls below, [batch, ...]; a tuple for several outputs.
        upper: what no item of it rises above.
        margins: what the score of the class less each other one does not fall below, [batch,
            class], 0 for the class itself. Where a function says the score, its lower end [batch].
        classes: the class of each item, int32 [batch]; None where a function says the score.
        method: the name of the method.
        output: the name of the tensor that is bounded.
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
        """Return the least margin that the score has over the highest other one, [batch]."""
        if self.classes is None:
            return self.margins
        return jnp.where(_own(self.margins, self.classes), jnp.inf, self.margins).min(1)

    @property
    def certified(self) -> Array:
        """Return whether no change leads to another answer, bool [batch]."""
        return self.margin > 0

    def table(self) -> Table:
        """Return a table with a row for each item: class, whether it is certified, margin."""
        heads = ["item", *(["class"] if self.classes is not None else []), "certified", "margin"]
        columns = [*([self.classes] if self.classes is not None else []), self.certified]
        columns = [np.asarray(x) for x in (*columns, self.margin)]
        rows = zip(range(len(columns[-1])), *columns, strict=True)
        return table_of(f"{self.method} bounds of {self.output} for {self.of}", heads, rows)


def bounds(
    model: Model,
    *inputs: Input,
    epsilon: ArrayLike,
    method: Method = "crown",
    bounds: Ends | None = None,
    **options: Unpack[QuestionOptions],
) -> Bounds:
    """Bound the outputs for all inputs whose entries change by at most epsilon.

    They hold for the network as it is written, in exact arithmetic and in 32 bits in whatever order
    sums are computed: what rounding may take of all that changes is counted in, at its worst. That
    of what depends on parameters alone, and of products of fewer bits, is not.

    >>> nnef_jax.analysis.bounds(model, images, epsilon=2, bounds=(0, 255)).certified

    Args:
        epsilon: how far each entry may change: a number, or one for each item.
        method: "interval" propagates ends (Gowal et al. 2018, arXiv:1810.12715), which takes about
            two calls, of any network. "crown" follows outputs, and what is inside where lines are
            drawn, back to the input (Zhang et al. 2018, arXiv:1811.00866), item by item: the
            tightest, and for small networks. "crown-ibp" does so for outputs, with intervals
            inside (Zhang et al. 2019, arXiv:1906.06316): for training.
        bounds: the least and the largest value that an entry may take.

    The other arguments, and errors, are those of `saliency`: `target` is the class whose margins
    are bounded, of a function that returns scores [batch] these are. Items of a batch must not
    depend on one another. Raises UnsupportedError for an operation that no rule bounds, and for a
    network that computes in 16 bits.
    """
    require_choice("method", method, ("interval", "crown-ibp", "crown"))
    question = ask("bounds", model, inputs, options)
    ends = None if bounds is None else require_bounds(bounds)
    dtype = question.graph.values[question.wrt].type.dtype
    if dtype not in ("float32", "float64"):
        message = f"'{question.wrt}' is of {dtype}, bounds are computed in 32 bits"
        raise UnsupportedError(message, hint="load(..., dtype='float32')")
    try:
        return _bounds(question, sizes_of(question, "epsilon", epsilon), ends, method=method)
    except NoBounds as error:
        raise _located(question, error) from None


@partial(jax.jit, static_argnames="method")
def _bounds(question: Question, epsilon: Array, ends: Ends | None, *, method: Method) -> Bounds:
    x = question.value()
    question = question.settled(x)
    question = replace(question, model=question.model.with_options(optimize=False))
    epsilon = jnp.broadcast_to(jnp.asarray(epsilon, x.dtype), x.shape[:1])
    epsilon = epsilon.reshape(-1, *[1] * (x.ndim - 1))
    low, high = x - epsilon, x + epsilon
    if ends is not None:
        low, high = (jnp.clip(end, *(jnp.asarray(b, x.dtype) for b in ends)) for end in (low, high))
    batched = tuple(bool(v.ndim) and v.shape[0] == len(x) for v in question.inputs)
    count = 1 if _takes_one(question, batched) else len(x)

    def one(item: tuple[Any, ...]) -> tuple[Any, Interval]:
        inputs, low, high, chosen = item
        given = [
            jnp.repeat(v[None], count, 0) if b else v
            for v, b in zip(_merged(question.inputs, inputs, batched), batched, strict=True)
        ]
        classes = None if chosen is None else jnp.full(count, chosen)
        alone = replace(question, inputs=tuple(given), classes=classes)

        def compared(x: Array) -> tuple[Any, Array]:
            outputs = alone.run(jnp.repeat(x, count, 0))[0]
            scores, first = alone.scores(outputs), jax.tree.map(lambda y: y[:1], outputs)
            if classes is None:
                return first, scores[:1]
            return first, scores[:1, None] - alone.entries(outputs)[:1]

        closed, shapes = jaxprs.make_jaxpr_and_types(compared, low)
        linear = {"linear": method != "interval", "sharp": method == "crown"}
        found = Walk(jaxprs.inlined(closed), [Interval(low, high)], **linear).results
        found = [jax.tree.map(lambda y: y[0], interval(y)) for y in found]
        return jax.tree.unflatten(jax.tree.structure(shapes), found)

    own = [v for v, b in zip(question.inputs, batched, strict=True) if b]
    items = own, low[:, None], high[:, None], question.classes
    found, margins = lax.map(one, items) if method == "crown" else jax.vmap(one)(items)

    def ends_of(side: str) -> Any:
        return jax.tree.map(lambda y: getattr(y, side), found, is_leaf=_is_interval)

    classes = question.classes
    return Bounds(
        lower=ends_of("low"),
        upper=ends_of("high"),
        margins=margins.low
        if classes is None
        else jnp.where(_own(margins.low, classes), 0, margins.low),
        classes=classes,
        method=method,
        output=question.output or "outputs",
        of=question.wrt,
    )


def _own(margins: Array, classes: Array) -> Array:
    """Tell which margins are those of the class itself."""
    return jnp.arange(margins.shape[1], dtype=classes.dtype)[None] == classes[:, None]


def _is_interval(x: Any) -> bool:
    return isinstance(x, Interval)


def _merged(inputs: Any, items: Any, batched: Any) -> list[Any]:
    """Return the inputs with those of one item for those that have a batch."""
    own = iter(items)
    return [next(own) if b else x for x, b in zip(inputs, batched, strict=True)]


def _takes_one(question: Question, batched: Any) -> bool:
    """Tell whether the network takes a batch of one; else the item is repeated."""
    given = [
        jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype) if b else x
        for x, b in zip(question.inputs, batched, strict=True)
    ]
    try:
        graph_for(question.model, types_of(question.model, given, {}))
    except NnefError:
        return False
    return True


def _located(question: Question, error: NoBounds) -> UnsupportedError:
    """Return the error at the operation of the document that an equation comes from."""
    equation = error.equation
    name = jaxprs.outer_scope(equation)
    found = [x for x in question.graph.operations if x.name == name]
    if not found:
        return UnsupportedError(f"no rule bounds {described(equation)}")
    (operation,) = found
    message = f"no rule bounds '{operation.kind}', which computes '{equation.primitive.name}'"
    hint = f"bound what it reads: output='{next(operation.reads()).name}'"
    return UnsupportedError(message, span=operation.span, calls=operation.calls, hint=hint)
