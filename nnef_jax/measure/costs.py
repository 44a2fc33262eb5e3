"""Estimates the cost of a call by XLA, and counts the multiply-adds of the document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

import jax
from jax.sharding import PartitionSpec

from lowering import total
from nnef_jax.errors import InputError, UnsupportedError
from nnef_jax.execution.places import default_platform
from nnef_jax.measure.device_costs import DeviceCost, device_cost, mesh_of
from nnef_jax.measure.examples import declared_types
from nnef_jax.measure.instructions import program_of
from nnef_jax.measure.refusals import located
from nnef_jax.measure.topologies import topology_of
from nnef_jax.model import Model
from nnef_jax.options import require, require_choice, shown
from nnef_jax.results import Result, Table, table_of
from nnef_jax.wording.similar import listed
from nnef_jax.workings import (
    bind,
    compiled,
    evaluation,
    graph_for,
    has_arrays,
    layout_of,
    program_on,
    types_of,
    with_layout,
    without_mesh,
)

_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


@dataclass(frozen=True, eq=False, repr=False)
class Cost(Result):
    """XLA's estimate of the cost of a call. Figures that XLA does not report are None.

    On a mesh, all figures except `multiply_adds` are for one device.

    Attributes:
        network: the name of the network.
        platform: the platform for which the network is compiled or lowered.
        compiled: whether the network is compiled. The figures of a network that is only lowered are
            counted before XLA fuses operations, so its `bytes_accessed` is too large.
        multiply_adds: multiply-adds of products and convolutions in the document.
        flops: floating-point operations of the program; a multiply-add counts as 2. This may be
            less than 2 `multiply_adds`, because kernels may need fewer operations than the document
            has, and XLA does not count products with the padding of a convolution.
        transcendentals: the number of exponentials, logarithms and similar functions.
        bytes_accessed: bytes that kernels read and write, without caches.
        argument_bytes: bytes of inputs and prepared parameters. Small parameters are a part of the
            program instead.
        output_bytes: bytes of the outputs.
        temporary_bytes: the peak memory for intermediate tensors.
        code_bytes: bytes of the program.
        loops: the number of loops. XLA counts the body of each loop only once.
    """

    network: str
    platform: str
    compiled: bool
    multiply_adds: int
    flops: float | None
    transcendentals: float | None
    bytes_accessed: float | None
    argument_bytes: int | None
    output_bytes: int | None
    temporary_bytes: int | None
    code_bytes: int | None
    loops: int

    @property
    def intensity(self) -> float | None:
        """Return flops per accessed byte.

        Below about 10, memory limits the speed of most machines.
        """
        if not self.flops or not self.bytes_accessed:
            return None
        return self.flops / self.bytes_accessed

    def to_dict(self) -> dict[str, object]:
        """Return the attributes, and `intensity`, as values that JSON can hold."""
        return super().to_dict() | {"intensity": self.intensity}

    def table(self) -> Table:
        """Return a table with a line for each of XLA's figures."""
        rows: list[tuple[str, str, str]] = []

        def add_row(name: str, figure: float | None, note: str = "") -> None:
            if figure is not None:
                rows.append((name, f"{int(figure):,}", note))

        flops_note = ""
        if self.flops and self.multiply_adds:
            ratio = self.flops / (2 * self.multiply_adds)
            flops_note = f"{ratio:.2f} of 2 a multiply-add"
        add_row("multiply-adds", self.multiply_adds, "of products and convolutions in the document")
        add_row("flops", self.flops, flops_note)
        add_row("transcendentals", self.transcendentals)
        add_row("bytes accessed", self.bytes_accessed, "" if self.compiled else "before fusion")
        if self.intensity is not None:
            rows.append(("flops a byte", f"{self.intensity:.3g}", ""))
        add_row("arguments", self.argument_bytes, "bytes of inputs and prepared parameters")
        add_row("outputs", self.output_bytes, "bytes")
        add_row("temporaries", self.temporary_bytes, "bytes")
        add_row("code", self.code_bytes, "bytes")
        if self.loops:
            add_row("loops", self.loops, "whose bodies are counted once")
        stage = "compiled" if self.compiled else "lowered"
        no_heads = ("", "", "")
        table = table_of(f"{self.network}, {stage} for {self.platform}", no_heads, rows)
        table.show_header = False
        table.columns[1].justify = "right"
        return table


@overload
def cost(
    model: Model,
    *inputs: object,
    platform: str | None = None,
    topology: None = None,
    mesh: None = None,
    batch: str | Sequence[str] | None = "data",
    params: str | Sequence[str] | Mapping[str, PartitionSpec] | None = "model",
    **named: object,
) -> Cost: ...
@overload
def cost(
    model: Model | Callable[..., object],
    *inputs: object,
    platform: None = None,
    topology: str,
    mesh: Mapping[str, int] | None = None,
    batch: str | Sequence[str] | None = "data",
    params: str | Sequence[str] | Mapping[str, PartitionSpec] | None = "model",
    **named: object,
) -> DeviceCost: ...
def cost(
    model: Model | Callable[..., object],
    *inputs: object,
    platform: str | None = None,
    topology: str | None = None,
    mesh: Mapping[str, int] | None = None,
    batch: str | Sequence[str] | None = "data",
    params: str | Sequence[str] | Mapping[str, PartitionSpec] | None = "model",
    **named: object,
) -> Cost | DeviceCost:
    """Return the compiler's estimate of a call's cost: flops, bytes, memory, and sometimes time.

    By default the program of `model(*inputs)` is compiled for the default platform of jax. For
    another `platform`, `jax.jit(model.apply)` is lowered, and the memory is unknown. For a
    `topology`, the program that a call would run on those devices is compiled, and the time is
    estimated (see docs/planning.md). Nothing is run.

    Args:
        model: the model of the call. With a topology it may also be a pure function, jitted or not,
            such as a training step.
        inputs: arrays or `jax.ShapeDtypeStruct`s, by default of the declared shapes. For a function
            these are all of its arguments. For a function on a mesh, the types of the arguments
            have shardings over a `jax.sharding.AbstractMesh`.
        platform: "cpu", "cuda", "rocm" or "tpu"; by default the platform on which jax computes.
        topology: devices that need not be attached: "v5e:1", "v5e:4x4", "v4:2x2x1", "v5p:2x2x1",
            "v6e:2x2", "tpu7x:2x2x1", "a100", "h100", "h200", "h100:8", "h100:2x8" (2 hosts).
        mesh: extents of a mesh by axis name. The model is sharded over it as by `Model.shard`.
            The mesh may use fewer devices than the topology has. The default is the mesh of the
            model; without a mesh one device computes.
        batch: axes of `mesh` as in `Model.shard`. The default "data" holds only if the mesh has
            this axis.
        params: axes of `mesh`, or specs, as in `Model.shard`. The default "model" holds only if the
            mesh has this axis.
        named: inputs by name.

    Returns a `Cost`, or a `DeviceCost` for a topology. A program that is too large for the memory
    of the devices is not an error; `fits` of the result is then False.

    Raises InputError in the same cases as a call; if shapes are open and no inputs are passed; if
    the compiler for a topology is not installed; or if the mesh has more devices than the topology.
    Raises UnsupportedError if the compiler for a topology refuses an operation; the error names the
    operation's line.

    >>> nnef_jax.cost(model, images).flops
    >>> print(nnef_jax.cost(model, images, topology="v5e:4x4", mesh={"data": 4, "model": 4}))
    """
    if topology is not None:
        if platform is not None:
            raise ValueError("platform and topology exclude each other")
        if not isinstance(model, Model):
            return _cost_of_function(model, inputs, named, topology, mesh)
        return _cost_on_topology(model, inputs, named, topology, mesh, batch, params)
    if mesh is not None:
        raise ValueError("mesh needs a topology: topology='v5e:4x4'")
    require("model", model, Model, "a nnef_jax.Model; a function needs a topology")
    assert isinstance(model, Model)
    return _cost_on_platform(model, inputs, named, platform)


def _cost_on_platform(
    model: Model, inputs: Sequence[object], named: Mapping[str, object], platform: str | None
) -> Cost:
    """Return the cost of a model's call on a platform of jax, by default the default platform.

    `inputs` and `named` are the arguments of the call.
    """
    if platform is not None:
        require_choice("platform", platform, _PLATFORMS)
    types = _types(model, inputs, named)
    graph = graph_for(model, types)
    chosen_platform = platform or default_platform()
    is_default = chosen_platform == default_platform()
    # For a platform other than the default one, the program is lowered but not compiled.
    if is_default:
        figures = _compiled_figures(model, types, chosen_platform)
    else:
        figures = _lowered_figures(model, types, chosen_platform)
    analysis = figures.analysis
    memory = figures.memory
    return Cost(
        network=graph.name,
        platform=chosen_platform,
        compiled=is_default,
        multiply_adds=total(graph),
        flops=analysis.get("flops"),
        transcendentals=analysis.get("transcendentals"),
        bytes_accessed=analysis.get("bytes accessed"),
        argument_bytes=getattr(memory, "argument_size_in_bytes", None),
        output_bytes=getattr(memory, "output_size_in_bytes", None),
        temporary_bytes=getattr(memory, "temp_size_in_bytes", None),
        # If XLA does not report the size of the code, jax returns 0. The figure is then None.
        code_bytes=getattr(memory, "generated_code_size_in_bytes", None) or None,
        loops=figures.loops,
    )


class _Figures(NamedTuple):
    """XLA's figures of a program."""

    # The keys are XLA's names of figures, such as "flops".
    analysis: Mapping[str, float]
    # This is jax's analysis of the memory that the program needs, or None if there is none.
    memory: object
    # This is the number of loops in the program.
    loops: int


def _compiled_figures(
    model: Model, types: Sequence[jax.ShapeDtypeStruct], platform: str
) -> _Figures:
    """Return the figures of the compiled program that a call runs on the default platform."""
    if has_arrays(model):
        zeros = [jax.numpy.zeros(type.shape, type.dtype) for type in types]
        no_state: dict[str, Any] = {}
        program = compiled(model, "outputs", no_state, bind(model, zeros))
    else:
        # The model has only the shapes of its parameters, so the arguments are types.
        function, arguments = program_on(model, types, platform)
        program = model.jit(function).lower(*arguments).compile()
    analysis: Any = program.cost_analysis() or {}
    loops = program_of(program.as_text() or "", names=()).loops
    return _Figures(analysis, program.memory_analysis(), loops)


def _lowered_figures(
    model: Model, types: Sequence[jax.ShapeDtypeStruct], platform: str
) -> _Figures:
    """Return the figures of the function `apply`, lowered for a platform but not compiled."""
    traced = jax.jit(model.apply).trace(model.params, *types)
    lowered = traced.lower(lowering_platforms=(platform,))
    analysis: Any = lowered.cost_analysis() or {}
    loops = lowered.as_text().count("stablehlo.while")
    return _Figures(analysis, memory=None, loops=loops)


def _cost_on_topology(
    model: Model,
    inputs: Sequence[object],
    named: Mapping[str, object],
    topology: str,
    axes: Mapping[str, int] | None,
    batch: str | Sequence[str] | None,
    params: str | Sequence[str] | Mapping[str, PartitionSpec] | None,
) -> DeviceCost:
    """Return the cost of a model's call on the devices of a topology.

    `axes` maps names of a mesh's axes to extents. `batch` and `params` are axes of this mesh as in
    `Model.shard`. `inputs` and `named` are the arguments of the call.
    """
    devices = topology_of(topology)
    types = _types(model, inputs, named)
    layout = layout_of(model)
    if axes:
        # By default `batch` is "data", and `params` is "model". If the mesh has no axis of this
        # name, nothing is sharded along it.
        if batch == "data" and "data" not in axes:
            batch = None
        if params == "model" and "model" not in axes:
            params = None
        model = without_mesh(model).shard(mesh_of(devices, axes), batch=batch, params=params)
    elif layout is not None:
        # The model is sharded over attached devices. A mesh of the same extents is made of the
        # topology's devices.
        mesh = mesh_of(devices, layout.mesh.shape)
        if layout.mesh != mesh:
            model = with_layout(model, replace(layout, mesh=mesh))
    graph = graph_for(model, types)
    chip = devices.chip
    function, arguments = program_on(model, types, chip.platform, chip.compute_capability)
    try:
        return device_cost(graph.name, function, arguments, devices, graph)
    except UnsupportedError as error:
        raise located(error, graph, evaluation(model), devices) from None


def _cost_of_function(
    function: object,
    arguments: Sequence[object],
    named: Mapping[str, object],
    topology: str,
    mesh: Mapping[str, int] | None,
) -> DeviceCost:
    """Return the cost of a pure function on the devices of a topology.

    `arguments` are the function's arguments, as arrays or types. `named` and `mesh` are only for
    models: raises an error if one of them is passed.
    """
    if not callable(function):
        raise TypeError(f"model must be a nnef_jax.Model or a function, it is {shown(function)}")
    if mesh is not None:
        hint = "give their types shardings: jax.ShapeDtypeStruct(..., sharding=NamedSharding(...))"
        raise InputError("mesh is for a model; a function's arguments have their own", hint=hint)
    if named:
        raise TypeError(f"a function's arguments are given by position, not {listed(named)}")
    types = jax.tree.map(_type, tuple(arguments))
    name = getattr(function, "__name__", type(function).__name__)
    return device_cost(name, function, types, topology_of(topology))


def _types(
    model: Model, inputs: Sequence[object], named: Mapping[str, object]
) -> list[jax.ShapeDtypeStruct]:
    """Return the types of a call's inputs. For a call without inputs, return the declared types."""
    has_inputs = inputs or named
    if not has_inputs:
        inputs = declared_types(model)
    return types_of(model, tuple(inputs), named)


def _type(array_or_type: Any) -> Any:
    """Return the type of an array. If the argument is a type, it is returned unchanged."""
    if isinstance(array_or_type, jax.ShapeDtypeStruct):
        return array_or_type
    return jax.typeof(array_or_type)
