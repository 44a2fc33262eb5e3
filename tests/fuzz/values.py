"""Documents with one call each, in which one argument has a wrong value.

For each operation there is a call as the tables of cases have it. One of its parameters, or one of
the first items of an array, gets one of the values here; or its tensors are others.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

import nnef_jax
from lowering.work import total
from nnef_jax.formats.syntax import standard as library
from nnef_jax.formats.tract import declarations
from nnef_jax.reading.read import read
from tests import op_cases
from tests.fuzz import Kind
from tests.helpers import tar
from tests.op_cases import OpCase, bind
from tests.op_cases.document import Name, literal
from tests.op_cases.document import document as document_of

_SHARED = (
    *("", "[]", "[[]]", "[1]", "[-1]", "[0, 0]", "[1, 1, 1, 1, 1, 1, 1, 1, 1]", "[[1, 2], [3]]"),
    *("'a'", "''", "'f16'", "true", "false", "0", "1", "-1", "3", "1.5", "0.0", "-0.5", "1e30"),
    *("9223372036854775807", "-9223372036854775807", "2147483648", "65536", "(1, 2)", "(1.0, 'a')"),
    *("some", "one", "whole", "truth", "[some]", "[some, 1]", "(some, one)", "['a']", "[true]"),
    *("[(1, 2)]", "[(-1, -1)]", "[1.5]", "[9223372036854775807]", "[(1, 2), (some, 'a')]"),
    *("[1000000000, 1000000000, 1000000000]", "0.0 / 0.0", "[0.0 / 0.0]", "numbers", "[numbers]"),
)
# Infinity and NaN have names in tract's dialect alone, and so have extents that are open.
TRACT = (
    *_SHARED,
    *("nan", "inf", "-inf", "[nan]", "[inf, -inf]", "(nan, nan)", "[(nan, inf)]", "[[nan]]"),
    *("S", "-S", "[S]", "[S, -1]", "[S * S, 1.5]", "[(S, -S)]", "S * 1.5", "S / 0.5"),
    *("18446744073709551615", "9223372036854775808", "99999999999999999999"),
    *("[18446744073709551615]", "[('a', some, 0, 1)]", "[('a', 'a', nan, inf)]"),
)
STANDARD = (
    *_SHARED,
    *("1.0 / 0.0", "-1.0 / 0.0", "[1.0 / 0.0, -1.0]", "1 / 0", "[1 / 0]", "2 ^ 62", "1e30 * 1e300"),
    *("shape_of(some)", "length_of([1])", "shape_of(open_)", "shape_of(open_)[0]", "open_"),
    *("[(shape_of(open_)[0], -1)]", "[0 - shape_of(open_)[0]]", "[some[0]]", "some[0:1]"),
)
_TRACT_HEAD = """version 1.0;
extension tract_registry tract_core;
fragment body( a: tensor<scalar>, w: tensor<scalar>, s: tensor<scalar> )
-> ( b: tensor<scalar>, t: tensor<scalar> ) { b = a * w + s; t = s + a; }
"""
_TRACT_BEFORE = """
    some = external(shape = [2, 3]);
    one = external(shape = []);
    row = external(shape = [3]);
    open_ = external(shape = [S, 3]);
    whole = external<integer>(shape = [2]);
    truth = external<logical>(shape = [2, 3]);
    numbers = variable<scalar>(label = 'numbers', shape = [2]);
"""
_STANDARD_HEAD = "version 1.0;\nextension KHR_enable_operator_expressions;\n"
_STANDARD_BEFORE = """
    some = external<scalar>(shape = [2, 3]);
    one = external<scalar>(shape = []);
    row = external<scalar>(shape = [3]);
    open_ = external<scalar>(shape = [0, 3]);
    whole = external<integer>(shape = [2]);
    truth = external<logical>(shape = [2, 3]);
    numbers = variable<scalar>(label = 'numbers', shape = [2]);
"""
_RANKS = ("one", "row", "some", "[some]", "[[some, some]]", "open_", "1.0", "[]", "whole")
_MOST_ITEMS = 6
_INPUTS = ("some", "one", "row", "open_", "whole", "truth")
_SQUARE = {
    "square": "external(shape = [2, 2])",
    "weights": "variable<scalar>(label = 'weights', shape = [2, 2])",
}
_SUBMODEL = "version 1.0;\ngraph sub(x) -> (y) { x = external(shape = [2, 3]); y = relu(x); }"


@dataclass(frozen=True)
class Call:
    """A valid call of an operation, and the inputs that it declares."""

    operation: str
    arguments: Mapping[str, str]
    inputs: Mapping[str, str]
    results: str

    def changed(self, values: tuple[str, ...], chance: random.Random) -> Call:
        """Return the call with a value for an argument or an item of one, or with other tensors."""
        own = [name for name, meant in self.arguments.items() if meant in self.inputs]
        if own and chance.random() < 0.15:
            first, *others = own
            ranks = {first: chance.choice(_RANKS)} | dict.fromkeys(others, chance.choice(_RANKS))
            return replace(self, arguments={**self.arguments, **ranks})
        name = chance.choice(list(self.arguments))
        meant = self.arguments[name]
        items = [item.span() for item in re.finditer(r"[^\[\](),\s]+", meant)][:_MOST_ITEMS]
        places = [(0, len(meant)), *(items if meant[:1] in ("[", "(") else [])]
        start, end = chance.choice(places)
        value = meant[:start] + chance.choice(values) + meant[end:]
        return replace(self, arguments={**self.arguments, name: value})

    def __str__(self) -> str:
        given = ", ".join(f"{name} = {value}" for name, value in self.arguments.items() if value)
        return f"{self.operation}({given})"


# Calls of operations that have no row in the tables of cases.
_SCAN = {
    "body": "'body'",
    "scan": "[('a', some, 0, 1)]",
    "full": "[('w', one)]",
    "state": "[('s', [[0.0, 0.0, 0.0]], 't')]",
    "output": "[('b', 'full', 0, 1), ('t', 'last', 0, 1)]",
    "skip": "0",
    "reset_every_turn": "false",
    "external_state": "false",
}
_PULSE_PAD = {
    "before": "1",
    "after": "1",
    "begin_input": "0",
    "end_input": "2",
    "border": "'constant'",
}
_TRACT_CALLS = {
    "external": {"shape": "[2]"},
    "tract_core_external": {"datum_type": "'f32'", "shape": "[2]"},
    "variable": {"label": "'numbers'", "shape": "[2]"},
    "constant": {"shape": "[2]", "value": "[1.0, 2.0]"},
    "within_bound_index": {"index": "whole", "input_axis_size": "3"},
    "tract_core_shape_of": {"input": "some"},
    "tract_core_complex_to_inner_dim": {"input": "tract_core_inner_dim_to_complex([[1.0, 2.0]])"},
    "tract_core_scan": _SCAN,
    "tract_core_submodel": {"input": "[some]", "label": "'sub'"},
    "tract_resource_get": {"label": "'file'", "key": "'key'"},
    "tract_pulse_delay": {"input": "some", "axis": "0", "delay": "1", "overlap": "1"},
    "tract_pulse_mask": {"input": "some", "axis": "0", "begin": "1", "end": "2", "value": "0.0"},
    "tract_pulse_pulse_pad": {"input": "some", "axis": "0", **_PULSE_PAD, "overlap": "0"},
    "tract_pulse_cumsum": {"input": "some", "axis": "0"},
}
_STANDARD_CALLS = {
    "external": {"shape": "[2]"},
    "variable": {"shape": "[2]", "label": "'numbers'"},
    "constant": {"shape": "[2]", "value": "[1.0, 2.0]"},
    "update": {"variable": "numbers", "value": "numbers * 2.0"},
}


@cache
def calls(*, tract: bool) -> list[Call]:
    """A call of each operation that is declared, with all its parameters."""
    declared = declarations.declarations() if tract else library.standard()
    rows = {case.operation: case for case in reversed(op_cases.TRACT if tract else op_cases.NNEF)}
    others = {case.operation: case for case in reversed(op_cases.NNEF)} if tract else {}
    written = _TRACT_CALLS if tract else _STANDARD_CALLS
    made: list[Call] = []
    for name, fragment in declared.items():
        case = rows.get(fragment.name) or others.get(fragment.name)
        if case is not None:
            given, before, results = _of(case, tract)
        elif fragment.name in written:
            given, before = written[fragment.name], {}
            results = "( y, z )" if fragment.name == "tract_core_scan" else "y"
        else:
            continue
        arguments = {p.name: given.get(p.name, "") for p in fragment.parameters}
        generic = f"<{case.generic}>" if case and case.generic else ""
        made.append(Call(name + generic, arguments, before, results))
    return made


def _of(case: OpCase, tract: bool) -> tuple[dict[str, str], dict[str, str], str]:
    text = document_of(case)
    inputs = dict(re.findall(r"^ +(\w+) = ((?:tract_core_)?external.*\));$", text, re.MULTILINE))
    names = dict(inputs)
    values = bind(case, [Name(name) for name in names]) | case.attributes
    given = {
        name: literal(value)
        for name, value in values.items()
        if value is not False or name in case.attributes
    }
    results = re.findall(rf"^ +(.*?) = {case.operation}", text, re.MULTILINE)[-1]
    return given, inputs, results


def document(call: Call, *, tract: bool, is_open: bool = True, pulsed: bool = False) -> str:
    """A document with the call, and inputs and a variable that its arguments may name.

    `is_open` leaves an extent of an input open, `pulsed` says that the input is a stream.
    """
    head, before = (_TRACT_HEAD, _TRACT_BEFORE) if tract else (_STANDARD_HEAD, _STANDARD_BEFORE)
    if pulsed:
        head = head.replace("tract_core;", "tract_core;\nextension tract_registry tract_pulse;")
    if not is_open:
        before = before.replace("[S, 3]", "[2, 3]").replace("[0, 3]", "[2, 3]")
    own = [name for name, value in call.inputs.items() if "external" in value]
    inputs = ", ".join([*_INPUTS, *own])
    lines = "".join(f"    {name} = {value};\n" for name, value in call.inputs.items())
    results, after = call.results.strip("[]()"), ""
    if call.operation.endswith("external"):  # an input, which is no result under the same name
        inputs, results, after = f"{inputs}, {results}", "out", f"    out = copy({results});\n"
    return (
        f"{head}graph net( {inputs} ) -> ( {results} )\n{{{before}{lines}"
        f"    {call.results} = {call};\n{after}}}\n"
    )


# graph.quant: entries that mean something, by the algorithms of both dialects.
_ZERO_POINT = {
    "zero_point": "3", "scale": "0.5", "bits": "8", "signed": "false", "symmetric": "false"
}  # fmt: skip
_MIN_MAX = {"min": "-1.0", "max": "1.0", "bits": "8"}
_ALGORITHMS = {
    "zero_point_linear_quantize": _ZERO_POINT,
    "linear_quantize": _MIN_MAX,
    "min_max_linear_quantize": {**_MIN_MAX, "signed": "true", "symmetric": "true"},
    "logarithmic_quantize": {"max": "1.0", "bits": "8"},
}
_QUANTISED = (
    *("", "[]", "[[]]", "8", "[8]", "[8, 8]", "[[8]]", "[1, 2, 3]", "0", "-1", "1", "64", "65"),
    *("1.5", "[1.5]", "-0.5", "[0.5, -1.0]", "nan", "inf", "-inf", "[nan]", "[1.0, nan]", "true"),
    *("false", "[true]", "'a'", '"a"', "['a']", "9223372036854775807", "99999999999999999999"),
    *("-9223372036854775808", "1e30", "1e400", "[1e300]", "(1, 2)", "[(1, 2)]", "x", "w", "none"),
    *("0.0 / 0.0", "[0.0 / 0.0]", "1 / 0", "[1.0, [2.0]]", "[1, 2.0]", "[true, 1.0]", "[,]", "[8"),
    *("- 8", "8 8", "0x8", "1.", "shape_of(x)", "constant(shape = [], value = [1.0])"),
    *("constant(shape = [1, 2], value = [1.0, 2.0])", "constant(shape = [0], value = [])"),
    *("constant(shape = [2], value = [])", "constant(shape = [-1], value = [8])"),
    *("constant(shape = [2], value = [0.0])", "constant(shape = nan)", "constant(shape = [1])"),
    "constant(shape = [1000000000, 1000000000], value = [1.0])",
)


def quantized(tract: bool, chance: random.Random) -> tuple[str, bytes]:
    """Return an archive whose graph.quant has one entry, for an input, a variable or a result."""
    text = document(Call("matmul", {"A": "square", "B": "weights"}, _SQUARE, "y"), tract=tract)
    algorithm = chance.choice(list(_ALGORITHMS))
    arguments = {**_ALGORITHMS[algorithm]}
    arguments[chance.choice(list(arguments))] = chance.choice(_QUANTISED)
    listed = ", ".join(f"{key} = {item}" for key, item in arguments.items() if item)
    entry = f'"{chance.choice([*_SQUARE, "y"])}": {algorithm}({listed});\n'
    return chance.choice(("apply", "ignore")), archive(text, entry)


def valued(setting: dict[str, bool], chance: random.Random) -> tuple[str, bytes]:
    """Return an archive of a document in which a value is wrong."""
    tract = setting["tract"]
    made = calls(tract=tract)
    if setting.get("pulsed"):
        made = [call for call in made if re.search("pulse|scan", call.operation)]
    call = chance.choice([call for call in made if call.arguments])
    return "apply", archive(document(call.changed(TRACT if tract else STANDARD, chance), **setting))


def archive(text: str, quant: str = "") -> bytes:
    """Return an archive with a document and the files that it may name."""
    numbers, weights = io.BytesIO(), io.BytesIO()
    nnef_jax.write_tensor(numbers, np.array([np.nan, 3e38], np.float32))
    nnef_jax.write_tensor(weights, np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    members = {
        "graph.nnef": text,
        "numbers.dat": numbers.getvalue(),
        "weights.dat": weights.getvalue(),
        "sub/graph.nnef": _SUBMODEL,
        "file.json": '{"key": [1, 2.5, true]}',
        **({"graph.quant": quant} if quant else {}),
    }
    return tar(members)


def attempt(mutant: tuple[str, bytes]) -> str:
    """Read a network and count its operations; return "network"."""
    quantization, source = mutant
    assert total(read(source, quantization=quantization).graph) >= 0
    return "network"


SORTS = {
    "tract": (partial(valued, {"tract": True}), 8),
    "tract-closed": (partial(valued, {"tract": True, "is_open": False}), 7),
    "tract-pulsed": (partial(valued, {"tract": True, "pulsed": True}), 1),
    "standard": (partial(valued, {"tract": False}), 6),
    "standard-closed": (partial(valued, {"tract": False, "is_open": False}), 3),
    "quantized-tract": (partial(quantized, True), 3),
    "quantized-standard": (partial(quantized, False), 3),
}
KIND = Kind(lambda: SORTS, attempt)
