"""What `model(x)` runs on a TPU or GPU compiles without one, from shapes alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = {"tpu": "libtpu", "cuda": "jax_plugins.xla_cuda13"}


def compiled(platform: str, *arguments: str) -> dict[str, object]:
    """What a process of its own compiles there; skipped by name without the compiler."""
    package = COMPILERS[platform]
    if find_spec(package.partition(".")[0]) is None or find_spec(package) is None:
        pytest.skip(f"{package}, the compiler for {platform}, is not installed")
    variables = {  # before libtpu and the plugin are loaded
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "PYTHONPATH": str(ROOT),
    }
    run = subprocess.run(
        [sys.executable, "-m", "tests.unattached", platform, *arguments],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("platform", COMPILERS)
def test_both_parts_of_a_call_compile(platform: str) -> None:
    sizes = compiled(platform)
    assert {*sizes} == {"digits", "resnet", "bert"}
    parts: Any = sizes.values()
    assert all(call > 0 for _, call in parts) and any(first > 0 for first, _ in parts)


def test_gpus_compute_attention_in_16_bits_by_cudnn() -> None:
    if find_spec("nvidia") is None or find_spec("nvidia.cudnn") is None:
        pytest.skip("nvidia.cudnn is not installed")
    counts = compiled("cuda", "attention")
    assert len(counts) == 6 and {*counts.values()} == {2}  # layers


def test_a_tpu_moves_what_the_page_says() -> None:
    """Tensor parallel, in float32 and bfloat16, on four chips of a v5e."""
    page = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
    moved = compiled("tpu", "table")
    assert len(moved) == 14
    for row, collectives in moved.items():
        name = row.removesuffix(" float32").removesuffix(" bfloat16")
        assert f"| {name} | {collectives} |" in page, row
