"""Matches the arguments of a call with the graph's inputs and variables, and checks them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpy.typing import ArrayLike

from lowering.extents import is_known
from lowering.graph import Graph, Parameter, StateVariable, Value
from nnef_jax.calls.array_conversion import as_array, converted_to_type, copied, is_array, is_of
from nnef_jax.errors import InputError, NnefError, raise_all
from nnef_jax.options import shown
from nnef_jax.reading.network import Network
from nnef_jax.wording.similar import did_you_mean


class ArrayType(Protocol):
    """A protocol for types of arrays. Such a type has a shape and a dtype.

    It is used in annotations instead of the class `jax.ShapeDtypeStruct`, because jax does not
    annotate the attributes of that class.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the extents of the array."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the array's items."""
        ...


# One input, passed by position, or a dict that maps names to all inputs.
Input = ArrayLike | Mapping[str, ArrayLike]
Sample = Input | tuple[ArrayLike, ...]  # all inputs of one call
Example = ArrayLike | ArrayType  # an input for which the type is enough
Params = Mapping[str, ArrayLike]  # by label
State = Mapping[str, ArrayLike]  # by label
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

    The returned arrays have the declared dtypes: an array of float64 is converted to float32.
    Arrays of numpy are copied. Each array has `leading` axes, such as an axis of time, before the
    axes of the declared shape. If `abstract` is true, an argument may be a `jax.ShapeDtypeStruct`.

    Raises InputError if the number of inputs, a name, a shape or the kind of a dtype is wrong, or
    if integers do not fit the declared dtype. One error lists the faults of all inputs. The values
    of traced integers are unknown. Traced integers are refused if their dtype has values that do
    not fit the declared dtype.
    """
    inputs = network.graph.inputs
    # This is a shortcut for most calls, which pass arrays of the declared types. The checks below
    # take as long as running a small network.
    has_all_by_position = not kwargs and len(args) == len(inputs)
    if has_all_by_position and not leading:
        pairs = zip(args, inputs, strict=True)
        have_declared_types = all(is_array(x) and is_of(x, value) for x, value in pairs)
        if have_declared_types:
            return list(map(copied, args))
    arguments = _by_name(network, args, kwargs)
    errors: list[NnefError] = []
    arrays: list[Any] = []
    for value in inputs:
        shown_name = f"input '{value.name}'"
        array = arguments[value.name]
        is_type = abstract and isinstance(array, jax.ShapeDtypeStruct)
        try:
            if not is_type:
                array = as_array(shown_name, array, value.type)
            declared_shape = network.shape_of(value)
            converted = converted_to_type(shown_name, array, value.type, leading, declared_shape)
            arrays.append(copied(converted))
        except InputError as error:
            error.span = network.frontend.spans().get(value.name)
            errors.append(error)
    if errors:
        raise_all(errors)
    return arrays


def _by_name(
    network: Network, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> dict[str, Any]:
    """Return a dict from names of inputs to the arguments of a call.

    Raises InputError unless each input is passed once.
    """
    inputs = network.graph.inputs
    names = [value.name for value in inputs]
    if len(args) == 1 and isinstance(args[0], Mapping):
        # Analyses pass all inputs as one dict by name.
        kwargs = {**args[0], **kwargs}
        args = ()
    has_key_that_is_no_input = "key" in kwargs and "key" not in names
    if has_key_that_is_no_input and is_key(kwargs["key"]):
        # equinox passes a random key to all layers. This network does not need the key.
        kwargs = {name: array for name, array in kwargs.items() if name != "key"}
    if len(args) > len(inputs):
        message = f"{len(args)} inputs are given, the graph takes {len(inputs)}: {', '.join(names)}"
        hint = ""
        if network.graph.states:
            hint = "step(state, ...) takes the state first, scan(..., state=state) by name"
        raise InputError(message, hint=hint)
    arguments: dict[str, Any] = dict(zip(names[: len(args)], args, strict=True))
    for name_or_alias, array in kwargs.items():
        name = name_or_alias
        if name not in names:
            name = _input_of_alias(network.graph, name_or_alias)
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


def _input_of_alias(graph: Graph, alias: str) -> str:
    """Return the name of the input that has the alias `alias`, or `alias` if no input has it."""
    value = graph.aliases.get(alias)
    if value is None or value not in graph.inputs:
        return alias
    return value.name


def is_key(x: object) -> bool:
    """Tell whether an object is a key of `jax.random`, or None in place of a key."""
    if x is None:
        return True
    dtype = getattr(x, "dtype", None)
    shape = getattr(x, "shape", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return shape == ()  # a key made by jax.random.key
    return dtype == jnp.uint32 and shape == (2,)  # a key of jax.random.PRNGKey


def bind_variables(
    shown_name: str,
    arrays: object,
    variables: Mapping[str, Parameter | StateVariable],
    needed: Sequence[str],
) -> dict[str, Any]:
    """Check the arrays of variables, and return a dict from labels to arrays.

    The arrays are converted to the declared dtypes, like inputs. Raises one InputError for
    all variables if labels, shapes or dtypes are wrong, or if a label is missing.

    Args:
        shown_name: the name of the argument that has the arrays: "params" or "state".
        arrays: a dict from labels to arrays.
        variables: maps labels to variables of the graph. No other labels may have arrays.
        needed: the labels that must have arrays.
    """
    by_label = _with_labels(shown_name, arrays, variables, needed)
    errors: list[NnefError] = []
    bound: dict[str, Any] = {}
    for label, array in by_label.items():
        variable = variables[label]
        if isinstance(array, jax.Array) and is_of(array, variable.value):
            bound[label] = array
            continue
        name = f"{shown_name}: '{label}'"
        type = variable.value.type
        try:
            bound[label] = converted_to_type(name, as_array(name, array, type), type)
        except InputError as error:
            error.span = variable.span
            errors.append(error)
    if errors:
        raise_all(errors)
    return bound


def _with_labels(
    shown_name: str, arrays: object, labels: Collection[str], needed: Sequence[str]
) -> Mapping[Any, Any]:
    """Return `arrays`, a dict by label.

    Raises InputError if `arrays` is no dict, lacks a label in `needed`, or has a label that is not
    in `labels`.
    """
    source = "model.params" if shown_name == "params" else "model.init_state()"
    hint = f"take {source} and replace values in it"
    if not isinstance(arrays, Mapping):
        message = f"{shown_name} must be a dict of arrays by label, it is {shown(arrays)}"
        raise InputError(message, hint=hint)
    by_label: Mapping[Any, Any] = arrays
    missing = [label for label in needed if label not in by_label]
    extra = [label for label in by_label if label not in labels]
    parts: list[str] = []
    if missing:
        parts.append(f"lacks {', '.join(sorted(missing))}")
    if extra:
        parts.append(f"has unknown {', '.join(sorted(map(str, extra)))}")
        hint = did_you_mean(str(extra[0]), [*labels]) or hint
    if parts:
        raise InputError(f"{shown_name} {' and '.join(parts)}", hint=hint)
    return by_label


def in_order(
    inputs: Sequence[Value], args: tuple[_T, ...], kwargs: Mapping[str, _T]
) -> tuple[_T, ...] | None:
    """Return the arguments of a call in the order of the inputs.

    Returns None if the names or the number of arguments do not match.
    """
    names_after_args = [value.name for value in inputs[len(args) :]]
    if len(names_after_args) != len(kwargs):
        return None
    for name in names_after_args:
        if name not in kwargs:
            return None
    return (*args, *[kwargs[name] for name in names_after_args])


def declared(network: Network) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the declared types of a network's inputs. Raises InputError for an open shape."""
    for value in network.graph.inputs:
        if not is_known(value.type.shape):
            shape = network.shape_of(value)
            message = f"the shape of input '{value.name}' is not known, it is {shape}"
            raise InputError(message, hint="give an example input")
    return tuple(map(array_type, network.graph.inputs))


def array_type(value: Value) -> jax.ShapeDtypeStruct:
    """Return the type of a value of a graph as a `jax.ShapeDtypeStruct`."""
    return jax.ShapeDtypeStruct(value.type.shape, jnp.dtype(value.type.dtype))


def arguments_of(inputs: Sequence[Sample]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the positional and the keyword arguments of a call with these inputs.

    `inputs` has all inputs in order, or a single element: a tuple of all inputs, or a dict of all
    inputs by name.
    """
    sample: Any = inputs[0] if len(inputs) == 1 else None
    if isinstance(sample, Mapping):
        return (), sample
    if isinstance(sample, tuple):
        return sample, {}
    return tuple(inputs), {}


def over_samples(
    shown_name: str, samples: Iterable[Sample], run: Callable[[tuple[Input, ...]], _T]
) -> Iterator[_T]:
    """Yield the result of `run` for the inputs of each sample.

    An InputError of `run` is raised with a longer message, such as "sample 3: ..." if `shown_name`
    is "sample".
    """
    for number, sample in enumerate(samples):
        try:
            inputs: tuple[Any, ...] = sample if isinstance(sample, tuple) else (sample,)
            yield run(inputs)
        except InputError as error:
            error.message = f"{shown_name} {number}: {error.message}"
            raise


def require_one_length(inputs: Sequence[Any]) -> None:
    """Raise InputError if there are no inputs, or if their first axes (time) differ in length."""
    if not inputs:
        message = "a network without inputs has no time axis"
        raise InputError(message, hint="call step in a loop")
    lengths = [x.shape[0] for x in inputs]
    if len(set(lengths)) > 1:
        shown_lengths = ", ".join(map(str, lengths))
        raise InputError(f"the inputs have different numbers of time steps: {shown_lengths}")


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

    Args:
        verb: the user's action, such as "save", for the hint.
        trees: dicts of arrays by label, one for "params" and one for "state".
        must_be_on_host: whether an array that is partly on other hosts also raises the error.
    """
    for shown_name, arrays in trees.items():
        for label, array in arrays.items():
            if isinstance(array, Tracer):
                raise InputError(
                    f"{shown_name}: '{label}' is traced, it has no values to store",
                    hint=f"{verb} outside of jax.jit and the like",
                )
            is_on_other_hosts = isinstance(array, jax.Array) and not array.is_fully_addressable
            if must_be_on_host and is_on_other_hosts:
                raise InputError(
                    f"{shown_name}: '{label}' is partly on other hosts",
                    hint="multihost_utils.process_allgather(params, tiled=True) gathers them",
                )
