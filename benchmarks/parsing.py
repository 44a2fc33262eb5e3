"""Measures how fast large documents are read, beside the parser of the `nnef` package.

nnef_jax reads a flat document to a checked graph with shapes. The `nnef` package only parses the
document.
"""

from __future__ import annotations

from typing import Any

from benchmarks import timing

SIZES = (5_000, 50_000)

_BLOCK = """\
    filter{i} = variable<scalar>(shape = [16, 16, 3, 3], label = 'block{i}/filter');
    conv{i} = conv(x{i}, filter{i}, 0.0, padding = [(1, 1), (1, 1)], border = 'constant', \
stride = [1, 1], dilation = [1, 1], groups = 1);
    mean{i} = variable<scalar>(shape = [1, 16], label = 'block{i}/mean');
    variance{i} = variable<scalar>(shape = [1, 16], label = 'block{i}/variance');
    offset{i} = variable<scalar>(shape = [1, 16], label = 'block{i}/offset');
    scale{i} = variable<scalar>(shape = [1, 16], label = 'block{i}/scale');
    norm{i} = batch_normalization(conv{i}, mean{i}, variance{i}, offset{i}, scale{i}, \
epsilon = 1e-05);
    relu{i} = relu(norm{i});
    pool{i} = max_pool(relu{i}, size = [1, 1, 3, 3], padding = [(0, 0), (0, 0), (1, 1), (1, 1)], \
border = 'ignore', stride = [1, 1, 1, 1], dilation = [1, 1, 1, 1]);
    x{j} = add(x{i}, pool{i});
"""
_STATEMENTS = _BLOCK.count(";\n")


def document(statements: int) -> str:
    """Return a flat document, as converters write them, with about `statements` statements."""
    blocks = statements // _STATEMENTS
    body = "".join(_BLOCK.format(i=i, j=i + 1) for i in range(blocks))
    external = "    x0 = external<scalar>(shape = [1, 16, 32, 32]);\n"
    return f"version 1.0;\n\ngraph network(x0) -> (x{blocks})\n{{\n{external}{body}}}\n"


def run(rounds: int) -> list[dict[str, Any]]:
    """Return a row for each size of document, with the milliseconds of both and their ratio."""
    import nnef

    from nnef_jax.reading.read import network_of_text

    rows: list[dict[str, Any]] = []
    for size in SIZES:
        text = document(size)
        calls = {
            "nnef_jax": lambda text=text: network_of_text(text),
            "wheel": lambda text=text: nnef.parse_string(text),
        }
        # The large document takes seconds to read. Its ratio varies less, so fewer rounds suffice.
        measured = timing.measure(calls, max(2, rounds * SIZES[0] // size))
        times = measured.medians
        rows.append(
            {
                "statements": size,
                "nnef_jax_ms": times["nnef_jax"] * 1e3,
                "wheel_ms": times["wheel"] * 1e3,
                "ratio": times["nnef_jax"] / times["wheel"],
                "cores_used_elsewhere": measured.elsewhere,
            }
        )
    return rows
