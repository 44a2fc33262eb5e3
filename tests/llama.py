"""The document of a Llama with all its layers, for tests that need no weights."""

from __future__ import annotations

from tests.helpers import COMPOSITIONAL


def llama(layers: int = 32, width: int = 4096, hidden: int = 11008, heads: int = 32) -> str:
    """Return graph.nnef of a Llama; the defaults are the shapes of 7 billion parameters.

    It computes the logits of the next token of a batch of 1 and of 512 tokens.
    """
    tokens, words, items = 512, 32000, width // heads
    lines = [
        f"x = external<integer>(shape = [1,{tokens}]);",
        f"table = variable(shape = [{words},{width}], label = 'embedding');",
        "y0 = gather(table, x, axis = 0);",
        f"cos = variable(shape = [1,1,{tokens},{items}], label = 'cos');",
        f"sin = variable(shape = [1,1,{tokens},{items}], label = 'sin');",
        f"mask = variable(shape = [1,1,{tokens},{tokens}], label = 'mask');",
    ]

    def put(name: str, expression: str) -> str:
        lines.append(f"{name} = {expression};")
        return name

    def linear(name: str, x: str, inputs: int, outputs: int) -> str:
        shape = f"shape = [1,{outputs},{inputs}], label = '{name}'"
        put(f"{name}_w", f"variable({shape})")
        return put(name, f"matmul({x}, {name}_w, transposeB = true)")

    def norm(name: str, x: str) -> str:
        put(f"{name}_w", f"variable(shape = [1,1,{width}], label = '{name}')")
        mean = put(f"{name}_m", f"mean_reduce({x} * {x}, axes = [2])")
        return put(name, f"{x} * rsqrt({mean} + 0.00001) * {name}_w")

    def split(name: str, x: str) -> str:
        put(f"{name}_r", f"reshape({x}, shape = [1,{tokens},{heads},{items}])")
        return put(f"{name}_h", f"transpose({name}_r, axes = [0,2,1,3])")

    def rotated(name: str, x: str) -> str:
        half = "ratios = [1,1]"
        lines.append(f"[{name}_a, {name}_b] = split({x}, axis = 3, {half});")
        turned = put(f"{name}_t", f"concat([-{name}_b, {name}_a], axis = 3)")
        return put(f"{name}_o", f"{x} * cos + {turned} * sin")

    y = "y0"
    for i in range(layers):
        n = norm(f"n{i}", y)
        q, k, v = (split(f"{x}{i}", linear(f"{x}{i}", n, width, width)) for x in "qkv")
        q, k = rotated(f"q{i}", q), rotated(f"k{i}", k)
        scores = put(f"s{i}", f"matmul({q}, {k}, transposeB = true) * {items**-0.5} + mask")
        mixed = put(f"a{i}", f"matmul(softmax({scores}, axes = [3]), {v})")
        put(f"at{i}", f"transpose({mixed}, axes = [0,2,1,3])")
        flat = put(f"af{i}", f"reshape(at{i}, shape = [1,{tokens},{width}])")
        y = put(f"u{i}", f"{y} + {linear(f'o{i}', flat, width, width)}")
        n = norm(f"m{i}", y)
        gate, up = linear(f"g{i}", n, width, hidden), linear(f"p{i}", n, width, hidden)
        gated = put(f"h{i}", f"{gate} * sigmoid({gate}) * {up}")
        y = put(f"y{i + 1}", f"{y} + {linear(f'd{i}', gated, hidden, width)}")
    last = linear("logits", norm("last", y), width, words)
    body = "\n".join(lines)
    return COMPOSITIONAL + f"graph llama(x) -> ({last})\n{{\n{body}\n}}\n"
