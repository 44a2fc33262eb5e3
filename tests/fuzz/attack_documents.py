"""Attacks by documents of the standard's language, by their names."""

from __future__ import annotations

from tests.fuzz.attack import (
    FINAL,
    QUANT,
    Attack,
    converted,
    final,
    fragment,
    graph,
    listed,
    times,
    traced,
    used,
)  # fmt: skip

_TUPLE = f"({'integer, ' * 900}integer)"
_TAKES_TUPLE = f"fragment g( a: {_TUPLE} ) -> ( y: integer ) {{ y = 1; }}\n"


def _deep_calls(n: int) -> str:
    fragments = fragment("y = neg(x);", "g") + fragment(times(n, "y{i} = g(x);") + "y = x;", "h")
    call = fragment("y = f(x, n = n - 1) if n > 0 else h(x);", "f", ", n: integer")
    return final("y = f(x, n = 1900);", fragments + call)


def _reserved_names(n: int) -> str:
    body = "".join(f"f_x{'_' * i} = neg(x);\n" for i in range(n))
    calls = times(n, "z{i} = f(x) + f(x);")
    return final(f"{body}{calls}y = neg(x);", fragment("x_ = neg(x); y = neg(x_);"))


def _parameters(n: int) -> str:
    some = listed(n, "a{i} = 1")
    calls = f"y = f(x, {some});\n z = f(x, {some[:-8]});\n"
    return final(calls, fragment("y = x;", more=f", {listed(n, 'a{i}: integer = 0')}"))


def _shared_arrays(n: int) -> str:
    doubled = times(18, "a{j} = [a{i}, a{i}];") + times(n, "c{i} = a18 == [a17, a17];")
    return used(f"a0 = [1];\n{doubled}")


def _joined(n: int) -> str:
    calls = f"{times(1000, 'y{i} = f(x);')}y = f(x);"
    head = FINAL + fragment(f"a = [x] * {n}; b = concat(a, axis = 0); y = x;")
    return graph(calls, f"{'1,' * 59}1", head)


def _growing_extents(n: int) -> str:
    tiles = times(n, "z{j} = tile(z{i}, repeats = [{big},1]);", big=1 << 62)
    start = "z0 = slice(x, axes = [1], begin = [1], end = [1]);\n"
    return final(f"{start}{tiles}y = relu(z{n});")


def _many_results(n: int) -> str:
    body = f"[{listed(n, 'r{i}')}] = a;"
    results = f"( {listed(n, 'r{i}: scalar')} )"
    made = fragment(body, "g", ", a: scalar[]", results)
    return used(f"a = [1.0] * {n}; {times(n // 4, 't{i} = g(x, a = a);')}", made)


def _recursion(n: int) -> str:
    body = "y = g(x, n = n - 1) + g(x, n = n - 1) if n > 0 else 0;"
    return used(f"a = g(x, n = {n});", fragment(body, "g", ", n: integer", "( y: integer )"))


def _loops(n: int) -> str:
    return ", ".join(f"i{k} in a" for k in range(n))


def _many_forms(n: int) -> str:
    made = fragment("y = x;", "g", f", {listed(n, 'a{i}: integer = 0')}")
    return used(times(n, "z{i} = g(x, a{i} = 1);"), made)


def _long_names(n: int) -> str:
    calls = f"{times(n // 5, 'y{i} = g(x);')}y = g(x);"
    return final(calls, fragment(f"{'a' * n} = neg(x); y = x;", "g"))


def _long_strings(n: int) -> str:
    statement = f"y = pad(x, padding = [(0,0), (0,0)], border = '{'a' * n}');"
    return final(f"{times(n // 50, 'y{i} = f(x);')}y = f(x);", fragment(statement))


def _flat_updates(n: int) -> str:
    statements = "v{i} = variable(shape = [1], label = 'v{i}'); u{i} = neg(v{i}); "
    body = times(n, statements + "r{i} = update(v{i}, u{i});")
    return graph(body, "1", names=listed(n, "r{i}"))


def _evaluated(expression: str) -> Attack:
    made = fragment("y = x;", "g")
    return Attack(
        2_000_000,
        lambda n: used(f"a = [true] * {n}; b = [for i in a yield {expression}];", made),
    )


def _traced(size: int, body: str) -> Attack:
    """An attack whose document has a size N; its input x has four axes."""
    return Attack(size, lambda n: graph(body.replace("N", str(n)), "1, 1, 4, 4"), traced)


def _sums(n: int) -> str:
    sums = times(n, "y{j} = y{i} + sum_reduce(a, axes = [0]);")
    head = "a = constant(shape = [1000000], value = [1.0]);\ny0 = copy(x);\n"
    return final(f"{head}{sums}y = copy(y{n});")


def _quantised(n: int, prefix: str, body: str) -> dict[str, bytes | str]:
    return {
        "graph.nnef": final(f"{times(n, body)}y = relu(x);"),
        "graph.quant": times(n, QUANT, p=prefix),
    }


_RELUS = "y{i} = relu(x);"
_VARIABLES = "v{i} = variable(shape = [1], label = 'v{i}');"
_POOL = "size = [1,1,N,1], stride = [], dilation = [1,1,D,1], padding = [], border = 'ignore'"
_UPSAMPLE = "y = multilinear_upsample(x, factor = [N], border = 'replicate', method = "
_ROIS = (
    "r = constant(shape = [1,4], value = [1.0]); i = constant<integer>(shape = [1], value = [0]);"
)
_TILED = "z = tile(x, repeats = [1,1,N,1]); y = "
_AROUND = "stride = [], dilation = [], padding = [(0,0),(0,0),(N,N),"
DOCUMENTS = {
    "long unknown names": Attack(2_000, lambda n: final(times(n, "y{i} = f{i:0199}(x);"))),
    "long attributes used again and again": Attack(
        100_000,
        lambda n: used("a = [0] * 1000000;" + times(n, "x{i} = transpose(x, axes = a);")),
    ),
    "tensors of high rank": Attack(
        100_000,
        lambda n: graph(times(n // 10, _RELUS) + "y = relu(x);", f"{'1,' * n}1", "version 1.0;"),
    ),
    "arrays that hold one array many times": Attack(2_000, _shared_arrays),
    "calls at the bottom of a deep recursion": Attack(40_000, _deep_calls),
    "names that are reserved one after the other": Attack(3_000, _reserved_names),
    "parameters by name": Attack(8_000, _parameters),
    "tokens for the grammar": Attack(
        1 << 20, lambda n: final("y = x + 1.0;", fragment(f"a = [{'1,' * n}1]; y = x;"))
    ),
    "comments": Attack(1 << 22, lambda n: FINAL + "#\n" * n + "graph"),
    "lines before an error": Attack(
        1 << 23, lambda n: FINAL + "\n" * n + "graph net( x ) -> ( y ) { y = ; }"
    ),
    "many errors": Attack(100_000, lambda n: final(times(n, "y{i} = z{i};"))),
    "many errors on a long line": Attack(
        1 << 23, lambda n: final(times(20, "y{i} = z{i};").replace("\n", "") + "#" + "a" * n)
    ),
    "many operations, and their summary": Attack(
        90_000,
        lambda n: final(f"y0 = relu(x);\n{times(n, 'y{j} = relu(y{i});')}y = relu(y{n});"),
    ),
    "axes by the thousand": Attack(
        50_000, lambda n: final(f"y = unsqueeze(x, axes = [{listed(n, '{i}')}]);")
    ),
    "arrays of tensors of high rank": Attack(10_000, _joined),
    "extents that grow beside an extent of 0": Attack(20_000, _growing_extents),
    "arrays of millions": Attack(40, lambda n: used(times(n, "a{i} = [0] * 10000000;"))),
    "ranges of millions": Attack(
        20, lambda n: used("a = [0] * 10000000;" + times(n, "a{i} = range_of(a);"))
    ),
    "fragments of many results": Attack(20_000, _many_results),
    "types of large tuples": Attack(
        60_000, lambda n: used(f"a = ({'1, ' * 900}1); b = [{'(a, 1)[1], ' * n}1];")
    ),
    "types of large tuples, as arguments": Attack(
        60_000,
        lambda n: used(f"a = ({'1, ' * 900}1); b = [{'g(a = a), ' * n}1];", _TAKES_TUPLE),
    ),
    "messages about large types": Attack(
        60_000, lambda n: used(f"b = [{'g(a = 1), ' * n}1];", _TAKES_TUPLE)
    ),
    "evaluation: unary operators": _evaluated("!" * 60 + "i"),
    "evaluation: binary operators": _evaluated("i == i" + " && i == i" * 30),
    "evaluation: selections": _evaluated("1 if !i else " * 60 + "2"),
    "evaluation: subscripts": _evaluated("[i][0] && " * 30 + "i"),
    "evaluation: calls of fragments": _evaluated("g(x)"),
    "evaluation: recursion": Attack(40, _recursion),
    "comprehensions over many arrays": Attack(
        5_000, lambda n: used(f"a = [1] * {200 * n}; b = [for {_loops(n)} yield 1];")
    ),
    "comprehensions within one over many arrays": Attack(
        20_000,
        lambda n: used(
            f"a = [1]; b = [for {_loops(n)} yield [{'[for j in a yield 1], ' * n}[1]]];"
        ),
    ),
    "parameters by other names in each call": Attack(6_000, _many_forms),
    "long local names": Attack(200_000, _long_names),
    "a long name of many results": Attack(
        1_000_000, lambda n: used(f"{'a' * n} = copy_n(x, times = {n // 100});")
    ),
    "long strings as attributes": Attack(1_000_000, _long_strings),
    "long labels": Attack(
        10_000_000,
        lambda n: final(
            times(30, "y{i} = variable(shape = [1], label = '{i:02}' * {half});", half=n // 2)
            + "y = copy(x);"
        ),
    ),
    "operations of many results": Attack(
        9_000_000, lambda n: graph(f"y = add_n(copy_n(x, times = {n}));", "")
    ),
    "operations of many results, by an array": Attack(
        9_000_000, lambda n: used(f"a = [1] * {n}; [b] = split(x, axis = 0, ratios = a);")
    ),
    "entries of graph.quant": Attack(
        100_000,
        lambda n: {"graph.nnef": final("y = copy(x);"), "graph.quant": times(n, QUANT, p="y")},
    ),
    "entries of graph.quant for nothing": Attack(20_000, lambda n: _quantised(n, "z", _RELUS)),
    "entries of graph.quant for variables": Attack(
        20_000, lambda n: _quantised(n, "v", _VARIABLES)
    ),
    # What is made flat
    "a long constant made flat": Attack(
        8_000_000,
        lambda n: used(f"a = [1.5] * {n}; b = constant(shape = [{n}], value = a);"),
        converted,
    ),
    "entries of graph.quant made flat": Attack(
        20_000, lambda n: _quantised(n, "y", _RELUS), converted
    ),
    "updates made flat": Attack(20_000, _flat_updates, converted),
    # What is computed, or written out, where a network is traced
    "an upsampling by a large factor": _traced(100_000, f"{_UPSAMPLE}'symmetric');"),
    "an aligned upsampling by a large factor": _traced(100_000_000, f"{_UPSAMPLE}'aligned');"),
    "a window of many cells": _traced(
        100_000, f"{_TILED}argmax_pool(z, {_POOL.replace('D', '1')});"
    ),
    "a window of many cells with gaps": _traced(
        100_000, f"{_TILED}max_pool(z, {_POOL.replace('D', '2')});"
    ),
    "means of windows of which some cells count": _traced(
        20_000, f"y = avg_pool(x, size = [1,1,N,N], border = 'ignore', {_AROUND}(N,N)]);"
    ),
    "an edge that is mirrored many times": _traced(
        100_000_000, f"y = box(x, size = [1,1,N,1], border = 'reflect', {_AROUND}(0,0)]);"
    ),
    "parts by the thousand": Attack(
        50_000,
        lambda n: graph(
            "y = f(x);",
            f"1, {n}",
            FINAL + fragment("a = unstack(x, axis = 1); y = a[0] + a[1];"),
        ),
        traced,
    ),
    "regions of many places": _traced(
        500_000_000,
        f"{_ROIS} y = roi_resample(x, r, i, output_size = [N,1], method = 'symmetric');",
    ),
    "sums of a large constant again and again": Attack(5_000, _sums, traced),
    "products of large constants": Attack(
        5_000,
        lambda n: graph(
            f"a = constant(shape = [{n},{n}], value = [1.0]); y = x + matmul(a, a);", "1, 1"
        ),
        traced,
    ),
}
