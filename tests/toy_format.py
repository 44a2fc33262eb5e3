"""A minimal format: toy.json has inputs, parameters and a list of operations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lowering.builder import GraphBuilder
from lowering.graph import Graph, TensorType
from nnef_jax.formats.base import Frontend, Options, Stored, Written
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.tensorfile import read_tensor

GRAPHS = ("toy.json",)
ALONE: dict[str, bytes] = {}
HAS_WEIGHTS_BESIDE = False


def recognises(archive: Archive) -> bool:
    return archive.exists("toy.json")


def read(archive: Archive, options: Options) -> Frontend:
    return Toy(archive)


class Toy(Frontend):
    dialect = "toy 1"

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.document = json.loads(archive.read_text("toy.json").text)
        self.inputs, self.outputs = list(self.document["inputs"]), self.document["outputs"]

    def flatten(self, options: Options) -> Graph:
        builder, values = GraphBuilder(real=options.real), {}
        for name, shape in self.document["inputs"].items():
            type = TensorType(options.shape(name, shape), options.real)
            values[name] = builder.input(name, type)
        for name, shape in self.document["parameters"].items():
            values[name] = builder.variable(
                name, name, TensorType(tuple(shape), options.real), None
            )
        for name, kind, operands, attributes in self.document["operations"]:
            given = {key: values[operand] for key, operand in operands.items()}
            (values[name],) = builder.operation(kind, given, attributes, [name], None, ())
        return builder.graph("toy", [values[x] for x in self.outputs], self.outputs, self.inputs)

    def stored(self, graph: Graph) -> Stored:
        labels = [parameter.label for parameter in graph.parameters]
        return Stored({x: read_tensor(self.archive.open_tensor(f"{x}.dat")) for x in labels}, self)

    def members(self, arrays: Mapping[str, Any], quantization: str | None) -> Written:
        text = json.dumps(self.document).encode()
        return Written({"toy.json": text, **{f"{label}.dat": x for label, x in arrays.items()}})
