"""Attacks by documents of tract's dialect, and by what lies beside them."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterable

from tests.fuzz.attack import TRACT, Attack, fragment, listed, times, traced, tract
from tests.helpers import tar

_COPY = "y = copy(x);"
_S = "extension tract_symbol S;\n"
_INNER = "y = tract_core_submodel([{}], 'm');\n"


def _many_inputs(n: int, external: str, body: str) -> str:
    return f"{TRACT}graph net( {listed(n, 'x{i}')} ) -> ( y ) {{ {times(n, external)} {body} }}"


def _scan(statements: str = "", outputs: str = "", parameters: str = "", full: str = "") -> str:
    """A document that scans x by a fragment of these statements."""
    scan = (
        f"y = tract_core_scan('b', scan = [('x', x, 0, 1)], full = [{full}], state = [], "
        f"output = [{outputs}('y', 'full', 0, 1)], skip = 0, reset_every_turn = false);"
    )
    return tract(scan, fragment(f"{statements} {_COPY}", "b", parameters))


def _scans(n: int) -> str:
    text = _scan()
    start = text.index("y = tract_core_scan")
    scan = text[start : text.index(";", start) + 1]
    return text.replace(scan, f"{scan}\n" * n)


def _safetensors(labels: Iterable[str]) -> bytes:
    header = {name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in labels}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def _symbols(n: int) -> str:
    shape = ", ".join(f"S{i} + S{i + 1}" for i in reversed(range(n))) + ", S0"
    return tract(_COPY, times(n + 1, "extension tract_symbol S{i};"), shape)


def _networks(n: int) -> dict[str, bytes | str]:
    text = tract(_INNER.format("x") + _INNER.format("y"))
    return {"m/" * depth + "graph.nnef": text for depth in range(n)} | {
        "m/" * n + "graph.nnef": tract(_COPY)
    }


def _captured(n: int) -> dict[str, bytes | str]:
    body = times(n, "v{i} = variable(label = 'v{i}', shape = [0]);")
    return {"graph.nnef": _scan(body), "m.safetensors": _safetensors(f"v{i}" for i in range(n))}


def _many_safetensors(n: int) -> bytes:
    body = times(20 * n, "v{i} = variable(label = 'v{i}', shape = [0]);")
    members = {f"m{i}.safetensors": _safetensors([f"w{i}"]) for i in range(n)}
    return gzip.compress(tar({"graph.nnef": tract(f"{body}{_COPY}"), **members}), 1)


def _long(n: int, count: int, statement: str) -> dict[str, bytes | str]:
    """A document whose fragment with a long word is called often."""
    calls = times(count, "y{i} = b(x);")
    made = fragment(f"{statement.format('a' * n)} y = x;", "b")
    return {"graph.nnef": tract(f"{calls}{_COPY}", made), "c.json": "{}"}


def _defaults(n: int) -> str:
    made = fragment("y = x;", "b", f", {listed(n, 'a{i}: integer = 0')}")
    return tract("y = b(x);\n" * n, made)


def _product(count: int) -> str:
    if count > 1:
        return f"({_product(count // 2)}*{_product(count - count // 2)})"
    return f"S*{(1 << 64) - 1}"


def _within(inner: str, body: str, shape: str) -> dict[str, bytes | str]:
    return {"graph.nnef": tract(body, shape=shape), "m/graph.nnef": inner}


def _inner_symbols(n: int) -> dict[str, bytes | str]:
    external = "x{i} = tract_core_external(shape = [S{i}*S{i}], datum_type = 'f32');"
    inner = _many_inputs(n, external, "y = copy(x0);")
    return _within(inner, _INNER.format(f"{'x, ' * (n - 1)}x"), "4")


def _doubling(expression: str) -> Attack:
    def make(n: int) -> str:
        first = fragment(f"y = {expression};", "f0")
        both = (fragment(f"a = f{i}(x); y = f{i}(x);", f"f{i + 1}") for i in range(n))
        return tract(f"y = f{n}(x);", f"{first}{''.join(both)}")

    return Attack(40, make)


def _many_states(n: int) -> str:
    delay = "y = tract_pulse_delay(y, axis = 0, delay = 1, overlap = 0);\n"
    return tract(f"{_COPY}\n" + delay * n, "extension tract_registry tract_pulse;\n")


def _quantisation(n: int) -> dict[str, bytes | str]:
    return {
        "graph.nnef": tract(_COPY),
        "graph.quant": '"' * n + times(n, '"y{i}" linear_quantize('),
    }


def _assertions(n: int) -> str:
    return tract(_COPY, "#" * (100 * n) + "\n" + "extension tract_assert S > 0;\n" * n + _S)


def _known(n: int, statement: str) -> str:
    body = f"a = tile(tract_core_shape_of(x), repeats = [32768]);\n{statement * n}"
    return tract(f"{body}{_COPY}" if "a =" in statement else body)


DIALECT = {
    "long unknown names, tract": Attack(
        2_000, lambda n: tract(times(n, "y = tract_core_{i:0199}(x);"))
    ),
    "values known on the host": Attack(4_000, lambda n: _known(n, "a = a + a;\n")),
    "known values beside tensors, tract": Attack(200, lambda n: _known(n, "y = x + a;\n")),
    "long literals used again and again, tract": Attack(
        100_000,
        lambda n: tract(f"a = [{'1, ' * 50_000}1];\n" + "b = a + 1;\n" * n + _COPY),
    ),
    "assertions behind a long text": Attack(20_000, _assertions),
    "a chain of symbols": Attack(5_000, _symbols),
    "a long list of JSON used again and again": Attack(
        20_000,
        lambda n: {
            "graph.nnef": tract("a = tract_resource_get('c', 'k');\n" * n + _COPY),
            "c.json": f'{{"k": [{"1," * (10 * n)}1]}}',
        },
    ),
    "blanks in an extension line": Attack(
        1 << 20, lambda n: tract(_COPY, f"extension a x{' ' * n}y;\n")
    ),
    "properties without an end": Attack(
        1 << 20,
        lambda n: tract(
            _COPY, 'fragment tract_core_properties( ) -> ( p: any ) { p = [("a", ' + " " * n
        ),
    ),
    "entries of graph.quant, tract": Attack(100_000, _quantisation),
    "networks within networks": Attack(14, _networks),
    "many operations, and their summary, tract": Attack(
        90_000, lambda n: tract("y = relu(x);\n" + "y = y + 1.5;\n" * n)
    ),
    "items of a long list, tract": Attack(
        20_000, lambda n: tract(f"a = [{'1,' * n}1];\n" + "b = a[0];\n" * n + _COPY)
    ),
    "inputs, tract": Attack(
        40_000,
        lambda n: _many_inputs(
            n, "x{i} = tract_core_external(shape = [1], datum_type = 'f32');", "y = x0;"
        ),
    ),
    "states of one name, tract": Attack(10_000, _many_states),
    "parameters with defaults, tract": Attack(8_000, _defaults),
    "parameters of the body of a scan": Attack(
        30_000,
        lambda n: _scan(
            parameters=f", {listed(n, 'p{i}: tensor<scalar>')}", full=listed(n, "('p{i}', x)")
        ),
    ),
    "results of a scan by names that are written alike": Attack(
        10_000,
        lambda n: _scan(
            times(n, "i'o.{i}' = copy(x);"), listed(n, "('o-{i}', 'full', 0, 1)") + ", "
        ),
    ),
    "variables in the body of a scan": Attack(20_000, _captured),
    "labels that are looked for in many files, tract": Attack(2_000, _many_safetensors),
    "a long label again and again, tract": Attack(
        1_000_000,
        lambda n: _long(n, n // 1000, "v = variable(label = '{}\N{NO-BREAK SPACE}', shape = [1]);"),
    ),
    "a long key again and again, tract": Attack(
        1_000_000, lambda n: _long(n, n // 50, "v = tract_resource_get('c', '{}');")
    ),
    "products of symbols": Attack(
        10_000, lambda n: _within(tract(_COPY, _S, _product(n)), _INNER.format("x"), "7")
    ),
    "symbols of a network within another": Attack(15_000, _inner_symbols),
    "statements of a network within another": Attack(
        4_000,
        lambda n: _within(
            tract(f"{_COPY}\n" + "z = 1;\n" * n), f"{_COPY}\n" + _INNER.format("y") * n, "1, 2"
        ),
    ),
    "doubling, tract: numbers": _doubling("1 + 2 * 3 - 4"),
    "doubling, tract: shapes": _doubling("tract_core_shape_of(x)[0]"),
    "doubling, tract: known values": _doubling("tract_core_gather([1, 2, 3], [0, 1], axis = 0)"),
    "doubling, tract: ranges": _doubling("tract_core_range(0, 3, 1)"),
    "doubling, tract: operations": _doubling("relu(x)"),
    "doubling, tract: nothing": _doubling("x"),
    "scans, tract": Attack(5_000, _scans),
    "statements that are wrong, tract": Attack(
        50_000, lambda n: tract(times(n, "y{i} = reshape(x, shape = [7]);") + _COPY)
    ),
    "a long string as an attribute again and again, tract": Attack(
        100_000,
        lambda n: tract(f"a = '{'b' * n}';\n" + "y = tract_core_cast(x, to = a);\n" * (n // 5)),
    ),
    "a transform of many frames, tract": Attack(
        40_000,
        lambda n: tract(
            f"y = tract_core_stft(x, axis = 1, frame = {n // 2}, stride = 1, window = false);",
            shape=f"1, {n}, 2",
        ),
        traced,
    ),
}
