"""`nnef-jax openvx check`, `run` and `stats`: a network in OpenVX's fixed-point arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nnef_jax.cli.commands import app
from nnef_jax.cli.given import (
    Inputs,
    Plot,
    Seed,
    Shapes,
    arrays_of,
    check_plot,
    check_tolerance,
    loaded,
    show,
)
from nnef_jax.cli.options import (
    Dialect,
    Files,
    Json,
    Layout,
    Mean,
    Output,
    Overwrite,
    Resize,
    Scale,
    Source,
    Top,
    Weights,
    picture_options,
)
from nnef_jax.cli.terminal import print_result, status

if TYPE_CHECKING:
    from nnef_jax import Model
    from nnef_jax.openvx import Lowered

openvx = typer.Typer(
    help="Check, run and measure a network in the fixed-point arithmetic of OpenVX.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(openvx, name="openvx")

Profile = Annotated[
    Literal["openvx-16bit", "openvx-8bit"],
    typer.Option(help="openvx-16bit: int16, Q7.8; openvx-8bit: int8."),
]
Unsigned = Annotated[bool, typer.Option("--unsigned", help="uint8 instead of int8.")]
Overflow = Annotated[
    Literal["saturate", "wrap"], typer.Option(help="What becomes of results beyond the type.")
]
Rounding = Annotated[Literal["nearest_even", "to_zero"], typer.Option(help="Of results.")]
Semantics = Annotated[
    Literal["spec", "khronos"],
    typer.Option(help="spec: the text of the extension; khronos: the published C code."),
]
OnUnfit = Annotated[
    Literal["error", "float"],
    typer.Option(help="float: compute in real numbers what does not fit, between integers."),
]


@openvx.command()
def check(
    source: Source,
    profile: Profile = "openvx-16bit",
    unsigned: Unsigned = False,
    semantics: Semantics = "spec",
    shapes: Shapes = None,
    dialect: Dialect = "auto",
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """Tell which layer of OpenVX computes each operation, or why none does.

    The status is 0 where all operations fit, 1 where one does not, or for an error.
    """
    dtype = _dtype(profile, unsigned)
    model = loaded(source, shapes, dialect, weights)
    from nnef_jax.openvx import check_profile

    found = check_profile(model, profile, dtype=dtype, semantics=semantics)
    show(found, as_json)
    if not found.fits:
        raise typer.Exit(1)


@openvx.command()
def run(
    source: Source,
    inputs: Files = None,
    profile: Profile = "openvx-16bit",
    unsigned: Unsigned = False,
    overflow: Overflow = "saturate",
    rounding: Rounding = "nearest_even",
    semantics: Semantics = "spec",
    on_unfit: OnUnfit = "error",
    raw: Annotated[bool, typer.Option("--raw", help="Show the raw integers of outputs.")] = False,
    mean: Mean = "0",
    scale: Scale = "1",
    layout: Layout = "nchw",
    resize: Resize = False,
    output: Output = None,
    overwrite: Overwrite = False,
    top: Top = None,
    shapes: Shapes = None,
    dialect: Dialect = "auto",
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """Run a network in fixed point on files of real numbers, and convert its outputs back."""
    pictures = picture_options(inputs or (), mean, scale, layout, resize)
    model = loaded(source, shapes, dialect, weights)
    from nnef_jax.cli import inputs as read
    from nnef_jax.cli import outputs as write

    calls = read.read_inputs(inputs or (), model.inputs, pictures)
    if output:
        write.check_output(output, [spec.name for spec in model.outputs], overwrite)
    lowered = _lowered(model, profile, unsigned, overflow, rounding, semantics, on_unfit)
    with status("compiling and running"):
        function = _raw_of(lowered) if raw else lowered.float
        results = write.run_calls(model, calls, function)
    largest = write.Top(top) if top else None
    print_result(*write.reported(model.graph.name, results, output, largest, as_json, overwrite))


@openvx.command()
def stats(
    source: Source,
    inputs: Inputs = None,
    profile: Profile = "openvx-16bit",
    unsigned: Unsigned = False,
    overflow: Overflow = "saturate",
    rounding: Rounding = "nearest_even",
    semantics: Semantics = "spec",
    on_unfit: OnUnfit = "error",
    rtol: Annotated[float, typer.Option(min=0, help="Of a number, or of a tensor's scale.")] = 0.1,
    atol: Annotated[float, typer.Option(min=0, help="In addition.")] = 0.0,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Also tell the SNR of each layer by itself.")
    ] = False,
    mean: Mean = "0",
    scale: Scale = "1",
    layout: Layout = "nchw",
    resize: Resize = False,
    shapes: Shapes = None,
    seed: Seed = 0,
    plot: Plot = None,
    overwrite: Overwrite = False,
    dialect: Dialect = "auto",
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """Compare a network in fixed point with itself in real numbers, tensor by tensor."""
    pictures = picture_options(inputs or (), mean, scale, layout, resize)
    check_plot(plot, overwrite)
    check_tolerance(rtol, atol)
    model = loaded(source, shapes, dialect, weights)
    arrays = arrays_of(model, inputs, pictures)
    if not arrays:
        from nnef_jax.measure.examples import random_inputs

        found = random_inputs(model, seed)
        arrays = [found[spec.name] for spec in model.inputs]
    lowered = _lowered(model, profile, unsigned, overflow, rounding, semantics, on_unfit)
    with status("comparing"):
        compared = lowered.stats(*arrays, rtol=rtol, atol=atol, isolate=isolate)
    show(compared, as_json, plot, overwrite=overwrite)


def _dtype(profile: str, unsigned: bool) -> str | None:
    if unsigned and profile != "openvx-8bit":
        raise typer.BadParameter("needs --profile openvx-8bit", param_hint="--unsigned")
    return "uint8" if unsigned else None


def _lowered(
    model: Model,
    profile: Any,
    unsigned: bool,
    overflow: Any,
    rounding: Any,
    semantics: Any,
    on_unfit: Any,
) -> Lowered:
    from nnef_jax.openvx import lower

    return lower(
        model,
        profile,
        dtype=_dtype(profile, unsigned),
        overflow_policy=overflow,
        rounding_policy=rounding,
        semantics=semantics,
        on_unfit=on_unfit,
    )


def _raw_of(lowered: Lowered) -> Any:
    """Return a function of real numbers that returns the raw integers of outputs."""
    from nnef_jax.openvx import Tensor

    def run(*arrays: Any) -> Any:
        found = lowered(*lowered.quantize(*arrays))
        if isinstance(found, tuple):
            return tuple(x.data if isinstance(x, Tensor) else x for x in found)
        return found.data if isinstance(found, Tensor) else found

    return run
