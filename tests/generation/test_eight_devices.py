"""A decoder over eight devices moves no cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

NETWORKS = Path(__file__).parent / "networks"
LAYERS, WIDTH = 2, 32


def test_caches_stay_on_their_devices() -> None:
    """Each layer has two all-reduces, of the products that sum over heads and hidden units.

    The logits are one more. Only the embeddings of the tokens are gathered.
    """
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.generation.eight_devices"]
    root = Path(__file__).parents[2]
    output = subprocess.run(
        command, cwd=root, env=os.environ | flags, check=True, capture_output=True, text=True
    ).stdout
    results = json.loads(output.splitlines()[-1])
    with np.load(NETWORKS / "llama8.npz") as arrays:
        prompt, tokens = arrays["prompt"][0], arrays["tokens"][0]
    assert results["tokens"] == tokens[:40].tolist()
    text = np.concatenate([prompt, tokens]).tolist()
    assert results["rows"] == [text[20:28], text[14:22]]
    for name, count in (("step", 1), ("chunk", 16), ("loop", 1)):
        expected = {"all-reduce": 2 * LAYERS + 1, "all-gather": 1, "largest": count * WIDTH}
        assert results[name] == expected, name
