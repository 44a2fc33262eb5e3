"""Measures training steps (loss and gradient) in nnef_jax, and in torch, eager and compiled."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.builders.base import Array
from benchmarks.engines import Engine, NnefJax, Torch, example, write_nnef
from benchmarks.inference import Result
from benchmarks.networks import described

TRAINED = (
    "resnet18",
    "mobilenet_v2",
    "efficientnet_b0",
    "resnext50",
    "densenet121",
    "convnext_t",
    "swin_t",
    "gru",
)
BATCH = 8

# The largest difference of a gradient, relative to its norm. It is large because activations that
# differ by rounding may lie on different sides of the kink of relu. Compared with float64, torch's
# float32 gradients of MobileNetV2 differ by up to 5e-3.
_TOLERANCE = 1e-2

# Loss and gradients by label.
Step = tuple[Any, dict[str, Any]]


def run(engines: Sequence[Engine], networks: Sequence[str], rounds: int) -> Iterator[Result]:
    """Yield the result for a training step of each network.

    The loss is the mean of the squared outputs. Batch normalisation uses its stored statistics,
    which are not trained. Raises DisagreementError if the losses or the gradients of engines
    differ.
    """
    for network in networks:
        with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
            yield _measure(engines, network, rounds, Path(folder))


def _measure(engines: Sequence[Engine], network: str, rounds: int, folder: Path) -> Result:
    inputs = example(network, BATCH)
    torch_step, trained = _torch_step(Torch(), network, inputs)
    calls: dict[str, Callable[[], Step]] = {
        engine.name: _jax_step(engine, network, inputs, trained, folder)
        for engine in engines
        if isinstance(engine, NnefJax)
    }
    calls["torch"] = torch_step
    for engine in engines:
        if isinstance(engine, Torch) and engine.name not in calls:
            calls[engine.name], _ = _torch_step(engine, network, inputs)
    differences = check({name: call() for name, call in calls.items()}, network)
    return Result(f"{network}, step", BATCH, timing.measure(calls, rounds), differences)


def _jax_step(
    engine: NnefJax, network: str, inputs: Mapping[str, Array], trained: set[str], folder: Path
) -> Callable[[], Step]:
    import nnef_jax

    model = nnef_jax.load(write_nnef(network, BATCH, folder), **engine.options)
    return jax_step(model, inputs, trained)


def jax_step(model: Any, inputs: Mapping[str, Array], trained: set[str]) -> Callable[[], Step]:
    """Return a function that runs a jitted training step for the parameters in `trained`."""
    import jax

    step, arguments = jitted_step(model, inputs, trained)
    return lambda: jax.block_until_ready(step(*arguments))


def jitted_step(
    model: Any, inputs: Mapping[str, Array], trained: set[str]
) -> tuple[Any, tuple[Any, ...]]:
    """Return a jitted training step, and its arguments."""
    import jax
    import jax.numpy as jnp

    parameters = {k: v for k, v in model.params.items() if k in trained}
    statistics = {k: v for k, v in model.params.items() if k not in trained}
    arrays = [jnp.asarray(value) for value in inputs.values()]

    def loss(parameters: Any, statistics: Any, arrays: Any) -> Any:
        return jnp.mean(jnp.square(model.apply({**parameters, **statistics}, *arrays)))

    step = model.jit(jax.value_and_grad(loss))
    return step, (parameters, statistics, arrays)


def _torch_step(
    engine: Torch, network: str, inputs: Mapping[str, Array]
) -> tuple[Callable[[], Step], set[str]]:
    import torch

    from benchmarks.builders.torch_builder import TorchBuilder

    builder = TorchBuilder()
    module = builder.module(described(network)(builder, BATCH))
    parameters = dict(module.named_parameters())
    module = engine.compiled(module)
    tensors = [torch.from_numpy(value) for value in inputs.values()]

    def step() -> Step:
        loss = module(*tensors).square().mean()
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        return loss.detach(), dict(zip(parameters, gradients, strict=True))

    return step, set(parameters)


def check(steps: Mapping[str, Step], network: str) -> dict[str, float]:
    """Compare each engine's loss and gradients with those of the first engine.

    Return the largest difference of a gradient relative to its norm, by engine. Raises
    DisagreementError if a difference is too large.
    """
    (first, step), *others = steps.items()
    found: dict[str, float] = {}
    for name, other in others:
        loss = timing.relative_difference(np.asarray(step[0]), np.asarray(other[0]))
        by_label = {
            label: _norm_difference(np.asarray(value), np.asarray(other[1][label]))
            for label, value in step[1].items()
        }
        worst = max(by_label, key=by_label.__getitem__)
        found[name] = by_label[worst]
        if loss > timing.TOLERANCE or found[name] > _TOLERANCE:
            raise timing.DisagreementError(
                f"{network}: between {first} and {name} the loss differs by {loss:.2g}, the "
                f"gradient of '{worst}' by {found[name]:.2g}"
            )
    return found


def _norm_difference(a: Array, b: Array) -> float:
    """Return |a - b| / |a| in the Euclidean norm.

    The shapes may differ, because a bias may have a leading axis in NNEF that it lacks in torch.
    """
    difference = float(np.linalg.norm(a.ravel() - b.ravel()) / np.linalg.norm(a))
    return difference if math.isfinite(difference) else math.inf
