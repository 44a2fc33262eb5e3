"""Checks arguments of public functions. Each error names the argument."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import chain
from types import MappingProxyType, UnionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnef_jax.errors import InputError, NnefError

_NOT_NUMBERS = "USOmM"  # kinds of numpy's dtypes: texts, bytes, objects, durations and dates
_RUN_FLAGS = ("optimize", "autotune", "donate_state", "measure")


def require(name: str, value: object, types: type | UnionType, expected: str) -> None:
    """Raise TypeError unless the value of an argument has one of the types.

    A bool does not count as an int. In the error, `name` is the argument's name, and `expected`
    describes the types.
    """
    has_type = isinstance(value, types)
    # A bool is an instance of int.
    is_bool_for_number = isinstance(value, bool) and types is not bool
    if is_bool_for_number or not has_type:
        raise TypeError(f"{name} must be {expected}, it is {shown(value)}")


def require_flags(**flags: object) -> None:
    """Raise TypeError unless each option is True or False."""
    for name, value in flags.items():
        require(name, value, bool, "True or False")


def require_keywords(
    function: str,
    keywords: Iterable[str],
    accepted: Collection[str],
    hints: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise TypeError, as Python does, for a keyword that a function does not accept.

    `function` is the function's name. `hints` maps keywords of related functions to the keywords
    that this function has instead.
    """
    for name in keywords:
        if name in accepted:
            continue
        message = f"{function}() got an unexpected keyword argument '{name}'"
        if name in hints:
            message += f", it is {hints[name]} here"
        raise TypeError(message)


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise ValueError unless the value is one of the choices."""
    accepted = tuple(choices)
    if isinstance(value, str) and value in accepted:
        return
    if len(accepted) < 3:
        expected = " or ".join(map(repr, accepted))
    else:
        expected = f"one of {', '.join(accepted)}"
    raise ValueError(f"{name} must be {expected}, it is {shown(value)}")


def require_path(name: str, value: Any) -> None:
    """Raise TypeError or ValueError unless the value can be the path of a file to write."""
    require(name, value, str | os.PathLike, "a path")
    path = os.fsdecode(value)
    if not path or "\0" in path:
        raise ValueError(f"{name} must not be empty or hold a NUL, it is {path!r}")


def require_readable(name: str, value: Any) -> None:
    """Raise TypeError unless the value is a path, bytes or a binary file."""
    if isinstance(value, io.TextIOBase):
        raise TypeError(f"{name} reads text: open it in binary mode")
    is_path = isinstance(value, str | os.PathLike)
    is_file = callable(getattr(value, "read", None))
    if is_path or is_file:
        return
    try:
        memoryview(value).cast("B")  # succeeds for bytes and for similar objects
    except (TypeError, ValueError, BufferError):
        message = f"{name} must be a path, bytes or a binary file, it is {shown(value)}"
        raise TypeError(message) from None


def require_samples(name: str, value: Any) -> None:
    """Raise TypeError unless the value is an iterable of sample inputs."""
    # The items of an array of samples would lack the batch axis.
    is_array = hasattr(value, "shape")
    is_valid = not is_array and not isinstance(value, str | bytes | Mapping)
    try:
        iter(value)
    except TypeError:
        is_valid = False
    if not is_valid:
        expected = "a list of samples: arrays, tuples of arrays, or dicts of arrays by input name"
        raise TypeError(f"{name} must be {expected}; it is {shown(value)}")


def names_of(name: str, value: object, hint: str) -> tuple[str, ...]:
    """Require an argument to be a list of strings, and return it as a tuple.

    `name` is the argument's name, and `hint` describes the strings in errors. Raises TypeError for
    a single string, and for items that are not strings.
    """
    is_single = isinstance(value, str | bytes | Mapping)
    if is_single or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of {hint}, it is {shown(value)}")
    try:
        names: tuple[Any, ...] = tuple(value)  # pyright: ignore[reportUnknownArgumentType]
    except TypeError:
        # An array without axes cannot be iterated. The loop below refuses it, as it is no string.
        names = (value,)
    for item in names:
        if not isinstance(item, str):
            raise TypeError(f"{name} must be a list of {hint}, {shown(item)} is in it")
    return names


def word_pairs(name: str, value: Any, hint: str) -> dict[str, str]:
    """Require an argument to be a dict from strings to strings, and return it.

    `name` is the argument's name, and `hint` describes the strings in errors. Raises TypeError for
    any other value.
    """
    require(name, value, Mapping, f"a dict of {hint}")
    for item in chain(*value.items()):
        if not isinstance(item, str):
            raise TypeError(f"{name} must be a dict of {hint}, {shown(item)} is in it")
    return dict(value)


def shapes_by_name(name: str, value: Any) -> dict[str, tuple[int | None, ...]]:
    """Require an argument to be a dict from input names to shapes. Return the shapes as tuples.

    `name` is the argument's name. None in a shape is an open extent. Raises TypeError for a value
    of another form, and InputError for a negative extent.
    """
    expected = "a dict of shapes by input name"
    require(name, value, Mapping, expected)
    shapes: dict[str, tuple[int | None, ...]] = {}
    for key, shape in value.items():
        if not isinstance(key, str):
            raise TypeError(f"{name} must be {expected}, {shown(key)} is a key of it")
        if not isinstance(shape, list | tuple):
            raise TypeError(f"{name} of '{key}' must be a list or tuple, it is {shown(shape)}")
        extents: tuple[Any, ...] = tuple(shape)  # pyright: ignore[reportUnknownArgumentType]
        for extent in extents:
            if extent is None:
                continue
            if not _is_integer(extent):
                raise TypeError(f"{name} of '{key}' must hold integers or None, not {extent!r:.40}")
            if extent < 0:
                message = f"{name} of '{key}' has the negative extent {extent}"
                raise InputError(message, hint="None is an extent that each call may choose")
        shapes[key] = tuple(None if extent is None else int(extent) for extent in extents)
    return shapes


def extents_by_name(name: str, value: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """Split an argument into a dict from input names to shapes and one from symbols to extents.

    For example, {"x": [1, 3], "batch": 8} becomes {"x": [1, 3]} and {"batch": 8}. An argument that
    is not a dict is returned as the first dict, because `shapes_by_name` will refuse it. `name` is
    the argument's name. Raises InputError for a negative extent.
    """
    if not isinstance(value, Mapping):
        return value, {}
    shapes_or_extents: dict[Any, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
    shapes: dict[Any, Any] = {}
    extents: dict[str, int] = {}
    for key, shape_or_extent in shapes_or_extents.items():
        is_extent = isinstance(key, str) and _is_integer(shape_or_extent)
        if not is_extent:
            shapes[key] = shape_or_extent
            continue
        if shape_or_extent < 0:
            raise InputError(f"{name} has the negative extent {shape_or_extent} for '{key}'")
        extents[key] = int(shape_or_extent)
    return shapes, extents


def _is_integer(value: object) -> bool:
    """Tell whether a value is an integer of Python or numpy. A bool is not an integer."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def arrays_by_name(name: str, value: Any) -> dict[str, NDArray[Any]]:
    """Require an argument to be a dict from input names to arrays. Return it with numpy arrays.

    `name` is the argument's name. Raises TypeError if the argument is not a dict with names as
    keys, and InputError for a value in the dict that is not an array.
    """
    expected = "a dict of arrays by input name"
    require(name, value, Mapping, expected)
    arrays: dict[str, NDArray[Any]] = {}
    for key, array_like in value.items():
        if not isinstance(key, str):
            raise TypeError(f"{name} must be {expected}, {shown(key)} is a key of it")
        array = numpy_of(array_like, InputError, f"{name} of '{key}' is no array")
        if array.dtype.kind in _NOT_NUMBERS:
            raise InputError(f"{name} of '{key}' must be numbers, it is {shown(array_like)}")
        arrays[key] = array
    return arrays


def numpy_of(value: object, error: type[NnefError], message: str) -> NDArray[Any]:
    """Convert a value to a numpy array.

    Raises an error of the class `error` if the value cannot be converted, or is a masked array. The
    text of the error is `message` followed by the reason.
    """
    try:
        if isinstance(value, np.ma.MaskedArray):
            raise ValueError("it is masked")
        return np.asarray(value)
    except Exception as reason:  # The object's own conversion may raise any exception.
        raise error(f"{message}: {reason}") from None


def shown(value: object) -> str:
    """Return the text by which an error shows a value.

    For None, a bool, a number or a string, the text is the first 60 characters of the repr. For any
    other value, the text names the type.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return f"{value!r:.60}"
    return f"of type {type(value).__name__}"


def checked_run(keywords: Mapping[str, Any], *, has_rules: bool) -> dict[str, Any]:
    """Check the options that say how a network runs, and return them.

    The options are the fields of `RunKeywords`. Raises TypeError or ValueError for a wrong value,
    and for `cache_dir` if the user has rules.
    """
    checked = dict(keywords)
    flags = {name: value for name, value in checked.items() if name in _RUN_FLAGS}
    optimize = flags.get("optimize")
    # Only strings are compared, since a comparison with an array would have no truth value.
    is_strict = isinstance(optimize, str) and optimize == "strict"
    if is_strict:
        del flags["optimize"]
    require_flags(**flags)
    if "max_executables" in checked:
        count = checked["max_executables"]
        require("max_executables", count, int, "a number")
        if count < 1:
            raise ValueError(f"max_executables must be at least 1, it is {count}")
    if checked.get("precision") is not None:
        checked["precision"] = _precision(checked["precision"])
    if has_rules and checked.get("cache_dir") is not None:
        raise ValueError("cache_dir does not go with rules: changes of rules go unnoticed")
    return checked


def _precision(precision: Any) -> Any:
    """Check a precision, and return it in the form that jax takes.

    Raises ValueError for a precision that jax would refuse at the first matrix product.
    """
    import jax

    matrix = jax.ShapeDtypeStruct((1, 1), "float32")
    try:
        jax.eval_shape(partial(jax.lax.dot, precision=precision), matrix, matrix)
    except Exception as error:
        raise ValueError(f"jax has no precision {precision!r:.60}: {error}") from None
    return tuple(precision) if isinstance(precision, list) else precision  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
