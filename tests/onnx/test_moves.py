"""Items moved, joined, reduced and cast: versions and corners that the node suite leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import NnefError

pytest.importorskip("onnx")

from onnx import helper, numpy_helper

from tests.onnx.models import INT, model, node, tensor

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
V = np.float32([-2, -0.5, 0, 1, 3])
FLOAT8 = 17
L = np.int64


def loaded(
    nodes: Any, x: Any = X, version: int = 21, outputs: Sequence[str] = ("y",), **weights: Any
) -> Any:
    nodes = nodes if isinstance(nodes, list) else [nodes]
    type = helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs = [tensor("x", x.shape, type)]
    found = model(nodes, inputs, [tensor(n, None) for n in outputs], weights, version)
    return nnef_jax.load(found)


def single(*items: Any) -> Any:
    return np.array(items, L)


CASES: dict[str, tuple[Any, ...]] = {
    "slice attributes": (
        node("Slice", "x", starts=[1, -3], ends=[9, 3], axes=[1, 2]), X, 1, {}, X[:, 1:, 1:3],
    ),
    "slice backwards": (
        node("Slice", "x a b c d"), X, 13,
        {"a": single(-1, 9), "b": single(-9, 1), "c": single(2, 1), "d": single(-2, -1)},
        X[:, 9:1:-1, ::-2],
    ),
    "slice of none": (
        node("Slice", "x a b"), X, 13, {"a": single(1), "b": single(0)}, X[1:0],
    ),
    "pad before 11": (
        node("Pad", "x", pads=[0, 1, 0, 0, 0, 2], value=7.0), X, 2, {},
        np.pad(X, ((0, 0), (1, 0), (0, 2)), constant_values=7),
    ),
    "pad and cut": (
        node("Pad", "x p _ a", mode="edge"), X, 21, {"p": single(-1, 2), "a": single(2)},
        np.pad(X[:, :, 1:], ((0, 0), (0, 0), (0, 2)), mode="edge"),
    ),
    "pad with what float32 lacks": (
        node("Pad", "x p v"), single(1, 2).astype(np.int32), 21,
        {"p": single(1, 0), "v": np.array(2**24 + 1, np.int32)}, np.int32([2**24 + 1, 1, 2]),
    ),
    "wrap further than there is": (
        node("Pad", "x p", mode="wrap"), V, 21, {"p": single(7, 1)}, np.pad(V, (7, 1), "wrap"),
    ),
    "reshape attribute": (node("Reshape", "x", shape=[0, -1]), X, 1, {}, X.reshape(2, 12)),
    "reshape to nothing": (
        node("Reshape", "x s", allowzero=1), X[:, :0], 21, {"s": single(3, 0, 5)},
        np.zeros((3, 0, 5), np.float32),
    ),
    "flatten all": (node("Flatten", "x", axis=3), X, 13, {}, X.reshape(24, 1)),
    "flatten none": (node("Flatten", "x", axis=0), X, 13, {}, X.reshape(1, 24)),
    "tile before 6": (
        node("Tile", "x n a"), X, 1, {"n": single(3), "a": single(1)}, np.tile(X, (1, 3, 1)),
    ),
    "concat before 4": (node("Concat", "x x"), X, 1, {}, np.concatenate([X, X], 1)),
    "add along an axis": (
        node("Add", "x b", broadcast=1, axis=1), X, 6, {"b": np.float32([1, 2, 3])},
        X + np.float32([1, 2, 3])[:, None],
    ),
    "slopes of channels": (
        node("PRelu", "x s"), -X, 6, {"s": np.float32([1, 2, 3])},
        -X * np.float32([1, 2, 3])[:, None],
    ),
    "slopes of integers": (
        node("PRelu", "x s"), np.int32([-2, 2]), 16, {"s": np.int32([3])}, np.int32([-6, 2]),
    ),
    "clip attributes": (node("Clip", "x", min=-1.0, max=0.5), V, 6, {}, np.clip(V, -1, 0.5)),
    "clip between wrong bounds": (
        node("Clip", "x a b"), V, 13, {"a": np.float32(2), "b": np.float32(1)},
        np.full_like(V, 1),
    ),
    "hardmax before 13": (
        node("Hardmax", "x", axis=1), X, 11, {}, (X % 12 == 11).astype(np.float32),
    ),
    "power of integers": (
        node("Pow", "x e"), np.int32([4, 9, -2]), 15, {"e": np.float32([0.5, 1.5, 3])},
        np.int32([2, 27, -8]),
    ),
    "floored remainder": (
        node("Mod", "x d"), np.int32([7, -7, 7, -7, 6]), 13, {"d": np.int32([3, 3, -3, -3, -3])},
        np.int32([1, 2, -2, -1, 0]),
    ),
    "exact remainder": (
        node("Mod", "x d", fmod=1), np.float32([1e8, -1e8]), 13, {"d": np.float32([3])},
        np.float32([1, -1]),
    ),
    "largest of none": (
        node("ReduceMax", "x a", keepdims=0), X[:, :0], 20, {"a": single(1)},
        np.full((2, 4), -np.inf, np.float32),
    ),
    "reduced over no axes": (
        node("ReduceSumSquare", "x", noop_with_empty_axes=1), X, 18, {}, X * X,
    ),
    "reduced integers": (
        node("ReduceL2", "x", axes=[0], keepdims=0), np.int32([[3, 6], [4, 8]]), 13, {},
        np.int32([5, 10]),
    ),
    "infinite logarithm": (
        node("ReduceLogSumExp", "x", axes=[1], keepdims=0),
        np.float32([[-np.inf, -np.inf], [1000, 1000], [np.inf, 0]]), 13, {},
        np.float32([-np.inf, 1000 + np.log(2), np.inf]),
    ),
    "mean of integers": (
        node("ReduceMean", "x", axes=[0], keepdims=0), np.int32([[1, -5], [4, -2]]), 13, {},
        np.int32([2, -3]),
    ),
    "cache from its start on": (
        node("TensorScatter", "x u"), X, 24, {"u": X[:, :2] + 50},
        np.concatenate([X[:, :2] + 50, X[:, 2:]], 1),
    ),
    "gemm of scaled parts": (
        node("Gemm", "x b c", alpha=0.5, beta=2.0, transA=1), X[0], 13,
        {"b": X[1], "c": np.float32(3)}, 0.5 * X[0].T @ X[1] + 6,
    ),
    "vector times matrices": (
        node("MatMul", "x b"), V[:3], 13, {"b": X}, V[:3] @ X,
    ),
    "sums without an arrow": (
        node("Einsum", "x b", equation="b...a, ...aB"), X, 12, {"b": X[0].T},
        np.einsum("bca,aB->cBb", X, X[0].T),
    ),
    "hot without an index": (
        node("OneHot", "x d v", axis=0), np.float32([1, -1, 7]), 11,
        {"d": np.float32(3), "v": np.int32([4, 9])}, np.int32([[4, 4, 4], [9, 4, 4], [4, 9, 4]]),
    ),
    "text of a type": (node("Cast", "x", to="INT32"), V, 1, {}, V.astype(np.int32)),
    "wrapped": (
        node("Cast", "x", to=3), np.float32([300, -129.5, 5]), 13, {}, np.int8([44, 127, 5]),
    ),
    "kept without training": (node("Dropout", "x", ratio=0.5), X, 7, {}, X),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_values(case: Any) -> None:
    nodes, x, version, weights, expected = case
    found = np.asarray(loaded(nodes, x, version, **weights)(x))
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_sequences() -> None:
    """Cut in three, add one, take one away, apply a graph, join."""
    body = helper.make_graph(
        [node("ReduceMax", "other", "most", keepdims=0), node("Mul", "item most", "product")],
        "body",
        [tensor("item", None), tensor("other", None)],
        [tensor("product", None)],
    )
    nodes = [
        node("SplitToSequence", "x two", "parts", axis=2),
        node("SequenceInsert", "parts x zero", "more"),
        node("SequenceErase", "more first", "fewer"),
        node("SequenceMap", "fewer x", "mapped", body=body),
        node("Identity", "mapped", "same"),
        node("SequenceLength", "same", "length"),
        node("SequenceAt", "same first", "picked"),
        node("SplitToSequence", "x", "rows", axis=1, keepdims=0),
        node("ConcatFromSequence", "rows", "joined", axis=-1, new_axis=1),
        node("Optional", "rows", "optional"),
        node("OptionalHasElement", "optional", "has"),
        node("OptionalGetElement", "optional", "rows_again"),
        node("SequenceAt", "rows_again zero", "row"),
    ]
    wanted = ("length", "picked", "joined", "has", "row")
    numbers = {"two": np.array(2, L), "zero": np.array(0, L), "first": np.array(-1, L)}
    length, picked, joined, has, row = loaded(nodes, X, 18, wanted, **numbers)(X)
    assert length == 2 and has
    np.testing.assert_array_equal(picked, X[:, :, :2] * 23)
    np.testing.assert_array_equal(joined, X.transpose(0, 2, 1))
    np.testing.assert_array_equal(row, X[:, 0])


def test_parts_as_equal_as_can_be() -> None:
    split = node("Split", "x", "a b c", axis=2, num_outputs=3)
    parts = loaded(split, X[..., :4].repeat(2, 2)[..., :7], 18, ("a", "b", "c"))
    found = parts(X[..., :4].repeat(2, 2)[..., :7])
    assert [part.shape[2] for part in found] == [3, 3, 1]


def test_floats_of_8_bits_saturate_unless_told_not_to() -> None:
    nodes = [
        node("Cast", "x", "a", to=FLOAT8),
        node("Cast", "x", "b", to=FLOAT8, saturate=0),
        node("Cast", "x", "c", to=24, round_mode="down"),
        node("Cast", "x", "d", to=24, round_mode="nearest", saturate=0),
    ]
    x = np.float32([1e3, np.inf, np.nan, 3.0])
    a, b, c, d = loaded(nodes, x, 24, ("a", "b", "c", "d"))(x)
    none = np.nan
    assert a.dtype == ml_dtypes.float8_e4m3fn and c.dtype == ml_dtypes.float8_e8m0fnu
    for found, wanted in (
        (a, [448, 448, none, 3]),
        (b, [none, none, none, 3]),
        (c, [512, 2.0**127, none, 2]),
        (d, [1024, none, none, 4]),
    ):
        np.testing.assert_array_equal(np.asarray(found).astype(np.float32), np.float32(wanted))


def test_open_extents() -> None:
    """A slice from the end, a matrix and parts for whatever extents there are."""
    nodes = [
        node("Slice", "x a b c", "cut"),
        node("Flatten", "cut", "flat"),
        node("Split", "x", "p q", axis=2),
        node("Squeeze", "p", "y"),
    ]
    weights = {"a": single(-2), "b": single(9), "c": single(1)}
    outputs = [tensor(n, None) for n in ("flat", "q", "y")]
    found = nnef_jax.load(model(nodes, [tensor("x", ("n", "m", "k"))], outputs, weights, 13))
    for x in (X, X[:1, :, :2]):
        flat, q, y = found(x)
        np.testing.assert_array_equal(flat, x[:, -2:].reshape(len(x), -1))
        np.testing.assert_array_equal(q, np.split(x, 2, 2)[1])
        np.testing.assert_array_equal(y, np.squeeze(np.split(x, 2, 2)[0]))


def test_weights_that_are_folded_for_some_extents_alone(tmp_path: Path) -> None:
    """Zeros that torch expands to a state are known for a small batch, computed for a large one."""
    nodes = [
        node("Shape", "x", "b", end=1),
        node("Concat", "b n", "s", axis=0),
        node("Expand", "w s", "e"),
        node("Tile", "x r", "t"),
        node("Add", "t e", "u"),
        node("Mul", "u g"),
    ]
    weights = {"n": single(16), "r": single(1, 16), "w": np.float32(0.5), "g": np.float32([2] * 16)}
    found = model(nodes, [tensor("x", ("batch", 1))], [tensor("y", ("batch", 16))], weights)
    network = nnef_jax.load(found)
    assert network.params.keys() == {"g"}
    for batch in (2, 60_000):
        x = np.linspace(-1, 1, batch, dtype=np.float32)[:, None]
        np.testing.assert_allclose(network(x), np.tile(2 * (x + 0.5), 16), rtol=1e-6)
    network.export(tmp_path / "net.npz")


@pytest.mark.parametrize(
    ("operator", "other", "wanted"),
    [
        ("Mod", [5, -5, 3], (2, 2, 1)),
        ("Max", [1, 5, 2], (2, 5, 4)),
        ("Clip", 3, (3, 3, 4)),
        ("Pow", [1, 0, 2], (2, 1, 16)),
    ],
)
def test_shapes_are_computed_when_a_network_is_read(
    operator: str, other: Any, wanted: tuple[int, ...]
) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node(operator, "s n", "t"),
        node("Abs", "t", "u"),
        node("ConstantOfShape", "u"),
    ]
    assert loaded(nodes, n=np.array(other, L))(X).shape == wanted


def test_pads_are_turned_round_when_a_network_is_read() -> None:
    """As exporters write them: from the last axis on, begin beside end."""
    nodes = [
        node("ConstantOfShape", "n", "zeros", value=numpy_helper.from_array(single(0))),
        node("Concat", "given zeros", "all", axis=0),
        node("Reshape", "all pairs", "matrix"),
        node("Slice", "matrix last far zero back", "turned"),
        node("Transpose", "turned", "columns", perm=[1, 0]),
        node("Reshape", "columns flat", "list"),
        node("Cast", "list", "pads", to=INT),
        node("Pad", "x pads"),
    ]
    numbers = {
        "n": single(2), "given": single(1, 2, 3, 0), "pairs": single(-1, 2), "last": single(-1),
        "far": single(-(2**63) + 1), "zero": single(0), "back": single(-1), "flat": single(-1),
    }  # fmt: skip
    wanted = np.pad(X, ((0, 0), (3, 0), (1, 2)))
    np.testing.assert_array_equal(loaded(nodes, **numbers)(X), wanted)


def test_what_follows_from_an_input_may_be_made_known() -> None:
    inputs = [tensor("x", X.shape), tensor("n", (), INT)]
    nodes = [node("Unsqueeze", "n zero", "many"), node("Expand", "x many")]
    found = model(nodes, inputs, None, {"zero": single(0)})
    with pytest.raises(NnefError, match="computed by the network") as caught:
        nnef_jax.load(found)
    assert "values={'n': ...}" in str(caught.value)
    assert nnef_jax.load(found, values={"n": np.array(4)})(X).shape == X.shape


WRONG: dict[str, tuple[Any, ...]] = {
    "reshape": (node("Reshape", "x s"), {"s": single(5, 5)}, "24 items are not 25"),
    "reshape to nothing": (
        node("Reshape", "x s", allowzero=1), {"s": single(0, 5)}, "cannot be reshaped",
    ),
    "order": (node("Transpose", "x", perm=[0, 0, 1]), {}, "must be an order of 3 axes"),
    "axis": (node("Flatten", "x", axis=4), {}, "no axis 4 of 3"),
    "lengths": (node("Split", "x s", axis=2), {"s": single(3, 3)}, "do not add up to the 4"),
    "parts": (node("Split", "x", "y z", axis=1, num_outputs=3), {}, "it has 2 outputs"),
    "step": (
        node("Slice", "x s e a p"),
        {"s": single(0), "e": single(9), "a": single(0), "p": single(0)},
        "a step is 0",
    ),
    "pads": (node("Pad", "x p"), {"p": single(1, 2)}, "must have 6 items"),
    "mode": (node("Pad", "x p", mode="mirror"), {"p": single(*[0] * 6)}, "'mirror', known are"),
    "blocks": (node("DepthToSpace", "x", blocksize=2), {}, "cannot be reshaped"),
    "matrix": (node("EyeLike", "x"), {}, "must be a matrix"),
    "place": (
        [node("SequenceConstruct", "x", "s"), node("SequenceAt", "s i")],
        {"i": single(1)},
        "no index 1 in a sequence of 1",
    ),
    "sequence": (node("SequenceLength", "x"), {}, "must be a sequence, it is a tensor"),
    "tensor": (
        [node("SequenceConstruct", "x", "s"), node("Relu", "s")],
        {},
        "must be a tensor, it is a sequence",
    ),
    "empty": ([node("Optional", "", "o"), node("OptionalGetElement", "o")], {}, "is empty"),
    "delta": (
        node("Range", "a b d"),
        {"a": np.array(0), "b": np.array(3), "d": np.array(0)},
        "'delta' must not be 0",
    ),
    "random": (node("RandomNormalLike", "x"), {}, "results are random"),
    "training": (
        node("Dropout", "x r t"), {"r": np.float32(0.5), "t": np.array(True)}, "results are random",
    ),
    "64 bits": (node("BitCast", "x", to=11), {}, "jax's x64 mode"),
    "bits": (node("BitCast", "x", to=5), {}, "have 32 bits, those of int16 16"),
    "determinant": (node("Det", "x"), {}, "must hold square matrices"),
    "indices": (node("Gather", "x x"), {}, "'indices' must"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_errors(case: Any) -> None:
    nodes, weights, message = case
    outputs = ("y", "z") if not isinstance(nodes, list) and len(nodes.output) > 1 else ("y",)
    with pytest.raises(NnefError, match=r"node .*: ") as caught:
        loaded(nodes, X, 26, outputs, **weights)
    assert message in str(caught.value)
