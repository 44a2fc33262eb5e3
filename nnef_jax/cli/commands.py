"""The commands. Each reads its options, calls functions of the package, and prints the result.

jax is imported inside the commands, so that `--help` answers at once. Commands raise the errors of
the package, and `main` turns them into a message and an exit code.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nnef_jax import NnefError, __version__
from nnef_jax.cli import command_options as option
from nnef_jax.cli.cache import cache_report, required_folder
from nnef_jax.cli.programs import printed_after
from nnef_jax.cli.terminal import message_of, print_result, report_error, report_usage, status
from nnef_jax.storage import protected_files

if TYPE_CHECKING:
    from nnef_jax import Model

# This is the class ClickException, the base class of typer's usage errors. Depending on the version
# of typer, it is click's class or typer's copy of the class.
_UsageError: Any = typer.BadParameter.__mro__[2]

# `rich_markup_mode=None` prints usage errors and help without boxes. The text without boxes may be
# piped, and does not need the package rich.
app: typer.Typer = typer.Typer(
    name="nnef-jax",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_set: bool) -> None:
    if is_set:
        print_result(f"nnef-jax {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Run and inspect NNEF networks with JAX."""


@app.command()
@option.grouped
def summary(
    source: option.Source,
    reading: option.Reading = option.Reading(),
    as_json: option.Json = False,
) -> None:
    """Show a network's sizes, and a table of operations."""
    network = reading.read(source, outline=True)
    from nnef_jax.cli.description import describe
    from nnef_jax.measure.summary import summarise

    sizes = summarise(network)
    lines = [json.dumps(sizes.to_dict())] if as_json else describe(sizes)
    print_result(*lines)


@app.command()
def machine(as_json: option.Json = False) -> None:
    """Print this machine's speeds, and what they decide.

    Rates are speeds of computation and of memory, by which kernels are chosen. Rates that are not
    stored yet are measured.
    """
    with status("measuring this machine"):
        from nnef_jax.cli.description import machine_lines

        lines = machine_lines(as_json=as_json)
    print_result(*lines)


@app.command()
@option.grouped
def check(source: option.Source, reading: option.Reading = option.Reading()) -> None:
    """Read a network and report every error in it.

    The network does not run. `summary` shows its contents. `compare` and `diff` compare it with
    another network.
    """
    network = reading.read(source)
    graph = network.graph
    variables = len(graph.parameters) + len(graph.states)
    print_result(
        f"ok: {source}: {graph.name}, {network.frontend.dialect}, "
        f"{len(graph.operations)} operations, {variables} variables"
    )


@app.command("convert")
@option.grouped
def convert_network(
    source: option.Source,
    output: Annotated[
        Path | None,
        typer.Argument(
            metavar="OUTPUT",
            help="The folder or archive (.tar, .tgz, .tar.xz) to write. Without it the document is "
            "printed.",
            show_default=False,
        ),
    ] = None,
    flat: Annotated[
        bool, typer.Option("--flat", help="Write one graph, without fragments.")
    ] = False,
    expand: Annotated[
        Literal["auto", "all"],
        typer.Option(help="all: a flat graph of primitives; auto: the document's operations."),
    ] = "auto",
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Write operations that NNEF lacks as custom operations, which nnef-jax can read.",
        ),
    ] = False,
    reading: option.Reading = option.Reading(),
    overwrite: option.Overwrite = False,
) -> None:
    """Write a network in its format's current version.

    A network of OpenVINO or ONNX is written as NNEF 1.0.
    """
    with status(f"reading {source}"):
        from nnef_jax import convert

        keywords: dict[str, Any] = {"flat": flat, "expand": expand, "keep": keep}
        keywords |= {"overwrite": overwrite, **reading.keywords}
        text = convert(source, output, **keywords)
    if output is None:
        print_result(*text.removesuffix("\n").split("\n"))
    else:
        print_result(f"saved {output}")


@app.command()
@option.grouped
def run(
    source: option.Source,
    inputs: option.Files = None,
    pixels: option.Pixels = option.Pixels(),
    output: option.Output = None,
    overwrite: option.Overwrite = False,
    top: option.Top = None,
    labels: Annotated[
        Path | None, typer.Option(help="With --top: a text file of the entries' names, one a line.")
    ] = None,
    reading: option.Reading = option.Reading(),
    cache_dir: option.CacheDir = None,
    no_cache: option.NoCache = False,
    as_json: option.Json = False,
) -> None:
    """Run a network on files; print or save its outputs."""
    if labels and not top:
        raise typer.BadParameter("needs --top", param_hint="--labels")
    cached = option.caching(cache_dir, no_cache)
    pictures = pixels.options(inputs)
    with cached as folder:
        from nnef_jax.cli import outputs
        from nnef_jax.cli.inputs import read_inputs

        largest = None
        if top:
            names_of_entries = outputs.read_labels(labels) if labels else ()
            largest = outputs.Top(top, names_of_entries)
        model = reading.load(source, cache_dir=folder, measure=bool(folder))
        calls = read_inputs(inputs or (), model.inputs, pictures)
        if output:
            outputs.check_output(output, [spec.name for spec in model.outputs], overwrite)
        with status("compiling and running"):
            results = outputs.run_calls(model, calls)
    if largest:
        outputs.check_labels(largest, results)
    name = model.graph.name
    print_result(*outputs.saved_or_shown(name, results, output, largest, as_json, overwrite))


@app.command("export")
@option.grouped
def export_function(
    source: option.Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    entry: Annotated[
        Literal["apply", "step", "scan"],
        typer.Option(help="apply: a call; step: a cycle with its state; scan: many cycles."),
    ] = "apply",
    platforms: Annotated[
        str, typer.Option(metavar="NAMES", help="The platforms to export for, comma-separated.")
    ] = "cpu,cuda,rocm,tpu",
    batch: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the open extent of first axes.")
    ] = "b",
    constraints: Annotated[
        list[str] | None,
        typer.Option(
            "--constraint",
            help="A condition that open extents meet, such as 'x_2 >= 8'; can be repeated.",
            show_default=False,
        ),
    ] = None,
    vjp_order: Annotated[
        int, typer.Option(min=0, max=2, help="The highest order of reverse-mode derivatives.")
    ] = 0,
    params: Annotated[
        Literal["inside", "beside"],
        typer.Option(help="inside: a .npz with the weights; beside: a jax.export file without."),
    ] = "inside",
    reading: option.Reading = option.Reading(),
    overwrite: option.Overwrite = False,
) -> None:
    """Write a network as a file that needs only jax."""
    model = reading.load(source)
    with status(f"exporting {source}"):
        model.export(
            output,
            entry=entry,
            platforms=[name.strip() for name in platforms.split(",")],
            batch=batch,
            constraints=constraints or (),
            vjp_order=vjp_order,
            params=params,
            overwrite=overwrite,
        )
    inputs = ", ".join(map(str, model.inputs)) or "no inputs"
    print_result(f"exported {model.graph.name} for {inputs} on {platforms}", f"saved {output}")


@app.command("compile")
@option.grouped
def compile_ahead(
    source: option.Source,
    cache_dir: option.CacheDir = None,
    reading: option.Reading = option.Reading(),
    print_after: option.PrintAfter = None,
) -> None:
    """Compile a network into a cache folder.

    Processes that load the network with the same folder need not compile it.
    """
    if print_after and cache_dir is not None:
        raise typer.BadParameter("does not go with --cache-dir", param_hint="--print-after")
    # If the program is printed, it is compiled anew, so no cache folder is used.
    cached = nullcontext() if print_after else required_folder(cache_dir)
    with printed_after(print_after or ()) as programs, cached as folder:
        model = reading.load(source, cache_dir=folder)
        with status(f"compiling {source}"):
            _run_on_zeros(model)
    inputs = ", ".join(map(str, model.inputs)) or "no inputs"
    lines = [*programs, f"compiled {model.graph.name} for {inputs}"]
    if folder is not None:
        lines.append(f"kept in {folder}")
    print_result(*lines)


@app.command()
def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove the compiled networks, and nothing else.")
    ] = False,
    as_json: option.Json = False,
) -> None:
    """Show or clear the folder of compiled networks.

    `run`, `batch`, `serve` and `compile` share this folder, unless --cache-dir names another.
    """
    print_result(*cache_report(clear=clear, as_json=as_json).split("\n"))


def _run_on_zeros(model: Model) -> None:
    """Run a network on zeros, so that the network is compiled.

    A network with state is also run by `step`. Raises InputError for an open shape.
    """
    import numpy as np

    from nnef_jax.measure.examples import declared_types

    types = declared_types(model, hint="give one to compile for:")
    inputs = [np.zeros(type.shape, type.dtype) for type in types]
    model(*inputs)
    state = model.init_state()
    if state:
        # `model(...)` compiled a call. `model.step` compiles a cycle with its state.
        model.step(state, *inputs)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    The exit code is 0, or 1 for an error, 2 for wrong usage, and 130 if the command is interrupted.
    Errors of this package, system errors and wrong usage are reported. All other exceptions are
    raised. Signal handlers are not changed.
    """
    for stream in (sys.stdout, sys.stderr):
        # Tables have characters that the encoding of a stream may lack. Such characters are written
        # as escapes, so that printing raises no error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with protected_files.protecting_inputs():
            return app(args, prog_name="nnef-jax", standalone_mode=False) or 0
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else 0
    except _UsageError as error:
        buffer = io.StringIO()
        error.show(file=buffer)
        # pydantic adds the words "Value error" to some messages. The words are removed.
        message = buffer.getvalue().replace(": Value error, ", ": ", 1)
        report_usage(message)
        return error.exit_code
    except NnefError as error:
        # One exception may stand for several errors.
        for single_error in error.errors:
            report_error(*single_error.lines())
    except OSError as error:
        report_error(message_of(error))
    return 1
