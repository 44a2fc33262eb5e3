"""Functions that the examples share, for options, required packages, and pictures."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

IMPORTED = {"scikit-learn": "sklearn", "pillow": "PIL"}
DIGITS = Path(__file__).parent / "digits"
BLUE, RED, GREEN, GREY = "#2563a8", "#c2410c", "#15803d", "#8a8f98"
STYLE = {
    "axes.edgecolor": GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.dpi": 120,
}


class Options(argparse.ArgumentParser):
    """The command line of an example.

    It checks that the packages of the example are installed, and that no file would be replaced
    without `--overwrite`.

    Args:
        doc: the docstring of the example. Its first line is shown as help.
        needs: the packages that the example needs, by their names in pip.
        files: the options that name a file to write, each with the default name of its file in the
            folder `out`.
    """

    def __init__(self, doc: str | None, needs: Sequence[str], **files: str) -> None:
        super().__init__(description=(doc or "").splitlines()[0])
        self.needs, self.files = needs, files
        for name, default in files.items():
            path = Path("out") / default
            self.add_argument(
                f"--{name}", type=Path, default=path, help="a file to write (%(default)s)"
            )
        self.add_argument("--overwrite", action="store_true", help="replace what is there")

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Return the options. Exit if a package is missing, or if a file is in the way."""
        args = self.parse_args(argv)
        missing = [name for name in self.needs if find_spec(IMPORTED.get(name, name)) is None]
        if missing:
            raise SystemExit(f'needs {" and ".join(missing)}: pip install -e ".[examples]"')
        for name, default in self.files.items():
            path: Path = getattr(args, name)
            if path.exists() and not args.overwrite:
                self.error(f"{path} exists: give --overwrite, or another --{name}")
            if default.endswith(".png") and path.suffix.lower() != ".png":
                self.error(f"{path}: --{name} is a picture, a .png")
            if path.is_dir():
                self.error(f"{path} is a folder: give another --{name}")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                self.error(f"--{name}: {error.filename}: {error.strerror}")
        return args


def positive(text: str) -> int:
    """Convert the text of an option to a number that is at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)


@contextmanager
def picture(
    path: Path, width: float, height: float, mosaic: Any, title: str = "", **layout: Any
) -> Iterator[Any]:
    """Yield the axes of a new figure by name, in the layout `mosaic`. Then save the figure."""
    import matplotlib
    from matplotlib.figure import Figure
    from PIL import Image  # matplotlib needs it too

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))  # inches
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        yield figure.subplot_mosaic(mosaic, **layout)
        figure.savefig(path)
    with Image.open(path) as drawn:  # this makes the file smaller by two thirds
        drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"drew {path}")


def show_scan(axes: Any, scan: Any, title: str, color: str = "black") -> None:
    """Show a scan (8, 8) as dark ink on white paper."""
    axes.imshow(scan, cmap="gray_r", vmin=0, vmax=255)
    axes.set_title(title, color=color, loc="center", fontsize=10, fontweight="normal")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color="#d5d8dc")


def read_scan(path: Path) -> np.ndarray:
    """Return the grey values of a picture of 8x8 pixels, as an array of the shape (1, 8, 8)."""
    from PIL import Image

    try:
        with Image.open(path) as scan:
            pixels = np.asarray(scan.convert("L"), np.float32)
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror or error}") from None
    if pixels.shape != (8, 8):
        high, wide = pixels.shape
        raise SystemExit(f"{path} has {wide}x{high} pixels: the network reads 8x8")
    return pixels[None]
