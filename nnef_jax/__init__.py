"""NNEF networks in JAX: `nnef_jax.load(path)` returns a jitted, differentiable callable.

Names are resolved when they are first used: importing the package loads neither jax nor lark.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, whose import would take most of the time of this one
if TYPE_CHECKING:
    from nnef_jax.calibration import calibrate
    from nnef_jax.conversion import convert
    from nnef_jax.errors import (
        ArchiveError,
        DataError,
        InputError,
        LimitError,
        NnefError,
        NnefSyntaxError,
        SemanticError,
        ShapeError,
        UnsupportedError,
    )
    from nnef_jax.limits import Limits
    from nnef_jax.loading import load
    from nnef_jax.model import Model, TensorSpec
    from nnef_jax.saving import save
    from nnef_jax.storage.tensorfile import read_tensor, write_tensor

_HOMES = {
    "ArchiveError": "errors",
    "DataError": "errors",
    "InputError": "errors",
    "LimitError": "errors",
    "Limits": "limits",
    "Model": "model",
    "NnefError": "errors",
    "NnefSyntaxError": "errors",
    "SemanticError": "errors",
    "ShapeError": "errors",
    "TensorSpec": "model",
    "UnsupportedError": "errors",
    "calibrate": "calibration",
    "convert": "conversion",
    "load": "loading",
    "read_tensor": "storage.tensorfile",
    "save": "saving",
    "write_tensor": "storage.tensorfile",
}

__all__ = [
    "ArchiveError",
    "DataError",
    "InputError",
    "LimitError",
    "Limits",
    "Model",
    "NnefError",
    "NnefSyntaxError",
    "SemanticError",
    "ShapeError",
    "TensorSpec",
    "UnsupportedError",
    "calibrate",
    "convert",
    "load",
    "read_tensor",
    "save",
    "write_tensor",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'nnef_jax' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"nnef_jax.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
