"""The network as pure functions of parameters, state and inputs, and their compiled forms."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lowering.errors import InvalidComputation
from lowering.extents import is_symbolic
from lowering.graph import Graph, Value
from lowering.halves import Split
from lowering.registry import Registry
from lowering.trace import Context, trace
from nnef_jax.errors import SemanticError
from nnef_jax.limits import FOLDED_PER_STEP, Meter
from nnef_jax.network import Network
from nnef_jax.storage import files

if TYPE_CHECKING:
    from nnef_jax.compilation import CompilationCache

Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Executable:
    """A function compiled for given input shapes, with the parameters laid out for it once.

    It takes state and inputs as one flat list: that costs the least at each call.
    """

    run: Callable[..., Any]
    prepared: tuple[Any, ...]
    donated: int = 0  # arrays, the first, whose memory it may take for its results

    def __call__(self, arrays: list[Any]) -> Any:
        """Run it."""
        if self.donated:
            return self.run(self.prepared, *_given(arrays, self.donated))
        return self.run(self.prepared, arrays)


def _given(arrays: Sequence[Any], donated: int) -> tuple[list[Any], ...]:
    """The arguments that hold the arrays, those that are donated apart."""
    return (list(arrays[donated:]), list(arrays[:donated])) if donated else (list(arrays),)


class _Key(NamedTuple):
    """What is compiled once.

    What is kept in a folder takes arrays on the network's device, of dtypes that are part of the
    key; what is jitted takes all.
    """

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Compilation:
    """How what is traced becomes executable."""

    optimize: bool = True  # in layouts and with kernels for the platform
    cache: CompilationCache | None = None
    autotune: bool = False  # the compiler's options are chosen by trial
    donate_state: bool = False  # a cycle takes the memory of the state before it
    unused: bool = False  # parameters that nothing reads are taken too


class Execution:
    """Traces and compiles a network; keeps what it compiled by the shapes of the inputs."""

    def __init__(
        self,
        network: Network,
        registry: Registry,
        context: Context,
        compilation: Compilation,
    ) -> None:
        self.network = network
        self._compilation = compilation
        self._registry = registry
        self._context = context
        self._executables: dict[_Key, Executable] = {}
        self._known: dict[tuple[Any, ...], Executable] = {}

    @property
    def graph(self) -> Graph:
        """The graph before a call; `graph_for` gives the one for known shapes."""
        return self.network.graph

    def graph_for(self, inputs: Sequence[Any]) -> Graph:
        """The graph for inputs of these shapes."""
        return self.network.specialise([tuple(x.shape) for x in inputs])

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of the parameters that are taken."""
        left_out = frozenset[str]() if self._compilation.unused else self.network.unused
        return tuple(p.label for p in self.graph.parameters if p.label not in left_out)

    @cached_property
    def parameters(self) -> dict[str, jax.Array]:
        """The network's own parameters on the device."""
        return self._on_device(self.labels)

    def arrays(self, labels: Iterable[str]) -> dict[str, Any]:
        """The arrays of these parameters; those that are not taken are on the host, mapped."""
        taken = self.parameters
        return {x: taken[x] if x in taken else self.network.data[x] for x in labels}

    @cached_property
    def initial_state(self) -> dict[str, jax.Array]:
        """The stored values of the variables that the graph updates, on the device."""
        return self._on_device([s.label for s in self.graph.states])

    def first_state(self) -> dict[str, jax.Array]:
        """The initial state, which may be given away where a cycle takes it."""
        if self._compilation.donate_state:
            return {label: jnp.array(x, copy=True) for label, x in self.initial_state.items()}
        return dict(self.initial_state)

    def _on_device(self, labels: Sequence[str]) -> dict[str, jax.Array]:
        """Stored data on the device, and there alone; a CPU takes those at addresses that suit it
        as they are, mapped files too: 102 MB in 0.02 s instead of 0.6 s.
        """
        stored = [self.network.data[label] for label in labels]
        with jax.ensure_compile_time_eval():  # it is kept, also from inside a traced function
            arrays = dict(zip(labels, jax.device_put(stored), strict=True))
        self.network.data.update(arrays)
        for array in stored:
            if isinstance(array, np.ndarray):
                files.release(array)
        return arrays

    def values(
        self,
        graph: Graph,
        params: Arrays,
        state: Arrays,
        inputs: Sequence[Any],
        *,
        optimized: bool = False,
        wanted: Iterable[Value] | None = None,
    ) -> dict[Value, Any]:
        """The tensors that results, or the `wanted` ones, depend on.

        `optimized`: `lowering.cpu` rewrites what is traced.
        """
        meter = Meter(self.network.options.meter.limits)

        def fold(items: int) -> None:
            meter.spend(items // FOLDED_PER_STEP, "folding constants")

        context = replace(self._context, fold=fold, optimized=optimized)
        try:
            return trace(graph, self._registry, context, params, state, inputs, wanted)
        except InvalidComputation as error:
            where = error.operation
            raise SemanticError(
                error.message, span=where.span, calls=where.calls, hint=error.hint
            ) from None

    def outputs(self, params: Arrays, inputs: Sequence[Any]) -> Any:
        """What a call returns; a recurrent network runs one cycle from its initial state."""
        return self.cycle(params, self.initial_state, inputs)[0]

    def cycle(
        self, params: Arrays, state: Arrays, inputs: Sequence[Any]
    ) -> tuple[Any, dict[str, Any]]:
        """The outputs of one cycle, and the state after it."""
        return self._at_once["cycle"](params, state, inputs)

    def scan(
        self, params: Arrays, state: Arrays, inputs: Sequence[Any]
    ) -> tuple[Any, dict[str, Any]]:
        """As many cycles as the inputs have items along their first axis, by `lax.scan`."""
        return self._at_once["scan"](params, state, inputs)

    @cached_property
    def _at_once(self) -> dict[str, Any]:
        """`cycle` and `scan`, compiled as a whole also where the caller compiles nothing.

        JAX would compile each primitive by itself: 236 for ResNet-18, in 15 s, where all of it
        takes 7. Within a function that the caller compiles it is a call, which XLA inlines.
        """

        def cycle(params: Arrays, state: Arrays, inputs: Sequence[Any]) -> Any:
            return self._optimised(self._cycle, params, state, inputs)

        def scan(params: Arrays, state: Arrays, inputs: Sequence[Any]) -> Any:
            return self._optimised(self._scan, params, state, inputs)

        return {function.__name__: jax.jit(function) for function in (cycle, scan)}

    def _optimised(
        self,
        function: Callable[..., Any],
        params: Arrays,
        state: Arrays,
        inputs: Sequence[Any],
        in_chunks: bool = False,
    ) -> Any:
        inputs = [jnp.asarray(x) for x in inputs]
        # What is exported for any shape is for any platform; kernels for CPUs need items.
        extents = [extent for x in inputs for extent in x.shape]
        if any(is_symbolic(n) or n == 0 for n in extents) or not self._is_optimised:
            return function(params, state, inputs)
        from lowering.cpu import optimised

        state = {s.label: state[s.label] for s in self.graph.states}
        optimal = optimised(
            lambda known, free: function(known, *free, optimized=True), in_chunks=in_chunks
        )
        return optimal(params, (state, inputs))

    @property
    def _is_optimised(self) -> bool:
        # Kernels and layouts are those of CPUs.
        return self._compilation.optimize and _platform() == "cpu"

    @property
    def compiler_options(self) -> dict[str, str]:
        """What `jax.jit` takes for functions that contain the network."""
        if not self._is_optimised:
            return {}
        from lowering.cpu.options import compiler_options

        return compiler_options(sum(x.nbytes for x in self.parameters.values()))

    def _cycle(
        self, params: Arrays, state: Arrays, inputs: Sequence[Any], *, optimized: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        graph = self.graph_for(inputs)
        values = self.values(graph, params, state, inputs, optimized=optimized)
        outputs = [jnp.asarray(values[output]) for output in graph.outputs]
        return self._packed(outputs), {s.label: jnp.asarray(values[s.update]) for s in graph.states}

    def _scan(
        self, params: Arrays, state: Arrays, inputs: Sequence[Any], *, optimized: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        def body(state: Arrays, inputs: list[Any]) -> tuple[dict[str, Any], Any]:
            outputs, state = self._cycle(params, state, inputs, optimized=optimized)
            return dict(state), outputs

        state, outputs = jax.lax.scan(body, dict(state), list(inputs))
        return outputs, dict(state)

    def _packed(self, outputs: Sequence[Any]) -> Any:
        return outputs[0] if len(outputs) == 1 else self._output_type(*outputs)

    @cached_property
    def _output_type(self) -> Callable[..., Any]:
        return namedtuple("Outputs", self.graph.output_names, rename=True)  # pyright: ignore[reportUntypedNamedTuple]

    # Compiled forms

    def known(self, arguments: tuple[Any, ...]) -> Executable | None:
        """What `call` has compiled for inputs of the same types, which these then are as they are.

        To bind inputs and to find what is compiled for them takes half of the 60 us that a network
        of 200 parameters takes more than its function alone.
        """
        try:
            return self._known.get(_types(arguments))
        except (AttributeError, TypeError):  # no arrays of jax
            return None

    def call(self, inputs: list[Any]) -> Any:
        """`outputs` on the network's own parameters."""
        if _is_traced(inputs):
            return self.outputs(self.parameters, inputs)
        key = self._key("outputs", inputs)
        executable = self._executables.get(key)
        if executable is None:
            # The state is an argument too: no stored data are part of what is compiled.
            variables = {**self.parameters, **self.initial_state}

            # Nobody asks derivatives of it: items of a batch may follow one another.
            def flat(variables: Arrays, inputs: Sequence[Any]) -> Any:
                chunks = not self.graph.states
                return self._optimised(self._cycle, variables, variables, inputs, chunks)[0]

            executable = self._compile(key, variables, flat, inputs)
        if all(isinstance(x, jax.Array) for x in inputs):
            self._known[_types(inputs)] = executable
        return executable(inputs)

    def recur(self, kind: str, state: Arrays, inputs: list[Any]) -> Any:
        """`cycle` or `scan` on the network's own parameters."""
        function = {"cycle": self.cycle, "scan": self.scan}[kind]
        arrays = [*state.values(), *inputs]
        if _is_traced(arrays):
            return function(self.parameters, state, inputs)
        key = self._key(kind, arrays)
        executable = self._executables.get(key)
        if executable is None:
            labels = list(state)

            def flat(params: Arrays, arrays: Sequence[Any]) -> Any:
                named = dict(zip(labels, arrays, strict=False))
                return function(params, named, arrays[len(labels) :])

            executable = self._compile(key, self.parameters, flat, arrays)
        return executable(arrays)

    def _key(self, kind: str, arrays: Sequence[Any]) -> _Key:
        """What an executable is found by."""
        shapes = tuple(x.shape for x in arrays)
        if self._compilation.cache is None or any(
            isinstance(x, jax.Array) and x.sharding != self._sharding for x in arrays
        ):
            return _Key(kind, shapes)
        return _Key(kind, shapes, tuple(x.dtype for x in arrays))

    @cached_property
    def _sharding(self) -> jax.sharding.Sharding:
        """The place of the parameters."""
        with jax.ensure_compile_time_eval():  # also where a function is traced
            return jax.device_put(np.float32(0)).sharding

    def _compile(
        self,
        key: _Key,
        variables: Mapping[str, jax.Array],
        function: Callable[[Arrays, Sequence[Any]], Any],
        arrays: Sequence[Any],
    ) -> Executable:
        labels = list(variables)
        values = list(variables.values())

        def flat(values: Sequence[Any], arrays: Sequence[Any]) -> Any:
            return function(dict(zip(labels, values, strict=True)), arrays)

        donates = self._compilation.donate_state and key.kind == "cycle"
        donated = len(self.graph.states) if donates else 0

        def halves(options: Mapping[str, str], donated: int = donated) -> Split:
            from lowering.cpu import looped
            from lowering.prepare import split

            return split(
                flat,
                values,
                list(arrays),
                rewrite=looped if self._is_optimised else None,
                donated=donated,
                options=options,
            )

        def best_options() -> Mapping[str, str]:
            if not (self._compilation.autotune and self._is_optimised):
                return self.compiler_options
            from lowering.cpu.options import candidates, fastest

            options = candidates()
            return options[fastest([trial(choice) for choice in options])]

        def trial(options: Mapping[str, str]) -> Callable[[], Any]:
            made = halves(options, donated=0)
            arguments = made.prepare_now(values), list(arrays)
            return partial(made.run.lower(*arguments).compile(), *arguments)

        cache = self._compilation.cache
        if cache is not None and key.dtypes is not None:
            made = self._kept(
                cache, key.kind, lambda: halves(best_options()), values, arrays, donated
            )
        else:
            from lowering.prepare import with_constants

            options = best_options()
            both = halves(options)
            made = with_constants(both.run, both.prepare_now(values), donated, options)
        executable = self._executables[key] = Executable(*made, donated)
        return executable

    def _kept(
        self,
        cache: CompilationCache,
        kind: str,
        split: Callable[[], Split],
        values: Sequence[jax.Array],
        arrays: Sequence[jax.Array],
        donated: int,
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the executable of the cache, and what is prepared for it."""
        from nnef_jax.compilation import key_of

        inputs = arrays if kind == "outputs" else arrays[len(self.graph.states) :]
        steps = int(kind == "scan")  # axes of time
        graph = self.network.specialise([x.shape[steps:] for x in inputs])
        context = [
            (field.name, getattr(self._context, field.name))
            for field in fields(self._context)
            if field.name not in ("registry", "fold")
        ]
        context += [
            (field.name, getattr(self._compilation, field.name))
            for field in fields(self._compilation)
            if field.name != "cache"
        ]
        types = [str(jax.typeof(x)) for x in (*values, *arrays)]
        dialect = self.network.frontend.dialect
        (device,) = self._sharding.device_set
        key = key_of(graph, device, kind, types, dialect, context)
        packed = self._packed([0] * len(graph.outputs))
        result = packed if kind == "outputs" else (packed, {s.label: 0 for s in graph.states})
        tree = jax.tree.structure(result)
        return cache.halves(key, device, split, values, _given(arrays, donated), tree)


def _is_traced(arrays: Sequence[Any]) -> bool:
    """Whether the caller compiles, or wants nothing compiled."""
    disabled: bool = jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]
    return disabled or any(isinstance(x, Tracer) for x in arrays)


def _types(arrays: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([(type(x), x.shape, x.dtype, x.sharding) for x in arrays])


def _platform() -> str:
    """Of the device that jax computes on where nothing else is said."""
    device: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform
