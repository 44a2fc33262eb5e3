"""All combinations of the attributes of PriorBox and Proposal, against OpenVINO's runtime.

Needs the extra `test-openvino`. Rows of `layers/boxes.py` are what the fast suite compares.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from tests.openvino.documents import Writer

pytestmark = pytest.mark.slow
FEATURES, PICTURE, PRIORS = np.array([2, 3]), np.array([40, 60]), 2 * 3 * 4
FLAGS = ("false", "true")
Given = Mapping[str, Any]


def combined(**choices: Sequence[Any]) -> Iterator[Given]:
    """Yield every combination of attributes; None leaves one out."""
    for values in itertools.product(*choices.values()):
        yield {k: v for k, v in zip(choices, values, strict=True) if v is not None}


def assert_equal(path: Path, inputs: Mapping[str, np.ndarray], places: Sequence[Given]) -> None:
    """Compare each result of a network with the runtime's; `places` say what gives it."""
    openvino = pytest.importorskip("openvino", reason="needs nnef_jax[test-openvino]")
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    theirs = compiled([inputs[port.node.friendly_name] for port in compiled.inputs])
    ours = jax.tree.leaves(nnef_jax.load(path)(**inputs))
    for place, found, port in zip(places, ours, compiled.outputs, strict=True):
        np.testing.assert_allclose(found, theirs[port], 1e-5, 1e-5, err_msg=str(place))


def prior_boxes(given: Given) -> int:
    """Return how many boxes a cell has."""
    sizes, largest, ratios, fixed, density, fixed_ratios = (
        [float(x) for x in given.get(name, "").split(",") if x]
        for name in ("min_size", "max_size", "aspect_ratio", "fixed_size", "density", "fixed_ratio")
    )
    others = len({*ratios, *((1 / x for x in ratios) if given.get("flip") == "true" else ())} - {1})
    of_all = given.get("scale_all_sizes", "true") == "true"
    count = len(sizes) + len(largest) + others * (len(sizes) if of_all else 1)
    if fixed:
        count = (len(fixed_ratios) or 1 + others) * sum(int(n) ** 2 for n in density)
    return count


def grids() -> Iterable[Given]:
    shared: Any = {
        "clip": FLAGS, "offset": ("0.5", "0"), "step": (None, "16", "0.1", "-1"), "flip": FLAGS,
        "variance": (None, "0.1,0.1,0.2,0.2"), "min_max_aspect_ratios_order": FLAGS,
        "aspect_ratio": (None, "2", "1,3,2"),
    }  # fmt: skip
    sizes = ("8", "8,20", "0.2,0.27")
    yield from combined(min_size=sizes, max_size=(None, "18"), scale_all_sizes=("true",), **shared)
    yield from combined(min_size=sizes, scale_all_sizes=("false",), **shared)
    yield from combined(fixed_size=("9", "10.5"), density=("1", "2"), **shared)
    yield from combined(fixed_size=("9,21.5",), density=("2,3",), **shared)
    del shared["aspect_ratio"], shared["flip"]
    yield from combined(fixed_size=("9.5,20",), density=("3,1",), fixed_ratio=("2",), **shared)


def test_prior_boxes(tmp_path: Path) -> None:
    all_given = list(grids())
    for start in range(0, len(all_given), 500):
        net, places = Writer(), all_given[start : start + 500]
        ends = [net.constant(FEATURES), net.constant(PICTURE)]
        for given in places:
            shape = (2, PRIORS * prior_boxes(given))
            net.result(net.layer("PriorBox", ends, [shape], attributes=given, opset="opset8"))
        assert_equal(net.write(tmp_path), {}, places)


@pytest.mark.parametrize("opset", ["opset1", "opset4"])
def test_proposals(opset: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = np.float32([50, 70, 1.3, 4])
    inputs = {
        "scores": rng.permutation(480).reshape(2, 12, 4, 5).astype(np.float32) / 480 + 1e-3,
        "deltas": rng.uniform(-1.5, 1.5, (2, 24, 4, 5)).astype(np.float32),
        "image": frame[:3], "wide": frame,
    }  # fmt: skip
    net, places = Writer(), list[Given]()
    scores, deltas, *images = (net.input(name, x.shape) for name, x in inputs.items())
    always = {"base_size": 16, "ratio": "0.5,2", "scale": "0.5,1,2.5", "feat_stride": 16,
              "post_nms_topn": 11, "pre_nms_topn": 60, "min_size": 3,
              "nms_thresh": 0.45}  # fmt: skip
    for given in combined(
        framework=("", "tensorflow"), normalize=FLAGS, clip_before_nms=FLAGS,
        clip_after_nms=FLAGS, box_coordinate_scale=(None, "10"), box_size_scale=(None, "5"),
    ):  # fmt: skip
        image = images["box_size_scale" in given]
        results = [(22, 5), (22,)][: 1 + (opset == "opset4")]
        attributes = always | given
        found = net.layer(
            "Proposal", [scores, deltas, image], results, attributes=attributes, opset=opset
        )
        net.result(*((found, 3 + i) for i in range(len(results))))
        places += [given] * len(results)
    assert_equal(net.write(tmp_path), inputs, places)
