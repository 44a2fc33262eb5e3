"""Finds for each input or variable of the graph the array of a call, and checks that it fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpy.typing import ArrayLike

from lowering import aligned, rounding
from lowering.extents import UNKNOWN, Shape, is_known, shapes_differ, show
from lowering.graph import Parameter, StateVariable, TensorType, Value
from nnef_jax.errors import InputError, NnefError, raise_all
from nnef_jax.network import Network
from nnef_jax.options import numpy_of, shown

Input = ArrayLike | Mapping[str, ArrayLike]  # of an analysis: one in order, or a dict of all
Sample = Input | tuple[ArrayLike, ...]  # all inputs of one call
Example = ArrayLike | jax.ShapeDtypeStruct  # an input of which the type is enough
Params = Mapping[str, ArrayLike]  # by label
State = Mapping[str, ArrayLike]  # by label


def bind_inputs(
    network: Network,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    leading: int = 0,
    abstract: bool = False,
) -> list[Any]:
    """Return the inputs in graph order and declared dtypes; what is no array of jax is copied.

    Another width of the same kind is converted (float64 to float32). `leading` axes (of time) come
    before the declared shapes. With `abstract`, `jax.ShapeDtypeStruct`s are taken too.

    Raises InputError, for all inputs at once, where numbers, names, shapes or dtypes are wrong,
    integers do not fit, or the dtype of traced ones may not.
    """
    inputs = network.graph.inputs
    # Most calls give just what is declared; the checks below take as long as a small network.
    if not kwargs and not leading and len(args) == len(inputs):
        pairs = zip(args, inputs, strict=True)
        if all(_is_array(x) and _is_of(x, value) for x, value in pairs):
            return list(map(copied, args))
    names = [value.name for value in inputs]
    if len(args) == 1 and isinstance(args[0], Mapping):  # inputs by name, as analyses take them
        args, kwargs = (), {**args[0], **kwargs}
    if "key" not in names and is_key(kwargs.get("key", inputs)):  # which equinox gives each layer
        kwargs = {name: x for name, x in kwargs.items() if name != "key"}
    if len(args) > len(inputs):
        raise InputError(
            f"{len(args)} inputs are given, the graph takes {len(inputs)}: {', '.join(names)}"
        )
    given = dict(zip(names, args, strict=False))
    for name, array in kwargs.items():
        other = network.graph.aliases.get(name)
        name = other.name if other in inputs and name not in names else name
        if name not in names:
            raise InputError(f"the graph has no input '{name}', its inputs are {', '.join(names)}")
        if name in given:
            raise InputError(f"input '{name}' is given by position and by name")
        given[name] = array
    missing = [name for name in names if name not in given]
    if missing:
        raise InputError(
            f"input {', '.join(map(repr, missing))} is missing, the graph takes {', '.join(names)}",
            span=network.frontend.spans().get(missing[0]),
        )
    errors: list[NnefError] = []
    arrays: list[Any] = []
    for value in inputs:
        what, array = f"input '{value.name}'", given[value.name]
        try:
            if not (abstract and isinstance(array, jax.ShapeDtypeStruct)):
                array = _as_array(what, array, value.type)
            shape = network.shape_of(value)
            arrays.append(copied(fitted(what, array, value.type, leading, shape)))
        except InputError as error:
            error.span = network.frontend.spans().get(value.name)
            errors.append(error)
    if errors:
        raise_all(errors)
    return arrays


def is_key(x: Any) -> bool:
    """Tell whether something is a key of `jax.random`, or None in its place."""
    dtype, shape = getattr(x, "dtype", None), getattr(x, "shape", None)
    is_typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    return x is None or is_typed or (dtype == jnp.uint32 and shape == (2,))


def bind_variables(
    what: str,
    arrays: Any,
    variables: Mapping[str, Parameter | StateVariable],
    needed: Sequence[str],
) -> dict[str, Any]:
    """Return the variables given in the argument `what`, by label, converted as inputs are.

    Raises InputError, for all at once: wrong labels, shapes or dtypes, or missing `needed` ones.
    """
    source = "model.params" if what == "params" else "model.init_state()"
    hint = f"take {source} and replace values in it"
    if not isinstance(arrays, Mapping):
        message = f"{what} must be a dict of arrays by label, it is {shown(arrays)}"
        raise InputError(message, hint=hint)
    given: Mapping[Any, Any] = arrays
    missing = [label for label in needed if label not in given]
    extra = [label for label in given if label not in variables]
    if missing or extra:
        parts = [f"lacks {', '.join(sorted(missing))}"] if missing else []
        parts += [f"has unknown {', '.join(sorted(map(str, extra)))}"] if extra else []
        raise InputError(f"{what} {' and '.join(parts)}", hint=hint)
    errors: list[NnefError] = []
    bound: dict[str, Any] = {}
    for label, array in given.items():
        variable = variables[label]
        if isinstance(array, jax.Array) and _is_of(array, variable.value):
            bound[label] = array
            continue
        name, type = f"{what}: '{label}'", variable.value.type
        try:
            bound[label] = fitted(name, _as_array(name, array, type), type)
        except InputError as error:
            error.span = variable.span
            errors.append(error)
    if errors:
        raise_all(errors)
    return bound


@cache
def _dtype(name: str) -> np.dtype[Any]:
    """Return a dtype by name; comparing with the name would look it up in each call."""
    return jnp.dtype(name)


def _is_array(x: Any) -> bool:
    return type(x) is np.ndarray or isinstance(x, jax.Array)


def _is_of(array: Any, value: Value) -> bool:
    return array.shape == value.type.shape and array.dtype == _dtype(value.type.dtype)


def _as_array(what: str, array: Any, type: TensorType) -> Any:
    if _is_array(array):
        return array
    result = numpy_of(array, InputError, f"{what} is not an array")
    if result.dtype.kind not in "biufcV":
        raise InputError(f"{what} must be an array, it is {shown(array)}")
    is_literal = isinstance(array, int | list | tuple) and not hasattr(array, "dtype")
    if is_literal and result.dtype.kind in "iu" and _kind(_dtype(type.dtype)) == "f":
        result = result.astype(np.float32)
    return result


def _require_shape(what: str, array: Any, type: TensorType, leading: int, declared: str) -> None:
    shape = array.shape[leading:]
    if len(array.shape) >= leading and not shapes_differ(shape, type.shape):
        return
    after = " after the axis of time" if leading else ""
    if not what.startswith("input"):
        known = "init_state()" if what.startswith("state") else "params"
        hint = f"take the shape of the stored one: model.{known}"
    elif len(shape) == len(type.shape) and not _known(type.shape) - Counter(shape):
        hint = "its axes are in another order: transpose it, networks mostly take [N,C,H,W]"
    elif len(shape) + 1 == len(type.shape):
        hint = "an axis is missing, mostly the batch: model(x[None]). jax.vmap takes it away: call "
        hint += "the model on the whole batch, or on x[None] within it"
    else:
        hint = "load(..., input_shapes=...), or --shape of a command, declares another; jax.vmap "
        hint += "adds a batch axis"
    raise InputError(
        f"{what} has shape {show(array.shape)}, the graph declares {declared}{after}",
        hint=hint,
    )


def _known(shape: Shape) -> Counter[Any]:
    return Counter(extent for extent in shape if extent is not UNKNOWN)


def fitted(what: str, array: Any, type: TensorType, leading: int = 0, declared: str = "") -> Any:
    """Return an array of the type's shape in its dtype; InputError for another shape or kind.

    `declared` is the shape as the error shows it, with the names of open extents.
    """
    _require_shape(what, array, type, leading, declared or show(type.shape))
    dtype = _dtype(type.dtype)
    if array.dtype != dtype:
        kind = _kind(dtype)
        if _kind(array.dtype) != kind:
            raise InputError(
                f"{what} has dtype {array.dtype}, the graph declares {dtype}",
                hint=f"convert it: x.astype('{dtype}')",
            )
        if kind == "i":
            _require_range(what, array, dtype)
        if isinstance(array, jax.ShapeDtypeStruct):
            return array.update(dtype=dtype)
        return (
            rounding.saturated(array, dtype)
            if isinstance(array, np.ndarray)
            else _narrowed(array, dtype)
        )
    return array


@partial(jax.jit, static_argnums=1)
def _narrowed(x: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
    """Return an array of jax in a dtype, as `saturated` returns one of numpy."""
    result = x.astype(dtype)
    if _kind(dtype) != "f":
        return result
    most = jnp.finfo(dtype).max
    beyond = jnp.isinf(result) & jnp.isfinite(x)
    return jnp.where(beyond, jnp.where(x < 0, -most, most), result)


def in_order(
    inputs: Sequence[Value], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """Put arguments in the order of the inputs; return None where the names do not fit them."""
    names = [value.name for value in inputs[len(args) :]]
    if len(names) != len(kwargs) or any([name not in kwargs for name in names]):
        return None
    return (*args, *[kwargs[name] for name in names])


def declared(network: Network) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the types of inputs that a document declares. Raises InputError for open shapes."""
    for value in network.graph.inputs:
        if not is_known(value.type.shape):
            message = f"the shape of input '{value.name}' is not known, it is "
            message += network.shape_of(value)
            raise InputError(message, hint="give an example input")
    types = (value.type for value in network.graph.inputs)
    return tuple(jax.ShapeDtypeStruct(t.shape, jnp.dtype(t.dtype)) for t in types)


def arguments_of(inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments of a call: of inputs in order, a tuple of these, or a dict by name."""
    only: Any = inputs[0] if len(inputs) == 1 else None
    if isinstance(only, Mapping):
        return (), only
    return (only if isinstance(only, tuple) else tuple(inputs)), {}


def over_samples(
    what: str, samples: Iterable[Any], run: Callable[[tuple[Any, ...]], Any]
) -> Iterator[Any]:
    """Yield the result of a function of each sample's inputs, as `require_samples` has them.

    An InputError says which sample it is of, by `what` and number.
    """
    for number, sample in enumerate(samples):
        try:
            yield run(sample if isinstance(sample, tuple) else (sample,))  # pyright: ignore[reportUnknownArgumentType]
        except InputError as error:
            error.message = f"{what} {number}: {error.message}"
            raise


_LARGE = 64 << 10  # bytes from which a device takes an aligned array faster than it copies one


def copied(array: Any) -> Any:
    """Copy an array of numpy, which the caller may change while it is read; keep others.

    A call of 25 us would take 100 by `jnp.array`, and the first 0.1 s more to compile that.
    """
    if not isinstance(array, np.ndarray):
        return array
    if array.nbytes < _LARGE:
        return array.copy()
    copy = aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


def _kind(dtype: Any) -> str:
    """Return "f" for real numbers, "i" for integers, else numpy's letter ("b" for logical)."""
    if jnp.issubdtype(dtype, jnp.floating):
        return "f"
    return "i" if jnp.issubdtype(dtype, jnp.integer) else getattr(dtype, "kind", "V")


def _require_range(what: str, array: Any, dtype: np.dtype[Any]) -> None:
    bounds, given = jnp.iinfo(dtype), jnp.iinfo(array.dtype)
    if bounds.min <= given.min and given.max <= bounds.max:
        return
    if isinstance(array, Tracer | jax.ShapeDtypeStruct):
        raise InputError(
            f"{what} is traced with dtype {array.dtype}, whose values may not fit {dtype}",
            hint=f"convert it, if they do: x.astype('{dtype}')",
        )
    items = np.asarray(array)
    if items.size and (items.min() < bounds.min or items.max() > bounds.max):
        raise InputError(
            f"{what} holds values from {items.min()} to {items.max()}, which do not fit {dtype}"
        )


def require_one_length(inputs: Sequence[Any]) -> None:
    """Raise InputError for inputs whose first axes, of time, differ; and where there are none."""
    if not inputs:
        message = "a network without inputs has no time axis"
        raise InputError(message, hint="call step in a loop")
    if len({x.shape[0] for x in inputs}) > 1:
        lengths = ", ".join(str(x.shape[0]) for x in inputs)
        raise InputError(f"the inputs have different numbers of time steps: {lengths}")


def has_values(x: Any) -> bool:
    """Tell whether an array's values are here: it is neither traced nor partly on other hosts."""
    return not isinstance(x, Tracer) and getattr(x, "is_fully_addressable", True)


def require_values(verb: str, given: Mapping[str, Mapping[str, Any]], *, here: bool = True) -> None:
    """Raise InputError for arrays by label, of "params" or "state", that have no values.

    Nor may values be on other hosts if all are to be `here`.
    """
    for what, arrays in given.items():
        for label, array in arrays.items():
            if isinstance(array, Tracer):
                raise InputError(
                    f"{what}: '{label}' is traced, it has no values to store",
                    hint=f"{verb} outside of jax.jit and the like",
                )
            if here and isinstance(array, jax.Array) and not array.is_fully_addressable:
                raise InputError(
                    f"{what}: '{label}' is partly on other hosts",
                    hint="multihost_utils.process_allgather(params, tiled=True) is whole",
                )
