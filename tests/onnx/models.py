"""Small models of ONNX, made in the test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

FLOAT, INT = 1, 7


def tensor(name: str, shape: Sequence[Any] | None = (2, 3), type: int = FLOAT) -> Any:
    """Return an input or output."""
    return helper.make_tensor_value_info(name, type, shape)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
    weights: dict[str, Any] | None = None,
    version: int = 21,
    **more: Any,
) -> Any:
    """Return a model: by default from x [2,3] to y."""
    graph = helper.make_graph(
        nodes,
        "g",
        [tensor("x")] if inputs is None else inputs,
        [tensor("y", None)] if outputs is None else outputs,
        [numpy_helper.from_array(np.asarray(x), name) for name, x in (weights or {}).items()],
    )
    domains = {node.domain for node in nodes if node.domain}
    sets = [helper.make_opsetid("", version), *(helper.make_opsetid(x, 1) for x in domains)]
    return helper.make_model(graph, opset_imports=sets, **more)


def node(operator: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    """Return a node. Names are separated by spaces, `_` stands for an omitted one."""
    read, written = (["" if n == "_" else n for n in x.split()] for x in (inputs, outputs))
    return helper.make_node(operator, read, written, **attributes)
