"""The inputs of `nnef-jax run`: which file is which input, reading it, and pictures as batches."""

from __future__ import annotations

import io
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nnef_jax.errors import DataError, InputError, UnsupportedError
from nnef_jax.storage import files
from nnef_jax.storage.tensorfile import read_tensor_file

if TYPE_CHECKING:
    from nnef_jax.model import TensorSpec

_PICTURES = (".png", ".jpg", ".jpeg")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_KINDS = ".npy, .npz, .dat, .png, .jpg or .jpeg"

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """How a picture becomes a tensor: value = (pixel - mean) * scale, pixels being 0 to 255.

    Mean and scale hold one number or one for each channel. The layout has a letter for each axis of
    the input: n batch, which comes first where there is one, c channels, h height, w width.
    """

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    layout: str = "nchw"
    resize: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the network: arrays by input name, and the pictures that its batch consists of."""

    arrays: dict[str, Array]
    pictures: tuple[str, ...] = ()


def read_inputs(
    arguments: Sequence[str], specs: Sequence[TensorSpec], options: PictureOptions
) -> list[Call]:
    """The calls that the files on a command line stand for.

    A file is for the input named before it (`NAME=FILE`), otherwise for the next one in the order of
    the graph that has none; a .npz without a name holds arrays by the names of inputs. Several
    pictures for one input are a batch: stacked where the input's batch extent is open or their
    number, and a call each where it is 1 or there is none.

    Raises InputError where files and inputs do not match, DataError for a broken file, OSError for
    one that cannot be read.
    """
    arrays, paths = _assign(arguments, [spec.name for spec in specs])
    batches: dict[str, tuple[TensorSpec, list[Array], list[Path]]] = {}
    for spec in specs:
        given = paths.get(spec.name, [])
        if any(_is_picture(path) for path in given):
            pictures = [_read_picture(path, spec, options) for path in given]
            batches[spec.name] = spec, pictures, given
        elif given:
            arrays[spec.name] = _read_array(given[0], spec.name)
    counts = {len(pictures) for _, pictures, _ in batches.values()}
    several = counts - {1}
    if len(several) > 1:
        shown = ", ".join(f"{len(p)} for input '{name}'" for name, (_, p, _) in batches.items())
        raise InputError(f"the numbers of pictures differ: {shown}")
    count = max(counts, default=0)
    if count == 0:
        return [Call(arrays)]
    titles = tuple(map(str, next(given for _, p, given in batches.values() if len(p) == count)))
    for spec, pictures, _ in batches.values():
        _check_batch(spec, len(pictures), options.layout)
    if all(_stacks(spec, p, options.layout) for spec, p, _ in batches.values() if len(p) == count):
        stacked = {
            name: np.concatenate(pictures) if len(pictures) > 1 else pictures[0]
            for name, (_, pictures, _) in batches.items()
        }
        return [Call(arrays | stacked, titles)]
    return [
        Call(arrays | {name: p[i % len(p)] for name, (_, p, _) in batches.items()}, (title,))
        for i, title in enumerate(titles)
    ]


def has_pictures(arguments: Sequence[str]) -> bool:
    """Whether one of the arguments is a picture by its suffix."""
    return any(_is_picture(Path(argument)) for argument in arguments)


def _assign(
    arguments: Sequence[str], names: Sequence[str]
) -> tuple[dict[str, Array], dict[str, list[Path]]]:
    """The arrays of unnamed .npz files by input name, and for the other inputs the paths of their files."""
    arrays: dict[str, Array] = {}
    paths: dict[str, list[Path]] = {}
    unnamed: list[Path] = []
    shown = ", ".join(names) or "none"
    for argument in arguments:
        name, equals, file = argument.partition("=")
        if equals and name in names:
            paths.setdefault(name, []).append(Path(file))
        elif equals and name.isidentifier() and not Path(argument).exists():
            raise InputError(f"the graph has no input '{name}', its inputs are {shown}")
        elif Path(argument).suffix.lower() == ".npz":
            for name, array in _read_npz(Path(argument)).items():
                if name not in names:
                    raise InputError(
                        f"{argument} holds '{name}', the graph's inputs are {shown}",
                        hint="NAME=FILE says which input a file is for",
                    )
                if name in arrays:
                    raise InputError(f"input '{name}' is given by two .npz files")
                arrays[name] = array
        else:
            unnamed.append(Path(argument))
    twice = [name for name in paths if name in arrays]
    if twice:
        raise InputError(f"input '{twice[0]}' is given by name and by a .npz file")
    free = [name for name in names if name not in paths and name not in arrays]
    if len(free) == 1 and unnamed:
        paths[free[0]] = unnamed
    elif len(unnamed) > len(free):
        left = f", {len(free)} of them not given otherwise" if len(free) < len(names) else ""
        raise InputError(
            f"{len(unnamed)} files are given, the graph takes {len(names)} inputs: {shown}{left}",
            hint="NAME=FILE says which input a file is for",
        )
    else:
        paths.update((name, [path]) for name, path in zip(free, unnamed, strict=False))
    missing = [name for name in free if name not in paths]
    if missing:
        lacking = ", ".join(f"'{name}'" for name in missing)
        raise InputError(f"no file is given for input {lacking}, the graph takes {shown}")
    for name, given in paths.items():
        if len(given) > 1 and not all(map(_is_picture, given)):
            raise InputError(
                f"{len(given)} files are given for input '{name}', only pictures can be several",
                hint="put the arrays of a batch into one file",
            )
    return arrays, paths


# Arrays


def _read_array(path: Path, name: str) -> Array:
    match path.suffix.lower():
        case ".npy":
            return _read_npy(path)
        case ".npz":
            members = _read_npz(path)
            if name not in members and len(members) != 1:
                raise InputError(f"{path} holds {', '.join(members) or 'nothing'}, but no '{name}'")
            return members[name] if name in members else next(iter(members.values()))
        case ".dat":
            stored = read_tensor_file(path)
            if stored.quantized:
                raise UnsupportedError(f"{path} holds quantised data")
            return stored.array
        case _:
            raise InputError(f"{path}: not a kind of file that inputs are read from", hint=f"take {_KINDS}")


def _read_npy(path: Path) -> Array:
    with files.open_regular(str(path), DataError) as file:
        data = files.contents(file)
    return _parse_npy(bytes(data), str(path))


def _read_npz(path: Path) -> dict[str, Array]:
    with files.open_regular(str(path), DataError) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = {n: archive.read(n) for n in archive.namelist() if n.endswith(".npy")}
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: no .npz file: {error}") from None
    return {n.removesuffix(".npy"): _parse_npy(data, f"{path}/{n}") for n, data in members.items()}


def _parse_npy(data: bytes, shown: str) -> Array:
    try:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, MemoryError) as error:
        raise DataError(f"{shown}: no .npy file: {error}") from None


# Pictures


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in _PICTURES


def _read_picture(path: Path, spec: TensorSpec, options: PictureOptions) -> Array:
    """A picture as a tensor of the input's layout, with a batch axis of 1 where the layout has one."""
    layout = options.layout
    if len(spec.shape) != len(layout):
        raise InputError(
            f"input '{spec.name}' has {len(spec.shape)} axes, a picture in the layout {layout} has {len(layout)}",
            hint="--layout says what the axes of the input are",
        )
    extents = dict(zip(layout, spec.shape, strict=True))
    channels = extents.get("c", 1)
    if channels not in (None, *_MODES):
        raise InputError(
            f"input '{spec.name}' has {channels} channels in the layout {layout}, a picture has 1, 3 or 4",
            hint="--layout says what the axes of the input are",
        )
    pixels = _pixels(path, spec, channels, (extents["h"], extents["w"]), options.resize)
    mean, scale = (
        _per_channel(numbers, option, pixels.shape[2], spec.name)
        for option, numbers in (("--mean", options.mean), ("--scale", options.scale))
    )
    values = (pixels - mean) * scale
    if spec.dtype.startswith("int") and np.array_equal(values, np.round(values)):
        values = values.astype(np.int32)
    axes = [axis for axis in layout if axis != "n"]
    if "c" not in axes:
        values = values[..., 0]
    values = values.transpose(["hwc".index(axis) for axis in axes])
    return values[np.newaxis] if "n" in layout else values


def _per_channel(numbers: tuple[float, ...], option: str, channels: int, name: str) -> Array:
    if len(numbers) not in (1, channels):
        raise InputError(f"{option} has {len(numbers)} numbers, input '{name}' has {channels} channels")
    return np.array(numbers, np.float32)


def _pixels(
    path: Path, spec: TensorSpec, channels: int | None, size: tuple[int | None, int | None], resize: bool
) -> Array:
    """The pixels from 0 to 255 as float32 in the order height, width, channel."""
    image = _open_picture(path)
    if image.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
        image = _image_module().fromarray(np.asarray(image, np.float32) / 257)
    else:
        grey = channels == 1 or (channels is None and image.mode in ("1", "L", "LA"))
        image = image.convert("L" if grey else _MODES[channels or 3])
    height, width = size[0] or image.height, size[1] or image.width
    if (image.width, image.height) != (width, height):
        if not resize:
            raise InputError(
                f"{path} is {image.width} pixels wide and {image.height} high, "
                f"input '{spec.name}' takes {width} by {height}",
                hint="--resize scales pictures to the size of the input",
            )
        image = image.resize((width, height), _image_module().Resampling.BILINEAR)
    pixels = np.asarray(image, np.float32)
    pixels = pixels if pixels.ndim == 3 else pixels[..., np.newaxis]
    return np.repeat(pixels, channels, 2) if channels and pixels.shape[2] != channels else pixels


def _open_picture(path: Path) -> Any:
    module = _image_module()
    from PIL import ImageOps

    with files.open_regular(str(path), DataError) as file, warnings.catch_warnings():
        warnings.simplefilter("error", module.DecompressionBombWarning)
        try:
            image = module.open(file, formats=("PNG", "JPEG"))
            image.load()
            return ImageOps.exif_transpose(image)
        except Exception as error:  # Pillow's decoders let all sorts through on broken data
            raise DataError(f"{path}: no PNG or JPEG picture that can be read: {error}") from None


def _image_module() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UnsupportedError(
            "reading pictures needs Pillow", hint="pip install 'nnef_jax[images]', or give arrays as .npy"
        ) from None
    return Image


def _batch_extent(spec: TensorSpec, layout: str) -> int | None:
    return spec.shape[layout.index("n")] if "n" in layout else 1


def _check_batch(spec: TensorSpec, count: int, layout: str) -> None:
    extent = _batch_extent(spec, layout)
    if extent not in (None, 1, count):
        raise InputError(
            f"{count} picture{'s are' if count > 1 else ' is'} given for input '{spec.name}', "
            f"which takes a batch of {extent}"
        )


def _stacks(spec: TensorSpec, pictures: Sequence[Array], layout: str) -> bool:
    """Whether the pictures make one tensor that the input takes."""
    fits = _batch_extent(spec, layout) in (None, len(pictures))
    return fits and len({picture.shape for picture in pictures}) == 1
