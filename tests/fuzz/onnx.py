"""Small models of ONNX that are right, with other parts or other bytes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper

from tests.fuzz import Kind
from tests.fuzz.draw import INTEGERS, REALS, changed_bytes, changed_list
from tests.fuzz.networks import attempt
from tests.onnx import node_suite, runtime_cases

WORDS = ("", "x", "SAME_UPPER", "VALID", "constant", "wrap", "linear", "cubic", "max", "ij,jk->ik")
_LARGEST = 20_000  # bytes of a model
_REALS = [x for x in REALS if abs(x) < 1e39 or not np.isfinite(x)]
_INTEGRAL = {1, 2, 3, 4}  # C++ types of fields
_FLOATING = {5, 6}
_UNREAD = {f"onnx.{x}" for x in ("NodeProto.name", "GraphProto.name", "ModelProto.ir_version")}
_UNREAD |= {f"onnx.ModelProto.producer_{x}" for x in ("name", "version")}
_WEIGHTS = {"NodeProto": 10, "AttributeProto": 8, "TensorProto": 6, "ModelProto": 0}


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


def parts(chance: random.Random) -> bytes:
    """Return a model with one to three parts changed; some come from others."""
    changed = ModelProto()
    changed.CopyFrom(chance.choice(models()))
    for _ in range(chance.choice((1, 2, 2, 3))):
        with suppress(ValueError, TypeError, IndexError):  # of a value that a field does not take
            _change(changed, chance)
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


def all_nodes(model: ModelProto) -> list[Any]:
    within = [*all_graphs(model.graph), *model.functions]
    return [node for graph in within for node in graph.node]


def _messages(message: Any) -> Iterator[Any]:
    """Yield a message and all within it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if hasattr(value, "extend") else [value]:
                yield from _messages(part)


@cache
def _pool() -> dict[str, list[Any]]:
    """Return the values of fields in the models, by full names of fields."""
    pool = defaultdict[str, list[Any]](list)
    for message in (m for model in models() for m in _messages(model)):
        for field, value in message.ListFields():
            pool[field.full_name] += list(value)[:4] if hasattr(value, "extend") else [value]
    return pool


def _change(model: ModelProto, chance: random.Random) -> None:
    """Change a field of any message, or an item of a tensor."""
    kinds = defaultdict[str, list[Any]](list)
    for message in _messages(model):
        kinds[message.DESCRIPTOR.name].append(message)
    (name,) = chance.choices(list(kinds), [_WEIGHTS.get(name, 1) for name in kinds])
    message = chance.choice(kinds[name])
    if name == "TensorProto" and chance.random() < 0.4:
        return _change_item(message, chance)
    fields = [field for field, _ in message.ListFields()]
    if chance.random() < 0.1:
        fields = message.DESCRIPTOR.fields
    field = chance.choice([f for f in fields if f.full_name not in _UNREAD])
    value = getattr(message, field.name)

    def other() -> Any:
        return _other(field, value, model, chance)

    if hasattr(value, "extend"):
        items = changed_list([deepcopy(x) for x in value], other, chance)
        del value[:]
        value.extend(items)
    elif field.message_type is not None:
        value.CopyFrom(other())
    else:
        setattr(message, field.name, other())
    return None


def _other(field: Any, value: Any, model: ModelProto, chance: random.Random) -> Any:
    """Return another value for a field: one that it has elsewhere, or an unusual one."""
    if field.name == "raw_data":
        return changed_bytes(value, chance)
    if field.name in ("input", "output") and field.message_type is None:
        return chance.choice([x for n in all_nodes(model) for x in (*n.input, *n.output)] + [""])
    known = _pool().get(field.full_name, [])
    if field.message_type is not None or field.enum_type is not None:
        return chance.choice(known or [value])
    choices: Sequence[Any] = WORDS
    if field.cpp_type in _INTEGRAL:
        choices = (*INTEGERS, *range(1, 27))
    elif field.cpp_type in _FLOATING:
        choices = _REALS
    value = chance.choice(known if known and chance.random() < 0.5 else choices)
    return value.encode() if field.type == field.TYPE_BYTES and isinstance(value, str) else value


def _change_item(tensor: TensorProto, chance: random.Random) -> None:
    try:
        array = np.array(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError):  # of a tensor that is changed already
        return
    if array.size and array.dtype.kind in "iuf":
        value = chance.choice(INTEGERS if array.dtype.kind in "iu" else _REALS)
        with np.errstate(all="ignore"):
            array.flat[chance.randrange(array.size)] = np.array(value).astype(array.dtype)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


KIND = Kind(lambda: {"parts": (parts, 9), "protobuf": (protobuf, 1)}, attempt)
