"""Runs ONNX's own node tests (`onnx.backend.test`), many in one compilation.

    python -m tests.onnx.node_suite [--match REGEX] [--group 40] [--saved | --kept] [-v]

Prints how many are right, wrong, refused (an NnefError), and lists what is not right by reason.
With `--saved` they are saved as NNEF and read back before they are run, with `--kept` converted
with custom operations.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import NnefError


def cases(match: str = "") -> list[Any]:
    """Return the suite's cases whose names match."""
    from onnx.backend.test.case import base
    from onnx.backend.test.case.node import collect_testcases
    from onnx.reference.ops import op_pool_common

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(op_pool_common, "pool", _at_once(op_pool_common.pool))
        patch.setattr(base, "process_snippet", lambda *_: ("", ""))  # the source, for documents
        found = collect_testcases(None)
    return [case for case in found if re.search(match, case.name)]


def _at_once(pool: Callable[..., Any]) -> Callable[..., Any]:
    """Return ONNX's pooling, with all windows at once where there is no padding.

    One by one, the windows of three cases take three seconds.
    """

    def pooled(*args: Any, **options: Any) -> Any:
        if len(args) != 6 or options.keys() - {"p"} or any(n != 1 for n in args[3]):
            return pool(*args, **options)
        x, _, kernel, _, _, kind = args
        axes, p = tuple(range(2, x.ndim)), options.get("p", 1)
        windows = np.lib.stride_tricks.sliding_window_view(x, kernel, axes)
        inside = tuple(range(-len(kernel), 0))
        if kind == "LPPOOL":
            return (np.abs(windows) ** p).sum(inside) ** np.float32(1 / p)
        return windows.mean(inside) if kind == "AVG" else windows.max(inside)

    return pooled


def has_float8(case: Any) -> bool:
    """Tell whether a case has inputs or outputs in 8-bit floats."""
    from onnx import TensorProto

    ports = (*case.model.graph.input, *case.model.graph.output)
    types = {TensorProto.DataType.Name(x.type.tensor_type.elem_type) for x in ports}
    return any(type.startswith("FLOAT8") for type in types)


def arrays(values: Sequence[Any]) -> list[Any]:
    """Return the inputs or outputs of a case as arrays, None for those that are no arrays."""
    from onnx import TensorProto, numpy_helper

    found = [numpy_helper.to_array(x) if isinstance(x, TensorProto) else x for x in values]
    return [np.asarray(x) if isinstance(x, np.ndarray | np.generic) else None for x in found]


class Named(NamedTuple):
    """A model, and the names of a case for its inputs."""

    model: nnef_jax.Model
    inputs: Sequence[str]


Load = Callable[[Path, dict[str, Any]], Named]


def run(group: Sequence[Any], folder: Path, load: Load) -> dict[str, str]:
    """Return the outcome of each case: '' if right, else the reason."""
    found: dict[str, str] = {}
    made: list[Any] = []
    for case in group:
        path = folder / f"{case.name}.onnx"
        path.write_bytes(case.model.SerializeToString())
        with _noted(found, case):
            inputs = arrays(case.data_sets[0][0])
            names = [x.name for x in case.model.graph.input]
            given = dict(zip(names, inputs, strict=False))
            model, inputs = load(path, given)
            taken = [fitting(given[x], y) for x, y in zip(inputs, model.inputs, strict=True)]
            made.append((case, model, taken))
        path.unlink()

    def all_of(params: Any, inputs: Any) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for (case, m, _), p, xs in zip(made, params, inputs, strict=True):
            with _noted(found, case):
                results[case.name] = m.apply(p, *xs)
        return results

    try:
        results = jax.jit(all_of)([m.params for _, m, _ in made], [xs for _, _, xs in made])
    except Exception as error:
        if len(group) == 1:
            return found | {group[0].name: f"raised: {type(error).__name__}: {error}"}
        for case in group:
            found |= run([case], folder, load)
        if not any(found.values()):  # no case fails alone: the fault is of the joined program
            raise
        return found
    for case, _, _ in made:
        if case.name in results:
            result = results[case.name]
            got = [result] if isinstance(result, jax.Array) else list(result)
            found[case.name] = differs(case, got, is_exact=load is loaded)
    return found


@contextmanager
def _noted(found: dict[str, str], case: Any) -> Iterator[None]:
    """Note why a case is not computed."""
    try:
        yield
    except NnefError as error:
        found[case.name] = f"refused: {error.message if hasattr(error, 'message') else error}"
    except Exception as error:  # whatever it is, it must not be
        found[case.name] = f"raised: {type(error).__name__}: {error}"


def fitting(x: np.ndarray, spec: nnef_jax.TensorSpec) -> np.ndarray:
    """Return integers in the width of an input if they fit, and anything else unchanged."""
    return x.astype(spec.dtype) if x.dtype.kind in "iu" and (x == x.astype(spec.dtype)).all() else x


def loaded(path: Path, given: dict[str, Any]) -> Named:
    """Load a network, with those inputs fixed that its errors ask for."""
    _, model = fixed(path, given)
    return Named(model, [x.name for x in model.inputs])


def saved(path: Path, given: dict[str, Any]) -> Named:
    """Load a network, save it and load that. NnefError if saving is refused."""
    model, inputs = loaded(path, given)
    with TemporaryDirectory() as folder:
        model.save(f"{folder}/saved")
        return Named(read_back(f"{folder}/saved"), inputs)


def kept(path: Path, given: dict[str, Any]) -> Named:
    """Convert a network with custom operations and load that. NnefError if it is refused."""
    values, model = fixed(path, given)
    inputs = [x.name for x in model.inputs]
    with TemporaryDirectory() as folder:
        nnef_jax.convert(path, f"{folder}/kept", keep=True, values=values)
        return Named(read_back(f"{folder}/kept"), inputs)


def read_back(folder: str) -> nnef_jax.Model:
    """Load a saved network, which must not raise an NnefError."""
    try:
        return nnef_jax.load(folder)
    except NnefError as error:
        raise AssertionError(f"what is saved is not read back: {error}") from error


def fixed(path: Path, given: dict[str, Any]) -> tuple[dict[str, Any], nnef_jax.Model]:
    """Return the values of the inputs that errors ask to be fixed, and the model."""
    values: dict[str, Any] = {}
    while True:
        try:
            return values, nnef_jax.load(path, values=values)
        except NnefError as error:
            found = re.search(r"values={'(.+?)': ...}", error.hint or "")
            if found is None or found[1] in values:
                raise
            values[found[1]] = given[found[1]]


def differs(case: Any, got: Sequence[Any], *, is_exact: bool) -> str:
    """Return how results differ from the suite's, '' if they are equal.

    Their dtypes may be of other widths unless they are to be exact.
    """
    wanted = arrays(case.data_sets[0][1])
    for i, (x, y) in enumerate(zip(got, wanted, strict=True)):
        if y is None:
            return "refused: the suite has no array here"
        x = without_padding(np.asarray(x), y.shape)
        is_alike = x.dtype == y.dtype or not is_exact
        if x.shape != y.shape or not is_alike:
            return f"wrong: output {i} is {x.dtype}{x.shape}, not {y.dtype}{y.shape}"
        if y.dtype.kind in "fc" or "float" in y.dtype.name:
            wide = np.complex128 if y.dtype.kind == "c" else np.float64
            rtol = case.rtol + (2 * eps(y.dtype) if y.dtype.itemsize < 4 else 0)
            try:
                np.testing.assert_allclose(
                    x.astype(wide), y.astype(wide), rtol=rtol, atol=case.atol
                )
            except AssertionError as error:
                return f"wrong: output {i}: {' '.join(str(error).split())[:200]}"
        elif not np.array_equal(x.astype(object), y.astype(object)):
            return f"wrong: output {i}: {x.ravel()[:8]} not {y.ravel()[:8]}"
    return ""


def without_padding(x: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return the first items along an axis that is too long, if the others are padding."""
    axes = [i for i, (n, m) in enumerate(zip(x.shape, shape, strict=False)) if n > m]
    if len(axes) != 1 or x.ndim != len(shape):
        return x
    items, behind = np.split(x, [shape[axes[0]]], axes[0])
    is_real = x.dtype.kind == "f" or "float" in x.dtype.name
    padding = np.isnan(behind) if is_real else behind == (-1 if x.dtype.kind == "i" else 0)
    return items if padding.all() else x


def eps(dtype: np.dtype[Any]) -> float:
    """Return the distance from 1 to the next number."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def main() -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--match", default="")
    parser.add_argument("--group", type=int, default=40)
    ways = parser.add_mutually_exclusive_group()
    for way in (saved, kept):
        ways.add_argument(f"--{way.__name__}", dest="load", action="store_const", const=way)
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    chosen = cases(options.match)
    found: dict[str, str] = {}
    with TemporaryDirectory() as folder:
        for i in range(0, len(chosen), options.group):
            part = chosen[i : i + options.group]
            found |= run(part, Path(folder), options.load or loaded)
            print(".", end="", file=sys.stderr, flush=True)
    reasons = defaultdict[str, list[str]](list)
    for name, reason in found.items():
        reasons[reason if options.v else reason[:90]].append(name)
    right = len(reasons.pop("", []))
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):4} {reason}: {' '.join(names[:6])}")
    wrong = sum(reason.startswith(("wrong", "raised")) for reason in found.values())
    print(f"{right} right, {wrong} wrong, {len(found) - right - wrong} refused of {len(found)}")


if __name__ == "__main__":
    main()
