"""Numbers of 16 bits: what operators, Casts and levels make of them is the reference's."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import nnef_jax
from nnef_jax.formats.onnx.tensor_types import code_of
from tests.onnx.models import model, node, tensor
from tests.onnx.narrow_cases import narrow_cases
from tests.onnx.node_suite import loaded, run
from tests.onnx.test_node_suite import REFUSED
from tests.quickly import optimised

FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
WHOLE = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
# Halves between two numbers, what is beyond a type, and what has no digits left in it.
ITEMS = np.float32([
    0, 1, -1, 0.1, 2.5, 100.3, 126.99, -3.3, 10.81, 255.9, 257, 2049, 65519, 65520, 70000, 99840,
    -3e38, 3e38, 6e-5, 6e-8, 2.9e-8, np.inf, -np.inf, np.nan,
])  # fmt: skip


def results(made: Any, inputs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Return what a model gives, each output with what the standard's own evaluator gives."""
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(made).run(None, inputs)
    found = nnef_jax.load(made)(**inputs)
    found = found if isinstance(found, tuple) else (found,)
    return [(np.asarray(x), np.asarray(y)) for x, y in zip(found, wanted, strict=True)]


def are_equal(x: Any, y: Any) -> bool:
    """Tell whether arrays have the same items and dtype."""
    return x.dtype == y.dtype and np.array_equal(x.astype("f8"), y.astype("f8"), equal_nan=True)


# From whole numbers of each type to one type of floats, another for each source, or to all.
@pytest.mark.parametrize(
    ("source", "all_pairs"),
    [
        ("float32", False),
        ("bfloat16", False),
        pytest.param("float32", True, marks=pytest.mark.slow),
        pytest.param("bfloat16", True, marks=pytest.mark.slow),
        pytest.param("float16", True, marks=pytest.mark.slow),
    ],
)
def test_casts_of_pairs(source: str, all_pairs: bool) -> None:
    """A network with inputs of 16 bits alone is computed in 32, but for what Casts make of it."""
    turn = FLOATS.index(source)
    ends = [FLOATS[(i + turn) % len(FLOATS)] for i in range(len(WHOLE))]
    of_whole = itertools.product(WHOLE, FLOATS) if all_pairs else zip(WHOLE, ends, strict=True)
    pairs = [*itertools.product(FLOATS, FLOATS), *of_whole]
    nodes: list[Any] = []
    for a, b in pairs:
        nodes += [
            node("Cast", "x", f"{a}.{b}.first", to=code_of(a)),
            node("Cast", f"{a}.{b}.first", f"{a}.{b}.second", to=code_of(b)),
            node("Cast", f"{a}.{b}.second", f"{a}.{b}", to=1),
        ]
    with np.errstate(over="ignore"):
        x = ITEMS.astype(source)
    outputs = [tensor(f"{a}.{b}", None) for a, b in pairs]
    made = model(nodes, [tensor("x", x.shape, code_of(source))], outputs, version=25)
    wrong: dict[str, Any] = {}
    for (a, b), (y, wanted) in zip(pairs, results(made, {"x": x}), strict=True):
        fits = np.full(x.shape, True)
        if a in WHOLE and a != "bool":  # numpy does not say what others are
            ends = np.iinfo(a)
            fits = (ends.min <= x.astype("f8")) & (x.astype("f8") <= ends.max)
        if not are_equal(y[fits], wanted[fits]):
            wrong[f"{a} {b}"] = x[fits], y[fits], wanted[fits]
    assert wrong == {}


def test_a_cast_rounds_what_is_computed() -> None:
    nodes = [
        node("Cast", "x", "wide", to=1),
        node("Mul", "wide wide", "square"),
        node("Cast", "square", "narrow", to=10),
        node("Cast", "narrow", "y", to=1),
    ]
    x = np.float16([300, 0.01, 1e-4, 33.3])
    ((y, wanted),) = results(model(nodes, [tensor("x", x.shape, 10)]), {"x": x})
    assert wanted[0] == np.inf
    assert are_equal(y, wanted)


def test_what_casts_read_is_rounded() -> None:
    """Inputs have 32 bits: XLA alone leaves roundings out that a document asks for."""
    inner = [node("Mul", "n n", "s"), node("Cast", "s", "r", to=1)]
    other = [node("Cast", "n", "r", to=1)]
    branches = {
        name: helper.make_graph(nodes, name, [], [tensor("r", None)])
        for name, nodes in (("then_branch", inner), ("else_branch", other))
    }
    nodes = [
        node("Cast", "x", "n", to=16),
        node("Mul", "n n", "square"),
        node("Cast", "square", "wide", to=1),
        node("Cast", "square", "whole", to=6),
        node("Transpose", "square", "turned"),
        node("Cast", "turned", "moved", to=1),
        node("Sub", "square n", "less"),
        node("Cast", "less", "both", to=1),
        node("If", "c", "chosen", **branches),
    ]
    outputs = [tensor(name, None) for name in ("wide", "whole", "moved", "both", "chosen")]
    x = np.random.default_rng(0).normal(0, 9, (4, 8)).astype("f4")
    made = model(nodes, [tensor("x", x.shape), tensor("c", (), 9)], outputs)
    inputs = {"x": x, "c": np.array(True)}
    pairs = dict(zip([y.name for y in outputs], results(made, inputs), strict=True))
    assert {name: pair for name, pair in pairs.items() if not are_equal(*pair)} == {}


_CODES = {
    "int4": [-8, 7, 3, 0], "uint4": [15, 7, 3, 0], "int8": [-128, 127, 3, 0],
    "uint8": [255, 127, 3, 0], "int16": [-32768, 32767, 1001, 0],
    "uint16": [65535, 32767, 1001, 0], "int32": [70000, -200100, 2**24 + 1, 1001],
    "float8_e4m3fn": [448, -0.3, 1.1, 0], "float8_e5m2": [57344, -0.3, 1.1, 0],
}  # fmt: skip


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_levels_are_scaled_in_32_bits_and_rounded_once(both: bool) -> None:
    """Without a zero point and with one, in turn or each."""
    real = ("float32", "float16", "bfloat16")
    each = enumerate(itertools.product(_CODES, real, real))
    cases = [(*names, z) for i, names in each for z in (False, True) if both or z == i % 2]
    inputs = {x: np.array(items, "f8").astype(x) for x, items in _CODES.items()}
    weights = {f"scale.{x}": np.array(0.001234, x) for x in real}
    zeros = {x: 0 if x.startswith("float") or x == "int32" else 3 for x in _CODES}
    weights |= {f"zero.{x}": np.array(zero).astype(x) for x, zero in zeros.items()}
    nodes = [
        node("DequantizeLinear", f"{x} scale.{s} {f'zero.{x}' if z else ''}", f"{x}.{s}.{d}.{z}",
             output_dtype=code_of(d))
        for x, s, d, z in cases
    ]  # fmt: skip
    made = model(
        nodes,
        [tensor(name, x.shape, code_of(name)) for name, x in inputs.items()],
        [tensor(x.output[0], None) for x in nodes],
        weights, version=23,
    )  # fmt: skip
    pairs = zip(cases, results(made, inputs), strict=True)
    assert {case: found for case, found in pairs if not are_equal(*found)} == {}


@pytest.mark.parametrize(
    ("dtype", "scales"),
    [
        pytest.param(dtype, scales, marks=[] if dtype == quick else pytest.mark.slow)
        for scales, quick in ((1, "float16"), (3, ""), (20, "bfloat16"))
        for dtype in ("float16", "bfloat16")
    ],
)
def test_quantised_networks_are_narrowed(dtype: str, scales: int) -> None:
    """Levels are computed in 32 bits though weights, scales and zero points are not."""
    items, shape = np.float32([-0.5, 0, 1, 2.5, 3, 30]), () if scales == 1 else (scales,)
    x = np.resize(items, (2, max(scales, 2)))
    weights: dict[str, Any] = {"scale": np.full(shape, 0.5, np.float32), "w": x}
    nodes: list[Any] = []
    names: list[str] = []
    for code, zero in (("uint8", 3), ("int8", -2), ("uint16", 5), ("int32", 0)):
        weights |= {f"zero.{code}": np.full(shape, zero, code), f"w.{code}": x.astype(code)}
        for source, has_zero in itertools.product("xw", (False, True)):
            name = f"{code}.{source}.{has_zero}"
            end = f"scale {f'zero.{code}' if has_zero else ''}".strip()
            if code.endswith("8") and (has_zero or code == "uint8"):
                nodes.append(node("QuantizeLinear", f"{source} {end}", f"{name}.levels"))
            elif source == "x":
                nodes.append(node("Cast", "x", f"{name}.levels", to=code_of(code)))
            else:
                nodes.append(node("Identity", f"w.{code}", f"{name}.levels"))
            nodes.append(node("DequantizeLinear", f"{name}.levels {end}", name))
            names.append(name)
    made = model(nodes, [tensor("x", x.shape)], [tensor(x, None) for x in names], weights)
    wanted = ReferenceEvaluator(made).run(None, {"x": x})
    found = nnef_jax.load(made, dtype=dtype)(x)
    for name, y, result in zip(names, found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(y, np.float32), result, err_msg=name)


def require_right(chosen: list[Any], folder: Path) -> None:
    """Results are those of 32 bits within two units of the largest, as docs/numerics.md says."""
    found: dict[str, str] = {}
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        for i in range(0, len(chosen), 40):
            found |= run(chosen[i : i + 40], folder, loaded)
    assert {name: why for name, why in found.items() if why} == {}


def operator(case: Any) -> str:
    return case.model.graph.node[0].op_type


def of_suite(dtype: str, *, every: bool = False) -> list[Any]:
    return [x for x in narrow_cases(dtype, every=every) if x.name not in REFUSED]


@pytest.mark.filterwarnings("ignore")  # of ONNX, which makes the cases
def test_all_operators(tmp_path: Path) -> None:
    """Every second operator is computed in bfloat16, all others in float16."""
    brain = of_suite("bfloat16")[::2]
    chosen = {operator(x) for x in brain}
    half = [x for x in of_suite("float16") if operator(x) not in chosen]
    assert len({operator(x) for x in half} | chosen) >= 145
    require_right(brain, tmp_path)
    require_right(half, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@optimised()  # else casts to some numbers of 8 bits are wrong
def test_all_cases(dtype: str, tmp_path: Path) -> None:
    require_right(of_suite(dtype, every=True), tmp_path)
