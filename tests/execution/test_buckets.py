"""Items of unlike lengths, by programs for few lengths: results are those of single calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnef_jax
from nnef_jax import InputError
from nnef_jax.calls.batcher import Batcher
from tests.helpers import model_of

BERT = Path(__file__).parents[1] / "torch_networks" / "bert.nnef.tgz"
BUCKETS = {"S": (4, 9, 16)}
_RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def bert() -> nnef_jax.Model:
    return nnef_jax.load(BERT)


@pytest.fixture(scope="module")
def embed(bert: nnef_jax.Model) -> Batcher:
    batcher = bert.batcher((1, 4), buckets=BUCKETS, masks="mask")
    done: list[tuple[int, int]] = []
    batcher.compile(lambda *numbers: done.append(numbers))
    assert done == [(i, 6) for i in range(1, 7)]  # two sizes of three buckets
    return batcher


def texts(lengths: list[int]) -> tuple[list[Any], list[Any]]:
    """Return random tokens of items that have these lengths, and their positions."""
    return [_RNG.integers(1, 60, n) for n in lengths], [np.arange(n) for n in lengths]


def single(model: nnef_jax.Model, *rows: Any) -> Any:
    """Return the result for one item without padding."""
    ones = np.ones(len(rows[0]), np.int32)
    return model(*(np.asarray(row, np.int32)[None] for row in (*rows, ones)))


def _not_again(*_: object) -> None:
    raise AssertionError("it is compiled")


@settings(max_examples=12, deadline=None)
@given(lengths=st.lists(st.sampled_from([1, 3, 4, 5, 9, 10, 16]), min_size=1, max_size=9))
def test_states_of_an_encoder_are_those_of_single_calls(
    bert: nnef_jax.Model, embed: Batcher, lengths: list[int]
) -> None:
    """States of tokens are trimmed, and a row for each text stays an array."""
    ids, positions = texts(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nnef_jax.execution.executables.Executables.get", _not_again)
        result = embed(ids, positions)
    assert [x.shape for x in result.states] == [(n, 32) for n in lengths]
    assert isinstance(result.pooled, np.ndarray)
    for i, (row, place) in enumerate(zip(ids, positions, strict=True)):
        states, pooled = single(bert, row, place)
        np.testing.assert_allclose(result.states[i], states[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(result.pooled[i], pooled[0], rtol=1e-4, atol=1e-5)


def test_masks_of_the_user_stay(bert: nnef_jax.Model, embed: Batcher) -> None:
    """By name, by position, in a dict, as arrays of one length, and as lists of Python."""
    ids, positions = texts([5, 5])
    masks = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    arrays = np.stack(ids), np.stack(positions)
    expected = bert(*arrays, masks)
    for result in (
        embed(*arrays, masks),
        embed(*arrays, mask=masks),
        embed({"ids": arrays[0], "positions": arrays[1]}, mask=masks),
        embed(*(x.tolist() for x in arrays), masks.tolist()),
    ):
        np.testing.assert_allclose(result.states, expected.states, rtol=1e-4, atol=1e-5)
    whole = embed(*arrays)
    assert isinstance(whole.states, np.ndarray) and whole.states.shape == (2, 5, 32)
    np.testing.assert_allclose(whole.states[1], expected.states[1], rtol=1e-4, atol=1e-5)
    assert not np.allclose(whole.states[0], expected.states[0], atol=1e-3)


def pooling(onnx: Any) -> nnef_jax.Model:
    """Return a network that takes the mean of the vectors whose mask is 1."""
    helper, types = onnx.helper, onnx.TensorProto
    nodes = [
        ("Cast", ["mask"], "ones", {"to": types.FLOAT}), ("Unsqueeze", ["ones", "two"], "m", {}),
        ("Mul", ["x", "m"], "masked", {}), ("ReduceSum", ["masked", "one"], "sum", {"keepdims": 0}),
        ("ReduceSum", ["m", "one"], "count", {"keepdims": 0}), ("Div", ["sum", "count"], "y", {}),
    ]  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node(kind, read, [y], **more) for kind, read, y, more in nodes],
        "pooling",
        [
            helper.make_tensor_value_info("x", types.FLOAT, ("batch", "sequence", 3)),
            helper.make_tensor_value_info("mask", types.INT64, ("batch", "sequence")),
        ],
        [helper.make_tensor_value_info("y", types.FLOAT, ("batch", 3))],
        [onnx.numpy_helper.from_array(np.int64([i]), name) for i, name in ((1, "one"), (2, "two"))],
    )
    sets = [helper.make_opsetid("", 18)]
    return nnef_jax.load(helper.make_model(graph, opset_imports=sets).SerializeToString())


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=7))
def test_means_are_those_of_numpy(lengths: list[int]) -> None:
    model = _cached_pooling()
    items = [_RNG.standard_normal((n, 3)).astype(np.float32) for n in lengths]
    means = model(items)
    assert means.shape == (len(lengths), 3)
    np.testing.assert_allclose(means, [x.mean(0) for x in items], rtol=1e-4, atol=1e-5)


_POOLING: list[Batcher] = []


def _cached_pooling() -> Batcher:
    if not _POOLING:
        model = pooling(pytest.importorskip("onnx"))
        buckets = {"sequence": (5, 12)}
        _POOLING.append(model.batcher((1, 3), buckets=buckets, masks=["mask"]))
    return _POOLING[0]


_BY_ITEM = """version 1.0;
extension KHR_enable_operator_expressions;
extension tract_registry tract_core;
extension tract_symbol N;
extension tract_symbol S;
extension tract_symbol T;
graph g(x) -> (y)
{
    x = tract_core_external(shape = [N, S, T], datum_type = 'f32');
    y = %s;
}"""


def test_two_axes_of_items_that_stay_apart() -> None:
    """Without a mask, and with two axes, each of which has buckets of its own."""
    model = model_of(_BY_ITEM % "relu(x) * 2.0")
    double = model.batcher((2,), buckets={"T": (2, 7), "S": [3]})
    items = [_RNG.standard_normal((s, t)).astype(np.float32) for s, t in ((1, 7), (3, 2), (2, 3))]
    for y, x in zip(double(items), items, strict=True):
        np.testing.assert_allclose(y, np.maximum(x, 0) * 2)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("softmax(x, axes = [1])", "items along 'S' may depend on one another, by reduce_max"),
        ("mean_reduce(x, axes = [1])", "items along 'S' may depend on one another"),
        ("concat([x, x], axis = 1)", "axis 1 of output 'y' has 6 items if 'S' is 3, and 16 if it"),
    ],
)
def test_items_that_meet_need_a_mask(body: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        model_of(_BY_ITEM % body).batcher(buckets={"S": (3, 8)})


@pytest.mark.parametrize("length", [1, 8])
def test_a_network_that_takes_no_second_length(length: int) -> None:
    """One length does not tell which axes of the outputs have the bucket."""
    offsets = [[float(i) for i in range(8)]]
    text = f"""version 1.0;
extension KHR_enable_operator_expressions;
extension tract_registry tract_core;
extension tract_symbol N;
extension tract_symbol S;
graph g(x, mask) -> (y, total)
{{
    x = tract_core_external(shape = [N, S], datum_type = 'f32');
    mask = tract_core_external(shape = [N, S], datum_type = 'f32');
    y = x * mask + {offsets};
    total = sum_reduce(x * mask, axes = [1]);
}}"""
    model = model_of(text)
    with pytest.raises(nnef_jax.ShapeError, match=f"extents {length + 1} and 8 at axis 1"):
        model.batcher((2,), buckets={"S": (length,)}, masks="mask")
    totals = model.batcher((2,), buckets={"S": (1, 8)}, masks="mask")([[1.0], [2.0, 3.0]]).total
    np.testing.assert_array_equal(totals, [[1], [5]])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"buckets": {"s": (4,)}}, InputError, "no axis 's', the open ones are S"),
        ({"buckets": {"B": (4,)}}, InputError, "'B' is the batch, whose sizes are"),
        ({"buckets": {"S": ()}}, InputError, "lengths of 'S' must be numbers"),
        ({"buckets": {"S": (0, 4)}}, InputError, "lengths of 'S' must be numbers"),
        ({"buckets": {"S": (4.0,)}}, TypeError, "a length of 'S' must be"),
        ({"buckets": (4,)}, TypeError, "buckets must be a dict"),
        ({"buckets": {"S": (4,)}, "masks": "masc"}, InputError, "'masc', which is no input"),
        ({"masks": "mask"}, InputError, "'mask' has no axis of buckets"),
    ],
)
def test_wrong_buckets(bert: nnef_jax.Model, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        bert.batcher((1,), **options)


def test_wrong_items(embed: Batcher) -> None:
    ids, positions = texts([3, 17])
    for arguments, message in (
        ((ids, positions), "item 1: 'S' is 17, the largest bucket is 16"),
        ((ids[:1], [np.arange(4)]), "item 0: 'S' is 3 in 'ids', 4 in 'positions'"),
        ((ids, positions[:1]), "different numbers of items: ids 2, positions 1"),
        (([np.zeros((3, 2), int)], positions[:1]), "item 0: .*shape"),
        ((["ab"], positions[:1]), "item 0: "),
        (([], []), "there are no items"),
        ((ids[:1],), "item 0: .*missing"),
        ((ids[:1], positions[:1], ids[:1], ids[:1]), "4"),
    ):
        with pytest.raises(InputError, match=message):
            embed(*arguments)


def test_a_network_without_names_has_no_buckets() -> None:
    text = "version 1.0; graph g(x) -> (y) { x = external(shape = [1, 3]); y = relu(x); }"
    model = model_of(text, input_shapes={"x": (None, None)})
    with pytest.raises(InputError, match="the network has no open axes with names"):
        model.batcher(buckets={"S": (4,)})


def test_arrays_of_jax_are_items(bert: nnef_jax.Model, embed: Batcher) -> None:
    ids, positions = (jnp.asarray(np.stack(x)) for x in texts([4, 4]))
    np.testing.assert_allclose(
        embed(ids, positions).pooled, bert(ids, positions, jnp.ones((2, 4), int)).pooled, atol=1e-5
    )


def test_items_that_differ_along_an_axis_without_buckets() -> None:
    """They are computed apart, though their bucket is the same."""
    batcher = model_of(_BY_ITEM % "relu(x)").batcher((2,), buckets={"S": (4,)})
    items = [_RNG.normal(size=shape).astype(np.float32) for shape in ((3, 5), (4, 6))]
    results = batcher(items)
    for item, result in zip(items, results, strict=True):
        np.testing.assert_array_equal(result, np.maximum(item, 0))
