"""Documents and archives that are made to cost more than they should, by the class of the attack.

`python -m tests.hostile` loads each at two sizes in a process of its own, within the default
limits, and prints what it took. `tests/formats/test_hostile.py` loads small ones within small
limits.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import io
import json
import lzma
import multiprocessing
import struct
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

import nnef_jax
from tests.unix import resource

FINAL = (
    "version 1.0;\nextension KHR_enable_fragment_definitions;\n"
    "extension KHR_enable_operator_expressions;\n"
)
TRACT = "version 1.0;\nextension tract_registry tract_core;\n"
TRACT += "extension tract_registry tract_resource;\n"
Attack = Callable[[int], bytes]
Use = Callable[[bytes, nnef_jax.Limits | None], object]
ATTACKS: dict[str, tuple[Attack, int]] = {}
_USES: dict[str, Use] = {}
_LONGEST = 10.0  # seconds
_LARGEST = 2.0  # GB


def tar(members: Mapping[str, bytes | str]) -> bytes:
    """A plain archive of some members."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def final(body: str, fragments: str = "", header: str = FINAL) -> str:
    """A document of the standard with an input x and an output y."""
    external = "x = external<scalar>(shape = [1, 2]);"
    return f"{header}{fragments}\ngraph net( x ) -> ( y )\n{{\n{external}\n{body}\n}}\n"


def tract(body: str, head: str = "", shape: str = "1, 2") -> str:
    """A document of tract's dialect with an input x and an output y."""
    external = f"x = tract_core_external(shape = [{shape}], datum_type = 'f32');"
    return f"{TRACT}{head}\ngraph net( x ) -> ( y )\n{{\n{external}\n{body}\n}}\n"


def _load(source: bytes, limits: nnef_jax.Limits | None) -> object:
    return nnef_jax.load(source, limits=limits).summary()


def _trace(source: bytes, limits: nnef_jax.Limits | None) -> object:
    """What calls a network, but for compiling and running it."""
    model = nnef_jax.load(source, limits=limits)
    inputs = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in model.inputs]
    return jax.eval_shape(model.apply, {}, *inputs)


def _convert(source: bytes, limits: nnef_jax.Limits | None) -> object:
    return nnef_jax.convert(source, flat=True, limits=limits)


def _read_tensor(source: bytes, limits: nnef_jax.Limits | None) -> object:
    return nnef_jax.read_tensor(source, limits=limits)


def attack(name: str, size: int, use: Use = _load) -> Callable[[Attack], Attack]:
    """Register an attack; the size is what the default limits are to withstand."""

    def register(make: Attack) -> Attack:
        ATTACKS[name] = make, size
        _USES[name] = use
        return make

    return register


def _compressed(open: Callable[..., Any]) -> Attack:
    def make(n: int) -> bytes:
        """A member of zeros, compressed piece by piece."""
        file = io.BytesIO()
        with open(file, "wb") as stream:
            info = tarfile.TarInfo("zeros.dat")
            info.size = n
            stream.write(info.tobuf())
            for _ in range(n >> 20):
                stream.write(bytes(1 << 20))
        return file.getvalue()

    return make


for _name, _open in (("gzip", gzip.open), ("bzip2", bz2.open), ("xz", lzma.open)):
    attack(f"zeros by {_name}", 1 << 30)(_compressed(_open))


@attack("compressed archives within compressed archives", 1 << 28)
def nested_archives(n: int) -> bytes:
    inner = tar({"graph.nnef": tract("y = copy(x);"), "zeros.dat": bytes(n)})
    inner = gzip.compress(inner, 1)
    body = "".join(f"y = tract_core_submodel([x], 'm{i}');\n" for i in range(12))
    members = {f"m{i}.nnef.tgz": inner for i in range(12)}
    return gzip.compress(tar({"graph.nnef": tract(body), **members}))


@attack("many members", 1 << 20)
def many_members(n: int) -> bytes:
    header = tarfile.TarInfo("a").tobuf()
    return gzip.compress(header * n)


@attack("many records of extended headers", 1 << 22)
def many_records(n: int) -> bytes:
    info = tarfile.TarInfo("x")
    info.type = b"x"
    info.size = 1 << 19
    content = info.tobuf() + b"6 a=b\n" * (info.size // 6) + bytes(info.size % 6)
    content = content[: 512 + info.size]
    return gzip.compress(content * (n // 6000))


@attack("many compressed streams", 1 << 17)
def many_streams(n: int) -> bytes:
    return gzip.compress(b"") * n


@attack("a variable of one-bit items", 1 << 28)
def one_bit(n: int) -> bytes:
    body = f"v = variable<integer>(shape = [{n}], label = 'v'); y = copy(x);"
    data = struct.pack("<2sBBII8III76x", b"N\xef", 1, 0, n // 8, 1, n, *(0,) * 7, 1, 1)
    return gzip.compress(tar({"graph.nnef": final(body), "v.dat": data + bytes(n // 8)}), 1)


for _quote in "\"'":
    for _header, _dialect in ((FINAL, "final"), ("version 1.0\n", "provisional"), (TRACT, "tract")):

        @attack(f"a string without an end {_quote}, {_dialect}", 1 << 20)
        def endless_string(n: int, header: str = _header, quote: str = _quote) -> bytes:
            text = f"{header}graph net( x ) -> ( y ) {{ y = {quote}" + f"\\{quote}" * n
            return tar({"graph.nnef": text})


@attack("long unknown names", 2_000)
def unknown_names(n: int) -> bytes:
    return tar({"graph.nnef": final("".join(f"y{i} = f{i:0199}(x);\n" for i in range(n)))})


@attack("long unknown names, tract", 2_000)
def unknown_names_of_tract(n: int) -> bytes:
    body = "".join(f"y = tract_core_{i:0199}(x);\n" for i in range(n))
    return tar({"graph.nnef": tract(body)})


@attack("values known on the host", 4_000)
def host_values(n: int) -> bytes:
    body = "a = tile(tract_core_shape_of(x), repeats = [32768]);\n" + "a = a + a;\n" * n
    return tar({"graph.nnef": tract(f"{body}y = copy(x);")})


@attack("long literals used again and again, tract", 100_000)
def long_literals(n: int) -> bytes:
    body = f"a = [{'1, ' * 50_000}1];\n" + "b = a + 1;\n" * n
    return tar({"graph.nnef": tract(f"{body}y = copy(x);")})


@attack("long attributes used again and again", 100_000)
def long_attributes(n: int) -> bytes:
    fragment = "fragment f( x: tensor<scalar> ) -> ( y: tensor<scalar> ) { a = [0] * 1000000;"
    fragment += "".join(f"x{i} = transpose(x, axes = a);\n" for i in range(n)) + "y = x; }"
    return tar({"graph.nnef": final("y = f(x);", fragment)})


@attack("tensors of high rank", 100_000)
def high_rank(n: int) -> bytes:
    text = f"version 1.0;\ngraph net( x ) -> ( y ) {{ x = external(shape = [{'1,' * n}1]);\n"
    text += "".join(f"y{i} = relu(x);\n" for i in range(n // 10))
    return tar({"graph.nnef": f"{text}y = relu(x); }}"})


@attack("arrays that hold one array many times", 2_000)
def shared_arrays(n: int) -> bytes:
    lines = [f"a{i + 1} = [a{i}, a{i}];\n" for i in range(18)]
    lines += [f"c{i} = a18 == b18;\n" for i in range(n)]
    body = "a0 = [1];\n" + "".join(lines).replace("b18", "[a17, a17]") + "y = x;"
    return tar({"graph.nnef": final("y = f(x);", _fragment(body))})


def _fragment(body: str) -> str:
    return f"fragment f( x: tensor<scalar> ) -> ( y: tensor<scalar> ) {{ {body} }}\n"


@attack("calls at the bottom of a deep recursion", 40_000)
def deep_calls(n: int) -> bytes:
    calls = "".join(f"y{i} = g(x);\n" for i in range(n))
    fragments = (
        "fragment g( x: tensor<scalar> ) -> ( y: tensor<scalar> ) { y = neg(x); }\n"
        f"fragment h( x: tensor<scalar> ) -> ( y: tensor<scalar> ) {{ {calls} y = x; }}\n"
        "fragment f( x: tensor<scalar>, n: integer ) -> ( y: tensor<scalar> )"
        "{ y = f(x, n = n - 1) if n > 0 else h(x); }\n"
    )
    return tar({"graph.nnef": final("y = f(x, n = 1900);", fragments)})


@attack("names that are reserved one after the other", 3_000)
def reserved_names(n: int) -> bytes:
    body = "".join(f"f_x{'_' * i} = neg(x);\n" for i in range(n))
    calls = "".join(f"z{i} = f(x) + f(x);\n" for i in range(n))
    fragment = _fragment("x_ = neg(x); y = neg(x_);")
    return tar({"graph.nnef": final(f"{body}{calls}y = neg(x);", fragment)})


@attack("parameters by name", 8_000)
def parameters(n: int) -> bytes:
    declared = ", ".join(f"a{i}: integer = 0" for i in range(n))
    given = ", ".join(f"a{i} = 1" for i in range(n))
    fragment = f"fragment f( x: tensor<scalar>, {declared} ) -> ( y: tensor<scalar> ) {{ y = x; }}"
    calls = f"y = f(x, {given});\n z = f(x, {given[:-8]});\n"
    return tar({"graph.nnef": final(calls, fragment)})


@attack("tokens for the grammar", 1 << 20)
def tokens(n: int) -> bytes:
    return tar({"graph.nnef": final("y = x + 1.0;", _fragment(f"a = [{'1,' * n}1]; y = x;"))})


@attack("comments", 1 << 22)
def comments(n: int) -> bytes:
    return tar({"graph.nnef": FINAL + "#\n" * n + "graph"})


@attack("lines before an error", 1 << 23)
def lines(n: int) -> bytes:
    return tar({"graph.nnef": FINAL + "\n" * n + "graph net( x ) -> ( y ) { y = ; }"})


@attack("many errors", 100_000)
def many_errors(n: int) -> bytes:
    return tar({"graph.nnef": final("".join(f"y{i} = z{i};\n" for i in range(n)))})


@attack("assertions behind a long text", 20_000)
def assertions(n: int) -> bytes:
    head = "#" * (100 * n) + "\n" + "extension tract_assert S > 0;\n" * n
    head += "extension tract_symbol S;\n"
    return tar({"graph.nnef": tract("y = copy(x);", head)})


@attack("a chain of symbols", 5_000)
def symbols(n: int) -> bytes:
    shape = ", ".join(f"S{i} + S{i + 1}" for i in reversed(range(n))) + ", S0"
    head = "".join(f"extension tract_symbol S{i};\n" for i in range(n + 1))
    return tar({"graph.nnef": tract("y = copy(x);", head, shape)})


@attack("a long list of JSON used again and again", 20_000)
def json_lists(n: int) -> bytes:
    body = "".join("a = tract_resource_get('c', 'k');\n" for _ in range(n))
    data = '{"k": [' + "1," * (10 * n) + "1]}"
    return tar({"graph.nnef": tract(f"{body}y = copy(x);"), "c.json": data})


@attack("blanks in an extension line", 1 << 20)
def blanks(n: int) -> bytes:
    return tar({"graph.nnef": tract("y = copy(x);", f"extension a x{' ' * n}y;\n")})


@attack("properties without an end", 1 << 20)
def properties(n: int) -> bytes:
    head = 'fragment tract_core_properties( ) -> ( p: any ) { p = [("a", ' + " " * n
    return tar({"graph.nnef": tract("y = copy(x);", head)})


@attack("entries of graph.quant", 100_000)
def quantisation(n: int) -> bytes:
    entries = "".join(
        f'"y{i}": linear_quantize(min = 0.0, max = 1.0, bits = 8);\n' for i in range(n)
    )
    return tar({"graph.nnef": final("y = copy(x);"), "graph.quant": entries})


@attack("entries of graph.quant, tract", 100_000)
def quantisation_of_tract(n: int) -> bytes:
    entries = '"' * n + "".join(f'"y{i}" linear_quantize(\n' for i in range(n))
    return tar({"graph.nnef": tract("y = copy(x);"), "graph.quant": entries})


@attack("networks within networks", 14)
def networks(n: int) -> bytes:
    text = tract("y = tract_core_submodel([x], 'm'); y = tract_core_submodel([y], 'm');")
    members: dict[str, bytes | str] = {"m/" * depth + "graph.nnef": text for depth in range(n)}
    return tar(members | {"m/" * n + "graph.nnef": tract("y = copy(x);")})


@attack("many operations, and their summary", 90_000)
def operations(n: int) -> bytes:
    body = "".join(f"y{i + 1} = relu(y{i});\n" for i in range(n))
    return tar({"graph.nnef": final(f"y0 = relu(x);\n{body}y = relu(y{n});")})


@attack("many operations, and their summary, tract", 90_000)
def operations_of_tract(n: int) -> bytes:
    return tar({"graph.nnef": tract("y = relu(x);\n" + "y = y + 1.5;\n" * n)})


# Values that surprise: nothing but an NnefError comes of them

_LARGE = 1 << 62
ODDITIES: dict[str, bytes] = {
    "an extent of thousands of digits": tar(
        {"graph.nnef": final(f"y = reshape(x, shape = [{f'{_LARGE}, ' * 300}1]);")}
    ),
    "a constant of thousands of digits": tar(
        {
            "graph.nnef": final(
                f"y = constant(shape = [{f'{_LARGE}, ' * 300}1], value = [1.0, 2.0]);"
            )
        }
    ),
    "a variable of thousands of digits": tar(
        {"graph.nnef": final(f"y = variable(shape = [{f'{_LARGE}, ' * 300}1], label = 'v');")}
    ),
    "a tensor of thousands of digits": tar(
        {
            "graph.nnef": f"{FINAL}graph net( x ) -> ( y )"
            f"{{ x = external<scalar>(shape = [{f'{_LARGE}, ' * 300}1]); y = copy(x); }}"
        }
    ),
    "a constant of thousands of digits in graph.quant": tar(
        {
            "graph.nnef": final("y = copy(x);"),
            "graph.quant": f'"y": linear_quantize(min = constant(shape = [{f"{_LARGE}, " * 300}1],'
            " value = [1.0]), max = 2.0, bits = 8);",
        }
    ),
    "an operation of the name of an input that follows": tar(
        {
            "graph.nnef": f"{FINAL}graph net( relu, z ) -> ( y )"
            "{ z = external<scalar>(shape = [1]); y = neg(relu(z));"
            " relu = external<scalar>(shape = [1]); }"
        }
    ),
    "an input of a shape that depends on an open one": tar(
        {
            "graph.nnef": "version 1.0\nfragment f( a: tensor, b: tensor ) -> ( y: tensor )"
            "{ y = a * 2.0 if shape_of(a)[0] > 2 else b }\ngraph net( a, b ) -> ( y )"
            "{ a = external(shape = [0,4])\n b = external(shape = shape_of(a))\n y = f(a, b) }"
        }
    ),
    "an integer of hundreds of digits in JSON": tar(
        {
            "graph.nnef": tract("y = leaky_relu(x, alpha = tract_resource_get('c', 'k'));"),
            "c.json": f'{{"k": {10**400}}}',
        }
    ),
    "a list with an integer of hundreds of digits in JSON": tar(
        {
            "graph.nnef": tract("y = x + tract_resource_get('c', 'k');"),
            "c.json": f'{{"k": [{10**400}, 1.5]}}',
        }
    ),
    "half a character in JSON": tar(
        {
            "graph.nnef": tract("y = tract_core_cast(x, to = tract_resource_get('c', 'k'));"),
            "c.json": '{"k": "\\ud800"}',
        }
    ),
    "a resize beyond all numbers": tar(
        {
            "graph.nnef": tract(
                "y = tract_core_resize(x, scales = [1.0, 1e308], interpolator = 'linear',"
                " coord_transformer = 'half_pixel', nearest_mode = 'floor');",
                shape="1, 4",
            )
        }
    ),
    "a range beyond all numbers": tar(
        {"graph.nnef": tract("y = tract_core_range(-1e308, 1e308, 1.0);")}
    ),
    "an item of a number": tar({"graph.nnef": tract("a = 1 + 1; b = a[0]; y = copy(x);")}),
    "an input that was assigned before": tar(
        {
            "graph.nnef": f"{TRACT}graph net( x, z ) -> ( y )"
            "{ z = tract_core_external(shape = [1], datum_type = 'f32'); x = relu(z);"
            " x = tract_core_external(shape = [1], datum_type = 'f32'); y = copy(x); }"
        }
    ),
}

# What is in a fragment costs little text for each time that it is used


def _used(statements: str, fragments: str = "") -> bytes:
    """A network that calls a fragment of these statements."""
    return tar({"graph.nnef": final("y = f(x);", fragments + _fragment(f"{statements} y = x;"))})


@attack("axes by the thousand", 50_000)
def many_axes(n: int) -> bytes:
    body = f"y = unsqueeze(x, axes = [{', '.join(str(i) for i in range(n))}]);"
    return tar({"graph.nnef": final(body)})


@attack("arrays of tensors of high rank", 10_000)
def joined(n: int) -> bytes:
    header = f"{FINAL}{_fragment(f'a = [x] * {n}; b = concat(a, axis = 0); y = x;')}"
    calls = "".join(f"y{i} = f(x);\n" for i in range(1000))
    body = f"x = external<scalar>(shape = [{'1,' * 59}1]);\n{calls}y = f(x);"
    return tar({"graph.nnef": f"{header}graph net( x ) -> ( y ) {{ {body} }}"})


@attack("extents that grow beside an extent of 0", 20_000)
def growing_extents(n: int) -> bytes:
    body = "z0 = slice(x, axes = [1], begin = [1], end = [1]);\n"
    repeats = f"[{1 << 62},1]"
    body += "".join(f"z{i + 1} = tile(z{i}, repeats = {repeats});\n" for i in range(n))
    return tar({"graph.nnef": final(f"{body}y = relu(z{n});")})


@attack("arrays of millions", 40)
def long_arrays(n: int) -> bytes:
    return _used("".join(f"a{i} = [0] * 10000000;" for i in range(n)))


@attack("ranges of millions", 20)
def long_ranges(n: int) -> bytes:
    return _used("a = [0] * 10000000;" + "".join(f"a{i} = range_of(a);" for i in range(n)))


@attack("fragments of many results", 20_000)
def many_results(n: int) -> bytes:
    names = [f"r{i}" for i in range(n)]
    results = ", ".join(f"{name}: scalar" for name in names)
    fragment = f"fragment g( x: tensor<scalar>, a: scalar[] ) -> ( {results} )"
    fragment += f"{{ [{', '.join(names)}] = a; }}\n"
    calls = "".join(f"t{i} = g(x, a = a);" for i in range(n // 4))
    return _used(f"a = [1.0] * {n}; {calls}", fragment)


@attack("types of large tuples", 60_000)
def large_tuples(n: int) -> bytes:
    return _used(f"a = ({'1, ' * 900}1); b = [{'(a, 1)[1], ' * n}1];")


@attack("types of large tuples, as arguments", 60_000)
def tuples_as_arguments(n: int) -> bytes:
    type = f"({'integer, ' * 900}integer)"
    fragment = f"fragment g( a: {type} ) -> ( y: integer ) {{ y = 1; }}\n"
    return _used(f"a = ({'1, ' * 900}1); b = [{'g(a = a), ' * n}1];", fragment)


for _name, _expression in {
    "unary operators": "!" * 60 + "i",
    "binary operators": "i == i" + " && i == i" * 30,
    "selections": "1 if !i else " * 60 + "2",
    "subscripts": "[i][0] && " * 30 + "i",
    "calls of fragments": "g(x)",
}.items():

    @attack(f"evaluation: {_name}", 2_000_000)
    def evaluated(n: int, expression: str = _expression) -> bytes:
        fragment = "fragment g( x: tensor<scalar> ) -> ( y: tensor<scalar> ) { y = x; }\n"
        return _used(f"a = [true] * {n}; b = [for i in a yield {expression}];", fragment)


@attack("evaluation: recursion", 40)
def recursion(n: int) -> bytes:
    fragment = (
        "fragment g( x: tensor<scalar>, n: integer ) -> ( y: integer )"
        "{ y = g(x, n = n - 1) + g(x, n = n - 1) if n > 0 else 0; }\n"
    )
    return _used(f"a = g(x, n = {n});", fragment)


@attack("comprehensions over many arrays", 5_000)
def many_loops(n: int) -> bytes:
    loops = ", ".join(f"i{k} in a" for k in range(n))
    return _used(f"a = [1] * {200 * n}; b = [for {loops} yield 1];")


@attack("comprehensions within one over many arrays", 20_000)
def loops_within_loops(n: int) -> bytes:
    loops = ", ".join(f"i{k} in a" for k in range(n))
    return _used(f"a = [1]; b = [for {loops} yield [{'[for j in a yield 1], ' * n}[1]]];")


@attack("parameters by other names in each call", 6_000)
def many_forms(n: int) -> bytes:
    declared = ", ".join(f"a{i}: integer = 0" for i in range(n))
    fragment = (
        f"fragment g( x: tensor<scalar>, {declared} ) -> ( y: tensor<scalar> ) {{ y = x; }}\n"
    )
    return _used("".join(f"z{i} = g(x, a{i} = 1);" for i in range(n)), fragment)


@attack("long local names", 200_000)
def long_names(n: int) -> bytes:
    name = "a" * n
    fragment = (
        f"fragment g( x: tensor<scalar> ) -> ( y: tensor<scalar> ) {{ {name} = neg(x); y = x; }}\n"
    )
    calls = "".join(f"y{i} = g(x);\n" for i in range(n // 5))
    return tar({"graph.nnef": final(f"{calls}y = g(x);", fragment)})


@attack("a long name of many results", 1_000_000)
def long_name_of_results(n: int) -> bytes:
    return _used(f"{'a' * n} = copy_n(x, times = {n // 100});")


@attack("long strings as attributes", 1_000_000)
def long_strings(n: int) -> bytes:
    statement = f"y = pad(x, padding = [(0,0), (0,0)], border = '{'a' * n}');"
    calls = "".join(f"y{i} = f(x);\n" for i in range(n // 50))
    return tar({"graph.nnef": final(f"{calls}y = f(x);", _fragment(statement))})


@attack("long labels", 10_000_000)
def long_labels(n: int) -> bytes:
    made = (f"y{i} = variable(shape = [1], label = '{i:02}' * {n // 2});\n" for i in range(30))
    return tar({"graph.nnef": final(f"{''.join(made)}y = copy(x);")})


@attack("operations of many results", 9_000_000)
def copies(n: int) -> bytes:
    body = f"x = external<scalar>(shape = []); y = add_n(copy_n(x, times = {n}));"
    return tar({"graph.nnef": f"{FINAL}graph net( x ) -> ( y ) {{ {body} }}"})


@attack("operations of many results, by an array", 9_000_000)
def parts(n: int) -> bytes:
    return _used(f"a = [1] * {n}; [b] = split(x, axis = 0, ratios = a);")


@attack("many errors on a long line", 1 << 23)
def errors_on_a_line(n: int) -> bytes:
    return tar({"graph.nnef": final("".join(f"y{i} = z{i};" for i in range(20)) + "#" + "a" * n)})


@attack("entries of graph.quant for nothing", 20_000)
def unknown_entries(n: int) -> bytes:
    entries = (f'"z{i}": linear_quantize(min = 0.0, max = 1.0, bits = 8);\n' for i in range(n))
    body = "".join(f"y{i} = relu(x);\n" for i in range(n)) + "y = relu(x);"
    return tar({"graph.nnef": final(body), "graph.quant": "".join(entries)})


@attack("entries of graph.quant for variables", 20_000)
def entries_for_variables(n: int) -> bytes:
    entries = (f'"v{i}": linear_quantize(min = 0.0, max = 1.0, bits = 8);\n' for i in range(n))
    body = "".join(f"v{i} = variable(shape = [1], label = 'v{i}');\n" for i in range(n))
    return tar({"graph.nnef": final(f"{body}y = relu(x);"), "graph.quant": "".join(entries)})


# The same in the dialect of tract


def _body(fragment: str, body: str, shape: str = "1, 2") -> bytes:
    """A network of tract's dialect with a fragment `b` of x, and y among its results."""
    return tar({"graph.nnef": tract(body, f"{fragment}\n", shape)})


def _scan(statements: str, outputs: str, parameters: str = "", full: str = "") -> str:
    """A document that scans x by a fragment of these statements."""
    fragment = f"fragment b( x: tensor<scalar>{parameters} ) -> ( y: tensor<scalar> )"
    scan = (
        f"y = tract_core_scan('b', scan = [('x', x, 0, 1)], full = [{full}], state = [], "
        f"output = [{outputs}('y', 'full', 0, 1)], skip = 0, reset_every_turn = false);"
    )
    return tract(scan, f"{fragment} {{ {statements} y = copy(x); }}\n")


def _safetensors(labels: Iterable[str]) -> bytes:
    header = {name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in labels}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


@attack("items of a long list, tract", 20_000)
def items(n: int) -> bytes:
    return tar({"graph.nnef": tract(f"a = [{'1,' * n}1];\n" + "b = a[0];\n" * n + "y = copy(x);")})


@attack("known values beside tensors, tract", 200)
def tensors_of_known_values(n: int) -> bytes:
    body = "a = tile(tract_core_shape_of(x), repeats = [32768]);\n" + "y = x + a;\n" * n
    return tar({"graph.nnef": tract(f"{body}y = copy(x);")})


@attack("inputs, tract", 40_000)
def inputs_of_tract(n: int) -> bytes:
    names = [f"x{i}" for i in range(n)]
    external = "tract_core_external(shape = [1], datum_type = 'f32')"
    body = "".join(f"{name} = {external};\n" for name in names)
    return tar(
        {"graph.nnef": f"{TRACT}graph net( {', '.join(names)} ) -> ( y ) {{ {body} y = x0; }}"}
    )


@attack("states of one name, tract", 10_000)
def states(n: int) -> bytes:
    delay = "y = tract_pulse_delay(y, axis = 0, delay = 1, overlap = 0);\n"
    head = "extension tract_registry tract_pulse;\n"
    return tar({"graph.nnef": tract("y = copy(x);\n" + delay * n, head)})


@attack("parameters with defaults, tract", 8_000)
def defaults(n: int) -> bytes:
    declared = ", ".join(f"a{i}: integer = 0" for i in range(n))
    fragment = f"fragment b( x: tensor<scalar>, {declared} ) -> ( y: tensor<scalar> ) {{ y = x; }}"
    return _body(fragment, "y = b(x);\n" * n)


@attack("parameters of the body of a scan", 30_000)
def parameters_of_a_scan(n: int) -> bytes:
    parameters = "".join(f", p{i}: tensor<scalar>" for i in range(n))
    full = ", ".join(f"('p{i}', x)" for i in range(n))
    return tar({"graph.nnef": _scan("", "", parameters, full)})


@attack("results of a scan by names that are written alike", 10_000)
def results_of_a_scan(n: int) -> bytes:
    outputs = "".join(f"('o-{i}', 'full', 0, 1), " for i in range(n))
    return tar({"graph.nnef": _scan("".join(f"i'o.{i}' = copy(x);" for i in range(n)), outputs)})


@attack("variables in the body of a scan", 20_000)
def captured_variables(n: int) -> bytes:
    body = "".join(f"v{i} = variable(label = 'v{i}', shape = [0]);\n" for i in range(n))
    members = {"m.safetensors": _safetensors(f"v{i}" for i in range(n))}
    return tar({"graph.nnef": _scan(body, ""), **members})


@attack("labels that are looked for in many files, tract", 2_000)
def many_safetensors(n: int) -> bytes:
    body = "".join(f"v{i} = variable(label = 'v{i}', shape = [0]);\n" for i in range(20 * n))
    members = {f"m{i}.safetensors": _safetensors([f"w{i}"]) for i in range(n)}
    return gzip.compress(tar({"graph.nnef": tract(f"{body}y = copy(x);"), **members}), 1)


@attack("a long label again and again, tract", 1_000_000)
def long_label(n: int) -> bytes:
    variable = f"v = variable(label = '{'a' * n}\N{NO-BREAK SPACE}', shape = [1]);"
    fragment = f"fragment b( x: tensor<scalar> ) -> ( y: tensor<scalar> ) {{ {variable} y = x; }}"
    calls = "".join(f"y{i} = b(x);\n" for i in range(n // 1000))
    return _body(fragment, f"{calls}y = copy(x);")


@attack("a long key again and again, tract", 1_000_000)
def long_key(n: int) -> bytes:
    get = f"v = tract_resource_get('c', '{'a' * n}');"
    fragment = f"fragment b( x: tensor<scalar> ) -> ( y: tensor<scalar> ) {{ {get} y = x; }}"
    calls = "".join(f"y{i} = b(x);\n" for i in range(n // 50))
    members = {"graph.nnef": tract(f"{calls}y = copy(x);", fragment), "c.json": "{}"}
    return tar(members)


@attack("products of symbols", 10_000)
def products(n: int) -> bytes:
    def product(count: int) -> str:
        half = f"({product(count // 2)}*{product(count - count // 2)})" if count > 1 else ""
        return half or f"S*{(1 << 64) - 1}"

    inner = tract("y = copy(x);", "extension tract_symbol S;\n", product(n))
    text = tract("y = tract_core_submodel([x], 'm');", shape="7")
    return tar({"graph.nnef": text, "m/graph.nnef": inner})


@attack("symbols of a network within another", 15_000)
def inner_symbols(n: int) -> bytes:
    names = [f"x{i}" for i in range(n)]
    body = "".join(
        f"x{i} = tract_core_external(shape = [S{i}*S{i}], datum_type = 'f32');\n" for i in range(n)
    )
    inner = f"{TRACT}graph net( {', '.join(names)} ) -> ( y ) {{ {body} y = copy(x0); }}"
    text = tract(f"y = tract_core_submodel([{'x, ' * (n - 1)}x], 'm');", shape="4")
    return tar({"graph.nnef": text, "m/graph.nnef": inner})


@attack("statements of a network within another", 4_000)
def inner_statements(n: int) -> bytes:
    inner = tract("y = copy(x);\n" + "z = 1;\n" * n)
    body = "y = copy(x);\n" + "y = tract_core_submodel([y], 'm');\n" * n
    return tar({"graph.nnef": tract(body), "m/graph.nnef": inner})


for _name, _expression in {
    "numbers": "1 + 2 * 3 - 4",
    "shapes": "tract_core_shape_of(x)[0]",
    "known values": "tract_core_gather([1, 2, 3], [0, 1], axis = 0)",
    "ranges": "tract_core_range(0, 3, 1)",
    "operations": "relu(x)",
    "nothing": "x",
}.items():

    @attack(f"doubling, tract: {_name}", 40)
    def doubling(n: int, expression: str = _expression) -> bytes:
        head = "fragment f( x: tensor<scalar> ) -> ( y: tensor<scalar> )"
        lines = [f"{head} {{ y = {expression}; }}".replace(" f(", " f0(")]
        for i in range(n):
            lines += [head.replace(" f(", f" f{i + 1}(") + f" {{ a = f{i}(x); y = f{i}(x); }}"]
        return tar({"graph.nnef": tract(f"y = f{n}(x);", "\n".join(lines))})


@attack("scans, tract", 5_000)
def scans(n: int) -> bytes:
    text = _scan("", "")
    start = text.index("y = tract_core_scan")
    scan = text[start : text.index(";", start) + 1]
    return tar({"graph.nnef": text.replace(scan, f"{scan}\n" * n)})


@attack("statements that are wrong, tract", 50_000)
def wrong_statements(n: int) -> bytes:
    body = "".join(f"y{i} = reshape(x, shape = [7]);\n" for i in range(n))
    return tar({"graph.nnef": tract(f"{body}y = copy(x);")})


# What is done with a network, and with a tensor


@attack("signed items of one bit", 1 << 29, _read_tensor)
def signed_bits(n: int) -> bytes:
    header = struct.pack("<2sBBII8III76x", b"N\xef", 1, 0, n // 8, 1, n, *(0,) * 7, 1, 4)
    return header + bytes(n // 8)


@attack("codes of logarithms", 70_000_000)
def logarithms(n: int) -> bytes:
    data = struct.pack("<2sBBII8III76x", b"N\xef", 1, 0, n, 1, n, *(0,) * 7, 8, 3) + bytes(n)
    entry = '"v": logarithmic_quantize(max = 1.0, bits = 8);'
    text = final(f"v = variable<scalar>(shape = [{n}], label = 'v'); y = copy(x);")
    return tar({"graph.nnef": text, "v.dat": data, "graph.quant": entry})


@attack("a long constant made flat", 8_000_000, _convert)
def long_constant(n: int) -> bytes:
    return _used(f"a = [1.5] * {n}; b = constant(shape = [{n}], value = a);")


@attack("entries of graph.quant made flat", 20_000, _convert)
def flat_entries(n: int) -> bytes:
    entries = (f'"y{i}": linear_quantize(min = 0.0, max = 1.0, bits = 8);\n' for i in range(n))
    body = "".join(f"y{i} = relu(x);\n" for i in range(n)) + "y = relu(x);"
    return tar({"graph.nnef": final(body), "graph.quant": "".join(entries)})


@attack("updates made flat", 20_000, _convert)
def flat_updates(n: int) -> bytes:
    names = ", ".join(f"r{i}" for i in range(n))
    body = "".join(
        f"v{i} = variable(shape = [1], label = 'v{i}');\n"
        f"u{i} = neg(v{i}); r{i} = update(v{i}, u{i});\n"
        for i in range(n)
    )
    return tar(
        {
            "graph.nnef": f"{FINAL}graph net( x ) -> ( {names} ) {{"
            f"x = external<scalar>(shape = [1]);\n{body} }}"
        }
    )


@attack("messages about large types", 60_000)
def messages(n: int) -> bytes:
    type = f"({'integer, ' * 900}integer)"
    fragment = f"fragment g( a: {type} ) -> ( y: integer ) {{ y = 1; }}\n"
    return _used(f"b = [{'g(a = 1), ' * n}1];", fragment)


@attack("a long string as an attribute again and again, tract", 100_000)
def strings_of_tract(n: int) -> bytes:
    body = "y = tract_core_cast(x, to = a);\n" * (n // 5)
    return tar({"graph.nnef": tract(f"a = '{'b' * n}';\n{body}")})


# Constants of OpenVINO


def _constants(shape: str, type: str, size: int, count: int = 1) -> bytes:
    """A network whose constants are the same bytes of its file."""
    port = '<output><port id="0"><dim>1</dim></port></output>'
    given = f'element_type="{type}" shape="{shape}" offset="0" size="{size}"'
    layers = [
        f'<layer id="{i}" name="c{i}" type="Const" version="opset1"><data {given}/>{port}</layer>'
        '<layer id="{0}" name="r{0}" type="Result" version="opset1">'
        '<input><port id="0"><dim>1</dim></port></input></layer>'.format(count + i)
        for i in range(count)
    ]
    edges = "".join(
        f'<edge from-layer="{i}" from-port="0" to-layer="{count + i}" to-port="0"/>'
        for i in range(count)
    )
    net = (
        f'<net name="n" version="11"><layers>{"".join(layers)}</layers><edges>{edges}</edges></net>'
    )
    return tar({"net.xml": net, "net.bin": bytes(size)})


@attack("constants of one-bit items", 1 << 27)
def constants_of_bits(n: int) -> bytes:
    return _constants(str(n), "u1", n // 8, 40)


@attack("axes of a constant by the thousand", 1_000_000)
def axes_of_a_constant(n: int) -> bytes:
    return _constants(",".join("9" * n), "f32", 4)


# What is computed, or written out, where a network is traced


def _traced(name: str, size: int, body: str, shape: str = "1, 1, 4, 4") -> None:
    """Register an attack whose document has a size N; its input x has four axes."""

    def make(n: int) -> bytes:
        text = (
            f"{FINAL}graph net( x ) -> ( y ) {{ x = external<scalar>(shape = [{shape}]);\n{body} }}"
        )
        return tar({"graph.nnef": text.replace("N", str(n))})

    attack(name, size, _trace)(make)


_POOL = "size = [1,1,N,1], stride = [], dilation = [1,1,D,1]"
_ROIS = (
    "r = constant(shape = [1,4], value = [1.0]); i = constant<integer>(shape = [1], value = [0]);"
)
_traced(
    "an upsampling by a large factor", 100_000,
    "y = multilinear_upsample(x, factor = [N], method = 'symmetric', border = 'replicate');",
)  # fmt: skip
_traced(
    "an aligned upsampling by a large factor", 100_000_000,
    "y = multilinear_upsample(x, factor = [N], method = 'aligned', border = 'replicate');",
)  # fmt: skip
_traced(
    "a window of many cells", 100_000,
    f"z = tile(x, repeats = [1,1,N,1]); y = argmax_pool(z, {_POOL.replace('D', '1')}, "
    "padding = [], border = 'ignore');",
)  # fmt: skip
_traced(
    "a window of many cells with gaps", 100_000,
    f"z = tile(x, repeats = [1,1,N,1]); y = max_pool(z, {_POOL.replace('D', '2')}, "
    "padding = [], border = 'ignore');",
)  # fmt: skip
_traced(
    "means of windows of which some cells count", 20_000,
    "y = avg_pool(x, size = [1,1,N,N], stride = [], dilation = [], border = 'ignore', "
    "padding = [(0,0),(0,0),(N,N),(N,N)]);",
)  # fmt: skip
_traced(
    "an edge that is mirrored many times", 100_000_000,
    "y = box(x, size = [1,1,N,1], stride = [], dilation = [], border = 'reflect', "
    "padding = [(0,0),(0,0),(N,N),(0,0)]);",
)  # fmt: skip


@attack("parts by the thousand", 50_000, _trace)
def many_parts(n: int) -> bytes:
    fragment = _fragment("a = unstack(x, axis = 1); y = a[0] + a[1];")
    text = f"{FINAL}{fragment}graph net( x ) -> ( y )"
    return tar({"graph.nnef": f"{text} {{ x = external<scalar>(shape = [1, {n}]); y = f(x); }}"})


_traced(
    "regions of many places", 500_000_000,
    f"{_ROIS} y = roi_resample(x, r, i, output_size = [N,1], method = 'symmetric');",
)  # fmt: skip


@attack("sums of a large constant again and again", 5_000, _trace)
def sums_of_a_constant(n: int) -> bytes:
    sums = "".join(f"y{i + 1} = y{i} + sum_reduce(a, axes = [0]);\n" for i in range(n))
    head = "a = constant(shape = [1000000], value = [1.0]);\ny0 = copy(x);\n"
    return tar({"graph.nnef": final(f"{head}{sums}y = copy(y{n});")})


@attack("products of large constants", 5_000, _trace)
def products_of_constants(n: int) -> bytes:
    body = f"a = constant(shape = [{n},{n}], value = [1.0]); y = x + matmul(a, a);"
    text = f"{FINAL}graph net( x ) -> ( y ) {{ x = external<scalar>(shape = [1, 1]);\n{body} }}"
    return tar({"graph.nnef": text})


@attack("a transform of many frames, tract", 40_000, _trace)
def many_frames(n: int) -> bytes:
    frame = f"axis = 1, frame = {n // 2}, stride = 1, window = false"
    return tar({"graph.nnef": tract(f"y = tract_core_stft(x, {frame});", shape=f"1, {n}, 2")})


def outcome(name: str, source: bytes, limits: nnef_jax.Limits | None = None) -> str:
    """What an attack ends in: "none", or the type of the error; anything else passes through."""
    try:
        _USES[name](source, limits)
    except nnef_jax.NnefError as error:
        assert str(error)
        return type(error).__name__
    return "none"


def _measure(name: str, size: int, results: Any) -> None:
    source = ATTACKS[name][0](size)
    nnef_jax.load(tar({"graph.nnef": final("y = relu(x);")})).summary()
    nnef_jax.load(tar({"graph.nnef": tract("y = relu(x);")})).summary()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    found = outcome(name, source)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    results.put((len(source), found, seconds, (peak - before) / 1e6))


def main() -> int:
    """Run all attacks, or those whose name has the argument in it."""
    parser = argparse.ArgumentParser("python -m tests.hostile", description=__doc__)
    parser.add_argument("name", nargs="?", default="")
    name = parser.parse_args().name
    context = multiprocessing.get_context("spawn")
    failed = 0
    for title, (_, size) in ATTACKS.items():
        if name not in title:
            continue
        for n in (size, 4 * size):
            results = context.Queue()
            process = context.Process(target=_measure, args=(title, n, results))
            process.start()
            try:
                length, found, seconds, gigabytes = results.get(timeout=120)
            except Exception:  # the queue's own, which no module names
                length, found, seconds, gigabytes = 0, "no end", 120.0, 0.0
                process.kill()
            process.join()
            wrong = seconds > _LONGEST or gigabytes > _LARGEST
            failed += wrong
            print(
                f"{'FAILED ' if wrong else ''}{title}, n = {n}: {length:,} bytes, {found}, "
                f"{seconds:.1f} s of the processor, {gigabytes:.2f} GB more",
                flush=True,
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
