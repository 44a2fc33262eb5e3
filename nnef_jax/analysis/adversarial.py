"""Adversarial attacks: small changes of an input that change the answer of a network."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from nnef_jax.analysis.argument_checks import require_bounds, require_count, require_key
from nnef_jax.analysis.attack import Attack, AttackOptions, Bounds, Norm
from nnef_jax.analysis.attribution import require_lengths
from nnef_jax.analysis.question import Question, Target, ask
from nnef_jax.calls.arguments import Input, Params, has_values
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import require_choice, require_flags
from nnef_jax.results import Axes, Result, Table, result, static, table_of

_NORMS = {"linf": "L\u221e", "l2": "L2"}
# The lengths of all steps of an attack add up to 2.5 * epsilon, as in Madry et al. (2017).
_PATH_IN_EPSILONS = 2.5
_HALVINGS = 16


@result
class Adversarial(Result):
    """The result of an attack on a tensor, for each item of a batch.

    Args:
        x: the attacked tensor.
        original: the tensor before the attack.
        found: whether the attack succeeded, bool [batch]. An attack succeeds if `x` has another
            class than the original; a targeted attack succeeds if `x` has the target class.
        distance: the norm of `x - original`, [batch]; infinite if `smallest_perturbation` did not
            succeed.
        margin: the score of the target class minus the highest other score, [batch]; the class of
            the original is the default target. If the target is a function, the margin is the
            function's score. A targeted attack reverses the sign. The margin is below 0 where the
            attack succeeded.
        before: the class of the original, int32 [batch]; None if the target is a function.
        after: the class of `x`, int32 [batch]; None if the target is a function.
        method: the name of the attack.
        norm: "linf", the largest change of an entry, or "l2", the root of the sum of squares.
        of: the name of the attacked tensor.
        output: the name of the tensor with the scores.
    """

    x: Array
    original: Array
    found: Array
    distance: Array
    margin: Array
    before: Array | None
    after: Array | None
    method: str = static()
    norm: str = static()
    of: str = static()
    output: str = static()

    @property
    def perturbation(self) -> Array:
        """Return the change, `x - original`."""
        return self.x - self.original

    def table(self) -> Table:
        """Return a table with a row for each item: classes, success, distance and margin."""
        columns: dict[str, Array] = {}
        if self.before is not None and self.after is not None:
            columns |= {"before": self.before, "after": self.after}
        columns |= {"found": self.found, self.norm: self.distance, "margin": self.margin}
        arrays = [np.asarray(column) for column in columns.values()]
        items = range(len(self.found))
        rows = zip(items, *arrays, strict=True)
        title = f"{self.method} of {self.of} for {self.output}"
        return table_of(title, ["item", *columns], rows)

    def plot(self, ax: Axes | None = None, *, items: int = 6) -> Axes:
        """Draw three rows for the first items: the original, the change, and the attacked tensor.

        Positive changes are red and negative changes are blue, with a separate scale for each item.
        Return the axes of matplotlib.

        Args:
            ax: the axes on which the rows are drawn; new axes by default.
            items: the largest number of items in a row.
        """
        from nnef_jax.analysis.tiles import montage, picture, signed

        x = np.asarray(self.x[:items], np.float64)
        original = np.asarray(self.original[:items], np.float64)
        # One scale of colours serves the originals and the attacked tensors. It includes 0.
        values = np.stack([x, original])
        low = float(np.min(values, initial=0))
        high = float(np.max(values, initial=0))
        originals = [picture(item, low, high) for item in original]
        changes = [signed(change) for change in x - original]
        attacked = [picture(item, low, high) for item in x]

        classes_before = [""] * len(x)
        classes_after = [""] * len(x)
        if self.before is not None and self.after is not None:
            classes_before = [str(class_) for class_ in np.asarray(self.before[:items])]
            classes_after = [str(class_) for class_ in np.asarray(self.after[:items])]
        for item, succeeded in enumerate(np.asarray(self.found[:items])):
            if not succeeded:
                classes_after[item] += " (not found)"
        norm = _NORMS[self.norm]
        distances = [f"{norm} {distance:.3g}" for distance in np.asarray(self.distance[:items])]
        pictures = [originals, changes, attacked]
        titles = [classes_before, distances, classes_after]
        return montage(ax, pictures, titles)


def fgsm(
    model: Model,
    *inputs: Input,
    epsilon: ArrayLike,
    target: Target = None,
    targeted: bool = False,
    bounds: Bounds | None = None,
    output: str | None = None,
    wrt: str | None = None,
    params: Params | None = None,
) -> Adversarial:
    """Attack by one step along the gradient's sign (Goodfellow et al. 2014, arXiv:1412.6572).

    The gradient is the derivative of the cross-entropy of `output`, a tensor of logits.

    >>> nnef_jax.analysis.fgsm(model, images, epsilon=16, bounds=(0, 255)).found

    Args:
        epsilon: the change of each entry in units of the input: a number, or a number for each
            item.
        target: the class from which the attack leads away: an integer, or an integer for each item.
            By default the target is the class with the highest score. The target may also be a
            function that returns scores [batch] from the outputs. The attack then lowers these
            scores, and succeeds for an item if its score is below 0.
        targeted: whether the attack leads towards the target. If the target is a function, a
            targeted attack raises its scores, and succeeds for an item if its score is above 0.
        bounds: the least and the largest value of an entry.

    All other arguments, and the errors, are as in `saliency`.
    """
    options: AttackOptions = {"target": target, "output": output, "wrt": wrt, "params": params}
    options |= {"targeted": targeted, "bounds": bounds}
    attack = _attack("fgsm", model, inputs, norm="linf", options=options)
    return _fgsm(attack, require_lengths(attack.question, "epsilon", epsilon))


@jax.jit
def _fgsm(attack: Attack, epsilon: Array) -> Adversarial:
    """Attack by a single step, whose length is `epsilon`."""
    attack = attack.with_original()
    gradient, _ = attack.gradient(attack.original)
    step_length = attack.number_by_item(epsilon)
    attacked = attack.after_step(attack.original, gradient, step_length)
    return _result(attack, "FGSM", attacked)


def pgd(
    model: Model,
    *inputs: Input,
    epsilon: ArrayLike,
    norm: Norm = "linf",
    steps: int = 40,
    step_size: ArrayLike | None = None,
    key: Array | None = None,
    **options: Unpack[AttackOptions],
) -> Adversarial:
    """Attack by projected gradient descent (Madry et al. 2017, arXiv:1706.06083).

    The result is the point with the smallest margin among the start and all steps.

    >>> nnef_jax.analysis.pgd(model, images, epsilon=16, bounds=(0, 255), key=jax.random.key(0))

    Args:
        epsilon: the largest distance between result and original: a number, or a number for each
            item.
        norm: the norm of distances: "linf" or "l2".
        steps: the number of steps. Each step computes a gradient.
        step_size: the length of a step in units of the input: a number, or a number for each item.
            By default it is 2.5 epsilon / steps, as in the paper.
        key: a key of `jax.random`. With a key the attack starts at a random point within epsilon;
            by default it starts at the original.
        options: `target`, `targeted`, `bounds`, `output`, `wrt` and `params`, as in `fgsm`.

    Raises the errors of `fgsm`.
    """
    require_count("steps", steps)
    if key is not None:
        require_key(key)
    attack = _attack("pgd", model, inputs, norm, options)
    distances = require_lengths(attack.question, "epsilon", epsilon)
    if step_size is None:
        step_size = _PATH_IN_EPSILONS / steps * distances
    step_lengths = require_lengths(attack.question, "step_size", step_size)
    return _pgd(attack, distances, step_lengths, key, steps)


@partial(jax.jit, static_argnames="steps")
def _pgd(
    attack: Attack, epsilon: Array, step_size: Array, key: Array | None, steps: int
) -> Adversarial:
    """Attack by projected gradient descent. The result is within `epsilon` of the original."""
    attack = attack.with_original()
    radius = attack.number_by_item(epsilon)
    step_length = attack.number_by_item(step_size)
    start = attack.original if key is None else attack.random_point(key, radius)
    attacked = attack.after_descent(start, radius, step_length, steps)
    return _result(attack, "PGD", attacked)


def smallest_perturbation(
    model: Model,
    *inputs: Input,
    norm: Norm = "l2",
    steps: int = 40,
    classes: int = 10,
    **options: Unpack[AttackOptions],
) -> Adversarial:
    """Search for the smallest change of each item that changes the answer.

    To first order, two scores are equal on a plane. Each step goes just beyond the nearest such
    plane (DeepFool, Moosavi-Dezfooli et al. 2015, arXiv:1511.04599). If the answer has changed
    already, the step ends in the middle between two points of the plane: the point nearest to the
    current point, and the point nearest to the original. This is the step of the fast adaptive
    boundary attack (Croce and Hein 2019, arXiv:1907.02044). Finally a bisection between the best
    point and the original finds where the answer changes.

    The resulting distance is an upper bound of the distance to the decision boundary, since
    gradients may miss a nearer point. If no step changes the answer, the result is the original,
    and the distance is infinite.

    >>> distance = nnef_jax.analysis.smallest_perturbation(model, images, bounds=(0, 255)).distance

    Args:
        norm: the norm of distances: "l2" or "linf".
        steps: the number of steps.
        classes: the number of other classes whose planes a step compares, from the highest score
            downwards. There is one plane for each class.
        options: `target`, `targeted`, `bounds`, `output`, `wrt` and `params`, as in `fgsm`.

    Raises the errors of `fgsm`.
    """
    require_count("steps", steps)
    require_count("classes", classes)
    attack = _attack("smallest_perturbation", model, inputs, norm, options)
    return _smallest(attack, steps, classes)


@partial(jax.jit, static_argnames=("steps", "classes"))
def _smallest(attack: Attack, steps: int, classes: int) -> Adversarial:
    """Search for the smallest change, first by steps to planes, and then by a bisection."""
    attack = attack.with_original()
    nearest = attack.nearest_success(steps, classes)
    _, succeeds = attack.margins_and_success(nearest)
    at_boundary = attack.boundary_point(nearest, _HALVINGS)
    # For an item for which the attack did not succeed, `nearest` is the original.
    attacked = jnp.where(attack.broadcast_items(succeeds), at_boundary, nearest)
    result = _result(attack, "smallest perturbation", attacked)
    distance = jnp.where(succeeds, result.distance, inf)
    # `found` is the success at `nearest`. At the boundary, a rounding error can hide the success.
    return replace(result, found=succeeds, distance=distance)


def _result(attack: Attack, method: str, attacked: Array) -> Adversarial:
    """Return the result of an attack. The attack ends at the tensor `attacked`."""
    question = attack.question
    margin, succeeds = attack.margins_and_success(attacked)
    distance = attack.length(attacked - attack.original)  # [batch, 1, ...]

    def classes_at(x: Array) -> Array | None:
        """Return the class of each item of a tensor, or None if the target is a function."""
        if question.score_function is not None:
            return None
        outputs, _captured = question.run(x)
        return question.class_scores(outputs).argmax(1).astype(jnp.int32)

    return Adversarial(
        x=attacked,
        original=attack.original,
        found=succeeds,
        distance=distance.reshape(-1),
        margin=margin,
        before=classes_at(attack.original),
        after=classes_at(attacked),
        method=method,
        norm=attack.norm,
        of=question.wrt,
        output=question.output or "outputs",
    )


def _attack(
    function: str, model: Model, inputs: tuple[Input, ...], norm: Norm, options: AttackOptions
) -> Attack:
    """Check the arguments of an attack, and return the attack before its first step.

    `function` is the name of the attack, for errors.
    """
    require_choice("norm", norm, ("linf", "l2"))
    keywords: dict[str, Any] = {**options}
    targeted = keywords.pop("targeted", False)
    bounds = keywords.pop("bounds", None)
    require_flags(targeted=targeted)
    if targeted and keywords.get("target") is None:
        raise InputError("a targeted attack needs a target", hint="give classes by target=")
    question = ask(function, model, inputs, keywords)
    question.require_derivative()
    has_classes = question.score_function is None
    if has_classes and question.class_count < 2:
        message = f"'{question.output}' has one score, there is no other class to lead to"
        hint = "give a function as target that returns a margin: target=lambda y: y[:, 0]"
        raise InputError(message, hint=hint)
    if bounds is not None:
        low, high = require_bounds(bounds)
        _require_input_within(question, low, high)
    return Attack(question, bounds, targeted, norm)


def _require_input_within(question: Question, low: float, high: float) -> None:
    """Raise InputError if an attacked input has a value below `low` or above `high`.

    A tensor inside the network is not checked.
    """
    position = question.input_position
    if position is None:
        return  # The tensor is inside the network, and a check would need a run.
    x = question.inputs[position]
    if not has_values(x):
        return  # A traced input has no values to check.
    # An empty tensor has no minimum. It gets the initial value `low`, which is within the bounds.
    smallest = float(np.min(x, initial=low))
    largest = float(np.max(x, initial=low))
    if smallest < low or largest > high:
        message = f"'{question.wrt}' has values from {smallest:g} to {largest:g}"
        raise InputError(f"{message}, bounds are {low:g} to {high:g}")
