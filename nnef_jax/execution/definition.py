"""All of a model but its arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from nnef_jax.execution.compiler import Compiler
from nnef_jax.execution.functions import Entry, Functions
from nnef_jax.execution.host_profile import Host
from nnef_jax.execution.meshes import Layout
from nnef_jax.execution.options import RunOptions
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
        self.step = Entry(functions, layout, "step")
        self.scan = Entry(functions, layout, "scan")
        self.initial = jax.jit(functions.initial, static_argnums=2)

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
        """Return what it is compared by: a digest, and objects."""
        from nnef_jax.execution.cache_key import described

        network, found = self.network, self.network.options
        frontend = network.frontend
        shapes = sorted((name, *shape) for name, shape in found.input_shapes.items())
        settings = (found.expand, found.real, found.rounds, found.meter.limits, shapes)
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
