"""Describes the machine of a measurement and the versions of the packages."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.engines import cores

_KIND = (("family", "cpu family"), ("model", "model"))
_PACKAGES = ("nnef_jax", "jax", "jaxlib", "numpy", "onnxruntime", "openvino", "tract", "torch")


def description() -> dict[str, Any]:
    """Return the date, the processor, the cores, the load and the installed versions, for JSON."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": cores(),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: v for name in _PACKAGES if (v := _version(name)) is not None},
    }


def _processor() -> str:
    """Return the processor's name, family and model number.

    The numbers identify the processor if the name does not.
    """
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return platform.processor()
    pairs = [line.partition(":")[::2] for line in information.read_text().splitlines()]
    first = {name.strip(): value.strip() for name, value in reversed(pairs)}
    kind = [f"{label} {first[key]}" for label, key in _KIND if key in first]
    return ", ".join((first.get("model name", platform.processor()), *kind))


def _version(package: str) -> str | None:
    if package == "nnef_jax":
        import nnef_jax

        return nnef_jax.__version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
