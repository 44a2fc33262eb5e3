"""Compiles functions for devices that are not attached, in a separate process with the compiler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
from jax import export
from jax.sharding import AbstractMesh, Mesh

from nnef_jax.errors import InputError, NnefError, UnsupportedError
from nnef_jax.measure.topologies import Topology

_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_X64": "1",  # jax keeps the dtypes of 64 bits that a program has.
    # jax does not check the versions of CUDA's libraries, which are needed only to run programs.
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "TPU_SKIP_MDS_QUERY": "1",  # libtpu does not ask a server which devices the host has.
    # Several processes may use libtpu at the same time. By default libtpu aborts the second one.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_CUSTOM_CALL = re.compile(r"stablehlo\.custom_call @(\w[\w.$]*)")


@dataclass(frozen=True)
class LoweredFunction:
    """A function that is lowered for a platform.

    Attributes:
        serialized: the function as bytes. Its arguments and results are flat lists of arrays.
        donated: positions of the arguments whose memory the function may overwrite.
        analysis: for CUDA, the work that jax counts before fusion and partitioning, because the
            compiler for CUDA does not count work. For other platforms the dict is empty.
    """

    serialized: bytes
    donated: Sequence[int]
    analysis: Mapping[str, float]


@dataclass(frozen=True)
class Compiled:
    """A compiled program: its text, and the compiler's figures for one device.

    Attributes:
        text: the optimised HLO module.
        argument_bytes: bytes of arguments.
        output_bytes: bytes of results.
        alias_bytes: bytes of the results that are in the memory of arguments.
        temp_bytes: the peak memory in bytes for intermediate tensors.
        generated_code_bytes: bytes of the program.
        analysis: the compiler's estimates by name; empty on GPUs.
    """

    text: str
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    generated_code_bytes: int
    analysis: Mapping[str, float]


@dataclass(frozen=True)
class Refused:
    """The compiler's refusal of a program.

    Attributes:
        reason: the first line of the compiler's message, or the last line of the messages of a
            process that aborted.
        aborted: whether the process of the compiler ended without a result.
    """

    reason: str
    aborted: bool = False

    @property
    def is_for_memory(self) -> bool:
        """Tell whether the program needs more memory than a device has."""
        return not self.aborted and "RESOURCE_EXHAUSTED" in self.reason


def lowered_program(
    function: Callable[..., Any], arguments: Sequence[Any], platform: str
) -> LoweredFunction:
    """Lower a function for a platform. `arguments` are arrays or types, and may have shardings.

    If the function is jitted already, its shardings and its donated arguments are kept. Raises
    UnsupportedError for arguments and results of 2 bits.
    """
    is_jitted = hasattr(function, "trace")
    jitted: Any = function if is_jitted else jax.jit(function)
    traced = jitted.trace(*arguments)
    avals = jax.tree.leaves((traced.in_avals, traced.out_avals))
    has_two_bits = any("int2" in aval.dtype.name for aval in avals)
    if has_two_bits:
        # jax cannot serialise types of 2 bits, and libtpu would abort the process.
        message = "arguments and results of 2 bits cannot be compiled for devices"
        raise UnsupportedError(message, hint="cast them to 4 bits or more")
    analysis = None
    if platform == "cuda":
        analysis = traced.lower(lowering_platforms=(platform,)).cost_analysis()
    exported = _exported(jitted, traced, arguments, platform)
    # The trees of arguments and results may contain types of the caller, which jax cannot
    # serialise. A tuple of all arguments and a list of all results take the place of the trees.
    argument_infos = jax.tree.leaves(traced.args_info)
    no_keyword_arguments: dict[str, Any] = {}
    flat_in = jax.tree.structure((tuple(argument_infos), no_keyword_arguments))
    flat_out = jax.tree.structure([*exported.out_avals])
    with_flat_trees: Any = replace(exported, in_tree=flat_in, out_tree=flat_out)
    donated = [position for position, info in enumerate(argument_infos) if info.donated]
    return LoweredFunction(with_flat_trees.serialize(), donated, analysis or {})


def _exported(jitted: Any, traced: Any, arguments: Sequence[Any], platform: str) -> export.Exported:
    """Export a jitted function, which may have custom calls. `traced` is the traced function."""
    try:
        return export.export(jitted, platforms=[platform])(*arguments)
    except ValueError:
        # jax refuses to export a program with custom calls that another version of jax may lack.
        # Here the installed version of jax compiles the program, so the check is disabled for all
        # custom calls in the program.
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        targets = sorted(set(_CUSTOM_CALL.findall(text)))
        checks = [export.DisabledSafetyCheck.custom_call(target) for target in targets]
        return export.export(jitted, platforms=[platform], disabled_checks=checks)(*arguments)


def compile_for(
    topology: Topology,
    programs: Sequence[LoweredFunction],
    mesh: Mesh | AbstractMesh | None = None,
) -> list[Compiled | Refused]:
    """Compile programs for the devices of a topology.

    Args:
        topology: the devices, whose compiler must be installed.
        programs: the programs, which are compiled one after the other. If the compiler aborts, a
            new process compiles the remaining programs.
        mesh: the mesh of the programs' shardings, or None if the programs have no shardings.
    """
    results: list[Compiled | Refused] = []
    while len(results) < len(programs):
        remaining_programs = programs[len(results) :]
        results += _compiled(topology, remaining_programs, mesh)
    return results


def _compiled(
    topology: Topology, programs: Sequence[LoweredFunction], mesh: Mesh | AbstractMesh | None
) -> list[Compiled | Refused]:
    """Compile programs, one after the other, until the compiler aborts.

    If the compiler aborts, the last result is the refusal of the program that it was compiling.
    """
    with TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        request = {
            "topology": topology.description(),
            "mesh": dict(mesh.shape) if mesh else {},
            "axis_types": [axis_type.name for axis_type in mesh.axis_types] if mesh else [],
            "donated": [[*program.donated] for program in programs],
        }
        (folder / "request.json").write_text(json.dumps(request))
        for number, program in enumerate(programs):
            (folder / f"{number}.jax").write_bytes(program.serialized)
        command = [sys.executable, "-m", "nnef_jax.measure.compiler_process", folder_name]
        process = subprocess.run(
            command, env=os.environ | _ENVIRONMENT, capture_output=True, text=True, errors="replace"
        )
        # The process writes the number of devices as soon as it has the topology.
        devices_path = folder / "devices.json"
        if not devices_path.exists():
            raise _not_started(topology, _last_line(process.stderr))
        device_count = json.loads(devices_path.read_text())
        if device_count != topology.devices:
            message = f"the compiler has {device_count} devices for '{topology.name}'"
            raise NnefError(f"{message}, {topology.devices} were expected")
        return _read_results(folder, len(programs), process.stderr)


def _read_results(folder: Path, program_count: int, messages: str) -> list[Compiled | Refused]:
    """Read the results that the process of the compiler wrote to a folder.

    If the process aborted, there is no result for the program that it was compiling, nor for later
    programs. The last result is then a refusal, with the last line of the process's `messages`.
    """
    results: list[Compiled | Refused] = []
    for number in range(program_count):
        figures_path = folder / f"{number}.json"
        if not figures_path.exists():
            results.append(Refused(_last_line(messages), aborted=True))
            break
        figures = json.loads(figures_path.read_text())
        if "refusal" in figures:
            first_line, *_ = figures["refusal"].split("\n")
            results.append(Refused(first_line))
        else:
            hlo = (folder / f"{number}.hlo").read_text()
            results.append(Compiled(hlo, **figures))
    return results


def _not_started(topology: Topology, reason: str) -> InputError:
    """Return the error for a compiler that does not start.

    `reason` is the last line of the compiler's messages.
    """
    if "Topology layout" in reason:
        # `topology_of` accepts the layout, but the installed version of libtpu refuses it.
        message = f"the compiler has no layout '{topology.name}': {reason}"
        return InputError(message, hint="name another layout; a mesh may use fewer devices")
    message = f"the compiler for '{topology.name}' does not start: {reason}"
    return InputError(message, hint="pip install -U 'nnef_jax[devices]'")


def _last_line(text: str) -> str:
    """Return the last line of a process's messages, ignoring empty and indented lines."""
    for line in reversed(text.splitlines()):
        if line.strip() and not line.startswith("\t"):
            return line.strip()
    return "it ends without a message"
