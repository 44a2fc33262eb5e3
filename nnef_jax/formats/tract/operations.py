"""The table from the dialect's operations to kinds; those not in it are kinds of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from lowering.ops import rules
from nnef_jax.formats.syntax.standard import standard
from nnef_jax.formats.tract.additions import ADDITIONS
from nnef_jax.formats.tract.conventions import CONVENTIONS
from nnef_jax.formats.tract.meaning import Meaning


@cache
def meanings() -> Mapping[str, Meaning]:
    """Return the meanings of operations by the names that documents give them."""
    same = {name: Meaning(name) for name in standard() if name in rules}
    return {**same, **CONVENTIONS, **ADDITIONS}
