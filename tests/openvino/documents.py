"""Writes small networks of OpenVINO's intermediate representation, as text and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np

import nnef_jax

_TYPES = {"f": "f32", "i": "i64", "b": "boolean"}


def write(folder: Path, text: str | bytes, data: bytes | None, name: str = "net") -> Path:
    """Write a network and its data."""
    path = folder / f"{name}.xml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    if data is not None:
        path.with_suffix(".bin").write_bytes(data)
    return path


@dataclass
class Writer:
    """Collects layers in order. Adding one returns its id, which later ones read.

    A layer of version 10 and 11 reads its weights from Const layers, an older one has blobs.
    """

    version: int = 11
    layers: list[str] = field(default_factory=list)
    edges: list[str] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    shapes: dict[tuple[int, int], Sequence[int]] = field(default_factory=dict)
    extra: str = ""

    def layer(
        self,
        type: str,
        inputs: Sequence[int | tuple[int, int]] = (),
        outputs: Sequence[Sequence[int]] = ((),),
        *,
        name: str = "",
        attributes: Mapping[str, Any] | None = None,
        blobs: Mapping[str, np.ndarray] | None = None,
        opset: str = "opset1",
        precision: str = "FP32",
        inside: str = "",
        tag: str = "data",
    ) -> int:
        id = len(self.layers)
        ends = [(x, -1) if isinstance(x, int) else x for x in inputs]
        ends = [(layer, self._first(layer) if port < 0 else port) for layer, port in ends]
        count = len(ends)
        ports = "".join(
            f'<port id="{i}">{self._dims(self.shapes[end])}</port>' for i, end in enumerate(ends)
        )
        results = "".join(
            f'<port id="{count + i}" precision="{precision}">{self._dims(shape)}</port>'
            for i, shape in enumerate(outputs)
        )
        for i, shape in enumerate(outputs):
            self.shapes[id, count + i] = shape
        stored = ""
        for blob, array in (blobs or {}).items():
            stored += f'<{blob} offset="{len(self.data)}" size="{array.nbytes}"/>'
            self.data += array.tobytes()
        given = " ".join(f"{k}={quoteattr(str(v))}" for k, v in (attributes or {}).items())
        version = f' version="{opset}"' if self.version >= 10 else f' precision="{precision}"'
        self.layers.append(
            f'<layer id="{id}" name={quoteattr(name or f"{type.lower()}_{id}")} type="{type}"'
            f"{version}>"
            + (f"<{tag} {given}/>" if given else "")
            + (f"<input>{ports}</input>" if ports else "")
            + (f"<output>{results}</output>" if results else "")
            + (f"<blobs>{stored}</blobs>" if stored else "")
            + inside
            + "</layer>"
        )
        for i, (layer, port) in enumerate(ends):
            self.edges.append(
                f'<edge from-layer="{layer}" from-port="{port}" to-layer="{id}" to-port="{i}"/>'
            )
        return id

    def _first(self, layer: int) -> int:
        return min(port for owner, port in self.shapes if owner == layer)

    @staticmethod
    def _dims(shape: Sequence[int]) -> str:
        return "".join(f"<dim>{n}</dim>" for n in shape)

    def input(self, name: str, shape: Sequence[int], type: str = "f32") -> int:
        if self.version < 10:
            return self.layer("Input", outputs=[shape], name=name)
        text = ",".join("?" if n < 0 else str(n) for n in shape)
        given = {"shape": text, "element_type": type}
        return self.layer("Parameter", outputs=[shape], name=name, attributes=given)

    def constant(
        self, array: Any, name: str = "", type: str = "", shape: Sequence[int] | None = None
    ) -> int:
        """Store an array. One of packed items needs its shape."""
        array = np.asarray(array)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        known = type or _TYPES[array.dtype.kind]
        shape = array.shape if shape is None else shape
        given = {
            "element_type": known, "shape": ",".join(map(str, shape)),
            "offset": len(self.data), "size": array.nbytes,
        }  # fmt: skip
        self.data += array.tobytes()
        return self.layer("Const", outputs=[shape], name=name, attributes=given)

    def packed(self, data: np.ndarray, shape: Sequence[int], type: str, name: str = "") -> int:
        """Add a constant of another type from its bytes."""
        given = {
            "element_type": type, "shape": ",".join(map(str, shape)), "offset": len(self.data),
            "size": data.nbytes,
        }  # fmt: skip
        self.data += data.tobytes()
        return self.layer("Const", outputs=[shape], name=name, attributes=given)

    def result(self, *values: int | tuple[int, int]) -> Writer:
        for value in values:
            self.layer("Result", [value], outputs=[])
        return self

    def text(self) -> str:
        return (
            f'<?xml version="1.0"?><net name="net" version="{self.version}"><layers>'
            f"{''.join(self.layers)}</layers><edges>{''.join(self.edges)}</edges>{self.extra}</net>"
        )

    def write(self, folder: Path, name: str = "net") -> Path:
        return write(folder, self.text(), bytes(self.data), name)

    def load(self, folder: Path, **options: Any) -> nnef_jax.Model:
        return nnef_jax.load(self.write(folder), **options)
