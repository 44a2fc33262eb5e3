"""The notebooks of docs/: what is stored in them came of a run without errors, and does again."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored(path: Path) -> None:
    """In order, none of them an error, and without the places of the machine they were made on."""
    assert [cell["execution_count"] for cell in cells(path)] == [*range(1, len(cells(path)) + 1)]
    outputs = [output for cell in cells(path) for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert {output["output_type"] for output in outputs} <= {
        "stream",
        "display_data",
        "execute_result",
    }
    assert not any(output.get("name") == "stderr" for output in outputs)
    texts = json.dumps([output.get("text", output.get("data")) for output in outputs])
    assert not re.search(r"/(work|home|root|tmp)/", re.sub(r'"image/png": ".*?"', "", texts))
    assert path.stat().st_size < 200_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    for needed in ("ipykernel", "matplotlib", "sklearn"):
        pytest.importorskip(needed)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
