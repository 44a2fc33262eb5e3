"""Small models of ONNX that are right, with other parts or other bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

from tests.fuzz import Kind
from tests.fuzz.draw import INTEGERS, REALS, changed_bytes, changed_list
from tests.fuzz.networks import attempt
from tests.onnx import node_suite, runtime_cases

WORDS = ("", "x", "SAME_UPPER", "VALID", "constant", "wrap", "linear", "cubic", "max", "ij,jk->ik")
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "own")
_LARGEST = 20_000  # bytes of a model
_REALS = [x for x in REALS if abs(x) < 1e39 or not np.isfinite(x)]
_NUMBERED = {AttributeProto.INT: INTEGERS, AttributeProto.FLOAT: _REALS}
_LISTS = {AttributeProto.INTS: ("ints", INTEGERS), AttributeProto.FLOATS: ("floats", _REALS)}


def seeds() -> Iterator[ModelProto]:
    """Yield the node suite's models and those of other domains, values of inputs within them."""
    for case in node_suite.cases():
        names = [x.name for x in case.model.graph.input]
        arrays = node_suite.arrays(case.data_sets[0][0])
        if len(case.model.SerializeToString()) < _LARGEST:
            yield _with_values(case.model, dict(zip(names, arrays, strict=False)))
    for case in runtime_cases.CASES:
        yield _with_values(case.model(), {f"x{i}": x for i, x in enumerate(case.arrays())})


def _with_values(model: ModelProto, arrays: dict[str, Any]) -> ModelProto:
    """Return a model that has the values of all its inputs but the first as initialisers."""
    result = ModelProto()
    result.CopyFrom(model)
    for value in model.graph.input[1:]:
        array = arrays.get(value.name)
        if array is not None and array.nbytes < _LARGEST and value.type.HasField("tensor_type"):
            tensor = numpy_helper.from_array(array, value.name)
            if tensor.data_type == value.type.tensor_type.elem_type:
                result.graph.initializer.append(tensor)
                result.graph.input.remove(value)
    return result


@cache
def models() -> list[ModelProto]:
    """Return models that are right."""
    return list(seeds())


def nodes(chance: random.Random) -> bytes:
    """Return a model with one to three parts changed; some come from others."""
    changed = ModelProto()
    changed.CopyFrom(chance.choice(models()))
    for _ in range(chance.choice((1, 1, 2, 3))):
        chance.choice(_CHANGES)(changed, chance.choice(models()), chance)
    return changed.SerializeToString()


def protobuf(chance: random.Random) -> bytes:
    """Return a model with other bytes."""
    return changed_bytes(chance.choice(models()).SerializeToString(), chance)


def all_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from all_graphs(attribute.g)


def _any(items: Any, chance: random.Random) -> Any:
    return chance.choice(list(items))


def all_nodes(model: ModelProto) -> list[Any]:
    within = [*all_graphs(model.graph), *model.functions]
    return [node for graph in within for node in graph.node]


def _attribute(model: ModelProto, other: ModelProto, chance: random.Random) -> None:
    attributes = [a for node in all_nodes(model) for a in node.attribute]
    if not attributes:
        return _add_attribute(model, other, chance)
    chosen = _any(attributes, chance)
    if chosen.type in _NUMBERED:
        value = chance.choice(_NUMBERED[chosen.type])
        chosen.CopyFrom(helper.make_attribute(chosen.name, value))
    elif chosen.type in _LISTS:
        name, values = _LISTS[chosen.type]
        items = changed_list(getattr(chosen, name), lambda: chance.choice(values), chance)
        del getattr(chosen, name)[:]
        getattr(chosen, name).extend(items)
    elif chosen.type == AttributeProto.STRING:
        chosen.s = chance.choice(WORDS).encode()
    elif chosen.type == AttributeProto.TENSOR:
        _change_tensor(chosen.t, chance)
    else:
        chosen.type = chance.randrange(15)
    return None


def _add_attribute(model: ModelProto, other: ModelProto, chance: random.Random) -> None:
    found = [a for node in all_nodes(other) for a in node.attribute]
    if found and (nodes := all_nodes(model)):
        _any(nodes, chance).attribute.append(_any(found, chance))


def _remove_attribute(model: ModelProto, other: ModelProto, chance: random.Random) -> None:
    nodes = [node for node in all_nodes(model) if node.attribute]
    if nodes:
        del _any(nodes, chance).attribute[0]


def _change_names(model: ModelProto, other: ModelProto, chance: random.Random) -> None:
    """Replace, remove or add an input or output of a node."""
    nodes = all_nodes(model)
    if not nodes:
        return
    known = [name for node in nodes for name in (*node.input, *node.output)]
    node = _any(nodes, chance)
    names = chance.choice((node.input, node.input, node.output))
    changed = changed_list(names, lambda: _any([*known, "", "y" * 9], chance), chance)
    del names[:]
    names.extend(changed)


def _operator(model: ModelProto, other: ModelProto, chance: random.Random) -> None:
    nodes, others = all_nodes(model), all_nodes(other)
    if nodes and others:
        node, wanted = _any(nodes, chance), _any(others, chance)
        node.op_type, node.domain = wanted.op_type, wanted.domain
        if chance.random() < 0.1:
            node.domain = chance.choice(DOMAINS)


def _node(model: ModelProto, other: ModelProto, chance: random.Random) -> None:
    """Remove or repeat a node, or take one of another model."""
    graph = _any(all_graphs(model.graph), chance)
    others = chance.sample(all_nodes(other), 1) if all_nodes(other) else []
    match chance.randrange(3):
        case 0 if graph.node:
            del graph.node[chance.randrange(len(graph.node))]
        case 1 if graph.node:
            graph.node.append(_any(graph.node, chance))
        case _:
            graph.node.extend(others)


def _version(model: ModelProto, other: ModelProto, chance: random.Random) -> None:
    if model.opset_import:
        _any(model.opset_import, chance).version = chance.choice((*range(1, 27), 0, -1, 999))


def _type(model: ModelProto, other: ModelProto, chance: random.Random) -> None:
    """Change an extent or the type of an input."""
    graph = _any(all_graphs(model.graph), chance)
    values = [x for x in graph.input if x.type.HasField("tensor_type")]
    if not values:
        return
    type = _any(values, chance).type.tensor_type
    if type.shape.dim and chance.random() < 0.7:
        extent = _any(type.shape.dim, chance)
        if chance.random() < 0.3:
            extent.dim_param = chance.choice(("n", "batch", ""))
        else:
            extent.dim_value = chance.choice(INTEGERS)
    elif chance.random() < 0.3:
        type.shape.dim.add().dim_value = chance.choice(INTEGERS)
    else:
        type.elem_type = chance.randrange(26)


def _initializer(model: ModelProto, other: ModelProto, chance: random.Random) -> None:
    tensors = [x for graph in all_graphs(model.graph) for x in graph.initializer]
    if tensors:
        _change_tensor(_any(tensors, chance), chance)


def _change_tensor(tensor: TensorProto, chance: random.Random) -> None:
    match chance.randrange(4):
        case 0:
            tensor.data_type = chance.randrange(26)
        case 1 if tensor.dims:
            tensor.dims[chance.randrange(len(tensor.dims))] = chance.choice(INTEGERS)
        case 2 if tensor.raw_data:
            tensor.raw_data = tensor.raw_data[: chance.randrange(len(tensor.raw_data))]
        case _:
            try:
                array = np.array(numpy_helper.to_array(tensor))
            except (ValueError, TypeError, KeyError):  # of a tensor that is changed already
                return
            if array.size and array.dtype.kind in "iuf":
                value = chance.choice(INTEGERS if array.dtype.kind in "iu" else _REALS)
                with np.errstate(all="ignore"):
                    array.flat[chance.randrange(array.size)] = np.array(value).astype(array.dtype)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


_CHANGES = (
    *(_attribute, _attribute, _add_attribute, _remove_attribute, _change_names, _change_names),
    *(_operator, _node, _version, _type, _initializer, _initializer),
)
KIND = Kind(lambda: {"nodes": (nodes, 9), "protobuf": (protobuf, 1)}, attempt)
