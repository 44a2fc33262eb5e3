"""The shared options of commands, and the conversion of their texts to values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nnef_jax.cli.cache import bounded_folder
from nnef_jax.cli.terminal import status
from nnef_jax.formats import FORMATS

if TYPE_CHECKING:
    from nnef_jax import Model
    from nnef_jax.cli.pictures import PictureOptions
    from nnef_jax.reading.network import Network

_SOURCE = typer.Argument(
    metavar="SOURCE",
    help="The network: a folder, a graph.nnef, .xml, .onnx or .tflite file, a tar or zip archive.",
    show_default=False,
)
_SUFFIXES = (".nnef", ".tar", ".tgz", ".gz", ".xz", ".bz2", ".zip", ".xml", ".onnx", ".tflite")
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
        help="Save the outputs in this .npz, .npy or .dat file, or in a folder of .dat files.",
    ),
]
Top = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Print only this many entries of each row, the largest. Rows run along the last axis "
        "that is longer than 1.",
    ),
]
# The option is a string, so that an empty string can be refused. As a Path, the empty string would
# be the working directory.
CacheDir = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The folder of compiled networks, instead of the user's own (`nnef-jax cache`). It "
        "holds machine code: nobody else should be able to write to it.",
        show_default=False,
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Neither read nor store compiled networks.")
]
_DIALECTS = ("auto", *FORMATS)


def _known_dialect(name: str) -> str:
    """Return the name of a dialect. Raises BadParameter if there is no such dialect."""
    if name not in _DIALECTS:
        dialects = ", ".join(map(repr, _DIALECTS))
        raise typer.BadParameter(f"{name!r} is not one of {dialects}")
    return name


Dialect = Annotated[
    str,
    typer.Option(
        callback=_known_dialect,
        metavar=f"[{'|'.join(_DIALECTS)}]",
        help="The format of the network; auto recognises it.",
    ),
]


PrintAfter = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PASS",
        help="Print the program after this pass, or after each pass (all); can be repeated. "
        "Compiled networks are neither read nor stored then.",
        show_default=False,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of the dataclasses among its parameters.

    A command with the parameter `pixels: Pixels` becomes a function with the parameters `mean`,
    `scale`, `layout` and `resize`. typer calls this function with the values of the options. The
    function makes a `Pixels` from these values, and passes it to `command`.
    """
    class_by_parameter: dict[str, Any] = {}
    option_parameters: list[Any] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            options_class: Any = parameter.annotation
            class_by_parameter[parameter.name] = options_class
            option_parameters += signature(options_class, eval_str=True).parameters.values()
        else:
            option_parameters.append(parameter)

    def call_command(**keywords: Any) -> None:
        for name, options_class in class_by_parameter.items():
            values = {field.name: keywords.pop(field.name) for field in fields(options_class)}
            keywords[name] = options_class(**values)
        command(**keywords)

    command_with_options: Any = wraps(command)(call_command)
    # typer reads the signature to find the options.
    command_with_options.__signature__ = Signature(option_parameters)
    return command_with_options


@dataclass(frozen=True, slots=True)
class Reading:
    """The options that determine how a network is read."""

    dialect: Dialect = "auto"
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The file of weights, if it is not beside the network: OpenVINO's .bin, or a "
            "safetensors file for NNEF.",
            show_default=False,
        ),
    ] = None
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--value",
            metavar="NAME=VALUE",
            help="Fix an input that decides shapes, such as axis=1 or shape=[2,-1]; can be "
            "repeated.",
            show_default=False,
        ),
    ] = None
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=EXTENTS",
            help="The shape of an input instead of the document's, such as x=?,3,224,224 (? is an "
            "open extent), or the value of a named open extent, such as batch=8; can be repeated.",
            show_default=False,
        ),
    ] = None

    @property
    def keywords(self) -> dict[str, Any]:
        """Return the options as keyword arguments of `load`, `convert` and similar functions."""
        return {
            "dialect": self.dialect,
            "weights": self.weights,
            "values": dict(map(_value, self.values or ())),
            "input_shapes": dict(map(_shape, self.shapes or ())),
        }

    def read(self, source: str, **options: Any) -> Network:
        """Read a network, and show the progress."""
        with status(f"reading {source}") as progress:
            from nnef_jax.reading.read import read

            return read(source, progress=progress, **self.keywords, **options)

    def load(self, source: str, **options: Any) -> Model:
        """Load a network as a model, and show the progress."""
        with status(f"reading {source}") as progress:
            from nnef_jax import load

            return load(source, progress=progress, **self.keywords, **options)


@dataclass(frozen=True, slots=True)
class Pixels:
    """Options for converting pictures to inputs, as the texts on the command line."""

    mean: Annotated[
        str, typer.Option(help="Subtract this from pixels (0 to 255): a number, or one a channel.")
    ] = "0"
    scale: Annotated[
        str, typer.Option(help="Then multiply pixels by this: a number, or one a channel.")
    ] = "1"
    layout: Annotated[
        Literal["nchw", "nhwc", "chw", "hwc", "nhw", "hw"],
        typer.Option(help="Axes of the input: n batch, c channels, h height, w width."),
    ] = "nchw"
    resize: Annotated[
        bool, typer.Option("--resize", help="Scale pictures to the size of the input (bilinear).")
    ] = False

    def options(self, inputs: Sequence[str] | None) -> PictureOptions:
        """Return the options for pictures, with numbers instead of texts.

        Raises BadParameter if an option is passed, but `inputs` has no picture.
        """
        from nnef_jax.cli.pictures import PictureOptions, is_picture

        mean = _numbers(self.mean, "--mean")
        scale = _numbers(self.scale, "--scale")
        options = PictureOptions(mean, scale, self.layout, self.resize)
        has_pictures = any(map(is_picture, inputs or ()))
        if options != PictureOptions() and not has_pictures:
            message = "--mean, --scale, --layout and --resize are for pictures, and none is given"
            raise typer.BadParameter(message)
        return options


def caching(cache_dir: str | None, no_cache: bool) -> AbstractContextManager[str | None]:
    """Return a context manager that yields the folder for compiled networks, or None.

    It yields None if `no_cache` is true, or if the user's folder cannot be used. Raises
    BadParameter if both `no_cache` and `cache_dir` are passed.
    """
    if not no_cache:
        return bounded_folder(cache_dir)
    if cache_dir is not None:
        raise typer.BadParameter("does not go with --cache-dir", param_hint="--no-cache")
    return nullcontext()


def name_of(source: str) -> str:
    """Return the name of a file or folder, without the suffixes of file formats.

    The name of net.nnef.tgz is "net". For a file graph.nnef, the result is the name of the folder
    that contains the file.
    """
    path = Path(source).resolve()
    if path.name == "graph.nnef":
        path = path.parent
    name = path.name
    while Path(name).suffix in _SUFFIXES:
        name = Path(name).stem
    return name


def _numbers(text: str, option: str) -> tuple[float, ...]:
    """Return the numbers in the text of an option, such as 0.5,0.5,0.5.

    Raises BadParameter for any other text.
    """
    # `float` raises ValueError for a text that is no number.
    with suppress(ValueError):
        numbers = tuple(map(float, text.split(",")))
        if all(map(math.isfinite, numbers)):
            return numbers
    message = f"{text!r} is neither a number nor a list of numbers such as 0.5,0.5,0.5"
    raise typer.BadParameter(message, param_hint=option)


def _value(text: str) -> tuple[str, Any]:
    """Return the name and the array in the text NAME=VALUE of the option --value.

    VALUE is a number in JSON, or a list of numbers.
    """
    import numpy as np

    name, _, value = text.rpartition("=")
    # json and numpy raise these errors for a text that is no JSON, or no array.
    with suppress(ValueError, RecursionError):
        array = np.asarray(json.loads(value))
        is_numeric = array.dtype.kind in "biuf"
        if name and is_numeric:
            return name, array
    message = f"{text!r} is not a name and numbers as in axis=1 or shape=[2,-1]"
    raise typer.BadParameter(message, param_hint="--value")


def _shape(text: str) -> tuple[str, tuple[int | None, ...]]:
    """Return the name and the extents in the text NAME=EXTENTS of the option --shape.

    The extent '?' becomes None. The text "x=" is the shape of a single number.
    """
    name, _, extents = text.rpartition("=")
    extent_texts = [extent.strip() for extent in extents.split(",")] if extents else []
    shape: list[int | None] = []
    has_wrong_extent = False
    for extent_text in extent_texts:
        if extent_text == "?":
            shape.append(None)
        elif extent_text.isdecimal() and int(extent_text) > 0:
            shape.append(int(extent_text))
        else:
            has_wrong_extent = True
    if not name or has_wrong_extent:
        message = f"{text!r} is not a name and extents as in x=?,3,224,224"
        raise typer.BadParameter(message, param_hint="--shape")
    return name, tuple(shape)
