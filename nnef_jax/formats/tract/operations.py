"""Which operations of the dialect run: by an operator, the kind of their name, a definition."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from lowering.ops import rules
from nnef_jax.flattening.operators.attributes import Attribute
from nnef_jax.flattening.operators.registry import OperatorRow, inputs_of
from nnef_jax.formats.base import Expand
from nnef_jax.formats.syntax.standard import standard
from nnef_jax.formats.tract.declarations import declarations, operands
from nnef_jax.formats.tract.operators import OPERATORS

# Their definitions are written in expressions that the dialect lacks, or give an array of results.
_WHOLE = frozenset(
    {"add_n", "copy_n", "nearest_downsample", "area_downsample", "logarithmic_quantize"}
)


def has_meaning(name: str) -> bool:
    """Tell whether an operation has a meaning: its own, or the kind of its name."""
    return OPERATORS.get(name) is not None or (name in standard() and name in rules)


@cache
def words(name: str) -> Mapping[str, str]:
    """Return the document's names of arguments by the names that the operation's meaning has."""
    operator = OPERATORS.get(name)
    if operator is None:
        return {}
    tensors, meaning = [*operands(name)], operator.meaning
    if isinstance(meaning, OperatorRow):
        parameters, attributes = rules[meaning.kind].parameters, meaning.attributes
        inputs = [tensors[i] for i in meaning.inputs]
    else:
        parameters, attributes, inputs = inputs_of(meaning), operator.attributes, tensors
    named = {key: x.name for key, x in attributes.items() if isinstance(x, Attribute)}
    return {**dict(zip(parameters, inputs, strict=False)), **named}


@cache
def defined(expand: Expand) -> frozenset[str]:
    """Return the operations that run by the standard's definitions.

    "all" adds the kinds that tract reads as the standard does.
    """
    compound = (name for name, fragment in declarations().items() if fragment.body is not None)
    if expand == "auto":
        return frozenset(name for name in compound if not has_meaning(name))
    return frozenset(n for n in compound if OPERATORS.get(n) is None and n not in _WHOLE)
