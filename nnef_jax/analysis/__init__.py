"""What a network does and why: attributions, attacks, curvature, statistics, comparisons.

Pure functions over any `Model`, and their results. A name is imported when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nnef_jax.analysis.comparison import Comparison as Comparison
    from nnef_jax.analysis.comparison import TensorDifference as TensorDifference
    from nnef_jax.analysis.comparison import compare as compare
    from nnef_jax.analysis.results import Result as Result

_HOMES = {
    "Comparison": "comparison",
    "Result": "results",
    "TensorDifference": "comparison",
    "compare": "comparison",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'nnef_jax.analysis' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"nnef_jax.analysis.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
