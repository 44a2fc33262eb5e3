"""Steps of training: a tensor of the model, its gradient, and the state of earlier steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowering.errors import InvalidOperation
from nnef_jax.flattening.operators.attributes import number, one_of
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator

_TRAINING = "ai.onnx.preview.training"
_SHRINK = number("norm_coefficient", 0)
_EPSILON = number("epsilon", 0)


def _updated(site: NodeSite, update: Callable[..., tuple[Any, ...]], shrink: float) -> Any:
    """Return the update of each tensor from rate, step, the tensor, its gradient, and its state.

    Inputs behind rate and step are all tensors, then all gradients, and so on.
    """
    count = update.__code__.co_argcount - 2
    tensors, more = divmod(len(site.operands) - 2, count)
    if tensors < 1 or more:
        raise InvalidOperation(f"it must have 2 inputs and {count} for each tensor")
    results: list[tuple[Any, ...]] = []
    for j in range(tensors):
        x, gradient, *states = (site.operand(2 + i * tensors + j) for i in range(count))
        rate, step = (site.cast(site.operand(i), site.dtype_of(x)) for i in (0, 1))
        gradient = site.step.add(site.step.mul(x, shrink), gradient)
        results.append(update(rate, step, x, gradient, *states))
    return tuple(x for part in zip(*results, strict=True) for x in part)


def _mixed(site: NodeSite, old: Any, new: Any, share: float, other: Any) -> Any:
    return site.step.add(site.step.mul(old, share), site.step.mul(new, other))


def _divided(site: NodeSite, x: Any, squares: Any, epsilon: float) -> Any:
    """Divide by the roots of squares."""
    return site.step.div(x, site.step.add(site.step.sqrt(squares), epsilon))


@operator("Adagrad", domain=_TRAINING)
def _adagrad(
    site: NodeSite,
    *,
    shrink: float = _SHRINK,
    epsilon: float = _EPSILON,
    decay: float = number("decay_factor", 0),
) -> Any:
    """Divide gradients by the root of the sum of their squares until now."""
    make = site.step

    def update(rate: Any, step: Any, x: Any, gradient: Any, squares: Any) -> Any:
        rate = make.div(rate, make.add(make.mul(step, decay), 1.0))
        squares = make.add(squares, make.sqr(gradient))
        return make.sub(x, _divided(site, make.mul(gradient, rate), squares, epsilon)), squares

    return _updated(site, update, shrink)


@operator("Adam", domain=_TRAINING)
def _adam(
    site: NodeSite,
    *,
    shrink: float = _SHRINK,
    epsilon: float = _EPSILON,
    alpha: float = number("alpha", 0.9),
    beta: float = number("beta", 0.999),
    shrink_after: float = number("norm_coefficient_post", 0),
) -> Any:
    """Divide mean gradients by the root of their mean squares, both corrected for few steps."""
    make = site.step

    def update(rate: Any, step: Any, x: Any, gradient: Any, mean: Any, squares: Any) -> Any:
        # A power is 0 at step 0, where nothing is corrected.
        is_later = site.cast(make.gt(step, 0.0), site.dtype_of(x))
        a, b = (make.sub(1.0, make.mul(is_later, make.pow(base, step))) for base in (alpha, beta))
        rate = make.div(make.mul(rate, make.sqrt(b)), a)
        mean = _mixed(site, mean, gradient, alpha, 1 - alpha)
        squares = _mixed(site, squares, make.sqr(gradient), beta, 1 - beta)
        moved = make.sub(x, _divided(site, make.mul(mean, rate), squares, epsilon))
        return make.mul(moved, 1 - shrink_after), mean, squares

    return _updated(site, update, shrink)


@operator("Momentum", domain=_TRAINING)
def _momentum(
    site: NodeSite,
    *,
    shrink: float = _SHRINK,
    alpha: float = number("alpha"),
    beta: float = number("beta"),
    mode: str = one_of("mode", "standard", "nesterov"),
) -> Any:
    """Move along gradients that add up. Past ones fade; Nesterov's mode is one step ahead."""
    make = site.step

    def update(rate: Any, step: Any, x: Any, gradient: Any, velocity: Any) -> Any:
        is_later = site.cast(make.gt(step, 0.0), site.dtype_of(x))
        share = make.add(make.mul(is_later, beta - 1), 1.0)
        velocity = ahead = _mixed(site, velocity, gradient, alpha, share)
        if mode == "nesterov":
            ahead = make.add(gradient, make.mul(velocity, alpha))
        return make.sub(x, make.mul(ahead, rate)), velocity

    return _updated(site, update, shrink)
