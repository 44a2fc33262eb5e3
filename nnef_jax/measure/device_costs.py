"""Estimates the cost of a program on devices that are not attached, by asking their compiler."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh

from lowering import total
from lowering.graph import Graph, Operation
from nnef_jax.errors import InputError, UnsupportedError
from nnef_jax.measure.hlo import Collective, HloText
from nnef_jax.measure.instructions import program_of
from nnef_jax.measure.topologies import Topology, topology_of
from nnef_jax.measure.unattached import Compiled, Refused, compile_for, lowered_program
from nnef_jax.options import require, shown
from nnef_jax.parameters.module_names import ModuleNames, shared_start
from nnef_jax.results import Result, Table, table_of

_MOST_KERNELS = 8  # A table has rows for at most this many kernels.
_MOST_NAMES = 3  # A row names at most this many operations of a kernel.


@dataclass(frozen=True)
class DeviceRow:
    """The compiler's estimate of the time of all kernels that compute the same operations.

    Attributes:
        operations: the names of the operations in the order of the document. If the operations of
            kernels are unknown, these kernels have a common row with the operations ().
        seconds: the time of these kernels in a call, in seconds.
        kinds: the kinds of the operations, such as "conv", each kind once.
        module: the innermost module that contains these operations, or "". Modules are inferred
            from names, as in `model.summary()`. Operations whose module is unknown are ignored.
    """

    operations: tuple[str, ...]
    seconds: float
    kinds: tuple[str, ...] = ()
    module: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class DeviceCost(Result):
    """The estimated cost of a program on devices that are not attached. Nothing was run.

    Figures are for one device of the mesh, and for one call. A figure that the compiler does not
    report is None. CUDA's compiler reports no times, and counts operations before fusion.

    Attributes:
        network: the name of the network or of the function.
        topology: the name of the devices.
        mesh: extents of the mesh by axis name.
        refusal: the compiler's reason for not compiling the program, such as too little memory, or
            "" if the program was compiled.
        argument_bytes: bytes of inputs and prepared parameters.
        output_bytes: bytes of results. Results in the memory of donated arguments do not count.
        temporary_bytes: the peak memory in bytes for intermediate tensors.
        code_bytes: bytes of the program.
        memory_bytes: the memory of a device in bytes that a program can use.
        multiply_adds: multiply-adds of products and convolutions in the document, for all devices;
            None for a function.
        flops: floating-point operations; a multiply-add counts as 2.
        bytes_accessed: bytes that kernels read and write.
        compute_seconds: the time for `flops` at the published peak rate of the matrix units, for
            the dtype that most items of the arguments have. For float32 this is the rate of the
            default precision of jax: TF32 on GPUs, and bfloat16 on TPUs.
        memory_seconds: the time for `bytes_accessed` at the published bandwidth of the memory.
        seconds: the compiler's estimate of the time. The body of a loop counts once for each
            iteration. Instructions whose time is unknown, as in `custom_calls`, count as 0. Links
            between devices count as fast as memory. XLA does not take the precision of products
            into account.
        custom_calls: the number of custom calls, by target. The compiler may not know the time of a
            custom call. For a Pallas kernel, the time is computed from the cost that the kernel
            declares.
        open_loops: the number of loops whose number of iterations is known only in a run. In
            `seconds` each such loop has one iteration.
        collectives: exchanges between devices, by kind.
        link_seconds: the time of the collectives if they run in rings, one after the other, at the
            published bandwidth of the links. This is an estimate of nnef_jax, not of the compiler.
        rows: the share of each kernel in `seconds`, from slowest to fastest. The shares are in
            proportion to the cycles that the compiler estimates for the kernels. The compiler
            estimates no cycles for collectives, so their time is divided among the kernels too.
    """

    network: str
    topology: str
    mesh: Mapping[str, int]
    refusal: str
    argument_bytes: int | None
    output_bytes: int | None
    temporary_bytes: int | None
    code_bytes: int | None
    memory_bytes: int
    multiply_adds: int | None
    flops: float | None
    bytes_accessed: float | None
    compute_seconds: float | None
    memory_seconds: float | None
    seconds: float | None
    custom_calls: Mapping[str, int]
    open_loops: int
    collectives: Sequence[Collective]
    link_seconds: float
    rows: Sequence[DeviceRow]

    @property
    def needed_bytes(self) -> int | None:
        """Return the bytes that a call needs on a device.

        The number is the sum of `argument_bytes`, `output_bytes` and `temporary_bytes`. It is
        None if the compiler refuses the program.
        """
        if self.argument_bytes is None or self.output_bytes is None:
            return None
        return self.argument_bytes + self.output_bytes + (self.temporary_bytes or 0)

    @property
    def fits(self) -> bool:
        """Tell whether the program compiles and its arrays fit into a device's memory."""
        return not self.refusal and (self.needed_bytes or 0) <= self.memory_bytes

    def to_dict(self) -> dict[str, object]:
        """Return the attributes by name, with `needed_bytes`, `fits`, and the seconds by operation.

        `nnef_jax.view(model, profile=cost)` colours operations by these seconds. A kernel that
        computes several operations gives each of them an equal share of its time.
        """
        seconds_by_operation: defaultdict[str, float] = defaultdict(float)
        for row in self.rows:
            for name in row.operations:
                seconds_by_operation[name] += row.seconds / len(row.operations)
        operations = [
            {"name": name, "seconds": seconds} for name, seconds in seconds_by_operation.items()
        ]
        return super().to_dict() | {
            "needed_bytes": self.needed_bytes,
            "fits": self.fits,
            "operations": operations,
        }

    def table(self) -> Table:
        """Return a table with a line for each figure."""
        mesh = ", ".join(f"{name}={extent}" for name, extent in self.mesh.items())
        devices = f"{self.topology}, mesh {mesh}" if mesh else self.topology
        title = f"{self.network}, compiled for one device of {devices}; nothing ran"
        no_heads = ("", "", "")
        table = table_of(title, no_heads, self._rows())
        table.show_header = False
        table.columns[1].justify = "right"
        return table

    def _rows(self) -> list[tuple[str, str, str]]:
        """Return the rows of the table: each has a name, a figure and a note."""
        rows = [self._verdict()]
        is_gpu = self._is_gpu()
        fusion = "before fusion" if is_gpu else ""

        def add_row(
            name: str, figure: float | None, text: Callable[[float], str], note: str
        ) -> None:
            if figure is not None:
                rows.append((name, text(figure), note))

        add_row("arguments", self.argument_bytes, _size, "prepared parameters and inputs")
        add_row("results", self.output_bytes, _size, "less those in the memory of arguments")
        add_row("temporaries", self.temporary_bytes, _size, "")
        add_row("code", self.code_bytes, _size, "")
        add_row("multiply-adds", self.multiply_adds, _count, "of the document, on all devices")
        add_row("flops", self.flops, _count, fusion)
        add_row("bytes accessed", self.bytes_accessed, _size, fusion)
        peak = _rate(self.flops, self.compute_seconds, 1e12, "Tflop/s")
        compute_note = f"flops at the published peak{peak}"  # "... peak of 197 Tflop/s"
        add_row("time by matrix units", self.compute_seconds, _time, compute_note)
        bandwidth = _rate(self.bytes_accessed, self.memory_seconds, 1e9, "GB/s")
        moved_bytes = f"bytes {fusion}," if fusion else "bytes"
        memory_note = f"{moved_bytes} at the published bandwidth{bandwidth}"
        add_row("time by memory", self.memory_seconds, _time, memory_note)
        if self.seconds is not None:
            rows.append(("time by the compiler", _time(self.seconds), self._time_note()))
        elif is_gpu and not self.refusal:
            rows.append(("time by the compiler", "", "not reported for GPUs"))
        for collective in self.collectives:
            name = f"{collective.count} {collective.kind}"
            rows.append((name, _size(collective.bytes), f"between {collective.group} devices"))
        if self.collectives:
            link_note = "our estimate, at published bandwidth"
            add_row("time by links", self.link_seconds, _time, link_note)
        if self.rows:
            rows.append(("slowest kernels", "", "of the time by the compiler"))
        for kernel in self.rows[:_MOST_KERNELS]:
            rows.append((f"  {_names(kernel)}", _time(kernel.seconds), _place(kernel)))
        return rows

    def _verdict(self) -> tuple[str, str, str]:
        """Return the row that tells whether the program fits into the memory of a device."""
        if self.refusal:
            return "fits", "no", self.refusal
        needed = f"{_size(self.needed_bytes or 0)} (arguments, results, temporaries)"
        note = f"{needed} of {_size(self.memory_bytes)}"
        if self._is_gpu():
            # CUDA's compiler compiles a program of any size.
            note += "; by size: the compiler does not check"
        answer = "yes" if self.fits else "no"
        return "fits", answer, note

    def _is_gpu(self) -> bool:
        return topology_of(self.topology).chip.platform == "cuda"

    def _time_note(self) -> str:
        """Return a note such as "without 2 my_kernel; 1 loops of unknown length", or "".

        The note is about the parts of the program whose time the compiler does not know.
        """
        notes: list[str] = []
        if self.custom_calls:
            calls = [f"{count} {target}" for target, count in self.custom_calls.items()]
            notes.append(f"without {', '.join(calls)}")
        if self.open_loops:
            notes.append(f"{self.open_loops} loops of unknown length")
        return "; ".join(notes)


def mesh_of(topology: Topology, axes: Mapping[str, int]) -> AbstractMesh:
    """Return an abstract mesh over devices of a topology.

    `axes` maps names of the mesh's axes to extents. Raises InputError if the topology has too few
    devices.
    """
    require("mesh", axes, Mapping, "numbers of devices by axis: {'data': 4}")
    for extent in axes.values():
        is_positive = type(extent) is int and extent > 0
        if not is_positive:
            raise TypeError(f"mesh must have positive numbers of devices, it has {shown(extent)}")
    topology.require_devices(axes)
    device = AbstractDevice(topology.chip.kind, num_cores=None, platform=topology.chip.platform)
    axis_types = (AxisType.Auto,) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types, abstract_device=device)


def device_cost(
    network: str,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    topology: Topology,
    graph: Graph | None = None,
) -> DeviceCost:
    """Compile a function for devices, and return the cost of a call.

    Args:
        network: the name for the table.
        function: a function, jitted or not.
        arguments: the types of the function's arguments. For a mesh the types have shardings.
        topology: the devices.
        graph: the graph that the function computes, without open extents, or None if there is none.

    Raises UnsupportedError if the compiler refuses the function for a reason other than memory.
    """
    topology.require_compiler()
    multiply_adds = None if graph is None else total(graph)
    mesh = _mesh(arguments, topology)
    axes = dict(mesh.shape) if mesh else {}
    chip = topology.chip
    program = lowered_program(function, arguments, chip.platform)
    (compiled,) = compile_for(topology, [program], mesh)
    if isinstance(compiled, Refused):
        if not compiled.is_for_memory:
            raise UnsupportedError(f"the compiler for '{topology.name}' refuses: {compiled.reason}")
        return _refused_cost(network, topology, axes, compiled, multiply_adds)
    parsed = HloText(compiled.text)
    device_count = math.prod(axes.values())
    flops, accessed_bytes = _work(compiled, program.analysis, device_count)
    compute_seconds = None
    if flops is not None:
        compute_seconds = flops / _peak(topology, arguments)
    memory_seconds = None
    if accessed_bytes is not None:
        memory_seconds = accessed_bytes / chip.bandwidth
    seconds = estimated_seconds(compiled.analysis, parsed)
    rows: tuple[DeviceRow, ...] = ()
    if seconds:
        rows = _kernel_times(compiled.text, parsed, graph, seconds)
    exchanged_bytes = sum(collective.exchanged for collective in parsed.collectives)
    return DeviceCost(
        network=network,
        topology=topology.name,
        mesh=axes,
        refusal="",
        argument_bytes=compiled.argument_bytes,
        output_bytes=compiled.output_bytes - compiled.alias_bytes,
        temporary_bytes=compiled.temp_bytes,
        code_bytes=compiled.generated_code_bytes or None,
        memory_bytes=chip.memory,
        multiply_adds=multiply_adds,
        flops=flops,
        bytes_accessed=accessed_bytes,
        compute_seconds=compute_seconds,
        memory_seconds=memory_seconds,
        seconds=seconds,
        custom_calls=parsed.custom_calls,
        open_loops=parsed.loops_of_unknown_length,
        collectives=parsed.collectives,
        link_seconds=exchanged_bytes / topology.link_rate,
        rows=rows,
    )


def _refused_cost(
    network: str,
    topology: Topology,
    axes: Mapping[str, int],
    refused: Refused,
    multiply_adds: int | None,
) -> DeviceCost:
    """Return the cost of a program that the compiler refuses because it needs too much memory.

    `axes` maps names of the mesh's axes to extents. The compiler reports no figures.
    """
    return DeviceCost(
        network=network,
        topology=topology.name,
        mesh=axes,
        refusal=refused.reason.removeprefix("RESOURCE_EXHAUSTED: "),
        argument_bytes=None,
        output_bytes=None,
        temporary_bytes=None,
        code_bytes=None,
        memory_bytes=topology.chip.memory,
        multiply_adds=multiply_adds,
        flops=None,
        bytes_accessed=None,
        compute_seconds=None,
        memory_seconds=None,
        seconds=None,
        custom_calls={},
        open_loops=0,
        collectives=(),
        link_seconds=0.0,
        rows=(),
    )


def _kernel_times(
    text: str, parsed: HloText, graph: Graph | None, seconds: float
) -> tuple[DeviceRow, ...]:
    """Return the rows of a `DeviceCost`. The times of the rows sum to `seconds`.

    A row's share of `seconds` is proportional to the cycles that the compiler estimates for the
    row's kernels. `text` is the text of the program, and `parsed` is the parsed text.
    """
    operations_by_name: defaultdict[str, list[Operation]] = defaultdict(list)
    if graph:
        for operation in graph.operations:
            operations_by_name[operation.name].append(operation)
    modules = ModuleNames(graph) if graph else None
    names_by_instruction = program_of(text, operations_by_name).operations
    positions = {name: index for index, name in enumerate(operations_by_name)}
    # Kernels that compute the same operations become one row.
    cycles_by_names: defaultdict[tuple[str, ...], int] = defaultdict(int)
    for instruction, cycles in parsed.cycles.items():
        names = names_by_instruction.get(instruction, ())
        names_in_order = tuple(sorted(names, key=positions.__getitem__))
        cycles_by_names[names_in_order] += cycles
    seconds_per_cycle = seconds / sum(cycles_by_names.values())
    rows: list[DeviceRow] = []
    for names, cycles in cycles_by_names.items():
        operations: list[Operation] = []
        for name in names:
            operations += operations_by_name[name]
        kinds = tuple(dict.fromkeys(operation.kind for operation in operations))
        module = _shared_module(operations, modules) if modules else ""
        rows.append(DeviceRow(names, cycles * seconds_per_cycle, kinds, module))
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _shared_module(operations: Sequence[Operation], modules: ModuleNames) -> str:
    """Return the innermost module that contains the operations, or "".

    Operations whose module is unknown are ignored.
    """
    paths = [modules.of_operation(operation) for operation in operations]
    known_paths = [path for path in paths if path]
    return ".".join(shared_start(known_paths) or ())


def estimated_seconds(analysis: Mapping[str, float], parsed: HloText) -> float | None:
    """Return the compiler's estimate of the time of a call, or None if there is no estimate.

    `analysis` maps names to the compiler's figures, and `parsed` is the program.
    """
    seconds = analysis.get("optimal_seconds")
    if seconds is None or not parsed.cycles:
        return None
    # `seconds` is a sum over instructions. XLA adds -1 s for each instruction of unknown time. The
    # sum of the known times is far below 1 s. If two times are unknown, and the known times sum to
    # 1 ms, `seconds` is -1.999 s. Rounding 1.999 up gives 2, the number of unknown times.
    unknown_count = math.ceil(-seconds) if seconds < 0 else 0
    known_seconds = seconds + unknown_count
    # XLA counts one iteration of each loop. The factor makes the result count all iterations.
    return known_seconds * parsed.trips_factor


def _mesh(arguments: Sequence[Any], topology: Topology) -> Mesh | AbstractMesh | None:
    """Return the mesh of the arguments' shardings, or None if no argument is on a mesh.

    Raises InputError for several meshes, or a mesh with more devices than the topology.
    """
    shardings = [getattr(x, "sharding", None) for x in jax.tree.leaves(arguments)]
    meshes = [x.mesh for x in shardings if isinstance(x, jax.sharding.NamedSharding)]
    if not meshes:
        return None
    first_mesh = meshes[0]
    if any(dict(mesh.shape) != dict(first_mesh.shape) for mesh in meshes):
        raise InputError("the arguments are on several meshes", hint="give all the same mesh")
    topology.require_devices(first_mesh.shape)
    return first_mesh


def _work(
    compiled: Compiled, lowered_analysis: Mapping[str, float], device_count: int
) -> tuple[float | None, float | None]:
    """Return the flops and the accessed bytes of one device.

    `lowered_analysis` has counts of the lowered program, before fusion, for all devices. These
    counts are used if the compiler reports no counts for the compiled program.
    """
    if compiled.analysis:
        return compiled.analysis.get("flops"), compiled.analysis.get("bytes accessed")
    flops = lowered_analysis.get("flops")
    if flops is not None:
        flops /= device_count
    accessed_bytes = lowered_analysis.get("bytes accessed")
    if accessed_bytes is not None:
        accessed_bytes /= device_count
    return flops, accessed_bytes


def _peak(topology: Topology, arguments: Sequence[Any]) -> float:
    """Return the peak rate of the matrix units, for the dtype that most items of arguments have."""
    peaks = topology.chip.peaks
    items_by_dtype: defaultdict[str, int] = defaultdict(int)
    for x in jax.tree.leaves(arguments):
        if jnp.issubdtype(x.dtype, jnp.floating):
            items_by_dtype[jnp.dtype(x.dtype).name] += math.prod(x.shape)
    dtype = max(items_by_dtype, key=items_by_dtype.__getitem__, default="float32")
    # With jax's default precision, GPUs multiply float32 in TF32, and TPUs multiply float32 in
    # bfloat16. The peaks of TPUs have no "tf32", so for TPUs the result is the peak of bfloat16.
    format_of_products = "tf32" if dtype == "float32" else dtype
    return peaks.get(format_of_products, peaks["bfloat16"])


def _names(row: DeviceRow) -> str:
    """Return the names of a row's operations, at most three of them."""
    names = ", ".join(row.operations[:_MOST_NAMES]) or "other kernels"
    hidden_count = len(row.operations) - _MOST_NAMES
    return f"{names} and {hidden_count} more" if hidden_count > 0 else names


def _place(row: DeviceRow) -> str:
    """Return the kinds and the module of a row's operations as text, or only the kinds."""
    kinds = ", ".join(row.kinds)
    return f"{kinds} in {row.module}" if row.module else kinds


def _size(nbytes: float) -> str:
    """Return a number of bytes as text, such as "1.5 KiB"."""
    size = nbytes
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def _count(number: float) -> str:
    """Return a number as text, such as "1,234,567"."""
    return f"{int(number):,}"


def _rate(amount: float | None, seconds: float | None, scale: float, unit: str) -> str:
    """Return the rate `amount / seconds` as text, such as " of 197 Tflop/s".

    The rate is divided by `scale`, such as 1e12 for the unit "Tflop/s". The text is "" if the
    amount or the time is unknown.
    """
    if not amount or not seconds:
        return ""
    return f" of {amount / seconds / scale:.4g} {unit}"


def _time(seconds: float) -> str:
    """Return a time as text, in microseconds or milliseconds."""
    return f"{seconds * 1e6:.4g} us" if seconds < 1e-3 else f"{seconds * 1e3:.4g} ms"
