"""Write docs/openvx_reports.md: what OpenVX's fixed-point arithmetic does to three networks.

python docs/fixed_point.py

`docs/pictures.py openvx` draws the picture of docs/openvx.md from the first of them.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PAGE = ROOT / "docs" / "openvx_reports.md"
_HEAD = """\
# OpenVX reports

This page has the reports of `nnef_jax.openvx.check_profile` and `Lowered.stats` for three networks.
The networks are computed in Q7.8 (16-bit integers with 8 fractional bits). Results are rounded to
nearest even, and results out of the range of Q7.8 are saturated. `python docs/fixed_point.py`
writes this page. [OpenVX](openvx.md) explains the columns.
"""
_ALEXNET = """version 1.0;
graph alexnet_like(image) -> (probabilities)
{
    image = external(shape = [0,3,115,115]);
    conv1 = conv(image, k1, b1, padding = [(0,0),(0,0)], stride = [4,4]);
    relu1 = relu(conv1);
    norm1 = local_response_normalization(relu1, size = [1,5,1,1], alpha = 1e-4, beta = 0.75);
    pool1 = max_pool(norm1, POOL);
    conv2 = conv(pool1, k2, b2, padding = [(2,2),(2,2)], groups = 2);
    relu2 = relu(conv2);
    norm2 = local_response_normalization(relu2, size = [1,5,1,1], alpha = 1e-4, beta = 0.75);
    pool2 = max_pool(norm2, POOL);
    conv3 = conv(pool2, k3, b3, padding = [(1,1),(1,1)]);
    relu3 = relu(conv3);
    conv4 = conv(relu3, k4, b4, padding = [(1,1),(1,1)], groups = 2);
    relu4 = relu(conv4);
    pool3 = max_pool(relu4, POOL);
    features = reshape(pool3, shape = [0,-1]);
    dense1 = linear(features, k5, b5);
    relu5 = relu(dense1);
    dense2 = linear(relu5, k6, b6);
    probabilities = softmax(dense2);
}
""".replace("POOL", "size = [1,1,3,3], stride = [1,1,2,2], padding = [(0,0),(0,0),(0,0),(0,0)]")
_FILTERS = ((24, 3, 11, 11), (64, 12, 5, 5), (96, 64, 3, 3), (64, 48, 3, 3), (128, 256), (10, 128))


def digits() -> tuple[Any, Any]:
    """Return the digits' network from its ink on, and ten scans."""
    from PIL import Image

    import nnef_jax

    folder = ROOT / "examples/digits"
    scans = [Image.open(path).convert("L") for path in sorted(folder.glob("scans/*.png"))]
    images = np.stack([np.float32(scan) for scan in scans])[:, None]
    return nnef_jax.load(folder / "model").cut(inputs=["ink"]), images / 255


def alexnet_like() -> tuple[Any, Any]:
    """Return a small AlexNet (Krizhevsky et al. 2012) of random weights, and four images."""
    import nnef_jax
    from nnef_jax.storage.writer import write_members

    random, lines, files = np.random.default_rng(0), list[str](), dict[str, Any]()
    for i, shape in enumerate(_FILTERS, 1):
        files[f"k{i}"] = random.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape)
        files[f"b{i}"] = random.normal(0, 0.1, (1, shape[0]))
    for name, x in files.items():
        lines.append(f"{name} = variable(shape = {list(x.shape)}, label = '{name}');")
    text = _ALEXNET.replace("    conv1 =", "    " + "\n    ".join(lines) + "\n    conv1 =")
    with tempfile.TemporaryDirectory() as folder:
        arrays = {f"{name}.dat": x.astype(np.float32) for name, x in files.items()}
        write_members(f"{folder}/network.tar", {"graph.nnef": text.encode(), **arrays})
        model = nnef_jax.load(Path(f"{folder}/network.tar").read_bytes())
    return model, _images(random, 4, 115)


def mobilenet_like() -> tuple[Any, Any]:
    """Return a small MobileNetV2 (Sandler et al. 2018) of random weights, and four images."""
    import nnef_jax
    from benchmarks.builders.nnef_builder import NnefBuilder
    from benchmarks.networks.convolutional import mobilenet_v2

    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 2, 2))
    builder = NnefBuilder()
    output = mobilenet_v2(builder, 4, extent=64, stages=stages, last=128, classes=10)
    with tempfile.TemporaryDirectory() as folder:
        builder.write(f"{folder}/network.tar", output)
        model = nnef_jax.load(Path(f"{folder}/network.tar").read_bytes())
    return model, _images(np.random.default_rng(0), 4, 64)


def _images(random: Any, count: int, extent: int) -> Any:
    return random.uniform(-1, 1, (count, 3, extent, extent)).astype(np.float32)


def report(title: str, about: str, model: Any, images: Any) -> str:
    """Return a section: how many operations each layer computes, and the statistics."""
    from nnef_jax import openvx

    checked = openvx.check_profile(model, "openvx-16bit")
    layers = Counter(node.layer.split(" x ")[-1] for node in checked.nodes if node.fits)
    folded = sum(n for layer, n in layers.items() if layer.startswith("in "))
    counted = [
        f"{n} {layer}"
        for layer, n in layers.items()
        if layer.startswith("vx") and layer != "vx_tensor"
    ]
    unfit = [f"`{node.name}`: {node.reason}" for node in checked.nodes if not node.fits]
    said = "; ".join(unfit) or "all operations fit the profile"
    found = openvx.lower(model, on_unfit="float").stats(images, isolate=True)
    text = "\n".join(line.rstrip() for line in str(found).splitlines()).strip()
    return (
        f"\n## {title}\n\n{about} Layers: {', '.join(counted)}; {folded} operations are folded "
        f"into weights. {said[0].upper()}{said[1:]}.\n\n```text\n{text}\n```\n"
    )


def main() -> None:
    """Write the page."""
    small = "A small network with random weights (He et al. 2015) runs on four random images."
    part = (
        "The network of `examples/digits`, without the operations that compute the tensor `ink`, "
        "runs on ten scans."
    )
    sections = (
        report("Digits", part, *digits()),
        report("AlexNet-like", small, *alexnet_like()),
        report("MobileNet-like", small, *mobilenet_like()),
    )
    PAGE.write_text(_HEAD + "".join(sections), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
