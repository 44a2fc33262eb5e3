"""Archives of NNEF and of tract's dialect: documents, tensors, graph.quant, and their archives."""

from __future__ import annotations

import gzip
import json
import random
import struct
from functools import cache

import numpy as np

from nnef_jax.storage.tensorfile import encode_tensor
from tests.fuzz import Kind, Make, archives
from tests.fuzz.documents import DATA, FINAL, OLD, TRACT
from tests.fuzz.draw import changed_bytes
from tests.fuzz.networks import attempt
from tests.fuzz.openvino import networks
from tests.fuzz.texts import changed_parts, changed_words
from tests.helpers import tar
from tests.op_cases import NNEF, document
from tests.op_cases import TRACT as TRACT_CASES

Members = dict[str, bytes]


@cache
def documents() -> tuple[tuple[str, Members], ...]:
    """Networks that are right, with their dialect; nearly all have one operation."""
    texts = [("final", document(case), {}) for case in NNEF]
    texts += [("tract", document(case), {}) for case in TRACT_CASES]
    stored = {"a/b": np.ones((2, 3, 4), np.float32), "l1/w": np.ones((1, 3), np.float32)}
    texts += [("final", text, stored) for text in (FINAL, OLD)] * 5
    texts += [("tract", text, DATA) for text in TRACT] * 10
    return tuple(
        (dialect, {"graph.nnef": text.encode(), **_files(arrays)})
        for dialect, text, arrays in texts
        if len(text) < 6000
    )


def _files(arrays: dict[str, np.ndarray]) -> Members:
    return {f"{label}.dat": b"".join(map(bytes, encode_tensor(x))) for label, x in arrays.items()}


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
_QUANT = """"x": linear_quantize(min = -1.0, max = 1.0, bits = 8);
"y": zero_point_linear_quantize(zero_point = 3, scale = 0.5, bits = 8, signed = true, \
symmetric = false);
"""
_TRACT_QUANT = """"x": linear_quantize(min = -1.0, max = 1.0, bits = 8);
i"y": zero_point_linear_quantize(zero_point = [1, 2, 3], scale = 0.5, bits = 8, signed = false);
"""


def _stored(chance: random.Random) -> tuple[str, Members, str]:
    """A network with a variable in a file of any kind, and that file."""
    dtype = chance.choice(("float32", "float16", "int64", "bool"))
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    if chance.random() < 0.5:
        kind = {"f": "scalar", "i": "integer", "b": "logical"}[array.dtype.kind]
        graph = _VARIABLES.format(kind=kind).encode()
        return "final", {"graph.nnef": graph, **_files({"v": array})}, "v.dat"
    members = {"graph.nnef": _TRACT_VARIABLES.encode(), "c.json": _JSON}
    if chance.random() < 0.5:
        return "tract", {**members, **_files({"v": array})}, "v.dat"
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    header = json.dumps({"__metadata__": {}, "v": entry}).encode()
    content = struct.pack("<Q", len(header)) + header + array.astype(np.float32).tobytes()
    member = "m.safetensors" if chance.random() < 0.7 else "c.json"
    return "tract", {**members, "m.safetensors": content}, member


def text(chance: random.Random) -> bytes:
    """A document with other bytes."""
    _, members = chance.choice(documents())
    return tar({**members, "graph.nnef": changed_bytes(members["graph.nnef"], chance)})


def words(chance: random.Random) -> bytes:
    """A document with other words."""
    dialect, members = chance.choice(documents())
    return tar({**members, "graph.nnef": _words(members["graph.nnef"].decode(), dialect, chance)})


def _words(text: str, dialect: str, chance: random.Random) -> bytes:
    return changed_words(text, dialect, chance).encode("utf-8", "surrogatepass")


def parts(chance: random.Random) -> bytes:
    """A document with other arguments, shapes, operands, statements or fragments."""
    dialect, members = chance.choice(documents())
    content = changed_parts(members["graph.nnef"].decode(), dialect, chance)
    return tar({**members, "graph.nnef": content})


def tensor(chance: random.Random) -> bytes:
    """Return a file of a tensor, of JSON or of several tensors with other bytes."""
    _, members, member = _stored(chance)
    return tar({**members, member: changed_bytes(members[member], chance)})


def archive(chance: random.Random) -> bytes:
    """An archive with other bytes."""
    content = tar(_stored(chance)[1])
    content = gzip.compress(content, 1, mtime=0) if chance.random() < 0.5 else content
    return changed_bytes(content, chance)


def headers(chance: random.Random) -> bytes:
    """Return an archive with wrong headers."""
    if chance.random() < 0.3:
        net, data = chance.choice(networks())
        members = {"net.xml": net.encode(), "net.bin": data}
    else:
        _, members, _ = _stored(chance)
    if chance.random() < 0.1:
        inner = archives.archive(members, chance)
        graph = _TRACT_VARIABLES.replace("z = x * c", "z = tract_core_submodel([x], 'm')")
        members = {"graph.nnef": graph.encode(), "c.json": _JSON, "m.nnef.tgz": inner}
    return archives.archive(members, chance)


def quantisation(chance: random.Random) -> bytes:
    """A `graph.quant` with other words and bytes."""
    dialect, members, _ = _stored(chance)
    content = _words(_QUANT if dialect == "final" else _TRACT_QUANT, dialect, chance)
    content = changed_bytes(content, chance) if chance.random() < 0.5 else content
    return tar({**members, "graph.quant": content})


SORTS: dict[str, tuple[Make, int]] = {
    "parts": (parts, 8),
    "words": (words, 3),
    "text": (text, 2),
    "headers": (headers, 4),
    "archive": (archive, 1),
    "tensor": (tensor, 2),
    "quantisation": (quantisation, 2),
}
KIND = Kind(lambda: SORTS, attempt)
