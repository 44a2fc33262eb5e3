"""The commands `nnef-jax profile`, `benchmark` and `cost`: time and cost of a network."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nnef_jax.cli import command_options as option
from nnef_jax.cli import compared_models
from nnef_jax.cli.commands import app
from nnef_jax.cli.terminal import status

if TYPE_CHECKING:
    from nnef_jax import Model

_ONNX = ("onnxruntime", "openvino")


@app.command()
@option.grouped
def profile(
    source: option.Source,
    inputs: compared_models.Inputs = None,
    entry: compared_models.Entry = "apply",
    calls: Annotated[
        int | None,
        typer.Option(min=1, help="Recorded calls; by default a second of them, at least 5."),
    ] = None,
    shown: compared_models.Shown = compared_models.Shown(),
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Save all events, named by operations, as a .json.gz for https://ui.perfetto.dev.",
            show_default=False,
        ),
    ] = None,
    reading: option.Reading = option.Reading(),
) -> None:
    """Measure the time of a call by operation."""
    shown.check()
    model = reading.load(source)
    arrays = compared_models.arrays_of(model, inputs)
    with status("measuring"):
        import nnef_jax

        times = nnef_jax.profile(
            model, *arrays, entry=entry, calls=calls, trace=trace, overwrite=shown.overwrite
        )
    shown.show(times, saved=trace)


@app.command("benchmark")
@option.grouped
def measure_latency(
    source: option.Source,
    inputs: compared_models.Inputs = None,
    batches: Annotated[
        str,
        typer.Option(
            "--batch",
            metavar="SIZES",
            help="Batch sizes (extents of the inputs' first axis), comma-separated, as 1,8,32.",
        ),
    ] = "",
    entry: compared_models.Entry = "apply",
    onnx: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also run this .onnx file of the same network in onnxruntime, and in openvino if "
            "it is installed.",
            show_default=False,
        ),
    ] = None,
    tract: Annotated[bool, typer.Option("--tract", help="Also run the network in tract.")] = False,
    rounds: Annotated[
        int, typer.Option(min=1, help="The number of turns of each batch and engine.")
    ] = 5,
    seconds: Annotated[
        float, typer.Option(min=0, help="The duration of a turn's timed calls.")
    ] = 0.2,
    seed: compared_models.Seed = 0,
    shown: compared_models.Shown = compared_models.Shown(),
    reading: option.Reading = option.Reading(),
) -> None:
    """Measure the latency of calls, by batch and engine."""
    shown.check()
    needs_apply = bool(batches or onnx or tract)
    if needs_apply and entry != "apply":
        message = "step and scan do not go with --batch, --onnx and --tract"
        raise typer.BadParameter(message, param_hint="--entry")
    sizes = [_size(text) for text in batches.split(",")] if batches else []
    model = reading.load(source)
    if sizes:
        model = _with_open_batch(model, source, reading)
    arrays = compared_models.arrays_of(model, inputs)
    with status("measuring"):
        import nnef_jax

        timings = nnef_jax.benchmark(
            model,
            *arrays,
            entry=entry,
            batches=sizes,
            against=_engines(onnx, source if tract else None),
            rounds=rounds,
            seconds=seconds,
            seed=seed,
        )
    shown.show(timings)


@app.command()
@option.grouped
def cost(
    source: option.Source,
    platform: Annotated[
        Literal["cpu", "cuda", "rocm", "tpu"] | None,
        typer.Option(help="The platform to lower for; by default jax's.", show_default=False),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICES",
            help="Compile for devices that need not be attached, without reading weights: "
            "v5e:1, v5e:4x4, v4:2x2x1, v5p:2x2x1, v6e:2x2, tpu7x:2x2x1, a100, h100, h100:8, "
            "h100:2x8 (hosts x GPUs).",
            show_default=False,
        ),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=N,...",
            help="The axes of a mesh over the devices of --topology: data=4,model=4.",
            show_default=False,
        ),
    ] = None,
    batch_axis: Annotated[
        str, typer.Option(metavar="NAME", help="The mesh axis along which the batch is sharded.")
    ] = "data",
    params_axis: Annotated[
        str, typer.Option(metavar="NAME", help="The mesh axis along which parameters are sharded.")
    ] = "model",
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="The batch of all devices together.", show_default=False),
    ] = None,
    reading: option.Reading = option.Reading(),
    as_json: option.Json = False,
) -> None:
    """Show XLA's estimate of a call's cost.

    The multiply-adds of the document are shown beside the estimate. With --topology the program is
    compiled for devices that are not attached.
    """
    if topology is None and mesh is not None:
        raise typer.BadParameter("a mesh needs --topology", param_hint="--mesh")
    if topology is not None and platform is not None:
        message = "--topology names the platform, too"
        raise typer.BadParameter(message, param_hint="--platform")
    axes = None if mesh is None else _axes(mesh)
    if topology is not None:
        # This must happen before `reading.load` imports jax.
        _use_only_cpu()
    # The compiler for a topology needs only the shapes of the weights.
    parameters = "arrays" if topology is None else "shapes"
    model = reading.load(source, parameters=parameters)
    if batch is not None:
        model = _with_open_batch(model, source, reading, parameters=parameters)
    with status("compiling"):
        import nnef_jax
        from nnef_jax.measure.examples import declared_types

        types = declared_types(model, batch)
        keywords: dict[str, Any] = {"platform": platform}
        if topology is not None:
            keywords |= {"topology": topology, "mesh": axes}
            keywords |= {"batch": batch_axis, "params": params_axis}
        estimate = nnef_jax.cost(model, *types, **keywords)
    compared_models.Shown(as_json=as_json).show(estimate)


def _engines(onnx: Path | None, tract: str | None) -> dict[str, Any]:
    """Return a dict from names of engines to the files that they run.

    `onnx` is the file for onnxruntime and openvino, and `tract` is the file for tract.
    """
    engines: dict[str, Any] = {}
    if onnx is not None:
        from importlib.util import find_spec

        installed_engines = [name for name in _ONNX if find_spec(name)]
        # If neither engine is installed, the error names onnxruntime as missing.
        engines |= dict.fromkeys(installed_engines or _ONNX[:1], onnx)
    if tract is not None:
        engines["tract"] = tract
    return engines


def _use_only_cpu() -> None:
    """Keep jax from searching for TPUs and GPUs, unless the user has chosen platforms of jax.

    Plugins of jax are installed together with the compilers for devices. The plugins search for
    devices, and print tracebacks if they find none. This function sets an environment variable,
    which jax reads when it is imported.
    """
    if "jax" not in sys.modules:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def _axes(text: str) -> dict[str, int]:
    """Read a text such as "data=4,model=4"; return a dict that maps names of axes to extents."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, _, extent = part.partition("=")
        is_axis = name.strip() and _is_positive(extent)
        if not is_axis:
            message = f"{part!r} is no axis of a mesh; give some as in data=4,model=4"
            raise typer.BadParameter(message, param_hint="--mesh")
        axes[name.strip()] = int(extent)
    return axes


def _with_open_batch(model: Model, source: str, reading: option.Reading, **options: Any) -> Model:
    """Load a network again, with a batch of any size.

    The batch size is the first extent of the first input that has axes. If the first extent of an
    input is equal to the batch size, this extent is made open.
    """
    keywords = reading.keywords
    shapes_by_option = keywords.pop("input_shapes")
    shapes: dict[str, list[Any]] = {}
    for spec in model.inputs:
        shapes[spec.name] = list(shapes_by_option.get(spec.name, spec.shape))
    # Inputs without axes have no batch.
    shapes_with_axes = [shape for shape in shapes.values() if shape]
    if shapes_with_axes:
        batch_extent = shapes_with_axes[0][0]
        for shape in shapes_with_axes:
            if shape[0] == batch_extent:
                shape[0] = None
    with status(f"reading {source}"):
        import nnef_jax

        return nnef_jax.load(source, input_shapes=shapes, **keywords, **options)


def _size(text: str) -> int:
    """Return the batch size in a text. Raises BadParameter if it is not a positive number."""
    if not _is_positive(text):
        message = f"{text!r} is not a batch size; sizes are numbers as in 1,8,32"
        raise typer.BadParameter(message, param_hint="--batch")
    return int(text)


def _is_positive(text: str) -> bool:
    """Tell whether a text is a positive whole number."""
    return text.strip().isdecimal() and int(text) > 0
