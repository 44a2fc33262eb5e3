"""The common parts of attacks: margins, gradients, and moves within a norm and bounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from nnef_jax.analysis.question import Question, QuestionOptions

Norm = Literal["linf", "l2"]
Bounds = tuple[float, float]

_NEWTON = 12  # The number of Newton's steps. Most tensors need 3.
_ROUNDING = 16  # tolerance of equal scores, in units in the last place
_OVERSHOOT = 0.05  # A step ends beyond the plane, by 5 % of the distance to the plane.


class AttackOptions(QuestionOptions, total=False):
    """Keywords of `fgsm` that all attacks accept."""

    targeted: bool
    bounds: Bounds | None


class _Plane(NamedTuple):
    """The points whose margin over one other class is 0 to first order, for each item.

    Args:
        margin: the margin over the other class at the current point.
        normal: the gradient of the margin.
        succeeds: whether the attack succeeds at the current point.
    """

    margin: Array
    normal: Array
    succeeds: Array


class _Verdict(NamedTuple):
    """Margins [batch], whether the attack succeeds, bool [batch], and a mask of the other classes.

    The attack succeeds for an item if its margin is below 0 by more than the rounding error of
    equal scores. The mask, bool [batch, class], is True except at the class of each item. It is
    None if the target is a function.
    """

    margin: Array
    succeeds: Array
    is_other: Array | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Attack:
    """An attack that leads each item of a batch away from its class, or towards it if `targeted`.

    An attack is a pytree. In its methods, an argument or result with a number for each item is an
    array [batch, 1, ...], which broadcasts to the attacked tensor `wrt`.
    """

    question: Question
    bounds: Bounds | None
    targeted: bool = field(metadata={"static": True})
    norm: Norm = field(metadata={"static": True})
    start: Array | None = None

    def with_original(self) -> Attack:
        """Return an attack that holds the tensor before the attack, and its items' classes."""
        x = self.question.value()
        return replace(self, question=self.question.with_classes(x), start=x)

    @property
    def original(self) -> Array:
        """Return the tensor before the attack."""
        assert self.start is not None
        return self.start

    def sizes(self, numbers: Array) -> Array:
        """Broadcast a number, or an array [batch], to a number for each item, [batch, 1, ...]."""
        batch = self.original.shape[:1]
        items = jnp.broadcast_to(jnp.asarray(numbers, self.original.dtype), batch)
        return self.broadcast_items(items)

    def broadcast_items(self, items: Array) -> Array:
        """Reshape an array [batch] to [batch, 1, ...], so that it broadcasts to the tensor."""
        return items.reshape(-1, *[1] * (self.original.ndim - 1))

    def length(self, change: Array) -> Array:
        """Return the norm of the change of each item, [batch, 1, ...].

        It is the largest magnitude of an entry for the norm "linf", and the L2 norm for "l2".
        """
        if self.norm == "linf":
            return jnp.abs(change).max(tuple(range(1, change.ndim)), keepdims=True, initial=0)
        return _euclidean(change)

    def margins_and_success(self, x: Array) -> tuple[Array, Array]:
        """Return the margins at a point, [batch], and whether the attack succeeds, bool [batch]."""
        verdict = self._judged(self.question.run(x)[0])
        return verdict.margin, verdict.succeeds

    def gradient(self, x: Array) -> tuple[Array, tuple[Array, Array]]:
        """Return the gradient along which the attack succeeds, and `margins_and_success(x)`.

        The gradient is the derivative of the log-odds of the other classes against the class, with
        opposite sign in a targeted attack. It has the direction of the gradient of the
        cross-entropy, but does not vanish where the network is certain.
        """

        def log_odds(x: Array) -> tuple[Array, tuple[Array, Array]]:
            outputs = self.question.run(x)[0]
            margin, succeeds, is_other = self._judged(outputs)
            if is_other is None:
                return -margin.sum(), (margin, succeeds)
            entries = self.question.entries(outputs)
            against = jax.nn.logsumexp(entries, axis=1, where=is_other)
            odds = self._sign * (against - self.question.scores(outputs)).sum()
            return odds, (margin, succeeds)

        return jax.grad(log_odds, has_aux=True)(x)

    @property
    def _sign(self) -> int:
        return -1 if self.targeted else 1

    def _judged(self, outputs: Any) -> _Verdict:
        """Return the margins at the outputs of a network, and whether the attack succeeds."""
        question = self.question
        scores = question.scores(outputs)
        if question.score is not None:
            margin = self._sign * scores
            return _Verdict(margin, margin < 0, None)
        entries = question.entries(outputs)
        classes = question.classes
        assert classes is not None
        is_other = jnp.arange(entries.shape[1])[None] != classes[:, None]
        margin = self._sign * (scores - jnp.where(is_other, entries, -jnp.inf).max(1))
        rounding = _ROUNDING * float(jnp.finfo(entries.dtype).eps) * jnp.abs(scores)
        return _Verdict(margin, margin < -rounding, is_other)

    def after_step(self, x: Array, gradient: Array, length: Array) -> Array:
        """Return `x` after a step of the given length in the direction of steepest ascent.

        The direction is the sign of the gradient for the norm "linf", and the normalised gradient
        for "l2". The result is clipped to the bounds.
        """
        if self.norm == "linf":
            step = jnp.sign(gradient)
        else:
            norm = self.length(gradient)
            step = gradient / jnp.where(norm > 0, norm, 1)
        return self._within(x + length * step)

    def projected(self, x: Array, size: Array) -> Array:
        """Move a point to within a distance `size` of the original, and within bounds."""
        change = x - self.original
        if self.norm == "linf":
            change = jnp.clip(change, -size, size)
        else:
            norm = self.length(change)
            is_far = norm > size
            shrinking = size / jnp.where(norm > 0, norm, 1)
            change = change * jnp.where(is_far, shrinking, 1)
        return self._within(self.original + change)

    def random(self, key: Array, size: Array) -> Array:
        """Return a random point, uniformly distributed within a distance `size` of the original."""
        x = self.original
        if self.norm == "linf":
            return self._within(x + size * jax.random.uniform(key, x.shape, x.dtype, -1, 1))
        for_direction, for_radius = jax.random.split(key)
        direction = jax.random.normal(for_direction, x.shape, x.dtype)
        dimensions = max(1, x[:1].size)
        radius = jax.random.uniform(for_radius, size.shape, x.dtype) ** (1 / dimensions)
        return self._within(x + size * radius * direction / self.length(direction))

    def after_descent(self, x: Array, size: Array, step_size: Array, steps: int) -> Array:
        """Return the point with the smallest margin during projected gradient descent from `x`.

        The point is chosen for each item separately. All points of the descent are within a
        distance `size` of the original.
        """

        def move(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
            x, best, best_margin = state
            gradient, (margin, _succeeds) = self.gradient(x)
            best, best_margin = self._better(x, margin, best, best_margin)
            x = self.projected(self.after_step(x, gradient, step_size), size)
            return (x, best, best_margin), None

        start = x, x, jnp.full(x.shape[:1], jnp.inf)
        (x, best, best_margin), _ = lax.scan(move, start, None, length=steps)
        margin, _ = self.margins_and_success(x)
        return self._better(x, margin, best, best_margin)[0]

    def _better(
        self, x: Array, margin: Array, best: Array, best_margin: Array
    ) -> tuple[Array, Array]:
        """Return, for each item, the better of two points and its margin.

        The better point is `x` or `best`, whichever has the smaller margin.
        """
        margin = margin.astype(best_margin.dtype)
        is_better = self.broadcast_items(margin < best_margin)
        return jnp.where(is_better, x, best), jnp.minimum(margin, best_margin)

    def nearest(self, steps: int, classes: int) -> Array:
        """Return the point nearest to the original at which the attack succeeds, or the original.

        A plane consists of the points at which the margin over another class is 0 to first order. A
        step goes just beyond the nearest plane. If the attack has succeeded already, the step goes
        half way towards the point of the plane that is nearest to the original.
        """
        original = self.original

        def move(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
            x, best, best_distance = state
            margin, normal, succeeds = self._nearest_plane(x, classes)
            distance = self.length(x - original)
            is_best = self.broadcast_items(succeeds) & (distance < best_distance)
            best = jnp.where(is_best, x, best)
            best_distance = jnp.where(is_best, distance, best_distance)
            beyond = margin + _OVERSHOOT * jnp.abs(margin)
            from_here = self._nearest_on_plane(x, beyond, normal)
            axes = tuple(range(1, x.ndim))
            change = (normal * (original - x)).sum(axes, keepdims=True)
            from_original = self._nearest_on_plane(original, beyond + change, normal)
            half_way = (from_here + from_original) / 2
            x = jnp.where(self.broadcast_items(succeeds), half_way, from_here)
            return (x, best, best_distance), None

        start = original, original, jnp.full_like(self.length(original), jnp.inf)
        (x, best, best_distance), _ = lax.scan(move, start, None, length=steps)
        _, succeeds = self.margins_and_success(x)
        is_best = self.broadcast_items(succeeds) & (self.length(x - original) < best_distance)
        return jnp.where(is_best, x, best)

    def _nearest_plane(self, x: Array, classes: int) -> _Plane:
        """Return the nearest of the planes on which the margin over another class is 0.

        The planes belong to the `classes` other classes with the highest scores.
        """
        question = self.question

        def margins_at(x: Array) -> tuple[Array, Array]:
            outputs = question.run(x)[0]
            margin, succeeds, is_other = self._judged(outputs)
            if is_other is None or self.targeted:
                return margin[:, None], succeeds
            entries = jnp.where(is_other, question.entries(outputs), -jnp.inf)
            highest = lax.top_k(entries, min(classes, entries.shape[1] - 1))[0]
            return question.scores(outputs)[:, None] - highest, succeeds

        class_margins, pull, succeeds = jax.vjp(margins_at, x, has_aux=True)
        shape = class_margins.shape
        units = jnp.eye(shape[1], dtype=class_margins.dtype)[:, None]
        normals = jax.vmap(lambda unit: pull(jnp.broadcast_to(unit, shape))[0])(units)
        # (class, batch, 1, ...)
        margins = jax.vmap(self.broadcast_items)(class_margins.T).astype(x.dtype)
        lengths = jax.vmap(self._dual_norm)(normals)
        distances = jnp.abs(margins) / jnp.where(lengths > 0, lengths, 1)
        nearest = jnp.where(lengths > 0, distances, jnp.inf).argmin(0)[None]
        margin = jnp.take_along_axis(margins, nearest, 0)[0]
        normal = jnp.take_along_axis(normals, nearest, 0)[0]
        return _Plane(margin, normal, succeeds)

    def _dual_norm(self, normal: Array) -> Array:
        """Return the dual norm of each item of a gradient, [batch, 1, ...].

        The margin divided by the dual norm of its gradient is the distance to the plane of margin
        0.
        """
        if self.norm == "linf":
            return jnp.abs(normal).sum(tuple(range(1, normal.ndim)), keepdims=True)
        return _euclidean(normal)

    def _nearest_on_plane(self, x: Array, margin: Array, normal: Array) -> Array:
        """Return the point within bounds, nearest to `x`, where a linear margin is 0.

        `margin` is the margin at `x`, and `normal` is its gradient. The result is clip(x - t *
        direction) for some number t. The decrease of the margin is a concave, piecewise linear
        function of t, so Newton's method approaches the solution from below.
        """
        axes = tuple(range(1, x.ndim))
        direction = jnp.sign(normal) if self.norm == "linf" else normal
        direction = direction * jnp.sign(margin)

        def at(t: Array) -> Array:
            return self._within(x - t * direction)

        def newton(_: int, t: Array) -> Array:
            point = at(t)
            remaining = margin + (normal * (point - x)).sum(axes, keepdims=True)
            slope = jnp.where(self._can_move(point, direction), normal * direction, 0)
            slope = jnp.abs(slope.sum(axes, keepdims=True))
            return t + jnp.abs(remaining) / jnp.where(slope > 0, slope, jnp.inf)

        steps = 1 if self.bounds is None else _NEWTON
        return at(lax.fori_loop(0, steps, newton, 0 * margin))

    def drawn_back(self, x: Array, rounds: int) -> Array:
        """Return the point between the original and `x` where the attack just succeeds.

        Args:
            x: a point where the attack succeeds.
            rounds: the number of bisections of the line from the original to `x`.
        """
        change = x - self.original

        def halve(ends: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            low, high = ends
            middle = (low + high) / 2
            items_succeed = self.margins_and_success(self.original + middle * change)[1]
            succeeds = self.broadcast_items(items_succeed)
            return (jnp.where(succeeds, low, middle), jnp.where(succeeds, middle, high)), None

        zero = self.broadcast_items(jnp.zeros(x.shape[:1], x.dtype))
        (_, share), _ = lax.scan(halve, (zero, zero + 1), None, length=rounds)
        return self.original + share * change

    def _within(self, x: Array) -> Array:
        if self.bounds is None:
            return x
        low, high = (jnp.asarray(bound, x.dtype) for bound in self.bounds)
        return jnp.clip(x, low, high)

    def _can_move(self, x: Array, direction: Array) -> Array:
        """Return the mask of the entries that a step against the direction can still move."""
        if self.bounds is None:
            return jnp.ones(x.shape, bool)
        low, high = (jnp.asarray(bound, x.dtype) for bound in self.bounds)
        return jnp.where(direction > 0, x > low, x < high)


def _euclidean(change: Array) -> Array:
    """Return the L2 norm of each item, [batch, 1, ...]. Squares are added in at least 32 bits."""
    wide = change if change.dtype == jnp.float64 else change.astype(jnp.float32)
    squares = jnp.square(wide).sum(tuple(range(1, change.ndim)), keepdims=True)
    return jnp.sqrt(squares).astype(change.dtype)
