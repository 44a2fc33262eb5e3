"""Figures of `nnef_jax.cost` for devices that are not attached, against those of plain jax."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

import nnef_jax
from nnef_jax.errors import InputError
from nnef_jax.measure.topologies import Topology, topology_of
from nnef_jax.measure.unattached import compile_for, lowered_program
from tests import eight_devices
from tests.devices import plain
from tests.llama import llama

pytestmark = [pytest.mark.devices, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "PYTHONPATH": str(ROOT),
}


def require_compiler(topology: str) -> None:
    try:
        topology_of(topology).require_compiler()
    except InputError as error:
        pytest.skip(str(error).splitlines()[0])


def cost_of(network: str, topology: str, sizes: tuple[int, int]) -> Any:
    if network == "training":
        mesh = plain.abstract_mesh(topology, sizes)
        function, arguments = plain.training_step(eight_devices.network("digits")[0], mesh)
        return nnef_jax.cost(function, *arguments, topology=topology)
    model, inputs = eight_devices.network(network)
    axes = None if sizes == (1, 1) else dict(zip(plain.AXES, sizes, strict=True))
    return nnef_jax.cost(model, *inputs, topology=topology, mesh=axes)


@pytest.mark.parametrize("network", ["resnet", "bert", "lstm", "training"])
@pytest.mark.parametrize(
    ("topology", "sizes"), [("v5e:1", (1, 1)), ("v5e:4x4", (8, 2)), ("h100", (1, 1))]
)
def test_figures_are_those_of_plain_jax(
    network: str, topology: str, sizes: tuple[int, int]
) -> None:
    require_compiler(topology)
    cost = cost_of(network, topology, sizes)
    command = [sys.executable, "-m", "tests.devices.plain", network, topology, *map(str, sizes)]
    run = subprocess.run(
        command, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout.splitlines()[-1])
    assert cost.argument_bytes == figures["argument"]
    assert cost.output_bytes == figures["output"] - figures["alias"]
    assert cost.temporary_bytes == figures["temp"]
    if topology_of(topology).chip.platform == "tpu":  # the other compiler counts nothing
        assert (cost.flops, cost.bytes_accessed) == (figures["flops"], figures["bytes accessed"])
        assert cost.seconds > 0


@pytest.mark.parametrize("topology", ["v5e:1", "h100"])
def test_a_network_that_does_not_fit_is_a_result(topology: str, tmp_path: Path) -> None:
    require_compiler(topology)
    text = llama(layers=2, width=65536, hidden=262144, heads=512)
    (tmp_path / "graph.nnef").write_text(text)
    model = nnef_jax.load(tmp_path, parameters="shapes", dtype="bfloat16")
    cost = nnef_jax.cost(model, topology=topology)
    assert not cost.fits and cost.to_dict()["fits"] is False
    assert bool(cost.refusal) is (topology == "v5e:1")
    assert "no" in str(cost)


@pytest.mark.parametrize(("name", "shape"), [("v5e:1x3", (1, 3)), ("v4:3x2x1", (3, 2, 1))])
def test_the_compiler_lacks_the_layouts_that_are_refused(name: str, shape: tuple[int, ...]) -> None:
    require_compiler("v5e:1")
    with pytest.raises(InputError, match="has no layout"):
        topology_of(name)
    topology = Topology(name, topology_of(f"{name.partition(':')[0]}:1").chip, shape)
    program = lowered_program(jax.nn.relu, [jax.ShapeDtypeStruct((2,), "float32")], "tpu")
    with pytest.raises(InputError, match=f"the compiler has no layout '{name}'") as caught:
        compile_for(topology, [program])
    assert "pip install" not in str(caught.value)


def test_a_view_is_coloured_by_the_estimate() -> None:
    require_compiler("v5e:1")
    model, inputs = eight_devices.network("digits")
    cost = nnef_jax.cost(model, *inputs, topology="v5e:1")
    page = nnef_jax.view(model, profile=cost)
    assert page.data["coloured_by"]
    assert sum(row.seconds for row in cost.rows) == pytest.approx(cost.seconds)


def test_donated_arguments_are_not_counted_twice() -> None:
    require_compiler("v5e:1")
    x = jax.ShapeDtypeStruct((1024, 1024), "float32")
    held = nnef_jax.cost(lambda x: x + 1, x, topology="v5e:1")
    donated = nnef_jax.cost(jax.jit(lambda x: x + 1, donate_argnums=0), x, topology="v5e:1")
    assert held.needed_bytes == 2 * 1024 * 1024 * 4
    assert donated.needed_bytes == 1024 * 1024 * 4
