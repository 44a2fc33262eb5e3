"""Prepares parameters: values that depend on them alone are computed once, and shared.

    values = prepared(parts, parameters)          # once for each set of parameters
    outputs = parts.call(values, inputs)          # once for each call

So a weight that a rule flips, transposes or scales is stored as the kernel wants it, and no
constant of any size is part of a call. A recipe says how a value is computed, and of which arrays.
Programs of other shapes, and other entries, share equal values.
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
    from lowering.program import Program


class Preparing(Protocol):
    """Computes prepared values.

    `sources` has an item for each of them: the index of a parameter, or None for the next one that
    is computed, by the `recipe`.
    """

    @property
    def sources(self) -> Sequence[int | None]:
        """Return where each value is from."""
        ...

    @property
    def recipe(self) -> Recipe:
        """Return how the values that are computed are."""
        ...

    def computed(self, chosen: Sequence[int], parameters: Sequence[Any]) -> list[jax.Array]:
        """Compute some of the values that are no parameters, by index, outside of any trace."""
        ...


@dataclass(frozen=True)
class Split:
    """Holds a program in two parts: `first` prepares values, `call` computes results with them.

    Neither of them is compiled. `call` takes prepared values and inputs, each a list, and returns a
    list. Values are those of `lowering.prepared`, or of `prepare`, whose types are
    `jax.eval_shape(parts.prepare, parameters)`. `jax.jit(parts.call).trace(values, inputs)` has
    `.lower(lowering_platforms=(parts.platform,))`, for a device that is not there. `first` is
    None where all values are parameters as they are. `make_recipe` returns the recipe of others,
    the same each time. `later` is the call as a jaxpr. `options` returns the compiler's for
    the call, which is compiled alone (True) or in a function of a user's (False): jax takes them
    as `jax.jit(parts.call, compiler_options=parts.options(True))`.
    """

    sources: tuple[int | None, ...]
    first: Program | None
    call: Callable[..., Any]
    platform: str | None
    make_recipe: Callable[[], Recipe]
    later: Any = None
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
        """Return the recipe of the values that are computed."""
        return self.make_recipe()

    def prepare(self, parameters: Sequence[Any]) -> tuple[Any, ...]:
        """Return the prepared values of parameters, which may be traced."""
        return assemble(self.sources, parameters, self.first(*parameters) if self.first else ())

    def computed(self, chosen: Sequence[int], parameters: Sequence[Any]) -> list[jax.Array]:
        """Compute some of the values that are no parameters, by index, outside of any trace."""
        if self.is_by_numpy(parameters):
            return self.recipe.computed(chosen, parameters)
        return list(self.compiled(chosen, parameters)(list(parameters)))

    def is_by_numpy(self, parameters: Sequence[Any]) -> bool:
        """Tell whether numpy computes values of these parameters: on a CPU, if it can."""
        return self.platform == "cpu" and self.recipe.is_numpys and _on_one(parameters)

    def compiled(self, chosen: Sequence[int], parameters: Sequence[Any]) -> jax.stages.Compiled:
        """Return an executable for some of the values of such parameters, compiled once.

        `jax.ensure_compile_time_eval` would turn what is traced within into constants: each ReLU
        then reads its zeros from memory.
        """
        key = tuple(chosen)
        if key not in self._compiled:
            self._compiled[key] = self.lower_first(parameters, key).compile()
        return self._compiled[key]

    def lower_first(
        self, parameters: Sequence[Any], chosen: Sequence[int] | None = None
    ) -> jax.stages.Lowered:
        """Lower `first` by jax, or the part that computes some of its results, for such parameters.

        It is compiled and run once. On CPUs compiling takes longer: ResNet-50 2.9 s, then 0.17 to
        run; unoptimised 1.7 and 0.3.
        """
        options = {"xla_backend_optimization_level": 0} if self.platform == "cpu" else {}
        first = self._first
        if chosen is not None:
            first = first.part(first.arguments, [first.results[i] for i in chosen])

        def prepare(values: Sequence[Any]) -> list[Any]:
            return first(*values)

        return jax.jit(prepare, compiler_options=options).lower(list(parameters))


def _on_one(arrays: Sequence[Any]) -> bool:
    """Tell whether arrays are on one CPU of this process."""
    devices: set[Any] = set()
    for x in arrays:
        if not isinstance(x, jax.Array):
            return False
        devices |= x.sharding.device_set
    return len(devices) < 2 and devices <= {*jax.local_devices(backend="cpu")}


def assemble(
    sources: Sequence[int | None], parameters: Sequence[Any], computed: Iterable[Any]
) -> tuple[Any, ...]:
    """Join computed arrays and parameters, which a compiled function would have copied."""
    results, values = iter(computed), list[Any]()
    for source in sources:
        values.append(next(results) if source is None else parameters[source])
    return tuple(values)


# By the places of arrays, and the digest of how a value is computed. Who reads a value holds it.
_values: weakref.WeakValueDictionary[Any, jax.Array] = weakref.WeakValueDictionary()
_names: dict[int, tuple[weakref.ref[Any], str]] = {}  # by the identity of an array
_count = itertools.count()


def prepared(
    parts: Preparing,
    parameters: Sequence[jax.Array],
    where: Hashable = None,
    compute: Callable[[Sequence[int], Sequence[Any]], Sequence[jax.Array]] | None = None,
) -> tuple[jax.Array, ...]:
    """Return the prepared values of arrays of jax, outside of any trace.

    Values that somebody holds already are shared; `Split.prepare` computes its own, in a trace too.
    `compute` computes those that nobody holds, by default the parts do. `where` is the place of
    values if there are no arrays.
    """
    if None not in parts.sources:
        return assemble(parts.sources, parameters, ())
    places = frozenset(map(_place, parameters)) or where
    digests = parts.recipe.digests(list(map(_name, parameters)))
    keys = list(zip(itertools.repeat(places), digests))
    values = dict(zip(keys, map(_values.get, keys), strict=True))
    missing: dict[Any, int] = {}
    for i, key in enumerate(keys):
        if _is_gone(values[key]):
            missing[key] = i
    if missing:
        computed = (compute or parts.computed)([*missing.values()], parameters)
        for key, x in zip(missing, computed, strict=True):
            if _is_gone(value := _values.setdefault(key, x)):
                _values[key] = value = x
            values[key] = value
    return assemble(parts.sources, parameters, map(values.get, keys))


def _is_gone(value: jax.Array | None) -> bool:
    return value is None or value.is_deleted()  # by a user who donates what `Model.prepare` gave


def _place(array: jax.Array) -> Hashable:
    """Return where an array is, and values of it are: neither moves along with other arrays."""
    return array.committed, getattr(array.sharding, "mesh", array.sharding)


def _name(array: Any) -> str:
    """Return a name that no other array has or will have."""
    key = id(array)
    reference, name = _names.get(key, (None, ""))
    if reference is None or reference() is not array:

        def forget(dead: weakref.ref[Any]) -> None:
            if _names.get(key, (None,))[0] is dead:
                _names.pop(key, None)

        name = f"array {next(_count)}"
        _names[key] = weakref.ref(array, forget), name
    return name


def whole(call: Callable[..., Any], count: int) -> Split:
    """Return a function of parameters, so many, and inputs as a split that prepares nothing."""
    return Split(tuple(range(count)), None, call, None, lambda: Recipe(count, (), ()))
