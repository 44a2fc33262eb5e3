"""Makes the pictures of pages: docs/pictures/view_*.png.

python docs/screenshots.py           all of them
python docs/screenshots.py NAME ...  these

It needs Debian's chromium, playwright and pillow; torch and torch_to_nnef for exports of PyTorch.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import nnef_jax  # noqa: E402

SIZE = {"width": 1200, "height": 750}


def _digits() -> Any:
    return nnef_jax.view(ROOT / "examples/digits/model")


def _gpt() -> Any:
    return nnef_jax.view(ROOT / "tests/torch_networks/gpt.nnef.tgz")


def _exported(name: str, **options: Any) -> Any:
    """The page of a module of tests/torch_networks, as torch_to_nnef exports it."""
    sys.path.insert(0, str(ROOT / "tests/torch_networks"))
    import export
    import modules
    import networks
    import torch

    module = getattr(modules, name)(**options).eval()
    generator = torch.Generator().manual_seed(0)
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.randn(tensor.shape, generator=generator).abs() * 0.1)
    network = networks.Network(lambda: module, lambda _: [], ("image",), ("logits",))
    members = export.archive(network, module, (torch.zeros(1, 3, 224, 224),))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name.lower()
        path.mkdir()
        for member, data in members.items():
            (path / member).write_bytes(data)
        return nnef_jax.view(path)


@cache
def _resnet50() -> Any:
    return _exported("ResNet50")


def _vit() -> Any:
    return _exported("VisionTransformer", width=192, depth=12, patch=16, side=224)


# Of each picture: the page, what its address names, light or dark, what boxes are coloured by.
PICTURES: dict[str, tuple[Callable[[], Any], str, Any, str]] = {
    "view_digits": (_digits, "conv2", "light", "kind"),
    "view_gpt": (_gpt, "blocks%2F0%2F_0__qkv__linear0", "light", "kind"),
    "view_gpt_dark": (_gpt, "", "dark", "kind"),
    "view_resnet50": (_resnet50, "layer2___0__bn2__input_batch_norm0", "light", "kind"),
    "view_vit": (_vit, "blocks%2F0%2Fattention", "dark", "kind"),
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
            picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB").quantize(128)
            picture.save(ROOT / "docs" / "pictures" / f"{name}.png", optimize=True)
            print(f"wrote docs/pictures/{name}.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
