"""Derivatives by items of lists, where the padding behind the items has derivatives of NaN.

Networks are differentiated by finite differences of onnx's reference evaluator.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import nnef_jax

pytest.importorskip("onnx")

from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.onnx.models import model, node, tensor

BOOL, INT64, FLOAT = 9, 7, 1
X = np.float32([[0.3, 2], [-0.7, 4], [1.1, 7], [-1.2, -1], [0.5, 3]])
W = np.float32([[1.5, -0.5]])
MASKS = {
    "no item": np.zeros(5, bool), "one item": np.array([0, 1, 0, 0, 0], bool),
    "two items": np.array([1, 0, 0, 1, 0], bool), "all items": np.ones(5, bool),
}  # fmt: skip
DRAW = np.random.default_rng(0)
WEIGHTS: dict[str, Any] = {
    "axis": np.array([0]), "one": np.array([1]), "zero": np.array(0), "real_one": np.float32(1),
    "twice": np.array([2, 1]), "flat": np.array([-1]), "pairs": np.array([-1, 2]),
    "start": np.float32([5, 6]), "gates": DRAW.normal(size=(1, 6, 2)).astype(np.float32),
    "recurrent": DRAW.normal(size=(1, 6, 2)).astype(np.float32),
}  # fmt: skip
# "weighted" is r divided by 1 for its last item, 2 for the item before, and so on, and by 0 for the
# first padding.
WEIGH = [
    node("Shape", "r", "rows", start=0, end=1), node("ConstantOfShape", "rows", "zeros"),
    node("Add", "zeros real_one", "ones"), node("CumSum", "ones zero", "numbers"),
    node("Cast", "rows", "count", to=FLOAT), node("Sub", "count numbers", "numbers_after"),
    node("Add", "numbers_after real_one", "divisors"), node("Unsqueeze", "divisors one", "column"),
    node("Div", "r column", "weighted"), node("Sin", "weighted", "y"),
]  # fmt: skip


def scan(*nodes: Any) -> Any:
    """Return a scan of `it`, whose body computes "next" and "item" from "state" and "row"."""
    inputs = [tensor("state", (2,)), tensor("row", (2,))]
    outputs = [tensor("next", (2,)), tensor("item", (2,))]
    body = helper.make_graph(list(nodes), "body", inputs, outputs)
    return node("Scan", "start it", "last r", body=body, num_scan_inputs=1)


CASES: dict[str, list[Any]] = {
    "a row times each item": [node("Mul", "it w", "r")],
    "a row added to each item": [node("Add", "it w", "r")],
    "a row divided by each item": [node("Div", "w it", "r")],
    "centred items": [node("ReduceMean", "it axis", "mean", keepdims=1),
                      node("Sub", "it mean", "centred"), node("Mul", "centred w", "r")],
    "softmax": [node("Softmax", "it", "p", axis=0), node("Mul", "p w", "r")],
    "positive products": [node("Mul", "it w", "products"), node("Relu", "products", "r")],
    "softplus": [node("Softplus", "it", "p"), node("Mul", "p w", "r")],
    "running sums": [node("CumSum", "it zero", "sums"), node("Mul", "sums w", "r")],
    "running sums from the end": [node("CumSum", "it zero", "r", reverse=1)],
    "running sums before items": [node("CumSum", "it zero", "r", exclusive=1)],
    "items twice": [node("Tile", "it twice", "r")],
    "columns as rows": [node("Transpose", "it", "t", perm=[1, 0]), node("Reshape", "t flat", "u"),
                        node("Reshape", "u pairs", "r")],
    "differences by a scan": [scan(node("Sub", "row state", "item"),
                                   node("Identity", "row", "next"))],
    "quotients by a scan": [scan(node("Sub", "row state", "difference"),
                                 node("Reciprocal", "difference", "item"),
                                 node("Identity", "row", "next"))],
    "a scan that reads weights": [scan(node("Mul", "row w", "product"),
                                       node("Squeeze", "product axis", "item"),
                                       node("Mul", "state row", "next"))],
    "a recurrent cell": [node("Unsqueeze", "it one", "sequence"),
                         node("GRU", "sequence gates recurrent", "states", hidden_size=2),
                         node("Squeeze", "states one", "directions"),
                         node("Squeeze", "directions one", "r")],
}  # fmt: skip


CHOSEN_ROWS = [node("Compress", "x mask", "it", axis=0)]
FIRST_ROWS = [
    node("Cast", "mask", "numbers_of_mask", to=INT64), node("ReduceSum", "numbers_of_mask", "end"),
    node("Slice", "x axis end axis", "it"),
]  # fmt: skip


def network_of(case: str, choice: list[Any]) -> Any:
    """Return a file of ONNX that computes y from x, w and mask, which has 5 items.

    The nodes `choice` compute the list "it" from x and mask.
    """
    inputs = [tensor("x", X.shape), tensor("w", W.shape), tensor("mask", (5,), BOOL)]
    return model([*choice, *CASES[case], *WEIGH], inputs, [tensor("y", None)], WEIGHTS, 18)


def sum_by(file: Any) -> Any:
    """Return the sum of the items of y as a function of x, w and mask."""
    net = nnef_jax.load(file.SerializeToString())

    def total(x: Any, w: Any, mask: Any) -> Any:
        y, lengths = net.apply(net.params, x, w, mask, capture=net.lengths)
        (rows,) = lengths.values()
        is_item = jnp.arange(y.shape[0])[:, None] < rows[:, None]
        return jnp.where(is_item, y, 0).sum()

    return total


@pytest.mark.parametrize("case", CASES)
def test_derivatives_are_those_of_the_reference(case: str) -> None:
    file = network_of(case, CHOSEN_ROWS)
    reference = ReferenceEvaluator(file)

    def expected(x: np.ndarray, w: np.ndarray, mask: np.ndarray) -> float:
        if not mask.any():
            return 0  # a sum without items, which the reference does not compute for a scan
        (y,) = reference.run(None, {"x": x, "w": w, "mask": mask})
        return float(y.sum(dtype=np.float64))

    gradient = jax.jit(jax.grad(sum_by(file), (0, 1)))
    for name, mask in MASKS.items():
        for step, slopes in zip(("x", "w"), gradient(X, W, mask), strict=True):
            array = X if step == "x" else W
            for i in np.ndindex(array.shape):
                change = np.zeros_like(array)
                change[i] = 2**-7
                ends = [
                    expected(X + sign * change, W, mask)
                    if step == "x"
                    else expected(X, W + sign * change, mask)
                    for sign in (1, -1)
                ]
                difference = (ends[0] - ends[1]) / 2**-6
                message = f"{step}{list(i)} for {name}"
                np.testing.assert_allclose(slopes[i], difference, 2e-2, 5e-3, err_msg=message)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("choice", [CHOSEN_ROWS, FIRST_ROWS], ids=["chosen rows", "first rows"])
def test_counts_of_a_batch(case: str, choice: list[Any]) -> None:
    """The lists of a batch have other counts, and the same items."""
    total = sum_by(network_of(case, choice))
    masks = np.stack(list(MASKS.values()))
    of_one = jax.jit(jax.grad(total, (0, 1)))
    expected = jax.tree.map(lambda *x: np.sum(x, axis=0), *[of_one(X, W, mask) for mask in masks])
    of_batch = jax.jit(
        jax.grad(lambda x, w: jax.vmap(total, (None, None, 0))(x, w, masks).sum(), (0, 1))
    )
    for slopes, expected_slopes in zip(of_batch(X, W), expected, strict=True):
        np.testing.assert_allclose(slopes, expected_slopes, 1e-4, 1e-4)


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_counts_on_the_devices_of_a_mesh(case: str, checks: bool) -> None:
    """Each device has masks of its own. The gradient by shared items is summed."""
    total = sum_by(network_of(case, FIRST_ROWS))
    masks = np.stack(list(MASKS.values()))
    expected = jax.tree.map(
        lambda *x: np.sum(x, axis=0), *[jax.grad(total, (0, 1))(X, W, mask) for mask in masks]
    )
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    over_mesh = jax.shard_map(
        lambda x, w, masks: lax.psum(jax.vmap(total, (None, None, 0))(x, w, masks).sum(), "d"),
        mesh=mesh, in_specs=(P(), P(), P("d")), out_specs=P(), check_vma=checks,
    )  # fmt: skip
    slopes = jax.jit(jax.grad(over_mesh, (0, 1)))(X, W, masks)
    for x, expected_slopes in zip(slopes, expected, strict=True):
        np.testing.assert_allclose(x, expected_slopes, 1e-4, 1e-4)


@pytest.mark.parametrize("case", CASES)
def test_second_derivatives(case: str) -> None:
    """Products of the Hessian and a direction, in both modes, are those of finite differences."""
    gradient = jax.grad(sum_by(network_of(case, CHOSEN_ROWS)), (0, 1))
    random = np.random.default_rng(1)
    direction = tuple(random.normal(size=z.shape).astype(np.float32) for z in (X, W))

    def slope(x: Any, w: Any, mask: Any) -> Any:
        slopes = gradient(x, w, mask)
        return sum(jnp.vdot(a, b) for a, b in zip(slopes, direction, strict=True))

    @jax.jit
    def products(mask: Any) -> Any:
        by_jvp = jax.jvp(lambda *z: gradient(*z, mask), (X, W), direction)[1]
        step = 2**-7
        ends = [
            gradient(*(z + sign * step * d for z, d in zip((X, W), direction, strict=True)), mask)
            for sign in (1, -1)
        ]
        differences = jax.tree.map(lambda a, b: (a - b) / (2 * step), *ends)
        return by_jvp, jax.grad(slope, (0, 1))(X, W, mask), differences

    for name, mask in MASKS.items():
        *derivatives, differences = products(mask)
        for derivative in derivatives:
            for x, expected in zip(derivative, differences, strict=True):
                np.testing.assert_allclose(x, expected, 2e-2, 2e-2, err_msg=name)


def test_running_products_have_derivatives_beside_much_padding() -> None:
    """The derivatives of 10 + 10 * 20 are 1 + 20 and 10. The product of 200 items overflows."""
    x = np.zeros(200, np.float32)
    x[:2] = 10, 20
    mask = np.arange(200) < 2
    nodes = [node("Compress", "x mask", "it", axis=0), node("CumProd", "it zero", "y")]
    inputs = [tensor("x", x.shape), tensor("mask", (200,), BOOL)]
    file = model(nodes, inputs, [tensor("y", None)], {"zero": np.array(0)}, 26)
    net = nnef_jax.load(file.SerializeToString())
    slopes = jax.grad(lambda x: net.apply(net.params, x, mask)[:2].sum())(x)
    np.testing.assert_allclose(slopes, [21, 10, *[0] * 198], rtol=1e-6)
