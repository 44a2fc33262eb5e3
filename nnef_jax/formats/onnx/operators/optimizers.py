"""Steps of training: a tensor of the model, its gradient, and what a step remembers of others."""

from __future__ import annotations

from typing import Any

from lowering.errors import InvalidOperation
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator

_DOMAIN = "ai.onnx.preview.training"


def _groups(site: NodeSite, count: int) -> list[tuple[Any, ...]]:
    """Return the operands behind rate and step: all tensors, then all gradients, and so on."""
    given, rest = divmod(len(site.operands) - 2, count)
    if given < 1 or rest:
        raise InvalidOperation(f"it must have 2 inputs and {count} for each tensor")
    parts = [[site.operand(2 + i * given + j) for j in range(given)] for i in range(count)]
    return list(zip(*parts, strict=True))


def _mixed(site: NodeSite, old: Any, new: Any, share: float, rest: Any) -> Any:
    return site.term("add", site.term("mul", old, share), site.term("mul", new, rest))


def _regular(site: NodeSite, x: Any, gradient: Any) -> Any:
    return site.term("add", site.term("mul", x, site.number("norm_coefficient", 0)), gradient)


def _outputs(results: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(x for part in zip(*results, strict=True) for x in part)


def _step(site: NodeSite, dtype: str) -> Any:
    return site.cast(site.operand(1), dtype)


@operator("Adagrad", domain=_DOMAIN)
def _adagrad(site: NodeSite) -> Any:
    """Divide gradients by the root of the sum of their squares so far."""
    results: list[tuple[Any, ...]] = []
    for x, gradient, squares in _groups(site, 3):
        dtype = site.dtype_of(x)
        decay = site.term("mul", _step(site, dtype), site.number("decay_factor", 0))
        rate = site.term("div", site.cast(site.operand(0), dtype), site.term("add", decay, 1.0))
        gradient = _regular(site, x, gradient)
        squares = site.term("add", squares, site.term("sqr", gradient))
        root = site.term("add", site.term("sqrt", squares), site.number("epsilon", 0))
        change = site.term("div", site.term("mul", gradient, rate), root)
        results.append((site.term("sub", x, change), squares))
    return _outputs(results)


@operator("Adam", domain=_DOMAIN)
def _adam(site: NodeSite) -> Any:
    """Divide mean gradients by the root of their mean squares, both corrected for few steps."""
    alpha, beta = site.number("alpha", 0.9), site.number("beta", 0.999)
    results: list[tuple[Any, ...]] = []
    for x, gradient, mean, squares in _groups(site, 4):
        dtype = site.dtype_of(x)
        step, rate = _step(site, dtype), site.cast(site.operand(0), dtype)
        # A power is 0 at step 0, where nothing is corrected.
        is_later = site.cast(site.term("gt", step, 0.0), dtype)
        a, b = (
            site.term("sub", 1.0, site.term("mul", is_later, site.term("pow", base, step)))
            for base in (alpha, beta)
        )
        rate = site.term("div", site.term("mul", rate, site.term("sqrt", b)), a)
        gradient = _regular(site, x, gradient)
        mean = _mixed(site, mean, gradient, alpha, 1 - alpha)
        squares = _mixed(site, squares, site.term("sqr", gradient), beta, 1 - beta)
        root = site.term("add", site.term("sqrt", squares), site.number("epsilon", 0))
        change = site.term("div", site.term("mul", mean, rate), root)
        kept = 1 - site.number("norm_coefficient_post", 0)
        x = site.term("mul", site.term("sub", x, change), kept)
        results.append((x, mean, squares))
    return _outputs(results)


@operator("Momentum", domain=_DOMAIN)
def _momentum(site: NodeSite) -> Any:
    """Move along gradients that add up, of which the past ones fade; with Nesterov one ahead."""
    mode = site.choice("mode", "standard", "nesterov")
    alpha, beta = site.number("alpha"), site.number("beta")
    results: list[tuple[Any, ...]] = []
    for x, gradient, velocity in _groups(site, 3):
        dtype = site.dtype_of(x)
        is_later = site.cast(site.term("gt", _step(site, dtype), 0.0), dtype)
        share = site.term("add", site.term("mul", is_later, beta - 1), 1.0)
        gradient = _regular(site, x, gradient)
        velocity = _mixed(site, velocity, gradient, alpha, share)
        ahead = velocity
        if mode == "nesterov":
            ahead = site.term("add", gradient, site.term("mul", velocity, alpha))
        change = site.term("mul", ahead, site.cast(site.operand(0), dtype))
        results.append((site.term("sub", x, change), velocity))
    return _outputs(results)
