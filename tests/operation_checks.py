"""Checks of the rows of operation tables, whichever dialect their documents are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache, partial
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from lowering.graph import Graph
from nnef_jax.flattening.operators import registry
from nnef_jax.formats.tract.operators import OPERATORS
from nnef_jax.reading.read import read
from tests.helpers import archive, model_of
from tests.op_cases import TRACT, OpCase, document, evaluate, expected, inputs
from tests.quickly import unoptimised_options

Row = TypeVar("Row", bound=Hashable)

_ROWS = 24  # compiled together: in 0.4 of the time that they take one by one


class Together(Generic[Row]):
    """Results of functions for rows of a table, many rows compiled as one program.

    `prepare` returns the function of a row, to be traced, and its arguments. If the program of
    many rows fails, each row is computed alone: those that fail raise their own error, caused by
    that of the program. If none does, all raise that of the program.
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
        self._results: dict[Row, Any] = {}

    def __call__(self, row: Row) -> Any:
        """Return the results of a row."""
        if row not in self._results:
            batch = self._batches[row]
            try:
                self._results.update(zip(batch, self._computed(batch), strict=True))
            except Exception as error:
                self._results.update(self._one_by_one(batch, error))
        result = self._results.pop(row)
        if isinstance(result, Exception):
            raise result
        return result

    def _computed(self, batch: Sequence[Row]) -> list[Any]:
        functions, arguments = zip(*map(self._prepare, batch), strict=True)

        def call(arguments: Sequence[Sequence[Any]]) -> list[Any]:
            return [f(*xs) for f, xs in zip(functions, arguments, strict=True)]

        return jax.jit(call, compiler_options=unoptimised_options())(arguments)

    def _one_by_one(self, batch: Sequence[Row], joined: Exception) -> dict[Row, Any]:
        results = dict[Row, Any]()
        for row in batch:
            try:
                (results[row],) = self._computed([row])
            except Exception as error:
                if error is not joined:
                    error.__cause__ = joined
                results[row] = error
        if not any(isinstance(x, Exception) for x in results.values()):
            joined.add_note(f"each of the {len(batch)} rows of the program is computed alone")
            return dict.fromkeys(batch, joined)
        return results


class Checks:
    """Compares the results of rows of a table with the reference.

    All have values; those `in_full` are also computed for two items at once, differentiated, and
    computed in 16 bits, where their types allow that.
    """

    def __init__(self, rows: Sequence[OpCase], in_full: Iterable[OpCase]) -> None:
        self._in_full = frozenset(in_full)
        self._together = Together(rows, self._prepared)

    def _prepared(self, case: OpCase) -> tuple[Callable[..., Any], Sequence[Any]]:
        model, arrays = model_of(document(case)), inputs(case)
        parts = {"value": (partial(probed, model), arrays)}
        if case in self._in_full:
            if is_batched(case):
                parts["batch"] = jax.vmap(partial(probed, model)), list(map(np.stack, pairs(case)))
            if is_differentiated(case):
                parts["derivatives"] = Derivatives(case).traced(model)
            if is_narrowed(case):
                parts["narrow"] = partial(applied, narrow_model(case)), narrow_inputs(case)

        def run(arguments: dict[str, Sequence[Any]]) -> dict[str, Any]:
            return {name: parts[name][0](*xs) for name, xs in arguments.items()}

        return run, [{name: xs for name, (_, xs) in parts.items()}]

    def __call__(self, case: OpCase) -> None:
        """Compare all that is computed of a row."""
        results = self._together(case)
        assert_close(assert_captured(results["value"]), expected(case), case.tolerance)
        if "batch" in results:
            items = [expected(case), evaluate(case, [y for _, y in pairs(case)])]
            wanted = [np.stack(pair) for pair in zip(*items, strict=True)]
            assert_close(assert_captured(results["batch"]), wanted, case.tolerance)
        if "derivatives" in results:
            Derivatives(case).check(results["derivatives"])
        if "narrow" in results:
            assert_narrow(case, results["narrow"])


def is_batched(case: OpCase) -> bool:
    return bool(inputs(case))


def pairs(case: OpCase) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the inputs, each stacked with that of another item of a batch."""
    others = inputs(case, draw=1)
    if all(np.array_equal(x, y) for x, y in zip(inputs(case), others, strict=True)):
        others = [np.roll(x, 1, axis=-1) if x.ndim else x for x in others]  # written out
    return list(zip(inputs(case), others, strict=True))


def is_differentiated(case: OpCase) -> bool:
    return not case.not_differentiable and any(x.dtype.kind == "f" for x in inputs(case))


class Derivatives:
    """Both modes' derivatives of a row along a direction, compared with differences."""

    def __init__(self, case: OpCase) -> None:
        random = np.random.default_rng(7)
        self._case, self._arrays = case, inputs(case)
        self._real = [i for i, x in enumerate(self._arrays) if x.dtype.kind == "f"]
        self._directions = [random.uniform(-1, 1, self._arrays[i].shape) for i in self._real]
        results = expected(case)
        self._weights = [random.uniform(-1, 1, y.shape) for y in results]
        self._kept = [k for k, y in enumerate(results) if y.dtype.kind == "f"]

    def traced(self, model: nnef_jax.Model) -> tuple[Callable[..., Any], Sequence[Any]]:
        """Return a function that computes forward derivatives and gradients, and its arguments.

        The gradients are those of captures, with edits that change nothing.
        """

        def weighted(*xs: Any, inside: bool = False) -> jax.Array:
            full = list(self._arrays)
            for i, x in zip(self._real, xs, strict=True):
                full[i] = x
            ys = probed(model, *full)[1] if inside else model.apply({}, *full)
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

    def check(self, derivatives: tuple[Any, Any]) -> None:
        """Compare the results of `traced` with central differences of the reference in 64 bits."""
        forward, gradients = derivatives
        step = 1e-5
        wanted = (self._moved(step) - self._moved(-step)) / (2 * step)
        terms = zip(gradients, self._directions, strict=True)
        products = [np.asarray(g, np.float64) * t.astype(np.float32) for g, t in terms]
        allowed = 20 * self._case.tolerance * max(1.0, sum(np.abs(p).sum() for p in products))
        assert abs(float(forward) - wanted) <= allowed
        assert abs(sum(p.sum() for p in products) - wanted) <= allowed

    def _moved(self, step: float) -> float:
        xs = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in self._arrays]
        for i, direction in zip(self._real, self._directions, strict=True):
            xs[i] = xs[i] + step * direction
        ys = evaluate(self._case, xs)
        return float(sum((ys[k] * self._weights[k]).sum() for k in self._kept))


def is_narrowed(case: OpCase) -> bool:
    return is_differentiated(case) and (case.dialect, case.operation) != ("nnef", "pow")


def narrow_model(case: OpCase) -> nnef_jax.Model:
    """Return the model that computes a row in 16 bits, which only tract's documents declare."""
    if case.dialect == "tract":
        return model_of(document(case, real="f16"))
    return model_of(document(case), dtype="bfloat16")


def narrow_inputs(case: OpCase) -> list[np.ndarray]:
    """Return the inputs, with reals rounded to the dtype of the model."""
    if case.dialect == "tract":
        return [x.astype(np.float16) if x.dtype.kind == "f" else x for x in inputs(case)]
    return [
        x.astype(jnp.bfloat16).astype(np.float32) if x.dtype.kind == "f" else x
        for x in inputs(case)
    ]


def assert_narrow(case: OpCase, outputs: Any) -> None:
    """Require 11 or 8 bits of precision: close to the exact result on the rounded inputs."""
    allowed = 0.01 if case.dialect == "tract" else 0.05
    for got, want in zip(
        jax.tree.leaves(outputs), evaluate(case, narrow_inputs(case)), strict=True
    ):
        if want.dtype.kind == "f":
            # Rows of tract have types of their own for results.
            assert got.dtype == jnp.bfloat16 or case.dialect == "tract"
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            assert np.abs(np.asarray(got, np.float64) - want).max(initial=0) <= allowed * scale


def assert_definition(case: OpCase, outputs: Any) -> None:
    """Require the results of a definition to be right, unless it overflows in 32 bits."""
    if not all(np.isfinite(y).all() for y in results(outputs)):
        pytest.skip("the definition overflows in 32 bits, the rule does not")
    assert_close(outputs, expected(case), case.tolerance)


def read_graph(text: str, **options: Any) -> Graph:
    """Return the graph of a document, read by options of `load`, without a model."""
    return read(archive(graph=text), **options).graph


@cache
def tract_kind(name: str) -> str:
    """Return the kind of an operation of tract; a function's is the last one of its first case."""
    operator = OPERATORS.get(name)
    if operator is None:
        return name
    if isinstance(operator.meaning, registry.OperatorRow):
        return operator.meaning.kind
    case = next(case for case in TRACT if case.operation == name)
    return read_graph(document(case)).operations[-1].kind


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


def applied(model: nnef_jax.Model, *xs: Any, **options: Any) -> Any:
    """Return the outputs of a model, after a check of their types."""
    result = model.apply({}, *xs, **options)
    outputs = result[0] if "capture" in options else result
    for output, spec in zip(jax.tree.leaves(outputs), model.outputs, strict=True):
        assert output.shape == spec.shape and output.dtype == spec.dtype
    return result


def probed(model: nnef_jax.Model, *xs: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the outputs where each tensor is replaced by itself, and their captures."""
    outputs, inside = applied(model, *xs, edit={"*": lambda value: value}, capture=["*"])
    return outputs, tuple(inside[name] for name in model.graph.output_names)


def assert_captured(probe: tuple[Any, tuple[Any, ...]]) -> Any:
    """Require captures to equal the outputs bit by bit; return the outputs."""
    outputs, captured = probe
    for got, want in zip(captured, results(outputs), strict=True):
        np.testing.assert_array_equal(got, want)
    return outputs


def few(cases: Iterable[OpCase], most: int = 2) -> list[OpCase]:
    """Return the first rows of each operation, for properties that most of its rows share."""
    seen = Counter[str]()
    first: list[OpCase] = []
    for case in cases:
        seen[case.operation] += 1
        if seen[case.operation] <= most:
            first.append(case)
    return first


def checked(cases: Sequence[OpCase]) -> list[Any]:
    """Return parameters of a test: checks, and a row to be checked by them.

    The first row of each operation, and its first of reals, are checked in full. The slow run
    checks the others in full too.
    """
    first = {*few(cases, 1), *few(filter(is_differentiated, cases), 1)}
    others = [case for case in cases if case not in first]
    some, every = Checks(cases, first), Checks(others, others)
    return [
        *(pytest.param(some, case, id=case.name) for case in cases),
        *(pytest.param(every, x, id=f"{x.name}-in_full", marks=pytest.mark.slow) for x in others),
    ]
