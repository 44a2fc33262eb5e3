"""What the tests of operation tables check of each row, whichever dialect its document is in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import nnef_jax
from lowering.graph import Graph
from nnef_jax.reading import read
from tests.helpers import archive
from tests.op_cases.case import OpCase
from tests.quickly import unoptimised_options

Case = TypeVar("Case", bound=OpCase)
Row = TypeVar("Row", bound=Hashable)
Evaluate = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


_ROWS = 24  # compiled together: in 0.4 of the time that they take one by one


class Together(Generic[Row]):
    """What functions make of rows of a table, those of many rows compiled as one.

    `prepare` gives the function for a row, to be traced, and its arguments. A row that cannot be
    traced with the others is computed by itself, so that it fails alone.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        prepare: Callable[[Row], tuple[Callable[..., Any], Sequence[Any]]],
    ) -> None:
        self._prepare = prepare
        self._batches = {
            row: rows[start : start + _ROWS]
            for start in range(0, len(rows), _ROWS)
            for row in rows[start : start + _ROWS]
        }
        self._found: dict[Row, Any] = {}

    def __call__(self, row: Row) -> Any:
        """The results of a row."""
        if row not in self._found:
            batch = self._batches[row]
            try:
                functions, arguments = zip(*map(self._prepare, batch), strict=True)
                self._found.update(zip(batch, _all(functions, arguments), strict=True))
            except Exception:
                function, own = self._prepare(row)
                self._found[row] = jax.jit(function)(*own)
        return self._found.pop(row)


def _all(functions: Sequence[Callable[..., Any]], arguments: Sequence[Sequence[Any]]) -> list[Any]:
    def call(arguments: Sequence[Sequence[Any]]) -> list[Any]:
        return [f(*own) for f, own in zip(functions, arguments, strict=True)]

    return jax.jit(call, compiler_options=unoptimised_options())(arguments)


def read_graph(text: str, **options: Any) -> Graph:
    """The graph of a document, read by options of `load`: no model is made."""
    return read(archive(graph=text), **options).graph


def results(outputs: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in (outputs if isinstance(outputs, tuple) else (outputs,))]


def assert_close(actual: Any, wanted: Sequence[np.ndarray], tolerance: float) -> None:
    outputs = results(actual)
    assert len(outputs) == len(wanted)
    for got, want in zip(outputs, wanted, strict=True):
        assert got.shape == want.shape
        assert got.dtype.kind == want.dtype.kind
        if want.dtype.kind in "fc":
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(got, want)


def probed(model: nnef_jax.Model, *xs: Any) -> tuple[Any, tuple[Any, ...]]:
    """The outputs where each tensor is replaced by itself, and what is captured as these."""
    outputs, inside = model.apply({}, *xs, edit={"*": lambda value: value}, capture=["*"])
    return outputs, tuple(inside[name] for name in model.graph.output_names)


def assert_captured(found: tuple[Any, tuple[Any, ...]]) -> Any:
    """Require captures to be the outputs, bit by bit; return these."""
    outputs, captured = found
    for got, want in zip(captured, results(outputs), strict=True):
        np.testing.assert_array_equal(got, want)
    return outputs


def vmap_and_loop(model: nnef_jax.Model, arrays: Sequence[np.ndarray]) -> Any:
    """A function of a batch that is computed at once and item by item, and the batch.

    At once it is with edits that change nothing, and with captures.
    """
    other = [np.roll(x, 1, axis=-1) if x.ndim else x for x in arrays]
    stacked = [np.stack(pair) for pair in zip(arrays, other, strict=True)]

    def apply(*xs: Any) -> Any:
        return model.apply({}, *xs)

    def both(*stacked: Any) -> Any:
        together = jax.vmap(lambda *xs: probed(model, *xs))(*stacked)
        return together, [apply(*[x[i] for x in stacked]) for i in range(2)]

    return both, stacked


def assert_vmap_equals_loop(found: Any, tolerance: float) -> None:
    together, alone = found
    together = assert_captured(together)
    items = [results(outputs) for outputs in alone]
    assert_close(together, [np.stack(pair) for pair in zip(*items, strict=True)], tolerance)


class Gradients:
    """Both modes' derivatives of a row along a direction, and by differences of the reference."""

    def __init__(
        self, model: nnef_jax.Model, arrays: Sequence[np.ndarray], evaluate: Evaluate
    ) -> None:
        random = np.random.default_rng(7)
        self._model, self._arrays, self._evaluate = model, arrays, evaluate
        self._real = [i for i, x in enumerate(arrays) if x.dtype.kind == "f"]
        self._directions = [random.uniform(-1, 1, arrays[i].shape) for i in self._real]
        expected = evaluate([wide(x) for x in arrays])
        self._weights = [random.uniform(-1, 1, y.shape) for y in expected]
        self._kept = [k for k, y in enumerate(expected) if y.dtype.kind == "f"]

    def traced(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        """A function that gives the derivatives forward, and the gradients, and its arguments.

        The gradients are those of captures, with edits that change nothing.
        """

        def weighted(*xs: Any, inside: bool = False) -> jax.Array:
            full = list(self._arrays)
            for i, x in zip(self._real, xs, strict=True):
                full[i] = x
            ys = probed(self._model, *full)[1] if inside else self._model.apply({}, *full)
            ys = ys if isinstance(ys, tuple) else (ys,)
            parts = [jnp.sum(ys[k] * self._weights[k].astype(np.float32)) for k in self._kept]
            return sum(parts)  # type: ignore[return-value]

        def both(primals: Any, tangents: Any) -> tuple[Any, Any]:
            return (
                jax.jvp(weighted, primals, tangents)[1],
                jax.grad(partial(weighted, inside=True), tuple(range(len(self._real))))(*primals),
            )

        tangents = tuple(d.astype(np.float32) for d in self._directions)
        return both, (tuple(self._arrays[i] for i in self._real), tangents)

    def check(self, found: tuple[Any, Any], tolerance: float) -> None:
        """Compare what `traced` gave with central differences of the reference in 64 bits."""
        forward, gradients = found
        step = 1e-5
        wanted = (self._moved(step) - self._moved(-step)) / (2 * step)
        pairs = zip(gradients, self._directions, strict=True)
        products = [np.asarray(g, np.float64) * t.astype(np.float32) for g, t in pairs]
        allowed = 20 * tolerance * max(1.0, sum(np.abs(p).sum() for p in products))
        assert abs(float(forward) - wanted) <= allowed
        assert abs(sum(p.sum() for p in products) - wanted) <= allowed

    def _moved(self, step: float) -> float:
        xs = [wide(x) for x in self._arrays]
        for i, direction in zip(self._real, self._directions, strict=True):
            xs[i] = xs[i] + step * direction
        ys = self._evaluate(xs)
        return float(sum((ys[k] * self._weights[k]).sum() for k in self._kept))


def wide(x: np.ndarray) -> np.ndarray:
    """The array in 64 bits, as the reference takes it."""
    return x if x.dtype == bool else x.astype(f"{x.dtype.kind}8")


def few(cases: Iterable[Case], most: int = 2) -> list[Case]:
    """The first rows of each operation, for properties that hold or fail for most of its rows."""
    seen = Counter[str]()
    found: list[Case] = []
    for case in cases:
        seen[case.operation] += 1
        if seen[case.operation] <= most:
            found.append(case)
    return found
