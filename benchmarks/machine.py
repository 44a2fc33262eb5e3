"""What a measurement was made with: the machine and the versions of everything."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.engines import cores

_PACKAGES = ("nnef_jax", "jax", "jaxlib", "numpy", "onnxruntime", "openvino", "tract", "torch")


def description() -> dict[str, Any]:
    """Date, processor, cores, load, and versions of what is installed, for JSON."""
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
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _version(package: str) -> str | None:
    if package == "nnef_jax":
        import nnef_jax

        return nnef_jax.__version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
