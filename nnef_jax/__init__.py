"""NNEF networks in JAX: `nnef_jax.load(path)` returns a jitted, differentiable callable.

Each public name is imported when it is first used. Therefore `import nnef_jax` alone loads neither
jax nor lark.
"""

from __future__ import annotations

import nnef_jax.execution.forks  # noqa: F401  # pyright: ignore[reportUnusedImport]
from lowering import imported

# Equals `typing.TYPE_CHECKING`. Importing typing would take most of the time of importing this
# module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lowering import Graph as Graph
    from lowering import Registry as Registry
    from lowering import Rule as Rule
    from lowering import TensorType as TensorType
    from nnef_jax import analysis as analysis
    from nnef_jax import generation as generation
    from nnef_jax import openvx as openvx
    from nnef_jax import serving as serving
    from nnef_jax.calls.trimming import trim as trim
    from nnef_jax.errors import ArchiveError as ArchiveError
    from nnef_jax.errors import DataError as DataError
    from nnef_jax.errors import InputError as InputError
    from nnef_jax.errors import LimitError as LimitError
    from nnef_jax.errors import NnefError as NnefError
    from nnef_jax.errors import NnefSyntaxError as NnefSyntaxError
    from nnef_jax.errors import SemanticError as SemanticError
    from nnef_jax.errors import ShapeError as ShapeError
    from nnef_jax.errors import UnsupportedError as UnsupportedError
    from nnef_jax.generation import decoder as decoder
    from nnef_jax.limits import Limits as Limits
    from nnef_jax.loading import load as load
    from nnef_jax.measure.benchmarking import benchmark as benchmark
    from nnef_jax.measure.calibration import calibrate as calibrate
    from nnef_jax.measure.costs import cost as cost
    from nnef_jax.measure.difference import diff as diff
    from nnef_jax.measure.profiling import profile as profile
    from nnef_jax.measure.weight_statistics import weight_statistics as weight_statistics
    from nnef_jax.model import Model as Model
    from nnef_jax.results import Result as Result
    from nnef_jax.saving.archives import write_archive as write_archive
    from nnef_jax.saving.conversion import convert as convert
    from nnef_jax.storage.tensorfile import read_tensor as read_tensor
    from nnef_jax.storage.tensorfile import write_tensor as write_tensor
    from nnef_jax.tensor_spec import TensorSpec as TensorSpec
    from nnef_jax.viewing.page import view as view

# For each public name, the module from which it is imported.
_HOMES = {
    "ArchiveError": "nnef_jax.errors",
    "DataError": "nnef_jax.errors",
    "Graph": "lowering",
    "InputError": "nnef_jax.errors",
    "LimitError": "nnef_jax.errors",
    "Limits": "nnef_jax.limits",
    "Model": "nnef_jax.model",
    "NnefError": "nnef_jax.errors",
    "NnefSyntaxError": "nnef_jax.errors",
    "Registry": "lowering",
    "Result": "nnef_jax.results",
    "Rule": "lowering",
    "SemanticError": "nnef_jax.errors",
    "ShapeError": "nnef_jax.errors",
    "TensorSpec": "nnef_jax.tensor_spec",
    "TensorType": "lowering",
    "UnsupportedError": "nnef_jax.errors",
    "analysis": "nnef_jax",
    "benchmark": "nnef_jax.measure.benchmarking",
    "calibrate": "nnef_jax.measure.calibration",
    "convert": "nnef_jax.saving.conversion",
    "cost": "nnef_jax.measure.costs",
    "decoder": "nnef_jax.generation",
    "diff": "nnef_jax.measure.difference",
    "generation": "nnef_jax",
    "load": "nnef_jax.loading",
    "openvx": "nnef_jax",
    "profile": "nnef_jax.measure.profiling",
    "read_tensor": "nnef_jax.storage.tensorfile",
    "serving": "nnef_jax",
    "trim": "nnef_jax.calls.trimming",
    "view": "nnef_jax.viewing.page",
    "weight_statistics": "nnef_jax.measure.weight_statistics",
    "write_archive": "nnef_jax.saving.archives",
    "write_tensor": "nnef_jax.storage.tensorfile",
}

__all__ = [*_HOMES, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    from nnef_jax.garbage import uncollected

    with uncollected():
        return imported(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
