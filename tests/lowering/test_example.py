"""The network of docs/architecture.md, pass by pass, is what the tool prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import nnef_jax
from tests.pages import ROOT, blocks

COMMAND = "$ nnef-jax compile block --print-after all\n"
SHAPES = {"f": (8, 16, 1, 1), "s": (1, 8)}


def test_the_page_has_what_the_tool_prints(tmp_path: Path) -> None:
    texts = [block.code for block in blocks("docs/architecture.md", "text")]
    (document,) = (text for text in texts if text.startswith("version"))
    (printed,) = (text for text in texts if text.startswith(COMMAND))
    folder = tmp_path / "block"
    folder.mkdir()
    (folder / "graph.nnef").write_text(document)
    for name, shape in SHAPES.items():
        nnef_jax.write_tensor(folder / f"{name}.dat", np.ones(shape, np.float32))
    paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "nnef_jax", *COMMAND.split()[2:]]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert printed == COMMAND + found.stdout  # else put what it prints there
