"""Makes the detector of `examples/detect.py`: digits in a picture, as SSD finds objects.

    python -m tests.openvino.detector

trains it (SSD, arXiv:1512.02325) on pictures with scanned digits and writes `examples/detector`:
the network as version 5 and as version 11, which share one file of weights in float16.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.openvino.documents import Writer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "detector"
SIDE, STEP, CLASSES = 64, 4, 11  # the first class is that of no digit
SIZES = (9, 14)  # of prior boxes
VARIANCE = (0.1, 0.1, 0.2, 0.2)
GRID = SIDE // STEP
PRIORS = GRID * GRID * len(SIZES)
# Channels in and out, stride. The last two find places and classes.
LAYERS = {
    "conv1": (1, 16, 1), "conv2": (16, 32, 2), "conv3": (32, 48, 2), "conv4": (48, 48, 1),
    "places": (48, 4 * len(SIZES), 1), "classes": (48, CLASSES * len(SIZES), 1),
}  # fmt: skip
_DETECTION = {
    "num_classes": CLASSES, "background_label_id": 0, "top_k": 200, "keep_top_k": 24,
    "nms_threshold": 0.3, "confidence_threshold": 0.5, "share_location": 1,
    "variance_encoded_in_target": 0, "code_type": "caffe.PriorBoxParameter.CENTER_SIZE",
}  # fmt: skip


def first_weights(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return filters and biases to train from (He et al. 2015, arXiv:1502.01852)."""
    found: dict[str, np.ndarray] = {}
    for name, (inputs, outputs, _) in LAYERS.items():
        scale = np.sqrt(2 / (9 * inputs))
        found[f"{name}.weights"] = random.normal(0, scale, (outputs, inputs, 3, 3)).astype("f4")
        found[f"{name}.biases"] = np.zeros(outputs, np.float32)
    return found


def old(weights: Mapping[str, np.ndarray]) -> Writer:
    """Return the network as the Model Optimizer of 2019 wrote it: version 5, weights as blobs."""
    net, half = Writer(5), {k: v.astype(np.float16) for k, v in weights.items()}

    def add(type: str, inputs: Any, shape: Any, name: str = "", **given: Any) -> int:
        return net.layer(type, inputs, [shape], name=name, precision="FP16", attributes=given)

    def conv(name: str, x: int, extent: int) -> int:
        _, outputs, stride = LAYERS[name]
        given = {"kernel": "3,3", "strides": f"{stride},{stride}", "pads_begin": "1,1",
                 "pads_end": "1,1", "dilations": "1,1", "group": 1, "output": outputs}  # fmt: skip
        blobs = {kind: half[f"{name}.{kind}"] for kind in ("weights", "biases")}
        shape = (1, outputs, extent, extent)
        return net.layer(
            "Convolution", [x], [shape], name=name, precision="FP16", attributes=given, blobs=blobs
        )

    image = net.input("image", (1, 1, SIDE, SIDE))
    x = add("Power", [image], (1, 1, SIDE, SIDE), "ink", scale=1 / 255, shift=0, power=1)
    for name in ("conv1", "conv2", "conv3", "conv4"):
        extent = SIDE if name == "conv1" else SIDE // 2 if name == "conv2" else GRID
        x = add(
            "ReLU", [conv(name, x, extent)], (1, LAYERS[name][1], extent, extent), f"{name}.relu"
        )
    heads: list[int] = []
    for name in ("places", "classes"):
        count = LAYERS[name][1]
        y = add("Permute", [conv(name, x, GRID)], (1, GRID, GRID, count), order="0,2,3,1")
        heads.append(add("Flatten", [y], (1, GRID * GRID * count), f"{name}.flat", axis=1))
    each = add("Reshape", [heads[1]], (1, PRIORS, CLASSES), dim=f"0,{PRIORS},{CLASSES}")
    each = add("SoftMax", [each], (1, PRIORS, CLASSES), axis=2)
    classes = add("Flatten", [each], (1, PRIORS * CLASSES), "probabilities", axis=1)
    priors = add(
        "PriorBox", [x, image], (1, 2, 4 * PRIORS), "priors", min_size=",".join(map(str, SIZES)),
        step=STEP, offset=0.5, clip=0, flip=0, variance=",".join(map(str, VARIANCE)),
    )  # fmt: skip
    add("DetectionOutput", [heads[0], classes, priors], (1, 1, 24, 7), "boxes", **_DETECTION)
    return net


def new(weights: Mapping[str, np.ndarray]) -> Writer:
    """Return the network as OpenVINO writes it today: version 11, weights as constants."""
    net = Writer(11)
    half = {"destination_type": "f32"}

    def constant(name: str, array: np.ndarray) -> int:
        stored = net.packed(array.astype(np.float16), array.shape, "f16", name)
        return net.layer("Convert", [stored], [array.shape], attributes=half)

    # The blobs of the old network come first, so that one file serves both.
    known = {
        f"{name}.{kind}": constant(f"{name}.{kind}", array.reshape(shape))
        for name, (_, outputs, _) in LAYERS.items()
        for kind, shape in (("weights", (outputs, -1, 3, 3)), ("biases", (1, outputs, 1, 1)))
        for array in [weights[f"{name}.{kind}"]]
    }

    def conv(name: str, x: int, extent: int) -> int:
        _, outputs, stride = LAYERS[name]
        given = {"strides": f"{stride},{stride}", "pads_begin": "1,1", "pads_end": "1,1",
                 "dilations": "1,1", "auto_pad": "explicit"}  # fmt: skip
        shape = (1, outputs, extent, extent)
        x = net.layer("Convolution", [x, known[f"{name}.weights"]], [shape], attributes=given)
        return net.layer("Add", [x, known[f"{name}.biases"]], [shape], name=name)

    image = net.input("image", (1, 1, SIDE, SIDE))
    scale = net.constant(np.float32(1 / 255).reshape(1, 1, 1, 1))
    x = net.layer("Multiply", [image, scale], [(1, 1, SIDE, SIDE)])
    for name in ("conv1", "conv2", "conv3", "conv4"):
        extent = SIDE if name == "conv1" else SIDE // 2 if name == "conv2" else GRID
        x = net.layer("ReLU", [conv(name, x, extent)], [(1, LAYERS[name][1], extent, extent)])
    heads: list[int] = []
    for name in ("places", "classes"):
        count = LAYERS[name][1]
        order = net.constant(np.array([0, 2, 3, 1]))
        y = net.layer("Transpose", [conv(name, x, GRID), order], [(1, GRID, GRID, count)])
        sizes = net.constant(np.array([1, -1] if name == "places" else [1, PRIORS, CLASSES]))
        shape = (1, 4 * PRIORS) if name == "places" else (1, PRIORS, CLASSES)
        given = {"special_zero": "false"}
        heads.append(
            net.layer("Reshape", [y, sizes], [shape], attributes=given, name=f"{name}.flat")
        )
    each = net.layer("SoftMax", [heads[1]], [(1, PRIORS, CLASSES)], attributes={"axis": 2})
    flat = net.constant(np.array([1, -1]))
    given = {"special_zero": "false"}
    classes = net.layer("Reshape", [each, flat], [(1, PRIORS * CLASSES)], attributes=given)
    extents = [net.constant(np.array([n, n])) for n in (GRID, SIDE)]
    boxes = {"min_size": ",".join(map(str, SIZES)), "step": STEP, "offset": 0.5, "clip": "false",
             "flip": "false", "variance": ",".join(map(str, VARIANCE)),
             "scale_all_sizes": "true"}  # fmt: skip
    priors = net.layer(
        "PriorBox", extents, [(2, 4 * PRIORS)], attributes=boxes, opset="opset8", name="priors"
    )
    axis = net.constant(np.array([0]))
    priors = net.layer("Unsqueeze", [priors, axis], [(1, 2, 4 * PRIORS)])
    found = net.layer(
        "DetectionOutput", [heads[0], classes, priors], [(1, 1, 24, 7)], name="boxes",
        attributes={k: v for k, v in _DETECTION.items() if k != "num_classes"}
        | {"share_location": "true", "variance_encoded_in_target": "false", "normalized": "true",
           "keep_top_k": 24}, opset="opset8",
    )  # fmt: skip
    return net.result(found)


def scene(random: np.random.Generator, scans: np.ndarray, digits: np.ndarray) -> Any:
    """Return a picture [1,SIDE,SIDE] with digits of several sizes, their boxes and their classes.

    Boxes [n,4] are left, top, right, bottom in pixels.
    """
    from PIL import Image

    picture = np.zeros((SIDE, SIDE), np.float32)
    boxes: list[tuple[int, int, int, int]] = []
    labels: list[int] = []
    for _ in range(40):
        size, which = int(random.integers(8, 17)), int(random.integers(len(scans)))
        left, top = (int(n) for n in random.integers(0, SIDE - size, 2))
        box = (left, top, left + size, top + size)
        if any(not (box[2] <= a or c <= left or box[3] <= b or d <= top) for a, b, c, d in boxes):
            continue
        scan = Image.fromarray(scans[which].astype(np.uint8)).resize((size, size), 2)
        picture[top : top + size, left : left + size] = np.asarray(scan)
        boxes.append(box)
        labels.append(int(digits[which]) + 1)
        if len(boxes) == 10:
            break
    picture += random.uniform(0, 40) * random.uniform(0, 1, picture.shape)  # grain of the paper
    return np.clip(picture, 0, 255)[None], np.array(boxes, np.float32), np.array(labels)


def targets(boxes: np.ndarray, labels: np.ndarray, priors: np.ndarray) -> tuple[Any, Any]:
    """Return for each prior box [n,4] the position of its digit, and its class, 0 for none."""
    low = np.maximum(boxes[:, None, :2], priors[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], priors[None, :, 2:])
    common = np.prod(np.maximum(high - low, 0), -1)
    area = np.prod(boxes[:, 2:] - boxes[:, :2], -1)[:, None] + np.prod(
        priors[:, 2:] - priors[:, :2], -1
    )
    overlap = common / (area - common)
    best = overlap.argmax(0)
    overlap[np.arange(len(boxes)), overlap.argmax(1)] = 2  # each digit has one prior box at least
    best = np.where(overlap.max(0) == 2, overlap.argmax(0), best)
    chosen, is_digit = boxes[best], overlap.max(0) > 0.5
    middle, extent = (priors[:, :2] + priors[:, 2:]) / 2, priors[:, 2:] - priors[:, :2]
    shift = ((chosen[:, :2] + chosen[:, 2:]) / 2 - middle) / extent / VARIANCE[:2]
    growth = np.log((chosen[:, 2:] - chosen[:, :2]) / extent) / VARIANCE[2:]
    return np.concatenate([shift, growth], 1), np.where(is_digit, labels[best], 0)


def prior_boxes() -> np.ndarray:
    """Return left, top, right, bottom of each prior box in pixels."""
    middles = (np.arange(GRID) + 0.5) * STEP
    found = [
        (x - size / 2, y - size / 2, x + size / 2, y + size / 2)
        for y in middles
        for x in middles
        for size in SIZES
    ]
    return np.array(found)


def heads(weights: Any, images: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return positions [n,PRIORS,4] and scores of classes [n,PRIORS,CLASSES] of images."""

    def conv(name: str, x: jax.Array) -> jax.Array:
        stride, given = (LAYERS[name][2],) * 2, ((1, 1), (1, 1))
        y = jax.lax.conv_general_dilated(x, weights[f"{name}.weights"], stride, given)
        return y + weights[f"{name}.biases"][:, None, None]

    x = images / 255
    for name in ("conv1", "conv2", "conv3", "conv4"):
        x = jax.nn.relu(conv(name, x))
    places, classes = (
        jnp.moveaxis(conv(name, x), 1, 3).reshape(len(x), PRIORS, -1)
        for name in ("places", "classes")
    )
    return places, classes


def loss(weights: Any, images: Any, places: Any, classes: Any) -> jax.Array:
    """Return the loss: errors of positions, and negative log-probabilities of right classes."""
    found, scores = heads(weights, images)
    is_digit = classes > 0
    count = jnp.maximum(is_digit.sum(), 1)
    log = jnp.take_along_axis(jax.nn.log_softmax(scores), classes[..., None], -1)[..., 0]
    off = jnp.abs(found - places).sum(-1)
    return (jnp.where(is_digit, off - log, -log).sum()) / count


def train(steps: int, batch: int = 16) -> dict[str, np.ndarray]:
    """Return weights that find digits in pictures that they have not seen."""
    import optax

    sys.path.insert(0, str(ROOT / "examples"))
    from train import load_digits  # type: ignore[import-not-found]

    digits, _, _ = load_digits()
    random, priors = np.random.default_rng(0), prior_boxes()
    weights: Any = first_weights(random)
    optimizer = optax.adam(optax.cosine_decay_schedule(2e-3, steps))
    state = optimizer.init(weights)

    @jax.jit
    def step(weights: Any, state: Any, *batch: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(weights, *batch)
        change, state = optimizer.update(slope, state)
        return optax.apply_updates(weights, change), state, value

    for i in range(steps):
        scenes = [scene(random, digits.images[:, 0], digits.labels) for _ in range(batch)]
        wanted = [targets(boxes, labels, priors) for _, boxes, labels in scenes]
        places, classes = (np.stack(x) for x in zip(*wanted, strict=True))
        images = np.stack([image for image, _, _ in scenes])
        weights, state, value = step(
            weights, state, images, places.astype(np.float32), classes.astype(np.int32)
        )
        if i % 100 == 0 or i == steps - 1:
            print(f"step {i}: loss {float(value):.2f}", flush=True)
    return jax.tree.map(np.asarray, weights)


def main() -> None:
    """Train the network and write it in two versions."""
    weights = train(int(sys.argv[1]) if len(sys.argv) > 1 else 2600)
    FOLDER.mkdir(exist_ok=True)
    for name, net in (("v5", old(weights)), ("v11", new(weights))):
        text = net.text().replace("<layer ", "\n<layer ").replace("<edge ", "\n<edge ")
        (FOLDER / f"{name}.xml").write_text(text.replace('name="net"', 'name="digits"') + "\n")
    data = bytes(new(weights).data)
    assert data.startswith(bytes(old(weights).data)), "the two would not share their weights"
    (FOLDER / "digits.bin").write_bytes(data)


if __name__ == "__main__":
    main()
