"""The shared collection of cases, where it is there: official models, documents, invalid ones."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from tests.conftest import SHARED_CASES
from tests.quickly import optimised

_ITEM_TYPES = {0: "<f4", 4: "<i4"}


def names(manifest: str) -> list[Any]:
    path = SHARED_CASES / manifest
    return json.loads(path.read_text())["cases"] if path.is_file() else []


def read(path: Path) -> np.ndarray:
    """A 32-bit tensor file by its own header: one of the official results holds integers."""
    raw = path.read_bytes()
    rank, *extents = struct.unpack_from("<I8I", raw, 8)
    bits, item_type = struct.unpack_from("<II", raw, 44)
    assert bits == 32
    return np.frombuffer(raw, _ITEM_TYPES[item_type], offset=128).reshape(extents[:rank])


@pytest.mark.parametrize(
    "name", sorted(p.parent.name for p in SHARED_CASES.glob("nnef_core/*/graph.nnef"))
)
def test_official_model(name: str) -> None:
    folder = SHARED_CASES / "nnef_core" / name
    declared = re.search(
        r"graph\s+\w+\s*\((.*?)\)\s*->\s*\((.*?)\)", (folder / "graph.nnef").read_text()
    )
    assert declared is not None
    inputs, outputs = ([n.strip() for n in group.split(",")] for group in declared.groups())
    got = nnef_jax.load(folder)(*[read(folder / f"{n}.dat") for n in inputs])
    got = got if isinstance(got, tuple) else (got,)
    for output, array in zip(outputs, got, strict=True):
        wanted = read(folder / f"{output}.dat")
        assert array.shape == wanted.shape and array.dtype == wanted.dtype
        assert np.linalg.norm(array - wanted) <= 1e-3 * np.linalg.norm(wanted)


@pytest.fixture(scope="module")
def runner() -> Any:
    """The collection's own runner, for how it compares."""
    spec = importlib.util.spec_from_file_location("run_nnef", SHARED_CASES / "run_nnef.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", names("nnef/manifest.json"), ids=lambda case: case["name"])
def test_document(case: Any, runner: Any) -> None:
    assert runner.run_case(case, 120) is None


@pytest.mark.parametrize(
    "case",
    [c for c in names("invalid/manifest.json") if c["severity"] != "robust"],
    ids=lambda case: case["name"],
)
def test_invalid_document(case: Any) -> None:
    with pytest.raises(nnef_jax.NnefError):
        nnef_jax.load(SHARED_CASES / "invalid" / case["path"])


@pytest.mark.slow
@pytest.mark.parametrize("case", names("tract/manifest.json"), ids=lambda case: case["name"])
@optimised()
def test_exported_network(case: Any) -> None:
    """What torch_to_nnef and tract wrote, against what PyTorch or ONNX computed."""
    folder = SHARED_CASES / "tract"
    stored = np.load(folder / case["io"])
    got = nnef_jax.load(folder / case["model"])(*[stored[x["key"]] for x in case["inputs"]])
    got = got if isinstance(got, tuple) else (got,)
    tolerance = case["tolerance"]
    for declared, array in zip(case["outputs"], got, strict=True):
        wanted = stored[declared["key"]]
        assert array.shape == wanted.shape and np.asarray(array).dtype.kind == wanted.dtype.kind
        np.testing.assert_allclose(
            np.asarray(array, np.float64), wanted, tolerance["rtol"], tolerance["atol"]
        )


def test_collection_is_there(shared_cases: Path) -> None:
    """Skips, by name, where the cases above had nothing to run on."""
    assert names("nnef/manifest.json") and names("tract/manifest.json")
