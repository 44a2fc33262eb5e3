"""The commands `nnef-jax openvx`, which compute a network in OpenVX's fixed-point arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nnef_jax.cli import command_options as option
from nnef_jax.cli import compared_models
from nnef_jax.cli.commands import app
from nnef_jax.cli.terminal import print_result, status

if TYPE_CHECKING:
    from nnef_jax import Model
    from nnef_jax.openvx import Lowered

openvx: typer.Typer = typer.Typer(
    help="Check and run a network in OpenVX's fixed point.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(openvx, name="openvx")

ProfileName = Annotated[
    Literal["openvx-16bit", "openvx-8bit"],
    typer.Option(help="openvx-16bit: int16, Q7.8; openvx-8bit: int8."),
]
Unsigned = Annotated[bool, typer.Option("--unsigned", help="Use uint8 instead of int8.")]
Semantics = Annotated[
    Literal["spec", "khronos"],
    typer.Option(help="spec: as the OpenVX extension says; khronos: as Khronos's C code computes."),
]


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """The options for lowering a network to fixed point."""

    profile: ProfileName = "openvx-16bit"
    unsigned: Unsigned = False
    overflow: Annotated[
        Literal["saturate", "wrap"], typer.Option(help="Treatment of results beyond the type.")
    ] = "saturate"
    rounding: Annotated[
        Literal["nearest_even", "to_zero"], typer.Option(help="Rounding of results.")
    ] = "nearest_even"
    semantics: Semantics = "spec"
    on_unfit: Annotated[
        Literal["error", "float"],
        typer.Option(help="float: compute operations that do not fit in real numbers."),
    ] = "error"

    def lower(self, model: Model) -> Lowered:
        """Lower a network to the fixed-point arithmetic of these options."""
        from nnef_jax.openvx import lower

        return lower(
            model,
            self.profile,
            dtype=_dtype(self.profile, self.unsigned),
            overflow_policy=self.overflow,
            rounding_policy=self.rounding,
            semantics=self.semantics,
            on_unfit=self.on_unfit,
        )


@openvx.command()
@option.grouped
def check_profile(
    source: option.Source,
    profile: ProfileName = "openvx-16bit",
    unsigned: Unsigned = False,
    semantics: Semantics = "spec",
    reading: option.Reading = option.Reading(),
    as_json: option.Json = False,
) -> None:
    """Tell which OpenVX layer computes each operation.

    If no layer computes an operation, the reason is shown.

    The exit status is 0 if layers compute all operations, and 1 otherwise, or for an error.
    """
    dtype = _dtype(profile, unsigned)
    model = reading.load(source)
    from nnef_jax.openvx import check_profile as check

    report = check(model, profile, dtype=dtype, semantics=semantics)
    compared_models.Shown(as_json=as_json).show(report)
    if not report.fits:
        raise typer.Exit(1)


@openvx.command()
@option.grouped
def run(
    source: option.Source,
    inputs: option.Files = None,
    arithmetic: FixedPoint = FixedPoint(),
    raw: Annotated[
        bool, typer.Option("--raw", help="Keep outputs as raw integers, without conversion.")
    ] = False,
    pixels: option.Pixels = option.Pixels(),
    output: option.Output = None,
    overwrite: option.Overwrite = False,
    top: option.Top = None,
    reading: option.Reading = option.Reading(),
    as_json: option.Json = False,
) -> None:
    """Run a network in fixed point on real inputs.

    Outputs are converted back to floating-point numbers, except with --raw.
    """
    pictures = pixels.options(inputs)
    model = reading.load(source)
    from nnef_jax.cli import outputs
    from nnef_jax.cli.inputs import read_inputs

    calls = read_inputs(inputs or (), model.inputs, pictures)
    if output:
        outputs.check_output(output, [spec.name for spec in model.outputs], overwrite)
    lowered = arithmetic.lower(model)
    with status("compiling and running"):
        function = _raw_of(lowered) if raw else lowered.float
        results = outputs.run_calls(model, calls, function)
    largest = outputs.Top(top) if top else None
    name = model.graph.name
    print_result(*outputs.saved_or_shown(name, results, output, largest, as_json, overwrite))


@openvx.command()
@option.grouped
def stats(
    source: option.Source,
    inputs: compared_models.Inputs = None,
    arithmetic: FixedPoint = FixedPoint(),
    rtol: compared_models.RelativeTolerance = 0.1,
    atol: compared_models.AbsoluteTolerance = 0.0,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Show the signal-to-noise ratio of each layer alone.")
    ] = False,
    pixels: option.Pixels = option.Pixels(),
    seed: compared_models.Seed = 0,
    shown: compared_models.Shown = compared_models.Shown(),
    reading: option.Reading = option.Reading(),
) -> None:
    """Compare a network's tensors in fixed point and in real."""
    pictures = pixels.options(inputs)
    shown.check()
    compared_models.check_tolerance(rtol, atol)
    model = reading.load(source)
    arrays = compared_models.arrays_of(model, inputs, pictures)
    if not arrays:
        from nnef_jax.measure.examples import random_inputs

        arrays = list(random_inputs(model, seed).values())
    lowered = arithmetic.lower(model)
    with status("comparing"):
        comparison = lowered.stats(*arrays, rtol=rtol, atol=atol, isolate=isolate)
    shown.show(comparison)


def _dtype(profile: str, unsigned: bool) -> str | None:
    """Return the dtype for the option --unsigned: "uint8", or None for the profile's dtype."""
    if unsigned and profile != "openvx-8bit":
        raise typer.BadParameter("needs --profile openvx-8bit", param_hint="--unsigned")
    return "uint8" if unsigned else None


def _raw_of(lowered: Lowered) -> Any:
    """Return a function that takes floating-point inputs and returns outputs as raw integers."""
    from nnef_jax.openvx import Tensor

    def integers_of(output: Any) -> Any:
        # An output that is no `Tensor` is an array already.
        return output.data if isinstance(output, Tensor) else output

    def raw_outputs(*arrays: Any) -> Any:
        quantized = lowered.quantize(*arrays)
        results: Any = lowered(*quantized)
        if isinstance(results, tuple):
            outputs: tuple[Any, ...] = results
            return tuple(map(integers_of, outputs))
        return integers_of(results)

    return raw_outputs
