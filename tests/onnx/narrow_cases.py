"""Converts cases of ONNX's node suite to 16 bits. Expected results are the reference's in 32.

python -m tests.onnx.narrow_cases [--match REGEX] [--every]
"""

from __future__ import annotations

import argparse
import re
import tempfile
import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, ValueInfoProto, defs, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_shapes

from nnef_jax.formats.onnx.tensor_types import code_of
from tests.onnx.models import model, node, tensor
from tests.onnx.node_suite import arrays, cases, eps, loaded, run

_CODES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_WIDE = (TensorProto.FLOAT, TensorProto.DOUBLE)
_UNITS = 2  # of 16 bits, of the largest number of a result
# What the suite has in other types alone.
_MORE = [
    *(node(name, inputs) for name, inputs in (("Equal", "x z"), ("NonZero", "x"), ("Trilu", "x"))),
    *(node(f"{name}Window", "n", output_datatype=1) for name in ("Hann", "Hamming", "Blackman")),
]


def narrow_cases(dtype: str, match: str = "", *, every: bool = False) -> list[Any]:
    """Return cases of one node in 16 bits, the first of each operator or all."""
    found: list[Any] = []
    operators: set[tuple[str, str]] = set()
    for case in [*cases(match), *(x for x in map(_case, _MORE) if re.search(match, x.name))]:
        nodes = case.model.graph.node
        key = nodes[0].domain, nodes[0].op_type
        if len(nodes) == 1 and (every or key not in operators):
            made = narrowed(case, dtype)
            found += [made] if made is not None else []
            operators |= {key} if made is not None else set()
    return found


def narrowed(case: Any, dtype: str) -> Any | None:
    """Return a case with numbers of 16 bits where its node takes them, None if it takes none."""
    code, (node, *_) = _CODES[dtype], case.model.graph.node
    opsets = {x.domain: x.version for x in case.model.opset_import}
    ports = defs.get_schema(node.op_type, opsets[node.domain], node.domain).inputs
    formal = (ports[min(i, len(ports) - 1)] for i in range(len(node.input)))
    takes = {n for n, x in zip(node.input, formal, strict=True) if f"tensor({dtype})" in x.types}
    made, rounded = deepcopy(case.model), deepcopy(case.model)
    for part in _parts(made.graph.node[0]):
        _narrow(part, code)
    for part in _parts(rounded.graph.node[0]):
        _round(part, code)
    for port in made.graph.input:
        if port.name in takes:
            _narrow(port, code)
    for port in made.graph.output:
        port.ClearField("type")
    graph = infer_shapes(made, data_prop=True).graph
    types = [x.type.tensor_type.elem_type for x in (*graph.input, *graph.output)]
    inputs = arrays(case.data_sets[0][0])
    if code not in types or 0 in types or any(x is None for x in inputs):
        return None
    made.graph.CopyFrom(graph)
    names = [x.name for x in graph.input]
    dtypes = [tensor_dtype_to_np_dtype(x) for x in types]
    given = [x.astype(t) for x, t in zip(inputs, dtypes, strict=False)]
    wide = [x.astype(y.dtype) for x, y in zip(given, inputs, strict=True)]
    if any((np.isinf(x) & ~np.isinf(y)).any() for x, y in zip(given, inputs, strict=True)):
        return None
    with np.errstate(all="ignore"):
        try:
            wanted = ReferenceEvaluator(rounded).run(None, dict(zip(names, wide, strict=True)))
        except Exception:  # it cannot run all that its own suite has
            return None
        wanted = [np.asarray(x) for x in wanted]
        real = [x.astype("f8") for x in wanted if jax.numpy.issubdtype(x.dtype, np.floating)]
        sizes = [np.abs(x[np.isfinite(x)]).max(initial=0) for x in real]
        wanted = [x.astype(t) for x, t in zip(wanted, dtypes[len(names) :], strict=True)]
    unit = eps(np.dtype(dtype))
    atol = _UNITS * unit * max(map(float, sizes), default=0)
    # `differs` adds two units of each number, where the tolerance is of the largest alone.
    rtol = case.rtol if any(x.dtype == np.float32 for x in wanted) else -2 * unit
    return replace(case, model=made, data_sets=[(given, wanted)], rtol=rtol, atol=atol)


def _case(made: NodeProto) -> TestCase:
    """Return the case of a node, of numbers with one digit."""
    drawn = np.random.default_rng(0).integers(-3, 4, (2, 4, 3)).astype("f4")
    known = {"x": drawn, "z": np.abs(drawn), "n": np.int64(9)}
    inputs = {name: known[name] for name in made.input}
    ports = [tensor(n, x.shape, code_of(x.dtype.name)) for n, x in inputs.items()]
    data = [(list(inputs.values()), [])]
    return TestCase(made.op_type, "", None, None, model([made], ports), data, "node", 1e-3, 1e-7)


def _parts(node: NodeProto) -> Iterator[Any]:
    """Yield the attributes of a node and of nodes in its graphs, their tensors, and ports."""
    for attribute in node.attribute:
        yield from (attribute, attribute.t, *attribute.g.initializer)
        yield from (*attribute.g.input, *attribute.g.output, *attribute.g.value_info)
        for inner in attribute.g.node:
            yield from _parts(inner)


def _round(part: Any, code: int) -> None:
    """Round the numbers of a part of a node that have more than 16 bits."""
    if isinstance(part, TensorProto) and part.data_type in _WIDE:
        items = numpy_helper.to_array(part)
        found = items.astype(tensor_dtype_to_np_dtype(code)).astype(items.dtype)
        part.CopyFrom(numpy_helper.from_array(found, part.name))


def _narrow(part: Any, code: int) -> None:
    """Store the numbers of a part of a node in 16 bits instead of more."""
    match part:
        case TensorProto() if part.data_type in _WIDE:
            items = numpy_helper.to_array(part).astype(tensor_dtype_to_np_dtype(code))
            part.CopyFrom(numpy_helper.from_array(items, part.name))
        case ValueInfoProto() if part.type.tensor_type.elem_type in _WIDE:
            part.type.tensor_type.elem_type = code
        case AttributeProto(name="to" | "dtype" | "output_dtype" | "output_datatype"):
            part.i = code if part.i in _WIDE else part.i
        case _:
            pass


def main() -> None:
    """Run the cases and print those that are wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--match", default="")
    parser.add_argument("--every", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    for dtype in _CODES:
        chosen = narrow_cases(dtype, options.match, every=options.every)
        found: dict[str, str] = {}
        with tempfile.TemporaryDirectory() as folder:
            for i in range(0, len(chosen), 40):
                found |= run(chosen[i : i + 40], Path(folder), loaded)
        for name, reason in found.items():
            if reason:
                print(f"{dtype} {name}: {reason[:300]}")
        print(f"{dtype}: {sum(not x for x in found.values())} of {len(found)} right")


if __name__ == "__main__":
    main()
