"""`python -m benchmarks.language_models`: its network is the Llama of 7 billion parameters."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("onnx")

from benchmarks.language_models import decoder


def test_the_llama_has_the_published_number_of_parameters() -> None:
    """The number is that of huggyllama/llama-7b; the tables of rotations are computed there."""
    llama = decoder(layers=32, places=2048)
    params = llama.model.params
    sizes = {name: math.prod(x.shape) for name, x in params.items() if name not in ("cos", "sin")}
    assert sum(sizes.values()) == 6_738_415_616
    assert len(llama.roles.caches) == 64 and llama.roles.positions == "position_ids"
    cache = llama.model.graph.states[1].value.type
    assert (cache.shape[1:], cache.dtype) == ((32, 2048, 128), "bfloat16")
