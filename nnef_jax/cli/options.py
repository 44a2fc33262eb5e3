"""What commands share: their options, and what these stand for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nnef_jax.cli.cache import kept
from nnef_jax.cli.terminal import status
from nnef_jax.formats import FORMATS

if TYPE_CHECKING:
    from nnef_jax.cli.pictures import PictureOptions
    from nnef_jax.network import Network

_SOURCE = typer.Argument(
    metavar="SOURCE",
    help="The network: a folder, a graph.nnef, an .xml, a tar or zip archive.",
    show_default=False,
)
Source = Annotated[str, _SOURCE]
SourceOrNone = Annotated[str | None, _SOURCE]
Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=]FILE...",
        help="The inputs by name, or in the order of the graph: .npy, .dat, .npz (arrays by "
        "input name), .png, .jpg. Several pictures for one input are run as a batch.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Save the outputs: a .npz, .npy or .dat, else a folder with a .dat for each.",
    ),
]
Top = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Print only so many entries, the largest of each row (last axis longer than 1).",
    ),
]
# A string, since an empty one is an error, but Path("") the working directory.
CacheDir = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="A folder to keep what is compiled in, and to find it in again, instead of the "
        "user's own (`nnef-jax cache`). It holds machine code: nobody else should be able to "
        "write to it.",
        show_default=False,
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Keep nothing that is compiled, look for nothing.")
]
_DIALECTS = ("auto", *FORMATS)


def _known_dialect(name: str) -> str:
    if name not in _DIALECTS:
        known = ", ".join(map(repr, _DIALECTS))
        raise typer.BadParameter(f"{name!r} is not one of {known}")
    return name


Dialect = Annotated[
    str,
    typer.Option(
        callback=_known_dialect,
        metavar=f"[{'|'.join(_DIALECTS)}]",
        help="The format to read the network by; auto goes by the network.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="The file of weights, where it is not beside the network: a .bin of OpenVINO's.",
        show_default=False,
    ),
]
SHAPES = typer.Option(
    "--shape",
    metavar="NAME=EXTENTS",
    help="The shape of an input to compile for, such as x=1,3,224,224. Needed where the "
    "network leaves it open; can be repeated.",
    show_default=False,
)
OPEN_SHAPES = typer.Option(
    "--shape",
    metavar="NAME=EXTENTS",
    help="The shape of an input instead of the document's, such as x=?,3,224,224, where ? is an "
    "open extent; can be repeated.",
    show_default=False,
)
PrintAfter = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PASS",
        help="Print the program after a pass, or after all; can be repeated. Nothing is kept then.",
        show_default=False,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
Mean = Annotated[
    str, typer.Option(help="Subtract from pixels of 0 to 255: one number, or one a channel.")
]
Scale = Annotated[
    str, typer.Option(help="Multiply pixels with after --mean: one number, or one a channel.")
]
Layout = Annotated[
    Literal["nchw", "nhwc", "chw", "hwc", "nhw", "hw"],
    typer.Option(help="Axes of a picture's input: n batch, c channels, h height, w width."),
]
Resize = Annotated[
    bool, typer.Option("--resize", help="Scale pictures to the size of the input (bilinear).")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def read_network(source: str, dialect: str, weights: str | None = None) -> Network:
    """Read a network, showing how far it is."""
    with status(f"reading {source}") as progress:
        from nnef_jax.reading import read

        return read(source, dialect=dialect, progress=progress, weights=weights)


def caching(cache_dir: str | None, no_cache: bool) -> AbstractContextManager[str | None]:
    """Return a context manager: it gives the folder for compiled networks, or None."""
    if no_cache and cache_dir is not None:
        raise typer.BadParameter("does not go with --cache-dir", param_hint="--no-cache")
    return nullcontext() if no_cache else kept(cache_dir)


def picture_options(
    inputs: Sequence[str], mean: str, scale: str, layout: str, resize: bool
) -> PictureOptions:
    """Return what four options say of pictures; they are wrong usage where no input is one."""
    from nnef_jax.cli.pictures import PictureOptions, is_picture

    numbers = _numbers(mean, "--mean"), _numbers(scale, "--scale")
    options = PictureOptions(*numbers, layout, resize)
    if options != PictureOptions() and not any(map(is_picture, inputs)):
        raise typer.BadParameter(
            "--mean, --scale, --layout and --resize are for pictures, none is given"
        )
    return options


def _numbers(text: str, option: str) -> tuple[float, ...]:
    with suppress(ValueError):
        numbers = tuple(map(float, text.split(",")))
        if all(map(math.isfinite, numbers)):
            return numbers
    message = f"{text!r} is no number, nor a list such as 0.5,0.5,0.5"
    raise typer.BadParameter(message, param_hint=option)


def shape_option(text: str, *, open: bool = False) -> tuple[str, tuple[int | None, ...]]:
    """Return the name and the extents in NAME=EXTENTS, None for '?' where extents may be open."""
    name, _, extents = text.rpartition("=")
    items = [item.strip() for item in extents.split(",")] if extents else []
    fits = all((item.isdecimal() and int(item)) or (open and item == "?") for item in items)
    if not name or not fits:
        example = "x=?,3,224,224" if open else "x=1,3,224,224"
        raise typer.BadParameter(
            f"{text!r} is not a name and extents as in {example}", param_hint="--shape"
        )
    return name, tuple(None if item == "?" else int(item) for item in items)
