"""Resizes that NNEF has an operation for are saved as it, with the values of ONNX's reference."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import UnsupportedError
from tests.reference import resample

pytest.importorskip("onnx")

from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.onnx.models import model, tensor

X = np.random.default_rng(0).normal(size=(1, 1, 4, 6)).astype(np.float32)
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
WAYS: list[dict[str, Any]] = [
    *({"mode": "nearest", "nearest_mode": rounding} for rounding in ROUNDINGS),
    *({"mode": "linear"} | more for more in ({}, {"antialias": 1}, {"exclude_outside": 1})),
    {"mode": "cubic"},
]  # fmt: skip
UPS, DOWNS = ((2, 2), (1, 3)), ((2, 2), (1, 3), (4, 6))


def resize(name: str, sizes: Any, **attributes: Any) -> Any:
    """Return a node, and the parameter that it reads."""
    return helper.make_node("Resize", ["x", "", "", f"s{name}"], [f"y{name}"], **attributes), (
        f"s{name}", np.array([1, 1, *sizes])
    )  # fmt: skip


def network(*resizes: Any) -> Any:
    outputs = [tensor(node.output[0], None) for node, _ in resizes]
    nodes, weights = [node for node, _ in resizes], dict(weight for _, weight in resizes)
    return model(nodes, [tensor("x", X.shape)], outputs, weights, 19)


def same(wanted: np.ndarray, factor: Any, *, up: bool) -> set[str]:
    """Return the operations of NNEF that compute the same, by the slow reference."""
    if up:
        methods = ("symmetric", "asymmetric", "aligned")
        found = [("nearest_upsample", resample.nearest_upsample(X, factor))]
        found += [
            ("multilinear_upsample", resample.multilinear_upsample(X, factor, method))
            for method in methods
        ]
    else:
        found = [
            ("nearest_downsample", resample.nearest_downsample(X, factor)),
            ("area_downsample", resample.area_downsample(X, factor)),
        ]
    return {name for name, y in found if np.allclose(y, wanted, rtol=0, atol=1e-5)}


def test_all_that_computes_the_same_is_saved(tmp_path: Path) -> None:
    saved: list[Any] = []
    due: list[np.ndarray] = []
    for coordinates, way, up in product(COORDINATES, WAYS, (True, False)):
        attributes = {"coordinate_transformation_mode": coordinates, **way}
        for factor in UPS if up else DOWNS:
            pairs = zip(X.shape[2:], factor, strict=True)
            sizes = [n * f if up else n // f for n, f in pairs]
            one = resize(str(len(saved)), sizes, **attributes)
            (wanted,) = ReferenceEvaluator(network(one)).run(None, {"x": X})
            equal = same(np.asarray(wanted), factor, up=up)
            try:
                text = nnef_jax.convert(network(one))
            except UnsupportedError as error:
                assert "'resize' is not an operation of the standard" in str(error)
                # A single item is the same by chance.
                assert not equal or min(sizes) == 1, (attributes, factor)
            else:
                assert any(f"{name}(x" in text for name in equal), (attributes, factor)
                saved.append(one)
                due.append(np.asarray(wanted))
    network_saved = nnef_jax.load(network(*saved))
    network_saved.save(tmp_path / "net")
    found = nnef_jax.load(tmp_path / "net")(X)
    assert len(found) > 70
    for y, wanted in zip(found, due, strict=True):
        np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("scales", "attributes", "wanted"),
    [
        ([1, 1, 2, 2], {"nearest_mode": "floor"}, "nearest_upsample"),
        ([1, 1, 3, 1], {"nearest_mode": "floor"}, "nearest_upsample"),
        ([1, 1, 2, 2], {"mode": "linear"}, "multilinear_upsample"),
        ([1, 1, 0.5, 0.5], {"mode": "linear"}, ""),  # of 3 items 1 would be made
        ([1, 1, 1.5, 1.5], {"mode": "linear"}, ""),
        ([1, 2, 2, 1], {"nearest_mode": "floor"}, ""),
        ([2, 1, 2, 2], {"nearest_mode": "floor"}, ""),
    ],
)
def test_open_extents(scales: Any, attributes: Any, wanted: str, tmp_path: Path) -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], **{
        "coordinate_transformation_mode": "asymmetric", **attributes})  # fmt: skip
    proto = model([node], [tensor("x", ("n", 2, "h", "w"))], weights={"s": np.float32(scales)})
    found = nnef_jax.load(proto)
    if not wanted:
        with pytest.raises(UnsupportedError, match="'resize' is not an operation of the standard"):
            found.save(tmp_path / "net")
        return
    found.save(tmp_path / "net")
    assert f"{wanted}(" in (tmp_path / "net/graph.nnef").read_text()
    again = nnef_jax.load(tmp_path / "net")
    for shape in ((1, 2, 3, 5), (3, 2, 1, 2)):
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        (due,) = ReferenceEvaluator(proto).run(None, {"x": x})
        np.testing.assert_allclose(again(x), due, rtol=0, atol=1e-5)


def test_an_open_batch_is_no_hindrance(tmp_path: Path) -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")
    half = {"s": np.float32([1, 1, 0.5, 0.5])}
    nnef_jax.load(model([node], [tensor("x", ("n", 2, 4, 6))], weights=half)).save(tmp_path / "net")
    x = np.random.default_rng(1).normal(size=(3, 2, 4, 6)).astype(np.float32)
    due = x.reshape(3, 2, 2, 2, 3, 2).mean(axis=(3, 5))
    np.testing.assert_allclose(nnef_jax.load(tmp_path / "net")(x), due, rtol=1e-5, atol=1e-6)


def test_coordinates_of_tensorflow(tmp_path: Path) -> None:
    """Version 13 of the operator still has them: item i lies at (i + 1/2) / 3."""
    coordinates = "tf_half_pixel_for_nn"
    node, weight = resize("", (12, 18), coordinate_transformation_mode=coordinates,
                          mode="nearest", nearest_mode="floor")  # fmt: skip
    proto = model([node], [tensor("x", X.shape)], weights=dict([weight]), version=13)
    nnef_jax.load(proto).save(tmp_path / "net")
    assert "nearest_upsample(" in (tmp_path / "net/graph.nnef").read_text()
    np.testing.assert_array_equal(
        nnef_jax.load(tmp_path / "net")(X), np.repeat(np.repeat(X, 3, 2), 3, 3)
    )


def test_integers_are_not(tmp_path: Path) -> None:
    node, weight = resize("", (8, 12), mode="nearest")
    ports = [tensor("x", X.shape, 3)], [tensor("y", None, 3)]
    found = nnef_jax.load(model([node], *ports, dict([weight]), 19))
    with pytest.raises(UnsupportedError, match="'nearest_upsample' of items of int8 is not NNEF"):
        found.save(tmp_path / "net")
