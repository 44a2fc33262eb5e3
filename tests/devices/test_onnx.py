"""A tenth of ONNX's node tests compiles for a TPU and a GPU."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import pytest

from nnef_jax.errors import NnefError
from tests.devices.compilation import Case, refusals
from tests.devices.limits import unexpected
from tests.devices.test_kinds import TOPOLOGIES
from tests.onnx.node_suite import arrays, cases, loaded
from tests.onnx.test_node_suite import REFUSED

pytestmark = [pytest.mark.devices, pytest.mark.slow]


def network(case: Any, path: Path) -> Case:
    """A node as a function of its parameters and inputs."""
    path.write_bytes(case.model.SerializeToString())
    names = [x.name for x in case.model.graph.input]
    inputs = arrays(case.data_sets[0][0])
    model, _ = loaded(path, dict(zip(names, inputs, strict=False)))
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in model.inputs]
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), model.params)
    return model.apply, [params, *types]


@pytest.mark.filterwarnings("ignore")  # of ONNX, which makes the cases
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_tenth_of_the_suite_compiles(topology: str, tmp_path: Path) -> None:
    every = [x for x in cases() if "_expanded" not in x.name and x.name not in REFUSED]
    chosen = random.Random(7).sample(every, len(every) // 10)
    with jax.numpy_dtype_promotion("standard"):
        networks: dict[str, Case] = {}
        for case in chosen:
            with suppress(NnefError):  # those of 64 bits
                networks[case.name] = network(case, tmp_path / f"{case.name}.onnx")
        reasons = refusals(topology, networks)
    assert len(networks) > 0.8 * len(chosen)
    assert not unexpected(topology, reasons)
