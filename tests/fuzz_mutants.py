"""Mutants of all that strangers may send, each made by a `random.Random` alone.

`GROUPS` has the sorts that `python -m tests.fuzz --kind` tries together, with their weights.
"""

from __future__ import annotations

import gzip
import json
import random
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tests import archive_mutations
from tests.hostile import tar

Members = dict[str, bytes]
Mutant = tuple[str, bytes]  # suffix of a file's name, and what is in it


@cache
def documents() -> tuple[tuple[str, Members], ...]:
    """Networks that are right, with their dialect; nearly all have one operation."""
    from tests.formats.test_tract_mutations import DATA, OWN
    from tests.op_cases import NNEF, TRACT, document
    from tests.text.test_mutations import FINAL, OLD

    found = [("final", {"graph.nnef": document(c).encode()}) for c in NNEF]
    found += [("tract", {"graph.nnef": document(c).encode()}) for c in TRACT]
    stored = {"a/b.dat": (2, 3, 4), "l1/w.dat": (1, 3)}
    data = {name: _tensor_file(np.ones(shape, np.float32)) for name, shape in stored.items()}
    found += [("final", {"graph.nnef": text.encode(), **data}) for text in (FINAL, OLD)] * 5
    data = {f"{label}.dat": _tensor_file(array) for label, array in DATA.items()}
    found += [("tract", {"graph.nnef": text.encode(), **data}) for text in OWN] * 10
    return tuple((dialect, x) for dialect, x in found if len(x["graph.nnef"]) < 6000)


def _tensor_file(array: np.ndarray) -> bytes:
    from nnef_jax.storage.tensorfile import encode_tensor

    header, data = encode_tensor(array)
    return header + bytes(data)


_VARIABLES = """version 1.0;
graph net( x ) -> ( y, z )
{{
    x = external<scalar>(shape = [1, 3]);
    v = variable<{kind}>(shape = [2, 3], label = 'v');
    y = copy(v); z = relu(x);
}}
"""
_TRACT_VARIABLES = """version 1.0;
extension tract_registry tract_core;
extension tract_registry tract_resource;
graph net( x ) -> ( y, z )
{
    x = tract_core_external(shape = [1, 3], datum_type = 'f32');
    v = variable<scalar>(shape = [2, 3], label = 'v');
    c = tract_resource_get('c', 'a.b[1]');
    y = tract_core_cast(v, to = 'f32'); z = x * c;
}
"""
_JSON = b'{"a": {"b": [1, 2.5, [true, "x"]]}, "c": null}'
_QUANT = (
    b'"x": linear_quantize(min = -1.0, max = 1.0, bits = 8);\n'
    b'"y": zero_point_linear_quantize(zero_point = 3, scale = 0.5, bits = 8, signed = true, '
    b"symmetric = false);\n"
)
_TRACT_QUANT = (
    b'"x": linear_quantize(min = -1.0, max = 1.0, bits = 8);\n'
    b'i"y": zero_point_linear_quantize(zero_point = [1, 2, 3], scale = 0.5, bits = 8, '
    b"signed = false);\n"
)


def _stored(chance: random.Random) -> tuple[str, Members, str]:
    """A network with a variable in a file of any kind, and that file."""
    array = chance.choice(
        [
            np.arange(6, dtype=np.float32).reshape(2, 3),
            np.arange(6, dtype=np.float16).reshape(2, 3),
            np.arange(6, dtype=np.int64).reshape(2, 3),
            np.array([[True, False, True], [False, False, True]]),
        ]
    )
    if chance.random() < 0.5:
        kind = {"f": "scalar", "i": "integer", "b": "logical"}[array.dtype.kind]
        graph = _VARIABLES.format(kind=kind).encode()
        return "final", {"graph.nnef": graph, "v.dat": _tensor_file(array)}, "v.dat"
    members = {"graph.nnef": _TRACT_VARIABLES.encode(), "c.json": _JSON}
    if chance.random() < 0.5:
        return "tract", {**members, "v.dat": _tensor_file(array)}, "v.dat"
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    header = json.dumps({"__metadata__": {}, "v": entry}).encode()
    content = struct.pack("<Q", len(header)) + header + array.astype(np.float32).tobytes()
    member = "m.safetensors" if chance.random() < 0.7 else "c.json"
    return "tract", {**members, "m.safetensors": content}, member


def text(chance: random.Random) -> Mutant:
    """A document with other bytes."""
    _, members = chance.choice(documents())
    return "", tar({**members, "graph.nnef": bytes_mutated(members["graph.nnef"], chance)})


def words(chance: random.Random) -> Mutant:
    """A document with other words."""
    dialect, members = chance.choice(documents())
    changed = _words_mutated(members["graph.nnef"].decode(), dialect, chance)
    return "", tar({**members, "graph.nnef": changed.encode("utf-8", "surrogatepass")})


def parts(chance: random.Random) -> Mutant:
    """A document with other arguments, shapes, operands, statements or fragments."""
    from tests.text.changes import changed

    dialect, members = chance.choice(documents())
    content = changed(members["graph.nnef"].decode(), dialect, chance)
    return "", tar({**members, "graph.nnef": content.encode()})


def tensor(chance: random.Random) -> Mutant:
    """A file of a tensor, of JSON or of several tensors with other bytes."""
    _, members, member = _stored(chance)
    members[member] = bytes_mutated(members[member], chance)
    return "", tar(members)


def archive(chance: random.Random) -> Mutant:
    """An archive with other bytes."""
    _, members, _ = _stored(chance)
    content = tar(members)
    content = gzip.compress(content, 1, mtime=0) if chance.random() < 0.5 else content
    return "", bytes_mutated(content, chance)


def headers(chance: random.Random) -> Mutant:
    """An archive whose headers lie."""
    if chance.random() < 0.3:
        net, data = chance.choice(networks())
        members = {"net.xml": net.encode(), "net.bin": data}
    else:
        _, members, _ = _stored(chance)
    if chance.random() < 0.1:
        inner = archive_mutations.archive(members, chance)
        graph = _TRACT_VARIABLES.replace("z = x * c", "z = tract_core_submodel([x], 'm')")
        members = {"graph.nnef": graph.encode(), "c.json": _JSON, "m.nnef.tgz": inner}
    return "", archive_mutations.archive(members, chance)


def quantisation(chance: random.Random) -> Mutant:
    """A `graph.quant` with other words and bytes."""
    dialect, members, _ = _stored(chance)
    quant = (_QUANT if dialect == "final" else _TRACT_QUANT).decode()
    content = _words_mutated(quant, dialect, chance).encode()
    content = bytes_mutated(content, chance) if chance.random() < 0.5 else content
    return "", tar({**members, "graph.quant": content})


@cache
def networks() -> tuple[tuple[str, bytes], ...]:
    """Networks of OpenVINO that are right."""
    from tests.openvino import mutations

    return tuple(mutations.seeds())


@cache
def _pool() -> object:
    from tests.openvino.mutations import Pool

    return Pool.of(iter(sorted({net for net, _ in networks()})))


def layers(chance: random.Random) -> Mutant:
    """A network of OpenVINO with other attributes, edges, ports, types, bodies or blobs."""
    from tests.openvino import mutations

    pool = _pool()
    assert isinstance(pool, mutations.Pool)
    net, data = mutations.mutated(*chance.choice(networks()), pool, chance)
    return "", tar({"net.xml": net.encode("utf-8", "surrogatepass"), "net.bin": data})


def xml(chance: random.Random) -> Mutant:
    """A network of OpenVINO with other bytes, in its text or its weights."""
    net, data = chance.choice(networks())
    content = bytes_mutated(net.encode(), chance) if chance.random() < 0.7 else net.encode()
    return "", tar({"net.xml": content, "net.bin": bytes_mutated(data, chance)})


@cache
def models() -> list[Any]:
    """Models of ONNX that are right."""
    from tests.onnx import mutations

    return list(mutations.seeds())


def nodes(chance: random.Random) -> Mutant:
    """A model of ONNX with other attributes, operators, names, types or initialisers."""
    from tests.onnx import mutations

    return ".onnx", mutations.mutated(chance.choice(models()), models(), chance)


def protobuf(chance: random.Random) -> Mutant:
    """A model of ONNX with other bytes."""
    return ".onnx", bytes_mutated(chance.choice(models()).SerializeToString(), chance)


def inputs(chance: random.Random) -> Mutant:
    """A file of an input: an array, several, or a picture."""
    from tests.wrong_inputs import mutant

    return mutant(chance)


def typed(chance: random.Random) -> Mutant:
    """A network with other types of items; the dtype that it is loaded in as a suffix."""
    from tests.typed_mutants import mutant

    return mutant(chance)


GROUPS: dict[str, dict[Callable[[random.Random], Mutant], int]] = {
    "openvino": {layers: 9, xml: 1},
    "nnef": {parts: 8, words: 3, text: 2, headers: 4, archive: 1, tensor: 2, quantisation: 2},
    "onnx": {nodes: 9, protobuf: 1},
    "inputs": {inputs: 1},
    "dtypes": {typed: 1},
}


def mutant(group: str, seed: int, index: int) -> tuple[str, Mutant]:
    """Return what sort of mutant has a number, and the mutant: nothing else decides on it."""
    chance = random.Random(f"{group} {seed} {index}")
    sorts = GROUPS[group]
    (make,) = chance.choices(list(sorts), list(sorts.values()))
    return make.__name__, make(chance)


def _words_mutated(text: str, dialect: str, chance: random.Random) -> str:
    from tests.formats import test_tract_mutations
    from tests.text import test_mutations

    if dialect == "tract":
        return test_tract_mutations.mutated(text, chance)
    tokens = test_mutations._TOKEN.findall(text)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(tokens))
        tokens[at] = chance.choice([*test_mutations._WORDS, chance.choice(tokens), ""])
    return "".join(tokens)


_INTERESTING = (0, 1, 7, 8, 127, 128, 255)


def bytes_mutated(content: bytes, chance: random.Random) -> bytes:
    """Some bytes inverted, replaced, removed, repeated or moved."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at, other = (chance.randrange(len(changed) + 1) for _ in range(2))
        first, last = min(at, other), max(at, other)
        match chance.randrange(8):
            case 0 | 1 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 2 | 3 if at < len(changed):
                changed[at] = chance.choice(_INTERESTING)
            case 4:
                del changed[at : at + chance.choice((1, 2, 4, 8, 64))]
            case 5:
                changed[at:at] = changed[first : min(last, first + 64)]
            case 6:
                width = chance.choice((2, 4, 8))
                value = chance.choice((0, 1, 2**31, 2**63, 2 ** (8 * width) - 1))
                changed[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
            case _:
                del changed[first : last if chance.random() < 0.3 else first + 1]
    return bytes(changed)
