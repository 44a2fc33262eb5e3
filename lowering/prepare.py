"""Computes once the values that depend only on parameters, and shares them between programs.

    values = prepared(parts, parameters)          # once for each set of parameters
    outputs = parts.call(values, inputs)          # once for each call

A weight that a rule flips, transposes or scales is stored in the form that the kernel reads, and a
call contains no large constants. A recipe describes how a value is computed, and from which arrays.
Programs whose recipes are equal share the values, for example programs for inputs of other shapes.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import jax

from lowering.recipe import Recipe

if TYPE_CHECKING:
    from lowering.jaxpr_types import ClosedJaxpr
    from lowering.program import Program


class Preparing(Protocol):
    """The attributes and methods by which `prepared` computes values. `Split` has them.

    A prepared value is either a parameter or a value that is computed from parameters. For each
    prepared value, `sources` has the index of the parameter, or None if the value is computed.
    `recipe` describes the computed values.
    """

    @property
    def sources(self) -> Sequence[int | None]:
        """Return a parameter's index for each prepared value, or None for a computed value."""
        ...

    @property
    def recipe(self) -> Recipe:
        """Return the recipe, which describes how the computed values are computed."""
        ...

    def computed(self, chosen: Sequence[int], parameters: Sequence[jax.Array]) -> list[jax.Array]:
        """Return some of the computed values, for parameters that are no tracers.

        `chosen` has the indices of the returned values among the computed values.
        """
        ...


@dataclass(frozen=True)
class Split:
    """A program in two parts: `first` computes prepared values, and `call` uses them.

    Neither part is compiled. `lowering.prepared(parts, parameters)` returns the prepared values,
    which are shared with other programs. `parts.prepare` computes them, and
    `jax.eval_shape(parts.prepare, parameters)` returns their types. For a device that is not
    attached, use
    `jax.jit(parts.call).trace(values, inputs).lower(lowering_platforms=(parts.platform,))`.

    Args:
        sources: for each prepared value, its index among the parameters, or None if the value is
            computed.
        first: the program from parameters to computed values, or None if there are no computed
            values.
        call: a function that takes the prepared values and the inputs, as two lists, and
            returns the list of results.
        platform: jax's name of the platform, or None.
        make_recipe: a function that returns the recipe of the computed values, the same object
            in each call.
        later: the call as a jaxpr.
        options: a function that returns the compiler's options for the call. Its argument is
            True if the call is compiled alone, False if it is compiled in a user's function.
            The options are for `jax.jit(parts.call, compiler_options=...)`.
    """

    sources: tuple[int | None, ...]
    first: Program | None
    call: Callable[..., Any]
    platform: str | None
    make_recipe: Callable[[], Recipe]
    later: ClosedJaxpr | None = None
    options: Callable[[bool], dict[str, str]] = lambda is_alone: {}
    _compiled: dict[tuple[int, ...], Any] = field(
        default_factory=dict[tuple[int, ...], Any], compare=False, repr=False
    )

    @property
    def _first(self) -> Program:
        """Return `first`, which must not be None."""
        assert self.first is not None, "nothing is computed"
        return self.first

    @property
    def recipe(self) -> Recipe:
        """Return the recipe, which describes how the computed values are computed."""
        return self.make_recipe()

    def prepare(self, parameters: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """Return the prepared values of parameters. The parameters may be tracers."""
        computed = self.first(*parameters) if self.first else ()
        return assemble(self.sources, parameters, computed)

    def computed(self, chosen: Sequence[int], parameters: Sequence[jax.Array]) -> list[jax.Array]:
        """Return some of the computed values, for parameters that are no tracers.

        `chosen` has the indices of the returned values among the computed values.
        """
        if self.is_by_numpy(parameters):
            return self.recipe.computed(chosen, parameters)
        executable = self.compiled(chosen, parameters)
        return list(executable(list(parameters)))

    def is_by_numpy(self, parameters: Sequence[jax.Array]) -> bool:
        """Tell whether numpy computes the values from these parameters.

        Numpy does so if it can compute all values, and the parameters are on one CPU device.
        """
        return self.platform == "cpu" and self.recipe.is_for_numpy and _on_one(parameters)

    def compiled(
        self, chosen: Sequence[int], parameters: Sequence[jax.Array]
    ) -> jax.stages.Compiled:
        """Return an executable that computes the chosen values from parameters of these types.

        `chosen` has indices of computed values. The executable is compiled by `jax.jit`, and not
        under `jax.ensure_compile_time_eval`. There intermediate values would become constants, and
        each ReLU would read its zeros from memory.
        """
        key = tuple(chosen)
        if key not in self._compiled:
            self._compiled[key] = self.lower_first(parameters, key).compile()
        return self._compiled[key]

    def lower_first(
        self, parameters: Sequence[jax.Array], chosen: Sequence[int] | None = None
    ) -> jax.stages.Lowered:
        """Lower the program `first` by jax, for parameters of these types.

        `chosen` has the indices of the results to compute, by default of all results. On CPUs
        the executable is compiled without optimisation, since it runs once. ResNet-50 then takes
        1.7 s to compile and 0.3 s to run. With optimisation it takes 2.9 s to compile and 0.17 s
        to run.
        """
        options = {"xla_backend_optimization_level": 0} if self.platform == "cpu" else {}
        first = self._first
        if chosen is not None:
            first = first.part(first.arguments, [first.results[i] for i in chosen])

        def prepare(values: Sequence[jax.Array]) -> list[jax.Array]:
            return first(*values)

        return jax.jit(prepare, compiler_options=options).lower(list(parameters))


def _on_one(arrays: Sequence[object]) -> bool:
    """Tell whether all objects are jax arrays on the same CPU device of this process."""
    devices: set[Any] = set()
    for array in arrays:
        if not isinstance(array, jax.Array):
            return False
        devices |= array.sharding.device_set
    local_devices = {*jax.local_devices(backend="cpu")}
    return len(devices) < 2 and devices <= local_devices


def assemble(
    sources: Sequence[int | None], parameters: Sequence[jax.Array], computed: Iterable[jax.Array]
) -> tuple[jax.Array, ...]:
    """Return the prepared values: parameters and computed values, in the order of `sources`.

    An item of `sources` is the index of a parameter, or None for the next computed value. The
    compiled preparation returns no parameters, since it would copy them.
    """
    remaining_computed = iter(computed)
    values: list[jax.Array] = []
    for source in sources:
        if source is None:
            values.append(next(remaining_computed))
        else:
            values.append(parameters[source])
    return tuple(values)


# Maps a device and a digest to the computed value. A value is freed as soon as no model reads it.
_values: weakref.WeakValueDictionary[Any, jax.Array] = weakref.WeakValueDictionary()
# Maps the id of an array to a pair: a reference to the array, and the name of the array.
_names: dict[int, tuple[weakref.ref[jax.Array], str]] = {}
_name_numbers = itertools.count()


def prepared(
    parts: Preparing,
    parameters: Sequence[jax.Array],
    where: Hashable = None,
    compute: Callable[[Sequence[int], Sequence[jax.Array]], Sequence[jax.Array]] | None = None,
) -> tuple[jax.Array, ...]:
    """Return the prepared values of parameters. The call must not be under tracing.

    Values are shared with other programs that have prepared them and still use them. In a
    trace, use `Split.prepare` instead.

    Args:
        parts: the preparation.
        parameters: arrays of jax.
        where: the device or sharding of the values, needed if there are no parameters.
        compute: a function that computes the values that are not shared, by default
            `parts.computed`.
    """
    if None not in parts.sources:
        return assemble(parts.sources, parameters, computed=())  # all values are parameters
    # Each computed value has a key: the devices, and a digest of its steps and parameters.
    devices = frozenset(map(_device_key, parameters)) or where
    digests = parts.recipe.digests(list(map(_unique_name, parameters)))
    keys = [(devices, digest) for digest in digests]
    values: dict[Any, Any] = {key: _values.get(key) for key in keys}
    index_of_missing: dict[Any, int] = {}
    for i, key in enumerate(keys):
        if _is_gone(values[key]):
            index_of_missing[key] = i
    if index_of_missing:
        compute_values = compute or parts.computed
        new_values = compute_values([*index_of_missing.values()], parameters)
        for key, new_value in zip(index_of_missing, new_values, strict=True):
            # Another thread may have stored a value in the meantime. If so, this value is shared.
            value = _values.setdefault(key, new_value)
            if _is_gone(value):
                value = new_value
                _values[key] = value
            values[key] = value
    return assemble(parts.sources, parameters, [values[key] for key in keys])


def _is_gone(value: jax.Array | None) -> bool:
    """Tell whether an array is missing, or was deleted when a user donated it."""
    return value is None or value.is_deleted()


def _device_key(array: jax.Array) -> Hashable:
    """Return a key for the device or mesh of an array.

    Values that are prepared from arrays with equal keys are on one device or mesh.
    """
    return array.committed, getattr(array.sharding, "mesh", array.sharding)


def _unique_name(array: jax.Array) -> str:
    """Return a name that belongs to one array only, and not to a later array with the same id."""
    key = id(array)
    reference, name = _names.get(key, (None, ""))
    if reference is not None and reference() is array:
        return name

    def forget(dead: weakref.ref[jax.Array]) -> None:
        """Remove the name when the array is freed, unless a later array has the id by then."""
        latest, _ = _names.get(key, (None, ""))
        if latest is dead:
            _names.pop(key, None)

    name = f"array {next(_name_numbers)}"
    _names[key] = weakref.ref(array, forget), name
    return name


def unprepared(call: Callable[..., Any], count: int) -> Split:
    """Return a `Split` that prepares nothing, so that `call` gets the parameters themselves.

    `call` takes two lists: `count` parameters, and the inputs.
    """
    return Split(
        sources=tuple(range(count)),
        first=None,
        call=call,
        platform=None,
        make_recipe=lambda: Recipe(count, steps=(), results=()),
    )
