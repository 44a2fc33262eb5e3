"""Small changes of an input that change what a network answers."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from nnef_jax.analysis.attack import Attack, AttackOptions, Bounds, Norm
from nnef_jax.analysis.attribution import sizes_of
from nnef_jax.analysis.question import (
    Target,
    ask,
    require_bounds,
    require_count,
    require_key,
)
from nnef_jax.calls.arguments import Input, Params, has_values
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import require_choice, require_flags
from nnef_jax.results import Axes, Result, Table, result, static, table_of

_NORMS = {"linf": "L\u221e", "l2": "L2"}
_STEPS = 2.5  # epsilons: how long all steps are together, as in Madry et al. (2017)
_HALVINGS = 16


@result
class Adversarial(Result):
    """What an attack made of a tensor, for each item of a batch.

    Args:
        x: the tensor that results.
        original: the tensor that the attack began with.
        found: whether the answer is another one (or the one that was wanted), bool [batch].
        distance: how far `x` is from the original in the norm, [batch]; of `smallest_perturbation`
            infinite where nothing was found.
        margin: the score of the class less the highest other one, below 0 where found, [batch]; the
            other way around in a targeted attack.
        before: the class of the original, int32 [batch]; None where a function says the score.
        after: the class of `x`.
        method: the name of the attack.
        norm: "linf", the largest change of an entry, or "l2", the root of the sum of squares.
        of: the name of the tensor.
        output: the name of the tensor that scores are of.
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
        """Return the change: the result less the original."""
        return self.x - self.original

    def table(self) -> Table:
        """Return a table with a row for each item: classes, whether it was found, distance."""
        classes = [] if self.before is None else [("before", self.before), ("after", self.after)]
        numbers = [("found", self.found), (self.norm, self.distance), ("margin", self.margin)]
        heads, columns = zip(*classes, *numbers, strict=True)
        rows = zip(range(len(self.found)), *map(np.asarray, columns), strict=True)
        title = f"{self.method} of {self.of} for {self.output}"
        return table_of(title, ["item", *heads], rows)

    def plot(self, ax: Axes | None = None, *, items: int = 6) -> Axes:
        """Draw the first items: the originals, below what was added, and below what results.

        Red is added, blue taken away, each in a scale of its own. Returns the axes of matplotlib.
        """
        from nnef_jax.analysis.tiles import montage, picture, signed

        x, original = (np.asarray(a[:items], np.float64) for a in (self.x, self.original))
        low, high = (float(f([f(x, initial=0), f(original, initial=0)])) for f in (np.min, np.max))
        each = [""] * len(x)
        before, after = (
            each if c is None else [f"{n}" for n in np.asarray(c[:items])]
            for c in (self.before, self.after)
        )
        found = np.asarray(self.found[:items])
        after = [a if f else f"{a} (not found)" for a, f in zip(after, found, strict=True)]
        lengths = [f"{_NORMS[self.norm]} {n:.3g}" for n in np.asarray(self.distance[:items])]
        tiles = [
            [picture(item, low, high) for item in original],
            [signed(item) for item in x - original],
            [picture(item, low, high) for item in x],
        ]
        return montage(ax, tiles, [before, lengths, after])


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

    The gradient is that of the cross-entropy of `output`, which must be logits.

    >>> nnef_jax.analysis.fgsm(model, images, epsilon=16, bounds=(0, 255)).found

    Args:
        epsilon: how far each entry moves: a number, or one for each item.
        target: the class that the attack leads away from, an integer for each item; by default the
            one with the highest score. A function of the outputs returns scores [batch] instead,
            which the attack lowers: an item is found where its score falls below 0.
        targeted: lead towards the target instead; a score rises above 0.
        bounds: the least and the largest value that an entry may take.

    The other arguments, and errors, are those of `saliency`.
    """
    options: AttackOptions = {"target": target, "output": output, "wrt": wrt, "params": params}
    options |= {"targeted": targeted, "bounds": bounds}
    attack = _attack("fgsm", model, inputs, "linf", options)
    return _fgsm(attack, sizes_of(attack.question, "epsilon", epsilon))


@jax.jit
def _fgsm(attack: Attack, epsilon: Array) -> Adversarial:
    attack = attack.begun()
    gradient, _ = attack.gradient(attack.original)
    x = attack.moved(attack.original, gradient, attack.sizes(epsilon))
    return _result(attack, "FGSM", x)


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

    Of the points on its way it returns the one with the smallest margin.

    >>> nnef_jax.analysis.pgd(model, images, epsilon=16, bounds=(0, 255), key=jax.random.key(0))

    Args:
        epsilon: how far the result may be from the original: a number, or one for each item.
        norm: what is measured by: "linf" or "l2".
        steps: how many gradients are computed.
        step_size: the length of a step in units of the input: a number, or one for each item. By
            default 2.5 epsilon / steps, as there.
        key: of `jax.random`, to start at a random point that near; by default at the original.
        options: `target`, `targeted`, `bounds`, `output`, `wrt` and `params`, as in `fgsm`, whose
            errors it raises too.
    """
    require_count("steps", steps)
    if key is not None:
        require_key(key)
    attack = _attack("pgd", model, inputs, norm, options)
    size = sizes_of(attack.question, "epsilon", epsilon)
    length = _STEPS / steps * size if step_size is None else step_size
    return _pgd(attack, size, sizes_of(attack.question, "step_size", length), key, steps)


@partial(jax.jit, static_argnames="steps")
def _pgd(
    attack: Attack, epsilon: Array, step_size: Array, key: Array | None, steps: int
) -> Adversarial:
    attack = attack.begun()
    size = attack.sizes(epsilon)
    start = attack.original if key is None else attack.random(key, size)
    found = attack.descended(start, size, attack.sizes(step_size), steps)
    return _result(attack, "PGD", found)


def smallest_perturbation(
    model: Model,
    *inputs: Input,
    norm: Norm = "l2",
    steps: int = 40,
    classes: int = 10,
    **options: Unpack[AttackOptions],
) -> Adversarial:
    """Search the smallest change of each item that changes the answer.

    Each step goes beyond the nearest of the planes where two scores are equal to first order
    (DeepFool, Moosavi-Dezfooli et al. 2015, arXiv:1511.04599). One that got through goes on half
    way to where that plane is nearest to the original, as in the fast adaptive boundary attack
    (Croce and Hein 2019, arXiv:1907.02044). The nearest point is drawn back on a straight line to
    where the answer changes.

    Its distance is an upper bound of that to the decision boundary: there may be a nearer point
    that gradients do not lead to. Where none is found, the result is the original, and the distance
    infinite.

    >>> distance = nnef_jax.analysis.smallest_perturbation(model, images, bounds=(0, 255)).distance

    Args:
        norm: what is measured by: "l2" or "linf".
        steps: how many planes are gone to.
        classes: of how many other classes, those with the highest scores, planes are computed.
        options: `target`, `targeted`, `bounds`, `output`, `wrt` and `params`, as in `fgsm`, whose
            errors it raises too.
    """
    require_count("steps", steps)
    require_count("classes", classes)
    attack = _attack("smallest_perturbation", model, inputs, norm, options)
    return _smallest(attack, steps, classes)


@partial(jax.jit, static_argnames=("steps", "classes"))
def _smallest(attack: Attack, steps: int, classes: int) -> Adversarial:
    attack = attack.begun()
    best = attack.nearest(steps, classes)
    through = attack.reached(best)[1]
    best = jnp.where(attack.spread(through), attack.drawn_back(best, _HALVINGS), best)
    return _result(attack, "smallest perturbation", best, through)


def _result(attack: Attack, method: str, x: Array, found: Array | None = None) -> Adversarial:
    question, (margin, through) = attack.question, attack.reached(x)
    distance = attack.length(x - attack.original).reshape(-1)

    def classes(x: Array) -> Array | None:
        if question.score is not None:
            return None
        return question.entries(question.run(x)[0]).argmax(1).astype(jnp.int32)

    return Adversarial(
        x=x,
        original=attack.original,
        found=through if found is None else found,
        distance=distance if found is None else jnp.where(found, distance, inf),
        margin=margin,
        before=classes(attack.original),
        after=classes(x),
        method=method,
        norm=attack.norm,
        of=question.wrt,
        output=question.output or "outputs",
    )


def _attack(
    function: str, model: Model, inputs: tuple[Any, ...], norm: Norm, options: AttackOptions
) -> Attack:
    """Return an attack that has not begun; raise for what none can do."""
    require_choice("norm", norm, ("linf", "l2"))
    given: dict[str, Any] = {**options}
    targeted, bounds = given.pop("targeted", False), given.pop("bounds", None)
    require_flags(targeted=targeted)
    if targeted and given.get("target") is None:
        raise InputError("a targeted attack needs a target", hint="give classes by target=")
    question = ask(function, model, inputs, given)
    question.require_derivative()
    if question.score is None and question.count < 2:
        message = f"'{question.output}' has one score, so that there is no other class"
        hint = "give as target a function that returns a margin: target=lambda y: y[:, 0]"
        raise InputError(message, hint=hint)
    if bounds is not None:
        low, high = require_bounds(bounds)
        x = None if question.position is None else question.inputs[question.position]
        if x is not None and has_values(x):
            least, largest = (float(f(x, initial=low)) for f in (np.min, np.max))
            if least < low or largest > high:
                message = f"'{question.wrt}' has values from {least:g} to {largest:g}"
                raise InputError(f"{message}, bounds are {low:g} to {high:g}")
    return Attack(question, bounds, targeted, norm)
