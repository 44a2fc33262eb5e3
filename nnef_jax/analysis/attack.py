"""What attacks share: what they lower, and how they move near an original."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from nnef_jax.analysis.question import Question, QuestionOptions

Norm = Literal["linf", "l2"]
Bounds = tuple[float, float]

_NEWTON = 12  # steps: 3 are enough for most
_ROUNDING = 16  # units in the last place
_OVER = 0.05  # how far beyond a plane a step goes, as a share of the way


class AttackOptions(QuestionOptions, total=False):
    """Keywords of `fgsm` that all attacks have."""

    targeted: bool
    bounds: Bounds | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Attack:
    """Leads each item of a batch away from its class, or with `targeted` towards it; a pytree.

    Sizes are arrays [batch, 1, ...], which broadcast to the tensor.
    """

    question: Question
    bounds: Bounds | None
    targeted: bool = field(metadata={"static": True})
    norm: Norm = field(metadata={"static": True})
    start: Array | None = None

    def begun(self) -> Attack:
        """Return the attack from the tensor that the question is about, and its classes, on."""
        x = self.question.value()
        return replace(self, question=self.question.settled(x), start=x)

    @property
    def original(self) -> Array:
        """Return the tensor that the attack began with."""
        assert self.start is not None
        return self.start

    def sizes(self, given: Array) -> Array:
        """Return a number, or one for each item, as sizes."""
        batch = self.original.shape[:1]
        return self.spread(jnp.broadcast_to(jnp.asarray(given, self.original.dtype), batch))

    def spread(self, items: Array) -> Array:
        """Return [batch] as [batch, 1, ...]."""
        return items.reshape(-1, *[1] * (self.original.ndim - 1))

    def length(self, change: Array) -> Array:
        """Return the norm of each item, as sizes."""
        if self.norm == "linf":
            return jnp.abs(change).max(tuple(range(1, change.ndim)), keepdims=True, initial=0)
        return _euclidean(change)

    def reached(self, x: Array) -> tuple[Array, Array]:
        """Return the margin of each item, and whether the attack got through."""
        return self._judged(self.question.run(x)[0])[:2]

    def gradient(self, x: Array) -> tuple[Array, tuple[Array, Array]]:
        """Return the gradient of what an attack raises, and what it has reached.

        Raised are the log-odds of all other classes. Their gradient has the direction of that of
        the cross-entropy, and does not vanish where the network is certain.
        """

        def raised(x: Array) -> tuple[Array, tuple[Array, Array]]:
            outputs = self.question.run(x)[0]
            margin, through, others = self._judged(outputs)
            if others is None:
                return -margin.sum(), (margin, through)
            entries = self.question.entries(outputs)
            rest = jax.nn.logsumexp(entries, axis=1, where=others)
            return self._sign * (rest - self.question.scores(outputs)).sum(), (margin, through)

        return jax.grad(raised, has_aux=True)(x)

    @property
    def _sign(self) -> int:
        return -1 if self.targeted else 1

    def _judged(self, outputs: Any) -> tuple[Array, Array, Array | None]:
        """Return margins, whether they tell of another answer, and which entries are others.

        A margin is below 0 there, by more than what rounding may make of equal scores.
        """
        question = self.question
        scores = question.scores(outputs)
        if question.score is not None:
            return self._sign * scores, self._sign * scores < 0, None
        entries, classes = question.entries(outputs), question.classes
        assert classes is not None
        others = jnp.arange(entries.shape[1])[None] != classes[:, None]
        margin = self._sign * (scores - jnp.where(others, entries, -jnp.inf).max(1))
        rounding = _ROUNDING * float(jnp.finfo(entries.dtype).eps) * jnp.abs(scores)
        return margin, margin < -rounding, others

    def moved(self, x: Array, gradient: Array, length: Array) -> Array:
        """Return a point so far along a gradient, steepest in the norm, within bounds."""
        if self.norm == "linf":
            step = jnp.sign(gradient)
        else:
            norm = self.length(gradient)
            step = gradient / jnp.where(norm > 0, norm, 1)
        return self._within(x + length * step)

    def near(self, x: Array, size: Array) -> Array:
        """Return the nearest point that is within a size of the original, and within bounds."""
        change = x - self.original
        if self.norm == "linf":
            change = jnp.clip(change, -size, size)
        else:
            norm = self.length(change)
            change = change * jnp.where(norm > size, size / jnp.where(norm > 0, norm, 1), 1)
        return self._within(self.original + change)

    def random(self, key: Array, size: Array) -> Array:
        """Return a uniformly distributed point within a size of the original."""
        x = self.original
        if self.norm == "linf":
            return self._within(x + size * jax.random.uniform(key, x.shape, x.dtype, -1, 1))
        one, other = jax.random.split(key)
        direction = jax.random.normal(one, x.shape, x.dtype)
        radius = jax.random.uniform(other, size.shape, x.dtype) ** (1 / max(1, x[:1].size))
        return self._within(x + size * radius * direction / self.length(direction))

    def descended(self, x: Array, size: Array, step_size: Array, steps: int) -> Array:
        """Return the point with the smallest margin on a way of steps of that size."""

        def move(state: tuple[Array, ...], __: None) -> tuple[tuple[Array, ...], None]:
            x, best, least = state
            gradient, (margin, _) = self.gradient(x)
            best, least = self._better(x, margin, best, least)
            return (self.near(self.moved(x, gradient, step_size), size), best, least), None

        start = x, x, jnp.full(x.shape[:1], jnp.inf)
        (x, best, least), _ = lax.scan(move, start, None, length=steps)
        return self._better(x, self.reached(x)[0], best, least)[0]

    def _better(self, x: Array, margin: Array, best: Array, least: Array) -> tuple[Array, Array]:
        margin = margin.astype(least.dtype)
        return jnp.where(self.spread(margin < least), x, best), jnp.minimum(margin, least)

    def nearest(self, steps: int, classes: int) -> Array:
        """Return the nearest point that got through on a way of steps, or the original.

        A step goes beyond the nearest plane where a margin is 0 to first order. One that got
        through goes on half way to where that plane is nearest to the original.
        """
        original = self.original

        def move(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
            x, best, least = state
            margin, plane, through = self._plane(x, classes)
            distance = self.length(x - original)
            is_best = self.spread(through) & (distance < least)
            best, least = jnp.where(is_best, x, best), jnp.where(is_best, distance, least)
            beyond = margin + _OVER * jnp.abs(margin)
            here = self._onto(x, beyond, plane)
            axes = tuple(range(1, x.ndim))
            back = (plane * (original - x)).sum(axes, keepdims=True)
            there = self._onto(original, beyond + back, plane)
            x = jnp.where(self.spread(through), (here + there) / 2, here)
            return (x, best, least), None

        start = original, original, jnp.full_like(self.length(original), jnp.inf)
        (x, best, least), _ = lax.scan(move, start, None, length=steps)
        is_best = self.spread(self.reached(x)[1]) & (self.length(x - original) < least)
        return jnp.where(is_best, x, best)

    def _plane(self, x: Array, classes: int) -> tuple[Array, Array, Array]:
        """Return a margin, as sizes, its gradient, and whether the attack got through.

        The margin is that over the class whose plane is the nearest.
        """
        question = self.question

        def margins(x: Array) -> tuple[Array, Array]:
            outputs = question.run(x)[0]
            margin, through, others = self._judged(outputs)
            if others is None or self.targeted:
                return margin[:, None], through
            entries = jnp.where(others, question.entries(outputs), -jnp.inf)
            highest = lax.top_k(entries, min(classes, entries.shape[1] - 1))[0]
            return question.scores(outputs)[:, None] - highest, through

        found, pull, through = jax.vjp(margins, x, has_aux=True)
        units = jnp.eye(found.shape[1], dtype=found.dtype)[:, None]
        planes = jax.vmap(lambda unit: pull(jnp.broadcast_to(unit, found.shape))[0])(units)
        margin = jax.vmap(self.spread)(found.T).astype(x.dtype)
        lengths = jax.vmap(self._dual)(planes)
        distances = jnp.abs(margin) / jnp.where(lengths > 0, lengths, 1)
        nearest = jnp.where(lengths > 0, distances, jnp.inf).argmin(0)[None]
        margin, plane = (jnp.take_along_axis(each, nearest, 0)[0] for each in (margin, planes))
        return margin, plane, through

    def _dual(self, change: Array) -> Array:
        if self.norm == "linf":
            return jnp.abs(change).sum(tuple(range(1, change.ndim)), keepdims=True)
        return _euclidean(change)

    def _onto(self, x: Array, margin: Array, plane: Array) -> Array:
        """Return the nearest point within bounds where a linear margin is 0, given its gradient.

        It is x less t times a direction, clipped. What the margin loses is a concave function of t,
        made of straight pieces, so that Newton's method reaches the t from below.
        """
        axes = tuple(range(1, x.ndim))
        direction = jnp.sign(plane) if self.norm == "linf" else plane
        direction = direction * jnp.sign(margin)

        def at(t: Array) -> Array:
            return self._within(x - t * direction)

        def newton(_: int, t: Array) -> Array:
            point = at(t)
            left = margin + (plane * (point - x)).sum(axes, keepdims=True)
            slope = jnp.where(self._moves(point, direction), plane * direction, 0)
            slope = jnp.abs(slope.sum(axes, keepdims=True))
            return t + jnp.abs(left) / jnp.where(slope > 0, slope, jnp.inf)

        return at(lax.fori_loop(0, 1 if self.bounds is None else _NEWTON, newton, 0 * margin))

    def drawn_back(self, x: Array, rounds: int) -> Array:
        """Return the last point found on the way back to the original, by bisection."""
        change = x - self.original

        def halve(known: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            low, high = known
            middle = (low + high) / 2
            through = self.spread(self.reached(self.original + middle * change)[1])
            return (jnp.where(through, low, middle), jnp.where(through, middle, high)), None

        zero = self.spread(jnp.zeros(x.shape[:1], x.dtype))
        (_, share), _ = lax.scan(halve, (zero, zero + 1), None, length=rounds)
        return self.original + share * change

    def _within(self, x: Array) -> Array:
        if self.bounds is None:
            return x
        low, high = (jnp.asarray(bound, x.dtype) for bound in self.bounds)
        return jnp.clip(x, low, high)

    def _moves(self, x: Array, direction: Array) -> Array:
        """Tell which entries a step against a direction moves within bounds."""
        if self.bounds is None:
            return jnp.ones(x.shape, bool)
        low, high = (jnp.asarray(bound, x.dtype) for bound in self.bounds)
        return jnp.where(direction > 0, x > low, x < high)


def _euclidean(change: Array) -> Array:
    """Return the root of each item's sum of squares, which 16 bits may not hold."""
    wide = change if change.dtype == jnp.float64 else change.astype(jnp.float32)
    squares = jnp.square(wide).sum(tuple(range(1, change.ndim)), keepdims=True)
    return jnp.sqrt(squares).astype(change.dtype)
