"""The declared tensors of a document: their types and their stored data (spec 3.3, 4.1, 5).

The module also finds the type that `?` stands for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lowering import GraphBuilder, aligned, rounding
from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, Shape, is_known, show
from lowering.graph import TensorType, Value
from nnef_jax.errors import ArchiveError, DataError
from nnef_jax.formats.base import ExtentNeeded
from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax.types import ANY, LITERALS, ArrayOf, Tensor, Type, deduce
from nnef_jax.limits import Meter
from nnef_jax.storage.archive import Archive

# Maps numpy's code for the kind of a dtype to a word for the items of such a dtype in errors.
_KINDS = {
    "f": "scalars", "i": "integers", "u": "integers", "b": "logical values",
    "c": "complex numbers", "O": "strings",
}  # fmt: skip
# Maps the kind of a declared dtype to the kinds of stored items that are converted to this dtype.
# All kinds are numpy's codes.
_CONVERTIBLE = {"f": "fiu", "i": "iu", "u": "iu", "b": "b", "c": "cfiu"}


def external_type(shape: Sequence[int | None], dtype: str, open_extent: int) -> TensorType:
    """Return the type of a tensor that `external` declares.

    `open_extent` takes the place of each extent that is None. Raises InvalidOperation if an extent
    is negative.
    """
    extents = [open_extent if extent is None else extent for extent in shape]
    for extent in extents:
        if extent is not UNKNOWN and extent < 0:
            raise InvalidOperation(
                f"'shape' of an external must not be negative, it is {list(shape)}",
                hint="0 stands for an open extent",
            )
    return TensorType(tuple(extents), dtype)


def variable_type(shape: Sequence[int], label: str, dtype: str) -> TensorType:
    """Return the type of a tensor that `variable` declares (spec 4.1.3).

    Raises InvalidOperation if the label is empty, or if an extent is not positive or not known.
    """
    if not label:
        raise InvalidOperation("'label' of a variable must not be empty")
    if not is_known(shape):
        raise InvalidOperation(
            f"'shape' of a variable must be known, it is {show(shape)}",
            hint="it depends on an open extent of an input: "
            "give this extent by load(..., input_shapes=...)",
        )
    if any([extent < 1 for extent in shape]):
        raise InvalidOperation(f"'shape' of a variable must be positive, it is {list(shape)}")
    return TensorType(tuple(shape), dtype)


def dtype_of(generic: str | None, builder: GraphBuilder) -> str:
    """Return the dtype of a tensor whose items have the generic type `?`.

    `generic` is the type that `?` stands for; None means "scalar".
    """
    dtypes = {"logical": "bool", "integer": builder.integer, "scalar": builder.real}
    if generic is not None and generic not in dtypes:
        raise InvalidOperation(f"a tensor cannot hold '{generic}'")
    return dtypes[generic or "scalar"]


def item_of(dtype: str) -> str:
    """Return NNEF's word for the items of a dtype: "scalar", "integer" or "logical"."""
    if dtype == "bool":
        return "logical"
    return "integer" if "int" in dtype else "scalar"


def generic_of(
    fragment: tree.Fragment,
    node: tree.Invocation,
    arguments: Mapping[str, object],
    outer: str | None,
) -> str | None:
    """Return the type that `?` stands for in an invocation, or None if the fragment is not generic.

    The type is the generic argument, such as `<scalar>`. If there is none, the type is deduced from
    the values in `arguments`. If that fails, the type is the default that the fragment declares.

    A generic argument `<?>` stands for `outer`, the type of `?` in the body around the
    invocation.
    """
    if not fragment.generic:
        return None
    if node.generic is not None:
        return outer if node.generic == "?" else node.generic
    for parameter in fragment.parameters:
        deduced = deduce(_type_of(arguments[parameter.name]), parameter.type)
        if deduced:
            return deduced
    return fragment.generic_default


def result_count(
    kind: str, operands: Mapping[str, object], attributes: Mapping[str, object]
) -> int:
    """Return the number of tensors in a result array, or 0 if arguments do not determine it.

    For example, `split` returns as many tensors as `ratios` has items. Raises ExtentNeeded if the
    number depends on an open extent.
    """
    match kind, operands, attributes:
        case "copy_n", _, {"times": int(times)}:
            if times is UNKNOWN:
                raise ExtentNeeded
            return max(0, times)
        case "split", _, {"ratios": [*ratios]}:
            return len(ratios)
        case "unstack", {"value": Value(type=TensorType(shape=shape))}, {"axis": int(axis)}:
            if axis < 0 or axis >= len(shape):
                return 0  # the rule of `unstack` refuses the axis
            if shape[axis] is UNKNOWN:
                raise ExtentNeeded
            return shape[axis]
        case _:
            return 0


def _type_of(value: object) -> Type:
    """Return the type that a Python value has in NNEF's language.

    All items of an array are taken to have the type of the first item.
    """
    if isinstance(value, Value):
        return Tensor(item_of(value.type.dtype))
    if isinstance(value, list):
        items = cast("list[object]", value)
        return ArrayOf(_type_of(items[0]) if items else ANY)
    for python_type, literal_type in LITERALS.items():
        if isinstance(value, python_type):  # a bool is also an int, but bool comes first
            return literal_type
    return ANY


# Stored data


def without_member(archive: Archive, member: str, label: str) -> ArchiveError:
    """Return the error for a variable whose member is missing in the archive."""
    return ArchiveError(
        f"{archive.name} has no member '{member}' for the variable '{label}'",
        hint="each variable is stored in LABEL.dat: correct the label, or add the file",
    )


def check_shape(stored: Shape, declared: Shape, label: str, member: str) -> None:
    """Raise DataError if a stored shape differs from the declared shape of a variable.

    One of the two shapes may have additional extents of 1 at its end (spec 4.1.3). `label` and
    `member` name the variable and its file in the error.
    """
    for extent, declared_extent in zip_longest(stored, declared, fillvalue=1):
        if extent != declared_extent:
            raise DataError(
                f"{member} has shape {show(stored)}, variable '{label}' is declared "
                f"with {show(declared)}",
                hint="declare the stored shape, or store a tensor of the declared shape",
            )


def convert(
    array: NDArray[Any],
    dtype: np.dtype[Any],
    member: str,
    meter: Meter,
    hint: str = "integer tensors are int32",
) -> NDArray[Any]:
    """Return an array converted to another dtype.

    A real number is rounded; a finite number stays finite. Errors name `member`, the file that
    stores the array. Raises DataError if the conversion is not allowed, such as bool to float32.
    Raises DataError with the hint `hint` if an integer is beyond the range of the dtype. Raises
    LimitError if the result takes more memory than the meter allows.
    """
    if array.dtype == dtype:
        return array
    require_kind(array, dtype, member)
    require_range(array, dtype, member, hint)
    meter.expand(array.size * dtype.itemsize, member)
    converted = aligned(array.shape, dtype)
    with np.errstate(over="ignore"):
        np.copyto(converted, array, casting="unsafe")
    rounding.saturate(converted, array)  # replaces infinity where the number was finite
    return converted


def require_range(
    array: NDArray[Any], dtype: np.dtype[Any], title: str, hint: str = "integer tensors are int32"
) -> None:
    """Raise DataError if an integer in `array` is beyond the range of a dtype.

    `title` names the array in the error, and `hint` is the error's hint.
    """
    is_integer = dtype.kind in "iu"
    if not is_integer or array.size == 0:
        return
    least = int(array.min())
    greatest = int(array.max())
    bounds = np.iinfo(dtype)
    if least < bounds.min or greatest > bounds.max:
        message = f"{title} holds values from {least} to {greatest}, which do not fit {dtype}"
        raise DataError(message, hint=hint)


def require_kind(array: NDArray[Any], dtype: np.dtype[Any], title: str) -> None:
    """Raise DataError if the items of an array must not be converted to a dtype.

    For example, bool is not converted to a dtype of real numbers, but integers are. `title` names
    the array in the error.
    """
    declared_kind = _kind(dtype)
    stored_kind = _kind(array.dtype)
    if stored_kind not in _CONVERTIBLE[declared_kind]:
        stored_items = _KINDS.get(stored_kind, array.dtype)
        raise DataError(
            f"{title} holds {stored_items}, the variable is declared "
            f"to hold {_KINDS[declared_kind]}"
        )


def _kind(dtype: np.dtype[Any]) -> str:
    """Return numpy's code for the kind of a dtype, such as "f".

    numpy itself has the kind "V" for the dtypes of ml_dtypes, such as bfloat16 and int4.
    """
    if jnp.issubdtype(dtype, jnp.floating):
        return "f"
    if jnp.issubdtype(dtype, jnp.signedinteger):
        return "i"
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return "u"
    return dtype.kind
