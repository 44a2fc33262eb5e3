"""Models of ONNX that are made to break or to cost: each ends in an error with a place."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import NnefError

pytest.importorskip("onnx")

from onnx import helper, numpy_helper

from tests.fuzz import kind
from tests.fuzz.draw import changed_bytes
from tests.onnx.models import FLOAT, model, node, tensor

BOOL, FAR = 9, 1 << 40
SET = [helper.make_opsetid("", 21)]
LIMITS = nnef_jax.Limits(steps=20_000, operations=1_000, expanded_bytes=100_000)


def graph(nodes: Any, outputs: str, inputs: Any = ()) -> Any:
    return helper.make_graph(
        nodes, "body", list(inputs), [tensor(name, None) for name in outputs.split()]
    )


def choice(body: list[Any], reads: str = "t", result: str = "y") -> Any:
    other = graph([node("Relu", "x", "r")], "r")
    return node("If", reads, result, then_branch=graph(body, "r"), else_branch=other)


def function(name: str, nodes: Any, **more: str) -> Any:
    sets = [*SET, helper.make_opsetid("own", 1)]
    made = helper.make_function("own", name, ["a"], ["b"], nodes, sets)
    for key, value in more.items():
        setattr(made, key, value)
    return made


def calls(*nodes: Any, operator: str) -> Any:
    """Return functions that each call the one before twice, 40 times over."""
    made = [function("f0", [helper.make_node(operator, ["a"], ["b"])])]
    for i in range(40):
        pair = [node(f"f{i}", read, written, domain="own") for read, written in ("ac", "cb")]
        made.append(function(f"f{i + 1}", pair))
    last = node("f40", "s" if nodes else "x", domain="own")
    return model([*nodes, last], functions=made)


def wide_function() -> Any:
    """Return calls of a function whose one node has many in a graph."""
    body = [node("Relu", "x", "r"), *(node("Relu", "r", f"r{i}") for i in range(500))]
    true = node("Constant", "", "t", value=numpy_helper.from_array(np.array(True)))
    body[0].input[0] = "a"
    made = function("f", [true, choice(body, result="b")])
    made.node[1].attribute[1].g.node[0].input[0] = "a"
    nodes = [node("f", f"y{i}" if i else "x", f"y{i + 1}", domain="own") for i in range(50)]
    return model([*nodes, node("Relu", "y50")], functions=[made])


def folded() -> Any:
    nodes = [node("Shape", "x", "s"), node("Expand", "s k", "a0")]
    nodes += [node("Add", f"a{i} a0", f"a{i + 1}") for i in range(50)]
    return model([*nodes, node("Identity", "a50")], weights={"k": np.int64([4096, 2])})


def long_names() -> Any:
    inner = [node("Relu", f"q{i}" if i else "a", f"q{i + 1}") for i in range(100)]
    made = function("f", [*inner, node("Relu", "q100", "b")])
    name = "L" * 10_000
    return model([node("f", "x", name, domain="own"), node("Relu", name)], functions=[made])


def known(operator: str, shapes: dict[str, Any], shape: Any = (2, 3), version: int = 21) -> Any:
    reads = " ".join(("x", *shapes))
    return model([node(operator, reads)], [tensor("x", shape)], weights=shapes, version=version)


def parts() -> Any:
    nodes = [node("SplitToSequence", "x", "s"), node("SequenceAt", "s z")]
    return model(nodes, [tensor("x", (1 << 33,))], weights={"z": np.int64(0)})


def mel() -> Any:
    weights = dict(zip("abc", map(np.int64, (FAR, 16, 16)), strict=True))
    weights |= {"d": np.float32(0), "e": np.float32(4000)}
    return model([node("MelWeightMatrix", "a b c d e")], weights=weights)


def machine() -> Any:
    """Return a support vector machine with so many classes that their pairs fill the memory."""
    more: dict[str, Any] = {
        "classlabels_ints": range(9_000), "vectors_per_class": [1] * 9_000, "rho": [0.0],
        "coefficients": [-1.0], "support_vectors": [0.0],
    }  # fmt: skip
    return model([node("SVMClassifier", "x", "y", domain="ai.onnx.ml", **more)])


def grams() -> Any:
    more = dict.fromkeys(("min_gram_length", "max_gram_length"), 1)
    lists = {"ngram_counts": [0], "ngram_indexes": [FAR], "pool_int64s": [7]}
    return model([node("TfIdfVectorizer", "x", mode="TF", max_skip_count=0, **more, **lists)])


COSTLY: dict[str, Callable[[], Any]] = {
    "calls": lambda: calls(operator="Relu"),
    "calls that add nothing": lambda: calls(node("Shape", "x", "s"), operator="Identity"),
    "graphs in functions": wide_function,
    "what is known": folded,
    "long names": long_names,
    "parts": parts,
    "bands": mel,
    "tiles": lambda: known("Tile", {"s": np.int64([FAR, FAR])}),
    "a shape": lambda: known("Expand", {"s": np.int64([FAR, 2, 3])}),
    "classes": machine,
    "columns of counts": grams,
    "frequencies": lambda: known("DFT", {"n": np.int64(FAR)}, (1, 4, 1), 17),
}


@pytest.mark.parametrize("name", COSTLY)
def test_what_costs_too_much_is_refused(name: str) -> None:
    with pytest.raises(nnef_jax.LimitError, match=r"more than|fit"):
        nnef_jax.load(COSTLY[name](), limits=LIMITS)


def sparse(values: Any, indices: Any, shape: tuple[int, ...] = (2, 3)) -> Any:
    made = model([node("Add", "x w")])
    tensor = made.graph.sparse_initializer.add(dims=shape)
    tensor.values.CopyFrom(numpy_helper.from_array(np.float32(values), "w"))
    tensor.indices.CopyFrom(numpy_helper.from_array(np.int64(indices), "i"))
    return made


def of_version(version: int, operator: str) -> Any:
    return model([node(operator, "x")], version=version)


def scan(count: int) -> Any:
    body = graph([node("Relu", "a", "b")], "b", [tensor("a", (3,))])
    return model([node("Scan", "x", num_scan_inputs=count, body=body)])


def tree(**more: list[int]) -> Any:
    tensors = {
        "nodes_splits": np.float32([0.5]), "nodes_modes": np.uint8([0]),
        "leaf_weights": np.float32([1, 2]),
    }  # fmt: skip
    given: dict[str, Any] = {name: numpy_helper.from_array(x) for name, x in tensors.items()}
    given |= {
        "nodes_featureids": [0], "nodes_truenodeids": [0], "nodes_trueleafs": [1],
        "nodes_falsenodeids": [1], "nodes_falseleafs": [1], "leaf_targetids": [0, 0],
        "tree_roots": [0], "n_targets": 1,
    }  # fmt: skip
    made = model([node("TreeEnsemble", "x", domain="ai.onnx.ml", **given | more)])
    made.opset_import[1].version = 5
    return made


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a value of the wrong type": (lambda: model([node("Constant", "", value=3)]), " is due, "),
    "a fill of the wrong type": (
        lambda: model([node("ConstantOfShape", "n", value=3)], weights={"n": np.int64([2])}),
        " is due, ",
    ),
    "axes that are no integers": (lambda: model([node("Transpose", "x", perm=[0.0, 1])]), "perm"),
    "sequences of sequences": (
        lambda: model(
            [node("SequenceConstruct", "x x", "s"), node("SequenceConstruct", "s s", "t"),
             node("ConcatFromSequence", "t", axis=0)]
        ),
        "must be a tensor, it is a sequence",
    ),
    "a place before the first": (lambda: sparse([1, 2], [-1, 5]), "no list of places"),
    "a pair before the first": (lambda: sparse([1, 2], [[-1, 0], [1, 1]]), "no list of places"),
    "places of fewer axes": (lambda: sparse([1, 2], [[0], [1]]), "no list of places"),
    "more places than values": (lambda: sparse([1], [0, 1]), "no list of places"),
    "a place that is none": (lambda: sparse([1], 1), "no list of places"),
    "a place behind the last": (lambda: sparse([1], [6]), "initializer 'w'"),
    "two nodes of one result": (lambda: model([node("Relu", "x"), node("Neg", "x")]), "'y' is giv"),
    "a result that is an input": (
        lambda: model([node("Relu", "x", "x"), node("Neg", "x")]), "'x' is given twice",
    ),
    "two inputs of a name": (
        lambda: model([node("Relu", "x")], [tensor("x"), tensor("x")]), "'x' is given twice",
    ),
    "a version beyond 32 bits": (lambda: of_version(1 << 62, "Splurge"), "is not supported"),
    "a version far below 0": (lambda: of_version(-(1 << 63), "Relu"), "is not supported"),
    "version 0": (lambda: of_version(0, "Relu"), "version 0, is not supported"),
    "more cut inputs than inputs": (lambda: scan(FAR), "'num_scan_inputs' is"),
    "no cut inputs": (lambda: scan(0), "'num_scan_inputs' is 0"),
    "a root that is no node": (lambda: tree(tree_roots=[3]), "a root is not the index of a node"),
    "a feature before the first": (lambda: tree(nodes_featureids=[-1]), "a feature is below 0"),
    "a leaf that is not there": (lambda: tree(nodes_truenodeids=[2]), "an index without a node"),
    "a node that reads itself": (lambda: model([node("Add", "x y")]), "nothing before it gives"),
    "an input left out": (lambda: model([node("MatMul", "x _")]), "input 1 is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_with_its_place(name: str) -> None:
    made, message = WRONG[name]
    with pytest.raises(NnefError) as error:
        nnef_jax.load(made())
    assert message in str(error.value) and error.value.span is not None


def test_many_tensors_of_around_and_of_one_label() -> None:
    count = 300
    nodes = [node("Relu", "x", f"a{i}") for i in range(count)]
    total = node("Sum", " ".join(f"a{i}" for i in range(count)), "r")
    made = model([*nodes, choice([total])], [tensor("x"), tensor("t", (), BOOL)])
    assert len(nnef_jax.load(made).inputs) == 2
    chosen = [choice([node("Add", "x w", "r")], result=f"y{i}") for i in range(3)]
    for i, each in enumerate(chosen):
        each.attribute[1].g.initializer.append(numpy_helper.from_array(np.float32([i, i, i]), "w"))
        each.attribute[0].g.initializer.append(numpy_helper.from_array(np.float32([i, i, i]), "w"))
    made = model([*chosen, node("Sum", "y0 y1 y2")], weights={"t": np.array(True)})
    assert list(nnef_jax.load(made).params) == ["w", "w_1", "w_2"]


def test_functions_are_told_apart_by_overloads() -> None:
    made = [function("F", [node(kind, "a", "b")], overload=kind) for kind in ("Relu", "Neg")]
    for operator, wanted in (("Relu", [0.0, 2]), ("Neg", [1.0, -2])):
        call = node("F", "x", domain="own")
        call.overload = operator
        network = nnef_jax.load(model([call], [tensor("x", (2,))], functions=made))
        np.testing.assert_array_equal(network(np.float32([-1, 2])), wanted)


@pytest.mark.parametrize(
    ("operator", "dtype", "items"),
    [("Add", "int8", (100, 100)), ("Sub", "uint8", (3, 5)), ("Mul", "int16", (300, 300)),
     ("Sub", "uint16", (0, 1)), ("Mul", "int32", (1 << 20, 1 << 20))],
)  # fmt: skip
def test_known_numbers_wrap_as_their_dtype_does(operator: str, dtype: str, items: Any) -> None:
    x, y = (np.array([n], dtype) for n in items)
    wanted = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[operator](x, y)
    made = model([node(operator, "a b")], [], weights={"a": x, "b": y})
    found = nnef_jax.load(made)()
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, wanted)


def rich() -> bytes:
    """Return a model with a graph in a node, a function, a sparse tensor and one beside it."""
    made = sparse([1, 2], [0, 5])
    inner = function("F", [node("Relu", "a", "b")])
    made.functions.append(inner)
    made.opset_import.add(domain="own", version=1)
    made.graph.node[0].output[0] = "p"
    made.graph.node.extend(
        [node("F", "p", "q", domain="own"), choice([node("Add", "q v", "r")], result="z"),
         node("Reshape", "z s", "u", name="last"), node("Cast", "u", to=FLOAT)]
    )  # fmt: skip
    for name, items in (("s", np.int64([3, 2])), ("t", np.array(True)), ("v", np.float32([1]))):
        made.graph.initializer.append(numpy_helper.from_array(items, name))
    beside = made.graph.initializer.add(name="e", data_type=1, dims=[4], data_location=1)
    beside.external_data.add(key="location", value="none.bin")
    return made.SerializeToString()


def test_mutations_of_a_rich_model_end_in_an_error_or_a_model() -> None:
    whole, chance = rich(), random.Random(1)
    for _ in range(600):
        with suppress(NnefError):
            str(nnef_jax.load(changed_bytes(whole, chance), limits=LIMITS).summary())


@pytest.mark.parametrize(
    "numbers", [range(40), pytest.param(range(40, 154), marks=pytest.mark.slow)], ids=str
)
def test_networks_of_other_types_run_or_are_refused(numbers: range) -> None:
    ends = kind("dtypes").ends(numbers)
    assert {"right", "model", "SemanticError", "DataError"} <= {x.split("/")[1] for x in ends}


def test_mutants_end_in_a_model_or_an_error_of_ours() -> None:
    kind("onnx").ends(range(120))
