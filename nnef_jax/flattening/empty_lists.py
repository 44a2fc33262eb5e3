"""Results of host operations for lists without items.

jax takes each symbolic extent for at least 1. If n0 is the extent of a list, jax therefore answers
that n0 > 0 is true, and that the larger one of n0 and 1 is n0. Both are wrong for an empty list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from jax.errors import InconclusiveDimensionOperation

from lowering.errors import InvalidOperation
from lowering.symbol_values import symbols_in, with_numbers
from nnef_jax.flattening.hostvalues import Host, NotFolded

_MOST_SYMBOLS = 4  # the largest number of symbols of which all combinations are checked


def require_for_empty_lists(
    function: Callable[..., Any], operands: Sequence[Any], result: Any, counted: Collection[str]
) -> None:
    """Raise NotFolded if the result of a function is wrong when some lists have no items.

    `operands` and `result` are host values, or sequences of host values. `counted` has the symbols
    for numbers of items. The function is computed again with 0 in place of these symbols.
    """
    symbols = sorted(_symbols_in(operands) & set(counted))
    for numbers in _numbers_of_empty_lists(symbols):
        try:
            expected = function(*[_with_numbers(x, numbers) for x in operands])
            is_right = _are_equal(expected, _with_numbers(result, numbers))
        except InvalidOperation:
            continue  # such as a division by 0
        except InconclusiveDimensionOperation:
            is_right = False  # the answer depends on the lists that have items
        if not is_right:
            raise NotFolded


def _numbers_of_empty_lists(symbols: Sequence[str]) -> Iterator[Mapping[str, int]]:
    """Yield dicts that map some of the symbols to 0. The other lists have items."""
    if len(symbols) <= _MOST_SYMBOLS:
        for are_empty in product((True, False), repeat=len(symbols)):
            empty = [x for x, is_empty in zip(symbols, are_empty, strict=True) if is_empty]
            if empty:
                yield dict.fromkeys(empty, 0)
        return
    yield dict.fromkeys(symbols, 0)
    for symbol in symbols:
        yield {symbol: 0}


def _symbols_in(value: Any) -> set[str]:
    """Return the names of the symbols in host values."""
    if isinstance(value, np.ndarray):
        return symbols_in(tuple(value.ravel())) if value.dtype == object else set()
    if isinstance(value, list | tuple):
        parts: Sequence[Any] = value
        return set().union(*map(_symbols_in, parts))
    return set()


def _with_numbers(value: Any, numbers: Mapping[str, int]) -> Any:
    """Return host values with numbers in place of symbols."""
    if isinstance(value, list | tuple):
        parts: Sequence[Any] = value
        return [_with_numbers(part, numbers) for part in parts]
    if not isinstance(value, np.ndarray) or value.dtype != object:
        return value
    items: Host = np.empty(value.size, object)
    items[:] = [with_numbers(item, numbers) for item in value.ravel()]
    return items.reshape(value.shape)


def _are_equal(x: Any, y: Any) -> bool:
    """Tell whether host values are equal."""
    if isinstance(x, list):
        parts: Sequence[Any] = x
        return len(parts) == len(y) and all(map(_are_equal, parts, y))
    if x.shape != y.shape:
        return False
    pairs = zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)
    return all(a is b or a == b or (a != a and b != b) for a, b in pairs)
