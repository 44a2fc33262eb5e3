"""Pictures as inputs of `nnef-jax run`: in the size, channels and layout that the network takes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nnef_jax import DataError, InputError, UnsupportedError
from nnef_jax.storage import files

if TYPE_CHECKING:
    from nnef_jax import TensorSpec

PICTURES = (".png", ".jpg", ".jpeg")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """Says how to convert pixels of 0 to 255 to numbers: (pixel - mean) * scale.

    Mean and scale hold a number, or one a channel; the layout a letter for each axis of the input.
    """

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    layout: str = "nchw"
    resize: bool = False


def is_picture(path: str | Path) -> bool:
    """Tell whether a file is a picture by its suffix."""
    return Path(path).suffix.lower() in PICTURES


def read_picture(path: Path, spec: TensorSpec, options: PictureOptions) -> Array:
    """Read a picture as a tensor in the layout of the input, its batch extent being 1."""
    layout = options.layout
    if len(spec.shape) != len(layout):
        raise InputError(
            f"input '{spec.name}' has {len(spec.shape)} axes, "
            f"a picture in the layout {layout} has {len(layout)}",
            hint="--layout says what the axes of the input are",
        )
    extents = dict(zip(layout, spec.shape, strict=True))
    channels = extents.get("c", 1)
    if channels not in (None, *_MODES):
        raise InputError(
            f"input '{spec.name}' has {channels} channels in the layout {layout}, "
            f"a picture has 1, 3 or 4",
            hint="--layout says what the axes of the input are",
        )
    pixels = _pixels(path, spec.name, extents, options.resize)
    for option, numbers in (("--mean", options.mean), ("--scale", options.scale)):
        if len(numbers) not in (1, pixels.shape[2]):
            raise InputError(
                f"{option} has {len(numbers)} numbers, "
                f"input '{spec.name}' has {pixels.shape[2]} channels"
            )
    values = (pixels - np.array(options.mean, np.float32)) * np.array(options.scale, np.float32)
    if spec.dtype.startswith("int") and np.array_equal(values, np.round(values)):
        values = values.astype(np.int32)
    axes = [axis for axis in layout if axis != "n"]
    if "c" not in axes:
        values = values[..., 0]
    values = values.transpose(["hwc".index(axis) for axis in axes])
    return values[np.newaxis] if "n" in layout else values


def _pixels(path: Path, name: str, extents: dict[str, int | None], resize: bool) -> Array:
    """Return the pixels from 0 to 255 as float32[height, width, channel]."""
    image, channels = _open_picture(path), extents.get("c", 1)
    if image.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
        image = _image_module().fromarray(np.asarray(image, np.float32) / 257)
    else:
        grey = channels == 1 or (channels is None and image.mode in ("1", "L", "LA"))
        image = image.convert("L" if grey else _MODES[channels or 3])
    height, width = extents["h"] or image.height, extents["w"] or image.width
    if (image.width, image.height) != (width, height):
        if not resize:
            raise InputError(
                f"{path} is {image.width} pixels wide and {image.height} high, "
                f"input '{name}' takes {width} by {height}",
                hint="--resize scales pictures to the size of the input",
            )
        image = image.resize((width, height), _image_module().Resampling.BILINEAR)
    pixels = np.atleast_3d(np.asarray(image, np.float32))
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
        except module.UnidentifiedImageError:
            raise DataError(f"{path}: neither a PNG nor a JPEG picture") from None
        except Exception as error:  # Pillow's decoders let all sorts through on broken data
            raise DataError(f"{path}: a picture that cannot be read: {error}") from None


def _image_module() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UnsupportedError(
            "reading pictures needs Pillow",
            hint='pip install -e ".[images]" in a checkout, or give arrays as .npy',
        ) from None
    return Image
