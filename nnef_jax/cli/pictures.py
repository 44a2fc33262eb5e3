"""Reads pictures in the size, channels and layout of a network's input."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nnef_jax import DataError, InputError, NnefError
from nnef_jax.errors import extra_missing
from nnef_jax.storage import files

if TYPE_CHECKING:
    from nnef_jax import TensorSpec

PICTURES = (".png", ".jpg", ".jpeg")
_STEPS_OF_16_BITS = 257  # A step of 8 bits is as large as 65535 / 255 steps of 16 bits.
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# Decoding takes 6 bytes of memory for each channel of each pixel: two copies of 1 byte, and a
# float32 of 4 bytes.
_BYTES_PER_CHANNEL = 6
# This marker begins a scan of a JPEG file. The decoder passes over all pixels for each scan.
_SCAN = b"\xff\xda"
_PIXELS_PER_STEP = 256  # Decoding this many pixels of a scan counts as one step of the meter.

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """Options for converting pixels from 0 to 255 to numbers: (pixel - mean) * scale.

    Args:
        mean, scale: a single number, or a number for each channel.
        layout: a letter for each axis of the input: n batch, c channels, h height, w width.
        resize: whether pictures are resized to the height and the width of the input.
    """

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    layout: str = "nchw"
    resize: bool = False


def is_picture(path: str | Path) -> bool:
    """Tell whether a file is a picture. The suffix of the file decides."""
    return Path(path).suffix.lower() in PICTURES


def read_picture(path: Path, spec: TensorSpec, options: PictureOptions) -> Array:
    """Read a picture as an array in the layout of the input `spec`, with a batch extent of 1."""
    layout = options.layout
    hint = "--layout says what the axes of the input are"
    if len(spec.shape) != len(layout):
        message = f"input '{spec.name}' has {len(spec.shape)} axes, "
        message += f"a picture in the layout {layout} has {len(layout)}"
        raise InputError(message, hint=hint)
    extents = dict(zip(layout, spec.shape, strict=True))
    channels = extents.get("c", 1)
    if channels not in (None, *_MODES):
        message = f"input '{spec.name}' has {channels} channels in the layout {layout}, "
        message += "a picture has 1, 3 or 4"
        raise InputError(message, hint=hint)
    values = _pixels(path, spec.name, extents, options.resize)  # [height, width, channel]
    channel_count = values.shape[2]
    for option, numbers in (("--mean", options.mean), ("--scale", options.scale)):
        if len(numbers) not in (1, channel_count):
            raise InputError(
                f"{option} has {len(numbers)} numbers, "
                f"input '{spec.name}' has {channel_count} channels"
            )
    # Pictures may be large, so the array is changed in place instead of copied.
    values -= np.array(options.mean, np.float32)
    values *= np.array(options.scale, np.float32)
    # An input with an integer dtype takes integers only. Values that are whole numbers are
    # converted.
    if spec.dtype.startswith("int") and np.array_equal(values, np.round(values)):
        values = values.astype(np.int32)
    return _in_layout(values, layout)


def _in_layout(values: Array, layout: str) -> Array:
    """Return an array [height, width, channel] in a layout such as "nchw", with a batch of 1."""
    axes = [axis for axis in layout if axis != "n"]
    if "c" not in axes:
        # Without an axis of channels there is a single channel.
        values = values[..., 0]
    # For the layout "nchw" the axes c, h and w are the axes 2, 0 and 1 of the array.
    in_layout = values.transpose(["hwc".index(axis) for axis in axes])
    return in_layout[np.newaxis] if "n" in layout else in_layout


def _pixels(path: Path, name: str, extents: dict[str, int | None], resize: bool) -> Array:
    """Return the pixels of a picture as float32 numbers from 0 to 255, [height, width, channel].

    `name` is the name of the input, and `extents` are the extents of its axes by letter. If
    `resize`, the picture is resized to the height and width of the input. Otherwise, InputError is
    raised if the size differs.
    """
    # An input without an axis of channels has 1 channel. For an open extent, `channels` is None.
    channels = extents.get("c", 1)
    image = _open_picture(path, channels or 3)
    if image.mode.startswith("I"):
        # The pixels have 16 bits. A conversion by Pillow to 8 bits would replace all values above
        # 255 by 255, so they are divided instead.
        image = _image_module().fromarray(np.asarray(image, np.float32) / _STEPS_OF_16_BITS)
    elif channels is None and image.mode in ("1", "L", "LA"):
        # With an open number of channels, a grey picture has one channel.
        image = image.convert("L")
    else:
        image = image.convert(_MODES[channels or 3])
    # An open extent takes the size of the picture.
    height = extents["h"] or image.height
    width = extents["w"] or image.width
    has_other_size = image.width != width or image.height != height
    if has_other_size and not resize:
        raise InputError(
            f"{path} is {image.width} pixels wide and {image.height} high, "
            f"input '{name}' takes {width} by {height}",
            hint="--resize scales pictures to the size of the input",
        )
    if has_other_size:
        image = image.resize((width, height), _image_module().Resampling.BILINEAR)
    # The array of a grey picture has no axis of channels, so an axis of extent 1 is added.
    pixels = np.atleast_3d(np.array(image, np.float32))
    if channels and pixels.shape[2] != channels:
        # A grey picture with 16 bits has one channel, which becomes all channels of the input.
        pixels = np.repeat(pixels, channels, axis=2)
    return pixels


def _open_picture(path: Path, channels: int) -> Any:
    """Open a picture, and decode it to the given number of channels.

    Raises DataError for a broken picture, and LimitError, before decoding, for a picture that is
    too large.
    """
    most_pixels = _image_module().MAX_IMAGE_PIXELS
    from PIL import ImageOps, JpegImagePlugin, PngImagePlugin

    with files.within_limits(str(path)) as (data, meter):
        content = bytes(data)
        if content.startswith(b"\x89PNG"):
            decoder = PngImagePlugin.PngImageFile
        elif content.startswith(b"\xff\xd8"):
            decoder = JpegImagePlugin.JpegImageFile
        else:
            raise DataError(f"{path}: neither a PNG nor a JPEG picture")
        try:
            # `Image.open` is not used, because it would warn of large pictures. All threads share
            # the filters of warnings, so this thread alone could not ignore the warning.
            image = decoder(io.BytesIO(content))
            pixel_count = image.width * image.height
            if most_pixels and pixel_count > most_pixels:
                message = f"a picture of {pixel_count} pixels, the limit is {most_pixels}"
                raise DataError(f"{path}: {message}")
            bytes_per_pixel = len(image.getbands()) + _BYTES_PER_CHANNEL * channels
            meter.expand(pixel_count * bytes_per_pixel, str(path))
            decoded_pixels = pixel_count * content.count(_SCAN)
            meter.spend(decoded_pixels // _PIXELS_PER_STEP, str(path))
            image.load()
            # The picture is turned as its EXIF data say.
            return ImageOps.exif_transpose(image)
        except NnefError:
            raise
        except Exception as error:
            # Pillow's decoders raise exceptions of various classes for broken data.
            raise DataError(f"{path}: a picture that cannot be read: {error}") from None


def _image_module() -> Any:
    """Return the module PIL.Image. Raises UnsupportedError if Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        instead = ", or give arrays as .npy"
        raise extra_missing("reading pictures needs Pillow", "images", instead) from None
    return Image
