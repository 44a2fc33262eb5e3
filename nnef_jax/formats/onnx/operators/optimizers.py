"""Steps of training: a tensor of the model, its gradient, and what a step remembers of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowering.errors import InvalidOperation
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator

Update = Callable[..., tuple[Any, ...]]


def _optimizer(update: Update) -> Update:
    """Register the update of each tensor, given site, rate, step, and it with its own.

    Inputs behind rate and step are all tensors, then all gradients, and so on.
    """
    count = update.__code__.co_argcount - 3

    def meaning(site: NodeSite) -> Any:
        given, rest = divmod(len(site.operands) - 2, count)
        if given < 1 or rest:
            raise InvalidOperation(f"it must have 2 inputs and {count} for each tensor")
        results: list[tuple[Any, ...]] = []
        for j in range(given):
            x, gradient, *others = (site.operand(2 + i * given + j) for i in range(count))
            rate, step = (site.cast(site.operand(i), site.dtype_of(x)) for i in (0, 1))
            regular = site.step.mul(x, site.number("norm_coefficient", 0))
            gradient = site.step.add(regular, gradient)
            results.append(update(site, rate, step, x, gradient, *others))
        return tuple(x for part in zip(*results, strict=True) for x in part)

    name = update.__name__.removeprefix("_").capitalize()
    operator(name, domain="ai.onnx.preview.training")(meaning)
    return update


def _mixed(site: NodeSite, old: Any, new: Any, share: float, rest: Any) -> Any:
    return site.step.add(site.step.mul(old, share), site.step.mul(new, rest))


def _divided(site: NodeSite, x: Any, squares: Any) -> Any:
    """Divide by the roots of squares."""
    root = site.step.add(site.step.sqrt(squares), site.number("epsilon", 0))
    return site.step.div(x, root)


@_optimizer
def _adagrad(site: NodeSite, rate: Any, step: Any, x: Any, gradient: Any, squares: Any) -> Any:
    """Divide gradients by the root of the sum of their squares so far."""
    make = site.step
    decay = make.mul(step, site.number("decay_factor", 0))
    rate = make.div(rate, make.add(decay, 1.0))
    squares = make.add(squares, make.sqr(gradient))
    return make.sub(x, _divided(site, make.mul(gradient, rate), squares)), squares


@_optimizer
def _adam(
    site: NodeSite, rate: Any, step: Any, x: Any, gradient: Any, mean: Any, squares: Any
) -> Any:
    """Divide mean gradients by the root of their mean squares, both corrected for few steps."""
    make, alpha, beta = site.step, site.number("alpha", 0.9), site.number("beta", 0.999)
    # A power is 0 at step 0, where nothing is corrected.
    is_later = site.cast(make.gt(step, 0.0), site.dtype_of(x))
    a, b = (make.sub(1.0, make.mul(is_later, make.pow(base, step))) for base in (alpha, beta))
    rate = make.div(make.mul(rate, make.sqrt(b)), a)
    mean = _mixed(site, mean, gradient, alpha, 1 - alpha)
    squares = _mixed(site, squares, make.sqr(gradient), beta, 1 - beta)
    kept = 1 - site.number("norm_coefficient_post", 0)
    moved = make.sub(x, _divided(site, make.mul(mean, rate), squares))
    return make.mul(moved, kept), mean, squares


@_optimizer
def _momentum(site: NodeSite, rate: Any, step: Any, x: Any, gradient: Any, velocity: Any) -> Any:
    """Move along gradients that add up, of which the past ones fade; with Nesterov one ahead."""
    make, mode = site.step, site.choice("mode", "standard", "nesterov")
    alpha, beta = site.number("alpha"), site.number("beta")
    is_later = site.cast(make.gt(step, 0.0), site.dtype_of(x))
    share = make.add(make.mul(is_later, beta - 1), 1.0)
    velocity = ahead = _mixed(site, velocity, gradient, alpha, share)
    if mode == "nesterov":
        ahead = make.add(gradient, make.mul(velocity, alpha))
    return make.sub(x, make.mul(ahead, rate)), velocity
