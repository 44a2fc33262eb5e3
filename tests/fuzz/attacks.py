"""Documents and archives that cost more than they should, loaded within the default limits.

Each is tried at the size that the limits are to withstand, and at four times that size.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import struct
import tarfile
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import nnef_jax
from tests.fuzz import Kind
from tests.fuzz.attack import FINAL, TRACT, Attack, Limits, final, times, tract
from tests.fuzz.attack_documents import DOCUMENTS
from tests.fuzz.attack_tract import DIALECT
from tests.helpers import tar


def _read_tensor(source: bytes, limits: Limits) -> object:
    return nnef_jax.read_tensor(source, limits=limits)


def _zeros(compressor: Callable[[], Any]) -> Attack:
    """Return a member of zeros, compressed piece by piece."""

    def make(n: int) -> bytes:
        info, stream = tarfile.TarInfo("zeros.dat"), compressor()
        info.size = n
        pieces = [stream.compress(info.tobuf())]
        pieces += [stream.compress(bytes(1 << 20)) for _ in range(n >> 20)]
        return b"".join([*pieces, stream.flush()])

    return Attack(1 << 30, make)


def _nested(n: int) -> bytes:
    inner = gzip.compress(tar({"graph.nnef": tract("y = copy(x);"), "zeros.dat": bytes(n)}), 1)
    body = times(12, "y = tract_core_submodel([x], 'm{i}');")
    members = {f"m{i}.nnef.tgz": inner for i in range(12)}
    return gzip.compress(tar({"graph.nnef": tract(body), **members}))


def _many_records(n: int) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = b"x", 1 << 19
    content = info.tobuf() + b"6 a=b\n" * (info.size // 6) + bytes(info.size % 6)
    return gzip.compress(content[: 512 + info.size] * (n // 6000))


def _tensor(n: int, bits: int, code: int) -> bytes:
    """Return a file of n items of zero."""
    size = n * bits // 8
    return struct.pack("<2sBBII8III76x", b"N\xef", 1, 0, size, 1, n, *(0,) * 7, bits, code) + bytes(
        size
    )


def _one_bit(n: int) -> bytes:
    body = f"v = variable<integer>(shape = [{n}], label = 'v'); y = copy(x);"
    return gzip.compress(tar({"graph.nnef": final(body), "v.dat": _tensor(n, 1, 1)}), 1)


def _logarithms(n: int) -> dict[str, bytes | str]:
    text = final(f"v = variable<scalar>(shape = [{n}], label = 'v'); y = copy(x);")
    entry = '"v": logarithmic_quantize(max = 1.0, bits = 8);'
    return {"graph.nnef": text, "v.dat": _tensor(n, 8, 3), "graph.quant": entry}


def _endless(head: str, quote: str) -> Attack:
    start = f"{head}graph net( x ) -> ( y ) {{ y = {quote}"
    return Attack(1 << 20, lambda n: start + f"\\{quote}" * n)


def _constants(shape: str, type: str, size: int, count: int = 1) -> dict[str, bytes | str]:
    """Return a network of OpenVINO whose constants all read the same bytes of its file."""
    port = '<port id="0"><dim>1</dim></port>'
    data = f'<data element_type="{type}" shape="{shape}" offset="0" size="{size}"/>'
    layer = '<layer id="{}" name="n{}" type="{}" version="opset1">{}<{}>' + port + "</{}></layer>"
    layers = [
        layer.format(i, i, "Const", data, *("output",) * 2)
        + layer.format(count + i, count + i, "Result", "", *("input",) * 2)
        for i in range(count)
    ]
    edge = '<edge from-layer="{}" from-port="0" to-layer="{}" to-port="0"/>'
    edges = (edge.format(i, count + i) for i in range(count))
    parts = f"<layers>{''.join(layers)}</layers><edges>{''.join(edges)}</edges>"
    return {"net.xml": f'<net name="n" version="11">{parts}</net>', "net.bin": bytes(size)}


_HEADS = {"final": FINAL, "provisional": "version 1.0\n", "tract": TRACT}
ATTACKS = {
    "zeros by gzip": _zeros(lambda: zlib.compressobj(wbits=31)),
    "zeros by bzip2": _zeros(bz2.BZ2Compressor),
    "zeros by xz": _zeros(lzma.LZMACompressor),
    "compressed archives within compressed archives": Attack(1 << 28, _nested),
    "many members": Attack(1 << 20, lambda n: gzip.compress(tarfile.TarInfo("a").tobuf() * n)),
    "many records of extended headers": Attack(1 << 22, _many_records),
    "many compressed streams": Attack(1 << 17, lambda n: gzip.compress(b"") * n),
    "a variable of one-bit items": Attack(1 << 28, _one_bit),
    "signed items of one bit": Attack(1 << 29, lambda n: _tensor(n, 1, 4), _read_tensor),
    "codes of logarithms": Attack(70_000_000, _logarithms),
    "constants of one-bit items": Attack(1 << 27, lambda n: _constants(f"{n}", "u1", n // 8, 40)),
    "axes of a constant by the thousand": Attack(
        1_000_000, lambda n: _constants(",".join("9" * n), "f32", 4)
    ),
    **{
        f"a string without an end {quote}, {name}": _endless(head, quote)
        for quote in "\"'"
        for name, head in _HEADS.items()
    },
    **DOCUMENTS,
    **DIALECT,
}
Mutant = tuple[str, int, bytes]  # an attack, its size, its archive


def _made(name: str, factor: int, chance: random.Random) -> Mutant:
    n = factor * ATTACKS[name].size
    return name, n, ATTACKS[name].source(n)


def attempt(mutant: Mutant, limits: Limits = None) -> str:
    """Run an attack, which must be withstood; return "none"."""
    name, _, source = mutant
    ATTACKS[name].use(source, limits)
    return "none"


KIND = Kind(
    lambda: {f"{name}, {k} x": (partial(_made, name, k), 1) for name in ATTACKS for k in (1, 4)},
    attempt,
)
