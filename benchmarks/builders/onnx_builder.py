"""Builds an ONNX model from operators for which onnxruntime and OpenVINO have kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.builders.base import Array, Builder

_OPSET = 20  # has Gelu, and LayerNormalization, which was added in 17


class OnnxBuilder(Builder[str]):
    """Collects nodes and initialisers. A tensor is represented by its name."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._initialisers: list[onnx.TensorProto] = []
        self._integers: dict[tuple[int, ...], str] = {}
        self._ranks: dict[str, int] = {}

    def model(self, output: str) -> onnx.ModelProto:
        """Return the model with this output, after a check."""
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in self.inputs.items()
        ]
        outputs = [
            helper.make_tensor_value_info(output, TensorProto.FLOAT, [None] * self._ranks[output])
        ]
        graph = helper.make_graph(self._nodes, "network", inputs, outputs, self._initialisers)
        opset = helper.make_opsetid("", _OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
        onnx.checker.check_model(model)
        return model

    def declare(self, name: str, shape: tuple[int, ...]) -> str:
        self._ranks[name] = len(shape)
        return name

    def parameter(self, name: str, value: Array, *, trainable: bool = True) -> str:
        self._initialisers.append(numpy_helper.from_array(value, name))
        self._ranks[name] = value.ndim
        return name

    def conv(
        self,
        x: str,
        weight: str,
        bias: str | None,
        *,
        stride: int,
        padding: int,
        dilation: int,
        groups: int,
    ) -> str:
        axes = self._ranks[x] - 2
        return self._add(
            "Conv",
            [x, weight, bias] if bias else [x, weight],
            strides=[stride] * axes,
            pads=[padding] * 2 * axes,
            dilations=[dilation] * axes,
            group=groups,
        )

    def deconv(self, x: str, weight: str, bias: str, *, stride: int) -> str:
        return self._add("ConvTranspose", [x, weight, bias], strides=[stride] * 2, rank=4)

    def batch_norm(
        self, x: str, mean: str, variance: str, scale: str, offset: str, epsilon: float
    ) -> str:
        values = [x, scale, offset, mean, variance]
        return self._add("BatchNormalization", values, epsilon=epsilon)

    def layer_norm(self, x: str, scale: str, offset: str, epsilon: float) -> str:
        return self._add("LayerNormalization", [x, scale, offset], epsilon=epsilon)

    def relu(self, x: str) -> str:
        return self._add("Relu", [x])

    def relu6(self, x: str) -> str:
        bounds = [self._scalar(bound) for bound in (0.0, 6.0)]
        return self._add("Clip", [x, *bounds])

    def gelu(self, x: str) -> str:
        return self._add("Gelu", [x])

    def sigmoid(self, x: str) -> str:
        return self._add("Sigmoid", [x])

    def softmax(self, x: str) -> str:
        return self._add("Softmax", [x], axis=-1)

    def max_pool(self, x: str, *, size: int, stride: int, padding: int) -> str:
        return self._pool("MaxPool", x, size, stride, padding)

    def average_pool(self, x: str, *, size: int) -> str:
        return self._pool("AveragePool", x, size, size, 0)

    def _pool(self, kind: str, x: str, size: int, stride: int, padding: int) -> str:
        axes = self._ranks[x] - 2
        return self._add(
            kind,
            [x],
            kernel_shape=[size] * axes,
            strides=[stride] * axes,
            pads=[padding] * 2 * axes,
        )

    def global_average(self, x: str) -> str:
        return self._add("Flatten", [self._add("GlobalAveragePool", [x])], axis=1, rank=2)

    def dense(self, x: str, weight: str, bias: str) -> str:
        if self._ranks[x] == 2:
            return self._add("Gemm", [x, weight, bias], transB=1)
        # Exporters store the weight of a MatMul transposed. The engines fold the Transpose node,
        # which gives the same.
        return self.add(self.matmul(x, self.transpose(weight, (1, 0))), bias)

    def matmul(self, a: str, b: str) -> str:
        return self._add("MatMul", [a, b])

    def scale(self, x: str, factor: float) -> str:
        return self._add("Mul", [x, self._scalar(factor)])

    def attention(
        self, q: str, k: str, v: str, size: int, *, whole: bool, bias: str | None = None
    ) -> str:
        return self.spelled_attention(q, k, v, size, bias)

    def add(self, a: str, b: str) -> str:
        return self._add("Add", [a, b])

    def multiply(self, a: str, b: str) -> str:
        return self._add("Mul", [a, b])

    def concat(self, values: Sequence[str], axis: int) -> str:
        return self._add("Concat", values, axis=axis)

    def reshape(self, x: str, shape: tuple[int, ...]) -> str:
        return self._add("Reshape", [x, self._list(*shape)], rank=len(shape))

    def transpose(self, x: str, axes: tuple[int, ...]) -> str:
        return self._add("Transpose", [x], perm=axes)

    def slice(self, x: str, axis: int, begin: int, end: int) -> str:
        return self._add("Slice", [x, self._list(begin), self._list(end), self._list(axis)])

    def repeat(self, x: str, count: int) -> str:
        return self._add("Tile", [x, self._list(count, *[1] * (self._ranks[x] - 1))])

    def lstm(self, x: str, name: str, w: Array, r: Array, b: Array, start: Array) -> str:
        weights = self._gates(name, (0, 3, 1, 2), w, r, b, np.zeros_like(b))
        h = self.parameter(f"{name}.h0", start)
        states = self._add("LSTM", [x, *weights, "", h, h], hidden_size=r.shape[1], rank=4)
        return self._add("Squeeze", [states, self._list(1)], rank=3)

    def gru(self, x: str, name: str, w: Array, r: Array, b: Array, n: Array, start: Array) -> str:
        of_states = np.concatenate([np.zeros(2 * n.size, np.float32), n])
        weights = self._gates(name, (1, 0, 2), w, r, b, of_states)
        h = self.parameter(f"{name}.h0", start)
        settings = {"hidden_size": r.shape[1], "linear_before_reset": 1}
        states = self._add("GRU", [x, *weights, "", h], rank=4, **settings)
        return self._add("Squeeze", [states, self._list(1)], rank=3)

    def _gates(
        self, name: str, order: Sequence[int], w: Array, r: Array, b: Array, of_states: Array
    ) -> list[str]:
        """Add the parameters of a recurrent node, with the gates in another order."""

        def ordered(values: Array) -> Array:
            parts = np.split(values, len(order))
            return np.concatenate([parts[index] for index in order])[None]

        biases = np.concatenate([ordered(b), ordered(of_states)], axis=1)
        values = {"w": ordered(w), "r": ordered(r), "b": biases}
        return [self.parameter(f"{name}.{kind}", value) for kind, value in values.items()]

    def _add(
        self, kind: str, inputs: Sequence[str], *, rank: int | None = None, **attributes: Any
    ) -> str:
        """Add a node and return its result, of `rank` axes, by default those of the first input."""
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        self._ranks[name] = self._ranks[inputs[0]] if rank is None else rank
        return name

    def _scalar(self, value: float) -> str:
        return self._constant(np.array(value, np.float32))

    def _list(self, *values: int) -> str:
        return self._constant(np.array(values, np.int64))

    def _constant(self, value: np.ndarray[Any, Any]) -> str:
        name = f"c{len(self._initialisers)}"
        self._initialisers.append(numpy_helper.from_array(value, name))
        return name
