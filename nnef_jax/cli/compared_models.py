"""Arguments and output of the commands that measure or compare networks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nnef_jax.cli import command_options as option
from nnef_jax.cli.terminal import print_result

if TYPE_CHECKING:
    from rich.table import Table

    from nnef_jax import Model, Result
    from nnef_jax.cli.pictures import PictureOptions

Inputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=]FILE...",
        help="The inputs by name, or in the order of the graph: .npy, .npz, .dat, pictures. "
        "Without files the inputs are random, in the declared shapes.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="The seed of random inputs.")]
RelativeTolerance = Annotated[
    float,
    typer.Option(min=0, help="Tolerance relative to a value, or to its tensor's rms if larger."),
]
AbsoluteTolerance = Annotated[
    float, typer.Option(min=0, help="Absolute tolerance, added to the relative one.")
]
Entry = Annotated[
    Literal["apply", "step", "scan"],
    typer.Option(help="apply: a call; step: a cycle with its state; scan: many cycles."),
]
_PICTURES = (".png", ".svg", ".pdf")


def calls_of(
    model: Model, files: Sequence[str], pictures: PictureOptions | None = None
) -> list[dict[str, Any]]:
    """Return the inputs of each call in the files: a dict of arrays by input name."""
    from nnef_jax.cli.inputs import read_inputs
    from nnef_jax.cli.pictures import PictureOptions

    calls = read_inputs(files, model.inputs, pictures or PictureOptions())
    return [call.arrays for call in calls]


def arrays_of(
    model: Model, files: Sequence[str] | None, pictures: PictureOptions | None = None
) -> list[Any]:
    """Read the inputs of one call from files, in the order of the model's inputs.

    Without files, the list is empty. Raises InputError if the files have the inputs of several
    calls.
    """
    if not files:
        return []
    from nnef_jax import InputError

    calls = calls_of(model, files, pictures)
    if len(calls) > 1:
        message = f"the files are inputs of {len(calls)} calls, this command runs one"
        raise InputError(message, hint="give one picture")
    return [calls[0][spec.name] for spec in model.inputs]


def check_tolerance(rtol: float, atol: float) -> None:
    """Raise BadParameter if both tolerances, relative and absolute, are 0."""
    if rtol == atol == 0:
        raise typer.BadParameter("must not both be 0", param_hint="--rtol, --atol")


@dataclass(frozen=True, slots=True)
class Shown:
    """The options for showing a result."""

    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw the result into a .png, .svg or .pdf file; this needs matplotlib.",
            show_default=False,
        ),
    ] = None
    overwrite: option.Overwrite = False
    as_json: option.Json = False

    def check(self) -> None:
        """Raise an error, before anything is computed, if the picture cannot be saved."""
        if self.plot is None:
            return
        from nnef_jax import InputError
        from nnef_jax.results import plotting
        from nnef_jax.storage import files

        if self.plot.suffix.lower() not in _PICTURES:
            raise InputError(f"--plot {self.plot}: the suffix must be {', '.join(_PICTURES)}")
        files.check_target(str(self.plot), overwrite=self.overwrite)
        plotting("pyplot").switch_backend("Agg")  # The backend Agg draws without a screen.

    def show(self, result: Result, table: Table | None = None, saved: Path | None = None) -> None:
        """Print a result as JSON or as a table, and save a picture of it.

        Args:
            result: the result.
            table: the table to print, by default the table of the result.
            saved: the path of another file that the command has saved. The output names this path.
        """
        from nnef_jax.results import text_of

        if self.plot is not None:
            self._save_picture(result, self.plot)
        if self.as_json:
            print_result(json.dumps(result.to_dict(), allow_nan=False))
            return
        text = str(result) if table is None else text_of(table)
        saved_paths = [path for path in (saved, self.plot) if path is not None]
        print_result(*text.split("\n"), *[f"saved {path}" for path in saved_paths])

    def _save_picture(self, result: Result, path: Path) -> None:
        """Save the picture of a result in the format of the path's suffix."""
        from nnef_jax.results import plotting
        from nnef_jax.storage import files

        axes = result.plot()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
        picture_format = path.suffix.removeprefix(".").lower()
        try:
            with files.replacing(str(path), overwrite=self.overwrite) as file:
                axes.figure.savefig(file, format=picture_format, dpi=120)
        finally:
            plotting("pyplot").close(axes.figure)
