"""Influence of training items (TracIn), and concept activation vectors (TCAV)."""

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
from nnef_jax.analysis.argument_checks import array_from, require_model, require_real
from nnef_jax.analysis.attribution import sums
from nnef_jax.analysis.layer_tensors import (
    Loss,
    chosen_params,
    require_callable,
    require_gradients,
    scalar,
)
from nnef_jax.analysis.question import Question, Target, ask, bound
from nnef_jax.calls.arguments import Input, Params, Sample
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import names_of, require
from nnef_jax.results import Axes, Result, Table, axes, result, static, table_of
from nnef_jax.workings import without_mesh

# The penalty of the ridge regression is 0.001 times the mean squared norm of the activations of an
# example.
_RIDGE = 1e-3


@result
class Influence(Result):
    """The influence of training items on the losses of test items, as `tracin` computes it.

    Args:
        values: the influences, [test item, training item]; above 0 if training on the training item
            lowered the loss of the test item.
    """

    values: Array

    def table(self) -> Table:
        """Return a table of the most and the least influential training items of each test item."""
        values = np.asarray(self.values)
        test_count, training_count = values.shape
        rows: list[tuple[Any, ...]] = []
        if training_count:
            for item, influences in enumerate(values):
                helper = influences.argmax()
                harmer = influences.argmin()
                rows.append((item, helper, influences[helper], harmer, influences[harmer]))
        heads = "item", "helped most by", "influence", "harmed most by", "influence"
        return table_of(f"influence of {training_count} items on {test_count}", heads, rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the influence of each training item on each test item.

        Helpful items are red, and harmful items are blue. Return the axes of matplotlib.
        """
        ax = axes(ax)
        values = np.asarray(self.values, np.float64)
        # The scale is symmetric around 0. If all influences are 0, its limit is 1.
        limit = np.abs(values).max(initial=0) or 1.0
        image = ax.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        ax.figure.colorbar(image, ax=ax, label="influence")
        ax.set_xlabel("training item")
        ax.set_ylabel("test item")
        return ax


def tracin(
    model: Model,
    data: tuple[Sample, ArrayLike],
    test: tuple[Sample, ArrayLike],
    *,
    loss: Callable[[Array, Array], Array],
    checkpoints: Sequence[Params | Model] | None = None,
    rates: float | Sequence[float] = 1.0,
    labels: Iterable[str] | None = None,
) -> Influence:
    """Compute the influence of training items on test items (Pruthi et al. 2020, arXiv:2002.08484).

    The influence is a sum over checkpoints. Each term is the learning rate times a scalar product
    of two gradients: of the training item's loss, and of the test item's loss. The influence is
    above 0 if training on the training item lowered the loss of the test item. The gradients of
    all items are in memory together; `labels` restricts the gradients to some parameters. A model
    on a mesh is computed on the default device.

    >>> nnef_jax.analysis.tracin(model, (images, digits), (unseen, answers), loss=cross_entropy)

    Args:
        model: a network that takes a batch of one item.
        data: the training items: a pair of inputs and answers. Inputs are an array or a tuple of
            arrays. The first axis of every array counts items.
        test: the test items, as a pair of the same form.
        loss: a function that takes the outputs and the answers of a batch of one item. It returns a
            number or an array [1].
        checkpoints: parameters or models at steps of the training, by default the model itself.
        rates: the learning rate at all checkpoints, or a learning rate for each checkpoint.
        labels: labels or patterns of the differentiated parameters, by default all.

    Raises InputError for arguments that do not fit together, for a declared batch other than 1, and
    if rounding makes a gradient 0.
    """
    require_model(model)
    require_callable("loss", loss, "a function of outputs and an answer")
    if checkpoints is None:
        checkpoints = [model]
    require("checkpoints", checkpoints, tuple | list, "a list of params or models")
    params_by_checkpoint = [x.params if isinstance(x, Model) else x for x in checkpoints]
    _require_batch_of_one(model)
    rate_by_checkpoint = _rate_by_checkpoint(rates, len(params_by_checkpoint))
    patterns = None if labels is None else names_of("labels", labels, "labels of parameters")
    data_inputs, data_answers = _items("data", data)
    test_inputs, test_answers = _items("test", test)
    total: Any = 0
    for params, rate in zip(params_by_checkpoint, rate_by_checkpoint, strict=True):
        trained = without_mesh(model.with_params(params))
        chosen_labels = tuple(chosen_params(trained.params, patterns))
        require_gradients(trained, trained.graph, layers={}, labels=chosen_labels)
        data_gradients = _gradients(trained, data_inputs, data_answers, loss, chosen_labels)
        test_gradients = _gradients(trained, test_inputs, test_answers, loss, chosen_labels)
        # The scalar products of gradients have the shape [test item, training item].
        products = jnp.matmul(test_gradients, data_gradients.T, precision="highest")
        total += require_real("a rate", rate) * products
    return Influence(values=total)


def _rate_by_checkpoint(rates: float | Sequence[float], count: int) -> Sequence[float]:
    """Return a learning rate for each of `count` checkpoints.

    A single number is the rate at all checkpoints. Raises InputError if `count` is 0, or if there
    are several rates, but not `count` rates.
    """
    rate_list = [rates] * count if isinstance(rates, int | float) else list(rates)
    if count == 0:
        raise InputError("checkpoints is empty", hint="leave it out for the model's parameters")
    if len(rate_list) != count:
        raise InputError(f"{count} checkpoints have {len(rate_list)} rates")
    return rate_list


def _require_batch_of_one(model: Model) -> None:
    """Raise InputError if an input declares a fixed batch size other than 1."""
    for spec in model.inputs:
        if spec.shape and spec.shape[0] not in (1, None):
            message = f"input '{spec.name}' has the declared shape {show(spec.shape)}"
            hint = "load(..., input_shapes=...) declares a batch of 1, or an open one by None"
            raise InputError(f"{message}, tracin needs a batch of 1", hint=hint)


def _items(argument: str, pair: Any) -> tuple[tuple[Array, ...], Array]:
    """Return the inputs and the answers in an argument of `tracin`, after checking them.

    `argument` is the name of the argument, "data" or "test". `pair` is its value.
    """
    require(argument, pair, tuple | list, "a pair of inputs and answers")
    if len(pair) != 2:
        raise InputError(f"{argument} must be a pair, it has {len(pair)} parts")
    inputs_or_input, answers_of_items = pair
    if isinstance(inputs_or_input, tuple):
        inputs = tuple(map(jnp.asarray, inputs_or_input))
    else:
        inputs = (jnp.asarray(inputs_or_input),)
    answers = jnp.asarray(answers_of_items)
    counts: set[int] = set()
    for array in (*inputs, answers):
        counts.add(array.shape[0] if array.ndim else 0)
    if len(counts) != 1:
        listed = ", ".join(map(str, sorted(counts)))
        raise InputError(f"{argument} has {listed} items along first axes")
    return inputs, answers


@partial(jax.jit, static_argnames=("loss", "labels"))
def _gradients(
    model: Model,
    inputs: tuple[Array, ...],
    answers: Array,
    loss: Loss,
    labels: tuple[str, ...],
) -> Array:
    """Return the gradient of each item's loss, [item, entry of all parameters]."""
    params = model.params
    chosen = {label: params[label] for label in labels}

    def item_gradient(item_inputs: tuple[Array, ...], answer: Array) -> dict[str, Array]:
        """Return a dict from labels of parameters to gradients of one item's loss."""
        batch_of_one = [x[None] for x in item_inputs]

        def loss_at(chosen: Params) -> Array:
            outputs = model.apply({**params, **chosen}, *batch_of_one)
            value = array_from("loss", loss(outputs, answer[None]))
            if value.shape == (1,):
                return scalar(value[0])
            return scalar(value)

        return jax.grad(loss_at)(chosen)

    by_label = jax.vmap(item_gradient)(inputs, answers)
    matrices = [x.reshape(x.shape[0], -1) for x in jax.tree.leaves(by_label)]
    return jnp.concatenate(matrices, axis=1)


@result
class Concept(Result):
    """The dependence of a score on a concept in a layer, as `tcav` computes it.

    Args:
        vector: the direction of the concept, an array with the shape of one item of the layer.
        derivatives: the derivative of each item's score along the direction, [batch].
        share: the share of items with a derivative above 0.
        scores: the explained scores, [batch].
        layer: the name of the tensor.
    """

    vector: Array
    derivatives: Array
    share: Array
    scores: Array
    layer: str = static()

    def table(self) -> Table:
        """Return a table with a row for each item."""
        items = np.arange(len(self.scores))
        rows = zip(items, self.scores, self.derivatives, strict=True)
        title = f"a concept in {self.layer}: the score rises with it for {self.share:.0%} of items"
        return table_of(title, ["item", "score", "derivative"], [list(row) for row in rows])


def tcav(
    model: Model,
    *inputs: Input,
    layer: str,
    concept: ArrayLike,
    counterexamples: ArrayLike,
    target: Target = None,
    output: str | None = None,
    params: Params | None = None,
) -> Concept:
    """Test whether a score depends on a concept (Kim et al. 2018, arXiv:1711.11279).

    The direction of the concept comes from a ridge regression on activations of the layer. The
    regression predicts 1 for examples of the concept, and -1 for counterexamples.

    Args:
        layer: the name of a floating-point tensor inside the network.
        concept: inputs that show the concept: an array, a tuple in order, or a dict from names to
            inputs.
        counterexamples: inputs that do not show the concept.

    All other arguments, and the errors, are as in `saliency`.
    """
    options = {"target": target, "output": output, "wrt": layer, "params": params}
    question = ask("tcav", model, inputs, options)
    if question.input_position is not None:
        raise InputError(f"layer: '{layer}' is an input", hint="name a tensor inside")
    concept_activations = _layer_at(question.model, layer, concept)
    other_activations = _layer_at(question.model, layer, counterexamples)
    return _tcav(question, concept_activations, other_activations)


def _layer_at(model: Model, layer: str, inputs: Input) -> Array:
    """Return the tensor of a layer, computed from inputs."""
    values = bound(model, [inputs])
    return model.intermediates(*values, names=[layer])[layer]


@jax.jit
def _tcav(question: Question, concept: Array, counterexamples: Array) -> Concept:
    """Return the derivatives of the scores along the direction of a concept.

    `concept` and `counterexamples` are activations of the layer, [example, ...].
    """
    x = question.value()
    question = question.with_classes(x)
    vector = _direction(concept, counterexamples).reshape(x.shape[1:])
    scores, gradient = question.gradient(x)
    derivatives = sums(gradient * vector[None])
    share = (derivatives > 0).mean()
    return Concept(
        vector=vector, derivatives=derivatives, share=share, scores=scores, layer=question.wrt
    )


def _direction(concept: Array, counterexamples: Array) -> Array:
    """Return the direction of a concept among activations, a flat vector of norm 1.

    A ridge regression predicts 1 for the activations `concept`, and -1 for `counterexamples`. The
    direction is the vector of its coefficients.
    """
    examples = jnp.concatenate([concept, counterexamples])
    activations = examples.reshape(len(examples), -1)
    signs = jnp.concatenate([jnp.ones(len(concept)), -jnp.ones(len(counterexamples))])
    signs = signs.astype(activations.dtype)
    rows = activations - activations.mean(0, keepdims=True)
    # The regression is solved in its dual form, whose unknowns are a weight for each example. There
    # are usually fewer examples than activations, so the dual form has fewer equations.
    gram = jnp.matmul(rows, rows.T, precision="highest")
    ridge = _RIDGE * jnp.trace(gram) / len(rows) + jnp.finfo(rows.dtype).tiny
    matrix = gram + ridge * jnp.eye(len(rows))
    weights = jnp.linalg.solve(matrix, signs - signs.mean())
    coefficients = weights @ rows
    return coefficients / jnp.linalg.norm(coefficients)
