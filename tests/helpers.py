"""Helpers of many tests: archives in memory, and models of a text."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from typing import Any

import nnef_jax

COMPOSITIONAL = (
    "version 1.0;\nextension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;\n"
)


def tar(members: Mapping[str, bytes | str]) -> bytes:
    """Return a tar archive of members by name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def archive(**members: bytes | str) -> bytes:
    """Return a tar archive of tensors by label; 'graph', 'quant' are graph.nnef, graph.quant."""
    names = {"graph": "graph.nnef", "quant": "graph.quant"}
    return tar({names.get(name, f"{name}.dat"): data for name, data in members.items()})


def model_of(text: str, *, data: dict[str, Any] | None = None, **options: Any) -> nnef_jax.Model:
    """Return the model of a document, with arrays for its variables by label."""
    members: dict[str, bytes | str] = {"graph": text}
    for label, array in (data or {}).items():
        file = io.BytesIO()
        nnef_jax.write_tensor(file, array)
        members[label] = file.getvalue()
    return nnef_jax.load(archive(**members), **options)
