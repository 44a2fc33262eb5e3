"""Integers that are computed from lengths: of lists, and of inputs with open extents.

The results are compared with onnx.reference.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax

pytest.importorskip("onnx")

from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.onnx.models import model, node, tensor

BOOL, FLOAT, INT64, UINT32, UINT64, DOUBLE = 9, 1, 7, 12, 13, 11
INT8, UINT8 = 3, 2
X = np.float32([[1, 2], [3, 4], [5, 7], [6, -1]])
Z = np.float32([[1], [2], [3]])
# The masks choose the rows of x and of z.
MASKS = [
    (np.array([True, False, True, True]), np.array([True, False, True])),
    (np.array([False, True, False, False]), np.ones(3, bool)),
    (np.zeros(4, bool), np.array([False, True, False])),
    (np.ones(4, bool), np.zeros(3, bool)),
]
WEIGHTS: dict[str, Any] = {
    "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "three": np.array([3]),
    "minus_two": np.array([-2]), "pair": np.array([3, -2]), "none": np.array(0),
    "single": np.array(1), "double": np.array(2), "back": np.array(-1),
    "back_2": np.array(-2), "four": np.array(4), "yes": np.array(True),
    "far": np.array([2**62]), "hundred": np.array([100]), "sizes": np.array([3, 1, 2, 2]),
}  # fmt: skip
# n and k are lengths in vectors of one item, m and j are the same lengths without axes.
LENGTHS = [
    node("Shape", "a", "shape"), node("Shape", "a", "n", start=0, end=1),
    node("Shape", "b", "k", start=0, end=1), node("Squeeze", "n zero", "m"),
    node("Squeeze", "k zero", "j"), node("Sub", "n three", "less"), node("Sub", "three n", "rest"),
    node("Sub", "m four", "less_than_4"), node("Sub", "four m", "more_than"),
    node("Cast", "n", "real", to=FLOAT), node("Cast", "n", "wide", to=UINT64),
    node("Cast", "two", "wide_two", to=UINT64), node("Less", "n two", "is_less"),
]  # fmt: skip
LISTS = [node("Compress", "x chosen", "a", axis=0), node("Compress", "z others", "b", axis=0)]
PAIRS = ["n two", "n minus_two", "n pair", "m double", "minus_two n_or_1", "two n_or_1",
         "k n_or_1"]  # fmt: skip
# Numbers whose sign depends on the length.
SIGNED_PAIRS = ["less two", "less minus_two", "rest two", "rest minus_two", "less n_or_1"]
NOT_0 = node("Max", "n one", "n_or_1")


def on(pairs: list[str], operator: str, **attributes: int) -> list[Any]:
    """Return nodes that apply an operator to pairs of numbers."""
    nodes = [node(operator, pair, f"y{i}", **attributes) for i, pair in enumerate(pairs)]
    return [NOT_0, *nodes]


CASES: dict[str, list[Any]] = {
    "remainders with the sign of the divisor": on([*PAIRS, *SIGNED_PAIRS], "Mod"),
    "remainders with the sign of the dividend": on(PAIRS, "Mod", fmod=1),
    "quotients": on(PAIRS, "Div"),
    "choices": [
        node("Where", "is_less n two", "y0"), node("Where", "is_less minus_two n", "y1"),
        node("Where", "is_less n k", "y2"), node("Where", "is_less shape pair", "y3"),
        node("Clip", "double m j", "y4"), node("Clip", "shape single double", "y5"),
    ],
    "shifts": [
        node("BitShift", "wide wide_two", "y0", direction="LEFT"),
        node("BitShift", "wide_two wide", "y1", direction="RIGHT"),
    ],
    "real numbers": [
        node("Cast", "n", "y0", to=DOUBLE), node("Cast", "n", "y1", to=UINT32),
        node("Constant", "", "half", value_float=0.5),
        node("Mod", "real half", "y2", fmod=1),
    ],
    "as many iterations as rows": [
        node("Loop", "m yes none", "y0", body=helper.make_graph(
            [node("Identity", "go", "goes_on"), node("Add", "total i", "after")], "body",
            [tensor("i", (), INT64), tensor("go", (), BOOL), tensor("total", (), INT64)],
            [tensor("goes_on", (), BOOL), tensor("after", (), INT64)],
        )),
        node("Identity", "m", "y1"),
    ],
    "places of nonzero numbers": [
        node("NonZero", "shape", "y0"), node("NonZero", "less", "y1"),
    ],
    "sizes": [
        node("Mod", "n two", "odd"), node("ConstantOfShape", "odd", "y0"),
        node("Slice", "x zero odd", "y1"), node("Div", "n two", "halves"),
        node("ConstantOfShape", "halves", "y2"),
    ],
    "ranges": [
        node("Range", "none m double", "y0"), node("Range", "single m single", "y1"),
        node("Range", "double m double", "y2"), node("Range", "m none back", "y3"),
        node("Range", "m double back", "y4"), node("Range", "less_than_4 m double", "y5"),
        node("Range", "more_than none back_2", "y6"), node("Range", "none more_than single", "y7"),
        node("Range", "j m single", "y8"), node("Range", "j m double", "y9"),
        node("Range", "m j back", "y10"), node("Range", "none less_than_4 back", "y11"),
    ],
}  # fmt: skip
# Computations whose results for open extents would be refused, or padded, or those of an extent
# that is taken for positive.
CASES_OF_LISTS: dict[str, list[Any]] = {
    "signed remainders": on(SIGNED_PAIRS, "Mod", fmod=1),
    "signed quotients": on(SIGNED_PAIRS, "Div"),
    "casts that wrap": [
        node("Mul", "n hundred", "many"), node("Cast", "many", "byte", to=INT8),
        node("Cast", "byte", "wrapped", to=INT64), node("Abs", "wrapped", "distance"),
        node("ConstantOfShape", "distance", "y0"), node("Cast", "less", "unsigned", to=UINT8),
        node("Cast", "unsigned", "wide_less", to=INT64), node("Identity", "wide_less", "y1"),
        node("Slice", "x zero wide_less", "y2"),
    ],
    "the largest of some numbers": [
        node("Compress", "sizes chosen", "some", axis=0),
        node("ReduceMax", "some", "last", keepdims=0), node("Reshape", "last one", "end"),
        node("Slice", "x zero end", "y0"),
        node("Loop", "last yes none", "y1", body=helper.make_graph(
            [node("Identity", "go", "goes_on"), node("Add", "total i", "after")], "body",
            [tensor("i", (), INT64), tensor("go", (), BOOL), tensor("total", (), INT64)],
            [tensor("goes_on", (), BOOL), tensor("after", (), INT64)],
        )),
    ],
    "computed sizes": [
        node("Constant", "", "half", value_float=0.5), node("Mul", "real half", "halves"),
        node("Floor", "halves", "floors"), node("Cast", "floors", "count", to=INT64),
        node("ConstantOfShape", "count", "y0"), node("Where", "is_less n two", "at_most_2"),
        node("ConstantOfShape", "at_most_2", "y1"), node("Div", "less two", "quotient"),
        node("Abs", "quotient", "distance"), node("ConstantOfShape", "distance", "y2"),
        node("Mod", "less minus_two", "remainder", fmod=1), node("Neg", "remainder", "opposite"),
        node("Abs", "opposite", "size"), node("ConstantOfShape", "size", "y3"),
        node("Neg", "quotient", "end"), node("Slice", "x zero end", "y4"),
        node("Slice", "x quotient far zero", "y5"),
    ],
}  # fmt: skip


def network(case: str, of_lists: bool) -> Any:
    """Return a network whose tensors a and b are lists, or inputs with open extents."""
    each = (CASES | CASES_OF_LISTS)[case]
    if of_lists:
        inputs = [tensor("x", X.shape), tensor("chosen", (4,), BOOL), tensor("z", Z.shape),
                  tensor("others", (3,), BOOL)]  # fmt: skip
        nodes = [*LISTS, *LENGTHS, *each]
    else:
        inputs = [tensor("x", ("rows", 2)), tensor("z", ("columns", 1))]
        same = [node("Identity", "x", "a"), node("Identity", "z", "b")]
        nodes = [*same, *LENGTHS, *each]
    names = [name for step in each for name in step.output if name[0] == "y"]
    return model(nodes, inputs, [tensor(name, None) for name in names], WEIGHTS, 18)


@pytest.mark.parametrize("case", CASES | CASES_OF_LISTS)
def test_lengths_of_lists(case: str) -> None:
    file = network(case, of_lists=True)
    net = nnef_jax.load(file.SerializeToString())
    reference = ReferenceEvaluator(file)
    names = [output.name for output in file.graph.output]

    def run(chosen: Any, others: Any) -> Any:
        return net.apply(net.params, X, chosen, Z, others, capture=net.lengths)

    batch = [np.stack(masks) for masks in zip(*MASKS, strict=True)]
    outputs, lengths = jax.jit(jax.vmap(run))(*batch)
    for i, (chosen, others) in enumerate(MASKS):
        outputs_of_item, lengths_of_item = jax.tree.map(lambda x, i=i: x[i], (outputs, lengths))
        results = nnef_jax.trim(outputs_of_item, lengths_of_item)
        feeds = {"x": X, "chosen": chosen, "z": Z, "others": others}
        arrays = reference.run(None, feeds)
        for name, result, array in zip(names, results, arrays, strict=True):
            np.testing.assert_array_equal(result, array, err_msg=f"{name} of {feeds}")


@pytest.mark.parametrize("case", CASES)
def test_lengths_of_open_inputs(case: str) -> None:
    """Numbers and ranges of exported networks are those of the reference."""
    file = network(case, of_lists=False)
    net = nnef_jax.load(file.SerializeToString())
    names = [output.name for output in file.graph.output]
    rows, columns = jax.export.symbolic_shape("rows, columns")
    types = [
        jax.ShapeDtypeStruct((rows, 2), "float32"),
        jax.ShapeDtypeStruct((columns, 1), "float32"),
    ]
    exported = jax.export.export(jax.jit(lambda x, z: net(x, z)))(*types)
    for row_count, column_count in [(5, 3), (1, 1), (2, 6), (9, 2)]:
        feeds = {
            "x": np.ones((row_count, 2), np.float32),
            "z": np.ones((column_count, 1), np.float32),
        }
        results = exported.call(*feeds.values())
        arrays = ReferenceEvaluator(file).run(None, feeds)
        for name, result, array in zip(names, results, arrays, strict=True):
            np.testing.assert_array_equal(result, array, err_msg=f"{name} of {row_count}")
