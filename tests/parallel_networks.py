"""Transformers as different exporters write them, which differ in heads and gates.

All are 64 wide, with 4 heads of 16 items, and take 8 sequences of 16 items.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import nnef_jax
from tests.helpers import COMPOSITIONAL, model_of

WIDTH, HIDDEN = 64, 128
Block = Callable[["_Text", str, int], str]


class _Text:
    """A document that is being written: its lines, and its variables by label."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.data: dict[str, np.ndarray] = {}
        self.random = np.random.default_rng(0)

    def put(self, expression: str) -> str:
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {expression};")
        return name

    def variable(self, label: str, *shape: int) -> str:
        self.data[label] = self.random.uniform(-0.3, 0.3, shape).astype(np.float32)
        return self.put(f"variable(shape = {list(shape)}, label = '{label}')")

    def linear(self, x: str, label: str, inputs: int, outputs: int) -> str:
        weight = self.variable(f"{label}/weight", 1, outputs, inputs)
        product = self.put(f"matmul({x}, {weight}, transposeB = true)")
        return self.put(f"{product} + {self.variable(f'{label}/bias', 1, 1, outputs)}")

    def norm(self, x: str, label: str) -> str:
        scale = self.variable(label, 1, 1, WIDTH)
        return self.put(f"l2_normalization({x}, axes = [2]) * {scale}")

    def view(self, x: str, *shape: int, axes: list[int] | None = None) -> str:
        y = self.put(f"reshape({x}, shape = {list(shape)})")
        return y if axes is None else self.put(f"transpose({y}, axes = {axes})")

    def several(self, count: int, expression: str) -> list[str]:
        names = [f"t{len(self.lines)}_{i}" for i in range(count)]
        self.lines.append(f"[{', '.join(names)}] = {expression};")
        return names

    def attend(self, q: str, k: str, v: str, axes: str = "[3]") -> str:
        scores = self.put(f"matmul({q}, {k}, transposeB = true)")
        return self.put(f"matmul(softmax({scores}, axes = {axes}), {v})")


def _joined(text: _Text, y: str) -> str:
    return text.view(text.put(f"transpose({y}, axes = [0,2,1,3])"), 8, 16, WIDTH)


def _separate(text: _Text, x: str, i: int) -> str:
    """BERT: three matrices."""
    q, k, v = (
        text.view(text.linear(x, f"{i}/{n}", WIDTH, WIDTH), 8, 16, 4, 16, axes=[0, 2, 1, 3])
        for n in "qkv"
    )
    return _joined(text, text.attend(q, k, v))


def _parts_first(text: _Text, x: str, i: int) -> str:
    """ViT by timm: one matrix of [3, heads, items]."""
    y = text.linear(x, f"{i}/qkv", WIDTH, 3 * WIDTH)
    y = text.view(y, 8, 16, 3, 4, 16, axes=[2, 0, 3, 1, 4])
    return _joined(text, text.attend(*text.several(3, f"unstack({y}, axis = 0)")))


def _heads_first(text: _Text, x: str, i: int) -> str:
    """GPT-NeoX: one matrix of [heads, 3, items]."""
    y = text.linear(x, f"{i}/qkv", WIDTH, 3 * WIDTH)
    y = text.view(y, 8, 16, 4, 3, 16, axes=[3, 0, 2, 1, 4])
    return _joined(text, text.attend(*text.several(3, f"unstack({y}, axis = 0)")))


def _split(text: _Text, x: str, i: int) -> str:
    """GPT-2: one matrix, split along its last axis."""
    y = text.linear(x, f"{i}/qkv", WIDTH, 3 * WIDTH)
    parts = text.several(3, f"split({y}, axis = 2, ratios = [1,1,1])")
    return _joined(
        text, text.attend(*(text.view(p, 8, 16, 4, 16, axes=[0, 2, 1, 3]) for p in parts))
    )


def _folded(text: _Text, x: str, i: int) -> str:
    """torch.nn.TransformerEncoderLayer: time first, then the batch is folded into heads."""
    y = text.linear(text.put(f"transpose({x}, axes = [1,0,2])"), f"{i}/qkv", WIDTH, 3 * WIDTH)
    y = text.view(y, 1, 16, 8, 3, WIDTH, axes=[3, 1, 2, 0, 4])
    y = text.put(f"squeeze({y}, axes = [3])")
    parts: list[str] = []
    for n in range(3):
        part = text.put(f"slice({y}, axes = [0], begin = [{n}], end = [{n + 1}])")
        part = text.view(text.put(f"squeeze({part}, axes = [0])"), 16, 32, 16, axes=[1, 0, 2])
        parts.append(text.view(part, 8, 4, 16, 16))
    y = text.put(f"transpose({text.attend(*parts)}, axes = [2,0,1,3])")
    return text.view(y, 16 * 8, WIDTH)


def _grouped(text: _Text, x: str, i: int) -> str:
    """Llama: two heads of keys and values, rotated by position."""
    shapes = {"q": (8, 16, 2, 2, 16), "k": (8, 16, 2, 1, 16), "v": (8, 16, 2, 1, 16)}
    heads: list[str] = []
    for name, shape in shapes.items():
        y = text.linear(x, f"{i}/{name}", WIDTH, int(np.prod(shape[2:])))
        y = text.view(y, *shape, axes=[0, 2, 3, 1, 4])
        if name != "v":
            left, right = text.several(2, f"split({y}, axis = 4, ratios = [1,1])")
            turned = text.put(f"concat([-{right}, {left}], axis = 4)")
            angles = [text.variable(f"{i}/{name}/{f}", 1, 1, 1, 16, 16) for f in ("cos", "sin")]
            y = text.put(f"{y} * {angles[0]} + {turned} * {angles[1]}")
        heads.append(y)
    y = text.view(text.attend(*heads, axes="[4]"), 8, 4, 16, 16)
    return _joined(text, y)


def _up(text: _Text, x: str, i: int) -> str:
    return text.put(f"relu({text.linear(x, f'{i}/up', WIDTH, HIDDEN)})")


def _gated(text: _Text, x: str, i: int) -> str:
    """Llama as some store it: gate and values in one matrix."""
    y = text.linear(x, f"{i}/up", WIDTH, 2 * HIDDEN)
    gate, up = text.several(2, f"split({y}, axis = 2, ratios = [1,1])")
    return text.put(f"{gate} * sigmoid({gate}) * {up}")


BLOCKS: dict[str, tuple[Block, Block]] = {
    "q, k, v separate (BERT)": (_separate, _up),
    "q, k, v in one as [3, heads, items] (ViT by timm)": (_parts_first, _up),
    "q, k, v in one as [heads, 3, items] (GPT-NeoX)": (_heads_first, _up),
    "q, k, v in one, split on its last axis (GPT-2)": (_split, _up),
    "torch.nn.TransformerEncoderLayer": (_folded, _up),
    "grouped queries, gate and values in one (Llama)": (_grouped, _gated),
}


def transformer(
    name: str, layers: int = 2, dtype: str = "float32"
) -> tuple[nnef_jax.Model, tuple[np.ndarray]]:
    """Return a network in the style of an exporter, and its input."""
    attention, hidden = BLOCKS[name]
    text = _Text()
    y = text.linear("x", "first", 48, WIDTH)
    for i in range(layers):
        inside = attention(text, text.norm(y, f"{i}/norm1"), i)
        if attention is _folded:
            weight = text.variable(f"{i}/o/weight", WIDTH, WIDTH)
            inside = text.put(f"matmul({inside}, {weight}, transposeB = true)")
            inside = text.view(inside, 16, 8, WIDTH, axes=[1, 0, 2])
        else:
            inside = text.linear(inside, f"{i}/o", WIDTH, WIDTH)
        y = text.put(f"{y} + {inside}")
        inside = hidden(text, text.norm(y, f"{i}/norm2"), i)
        y = text.put(f"{y} + {text.linear(inside, f'{i}/down', HIDDEN, WIDTH)}")
    text.lines.append(f"y = {text.linear(y, 'last', WIDTH, 32)};")
    lines = ["x = external(shape = [8,16,48]);", *text.lines]
    document = COMPOSITIONAL + "graph net(x) -> (y)\n{\n" + "\n".join(lines) + "\n}\n"
    x = np.random.default_rng(1).standard_normal((8, 16, 48)).astype(np.float32)
    return model_of(document, data=text.data, dtype=dtype), (x,)
