"""Each layer that is read has a test of what it gives; the catalog of 2018 is read whole."""

from __future__ import annotations

from pathlib import Path

from nnef_jax.formats.openvino.layers import OPERATORS
from tests.openvino.coverage import is_refused, shown
from tests.openvino.layers import LEGACY, OPSETS

# Those of the Intermediate Representation Notation Reference Catalog.
CATALOG = """
Activation ArgMax BatchNormalization BinaryConvolution Clamp Concat Const Convolution Crop
CTCGreedyDecoder Deconvolution DepthToSpace DetectionOutput Eltwise Fill Flatten FullyConnected
Gather GRN GRUCell Input Interp LSTMCell Memory MVN Norm Normalize Pad Permute Pooling Power PReLU
PriorBox PriorBoxClustered Proposal PSROIPooling Quantize Range RegionYolo ReLU ReorgYolo Resample
Reshape ReverseSequence RNNCell ROIPooling ScaleShift Shape ShuffleChannels SimplerNMS Slice
SoftMax Split StridedSlice TensorIterator Tile
""".split()  # noqa: SIM905
ROOT = Path(__file__).resolve().parents[2]


def test_layers_of_the_catalog() -> None:
    assert [type for type in CATALOG if not shown(type, LEGACY)] == []


def test_all_layers_that_are_read() -> None:
    pairs = ((x.name, v) for x in OPERATORS for v in (LEGACY, OPSETS) if OPERATORS.get(x.name, v))
    read = [(type, version) for type, version in dict.fromkeys(pairs) if not is_refused(type)]
    missing = [(type, version) for type, version in read if not shown(type, version)]
    assert missing == [], "a row in tests/openvino/layers for each, or @shows(type) of its test"


def test_places_name_their_layers() -> None:
    """A line shows the type, or begins a row or a test that does."""
    for type in ("Eltwise", "TensorIterator", "ROIAlign", "Unique"):
        file, line = shown(type, LEGACY if type == "Eltwise" else OPSETS).split(":")
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        assert f'"{type}"' in lines[int(line) - 1]
