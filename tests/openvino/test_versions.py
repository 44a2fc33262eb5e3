"""Every type of layer in every version: a model, or an error that says where and what."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import jax
import pytest

import nnef_jax
from nnef_jax.formats.openvino.document import CONSTANTS
from nnef_jax.formats.openvino.layers import OPERATORS
from tests.openvino.documents import Writer

ENDS = ("Assign", "Input", "Memory", "Parameter", "ReadValue", "Result")
TYPES = sorted({*(layer.name for layer in OPERATORS), *CONSTANTS, *ENDS}, key=str.lower)
PORTS = ((1, 1), (0, 1), (1, 0))  # inputs and outputs of a layer
SHAPE = (1, 4, 4, 4)


def network(version: int, layers: Sequence[tuple[str, tuple[int, int]]]) -> Writer:
    """Return a network of layers that read its input side by side."""
    net = Writer(version)
    x = net.input("x", SHAPE)
    ends: list[tuple[int, int]] = []
    for type, (inputs, outputs) in layers:
        added = net.layer(type, [x] * inputs, [SHAPE] * outputs)
        ends += [(added, inputs + i) for i in range(outputs)]
    return net.result(*ends) if version >= 10 else net


@pytest.mark.parametrize("versions", [(7, 6, 5, 4, 3, 2), (11, 10)], ids=["blobs", "opsets"])
def test_every_type_is_read_or_refused(versions: Sequence[int], tmp_path: Path) -> None:
    """Load each type alone in the first version; the others lack as many and read the rest."""
    place, read, lacking = f"{tmp_path}/net.xml:1:", [], 0
    for layer in product(TYPES, PORTS):
        try:
            network(versions[0], [layer]).load(tmp_path)
            read.append(layer)
        except nnef_jax.NnefError as error:
            assert place in str(error), error
            lacking += isinstance(error, nnef_jax.UnsupportedError)
    every = [*product((type for type in TYPES if type != "Result"), PORTS)]
    for version in versions:
        with pytest.raises(nnef_jax.UnsupportedError) as caught:
            network(version, every).load(tmp_path)
        assert [place in str(error) for error in caught.value.errors] == [True] * lacking
        model = network(version, read).load(tmp_path)
        assert "relu_" in str(model.summary())
    given = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in model.inputs]
    jax.eval_shape(model.step, jax.eval_shape(model.init_state, *given), *given)


@pytest.mark.parametrize(
    ("type", "version", "spelling"),
    [("Memory", 11, "opset1"), ("Assign", 7, "version 7"), ("ReadValue", 7, "version 7")],
)
def test_a_layer_of_another_version(type: str, version: int, spelling: str, tmp_path: Path) -> None:
    message = rf"net.xml:1:\d+: layer '.*': '{type}' of {spelling} is not supported"
    with pytest.raises(nnef_jax.UnsupportedError, match=message):
        network(version, [(type, (1, 1))]).load(tmp_path)
