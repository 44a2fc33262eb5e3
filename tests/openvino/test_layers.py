"""Results of layers, many in a network, against formulas in numpy."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

from tests.openvino.documents import Writer
from tests.openvino.layers import (
    LEGACY,
    OPSETS,
    Known,
    Row,
    arithmetic,
    arrangement,
    boxes,
    network,
    real,
    shows,
    steps,
    windows,
)  # fmt: skip

MODULES = (arithmetic, arrangement, boxes, steps, windows)


@pytest.mark.parametrize("version", [LEGACY, OPSETS])
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".")[-1])
def test_results(module: ModuleType, version: int, tmp_path: Path) -> None:
    rows: list[Row] = [row for row in module.ROWS if version in row.versions]
    net, given = network(rows, version)
    found = iter(jax.tree.leaves(net.load(tmp_path)(*given)))
    wrong: list[str] = []
    for row in rows:
        for wanted in row.wanted:
            ours = np.asarray(next(found))
            if ours.shape != wanted.shape or not np.allclose(ours, wanted, rtol=1e-4, atol=1e-5):
                wrong.append(f"{row.place}: {row.type}: {ours}, not {wanted}")
    assert not wrong, "\n".join(wrong)
    assert next(found, None) is None


@pytest.mark.parametrize("version", [pytest.param(LEGACY, marks=pytest.mark.slow), OPSETS])
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".")[-1])
def test_layers_go_with_whole_numbers_of_64_bits(
    module: ModuleType, version: int, tmp_path: Path
) -> None:
    rows: list[Row] = [row for row in module.ROWS if version in row.versions]
    with jax.enable_x64(True):
        net, given = network(rows, version)
        found = jax.tree.leaves(jax.eval_shape(net.load(tmp_path), *given))
    assert [x.shape for x in found] == [x.shape for row in rows for x in row.wanted]


@pytest.mark.parametrize(
    ("type", "attributes", "slopes"),
    [
        ("ReduceL2", {"keep_dims": "true"}, [0, 0, 0, 0]),
        ("MVN", {"eps": "0.5", "eps_mode": "outside_sqrt"}, [1.5, -0.5, -0.5, -0.5]),
    ],
)
def test_the_root_of_nothing_has_a_derivative(
    type: str, attributes: dict[str, str], slopes: list[float], tmp_path: Path
) -> None:
    """It is 0, as in PyTorch; where items are divided by it that of the items is left."""
    zeros = np.zeros((1, 4), np.float32)
    wanted = zeros[:, :1] if type == "ReduceL2" else zeros
    row = Row(type, [zeros, Known(np.array([1]))], [wanted], "", (), attributes, opset="opset6")
    net, given = network([row], OPSETS)
    model = net.load(tmp_path)
    np.testing.assert_allclose(jax.grad(lambda x: model(x)[0, 0])(*given), [slopes])


@shows("Const", "TensorIterator", versions=[LEGACY])
def test_an_old_tensor_iterator(tmp_path: Path) -> None:
    """h = h + tanh(x_t) from a stored h: ports of layers in the body are what is fed."""
    body = Writer(LEGACY)
    body.shapes |= {(-1, 0): (1, 1, 3), (-2, 0): (1, 1, 3)}  # nothing in the body feeds these
    steep = body.layer("Tanh", [(-1, 0)], [(1, 1, 3)])
    sums = {"operation": "sum"}
    total = body.layer("Eltwise", [steep, (-2, 0)], [(1, 1, 3)], attributes=sums)
    edges = [edge for edge in body.edges if 'from-layer="-' not in edge]
    inside = (
        '<port_map><input axis="1" external_port_id="0" internal_layer_id="0" internal_port_id="0"'
        ' part_size="1" start="0" end="-1" stride="1"/>'
        f'<input external_port_id="1" internal_layer_id="{total}" internal_port_id="1"/>'
        f'<output axis="1" external_port_id="2" internal_layer_id="{total}" internal_port_id="2"'
        ' part_size="1" start="0" end="-1" stride="1"/></port_map>'
        f'<back_edges><edge from-layer="{total}" from-port="2" to-layer="{total}" to-port="1"/>'
        f"</back_edges><body><layers>{''.join(body.layers)}</layers>"
        f"<edges>{''.join(edges)}</edges></body>"
    )
    net, start, x = Writer(LEGACY), real(1, 1, 3), real(1, 4, 3)
    ends = [net.input("x", (1, 4, 3)), net.layer("Const", [], [(1, 1, 3)], blobs={"custom": start})]
    net.layer("TensorIterator", ends, [(1, 4, 3)], inside=inside)
    np.testing.assert_allclose(
        net.load(tmp_path)(x), start + np.cumsum(np.tanh(x), 1), rtol=1e-5, atol=1e-6
    )
