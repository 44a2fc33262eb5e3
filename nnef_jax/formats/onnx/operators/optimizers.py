"""Functions for training steps: Adagrad, Adam and Momentum.

A training step updates tensors by the gradients of the tensors and by states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowering.errors import InvalidOperation
from nnef_jax.flattening.operators.attributes import number, one_of
from nnef_jax.flattening.site import Operand, Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator

_TRAINING = "ai.onnx.preview.training"
_SHRINK = number("norm_coefficient", 0)
_EPSILON = number("epsilon", 0)


def _updated(site: NodeSite, update: Callable[..., tuple[Tensor, ...]], shrink: float) -> Any:
    """Update all tensors; return the updated tensors, then the updated states.

    The inputs are the learning rate, the number of the training step, all tensors, all gradients,
    and all states. `update` is called for each tensor, with the learning rate, the number of the
    training step, the tensor, its gradient and its states. It returns the new tensor and the new
    states. `shrink` is the factor of L2 regularisation.
    """
    # The first two arguments of `update` are the same for all tensors: the learning rate and the
    # number of the training step.
    inputs_per_tensor = update.__code__.co_argcount - 2
    tensor_count, remainder = divmod(len(site.operands) - 2, inputs_per_tensor)
    if tensor_count < 1 or remainder != 0:
        raise InvalidOperation(
            f"it must have 2 inputs, and {inputs_per_tensor} inputs for each tensor"
        )
    updates: list[tuple[Any, ...]] = []
    for tensor_index in range(tensor_count):
        # With 2 tensors, the inputs of tensor 0 are 2, 4, 6, ..., and the inputs of tensor 1 are
        # 3, 5, 7, ...
        inputs = range(2 + tensor_index, len(site.operands), tensor_count)
        x, gradient, *states = [site.operand(i) for i in inputs]
        dtype = site.dtype_of(x)
        rate = site.cast(site.operand(0), dtype)
        time = site.cast(site.operand(1), dtype)
        regularised_gradient = site.step.add(site.step.mul(x, shrink), gradient)
        updates.append(update(rate, time, x, regularised_gradient, *states))
    # Each update is (tensor, *states). The list of results begins with the new tensors. Then come
    # the first states of all tensors, then the second states of all tensors, and so on.
    results: list[Any] = []
    for results_of_kind in zip(*updates, strict=True):
        results += results_of_kind
    return tuple(results)


def _mixed(site: NodeSite, old: Tensor, new: Tensor, a: float, b: Operand) -> Any:
    """Compute a * old + b * new."""
    return site.step.add(site.step.mul(old, a), site.step.mul(new, b))


def _divided(site: NodeSite, x: Tensor, squares: Tensor, epsilon: float) -> Any:
    """Compute x / (sqrt(squares) + epsilon)."""
    divisor = site.step.add(site.step.sqrt(squares), epsilon)
    return site.step.div(x, divisor)


@operator("Adagrad", domain=_TRAINING)
def _adagrad(
    site: NodeSite,
    *,
    shrink: float = _SHRINK,
    epsilon: float = _EPSILON,
    decay: float = number("decay_factor", 0),
) -> Any:
    """Subtract rate * gradient / (sqrt(squares) + epsilon) from tensors.

    `squares` is a state: the sum of the squared gradients of all training steps so far. The rate is
    the learning rate / (1 + decay * time).
    """
    step = site.step

    def update(rate: Tensor, time: Tensor, x: Tensor, gradient: Tensor, squares: Tensor) -> Any:
        """Return the tensor x and the state `squares` after the training step `time`."""
        decay_divisor = step.add(step.mul(time, decay), 1.0)
        rate = step.div(rate, decay_divisor)
        squares = step.add(squares, step.sqr(gradient))
        change = _divided(site, step.mul(gradient, rate), squares, epsilon)
        return step.sub(x, change), squares

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
    """Subtract rate * mean / (sqrt(squares) + epsilon) from tensors.

    `mean` and `squares` are states: the running means of gradients and of squared gradients. Both
    start with zeros. To correct for the zeros, the rate is the learning rate times
    sqrt(1 - beta^time) / (1 - alpha^time). Finally, tensors are multiplied by `1 - shrink_after`.
    """
    step = site.step

    def update(
        rate: Tensor, time: Tensor, x: Tensor, gradient: Tensor, mean: Tensor, squares: Tensor
    ) -> Any:
        """Return the tensor x and the states after the training step `time`."""
        # At time 0, both corrections are 1.
        is_later = site.cast(step.gt(time, 0.0), site.dtype_of(x))
        mean_correction = step.sub(1.0, step.mul(is_later, step.pow(alpha, time)))
        square_correction = step.sub(1.0, step.mul(is_later, step.pow(beta, time)))
        rate = step.div(step.mul(rate, step.sqrt(square_correction)), mean_correction)
        mean = _mixed(site, mean, gradient, alpha, 1 - alpha)
        squares = _mixed(site, squares, step.sqr(gradient), beta, 1 - beta)
        change = _divided(site, step.mul(mean, rate), squares, epsilon)
        moved = step.sub(x, change)
        return step.mul(moved, 1 - shrink_after), mean, squares

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
    """Subtract rate * velocity from tensors.

    The velocity is a state: alpha * old velocity + beta * gradient. At time 0, beta is 1. If `mode`
    is "nesterov", alpha * velocity + gradient takes the place of the velocity.
    """
    step = site.step

    def update(rate: Tensor, time: Tensor, x: Tensor, gradient: Tensor, velocity: Tensor) -> Any:
        """Return the tensor x and its velocity after the training step `time`."""
        is_later = site.cast(step.gt(time, 0.0), site.dtype_of(x))
        weight = step.add(step.mul(is_later, beta - 1), 1.0)  # 1 at time 0, later beta
        velocity = _mixed(site, velocity, gradient, alpha, weight)
        direction = velocity
        if mode == "nesterov":
            direction = step.add(gradient, step.mul(velocity, alpha))
        moved = step.sub(x, step.mul(direction, rate))
        return moved, velocity

    return _updated(site, update, shrink)
