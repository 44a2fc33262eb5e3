"""What a user holds: a network as a jitted callable, and as a pure function of parameters and inputs."""

from __future__ import annotations

import os
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from lowering.extents import UNKNOWN, Shape
from lowering.graph import Graph, Value
from lowering.prepare import Split, split
from lowering.registry import Registry
from lowering.trace import Context, trace
from nnef_jax.arguments import bind_inputs
from nnef_jax.errors import InputError
from nnef_jax.network import Network

Parameters = Mapping[str, jax.Array]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape (None for an extent that is not known) and dtype of an input or output."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


@dataclass(slots=True)
class _Executable:
    """The network compiled for given input shapes, with its parameters laid out for it."""

    run: Callable[[tuple[Any, ...], list[jax.Array]], Any]
    prepared: tuple[Any, ...]


class Model:
    """An NNEF network, loaded by `nnef_jax.load`.

    Calling it runs the network, jitted, on its own parameters: inputs by position in the order of the
    graph or by name, as numpy or jax arrays. One output is an array, several are a NamedTuple with the
    graph's output names. A model does not change.
    """

    def __init__(self, network: Network, registry: Registry, context: Context) -> None:
        self._network = network
        self._registry = registry
        self._context = context
        self._executables: dict[tuple[Shape, ...], _Executable] = {}
        self._captures: dict[tuple[str, ...], Callable[..., Any]] = {}

    def __repr__(self) -> str:
        inputs = ", ".join(f"{s.name}: {s.dtype}{_shown(s.shape)}" for s in self.inputs)
        outputs = ", ".join(f"{s.name}: {s.dtype}{_shown(s.shape)}" for s in self.outputs)
        return f"<nnef_jax.Model {self.graph.name}({inputs}) -> ({outputs})>"

    # What it is

    @property
    def graph(self) -> Graph:
        """The flat graph, with the shapes that hold before a call."""
        return self._network.graph

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What a call takes, in order."""
        return tuple(_spec(value.name, value) for value in self.graph.inputs)

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What a call returns, in order."""
        return tuple(_spec(*pair) for pair in zip(self.graph.output_names, self.graph.outputs, strict=True))

    @property
    def params(self) -> dict[str, jax.Array]:
        """The parameters by label, an ordinary pytree: the first argument of `apply`."""
        return dict(self._parameters)

    @cached_property
    def _parameters(self) -> dict[str, jax.Array]:
        data = self._network.data
        return {p.label: jnp.array(data[p.label]) for p in self.graph.parameters}

    @cached_property
    def _initial_state(self) -> dict[str, jax.Array]:
        data = self._network.data
        return {s.label: jnp.array(data[s.label]) for s in self.graph.states}

    # Running it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network. A recurrent one runs a single cycle from its initial state."""
        inputs = self._bind(args, kwargs)
        shapes = tuple(x.shape for x in inputs)
        executable = self._executables.get(shapes)
        if executable is None:
            executable = self._executables[shapes] = self._compile(inputs)
        return executable.run(executable.prepared, inputs)

    def apply(self, params: Parameters, *args: Any, **kwargs: Any) -> Any:
        """The network as a pure function of its parameters and inputs, for `jax.grad`, `jax.vmap`, `jax.jit`.

        Args:
            params: arrays by label, as in `params`.
            args, kwargs: the inputs by position or name.

        Raises:
            InputError: labels are missing or unknown, or the inputs do not fit.
        """
        inputs = self._bind(args, kwargs)
        return self._outputs(self._graph_for(inputs), self._check_params(params), inputs)

    def intermediates(self, *args: Any, names: Sequence[str] | None = None, **kwargs: Any) -> dict[str, jax.Array]:
        """Tensors inside the network by name, for the given inputs.

        Inputs and names may also be given as `intermediates(x, ["conv1"])`. Without names all tensors are
        returned. Raises InputError for a name that the graph does not have.
        """
        if names is None and args and _is_names(args[-1]):
            *args, names = args
        inputs = self._bind(tuple(args), kwargs)
        graph = self._graph_for(inputs)
        wanted = tuple(graph.values) if names is None else tuple(names)
        unknown = [name for name in wanted if name not in graph.values]
        if unknown:
            raise InputError(
                f"the graph has no tensor {', '.join(repr(n) for n in unknown)}",
                hint="model.summary() lists the names",
            )
        if wanted not in self._captures:

            def capture(params: Parameters, inputs: list[jax.Array]) -> dict[str, jax.Array]:
                values = self._trace(self._graph_for(inputs), params, inputs)
                return {name: jnp.asarray(values[graph.values[name]]) for name in wanted}

            self._captures[wanted] = jax.jit(capture)
        return self._captures[wanted](self._parameters, inputs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """`apply` lowered by JAX for these inputs, parameters being arguments: `.as_text()`, `.compile()`.

        Inputs may be arrays or `jax.ShapeDtypeStruct`s; without any, the declared shapes are taken.
        """
        if not args and not kwargs and self.inputs:
            args = tuple(jax.ShapeDtypeStruct(self._known_shape(s), s.dtype) for s in self.inputs)
        return jax.jit(self.apply).lower(self._parameters, *args, **kwargs)

    def summary(self) -> str:
        """A table of the network: name, operation, shape, dtype, parameters and multiply-adds of each line."""
        from nnef_jax.summary import summarise

        return summarise(self.graph)

    def save(
        self, path: str | os.PathLike[str], *, params: Parameters | None = None, overwrite: bool = False
    ) -> None:
        """Write the network as an NNEF archive: its own text, and these parameters or its own.

        Args:
            path: a folder to make, or an archive by its suffix (.tar, .tgz, .tar.gz, .tar.xz).
            params: arrays by label, as in `params`.
            overwrite: replace what is at the path; otherwise FileExistsError.
        """
        from nnef_jax.save import save

        arrays = {**self._initial_state, **self._check_params(params or self._parameters)}
        save(path, self._network.document.source.text, arrays, overwrite=overwrite)

    # Inside

    def _known_shape(self, spec: TensorSpec) -> tuple[int, ...]:
        shape = tuple(extent for extent in spec.shape if extent is not None)
        if len(shape) != len(spec.shape):
            raise InputError(f"the shape of input '{spec.name}' is not known", hint="give an example input")
        return shape

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        return bind_inputs(self._network, args, kwargs)

    def _graph_for(self, inputs: Sequence[Any]) -> Graph:
        return self._network.specialise([tuple(x.shape) for x in inputs])

    def _check_params(self, params: Parameters) -> Parameters:
        labels = {p.label for p in self.graph.parameters}
        if labels != set(params):
            missing, extra = sorted(labels - set(params)), sorted(set(params) - labels)
            parts = [f"lacks {', '.join(missing)}"] if missing else []
            parts += [f"has unknown {', '.join(extra)}"] if extra else []
            raise InputError(f"params {' and '.join(parts)}", hint="take model.params and replace values in it")
        return params

    def _trace(self, graph: Graph, params: Parameters, inputs: Sequence[Any]) -> dict[Value, Any]:
        return trace(graph, self._registry, self._context, params, self._initial_state, inputs)

    def _outputs(self, graph: Graph, params: Parameters, inputs: Sequence[Any]) -> Any:
        values = self._trace(graph, params, inputs)
        return self._pack([jnp.asarray(values[output]) for output in graph.outputs])

    def _pack(self, outputs: Sequence[Any]) -> Any:
        return outputs[0] if len(outputs) == 1 else self._output_type(*outputs)

    @cached_property
    def _output_type(self) -> Callable[..., Any]:
        return namedtuple("Outputs", self.graph.output_names, rename=True)  # noqa: PYI024

    def _compile(self, inputs: Sequence[jax.Array]) -> _Executable:
        """Trace for the shapes of these inputs; what depends on parameters alone is computed now."""
        graph = self._graph_for(inputs)
        labels = [p.label for p in graph.parameters]
        values = [self._parameters[label] for label in labels]

        def function(params: Sequence[Any], inputs: Sequence[Any]) -> Any:
            return self._outputs(graph, dict(zip(labels, params, strict=True)), inputs)

        halves: Split = split(function, values, list(inputs))
        return _Executable(jax.jit(halves.run), jax.jit(halves.prepare)(values))


def _spec(name: str, value: Value) -> TensorSpec:
    shape = tuple(None if extent is UNKNOWN else extent for extent in value.type.shape)
    return TensorSpec(name, shape, value.type.dtype)


def _shown(shape: Sequence[int | None]) -> str:
    return "[" + ",".join("?" if extent is None else str(extent) for extent in shape) + "]"


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(n, str) for n in value)  # pyright: ignore
