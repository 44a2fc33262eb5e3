"""Matches the arguments of a call with the graph's inputs and variables, and checks them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Protocol, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpy.typing import ArrayLike, NDArray

from lowering import aligned, rounding
from lowering.extents import UNKNOWN, Shape, is_known, shapes_differ, show
from lowering.graph import Parameter, StateVariable, TensorType, Value
from nnef_jax.errors import InputError, NnefError, raise_all
from nnef_jax.options import numpy_of, shown
from nnef_jax.reading.network import Network
from nnef_jax.wording.similar import did_you_mean


class ArrayType(Protocol):
    """The shape and dtype of an array, as `jax.ShapeDtypeStruct` has them.

    The protocol stands for `jax.ShapeDtypeStruct`, because jax does not annotate the types of the
    attributes of that class.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the extents of the array."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the array's items."""
        ...


# An input by position, or a dict of all inputs by name.
Input = ArrayLike | Mapping[str, ArrayLike]
Sample = Input | tuple[ArrayLike, ...]  # all inputs of one call
Example = ArrayLike | ArrayType  # an input for which the type is enough
Params = Mapping[str, ArrayLike]  # by label
State = Mapping[str, ArrayLike]  # by label
_Array = jax.Array | NDArray[Any]
_T = TypeVar("_T")


def bind_inputs(
    network: Network,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    *,
    leading: int = 0,
    abstract: bool = False,
) -> list[Any]:
    """Match the arguments of a call with the graph's inputs, and return them in graph order.

    The arrays have the declared dtypes: a dtype of another width is converted, such as float64 to
    float32. Arrays of numpy are copied. Each array has `leading` axes, such as an axis of time,
    before the axes of the declared shape. If `abstract`, an argument may be a
    `jax.ShapeDtypeStruct`.

    Raises one InputError for all inputs if the number of inputs, a name, a shape or the kind of a
    dtype is wrong, or if integers do not fit the declared dtype. Traced integers, whose values are
    unknown, are refused if their dtype has values that do not fit.
    """
    inputs = network.graph.inputs
    # This is a shortcut for most calls, which pass arrays of the declared types. The checks below
    # take as long as running a small network.
    has_all_by_position = not kwargs and len(args) == len(inputs)
    if has_all_by_position and not leading:
        pairs = zip(args, inputs, strict=True)
        if all(_is_array(x) and _is_of(x, value) for x, value in pairs):
            return list(map(copied, args))
    arguments = _by_name(network, args, kwargs)
    errors: list[NnefError] = []
    arrays: list[Any] = []
    for value in inputs:
        what = f"input '{value.name}'"
        array = arguments[value.name]
        is_type = abstract and isinstance(array, jax.ShapeDtypeStruct)
        try:
            if not is_type:
                array = _as_array(what, array, value.type)
            shape = network.shape_of(value)
            arrays.append(copied(converted_to_type(what, array, value.type, leading, shape)))
        except InputError as error:
            error.span = network.frontend.spans().get(value.name)
            errors.append(error)
    if errors:
        raise_all(errors)
    return arrays


def _by_name(
    network: Network, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> dict[str, Any]:
    """Return the arguments of a call by the names of the inputs.

    Raises InputError unless each input is passed once.
    """
    inputs = network.graph.inputs
    names = [value.name for value in inputs]
    if len(args) == 1 and isinstance(args[0], Mapping):
        # Analyses pass all inputs as one dict by name.
        kwargs = {**args[0], **kwargs}
        args = ()
    has_other_key = "key" in kwargs and "key" not in names
    if has_other_key and is_key(kwargs["key"]):
        # equinox passes a random key to all layers.
        kwargs = {name: x for name, x in kwargs.items() if name != "key"}
    if len(args) > len(inputs):
        message = f"{len(args)} inputs are given, the graph takes {len(inputs)}: {', '.join(names)}"
        hint = "step(state, ...) takes the state first, scan(..., state=state) by name"
        raise InputError(message, hint=hint if network.graph.states else "")
    arguments: dict[str, Any] = dict(zip(names[: len(args)], args, strict=True))
    for name_or_alias, array in kwargs.items():
        name = name_or_alias
        alias = network.graph.aliases.get(name)
        if name not in names and alias is not None and alias in inputs:
            name = alias.name
        if name not in names:
            message = f"the graph has no input '{name}', its inputs are {', '.join(names)}"
            raise InputError(message, hint="a call has the options edit= and capture=")
        if name in arguments:
            raise InputError(f"input '{name}' is given by position and by name")
        arguments[name] = array
    missing = [name for name in names if name not in arguments]
    if missing:
        message = f"{_inputs(missing)} missing, the graph takes {', '.join(names)}"
        raise InputError(message, span=network.frontend.spans().get(missing[0]))
    return arguments


def _inputs(names: Sequence[str]) -> str:
    """Return the start of a sentence about inputs, such as "inputs 'x' and 'y' are"."""
    quoted = ", ".join(map(repr, names))
    return f"inputs {quoted} are" if len(names) > 1 else f"input {quoted} is"


def is_key(x: object) -> bool:
    """Tell whether an object is a key of `jax.random` or None."""
    if x is None:
        return True
    dtype = getattr(x, "dtype", None)
    shape = getattr(x, "shape", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return shape == ()
    return dtype == jnp.uint32 and shape == (2,)


def bind_variables(
    what: str,
    arrays: object,
    variables: Mapping[str, Parameter | StateVariable],
    needed: Sequence[str],
) -> dict[str, Any]:
    """Check the arrays of variables, and return them by label in the declared dtypes.

    The arrays are converted like inputs. `what` is the name of the argument that has the arrays,
    for errors. Raises one InputError for all variables if labels, shapes or dtypes are wrong, or if
    a label in `needed` is missing.
    """
    source = "model.params" if what == "params" else "model.init_state()"
    hint = f"take {source} and replace values in it"
    if not isinstance(arrays, Mapping):
        message = f"{what} must be a dict of arrays by label, it is {shown(arrays)}"
        raise InputError(message, hint=hint)
    by_label: Mapping[Any, Any] = arrays
    missing = [label for label in needed if label not in by_label]
    extra = [label for label in by_label if label not in variables]
    if missing or extra:
        parts: list[str] = []
        if missing:
            parts.append(f"lacks {', '.join(sorted(missing))}")
        if extra:
            parts.append(f"has unknown {', '.join(sorted(map(str, extra)))}")
            hint = did_you_mean(str(extra[0]), [*variables]) or hint
        raise InputError(f"{what} {' and '.join(parts)}", hint=hint)
    errors: list[NnefError] = []
    bound: dict[str, Any] = {}
    for label, array in by_label.items():
        variable = variables[label]
        if isinstance(array, jax.Array) and _is_of(array, variable.value):
            bound[label] = array
            continue
        name = f"{what}: '{label}'"
        type = variable.value.type
        try:
            bound[label] = converted_to_type(name, _as_array(name, array, type), type)
        except InputError as error:
            error.span = variable.span
            errors.append(error)
    if errors:
        raise_all(errors)
    return bound


@cache
def _dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype with a name. Results are cached.

    Comparing an array's dtype with a name would look the name up each time.
    """
    return jnp.dtype(name)


def _is_array(x: object) -> TypeGuard[_Array]:
    return type(x) is np.ndarray or isinstance(x, jax.Array)


def _is_of(array: _Array, value: Value) -> bool:
    return array.shape == value.type.shape and array.dtype == _dtype(value.type.dtype)


def _as_array(what: str, array: object, type: TensorType) -> _Array:
    if _is_array(array):
        return array
    result = numpy_of(array, InputError, f"{what} is not an array")
    if result.dtype.kind not in "biufcV":
        raise InputError(f"{what} must be an array, it is {shown(array)}")
    is_literal = isinstance(array, int | list | tuple) and not hasattr(array, "dtype")
    are_integers = is_literal and result.dtype.kind in "iu"
    if are_integers and _kind(_dtype(type.dtype)) == "f":
        return result.astype(np.float32)
    return result


def _require_shape(
    what: str, array: _Array | jax.ShapeDtypeStruct, type: TensorType, leading: int, declared: str
) -> None:
    shape = array.shape[leading:]
    if len(array.shape) >= leading and not shapes_differ(shape, type.shape):
        return
    after = " after the axis of time" if leading else ""
    message = f"{what} has shape {show(array.shape)}, the graph declares {declared}{after}"
    raise InputError(message, hint=_hint_for_shape(what, shape, type.shape))


def _hint_for_shape(what: str, shape: tuple[int, ...], declared: Shape) -> str:
    """Return a hint for an array whose shape is not the declared one.

    `what` names the input or variable, as in "input 'x'".
    """
    if not what.startswith("input"):
        source = "init_state()" if what.startswith("state") else "params"
        return f"give an array of the shape that model.{source} has"

    known_extents = Counter[Any](extent for extent in declared if extent is not UNKNOWN)
    absent_extents = known_extents - Counter(shape)
    if len(shape) == len(declared) and not absent_extents:
        return "its axes are in another order: transpose it, networks mostly take [N,C,H,W]"

    if len(shape) + 1 == len(declared):
        return (
            "an axis is missing, mostly the batch: model(x[None]). jax.vmap removes it: call the "
            "model on the batch without vmap, or on x[None] within it"
        )
    return (
        "load(..., input_shapes=...), or --shape of a command, declares another; jax.vmap adds a "
        "batch axis"
    )


def converted_to_type(
    what: str, array: Any, type: TensorType, leading: int = 0, declared: str = ""
) -> Any:
    """Convert an array, or the type of an array, to the dtype of `type`.

    Raises InputError if the shape differs, or if the dtype is of another kind. `leading` is the
    number of axes before the axes of `type`. `declared` is the text for the shape of `type` in
    errors, with the names of open extents.
    """
    _require_shape(what, array, type, leading, declared or show(type.shape))
    dtype = _dtype(type.dtype)
    if array.dtype == dtype:
        return array
    kind = _kind(dtype)
    if _kind(array.dtype) != kind:
        message = f"{what} has dtype {array.dtype}, the graph declares {dtype}"
        raise InputError(message, hint=f"convert it: x.astype('{dtype}')")
    if kind == "i":
        _require_range(what, array, dtype)
    if isinstance(array, jax.ShapeDtypeStruct):
        return array.update(dtype=dtype)
    if isinstance(array, np.ndarray):
        return rounding.saturated(array, dtype)
    return _narrowed(array, dtype)


@partial(jax.jit, static_argnums=1)
def _narrowed(x: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
    """Convert a jax array to a narrower dtype in such a way that finite numbers stay finite.

    `rounding.saturated` does the same for a numpy array.
    """
    result = x.astype(dtype)
    if _kind(dtype) != "f":
        return result
    largest = jnp.finfo(dtype).max
    overflows = jnp.isinf(result) & jnp.isfinite(x)
    limit = jnp.where(x < 0, -largest, largest)
    return jnp.where(overflows, limit, result)


def in_order(
    inputs: Sequence[Value], args: tuple[_T, ...], kwargs: Mapping[str, _T]
) -> tuple[_T, ...] | None:
    """Return the arguments of a call in the order of the inputs.

    Return None if the names or the number of arguments do not match.
    """
    names = [value.name for value in inputs[len(args) :]]
    if len(names) != len(kwargs) or any([name not in kwargs for name in names]):
        return None
    return (*args, *[kwargs[name] for name in names])


def declared(network: Network) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the declared types of a network's inputs. Raises InputError for an open shape."""
    for value in network.graph.inputs:
        if not is_known(value.type.shape):
            message = f"the shape of input '{value.name}' is not known, it is "
            message += network.shape_of(value)
            raise InputError(message, hint="give an example input")
    return tuple(map(array_type, network.graph.inputs))


def array_type(value: Value) -> jax.ShapeDtypeStruct:
    """Return the type of a value of a graph as a `jax.ShapeDtypeStruct`."""
    return jax.ShapeDtypeStruct(value.type.shape, jnp.dtype(value.type.dtype))


def arguments_of(inputs: Sequence[Sample]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the positional and the keyword arguments of a call with these inputs.

    `inputs` are either the inputs in order, or a single element, which is a tuple of all inputs or
    a dict of all inputs by name.
    """
    sample: Any = inputs[0] if len(inputs) == 1 else None
    if isinstance(sample, Mapping):
        return (), sample
    if isinstance(sample, tuple):
        return sample, {}
    return tuple(inputs), {}


def over_samples(
    what: str, samples: Iterable[Sample], run: Callable[[tuple[Input, ...]], _T]
) -> Iterator[_T]:
    """Yield the result of `run` for the inputs of each sample.

    If `run` raises an InputError, `what` and the number of the sample are put before its message.
    """
    for number, sample in enumerate(samples):
        try:
            inputs: tuple[Any, ...] = sample if isinstance(sample, tuple) else (sample,)
            yield run(inputs)
        except InputError as error:
            error.message = f"{what} {number}: {error.message}"
            raise


_LARGE = 64 << 10  # in bytes; a device uses an aligned array of this size without another copy


def copied(array: _T) -> _T:
    """Copy a numpy array, since the caller may change the array later.

    Other values are returned unchanged. A copy by `jnp.array` would be slower: a call of 25 us
    would take 100 us, and the first call would compile for 0.1 s.
    """
    if not isinstance(array, np.ndarray):
        return array
    if array.nbytes < _LARGE:
        return array.copy()
    copy: Any = aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


def _kind(dtype: np.dtype[Any]) -> str:
    """Return the kind of a dtype: "f" for floating point, "i" for integers, else numpy's letter."""
    if jnp.issubdtype(dtype, jnp.floating):
        return "f"
    if jnp.issubdtype(dtype, jnp.integer):
        return "i"
    return getattr(dtype, "kind", "V")


def _require_range(
    what: str, array: _Array | jax.ShapeDtypeStruct, dtype: np.dtype[np.generic]
) -> None:
    bounds = jnp.iinfo(dtype)
    array_bounds = jnp.iinfo(array.dtype)
    all_values_fit = bounds.min <= array_bounds.min and array_bounds.max <= bounds.max
    if all_values_fit:
        return
    if isinstance(array, Tracer | jax.ShapeDtypeStruct):
        message = f"{what} is traced with dtype {array.dtype}, whose values may not fit {dtype}"
        raise InputError(message, hint=f"if they do fit, convert it: x.astype('{dtype}')")
    items = np.asarray(array)
    if not items.size:
        return
    low = items.min()
    high = items.max()
    fits = bounds.min <= low and high <= bounds.max
    if not fits:
        raise InputError(f"{what} holds values from {low} to {high}, which do not fit {dtype}")


def require_one_length(inputs: Sequence[Any]) -> None:
    """Raise InputError if there are no inputs, or if their first axes (time) differ in length."""
    if not inputs:
        message = "a network without inputs has no time axis"
        raise InputError(message, hint="call step in a loop")
    if len({x.shape[0] for x in inputs}) > 1:
        lengths = ", ".join(str(x.shape[0]) for x in inputs)
        raise InputError(f"the inputs have different numbers of time steps: {lengths}")


def has_values(x: object) -> bool:
    """Tell whether all values of an array are on this host.

    The result is False if the array is traced, if it is only a type, or if parts of it are on other
    hosts.
    """
    if isinstance(x, Tracer | jax.ShapeDtypeStruct):
        return False
    return getattr(x, "is_fully_addressable", True)


def require_values(
    verb: str, trees: Mapping[str, Mapping[str, object]], *, must_be_on_host: bool = True
) -> None:
    """Raise InputError for a traced array in `trees`, since such an array has no values.

    `trees` has the arrays by label for "params" and for "state". `verb` names the user's action in
    the hint. If `must_be_on_host`, an array that is partly on other hosts also raises the error.
    """
    for what, arrays in trees.items():
        for label, array in arrays.items():
            if isinstance(array, Tracer):
                raise InputError(
                    f"{what}: '{label}' is traced, it has no values to store",
                    hint=f"{verb} outside of jax.jit and the like",
                )
            is_on_other_hosts = isinstance(array, jax.Array) and not array.is_fully_addressable
            if must_be_on_host and is_on_other_hosts:
                raise InputError(
                    f"{what}: '{label}' is partly on other hosts",
                    hint="multihost_utils.process_allgather(params, tiled=True) gathers them",
                )
