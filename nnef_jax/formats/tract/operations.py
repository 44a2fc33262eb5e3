"""Finds how an operation of the dialect is flattened: by a function, a rule, or its definition."""

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

# Operations that are never expanded. Their definitions have expressions that the dialect lacks, or
# return an array.
_UNEXPANDED = frozenset(
    {"add_n", "copy_n", "nearest_downsample", "area_downsample", "logarithmic_quantize"}
)


def has_meaning(name: str) -> bool:
    """Tell whether an operation has a function in the registry, or is in NNEF 1.0 with a rule."""
    return OPERATORS.get(name) is not None or (name in standard() and name in rules)


@cache
def words(name: str) -> Mapping[str, str]:
    """Return a dict from parameters of an operation's function to names of arguments in documents.

    For example, the parameter "depth" of "tract_core_one_hot" is the argument "dim" in documents.
    """
    operator = OPERATORS.get(name)
    if operator is None:
        return {}
    tensors = [*operands(name)]  # the names of the operands in documents
    meaning = operator.meaning
    if isinstance(meaning, OperatorRow):
        parameters = rules[meaning.kind].parameters
        attributes = meaning.attributes
        inputs = [tensors[i] for i in meaning.inputs]
    else:
        parameters = inputs_of(meaning)
        attributes = operator.attributes
        inputs = tensors
    names: dict[str, str] = {}
    for parameter, reader in attributes.items():
        if isinstance(reader, Attribute):
            names[parameter] = reader.name
    # The two lists may differ in length: the function of an operation may take only the first
    # operands, and a kind may have additional parameters.
    operand_names = dict(zip(parameters, inputs, strict=False))
    return {**operand_names, **names}


@cache
def defined(expand: Expand) -> frozenset[str]:
    """Return the names of the operations that are replaced by their definitions in the standard.

    If `expand` is "auto", the names are those of the operations for which `has_meaning` returns
    False. If `expand` is "all", the operations that mean the same in tract and in the standard are
    included.
    """
    names: set[str] = set()
    for name, fragment in declarations().items():
        if expand == "auto":
            is_expanded = not has_meaning(name)
        else:
            is_expanded = OPERATORS.get(name) is None and name not in _UNEXPANDED
        if fragment.body is not None and is_expanded:
            names.add(name)
    return frozenset(names)
