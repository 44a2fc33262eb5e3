"""The commands `compare`, `diff`, `weight-statistics` and `activation-statistics`."""

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

_SOURCE = "a network, a .npz of recorded tensors, or an .onnx file, which onnxruntime runs"


@app.command()
@option.grouped
def compare(
    a: Annotated[
        str, typer.Argument(metavar="A", help=f"The reference: {_SOURCE}.", show_default=False)
    ],
    b: Annotated[
        str, typer.Argument(metavar="B", help="The other side, as A.", show_default=False)
    ],
    inputs: compared_models.Inputs = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="A=B",
            help="A tensor of A and the same tensor of B, if their names differ; can be repeated.",
            show_default=False,
        ),
    ] = None,
    rtol: compared_models.RelativeTolerance = 1e-3,
    atol: compared_models.AbsoluteTolerance = 1e-5,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Also run each layer of B by itself on A's tensors.")
    ] = False,
    outputs: Annotated[
        bool, typer.Option("--outputs", help="Compare only outputs, in order instead of by name.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Show all tensors, not only those that differ.")
    ] = False,
    seed: compared_models.Seed = 0,
    pixels: option.Pixels = option.Pixels(),
    shown: compared_models.Shown = compared_models.Shown(),
    reading: option.Reading = option.Reading(),
) -> None:
    """Run two networks and compare their tensors.

    Both networks get the same inputs. If both are .onnx files, onnxruntime runs A and nnef-jax runs
    B. `diff` compares graphs and weights, and runs neither network.

    The exit status is 0 if all tensors are within the tolerance, and 1 if not, or for an error.
    """
    pictures = pixels.options(inputs)
    shown.check()
    compared_models.check_tolerance(rtol, atol)
    are_both_onnx = Path(a).suffix.lower() == Path(b).suffix.lower() == ".onnx"
    source_a = _source_of(a, reading, inside=not outputs)
    source_b = reading.load(b) if are_both_onnx else _source_of(b, reading, inside=not outputs)
    can_isolate = _is_model(source_b) and not outputs
    if isolate and not can_isolate:
        message = "needs a network as B, and does not go with --outputs"
        raise typer.BadParameter(message, param_hint="--isolate")
    arrays = _inputs([source_a, source_b], inputs, seed, pictures)
    pairs = dict(_pair(text) for text in names or ())
    # Tensors of a model are compared by name. Outputs of a function are compared in order.
    if outputs and _is_model(source_a):
        source_a = _outputs_of(source_a)
    if outputs and _is_model(source_b):
        source_b = _outputs_of(source_b)
    with status("comparing"):
        from nnef_jax import analysis

        comparison = analysis.compare(
            source_a, source_b, arrays, names=pairs, rtol=rtol, atol=atol, isolate=isolate
        )
    shown.show(comparison, comparison.table(differing=not every))
    has_difference = comparison.first is not None
    if has_difference:
        raise typer.Exit(1)


@app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A network.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.", show_default=False)],
    as_json: option.Json = False,
) -> None:
    """Show how two documents' graphs and weights differ.

    Neither network runs. `compare` runs both networks, and compares the tensors that they compute.

    The exit status is 0 if nothing differs, and 1 if something does, or for an error.
    """
    with status("comparing"):
        import nnef_jax

        difference = nnef_jax.diff(a, b)
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

    The network does not run. `activation-statistics` shows statistics of the tensors in a run.
    """
    shown.check()
    network = reading.read(source)
    import nnef_jax

    shown.show(nnef_jax.weight_statistics(network.data))


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
            help="Show only these tensors, such as 'relu*'; can be repeated.",
            show_default=False,
        ),
    ] = None,
    pixels: option.Pixels = option.Pixels(),
    shown: compared_models.Shown = compared_models.Shown(),
    reading: option.Reading = option.Reading(),
) -> None:
    """Run a network and show statistics of its tensors.

    The statistics are over all inputs. `weight-statistics` shows statistics of the weights, and
    needs no inputs.
    """
    pictures = pixels.options(inputs)
    shown.check()
    model = reading.load(source)
    batches = compared_models.calls_of(model, inputs or (), pictures)
    with status("running"):
        from nnef_jax import analysis

        statistics = analysis.activation_statistics(model, batches, names=names or None)
    shown.show(statistics)


def _outputs_of(model: Model) -> Callable[..., tuple[Any, ...]]:
    """Return a function that takes inputs as keywords, and returns a tuple of a model's outputs."""
    from nnef_jax.cli.outputs import by_name

    def outputs_of_model(**arrays: Any) -> tuple[Any, ...]:
        results = model(*[arrays[spec.name] for spec in model.inputs])
        return tuple(by_name(model, results).values())

    return outputs_of_model


def _source_of(path: str, reading: option.Reading, *, inside: bool) -> Any:
    """Return a network to compare. The suffix of the path determines the kind of the result.

    For .npz the result is a dict of recorded tensors. For .onnx the result is a function that runs
    onnxruntime; if `inside`, this function also returns tensors inside the network. For any other
    suffix the result is a model.
    """
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
    sources: list[Any], files: list[str] | None, seed: int, pictures: PictureOptions
) -> dict[str, Any]:
    """Return the inputs for the networks to compare, as a dict of arrays by name.

    The inputs are read from `files`. Without files, the inputs in a recording among `sources` are
    taken. If the recording lacks an input, or there is no recording, the inputs are random.
    """
    models = [source for source in sources if _is_model(source)]
    recordings: list[Any] = [source for source in sources if isinstance(source, Mapping)]
    if not models:
        # Neither network is a model. Two recordings need no inputs. A function needs inputs, but
        # only a model declares which inputs it takes.
        needs_inputs = bool(files) or len(recordings) < len(sources)
        if needs_inputs:
            raise InputError("one side must be a network, which declares the inputs")
        return {}
    model = models[0]
    names = [spec.name for spec in model.inputs]
    if files:
        arrays = compared_models.arrays_of(model, files, pictures)
        return dict(zip(names, arrays, strict=True))
    recording = recordings[0] if recordings else {}
    has_all_inputs = all(name in recording for name in names)
    if names and has_all_inputs:
        return {name: recording[name] for name in names}
    from nnef_jax.measure.examples import random_inputs

    return random_inputs(model, seed)


def _is_model(source: object) -> bool:
    """Tell whether a source is a model. The class Model is imported here, because it loads jax."""
    from nnef_jax import Model

    return isinstance(source, Model)


def _pair(text: str) -> tuple[str, str]:
    """Return the two names in the text A=B of the option --name."""
    a, equals, b = text.partition("=")
    is_pair = a and equals and b
    if not is_pair:
        raise typer.BadParameter(f"{text!r} is not of the form A=B", param_hint="--name")
    return a, b
