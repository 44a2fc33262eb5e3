"""Tensor files written field by field, and a network with one variable that reads them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

import nnef_jax
from tests.helpers import archive

QUINT, QINT = 2, 3


def dat(item: int, bits: int, shape: tuple[int, ...], payload: bytes) -> bytes:
    """Return a tensor file of NNEF 1.0 final, written field by field."""
    extents = (*shape, *[0] * (8 - len(shape)))
    header = struct.pack(
        "<2sBBII8III", b"\x4e\xef", 1, 0, len(payload), len(shape), *extents, bits, item
    )
    return header + bytes(76) + payload


def provisional_dat(bits: int, shape: tuple[int, ...], algorithm: str, payload: bytes) -> bytes:
    """Return a tensor file of the provisional specification with unsigned codes."""
    text = algorithm.encode()
    offset = 16 + 4 * len(shape) + len(text)
    start = struct.pack("<2sBBII", b"\x4e\xef", 1, 0, offset, len(shape))
    extents = struct.pack(f"<{len(shape)}I", *shape)
    return start + extents + struct.pack("<BBH", 1, bits, len(text)) + text + payload


def floats(*values: Any) -> bytes:
    """Return a tensor file of float32, not quantised."""
    array = np.array(values[0] if len(values) == 1 else values, "<f4")
    return dat(0, 32, array.shape, array.tobytes())


def variable_net(shape: tuple[int, ...], version: str = "version 1.0;") -> str:
    return (
        f"{version}\ngraph G( x ) -> ( y )\n{{\n    x = external(shape = {[*shape]});\n"
        f"    w = variable(shape = {[*shape]}, label = 'w');\n    y = add(x, w);\n}}\n"
    )


NETWORK = """version 1.0;
graph G( x ) -> ( y, s )
{
    x = external(shape = [2,3,4]);
    w = variable(shape = [1,3], label = 'weights/w');
    c = constant(shape = [1], value = [0.3]);
    a = mul(x, w);
    y = tanh(a);
    s = add(y, c);
}
"""
X = np.random.default_rng(0).uniform(-2, 2, (2, 3, 4)).astype(np.float32)
W = np.float32([[0.9, -1.3, 0.4]])


def network(quant: str, text: str = NETWORK, **options: Any) -> nnef_jax.Model:
    return nnef_jax.load(archive(graph=text, quant=quant, **{"weights/w": floats(W)}), **options)
