"""Networks for the tests of pages: a transformer of many layers, and one of many operations."""

from __future__ import annotations


def gpt(layers: int, *, labels: bool = True) -> str:
    """Return a transformer without data, 25 operations a layer, in modules if it has labels."""
    lines = ["x = external<scalar>(shape = [1, 16, 32]);"]
    state, count = "x", 0

    def put(expression: str) -> str:
        nonlocal count
        count += 1
        lines.append(f"v{count} = {expression};")
        return f"v{count}"

    def weight(label: str, shape: str) -> str:
        label = label if labels else f"w{count}"
        return put(f"variable<scalar>(shape = {shape}, label = '{label}')")

    def linear(path: str, x: str, rows: int, columns: int) -> str:
        filter = weight(f"{path}.weight", f"[{rows}, {columns}]")
        return put(f"matmul({x}, unsqueeze({filter}, axes = [0]), transposeB = true)")

    def norm(path: str, x: str) -> str:
        mean = put(f"mean_reduce({x}, axes = [2])")
        centred = put(f"sub({x}, {mean})")
        variance = put(f"mean_reduce(sqr({centred}), axes = [2])")
        scaled = put(f"mul({centred}, rsqrt(add({variance}, 0.00001)))")
        return put(f"mul({scaled}, {weight(f'{path}.weight', '[1, 1, 32]')})")

    for layer in range(layers):
        path = f"blocks.{layer}"
        x = norm(f"{path}.norm1", state)
        q, k, v = (linear(f"{path}.attention.{name}", x, 32, 32) for name in "qkv")
        scores = put(f"softmax(matmul({q}, {k}, transposeB = true), axes = [2])")
        mixed = put(f"matmul({scores}, {v})")
        state = put(f"add({state}, {linear(f'{path}.attention.output', mixed, 32, 32)})")
        x = norm(f"{path}.norm2", state)
        x = put(f"gelu({linear(f'{path}.mlp.up', x, 64, 32)})")
        state = put(f"add({state}, {linear(f'{path}.mlp.down', x, 32, 64)})")
    y = linear("head", state, 10, 32)
    body = "\n    ".join(lines)
    header = "version 1.0;\nextension KHR_enable_operator_expressions;\n"
    return f"{header}graph gpt(x) -> ({y})\n{{\n    {body}\n}}\n"
