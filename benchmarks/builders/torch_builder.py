"""Builds a torch module from a graph, which frees tensors as soon as they are not needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Node

from benchmarks.builders.base import Array, Builder


class TorchBuilder(Builder[Node]):
    """Adds calls of torch.nn.functional to a graph."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._graph = Graph()
        self._parameters: dict[str, torch.Tensor] = {}

    def module(self, output: Node) -> GraphModule:
        """Return the module with this output, in evaluation mode."""
        self._graph.output(output)
        return GraphModule(self._parameters, self._graph).eval()

    def declare(self, name: str, shape: tuple[int, ...]) -> Node:
        return self._graph.placeholder(name)

    def parameter(self, name: str, value: Array, *, trainable: bool = True) -> Node:
        tensor = torch.from_numpy(value)
        self._parameters[name] = torch.nn.Parameter(tensor) if trainable else tensor
        return self._graph.get_attr(name)

    def conv(
        self,
        x: Node,
        weight: Node,
        bias: Node | None,
        *,
        stride: int,
        padding: int,
        dilation: int,
        groups: int,
    ) -> Node:
        return self._call(_conv, x, weight, bias, stride, padding, dilation, groups)

    def deconv(self, x: Node, weight: Node, bias: Node, *, stride: int) -> Node:
        return self._call(F.conv_transpose2d, x, weight, bias, stride)

    def batch_norm(
        self, x: Node, mean: Node, variance: Node, scale: Node, offset: Node, epsilon: float
    ) -> Node:
        return self._call(F.batch_norm, x, mean, variance, scale, offset, False, 0.0, epsilon)

    def layer_norm(self, x: Node, scale: Node, offset: Node, epsilon: float) -> Node:
        return self._call(_layer_norm, x, scale, offset, epsilon)

    def relu(self, x: Node) -> Node:
        return self._call(F.relu, x, inplace=True)

    def relu6(self, x: Node) -> Node:
        return self._call(F.relu6, x, inplace=True)

    def gelu(self, x: Node) -> Node:
        return self._call(F.gelu, x)

    def sigmoid(self, x: Node) -> Node:
        return self._call(torch.sigmoid, x)

    def silu(self, x: Node) -> Node:
        return self._call(F.silu, x)

    def softmax(self, x: Node) -> Node:
        return self._call(F.softmax, x, -1)

    def max_pool(self, x: Node, *, size: int, stride: int, padding: int) -> Node:
        return self._call(_max_pool, x, size, stride, padding)

    def average_pool(self, x: Node, *, size: int) -> Node:
        return self._call(_average_pool, x, size)

    def global_average(self, x: Node) -> Node:
        return self._call(_global_average, x)

    def dense(self, x: Node, weight: Node, bias: Node) -> Node:
        return self._call(F.linear, x, weight, bias)

    def matmul(self, a: Node, b: Node) -> Node:
        return self._call(torch.matmul, a, b)

    def scale(self, x: Node, factor: float) -> Node:
        return self._call(torch.mul, x, factor)

    def attention(
        self, q: Node, k: Node, v: Node, size: int, *, whole: bool, bias: Node | None = None
    ) -> Node:
        return self._call(F.scaled_dot_product_attention, q, k, v, bias)

    def add(self, a: Node, b: Node) -> Node:
        return self._call(torch.add, a, b)

    def multiply(self, a: Node, b: Node) -> Node:
        return self._call(torch.mul, a, b)

    def concat(self, values: Sequence[Node], axis: int) -> Node:
        return self._call(torch.cat, list(values), axis)

    def reshape(self, x: Node, shape: tuple[int, ...]) -> Node:
        return self._call(torch.reshape, x, shape)

    def transpose(self, x: Node, axes: tuple[int, ...]) -> Node:
        return self._call(torch.permute, x, axes)

    def slice(self, x: Node, axis: int, begin: int, end: int) -> Node:
        return self._call(torch.narrow, x, axis, begin, end - begin)

    def repeat(self, x: Node, count: int) -> Node:
        return self._call(_repeat, x, count)

    def lstm(self, x: Node, name: str, w: Array, r: Array, b: Array, start: Array) -> Node:
        values = {"w": w, "r": r, "b": b, "h0": start}
        weights = [self.parameter(f"{name}.{kind}", value) for kind, value in values.items()]
        return self._call(_lstm, x, *weights)

    def gru(self, x: Node, name: str, w: Array, r: Array, b: Array, n: Array, start: Array) -> Node:
        of_states = np.concatenate([np.zeros(2 * n.size, np.float32), n])
        values = {"w": w, "r": r, "b": b, "b_h": of_states, "h0": start}
        weights = [self.parameter(f"{name}.{kind}", value) for kind, value in values.items()]
        return self._call(_gru, x, *weights)

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        return self._graph.call_function(function, args, kwargs)


def _conv(x: Any, weight: Any, *settings: Any) -> Any:
    return (F.conv1d, F.conv2d, F.conv3d)[weight.ndim - 3](x, weight, *settings)


def _max_pool(x: Any, *settings: Any) -> Any:
    return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.ndim - 3](x, *settings)


def _average_pool(x: Any, size: int) -> Any:
    return (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[x.ndim - 3](x, size)


def _global_average(x: Any) -> Any:
    return x.flatten(2).mean(2)


def _layer_norm(x: Any, scale: Any, offset: Any, epsilon: float) -> Any:
    return F.layer_norm(x, x.shape[-1:], scale, offset, epsilon)


def _repeat(x: Any, count: int) -> Any:
    return x.expand(count, *x.shape[1:])


def _lstm(x: Any, w: Any, r: Any, b: Any, start: Any) -> Any:
    parameters = [w, r, b, torch.zeros_like(b)]
    return torch.lstm(x, (start, start), parameters, True, 1, 0.0, False, False, False)[0]


def _gru(x: Any, w: Any, r: Any, b: Any, b_h: Any, start: Any) -> Any:
    return torch.gru(x, start, [w, r, b, b_h], True, 1, 0.0, False, False, False)[0]
