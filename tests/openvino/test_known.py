"""Layers on known tensors are computed while a network is read: what decides shapes, no weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from tests.openvino.documents import Writer

SHAPE = np.array([4, 3, 5])
SIGNED = np.array([-7, 8, -9])
# Of the shape [4,3,5]: a layer, what else it reads, its attributes, and what it gives.
KNOWN: list[tuple[str, list[Any], dict[str, Any], list[Any]]] = [
    ("Multiply", [SIGNED], {}, [SHAPE * SIGNED]),
    ("Divide", [[2, -2, 2]], {}, [[2, -2, 2]]),
    ("Divide", [[-2, -2, 2]], {"m_pythondiv": "false"}, [[-2, -1, 2]]),
    ("FloorMod", [[-3, 2, -4]], {}, [[-2, 1, -3]]),
    ("Mod", [[-3, 2, -4]], {}, [[1, 1, 1]]),
    ("ReduceProd", [[0]], {"keep_dims": "true"}, [[60]]),
    ("ReduceMean", [[0]], {"keep_dims": "false"}, [4]),
    ("StridedSlice", [[-1], [-4], [-1]], {"begin_mask": "0", "end_mask": "0"}, [[5, 3, 4]]),
    ("Slice", [[2], [-9], [-2]], {}, [[5, 4]]),
    ("Slice", [[3], [9], [1]], {}, [np.zeros(0, int)]),
    ("VariadicSplit", [0, [-1, 2]], {}, [[4], [3, 5]]),
    ("Split", [0], {"num_splits": "3"}, [[4], [3], [5]]),
    ("ScatterUpdate", [[1], [8], 0], {}, [[4, 8, 5]]),
    ("Tile", [[2]], {}, [[4, 3, 5, 4, 3, 5]]),
    ("Unsqueeze", [[0]], {}, [[[4, 3, 5]]]),
    ("Reshape", [[3, -1]], {"special_zero": "false"}, [[[4], [3], [5]]]),
    ("Gather", [[2, -3], 0], {}, [[5, 4]]),
    ("ConvertLike", [np.float32([1])], {}, [SHAPE.astype(np.float32)]),
]


@pytest.mark.parametrize(("type", "others", "attributes", "wanted"), KNOWN)
def test_what_follows_from_shapes(
    type: str, others: list[Any], attributes: dict[str, Any], wanted: list[Any], tmp_path: Path
) -> None:
    net = Writer()
    shape = net.layer("ShapeOf", [net.input("x", SHAPE.tolist())], [(3,)])
    given = [shape, *(net.constant(np.asarray(x)) for x in others)]
    arrays = [np.asarray(x) for x in wanted]
    layer = net.layer(type, given, [x.shape for x in arrays], attributes=attributes)
    ports = range(len(given), len(given) + len(arrays))
    model = net.result(*((layer, port) for port in ports)).load(tmp_path)
    assert {x.kind for x in model.graph.operations} == {"constant"} and not model.params
    found = model(np.zeros(SHAPE, np.float32))
    for x, y in zip([found] if len(arrays) == 1 else found, arrays, strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype.kind == y.dtype.kind


def test_a_folded_tensor_is_told_as_such(tmp_path: Path) -> None:
    net = Writer()
    x = net.input("x", (2, 3))
    shape = net.layer("ShapeOf", [x], [(2,)], name="shape")
    more = net.constant(np.array([1, 2]), name="more")
    twice = net.layer("Multiply", [shape, more], [(2,)], name="twice")
    rows = net.layer("Broadcast", [net.constant(np.float32([1])), twice], [(2, 6)], name="rows")
    net.result(net.layer("Exp", [rows], [(2, 6)], name="made"))
    model = net.load(tmp_path)
    for name in ("shape", "more", "twice"):
        with pytest.raises(nnef_jax.InputError, match=f"no tensor '{name}'") as error:
            model(np.zeros((2, 3), np.float32), capture=[name])
        assert f"'{name}' was folded" in error.value.hint


@pytest.mark.parametrize(
    ("type", "array", "attributes", "kinds"),
    [
        ("Exp", np.float32(2), {}, ["exp"]),  # a number that is trained, as a scale
        ("Sqrt", np.float32([4, 9]), {}, ["sqrt"]),
        ("Convert", np.float16([1, 2]), {"destination_type": "f32"}, ["cast"]),
        ("Convert", np.array([1, 2]), {"destination_type": "f32"}, ["constant", "cast"]),
    ],
)
def test_weights_stay(
    type: str, array: np.ndarray, attributes: dict[str, Any], kinds: list[str], tmp_path: Path
) -> None:
    net = Writer()
    w = net.constant(array, name="w", type="f16" if array.dtype == np.float16 else "")
    model = net.result(net.layer(type, [w], [array.shape], attributes=attributes)).load(tmp_path)
    assert [x.kind for x in model.graph.operations] == kinds
    assert list(model.params) == (["w"] if array.dtype.kind == "f" else [])


def test_a_number_is_computed(tmp_path: Path) -> None:
    net = Writer()
    epsilon = net.layer("Sqrt", [net.constant(np.float32(4), name="w")], [()])
    model = net.result(net.layer("Add", [net.input("x", (2,)), epsilon], [(2,)])).load(tmp_path)
    assert [x.kind for x in model.graph.operations] == ["add"] and not model.params
