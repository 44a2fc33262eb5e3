"""The shared collection of OpenVX cases: vectors of the released C routines and of the text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = (
    "activation convolution deconvolution fully_connected normalization pooling roi_pooling "
    "softmax view_convolution"
)


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS.split())
def test_layer_is_bit_exact(shared_cases: Path, layer: str) -> None:
    ran = subprocess.run(
        [sys.executable, shared_cases / "run_openvx.py", "--layer", layer],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 0, ran.stdout
    assert " 0 failed of " in ran.stdout.splitlines()[-1]
