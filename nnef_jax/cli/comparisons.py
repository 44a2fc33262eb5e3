"""`nnef-jax compare`, `diff`, `weight-statistics` and `activation-statistics`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnef_jax import InputError
from nnef_jax.cli import command_options as option
from nnef_jax.cli import compared_models
from nnef_jax.cli.commands import app
from nnef_jax.cli.terminal import status

if TYPE_CHECKING:
    from nnef_jax import Model
    from nnef_jax.cli.pictures import PictureOptions

_SIDE = "a network, a .npz of tensors that were recorded, or a .onnx, which onnxruntime runs"


@app.command()
@option.grouped
def compare(
    a: Annotated[
        str, typer.Argument(metavar="A", help=f"The reference: {_SIDE}.", show_default=False)
    ],
    b: Annotated[str, typer.Argument(metavar="B", help=f"The other: {_SIDE}.", show_default=False)],
    inputs: compared_models.Inputs = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="A=B",
            help="A tensor of A and the one of B that is the same, where no name tells; can be "
            "repeated.",
            show_default=False,
        ),
    ] = None,
    rtol: Annotated[float, typer.Option(min=0, help="Of a number, or of a tensor's scale.")] = 1e-3,
    atol: Annotated[float, typer.Option(min=0, help="In addition.")] = 1e-5,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Tell which layers of B differ by themselves.")
    ] = False,
    outputs: Annotated[
        bool,
        typer.Option("--outputs", help="Outputs alone, in order: where other names mislead."),
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Show all tensors, not those alone that differ.")
    ] = False,
    seed: compared_models.Seed = 0,
    pixels: option.Pixels = option.Pixels(),
    shown: compared_models.Shown = compared_models.Shown(),
    reading: option.Reading = option.Reading(),
) -> None:
    """Run two networks and show where their values part.

    Both get the same inputs, and are compared tensor by tensor. Of two .onnx B is run here. To
    compare two documents' graphs and weights use `diff`, which runs neither.

    The status is 0 where all are within the tolerance, 1 where some are not, or for an error.
    """
    pictures = pixels.options(inputs)
    shown.check()
    compared_models.check_tolerance(rtol, atol)
    both = Path(a).suffix.lower() == Path(b).suffix.lower() == ".onnx"
    sides: list[Any] = [
        _side(a, reading, inside=not outputs),
        reading.load(b) if both else _side(b, reading, inside=not outputs),
    ]
    if isolate and (outputs or not _is_model(sides[1])):
        raise typer.BadParameter("needs a network as B, and tensors inside", param_hint="--isolate")
    arrays = _inputs(sides, inputs, seed, pictures)
    pairs = dict(_pair(text) for text in names or ())
    if outputs:
        sides = [_outputs_of(side) if _is_model(side) else side for side in sides]
    with status("comparing"):
        from nnef_jax.analysis import compare as compared

        comparison = compared(
            sides[0], sides[1], arrays, names=pairs, rtol=rtol, atol=atol, isolate=isolate
        )
    shown.show(comparison, None if every else comparison.table(differing=True))
    if comparison.first is not None:
        raise typer.Exit(1)


@app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A network.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.", show_default=False)],
    as_json: option.Json = False,
) -> None:
    """Show how two documents' graphs and weights differ.

    Neither runs. To compare what they compute use `compare`, which runs both.

    The status is 0 where nothing differs, 1 where something does, or for an error.
    """
    with status("comparing"):
        from nnef_jax import diff as compared

        difference = compared(a, b)
    compared_models.Shown(as_json=as_json).show(difference)
    if not difference.same:
        raise typer.Exit(1)


@app.command()
@option.grouped
def weight_statistics(
    source: option.Source,
    shown: compared_models.Shown = compared_models.Shown(),
    reading: option.Reading = option.Reading(),
) -> None:
    """Show statistics of the stored weights.

    Nothing runs. `activation-statistics` has those of the tensors that a run computes.
    """
    shown.check()
    network = reading.read(source)
    from nnef_jax import weight_statistics as statistics

    shown.show(statistics(network.data))


@app.command()
@option.grouped
def activation_statistics(
    source: option.Source,
    inputs: option.Files = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="PATTERN",
            help="Tensors, such as 'relu*', all by default; can be repeated.",
            show_default=False,
        ),
    ] = None,
    pixels: option.Pixels = option.Pixels(),
    shown: compared_models.Shown = compared_models.Shown(),
    reading: option.Reading = option.Reading(),
) -> None:
    """Run a network and show statistics of its tensors.

    They are over all inputs that are given. `weight-statistics` has those of the weights, and needs
    no inputs.
    """
    pictures = pixels.options(inputs)
    shown.check()
    model = reading.load(source)
    batches = compared_models.calls_of(model, inputs or (), pictures)
    with status("running"):
        from nnef_jax.analysis import activation_statistics as statistics

        tensors = statistics(model, batches, names=names or None)
    shown.show(tensors)


def _outputs_of(model: Model) -> Callable[..., tuple[Any, ...]]:
    """Return a function of the inputs by name that returns the outputs in order."""
    from nnef_jax.cli.outputs import by_name

    def run(**arrays: Any) -> tuple[Any, ...]:
        results = model(*[arrays[spec.name] for spec in model.inputs])
        return tuple(by_name(model, results).values())

    return run


def _side(path: str, reading: option.Reading, *, inside: bool) -> Any:
    """Return a side of `analysis.compare`: a model, recorded tensors, or an ONNX function."""
    match Path(path).suffix.lower():
        case ".npz":
            from nnef_jax.cli.inputs import read_members

            return read_members(Path(path))
        case ".onnx":
            from nnef_jax.measure.engines import onnx_tensors

            return onnx_tensors(path, reading.keywords["values"], inside=inside)
        case _:
            return reading.load(path)


def _inputs(
    sides: list[Any], files: list[str] | None, seed: int, pictures: PictureOptions
) -> dict[str, Any]:
    """Return inputs by name: from files, from recorded tensors, or random ones."""
    models = [side for side in sides if _is_model(side)]
    if not models:
        if files or not all(isinstance(side, Mapping) for side in sides):
            raise InputError("one of both has to be a network, to tell what its inputs are")
        return {}
    if files:
        arrays = compared_models.arrays_of(models[0], files, pictures)
        return {spec.name: x for spec, x in zip(models[0].inputs, arrays, strict=True)}
    recorded = next((side for side in sides if isinstance(side, Mapping)), {})
    names = [spec.name for spec in models[0].inputs]
    if names and all(name in recorded for name in names):
        return {name: recorded[name] for name in names}
    from nnef_jax.measure.examples import random_inputs

    return random_inputs(models[0], seed)


def _is_model(side: object) -> bool:
    from nnef_jax import Model

    return isinstance(side, Model)


def _pair(text: str) -> tuple[str, str]:
    a, equals, b = text.partition("=")
    if not (a and equals and b):
        raise typer.BadParameter(f"{text!r} is no A=B", param_hint="--name")
    return a, b
