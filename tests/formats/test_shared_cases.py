"""The shared collection of cases, where it is there: official models, documents, invalid ones."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from tests.conftest import SHARED_CASES
from tests.operation_checks import Together
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


OFFICIAL = sorted(p.parent.name for p in SHARED_CASES.glob("nnef_core/*/graph.nnef"))
DOCUMENTS = {case["name"]: case for case in names("nnef/manifest.json")}
EXPORTED = names("tract/manifest.json")
STEPS = [name for name, case in DOCUMENTS.items() if case.get("steps")]
ONCE = [name for name in DOCUMENTS if name not in STEPS]
# Documents of one operation, of which the tables of operations have others, and windows of further
# sizes: every third is tried each time.
_OF_THE_FORMAT = re.compile("dat_|quant_|container|comp_|syntax|rec_|prov_|net_|intro_|onnx_")


def ends(name: str) -> list[list[str]]:
    """The names of an official model's inputs and of its outputs."""
    text = (SHARED_CASES / "nnef_core" / name / "graph.nnef").read_text()
    declared = re.search(r"graph\s+\w+\s*\((.*?)\)\s*->\s*\((.*?)\)", text)
    assert declared is not None
    return [[n.strip() for n in group.split(",")] for group in declared.groups()]


def official(name: str) -> Any:
    """An official model as a function of parameters and inputs, and these."""
    folder = SHARED_CASES / "nnef_core" / name
    model = nnef_jax.load(folder)
    return model.apply, [model.params, *(read(folder / f"{n}.dat") for n in ends(name)[0])]


def once(name: str) -> Any:
    """A document as such a function, and what it takes."""
    case, folder = DOCUMENTS[name], SHARED_CASES / "nnef"
    model, inputs = nnef_jax.load(folder / case["model"]), np.load(folder / case["inputs"])
    return model.apply, [model.params, *(inputs[n] for n in case["input_order"])]


def parts(names: list[str]) -> tuple[list[str], list[str]]:
    """The names, and those that are left to the weekly job."""
    others = [n for n in names if not _OF_THE_FORMAT.match(n)]
    weekly = [n for i, n in enumerate(others) if i % 3]
    return [n for n in names if n not in weekly], weekly


def rows(names: list[str]) -> list[Any]:
    daily, weekly = parts(names)
    return [*daily, *(pytest.param(n, marks=pytest.mark.slow) for n in weekly)]


def compiled(names: list[str], prepare: Any) -> dict[str, Any]:
    """What computes the results of each name, those of a part together."""
    return {
        n: call for part in parts(names) for call in [cache(Together(part, prepare))] for n in part
    }


RESULTS = compiled(ONCE, once) | compiled(OFFICIAL, official)


@pytest.mark.parametrize("name", rows(OFFICIAL))
def test_official_model(name: str) -> None:
    got = RESULTS[name](name)
    got = got if isinstance(got, tuple) else (got,)
    for output, array in zip(ends(name)[1], got, strict=True):
        wanted = read(SHARED_CASES / "nnef_core" / name / f"{output}.dat")
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


@pytest.mark.parametrize("name", rows(ONCE))
def test_document(name: str, runner: Any) -> None:
    case = DOCUMENTS[name]
    outputs = runner.as_dict(RESULTS[name](name), case["output_order"])
    wanted = dict(np.load(SHARED_CASES / "nnef" / case["outputs"]))
    assert runner.compare(outputs, wanted, case["tolerance"]) is None


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_a_document(name: str, runner: Any) -> None:
    assert runner.run_case(DOCUMENTS[name], 120) is None


def test_invalid_documents(shared_cases: Path) -> None:
    taken = []
    for case in names("invalid/manifest.json"):
        if case["severity"] != "robust":
            with suppress(nnef_jax.NnefError):
                nnef_jax.load(shared_cases / "invalid" / case["path"])
                taken.append(case["name"])
    assert not taken


@pytest.mark.slow
@pytest.mark.parametrize("case", EXPORTED, ids=[case["name"] for case in EXPORTED])
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
