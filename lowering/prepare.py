"""Prepares parameters: computes the values that depend on parameters alone once, and shares them.

    values = prepared(parts, parameters)          # once for each set of parameters
    outputs = parts.call(values, inputs)          # once for each call

A weight that a rule flips, transposes or scales is stored in the form that the kernel reads, and a
call contains no large constants. A recipe describes how a value is computed, and from which arrays.
Programs for other shapes and other entries share the values whose recipes are equal.
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
    """Computes prepared values.

    A prepared value is a parameter or a computed value. `sources` has an item for each prepared
    value: the index of the parameter, or None for the next computed value. `recipe` describes the
    computed values.
    """

    @property
    def sources(self) -> Sequence[int | None]:
        """Return the source of each value."""
        ...

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of the computed values."""
        ...

    def computed(self, chosen: Sequence[int], parameters: Sequence[jax.Array]) -> list[jax.Array]:
        """Compute the values with these indices among the computed ones, outside of any trace."""
        ...


@dataclass(frozen=True)
class Split:
    """A program in two parts: `first` computes prepared values, `call` the results from them.

    Neither part is compiled. `lowering.prepared(parts, parameters)` returns the values, shared with
    other programs; `parts.prepare` computes them, and `jax.eval_shape(parts.prepare, parameters)`
    returns their types. For a device that is not attached, use
    `jax.jit(parts.call).trace(values, inputs).lower(lowering_platforms=(parts.platform,))`.

    Args:
        sources: for each prepared value, the index of the parameter that it is, or None.
        first: the program from parameters to computed values; None if there are no such values.
        call: takes prepared values and inputs, two lists, and returns a list.
        platform: jax's name of the platform, or None.
        make_recipe: returns the recipe of the computed values, the same object each time.
        later: the call as a jaxpr.
        options: returns the compiler's options for the call, if it is compiled alone (True) or in a
            user's function (False), for `jax.jit(parts.call, compiler_options=...)`.
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
        assert self.first is not None, "nothing is computed"
        return self.first

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of the computed values."""
        return self.make_recipe()

    def prepare(self, parameters: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """Return the prepared values of parameters, which may be tracers."""
        computed = self.first(*parameters) if self.first else ()
        return assemble(self.sources, parameters, computed)

    def computed(self, chosen: Sequence[int], parameters: Sequence[jax.Array]) -> list[jax.Array]:
        """Compute the values with these indices among the computed ones, outside of any trace."""
        if self.is_by_numpy(parameters):
            return self.recipe.computed(chosen, parameters)
        return list(self.compiled(chosen, parameters)(list(parameters)))

    def is_by_numpy(self, parameters: Sequence[jax.Array]) -> bool:
        """Tell whether numpy computes the values: on a CPU, if it can compute all of them."""
        return self.platform == "cpu" and self.recipe.is_for_numpy and _on_one(parameters)

    def compiled(
        self, chosen: Sequence[int], parameters: Sequence[jax.Array]
    ) -> jax.stages.Compiled:
        """Return an executable for the chosen values, for parameters of these types.

        `jax.ensure_compile_time_eval` is no alternative: values that are traced under it become
        constants, and each ReLU would read its zeros from memory.
        """
        key = tuple(chosen)
        if key not in self._compiled:
            self._compiled[key] = self.lower_first(parameters, key).compile()
        return self._compiled[key]

    def lower_first(
        self, parameters: Sequence[jax.Array], chosen: Sequence[int] | None = None
    ) -> jax.stages.Lowered:
        """Lower `first` by jax, or its part for the chosen results, for parameters of these types.

        On CPUs the executable is not optimised, since it runs once: ResNet-50 takes 1.7 s to
        compile and 0.3 s to run, instead of 2.9 and 0.17.
        """
        options = {"xla_backend_optimization_level": 0} if self.platform == "cpu" else {}
        first = self._first
        if chosen is not None:
            first = first.part(first.arguments, [first.results[i] for i in chosen])

        def prepare(values: Sequence[jax.Array]) -> list[jax.Array]:
            return first(*values)

        return jax.jit(prepare, compiler_options=options).lower(list(parameters))


def _on_one(arrays: Sequence[object]) -> bool:
    """Tell whether all arrays are on one CPU device of this process."""
    devices: set[Any] = set()
    for x in arrays:
        if not isinstance(x, jax.Array):
            return False
        devices |= x.sharding.device_set
    return len(devices) < 2 and devices <= {*jax.local_devices(backend="cpu")}


def assemble(
    sources: Sequence[int | None], parameters: Sequence[jax.Array], computed: Iterable[jax.Array]
) -> tuple[jax.Array, ...]:
    """Return prepared values: parameters and computed values, in the order of `sources`.

    A compiled function that returned all of them would copy the parameters.
    """
    results = iter(computed)
    values: list[jax.Array] = []
    for source in sources:
        if source is None:
            values.append(next(results))
        else:
            values.append(parameters[source])
    return tuple(values)


# By device, and digest of the value. A value lives as long as a model that reads it.
_values: weakref.WeakValueDictionary[Any, jax.Array] = weakref.WeakValueDictionary()
_names: dict[int, tuple[weakref.ref[jax.Array], str]] = {}  # by id of the array
_count = itertools.count()


def prepared(
    parts: Preparing,
    parameters: Sequence[jax.Array],
    where: Hashable = None,
    compute: Callable[[Sequence[int], Sequence[jax.Array]], Sequence[jax.Array]] | None = None,
) -> tuple[jax.Array, ...]:
    """Return the prepared values of parameters, outside of any trace.

    Values that another program has prepared and still uses are shared. In a trace, use
    `Split.prepare`.

    Args:
        parts: the preparation.
        parameters: arrays of jax.
        where: the device or sharding of the values, if there are no parameters.
        compute: computes the values that are not shared, by default `parts.computed`.
    """
    if None not in parts.sources:
        return assemble(parts.sources, parameters, ())
    places = frozenset(map(_place, parameters)) or where
    digests = parts.recipe.digests(list(map(_name, parameters)))
    keys = list(zip(itertools.repeat(places), digests))
    values: dict[Any, Any] = dict(zip(keys, map(_values.get, keys), strict=True))
    missing: dict[Any, int] = {}
    for i, key in enumerate(keys):
        if _is_gone(values[key]):
            missing[key] = i
    if missing:
        computed = (compute or parts.computed)([*missing.values()], parameters)
        for key, x in zip(missing, computed, strict=True):
            value = _values.setdefault(key, x)  # another thread may have stored it since
            if _is_gone(value):
                _values[key] = value = x
            values[key] = value
    return assemble(parts.sources, parameters, map(values.__getitem__, keys))


def _is_gone(value: jax.Array | None) -> bool:
    return value is None or value.is_deleted()  # a user may donate the values of `Model.prepare`


def _place(array: jax.Array) -> Hashable:
    """Return the key of an array's device or mesh; prepared values are on the same device."""
    return array.committed, getattr(array.sharding, "mesh", array.sharding)


def _name(array: jax.Array) -> str:
    """Return a name that no other array has, not even a later one with the same id."""
    key = id(array)
    reference, name = _names.get(key, (None, ""))
    if reference is None or reference() is not array:

        def forget(dead: weakref.ref[jax.Array]) -> None:
            if _names.get(key, (None,))[0] is dead:
                _names.pop(key, None)

        name = f"array {next(_count)}"
        _names[key] = weakref.ref(array, forget), name
    return name


def unprepared(call: Callable[..., Any], count: int) -> Split:
    """Return a split that prepares nothing: `call` takes `count` parameters, and inputs."""
    return Split(tuple(range(count)), None, call, None, lambda: Recipe(count, (), ()))
