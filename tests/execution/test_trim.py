"""`trim`: results whose lengths values decide are cut to these, in every format alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import InputError
from tests import tract_text
from tests.helpers import model_of
from tests.openvino.documents import Writer

pytest.importorskip("onnx")

from tests.onnx.models import model, node, tensor

# Items that padding is written with are among these: -1, NaN, 0 and False.
X = np.float32([0, np.nan, -1, 0, np.nan])
PLACES = [1, 2, 4]
NONE = np.zeros(5, np.float32)


def of_onnx(folder: Path) -> nnef_jax.Model:
    return nnef_jax.load(model([node("NonZero", "x")], [tensor("x", (5,))]))


def of_openvino(folder: Path) -> nnef_jax.Model:
    net = Writer()
    x = net.input("x", (5,))
    places = net.layer("NonZero", [x], [(1, -1)], attributes={"output_type": "i64"})
    return net.result(places).load(folder)


def of_tract(folder: Path) -> nnef_jax.Model:
    header = "version 1.0;\nextension tract_registry tract_onnx;\n"
    body = 'y = tract_onnx_non_zero(x, count_symbol = "n");'
    return model_of(tract_text.graph(body, header=header, x="[5] f32"))


@pytest.mark.parametrize("load", [of_onnx, of_openvino, of_tract])
def test_every_format(load: Any, tmp_path: Path) -> None:
    loaded = load(tmp_path)
    for x, wanted in ((X, PLACES), (NONE, []), (NONE + 1, range(5))):
        places, lengths = loaded(x, capture=loaded.lengths)
        assert places.shape == (1, 5)
        found = nnef_jax.trim(places, lengths)
        np.testing.assert_array_equal(found, np.reshape(wanted, (1, -1)))
    both = jax.vmap(lambda x: loaded.apply(loaded.params, x, capture=loaded.lengths))
    first, second = nnef_jax.trim(*both(np.stack([X, NONE])))
    np.testing.assert_array_equal(first, [PLACES])
    assert second.shape == (1, 0)


def test_two_axes_of_one_output() -> None:
    """A table of chosen rows by chosen columns has two lengths."""
    nodes = [
        node("Compress", "x rows", "some", axis=0),
        node("Compress", "some columns", axis=1),
    ]
    inputs = [tensor("x", (3, 4)), tensor("rows", (3,), 9), tensor("columns", (4,), 9)]
    loaded = nnef_jax.load(model(nodes, inputs))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows, columns = np.array([True, False, True]), np.array([False, True, True, True])
    y, lengths = loaded(x, rows, columns, capture=loaded.lengths)
    assert y.shape == (3, 4) and len(lengths) == 2
    np.testing.assert_array_equal(nnef_jax.trim(y, lengths), x[rows][:, columns])


def several() -> nnef_jax.Model:
    """Items of four types that are chosen, and one output of a fixed length."""
    inputs = [
        tensor("mask", (5,), 9),
        *(tensor(n, (5,), t) for n, t in zip("fiub", (1, 6, 2, 9), strict=True)),
    ]
    nodes = [node("Compress", f"{name} mask", f"{name}/y", axis=0) for name in "fiub"]
    nodes += [node("Neg", "f", "whole"), node("NonMaxSuppression", "boxes scores most", "kept")]
    inputs += [tensor("boxes", (1, 3, 4)), tensor("scores", (1, 1, 3))]
    outputs = [tensor(f"{name}/y", None) for name in "fiub"] + [tensor("whole"), tensor("kept")]
    return nnef_jax.load(model(nodes, inputs, outputs, {"most": np.array([2])}))


def test_items_that_padding_is_written_with_stay() -> None:
    loaded = several()
    mask = np.array([False, True, True, False, True])
    given = {
        "mask": mask, "f": X, "i": np.int32([5, 3, -1, 2, -1]), "u": np.uint8([9, 7, 0, 1, 0]),
        "b": ~mask, "boxes": np.float32([[[0, 0, 1, 1], [5, 5, 6, 6], [0, 0, 1, 1]]]),
        "scores": np.float32([[[0.5, 0.6, 0.9]]]),
    }  # fmt: skip
    results, lengths = loaded(**given, capture=[*loaded.lengths, "whole"])
    found = nnef_jax.trim(results, lengths)
    assert type(found) is type(results) and found["f/y"].shape == (3,)
    for name in "fiub":
        np.testing.assert_array_equal(found[f"{name}/y"], given[name][mask])
    np.testing.assert_array_equal(found.whole, -X)
    np.testing.assert_array_equal(found.kept, [[0, 0, 2], [0, 0, 1]])


def test_networks_of_fixed_lengths_have_none() -> None:
    loaded = nnef_jax.load(model([node("Neg", "x")], [tensor("x", (5,))]))
    assert loaded.lengths == ()
    np.testing.assert_array_equal(nnef_jax.trim(*loaded(X, capture=loaded.lengths)), -X)


def test_what_cannot_be_trimmed(tmp_path: Path) -> None:
    loaded = of_onnx(tmp_path)
    places, lengths = loaded(X, capture=loaded.lengths)

    def trimmed(x: Any) -> Any:
        return nnef_jax.trim(*loaded.apply(loaded.params, x, capture=loaded.lengths))

    with pytest.raises(InputError, match="outside of jax"):
        jax.jit(trimmed)(X)
    with pytest.raises(InputError, match="arrays with values"):
        jax.vmap(trimmed)(X[None])
    with pytest.raises(InputError, match="lengths has output 'y'"):
        nnef_jax.trim((places, places), lengths)
    with pytest.raises(InputError, match="from another call"):
        nnef_jax.trim(places, {name: x[None].repeat(3, 0) for name, x in lengths.items()})
    with pytest.raises(TypeError, match="the dict that a call returns"):
        nnef_jax.trim(places, None)  # pyright: ignore[reportArgumentType]
