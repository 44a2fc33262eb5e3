"""Rows of layers with their results, from formulas in numpy; each knows the line it stands on.

Rows of a module become one network for versions 2 to 9 and one for operation sets, so that a
hundred layers are compiled at once. `docs/openvino_layers.md` has the line of each first row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tests.openvino.documents import Writer

LEGACY, OPSETS = 7, 11  # the versions that rows are written in
RNG = np.random.default_rng(0)
_TYPES = {"float32": "f32", "int32": "i32", "int64": "i64", "bool": "boolean"}
_PRECISIONS = {"float32": "FP32", "int32": "I32", "int64": "I64", "bool": "BOOL"}
_SHOWN: dict[tuple[str, int], str] = {}  # by type and version, the place of a test
Function = TypeVar("Function", bound=Callable[..., Any])


def real(*shape: int, low: float = -1, high: float = 1) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Known:
    """An input that is stored in the network, packed ones with a type and a shape."""

    array: Any
    type: str = ""
    shape: Sequence[int] | None = None


@dataclass(frozen=True, eq=False)
class Row:
    type: str
    inputs: Sequence[Any]
    wanted: Sequence[np.ndarray]
    place: str
    versions: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    blobs: Mapping[str, np.ndarray] = field(default_factory=dict)
    opset: str = "opset1"


def _row(versions: tuple[int, ...]) -> Callable[..., Row]:
    def make(
        type: str,
        inputs: Sequence[Any],
        wanted: Any,
        *,
        blobs: Mapping[str, np.ndarray] | None = None,
        opset: str = "opset1",
        **attributes: Any,
    ) -> Row:
        results = wanted if isinstance(wanted, tuple) else (wanted,)
        place = line_of_caller(2)
        remember([type], versions, place)
        given = {key.rstrip("_").replace("__", "-"): _text(x) for key, x in attributes.items()}
        return Row(type, inputs, results, place, versions, given, blobs or {}, opset)

    return make


def _text(x: Any) -> str:
    if isinstance(x, list | tuple):
        return ",".join(map(str, x))
    return str(x).lower() if isinstance(x, bool) else str(x)


def line_of_caller(depth: int) -> str:
    """Return file and line of the call that is `depth` frames above this function."""
    frame = sys._getframe(depth)
    root = Path(__file__).resolve().parents[3]
    return f"{Path(frame.f_code.co_filename).relative_to(root).as_posix()}:{frame.f_lineno}"


def remember(types: Iterable[str], versions: Iterable[int], place: str) -> None:
    """Note the place of a test of the results of layers of these types."""
    for type in types:
        for version in versions:
            _SHOWN.setdefault((type.lower(), version), place)


old, new, both = _row((LEGACY,)), _row((OPSETS,)), _row((LEGACY, OPSETS))


def shows(*types: str, versions: Sequence[int] = (OPSETS,)) -> Callable[[Function], Function]:
    """Mark a test as one of the results of layers of these types and versions."""
    remember(types, versions, line_of_caller(2))
    return lambda test: test


def place(type: str, version: int) -> str:
    """Return file and line of a test of a layer's result, "" if there is none."""
    return _SHOWN.get((type.lower(), version), "")


def network(rows: Sequence[Row], version: int) -> tuple[Writer, list[np.ndarray]]:
    """Return a network of all layers side by side, and its inputs."""
    net, given = Writer(version), []
    for row in rows:
        ends: list[int] = []
        for x in row.inputs:
            if isinstance(x, Known):
                array = np.asarray(x.array)
                type = x.type or _TYPES.get(array.dtype.name, "")
                ends.append(net.constant(array, type=type, shape=x.shape))
                continue
            name = f"x{len(given)}"
            if version < 10:
                precision = _PRECISIONS[x.dtype.name]
                ends.append(net.layer("Input", outputs=[x.shape], name=name, precision=precision))
            else:
                ends.append(net.input(name, x.shape, _TYPES[x.dtype.name]))
            given.append(x)
        id = net.layer(
            row.type, ends, [w.shape for w in row.wanted], attributes=row.attributes,
            blobs=row.blobs, opset=row.opset, name=f"y{len(net.layers)}",
        )  # fmt: skip
        if version >= 10:
            net.result(*((id, len(ends) + i) for i in range(len(row.wanted))))
    return net, given
