"""All of a model but its arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.graph import Parameter, StateVariable
from nnef_jax.call_arguments import bind_inputs, bind_variables, declared
from nnef_jax.execution.compiler import Compiler
from nnef_jax.execution.functions import Entry, Functions
from nnef_jax.execution.host_profile import Host
from nnef_jax.execution.meshes import Layout
from nnef_jax.execution.run_options import Prepared, RunOptions
from nnef_jax.execution.threads import Once
from nnef_jax.network import Network

if TYPE_CHECKING:
    from nnef_jax.execution.disk_cache import DiskCache


class Definition:
    """A network and how it is run, with what is compiled for any parameters.

    `labels` and `states` name the arrays of a model. The network's data are left out, but for the
    parameters that nothing reads: they are `unread` and stay on the host, if options do not say
    that a model has them too.

    It is compared by content, so that what jax compiles for a model is for all equal ones, and
    pickles without what is compiled.
    """

    def __init__(
        self,
        network: Network,
        options: RunOptions,
        cache: DiskCache | None,
        layout: Layout | None = None,
    ) -> None:
        left_out = frozenset[str]() if options.unused else network.unused
        # Kernels for CPUs join and transpose weights, which moves what is sharded.
        runs = replace(options, optimize=False) if layout and layout.specs else options
        self.unread: Mapping[str, Any] = {x: network.data[x] for x in left_out}
        self.network = network = replace(network, data={})  # which would keep what is on the host
        self.options = options
        self.cache = cache
        self.layout = layout
        parameters = [p for p in network.graph.parameters if p.label not in left_out]
        self.labels = tuple(p.label for p in parameters)
        computed = network.computed_starts
        self.states = tuple(s.label for s in network.graph.states if s.label not in computed)
        host = Host(network.graph, runs, cache and cache.directory)
        functions = self.functions = Functions(network, runs, host)
        self.compiler = Compiler(network.graph, runs, cache, host)
        self.made = Once()  # what is compiled for any parameters
        self.outputs = Entry(functions, layout, "outputs")
        self.map = Entry(functions, layout, "map")
        self.step = Entry(functions, layout, "step")
        self.scan = Entry(functions, layout, "scan")

    @property
    def initial(self) -> Any:
        """Return the function that computes what variables start with, which jax compiles."""
        return self.made.get("initial", lambda: jax.jit(self.functions.initial, static_argnums=2))

    def with_unread(self, arrays: Mapping[str, Any]) -> Definition:
        """Return the same, sharing what is compiled, with other arrays that nothing reads."""
        if not arrays:
            return self
        other = Definition.__new__(Definition)
        other.__dict__ = self.__dict__ | {"unread": {**self.unread, **arrays}}
        other.__dict__.pop("_content", None)
        return other

    def over(self, layout: Layout) -> Definition:
        """Return the same for models that live on a mesh."""
        return Definition(self._with_unread_data(), self.options, self.cache, layout)

    def _with_unread_data(self) -> Network:
        return replace(self.network, data=self.unread, _specialised={})

    def bind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], time_axes: int = 0
    ) -> list[Any]:
        """Return the inputs of a call in graph order, on the mesh if there is one.

        Raises InputError as `bind_inputs` does.
        """
        if self.layout:
            return self.layout.bind(self.network, args, kwargs, time_axes)
        return bind_inputs(self.network, args, kwargs, leading=time_axes)

    def types(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the types of inputs, given arrays or types, or those that are declared."""
        given = args if args or kwargs else declared(self.network)
        return bind_inputs(self.network, given, kwargs, abstract=True)

    def check_params(self, params: Any, *, all: bool = False, stored: bool = False) -> Any:
        """Check parameters, and place on devices those that the network needs, or `all` of them."""
        is_prepared = isinstance(params, Prepared)
        given = params.of(self).params if is_prepared else params
        bound = bind_variables("params", given, self.parameters, self.needed)
        if is_prepared:
            return bound if all or stored else params.on(bound)
        if not stored and self.layout:
            bound = self.layout.put_params(bound)
        unused = len(bound) - len(self.needed)
        return {x: bound[x] for x in self.needed} if unused and not all else bound

    def check_state(self, state: Any, labels: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the arrays of all state variables, or of those of some labels."""
        known = self.variables
        states = {x: known[x] for x in (known if labels is None else labels)}
        bound = bind_variables("state", state, states, list(states))
        arrays = ((label, bound[label]) for label in states)  # jnp.asarray takes 1 us of any array
        return {n: x if isinstance(x, jax.Array) else jnp.asarray(x) for n, x in arrays}

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters of the graph by label, those that nothing reads among them."""
        return {parameter.label: parameter for parameter in self.network.graph.parameters}

    @cached_property
    def needed(self) -> list[str]:
        """Return the labels of the parameters that outputs or states depend on."""
        return [label for label in self.parameters if label not in self.network.unused]

    @cached_property
    def variables(self) -> dict[str, StateVariable]:
        """Return the state variables of the graph by label, sorted."""
        return {x.label: x for x in sorted(self.network.graph.states, key=lambda x: x.label)}

    def __reduce__(self) -> tuple[Any, ...]:
        # Devices do not pickle: what comes of a model on a mesh is on none.
        return Definition, (self._with_unread_data(), self.options, self.cache)

    def __eq__(self, other: object) -> bool:
        """Tell whether models of both on the same arrays are the same, wherever they are from."""
        return self is other or (isinstance(other, Definition) and self._content == other._content)

    def __hash__(self) -> int:
        return hash(self._content)

    def __repr__(self) -> str:
        return f"<{self.network.graph.name}>"  # a part of the repr of a tree

    @cached_property
    def _content(self) -> tuple[object, ...]:
        """Return the content for comparison: a digest, and objects."""
        from nnef_jax.execution.cache_key import described

        network, found = self.network, self.network.options
        frontend = network.frontend
        shapes = sorted((name, *shape) for name, shape in found.input_shapes.items())
        fixed = found.values.items()
        values = sorted((name, x.dtype.name, x.shape, x.tobytes()) for name, x in fixed)
        settings = (
            found.expand,
            found.real,
            found.rounds,
            found.meter.limits,
            shapes,
            values,
            sorted(found.extents.items()),
        )
        told = [repr(settings), repr(sorted(network.pairs.items()))]
        told += described(network.graph)
        for label, array in sorted(self.unread.items()):
            x = np.asarray(array)
            told += label, f"{x.dtype}{x.shape}", hashlib.sha256(x.tobytes()).hexdigest()
        directory = self.cache and self.cache.directory
        objects: list[object] = [self.options, directory, self.layout]
        for item in frontend.content():
            if isinstance(item, str | bytes):
                told.append(
                    hashlib.sha256(item if isinstance(item, bytes) else item.encode()).hexdigest()
                )
            else:
                objects.append(item)
        for name in sorted(found.rules):
            rule = found.rules[name]
            objects += name, rule.infer, rule.lower, rule.work
        return hashlib.sha256("\0".join(told).encode()).hexdigest(), *objects
