"""The reference on those of the shared cases that are one single operation."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.reference import OPERATIONS
from tests.rows import failures

SHARED = Path(__file__).resolve().parents[3] / "shared" / "cases"


def arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a flat call; an identifier becomes a node of Python's grammar."""
    text = re.sub(r"\btrue\b", "True", re.sub(r"\bfalse\b", "False", text))
    call = ast.parse(f"f({re.sub(r'lambda *=', 'lambda_ =', text)})", mode="eval").body
    assert isinstance(call, ast.Call)

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Name():
                return node
            case ast.List(elts) if any(isinstance(item, ast.Name) for item in elts):
                return [value(item) for item in elts]
            case _:
                return ast.literal_eval(node)

    return [value(x) for x in call.args], {k.arg: value(k.value) for k in call.keywords if k.arg}


def single_operation(path: Path) -> tuple[list[str], str, list[Any], dict[str, Any]] | None:
    """Results, name, operands and attributes of a document of one operation, without constants."""
    text = path.read_text()
    if not re.search(r"version 1\.0;", text) or re.search(r"\b(fragment|update|constant)\b", text):
        return None
    body = re.search(r"\{(.*)\}", text, re.DOTALL)
    assert body
    statements = [s.strip() for s in re.sub(r"#.*", "", body[1]).split(";") if s.strip()]
    found = []
    for statement in statements:
        match = re.fullmatch(r"(.*?)=\s*(\w+)(?:<(\w+)>)?\s*\((.*)\)", statement, re.DOTALL)
        if not match or match[2] not in {*OPERATIONS, "external", "variable"}:
            return None
        if match[2] not in ("external", "variable"):
            operands, attributes = arguments(match[4])
            if match[2] == "cast":
                attributes["dtype"] = match[3]
            found.append((re.findall(r"\w+", match[1]), match[2], operands, attributes))
    return found[0] if len(found) == 1 else None


def read_dat(path: Path) -> np.ndarray:
    """A tensor file of floats, integers or bits (spec 5.2, the header of 1.0 final)."""
    raw = path.read_bytes()
    words = np.frombuffer(raw, "<u4", 32)
    shape = words[3 : 3 + words[2]]
    bits, kind = words[11], {0: "f", 4: "i", 5: "bool"}[int(words[12])]
    if kind == "bool":
        packed = np.frombuffer(raw, np.uint8, offset=128)
        return np.unpackbits(packed, count=np.prod(shape)).astype(bool).reshape(shape)
    return np.frombuffer(raw, f"<{kind}{bits // 8}", offset=128).reshape(shape)


def fill(operands: list[Any], read: Any) -> list[Any]:
    """The operands with 64-bit values in the place of identifiers."""
    filled = []
    for operand in operands:
        if isinstance(operand, list):
            filled.append(fill(operand, read))
        elif isinstance(operand, ast.Name):
            array = read(operand.id)
            filled.append(array if array.dtype == bool else array.astype(f"{array.dtype.kind}8"))
        else:
            filled.append(operand)
    return filled


def shared_cases() -> dict[str, Any]:
    entries = json.loads((SHARED / "nnef" / "manifest.json").read_text())["cases"]
    return {
        entry["name"]: entry
        for entry in entries
        if entry["dialect"] == "final" and "container" not in entry["name"]
        if (SHARED / "nnef" / entry["model"] / "graph.nnef").is_file()
        if not (SHARED / "nnef" / entry["model"] / "graph.quant").exists()
        if single_operation(SHARED / "nnef" / entry["model"] / "graph.nnef")
    }


def official_cases() -> dict[str, Path]:
    paths = sorted((SHARED / "nnef_core").glob("*/graph.nnef"))
    return {path.parent.name: path.parent for path in paths if single_operation(path)}


def variable_path(folder: Path, name: str) -> Path:
    """The file of the variable that a document calls `name`."""
    label = re.search(
        rf"\b{name}\s*=\s*variable[^;]*label\s*=\s*['\"]([^'\"]*)",
        (folder / "graph.nnef").read_text(),
    )
    assert label
    return folder / f"{label[1].lstrip('/')}.dat"


needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared cases are not here")


@needs_shared
def test_shared_cases() -> None:
    cases = shared_cases()
    assert len(cases) > 80
    assert failures(require_shared_case, cases) == {}


def require_shared_case(entry: dict[str, Any]) -> None:
    base = SHARED / "nnef"
    folder = base / entry["model"]
    found = single_operation(folder / "graph.nnef")
    assert found
    results, name, operands, attributes = found
    with np.load(base / entry["inputs"]) as given, np.load(base / entry["outputs"]) as wanted:
        have = dict(given)
        want = dict(wanted)
    operands = fill(
        operands, lambda name: have[name] if name in have else read_dat(variable_path(folder, name))
    )
    got = OPERATIONS[name](*operands, **attributes)
    got = got if isinstance(got, (list, tuple)) else [got]
    checked = 0
    for result, value in zip(results, got, strict=True):
        if result in want:
            assert value.shape == want[result].shape
            assert value.dtype.kind == want[result].dtype.kind
            assert_allclose(value, want[result], **entry["tolerance"])
            checked += 1
    assert checked


@needs_shared
def test_official_cases() -> None:
    cases = official_cases()
    assert len(cases) > 50
    assert failures(require_official_case, cases) == {}


def require_official_case(folder: Path) -> None:
    found = single_operation(folder / "graph.nnef")
    assert found
    results, name, operands, attributes = found
    text = (folder / "graph.nnef").read_text()

    def read(identifier: str) -> np.ndarray:
        if re.search(rf"\b{identifier}\s*=\s*external", text):
            return read_dat(folder / f"{identifier}.dat")[:1]  # the first item of the batch
        return read_dat(variable_path(folder, identifier))

    filled = fill(operands, read)
    keep = slice(None)
    # Where the channels of the output do not depend on one another, one is enough: this is slow.
    if name in ("conv", "deconv"):
        keep = slice(1)
        if attributes.get("groups") == 0:
            filled[0] = filled[0][:, :1]
            filled[1] = filled[1][:1]
        else:
            filled[1] = filled[1][:1] if name == "conv" else filled[1][:, :1]
        filled[2:] = [b if isinstance(b, float) else b[:, :1] for b in filled[2:]]
    elif name.endswith("_pool"):
        keep = slice(1)
        filled[0] = filled[0][:, :1]
    got = OPERATIONS[name](*filled, **attributes)
    got = got if isinstance(got, (list, tuple)) else [got]
    for result, value in zip(results, got, strict=True):
        want = read_dat(folder / f"{result}.dat")[:1]
        want = want[:, keep] if want.ndim > 1 else want
        assert value.shape == want.shape
        assert_allclose(value, want, rtol=1e-3, atol=1e-4)
