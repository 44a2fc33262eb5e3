"""The process that compiles programs for devices that are not attached.

    python -m nnef_jax.measure.compiler_process FOLDER

The folder contains `request.json` and the programs `0.jax`, `1.jax`, ..., which are functions that
`jax.export` serialised. For the program `0.jax` the process writes `0.json` with the compiler's
figures or its refusal, and `0.hlo` with the compiled program. The module `unattached` starts the
process. A separate process is needed for two reasons: the settings of a compiler must be in the
environment before the compiler is loaded, and a compiler may abort its process.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export
from jax.experimental.topologies import get_topology_desc
from jax.sharding import AxisType, Mesh

_MEMORY = ("argument", "output", "alias", "temp", "generated_code")


def main(folder: Path) -> None:
    """Compile the programs in a folder.

    The file request.json has the topology, the mesh, and the donated arguments of each program.
    Program 0 is read from 0.jax. The compiled program is written to 0.hlo, and its figures are
    written to 0.json. If the compiler refuses the program, 0.json has the refusal, and 0.hlo is not
    written. The number of devices in the topology is written to devices.json.
    """
    request = json.loads((folder / "request.json").read_text())
    devices: list[Any] = get_topology_desc(**request["topology"]).devices
    (folder / "devices.json").write_text(json.dumps(len(devices)))
    for number, donated in enumerate(request["donated"]):
        serialized = (folder / f"{number}.jax").read_bytes()
        try:
            compiled = compile_program(
                serialized,
                donated,
                devices,
                axes=request["mesh"],
                axis_types=request["axis_types"],
            )
        except Exception as error:
            # The compiler refuses the program.
            figures: dict[str, object] = {"refusal": str(error), "type": type(error).__name__}
        else:
            memory = compiled.memory_analysis()
            figures = {"analysis": compiled.cost_analysis() or {}}
            for kind in _MEMORY:
                figures[f"{kind}_bytes"] = getattr(memory, f"{kind}_size_in_bytes")
            (folder / f"{number}.hlo").write_text(compiled.as_text() or "")
        # The process may be aborted at any time. The file gets its name only when it is complete,
        # so a file with this name is never incomplete.
        incomplete_path = folder / f"{number}.part"
        incomplete_path.write_text(json.dumps(figures))
        incomplete_path.rename(folder / f"{number}.json")


def compile_program(
    serialized: bytes,
    donated: list[int],
    devices: list[Any],
    axes: dict[str, int],
    axis_types: list[str],
) -> Any:
    """Compile a function, which `jax.export` serialised, for a mesh.

    Args:
        serialized: the function.
        donated: positions of the arguments whose memory the program may overwrite.
        devices: all devices. The mesh takes as many of the first devices as it needs.
        axes: maps names of the mesh's axes to extents. If `axes` is empty, the function is compiled
            for a mesh with one axis, over as many devices as the function was exported for.
        axis_types: names of the axis types of the mesh, such as "Auto". The list may be empty for
            a mesh with one axis.
    """
    exported = export.deserialize(bytearray(serialized))
    if not axes:
        axes = {"devices": exported.nr_devices}
    extents = list(axes.values())
    mesh_axis_types = tuple([AxisType[name] for name in axis_types]) or (AxisType.Auto,)
    mesh_devices = np.array(devices[: math.prod(extents)]).reshape(extents)
    mesh = Mesh(mesh_devices, tuple(axes), mesh_axis_types)
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shardings = [sharding or replicated for sharding in exported.in_shardings_jax(mesh)]
    call = jax.jit(exported.call, in_shardings=shardings, donate_argnums=donated)
    types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in exported.in_avals]
    return call.lower(*types).compile()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
