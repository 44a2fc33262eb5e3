"""Makes the pictures of pages: docs/pictures/view_*.png.

python docs/screenshots.py           all of them
python docs/screenshots.py NAME ...  these

It needs Debian's chromium and playwright (pip install playwright).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import nnef_jax  # noqa: E402

SIZE = {"width": 1200, "height": 750}


def _digits() -> Any:
    return nnef_jax.view(ROOT / "examples/digits/model")


def _gpt() -> Any:
    return nnef_jax.view(ROOT / "tests/torch_networks/gpt.nnef.tgz")


def _resnet50() -> Any:
    from benchmarks.engines import write_nnef

    with tempfile.TemporaryDirectory() as folder:
        return nnef_jax.view(write_nnef("resnet50", 1, Path(folder)))


# Of each picture: the page, what its address names, light or dark, what boxes are coloured by.
PICTURES: dict[str, tuple[Callable[[], Any], str, Any, str]] = {
    "view_digits": (_digits, "conv2", "light", "kind"),
    "view_gpt": (_gpt, "blocks%2F0%2F_0__qkv__linear0", "light", "kind"),
    "view_gpt_dark": (_gpt, "", "dark", "kind"),
    "view_resnet50": (_resnet50, "stage1%2F0%2Fexpand", "light", "kind"),
    "view_resnet50_dark": (_resnet50, "", "dark", "multiply_adds"),
}


def main(argv: Sequence[str]) -> None:
    """Make the pictures of these names, all of them if there are none."""
    with sync_playwright() as started, tempfile.TemporaryDirectory() as folder:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name in argv or PICTURES:
            page, link, theme, colour = PICTURES[name]
            path = Path(folder) / f"{name}.html"
            page().save(path)
            tab = browser.new_page(viewport=SIZE, color_scheme=theme)
            tab.goto(f"{path.as_uri()}#{link}")
            tab.wait_for_selector("html[data-drawn]")
            tab.select_option("#colours", colour)
            tab.wait_for_timeout(400)
            tab.screenshot(path=ROOT / "docs" / "pictures" / f"{name}.png")
            print(f"wrote docs/pictures/{name}.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
