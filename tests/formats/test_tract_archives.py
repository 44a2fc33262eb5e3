"""Archives that tract wrote: results are ONNX Runtime's, whole, in pieces, and by derivatives."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax

FOLDER = Path(__file__).resolve().parents[1] / "tract_archives"
NAMES = sorted(path.name.removesuffix(".nnef.tgz") for path in FOLDER.glob("*.nnef.tgz"))
STREAMS = [name for name in NAMES if name.startswith("stream_")]
WHOLE = [name for name in NAMES if name not in STREAMS]
# Of networks that take real numbers; a forest has no derivative.
BOTH = ["attention", "shapes"]
DIFFERENTIABLE = ["convolutions", "decoder", "recurrent"]  # tried each week


@cache
def read(name: str) -> tuple[nnef_jax.Model, dict[str, np.ndarray], list[np.ndarray], Any]:
    """The network, its inputs, its outputs, and what else is stored."""
    with np.load(FOLDER / f"{name}.npz") as file:
        arrays = dict(file)
    inputs = {k.removeprefix("input/"): v for k, v in arrays.items() if k.startswith("input/")}
    outputs = [v for k, v in arrays.items() if k.startswith("output/")]
    return nnef_jax.load(FOLDER / f"{name}.nnef.tgz"), inputs, outputs, arrays


def results(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def assert_close(found: Any, wanted: list[np.ndarray]) -> None:
    assert len(results(found)) == len(wanted)
    for got, want in zip(results(found), wanted, strict=True):
        assert got.shape == want.shape
        assert np.asarray(got).dtype.kind == want.dtype.kind
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_there_are_archives() -> None:
    assert len(NAMES) >= 10 and len(STREAMS) == 2


@pytest.mark.parametrize("name", sorted({*WHOLE} - {"detection", *BOTH}))
def test_value(name: str) -> None:
    model, inputs, outputs, _ = read(name)
    assert_close(model(**inputs), outputs)


def test_boxes_are_padded_up_to_the_most_there_can_be() -> None:
    model, inputs, (wanted,), _ = read("detection")
    found = np.asarray(model(**inputs))
    np.testing.assert_array_equal(found[: len(wanted)], wanted)
    assert len(found) > len(wanted) and np.all(found[len(wanted) :] == -1)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("whole", [False, True], ids=["step", "scan"])
def test_stream(name: str, whole: bool) -> None:
    """Piece by piece a network gives what it gives for the whole stream, only later."""
    model, inputs, (wanted,), stored = read(name)
    (stream,), axis, delay = inputs.values(), int(stored["axis"]), int(stored["delay"])
    pieces = np.split(stream, stream.shape[axis] // int(stored["pulse"]), axis)
    state = model.init_state()
    if whole:
        found, _ = model.scan(np.stack(pieces), state=state)
    else:
        found = []
        for piece in pieces:
            result, state = model.step(state, piece)
            found.append(result)
    found = np.concatenate(list(found), axis)
    found, wanted = np.moveaxis(found, axis, 0), np.moveaxis(wanted, axis, 0)
    np.testing.assert_allclose(found[delay:], wanted[: len(wanted) - delay], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", [*BOTH, *(pytest.param(n, marks=pytest.mark.slow) for n in DIFFERENTIABLE)]
)
def test_values_and_derivatives_in_parameters(name: str) -> None:
    model, inputs, outputs, _ = read(name)
    random = np.random.default_rng(1)
    weights = [random.normal(size=x.shape).astype(x.dtype) for x in outputs]

    def total(parameters: dict[str, jax.Array]) -> tuple[jax.Array, Any]:
        found = results(model.apply(parameters, **inputs))
        pairs = zip(weights, found, strict=True)
        return sum((jnp.vdot(w, x) for w, x in pairs), jnp.float32(0)), found

    real = {k: x for k, x in model.params.items() if jnp.issubdtype(x.dtype, jnp.floating)}
    direction = {k: random.normal(size=x.shape).astype(np.float32) for k, x in real.items()}

    def along(step: Any) -> Any:
        moved = {k: x + step * direction[k] for k, x in real.items()}
        return total({**model.params, **moved})

    both = jax.jit(jax.value_and_grad(along, has_aux=True))
    (_, found), derivative = both(0.0)
    assert_close(tuple(found), outputs)
    assert np.isfinite(derivative)
    difference = (both(1e-3)[0][0] - both(-1e-3)[0][0]) / 2e-3
    np.testing.assert_allclose(derivative, difference, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("name", ["attention", "convolutions", "decoder", "recurrent"])
def test_extents_stay_open(name: str) -> None:
    model, _, _, _ = read(name)
    assert any(None in spec.shape for spec in model.inputs)
