"""The networks of this folder as ONNX graphs: each a function that fills in a `Net`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

F32 = TensorProto.FLOAT


class Net:
    """An ONNX graph while it is made. `inputs` have the arrays of one run, `shapes` symbols too."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.inputs: dict[str, np.ndarray] = {}
        self.shapes: dict[str, str] = {}
        self.outputs: list[str] = []
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def input(self, name: str, shape: str, array: np.ndarray) -> str:
        """Add an input; `shape` is the one for tract, such as 'N,2,8,8'."""
        self.inputs[name], self.shapes[name] = array, shape
        return name

    def real(self, *shape: int) -> np.ndarray:
        """Return random reals with few digits, so that archives stay small."""
        return self.random.integers(-8, 9, shape).astype(np.float32) / 8

    def __call__(self, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """Add an operation, return its results. Arrays are constants; dots split names in tract."""
        name = f"/{op.lower()}.{len(self._nodes)}"
        names = [name + (f"_{i}" if i else "") for i in range(outputs)]
        domain = "ai.onnx.ml" if op.startswith("TreeEnsemble") else ""
        given = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        self._nodes.append(
            helper.make_node(op, given, names, name=name, domain=domain, **attributes)
        )
        return names if outputs > 1 else name

    def _constant(self, array: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def model(self) -> ModelProto:
        inputs = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(array.dtype),
                [int(x) if x.isdigit() else x for x in self.shapes[name].split(",")],
            )
            for name, array in self.inputs.items()
        ]
        outputs = [ValueInfoProto(name=name) for name in self.outputs]
        graph = helper.make_graph(self._nodes, "g", inputs, outputs, self._constants)
        versions = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=versions, ir_version=8)


def convolutions(net: Net) -> None:
    """Strides, groups, batch norm, pooling; any batch."""
    x = net.input("x", "N,2,9,9", net.real(3, 2, 9, 9))
    x = net("Conv", x, net.real(4, 2, 3, 3), net.real(4), pads=[1, 1, 1, 1], strides=[2, 2])
    statistics = [abs(net.real(4)) + 0.5 for _ in range(4)]
    x = net("Relu", net("BatchNormalization", x, *statistics))
    x = net("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[0, 1, 1, 0])
    x = net("HardSwish", net("Conv", x, net.real(4, 1, 3, 3), group=4, auto_pad="SAME_UPPER"))
    x = net("AveragePool", x, kernel_shape=[2, 2], pads=[1, 1, 1, 1])
    x = net("Flatten", net("GlobalAveragePool", x))
    net.outputs = [net("Softmax", net("Gemm", x, net.real(5, 4), net.real(5), transB=1))]


def recurrent(net: Net) -> None:
    """LSTM in both directions, GRU of both kinds."""
    x = net.input("x", "T,2,3", net.real(4, 2, 3))
    lstm = net(
        "LSTM", x, net.real(2, 8, 3), net.real(2, 8, 2), net.real(2, 16), outputs=3,
        direction="bidirectional", hidden_size=2,
    )  # fmt: skip
    y = net("Reshape", net("Transpose", lstm[0], perm=[0, 2, 1, 3]), np.array([0, 0, -1]))
    z = net("GRU", y, net.real(1, 9, 4), net.real(1, 9, 3), net.real(1, 18), hidden_size=3)
    z = net("Squeeze", z, np.array([1]))
    gru = net(
        "GRU", z, net.real(1, 6, 3), net.real(1, 6, 2), outputs=2, hidden_size=2,
        linear_before_reset=1,
    )  # fmt: skip
    net.outputs = [gru[0], gru[1], lstm[2]]


def attention(net: Net) -> None:
    """Embedding, causal attention, normalisations, gates; any batch and length."""
    tokens = net.input("tokens", "N,T", np.array([[1, 4, 2, 0, 3], [3, 3, 1, 2, 4]]))
    x = net("Gather", net.real(5, 4), tokens)
    x = net("LayerNormalization", x, net.real(4), net.real(4))
    heads = []
    for _ in range(3):
        projected = net("Reshape", net("MatMul", x, net.real(4, 4)), np.array([0, 0, 2, 2]))
        heads.append(net("Transpose", projected, perm=[0, 2, 1, 3]))
    length = net("Gather", net("Shape", tokens), np.array([1]))
    square = net("Concat", length, length, axis=0)
    low = numpy_helper.from_array(np.array([-1e9], np.float32))
    mask = net("Trilu", net("ConstantOfShape", square, value=low), np.array(1), upper=1)
    scores = net("MatMul", heads[0], net("Transpose", heads[1], perm=[0, 1, 3, 2]))
    scores = net("Add", net("Mul", scores, np.float32(0.5)), mask)
    mixed = net("MatMul", net("Softmax", scores), heads[2])
    mixed = net("Reshape", net("Transpose", mixed, perm=[0, 2, 1, 3]), np.array([0, 0, -1]))
    x = net("Add", x, mixed)
    mean = net("ReduceMean", net("Pow", x, np.float32(2)), np.array([-1]))
    x = net("Div", x, net("Sqrt", net("Add", mean, np.float32(1e-5))))
    hidden = net("MatMul", x, net.real(4, 3))
    net.outputs = [net("MatMul", net("Mul", hidden, net("Sigmoid", hidden)), net.real(3, 5))]


def shapes(net: Net) -> None:
    """Extents that are computed: halves, products, ranges, fills."""
    x = net.input("x", "N,4,3", net.real(2, 4, 3))
    extents = net("Shape", x)
    batch = net("Gather", extents, np.array([0]))
    double = net("Mul", batch, np.array([2]))
    halves = net("Reshape", x, net("Concat", double, np.array([-1, 3]), axis=0))
    first = net("Slice", halves, np.array([0]), net("Div", double, np.array([2])), np.array([0]))
    filled = net("ConstantOfShape", extents, value=numpy_helper.from_array(net.real(1)))
    tiled = net("Tile", first, net("Concat", np.array([1, 2]), np.array([1]), axis=0))
    count = net("Cast", net("Range", np.array(0), net("Squeeze", batch), np.array(1)), to=F32)
    count = net("Unsqueeze", count, np.array([1, 2]))
    wide = net("Expand", net.real(1, 4, 1), net("Concat", batch, np.array([1, 3]), axis=0))
    total = net("Add", net("Add", tiled, filled), net("Mul", count, wide))
    net.outputs = [total, net("Split", halves, np.array([1, 1]), outputs=2, axis=1)[1]]


def indices(net: Net) -> None:
    """Sorting, gathering, scattering, running sums."""
    x = net.input("x", "N,5", net.real(3, 5) + np.arange(5, dtype=np.float32) / 64)
    values, places = net("TopK", x, np.array([2]), outputs=2)
    picked = net("GatherElements", x, places, axis=1)
    spread = net("ScatterElements", x, places, values, axis=1, reduction="add")
    corners = net("GatherND", x, np.array([[0, 1], [2, -1]]))
    written = net("ScatterND", x, np.array([[1, 1], [0, 4]]), net.real(2))
    sums = net("CumSum", net("Trilu", x, upper=0), np.array(1), exclusive=1, reverse=1)
    hot = net("OneHot", places, np.array([5]), np.array([0.0, 2.0], np.float32), axis=1)
    last = net("ArgMax", net("Round", x), axis=1, select_last_index=1, keepdims=0)
    net.outputs = [values, places, picked, spread, corners, written, sums, hot, last]


def decoder(net: Net) -> None:
    """Upsampling in four ways, padding in three."""
    x = net.input("x", "N,4,3,3", net.real(2, 4, 3, 3))
    a = net("ConvTranspose", x, net.real(4, 2, 3, 3), strides=[2, 2], pads=[1, 1, 0, 0])
    b = net("DepthToSpace", x, blocksize=2)
    none, double = np.array([], np.float32), np.array([1, 1, 2, 2], np.float32)
    c = net("Resize", b, none, double, mode="linear")
    d = net("Resize", b, none, double, mode="nearest", coordinate_transformation_mode="asymmetric")
    e = net("Resize", b, none, none, np.array([2, 1, 5, 7]), mode="cubic")
    f = net("Pad", b, np.array([0, 0, 1, 2, 0, 0, 2, 0]), mode="reflect")
    g = net("Pad", b, np.array([0, 0, 0, 1, 0, 0, 2, 1]), mode="edge")
    h = net("GridSample", x, net.input("grid", "N,2,3,2", net.real(2, 2, 3, 2)), align_corners=1)
    net.outputs = [a, net("InstanceNormalization", a, *net.real(2, 2)), c, d, e, f, g, h]


def quantised(net: Net) -> None:
    """Products of integers with zero points and scales."""
    x = net.input("x", "N,2,5,5", net.random.integers(0, 256, (2, 2, 5, 5)).astype(np.uint8))

    def step(scale: Any, zero: Any) -> tuple[Any, Any]:
        return np.array(scale, np.float32), np.array(zero, np.uint8)

    filter, weights = (
        net.random.integers(0, 256, s).astype(np.uint8) for s in ((3, 2, 3, 3), (3, 4))
    )
    bias = np.array([300, -200, 9], np.int32)
    steps = step([0.01, 0.02, 0.015], [128, 120, 131])
    y = net(
        "QLinearConv", x, *step(0.02, 110), filter, *steps, *step(0.25, 100), bias,
        pads=[1, 1, 1, 1], strides=[2, 2],
    )  # fmt: skip
    y = net("Transpose", y, perm=[0, 2, 3, 1])
    z = net("QLinearMatMul", y, *step(0.25, 100), weights, *step(0.01, 128), *step(0.5, 90))
    total = net("MatMulInteger", y, weights, np.array(100, np.uint8), np.array(128, np.uint8))
    exact = net("ConvInteger", x, filter, np.array(110, np.uint8), np.array(128, np.uint8))
    net.outputs = [z, net("Mul", net("Cast", total, to=F32), np.float32(0.0025)), exact]


def detection(net: Net) -> None:
    """The boxes that are kept: as many as there are."""
    corners = net.random.integers(0, 6, (1, 6, 2)).astype(np.float32)
    boxes = net.input("boxes", "1,6,4", np.concatenate([corners, corners + 4], 2))
    order = net.random.permutation(12).reshape(1, 2, 6).astype(np.float32)
    scores = net.input("scores", "1,2,6", order / 12)
    limits = np.array([4]), np.array([0.3], np.float32), np.array([0.2], np.float32)
    net.outputs = [net("NonMaxSuppression", boxes, scores, *limits)]


def trees(net: Net) -> None:
    """A forest of decisions."""
    x = net.input("x", "N,3", net.real(6, 3))
    node_ids = [0, 1, 2, 3, 4]
    attributes = {
        "nodes_treeids": [0] * 5 + [1] * 5,
        "nodes_nodeids": node_ids * 2,
        "nodes_featureids": [0, 2, 0, 0, 0, 1, 0, 0, 0, 0],
        "nodes_values": [0.1, -0.3, 0, 0, 0, 0.2, 0.4, 0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"] * 2,
        "nodes_truenodeids": [1, 3, 0, 0, 0] * 2,
        "nodes_falsenodeids": [2, 4, 0, 0, 0] * 2,
        "class_treeids": [0, 0, 0, 1, 1, 1],
        "class_nodeids": [2, 3, 4] * 2,
        "class_ids": [0, 1, 2, 2, 0, 1],
        "class_weights": [1.0, 2.0, 0.5, 1.5, 0.25, 1.0],
    }
    net.outputs = net(
        "TreeEnsembleClassifier", x, outputs=2, classlabels_int64s=[0, 1, 2],
        post_transform="SOFTMAX", **attributes,
    )  # fmt: skip


def stream_convolutions(net: Net) -> None:
    """Gated dilated convolutions beside what they are added to; pieces of 4 of a stream."""
    x = net.input("x", "1,2,S", net.real(1, 2, 32))
    y = net("Conv", x, net.real(4, 2, 3), net.real(4), pads=[2, 2], dilations=[2])
    a, b = net("Split", y, np.array([2, 2]), outputs=2, axis=1)
    y = net("Add", net("Mul", net("Tanh", a), net("Sigmoid", b)), x)
    y = net("MaxPool", y, kernel_shape=[2], strides=[2])
    net.outputs = [net("Conv", y, net.real(2, 2, 3), net.real(2), pads=[1, 1])]


def stream_recurrence(net: Net) -> None:
    """A GRU behind a convolution, and its running sum; pieces of 2 of a stream."""
    x = net.input("x", "S,1,2", net.real(12, 1, 2))
    y = net("Conv", net("Transpose", x, perm=[1, 2, 0]), net.real(2, 2, 5), pads=[2, 2])
    y = net("Transpose", y, perm=[2, 0, 1])
    y = net("GRU", y, net.real(1, 9, 2), net.real(1, 9, 3), hidden_size=3)
    net.outputs = [net("CumSum", net("Squeeze", y, np.array([1])), np.array(0))]


NETWORKS: dict[str, Callable[[Net], None]] = {
    f.__name__: f
    for f in (
        convolutions, recurrent, attention, shapes, indices, decoder, quantised, detection, trees,
        stream_convolutions, stream_recurrence,
    )
}  # fmt: skip
PULSES = {"stream_convolutions": 4, "stream_recurrence": 2}
