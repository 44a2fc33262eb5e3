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

_NEWTON_STEPS = 12  # Most tensors need 3 steps of Newton's method.
# Two scores are taken as equal if they differ by at most 16 units in the last place.
_ROUNDING_ULPS = 16
_OVERSHOOT_SHARE = 0.05  # A step is 5 % longer than the distance to the plane.


class AttackOptions(QuestionOptions, total=False):
    """Keywords of `fgsm` that all attacks accept."""

    targeted: bool
    bounds: Bounds | None


class _Plane(NamedTuple):
    """For each item, a plane on which the item's class and another class have equal scores.

    The scores are equal to first order: margin + normal * (point - current point) is 0.

    Args:
        margin: the score of the item's class minus the score of the other class, at the current
            point.
        normal: the gradient of the margin.
        succeeds: whether the attack succeeds at the current point.
    """

    margin: Array
    normal: Array
    succeeds: Array


class _Verdict(NamedTuple):
    """The success of an attack at a point, for each item.

    Args:
        margin: the score of the item's class minus the highest other score, [batch]. If the target
            is a function, the margin is the function's score. A targeted attack reverses the sign.
        succeeds: whether the attack succeeds, bool [batch].
        is_other: the mask of the classes that are not the item's class, bool [batch, class]; None
            if the target is a function.
    """

    margin: Array
    succeeds: Array
    is_other: Array | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Attack:
    """An attack on each item of a batch.

    Each item has a class: the user's target, or the class with the highest score. The attack leads
    the item away from this class; if `targeted`, the attack leads the item to this class.

    An attack is a pytree. If a method takes or returns a number for each item, the numbers are an
    array [batch, 1, ...]. This array broadcasts to the attacked tensor `wrt`.
    """

    question: Question
    bounds: Bounds | None
    targeted: bool = field(metadata={"static": True})
    norm: Norm = field(metadata={"static": True})
    start: Array | None = None

    def with_original(self) -> Attack:
        """Return the attack, completed by the original tensor and by the class of each item."""
        x = self.question.value()
        return replace(self, question=self.question.with_classes(x), start=x)

    @property
    def original(self) -> Array:
        """Return the tensor before the attack."""
        assert self.start is not None
        return self.start

    def number_by_item(self, numbers: Array) -> Array:
        """Convert a number, or an array [batch], to an array [batch, 1, ...]."""
        batch = self.original.shape[:1]
        items = jnp.broadcast_to(jnp.asarray(numbers, self.original.dtype), batch)
        return self.broadcast_items(items)

    def broadcast_items(self, items: Array) -> Array:
        """Reshape an array [batch] to [batch, 1, ...], so that it broadcasts to the tensor."""
        return items.reshape(-1, *[1] * (self.original.ndim - 1))

    def length(self, change: Array) -> Array:
        """Return the norm of the change of each item, [batch, 1, ...].

        The norm "linf" is the largest magnitude of an entry, and "l2" is the L2 norm.
        """
        if self.norm == "linf":
            return jnp.abs(change).max(tuple(range(1, change.ndim)), keepdims=True, initial=0)
        return _euclidean(change)

    def margins_and_success(self, x: Array) -> tuple[Array, Array]:
        """Return the margins at a point, [batch], and whether the attack succeeds, bool [batch]."""
        outputs, _captured = self.question.run(x)
        verdict = self._judged(outputs)
        return verdict.margin, verdict.succeeds

    def gradient(self, x: Array) -> tuple[Array, tuple[Array, Array]]:
        """Return the direction in which the attack should move `x`, and `margins_and_success(x)`.

        The direction is the gradient of an objective, which the attack raises:

            log(sum of exp(score) over the other classes) - score of the item's class

        In a targeted attack, the sign of the objective is reversed. The gradient of the objective
        is parallel to the gradient of the cross-entropy, but does not vanish where the network is
        certain. If the target is a function, the objective is minus the margin.
        """

        def objective(x: Array) -> tuple[Array, tuple[Array, Array]]:
            outputs, _captured = self.question.run(x)
            margin, succeeds, is_other = self._judged(outputs)
            if is_other is None:  # The target is a function.
                return -margin.sum(), (margin, succeeds)
            class_scores = self.question.class_scores(outputs)
            other_score = jax.nn.logsumexp(class_scores, axis=1, where=is_other)
            log_odds = other_score - self.question.scores(outputs)
            return self._sign * log_odds.sum(), (margin, succeeds)

        return jax.grad(objective, has_aux=True)(x)

    @property
    def _sign(self) -> int:
        """Return the factor of the margin: -1 in a targeted attack, and 1 in any other attack."""
        return -1 if self.targeted else 1

    def _judged(self, outputs: Any) -> _Verdict:
        """Return the margins for the outputs of a network, and whether the attack succeeds."""
        question = self.question
        scores = question.scores(outputs)
        if question.score_function is not None:
            margin = self._sign * scores
            return _Verdict(margin, succeeds=margin < 0, is_other=None)
        class_scores = question.class_scores(outputs)
        item_classes = question.classes
        assert item_classes is not None
        class_indices = jnp.arange(class_scores.shape[1])
        is_other = class_indices[None] != item_classes[:, None]  # [batch, class]
        highest_other = jnp.where(is_other, class_scores, -jnp.inf).max(1)
        margin = self._sign * (scores - highest_other)
        # Scores that differ only by a rounding error are taken as equal. They are no success.
        epsilon = float(jnp.finfo(class_scores.dtype).eps)
        rounding_error = _ROUNDING_ULPS * epsilon * jnp.abs(scores)
        return _Verdict(margin, succeeds=margin < -rounding_error, is_other=is_other)

    def after_step(self, x: Array, gradient: Array, length: Array) -> Array:
        """Return `x` after a step of steepest ascent, clipped to the bounds.

        For the norm "linf", the direction of the step is the sign of the gradient. For "l2", the
        direction is the gradient divided by its L2 norm.
        """
        if self.norm == "linf":
            direction = jnp.sign(gradient)
        else:
            gradient_length = self.length(gradient)
            # A gradient of length 0 gives a step of length 0.
            direction = gradient / jnp.where(gradient_length > 0, gradient_length, 1)
        return self._within(x + length * direction)

    def projected(self, x: Array, radius: Array) -> Array:
        """Return the point nearest to `x` in a ball around the original.

        `radius` is the radius of the ball. For the norm "linf", the ball is a cube. The point is
        clipped to the bounds.
        """
        change = x - self.original
        if self.norm == "linf":
            return self._within(self.original + jnp.clip(change, -radius, radius))
        distance = self.length(change)
        shrinking = radius / jnp.where(distance > 0, distance, 1)
        factor = jnp.where(distance > radius, shrinking, 1)
        return self._within(self.original + change * factor)

    def random_point(self, key: Array, radius: Array) -> Array:
        """Return a random point, uniformly distributed in a ball around the original.

        For the norm "linf", the ball is a cube. The point is clipped to the bounds.
        """
        x = self.original
        if self.norm == "linf":
            share_by_entry = jax.random.uniform(key, x.shape, x.dtype, minval=-1, maxval=1)
            return self._within(x + radius * share_by_entry)
        direction_key, radius_key = jax.random.split(key)
        direction = jax.random.normal(direction_key, x.shape, x.dtype)
        # Let a point have the distance d from the centre. The part of the ball's volume that is
        # nearer to the centre than the point is the share (d / radius) ** dimensions. This share is
        # uniform from 0 to 1 if the point is uniform in the ball.
        dimensions = max(1, x[:1].size)
        volume_share = jax.random.uniform(radius_key, radius.shape, x.dtype)
        radius_share = volume_share ** (1 / dimensions)
        return self._within(x + radius * radius_share * direction / self.length(direction))

    def after_descent(self, x: Array, radius: Array, step_length: Array, steps: int) -> Array:
        """Return the point with the smallest margin on a path of projected gradient descent.

        The path starts at `x`. After each step, the point is within the distance `radius` of the
        original. The point with the smallest margin is chosen for each item separately.
        """

        def move(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
            """Compare the current point with the best point, and make a step."""
            x, best, best_margin = state
            gradient, (margin, _succeeds) = self.gradient(x)
            best, best_margin = self._better(x, margin, best, best_margin)
            moved = self.after_step(x, gradient, step_length)
            return (self.projected(moved, radius), best, best_margin), None

        infinite_margins = jnp.full(x.shape[:1], jnp.inf)
        initial_state = (x, x, infinite_margins)
        (last, best, best_margin), _ = lax.scan(move, initial_state, length=steps)
        # `move` compares a point before it makes the next step. The last point is compared here.
        margin, _succeeds = self.margins_and_success(last)
        best, _ = self._better(last, margin, best, best_margin)
        return best

    def _better(
        self, x: Array, margin: Array, best: Array, best_margin: Array
    ) -> tuple[Array, Array]:
        """Return the better of the points `x` and `best` for each item, and its margin.

        The better point has the smaller margin.
        """
        margin = margin.astype(best_margin.dtype)  # The state of a loop must keep its dtype.
        is_better = self.broadcast_items(margin < best_margin)
        return jnp.where(is_better, x, best), jnp.minimum(margin, best_margin)

    def nearest_success(self, steps: int, classes: int) -> Array:
        """Return the success nearest to the original, among the points after each step.

        A success is a point at which the attack succeeds. Without a success, the result is the
        original. Each step moves to the nearest plane on which the margin over another class is 0
        to first order.

        Args:
            steps: the number of steps.
            classes: the number of other classes that a step considers.
        """
        original = self.original

        def nearer(
            x: Array, succeeds: Array, best: Array, best_distance: Array
        ) -> tuple[Array, Array]:
            """Return `x` or `best`: the success nearest to the original, and its distance.

            A success is a point at which the attack succeeds. `succeeds` tells whether `x` is one.
            The point `best` is a success unless `best_distance` is infinite.
            """
            distance = self.length(x - original)
            is_nearer = self.broadcast_items(succeeds) & (distance < best_distance)
            return jnp.where(is_nearer, x, best), jnp.where(is_nearer, distance, best_distance)

        def move(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
            """Compare the current point with the best point, and make a step."""
            x, best, best_distance = state
            plane = self._nearest_plane(x, classes)
            best, best_distance = nearer(x, plane.succeeds, best, best_distance)
            return (self._moved_to_plane(x, plane), best, best_distance), None

        infinite_distances = jnp.full_like(self.length(original), jnp.inf)
        initial_state = (original, original, infinite_distances)
        (last, best, best_distance), _ = lax.scan(move, initial_state, length=steps)
        # `move` compares a point before it makes the next step. The last point is compared here.
        _margin, succeeds = self.margins_and_success(last)
        best, _ = nearer(last, succeeds, best, best_distance)
        return best

    def _moved_to_plane(self, x: Array, plane: _Plane) -> Array:
        """Return the point to which a step moves `x`.

        The step ends just beyond the plane, at the point nearest to `x`. If the attack succeeds at
        `x` already, the step ends in the middle between two points just beyond the plane: the point
        nearest to `x`, and the point nearest to the original.
        """
        # The step ends just beyond the plane: at a margin of -overshoot instead of 0.
        overshoot = _OVERSHOOT_SHARE * jnp.abs(plane.margin)
        margin = plane.margin + overshoot
        nearest_to_x = self._nearest_on_plane(x, margin, plane.normal)
        # To first order: margin at original = margin at x + sum(normal * (original - x)).
        axes = tuple(range(1, x.ndim))
        difference = (plane.normal * (self.original - x)).sum(axes, keepdims=True)
        margin_at_original = margin + difference
        nearest_to_original = self._nearest_on_plane(
            self.original, margin_at_original, plane.normal
        )
        middle = (nearest_to_x + nearest_to_original) / 2
        return jnp.where(self.broadcast_items(plane.succeeds), middle, nearest_to_x)

    def _nearest_plane(self, x: Array, classes: int) -> _Plane:
        """Return the plane nearest to `x` on which the margin over another class is 0.

        There is a plane for each other class. With `classes` = 10, only the planes of the 10 other
        classes with the highest scores are compared.
        """
        question = self.question

        def margins_at(x: Array) -> tuple[Array, Array]:
            """Return the margins over other classes, [batch, class], and whether `x` succeeds."""
            outputs, _captured = question.run(x)
            margin, succeeds, is_other = self._judged(outputs)
            if is_other is None or self.targeted:
                # There is a single margin: the function's score, or the score of the target minus
                # the highest other score.
                return margin[:, None], succeeds
            other_scores = jnp.where(is_other, question.class_scores(outputs), -jnp.inf)
            _batch, class_count = other_scores.shape
            compared_count = min(classes, class_count - 1)
            highest, _ = lax.top_k(other_scores, compared_count)
            return question.scores(outputs)[:, None] - highest, succeeds

        class_margins, pull_back, succeeds = jax.vjp(margins_at, x, has_aux=True)

        def normal_of(unit: Array) -> Array:
            """Return the gradient of the margin over one class. `unit` is 1 at this class."""
            (gradient,) = pull_back(jnp.broadcast_to(unit, class_margins.shape))
            return gradient

        class_count = class_margins.shape[1]
        units = jnp.eye(class_count, dtype=class_margins.dtype)[:, None]  # [class, 1, class]
        normals = jax.vmap(normal_of)(units)  # [class, batch, ...]
        margins = jax.vmap(self.broadcast_items)(class_margins.T)  # [class, batch, 1, ...]
        margins = margins.astype(x.dtype)
        # If a margin does not depend on `x`, its normal has the length 0, and it has no plane.
        lengths = jax.vmap(self._dual_norm)(normals)
        distances = jnp.abs(margins) / jnp.where(lengths > 0, lengths, 1)
        nearest = jnp.where(lengths > 0, distances, jnp.inf).argmin(0)[None]  # [1, batch, 1, ...]
        nearest_margin = jnp.take_along_axis(margins, nearest, axis=0)[0]
        nearest_normal = jnp.take_along_axis(normals, nearest, axis=0)[0]
        return _Plane(nearest_margin, nearest_normal, succeeds)

    def _dual_norm(self, normal: Array) -> Array:
        """Return the dual norm of each item of a gradient, [batch, 1, ...].

        The dual norm of "linf" is the sum of magnitudes, and the dual norm of "l2" is the L2 norm.
        The distance from an item to the plane on which a margin is 0 is |margin| / (dual norm of
        the margin's gradient).
        """
        if self.norm == "linf":
            return jnp.abs(normal).sum(tuple(range(1, normal.ndim)), keepdims=True)
        return _euclidean(normal)

    def _nearest_on_plane(self, x: Array, margin: Array, normal: Array) -> Array:
        """Return the point nearest to `x`, within the bounds, at which a linear margin is 0.

        `margin` is the margin at `x`, and `normal` is its gradient. The nearest point has the form

            clip(x - t * direction)

        where t is a number that Newton's method finds. As a function of t, the decrease of the
        margin is concave and piecewise linear. Newton's method therefore approaches the solution
        from below.
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
            # If no entry can move, the slope is 0, and t stays as it is: the margin is divided by
            # infinity.
            return t + jnp.abs(remaining_margin) / jnp.where(slope > 0, slope, jnp.inf)

        # Without bounds the margin is linear in t, and a single step gives the solution.
        steps = 1 if self.bounds is None else _NEWTON_STEPS
        zero = 0 * margin
        solution = lax.fori_loop(0, steps, newton_step, zero)
        return point_at(solution)

    def boundary_point(self, x: Array, rounds: int) -> Array:
        """Return the point between the original and `x` where the attack just succeeds.

        Args:
            x: a point where the attack succeeds.
            rounds: the number of bisections of the line from the original to `x`.
        """
        change = x - self.original

        def halve(bracket: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            """Halve the interval from `low` to `high`.

            Each number is a share of the change: 0 is the original, and 1 is `x`. The attack fails
            at `low`, and succeeds at `high`.
            """
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
        (_low, successful_share), _ = lax.scan(halve, (zero, one), length=rounds)
        return self.original + successful_share * change

    def _within(self, x: Array) -> Array:
        """Clip a tensor to the bounds, if there are any."""
        if self.bounds is None:
            return x
        lowest, highest = self.bounds
        return jnp.clip(x, jnp.asarray(lowest, x.dtype), jnp.asarray(highest, x.dtype))

    def _can_move(self, x: Array, direction: Array) -> Array:
        """Return the mask of the entries of `x` that can move by -direction within the bounds.

        An entry that moves down must be above the lowest bound. An entry that moves up must be
        below the highest bound.
        """
        if self.bounds is None:
            return jnp.ones(x.shape, bool)
        lowest, highest = self.bounds
        is_above_lowest = x > jnp.asarray(lowest, x.dtype)
        is_below_highest = x < jnp.asarray(highest, x.dtype)
        return jnp.where(direction > 0, is_above_lowest, is_below_highest)


def _euclidean(change: Array) -> Array:
    """Return the L2 norm of each item, [batch, 1, ...].

    Squares are added in at least 32 bits.
    """
    wide = change if change.dtype == jnp.float64 else change.astype(jnp.float32)
    axes = tuple(range(1, change.ndim))
    squared_norms = jnp.square(wide).sum(axes, keepdims=True)
    return jnp.sqrt(squared_norms).astype(change.dtype)
