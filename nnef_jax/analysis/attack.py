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

_NEWTON_STEPS = 12  # This is the number of Newton's steps. Most tensors need 3 steps.
# Two scores count as equal if they differ by at most 16 units in the last place.
_ROUNDING_ULPS = 16
_OVERSHOOT_SHARE = 0.05  # A step goes 5 % farther than to the plane.


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
    """An attack on each item of a batch.

    The attack leads an item away from its class; if `targeted`, it leads the item to its class.

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
        """Return a number for each item, [batch, 1, ...], from a number or an array [batch]."""
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
        outputs, _ = self.question.run(x)
        verdict = self._judged(outputs)
        return verdict.margin, verdict.succeeds

    def gradient(self, x: Array) -> tuple[Array, tuple[Array, Array]]:
        """Return the direction in which the attack should move `x`, and `margins_and_success(x)`.

        The direction is the gradient of the log-odds of the other classes against the item's class,
        with opposite sign in a targeted attack. This gradient is parallel to the gradient of the
        cross-entropy, but it does not vanish where the network is certain.
        """

        def log_odds(x: Array) -> tuple[Array, tuple[Array, Array]]:
            outputs, _ = self.question.run(x)
            margin, succeeds, is_other = self._judged(outputs)
            if is_other is None:  # The target is a function, which returns the margin.
                return -margin.sum(), (margin, succeeds)
            entries = self.question.entries(outputs)
            others_together = jax.nn.logsumexp(entries, axis=1, where=is_other)
            odds_by_item = others_together - self.question.scores(outputs)
            return self._sign * odds_by_item.sum(), (margin, succeeds)

        return jax.grad(log_odds, has_aux=True)(x)

    @property
    def _sign(self) -> int:
        return -1 if self.targeted else 1

    def _judged(self, outputs: Any) -> _Verdict:
        """Return the margins for the outputs of a network, and whether the attack succeeds."""
        question = self.question
        scores = question.scores(outputs)
        if question.score is not None:
            margin = self._sign * scores
            return _Verdict(margin, succeeds=margin < 0, is_other=None)
        entries = question.entries(outputs)
        item_classes = question.classes
        assert item_classes is not None
        class_indices = jnp.arange(entries.shape[1])
        is_other = class_indices[None] != item_classes[:, None]
        highest_other = jnp.where(is_other, entries, -jnp.inf).max(1)
        margin = self._sign * (scores - highest_other)
        rounding = _ROUNDING_ULPS * float(jnp.finfo(entries.dtype).eps) * jnp.abs(scores)
        return _Verdict(margin, succeeds=margin < -rounding, is_other=is_other)

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
            return self._within(self.original + jnp.clip(change, -size, size))
        norm = self.length(change)
        shrinking = size / jnp.where(norm > 0, norm, 1)
        factor = jnp.where(norm > size, shrinking, 1)
        return self._within(self.original + change * factor)

    def random(self, key: Array, size: Array) -> Array:
        """Return a random point, uniformly distributed within a distance `size` of the original."""
        x = self.original
        if self.norm == "linf":
            return self._within(x + size * jax.random.uniform(key, x.shape, x.dtype, -1, 1))
        direction_key, radius_key = jax.random.split(key)
        direction = jax.random.normal(direction_key, x.shape, x.dtype)
        dimensions = max(1, x[:1].size)
        # The volume of a ball with the radius r is proportional to r ** dimensions. To be uniform
        # in the ball, a random point therefore needs this power of a uniform random number.
        volume = jax.random.uniform(radius_key, size.shape, x.dtype)
        radius = volume ** (1 / dimensions)
        return self._within(x + size * radius * direction / self.length(direction))

    def after_descent(self, x: Array, size: Array, step_size: Array, steps: int) -> Array:
        """Return the point with the smallest margin during projected gradient descent from `x`.

        The point is chosen for each item separately. All points of the descent are within a
        distance `size` of the original.
        """

        def move(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
            """Compare the current point with the best point, and make a step."""
            x, best, best_margin = state
            gradient, (margin, _succeeds) = self.gradient(x)
            best, best_margin = self._better(x, margin, best, best_margin)
            moved = self.after_step(x, gradient, step_size)
            return (self.projected(moved, size), best, best_margin), None

        start = x, x, jnp.full(x.shape[:1], jnp.inf)
        (last, best, best_margin), _ = lax.scan(move, start, length=steps)
        margin, _ = self.margins_and_success(last)
        best, _ = self._better(last, margin, best, best_margin)
        return best

    def _better(
        self, x: Array, margin: Array, best: Array, best_margin: Array
    ) -> tuple[Array, Array]:
        """Return the better of the points `x` and `best` for each item, and its margin.

        The better point of an item is the point with the smaller margin.
        """
        margin = margin.astype(best_margin.dtype)
        is_better = self.broadcast_items(margin < best_margin)
        return jnp.where(is_better, x, best), jnp.minimum(margin, best_margin)

    def nearest(self, steps: int, classes: int) -> Array:
        """Return the point nearest to the original at which the attack succeeds, or the original.

        A plane consists of the points at which the margin over another class is 0 to first order. A
        step goes just beyond the nearest plane. If the attack has succeeded already, the step ends
        half way between this point and the point of the plane that is nearest to the original.

        Args:
            steps: the number of steps.
            classes: the number of other classes that a step considers.
        """
        original = self.original

        def better(x: Array, succeeds: Array, best: Array, least: Array) -> tuple[Array, Array]:
            """Return `x` and its distance where it is the nearest success, else `best`, `least`."""
            distance = self.length(x - original)
            is_better = self.broadcast_items(succeeds) & (distance < least)
            return jnp.where(is_better, x, best), jnp.where(is_better, distance, least)

        def move(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
            """Compare the current point with the best point, and make a step."""
            x, best, least_distance = state
            margin, normal, succeeds = self._nearest_plane(x, classes)
            best, least_distance = better(x, succeeds, best, least_distance)
            margin_to_lose = margin + _OVERSHOOT_SHARE * jnp.abs(margin)
            from_x = self._nearest_on_plane(x, margin_to_lose, normal)
            axes = tuple(range(1, x.ndim))
            # The plane is given by the margin at `x`. To first order, the margin at the original is
            # larger by `additional_margin`.
            additional_margin = (normal * (original - x)).sum(axes, keepdims=True)
            margin_at_original = margin_to_lose + additional_margin
            from_original = self._nearest_on_plane(original, margin_at_original, normal)
            half_way = (from_x + from_original) / 2
            x = jnp.where(self.broadcast_items(succeeds), half_way, from_x)
            return (x, best, least_distance), None

        start = original, original, jnp.full_like(self.length(original), jnp.inf)
        (last, best, least_distance), _ = lax.scan(move, start, length=steps)
        _, succeeds = self.margins_and_success(last)
        best, _ = better(last, succeeds, best, least_distance)
        return best

    def _nearest_plane(self, x: Array, classes: int) -> _Plane:
        """Return the plane nearest to `x` on which the margin over another class is 0.

        There is a plane for each of the `classes` other classes with the highest scores.
        """
        question = self.question

        def margins_at(x: Array) -> tuple[Array, Array]:
            """Return the margins over other classes, [batch, class], and whether `x` succeeds."""
            outputs, _ = question.run(x)
            margin, succeeds, is_other = self._judged(outputs)
            if is_other is None or self.targeted:
                return margin[:, None], succeeds
            other_entries = jnp.where(is_other, question.entries(outputs), -jnp.inf)
            _batch, class_count = other_entries.shape
            count = min(classes, class_count - 1)
            highest, _ = lax.top_k(other_entries, count)
            return question.scores(outputs)[:, None] - highest, succeeds

        class_margins, pull, succeeds = jax.vjp(margins_at, x, has_aux=True)

        def normal_of(unit: Array) -> Array:
            """Return the gradient of the margin over the class at which the unit vector is 1."""
            (gradient,) = pull(jnp.broadcast_to(unit, class_margins.shape))
            return gradient

        class_count = class_margins.shape[1]
        units = jnp.eye(class_count, dtype=class_margins.dtype)[:, None]
        # The gradients are computed class by class, so the arrays below are (class, batch, ...).
        normals = jax.vmap(normal_of)(units)
        margins = jax.vmap(self.broadcast_items)(class_margins.T).astype(x.dtype)
        lengths = jax.vmap(self._dual_norm)(normals)
        distances = jnp.abs(margins) / jnp.where(lengths > 0, lengths, 1)
        nearest = jnp.where(lengths > 0, distances, jnp.inf).argmin(0)[None]
        # For each item, the plane of the nearest class is taken. The first axis then has extent 1.
        nearest_margin = jnp.take_along_axis(margins, nearest, 0)
        nearest_normal = jnp.take_along_axis(normals, nearest, 0)
        return _Plane(nearest_margin[0], nearest_normal[0], succeeds)

    def _dual_norm(self, normal: Array) -> Array:
        """Return the dual norm of each item of a gradient, [batch, 1, ...].

        The margin of an item, divided by the dual norm of the margin's gradient, is the distance
        from the item to the plane on which the margin is 0.
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

        def point_at(t: Array) -> Array:
            return self._within(x - t * direction)

        def newton_step(_: int, t: Array) -> Array:
            """Return a better estimate of the solution t."""
            point = point_at(t)
            remaining_margin = margin + (normal * (point - x)).sum(axes, keepdims=True)
            slopes = jnp.where(self._can_move(point, direction), normal * direction, 0)
            slope = jnp.abs(slopes.sum(axes, keepdims=True))
            # If no entry can move, the slope is 0. A division by infinity then leaves t as it is.
            return t + jnp.abs(remaining_margin) / jnp.where(slope > 0, slope, jnp.inf)

        # Without bounds the margin is linear in t, and a single step gives the solution.
        steps = 1 if self.bounds is None else _NEWTON_STEPS
        solution = lax.fori_loop(0, steps, newton_step, 0 * margin)
        return point_at(solution)

    def drawn_back(self, x: Array, rounds: int) -> Array:
        """Return the point between the original and `x` where the attack just succeeds.

        Args:
            x: a point where the attack succeeds.
            rounds: the number of bisections of the line from the original to `x`.
        """
        change = x - self.original

        def halve(bracket: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            """Halve the interval of shares. The attack succeeds at `high`, and fails at `low`."""
            low, high = bracket
            middle = (low + high) / 2
            point = self.original + middle * change
            _margin, items_succeed = self.margins_and_success(point)
            succeeds = self.broadcast_items(items_succeed)
            new_low = jnp.where(succeeds, low, middle)
            new_high = jnp.where(succeeds, middle, high)
            return (new_low, new_high), None

        zero = self.broadcast_items(jnp.zeros(x.shape[:1], x.dtype))
        one = zero + 1
        (_, share), _ = lax.scan(halve, (zero, one), length=rounds)
        return self.original + share * change

    def _within(self, x: Array) -> Array:
        """Clip a tensor to the bounds, if there are any."""
        if self.bounds is None:
            return x
        lowest, highest = self.bounds
        return jnp.clip(x, jnp.asarray(lowest, x.dtype), jnp.asarray(highest, x.dtype))

    def _can_move(self, x: Array, direction: Array) -> Array:
        """Return the mask of the entries that a step from `x` against a direction can change.

        An entry cannot change if it has reached its bound.
        """
        if self.bounds is None:
            return jnp.ones(x.shape, bool)
        lowest, highest = self.bounds
        is_above_lowest = x > jnp.asarray(lowest, x.dtype)
        is_below_highest = x < jnp.asarray(highest, x.dtype)
        return jnp.where(direction > 0, is_above_lowest, is_below_highest)


def _euclidean(change: Array) -> Array:
    """Return the L2 norm of each item, [batch, 1, ...]. Squares are added in at least 32 bits."""
    wide = change if change.dtype == jnp.float64 else change.astype(jnp.float32)
    axes = tuple(range(1, change.ndim))
    squared_norms = jnp.square(wide).sum(axes, keepdims=True)
    return jnp.sqrt(squared_norms).astype(change.dtype)
