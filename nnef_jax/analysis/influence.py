"""What trained a network, and what it has learnt: TracIn, concept activation vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from lowering.extents import show
from nnef_jax.analysis.attribution import sums
from nnef_jax.analysis.layer_tensors import (
    chosen_params,
    require_callable,
    require_gradients,
    scalar,
)
from nnef_jax.analysis.question import (
    Question,
    Target,
    array_from,
    ask,
    bound,
    require_model,
    require_real,
)
from nnef_jax.calls.arguments import Input, Params, Sample
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import names_of, require
from nnef_jax.results import Axes, Result, Table, axes, result, static, table_of
from nnef_jax.workings import without_mesh

_RIDGE = 1e-3  # of the mean square of activations


@result
class Influence(Result):
    """How far training on items helped or harmed others: see `tracin`.

    Args:
        values: [other, item]; above 0 where training on the item lowered the other's loss.
    """

    values: Array

    def table(self) -> Table:
        """Return a table with a row for each other: the items of most and of least influence."""
        values = np.asarray(self.values)
        rows = [
            (other, each.argmax(), each.max(), each.argmin(), each.min())
            for other, each in enumerate(values)
            if each.size
        ]
        heads = "other", "helped most by", "influence", "harmed most by", "influence"
        return table_of(f"influence of {values.shape[1]} items on {len(values)}", heads, rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the influence of each item on each other; return the axes of matplotlib.

        Red is what helped, blue what harmed.
        """
        ax, values = axes(ax), np.asarray(self.values, np.float64)
        limit = np.abs(values).max(initial=0) or 1.0
        image = ax.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        ax.figure.colorbar(image, ax=ax, label="influence")
        ax.set_xlabel("item of the training")
        ax.set_ylabel("other")
        return ax


def tracin(
    model: Model,
    data: tuple[Sample, ArrayLike],
    others: tuple[Sample, ArrayLike],
    *,
    loss: Callable[[Array, Array], Array],
    checkpoints: Sequence[Params | Model] | None = None,
    rates: float | Sequence[float] = 1.0,
    labels: Iterable[str] | None = None,
) -> Influence:
    """Compute the influence of training on items on others (Pruthi et al. 2020, arXiv:2002.08484).

    A value is the learning rate times the product of both gradients, added up over checkpoints. It
    is above 0 where the item lowered the other's loss. The gradients of all items are held at once:
    `labels` says of which parameters.

    >>> nnef_jax.analysis.tracin(model, (images, digits), (unseen, answers), loss=cross_entropy)

    Args:
        data: what was trained on: inputs, and what the loss compares outputs with. Inputs are one
            array or a tuple; items are along the first axis of all.
        others: what is asked about, likewise.
        loss: of the outputs for an item, a batch of one, and what they are compared with: a number,
            or [1].
        checkpoints: parameters, or models, at times of the training, by default the model's own.
        rates: the learning rate then, one for all or one for each.
        labels: labels or patterns of the parameters that are differentiated, by default all.

    Raises InputError for what does not fit together.
    """
    require_model(model)
    require_callable("loss", loss, "a function of outputs and an answer")
    times = [model] if checkpoints is None else checkpoints
    require("checkpoints", times, tuple | list, "a list of params or models")
    times = [x.params if isinstance(x, Model) else x for x in times]
    _require_batch_of_one(model)
    each = [rates] * len(times) if isinstance(rates, int | float) else list(rates)
    if not times:
        raise InputError("checkpoints is empty", hint="leave it out for the model's parameters")
    if len(each) != len(times):
        raise InputError(f"{len(times)} checkpoints have {len(each)} rates")
    names = None if labels is None else names_of("labels", labels, "labels of parameters")
    total: Any = 0
    for params, rate in zip(times, each, strict=True):
        there = without_mesh(model.with_params(params))
        free = tuple(chosen_params(there.params, names))
        require_gradients(there, there.graph, {}, free)
        pair = [_gradients(there, *_items(of, x), loss, free) for of, x in _named(data, others)]
        total += require_real("a rate", rate) * jnp.matmul(pair[1], pair[0].T, precision="highest")
    return Influence(values=total)


def _require_batch_of_one(model: Model) -> None:
    for spec in model.inputs:
        if spec.shape and spec.shape[0] not in (1, None):
            message = f"input '{spec.name}' has the declared shape {show(spec.shape)}"
            hint = "load(..., input_shapes=...) declares a batch of 1, or an open one by None"
            raise InputError(f"{message}, tracin needs a batch of 1", hint=hint)


def _named(data: Any, others: Any) -> list[tuple[str, Any]]:
    return [("data", data), ("others", others)]


def _items(of: str, given: Any) -> tuple[tuple[Any, ...], Any]:
    require(of, given, tuple | list, "a pair of inputs and what outputs are compared with")
    if len(given) != 2:
        raise InputError(f"{of} must be a pair, it has {len(given)} parts")
    inputs = given[0] if isinstance(given[0], tuple) else (given[0],)
    inputs, answers = tuple(map(jnp.asarray, inputs)), jnp.asarray(given[1])
    counts = {x.shape[0] if x.ndim else 0 for x in (*inputs, answers)}
    if len(counts) != 1:
        raise InputError(f"{of} has {', '.join(map(str, sorted(counts)))} items along first axes")
    return inputs, answers


@partial(jax.jit, static_argnums=(3, 4))
def _gradients(
    model: Model, inputs: tuple[Any, ...], answers: Array, loss: Any, names: tuple[str, ...]
) -> Array:
    """Return the gradient of each item's loss, [item, parameter]."""
    params = model.params

    def one(inputs: tuple[Any, ...], answer: Array) -> Any:
        def total(free: Any) -> Array:
            outputs = model.apply({**params, **free}, *[x[None] for x in inputs])
            value = array_from("loss", loss(outputs, answer[None]))
            return scalar(value[0] if value.shape == (1,) else value)

        return jax.grad(total)({name: params[name] for name in names})

    leaves = jax.tree.leaves(jax.vmap(one)(inputs, answers))
    return jnp.concatenate([x.reshape(x.shape[0], -1) for x in leaves], 1)


@result
class Concept(Result):
    """How much a score follows a concept in a layer.

    Args:
        vector: the direction that tells the concept from others, of the shape of an item there.
        derivatives: of the score of each item along it, [batch].
        share: which part of the items has a derivative above 0.
        scores: what is explained, [batch].
        layer: the name of the tensor.
    """

    vector: Array
    derivatives: Array
    share: Array
    scores: Array
    layer: str = static()

    def table(self) -> Table:
        """Return a table with a row for each item."""
        rows = zip(np.arange(len(self.scores)), self.scores, self.derivatives, strict=True)
        title = f"a concept in {self.layer}: the score rises with it for {self.share:.0%} of items"
        return table_of(title, ["item", "score", "derivative"], [[*row] for row in rows])


def tcav(
    model: Model,
    *inputs: Input,
    layer: str,
    concept: ArrayLike,
    others: ArrayLike,
    target: Target = None,
    output: str | None = None,
    params: Params | None = None,
) -> Concept:
    """Test whether a score follows a concept of examples (Kim et al. 2018, arXiv:1711.11279).

    The direction is that of ridge regression on what is the concept in a layer and what is not.

    Args:
        layer: the name of a real tensor inside.
        concept: inputs of a call that show it: an array, a tuple in order, or a dict by name.
        others: inputs that do not.

    The other arguments, and errors, are those of `saliency`.
    """
    options = {"target": target, "output": output, "wrt": layer, "params": params}
    question = ask("tcav", model, inputs, options)
    if question.position is not None:
        raise InputError(f"layer: '{layer}' is an input", hint="name a tensor inside")
    shown = [_inside(question.model, layer, x) for x in (concept, others)]
    return _tcav(question, *shown)


def _inside(model: Model, layer: str, given: Any) -> Array:
    return model.intermediates(*bound(model, [given]), names=[layer])[layer]


@jax.jit
def _tcav(question: Question, concept: Array, others: Array) -> Concept:
    x = question.value()
    question = question.settled(x)
    rows = jnp.concatenate([concept, others]).reshape(len(concept) + len(others), -1)
    signs = jnp.concatenate([jnp.ones(len(concept)), -jnp.ones(len(others))]).astype(rows.dtype)
    rows = rows - rows.mean(0, keepdims=True)
    products = jnp.matmul(rows, rows.T, precision="highest")
    ridge = _RIDGE * jnp.trace(products) / len(rows) + jnp.finfo(rows.dtype).tiny
    weights = jnp.linalg.solve(products + ridge * jnp.eye(len(rows)), signs - signs.mean())
    vector = weights @ rows
    vector = (vector / jnp.linalg.norm(vector)).reshape(x.shape[1:])
    scores, gradient = question.gradient(x)
    along = sums(gradient * vector[None])
    share = (along > 0).mean()
    return Concept(vector=vector, derivatives=along, share=share, scores=scores, layer=question.wrt)
