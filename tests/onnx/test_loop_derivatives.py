"""Derivatives of loops with a computed number of iterations, whose states keep their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax

pytest.importorskip("onnx")

from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.onnx.models import model, node, tensor

BOOL, INT64 = 9, 7
X = np.float32([[1, 2], [3, 4], [5, 7], [6, -1]])
MASKS = [np.array([True, False, True, True]), np.zeros(4, bool), np.ones(4, bool)]
WEIGHTS: dict[str, Any] = {
    "axis": np.array([0]), "w": np.float32([[1.1, 0.2], [0.3, 0.9]]), "yes": np.array(True),
    "one": np.array(1), "most": np.float32(12), "start": np.array(0), "two": np.array(2),
}  # fmt: skip
COUNT = [node("Cast", "mask", "numbers", to=INT64),
         node("ReduceSum", "numbers axis", "count", keepdims=0)]  # fmt: skip
CHOSEN = [node("Compress", "x mask", "chosen", axis=0),
          node("Shape", "chosen", "length", start=0, end=1),
          node("Squeeze", "length axis", "rows")]  # fmt: skip
STEP = [node("MatMul", "s w", "product"), node("Sin", "product", "sine")]


def loop(count: str, nodes: Sequence[Any], states: str = "s", first: str = "x") -> Any:
    """Return a loop. The body computes "goes_on" and "next_s", ... from the states "s", ..."""
    names = states.split()
    inputs = [tensor("i", (), INT64), tensor("go", (), BOOL)]
    inputs += [tensor(name, None) for name in names]
    outputs = [tensor("goes_on", None, BOOL), *(tensor(f"next_{name}", None) for name in names)]
    body = helper.make_graph(list(nodes), "body", inputs, outputs)
    results = ["y", *(f"unread_{name}" for name in names[1:])]
    return node("Loop", f"{count} yes {first}", " ".join(results), body=body)


GO = node("Identity", "go", "goes_on")
CASES: dict[str, list[Any]] = {
    "as many iterations as true items": [
        *COUNT,
        loop("count", [GO, *STEP, node("Gather", "x i", "row", axis=0),
                       node("Add", "sine row", "next_s")]),
    ],
    "an iteration for each item of a list, which the body reads": [
        *CHOSEN,
        loop("rows", [GO, *STEP, node("Gather", "chosen i", "row", axis=0),
                      node("ReduceSum", "chosen axis", "total"), node("Mul", "row total", "more"),
                      node("Add", "sine more", "next_s")]),
    ],
    "at most as many iterations as true items, until a sum is reached": [
        *COUNT,
        loop("count", [*STEP, node("Add", "s sine", "next_s"),
                       node("ReduceSum", "next_s", "sum", keepdims=0),
                       node("Less", "sum most", "goes_on")]),
    ],
    "a number that may be negative": [
        *COUNT,
        node("Sub", "count two", "fewer"),
        loop("fewer", [GO, *STEP, node("Gather", "x i", "row", axis=0),
                       node("Add", "sine row", "next_s")]),
    ],
    "a state of integers": [
        *COUNT,
        loop("count", [GO, node("Gather", "x k", "row", axis=0), node("Mul", "s row", "more"),
                       node("Sin", "more", "next_s"), node("Sub", "one k", "next_k")],
             "s k", "x start"),
    ],
    "a loop in a loop": [
        *COUNT,
        node("Identity", "x", "first"),
        loop("count", [GO, node("Loop", "count yes s", "next_s", body=helper.make_graph(
            [node("Identity", "inner_go", "inner_goes_on"), node("MatMul", "t w", "u"),
             node("Sin", "u", "next_t")], "inner",
            [tensor("j", (), INT64), tensor("inner_go", (), BOOL), tensor("t", None)],
            [tensor("inner_goes_on", None, BOOL), tensor("next_t", None)]))]),
    ],
}  # fmt: skip


def load(nodes: Sequence[Any]) -> tuple[Any, Any]:
    inputs = [tensor("x", X.shape), tensor("mask", (4,), BOOL)]
    file = model(nodes, inputs, [tensor("y", None)], WEIGHTS, 18)
    return nnef_jax.load(file.SerializeToString()), ReferenceEvaluator(file)


@pytest.mark.parametrize("case", CASES)
def test_derivatives_in_reverse_mode(case: str) -> None:
    net, reference = load(CASES[case])

    def total(params: Any, x: Any, mask: Any) -> Any:
        return jnp.sum(jnp.cos(net.apply(params, x, mask)))

    params = net.params
    gradients = jax.jit(jax.vmap(jax.grad(total, (0, 1)), (None, None, 0)))
    by_params, by_x = gradients(params, X, np.stack(MASKS))
    forwards = jax.jit(jax.vmap(jax.jacfwd(total, (0, 1)), (None, None, 0)))
    for x, y in zip(
        jax.tree.leaves((by_params, by_x)),
        jax.tree.leaves(forwards(params, X, np.stack(MASKS))),
        strict=True,
    ):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)

    def total_of_all(x: Any) -> Any:
        return jnp.sum(jax.vmap(total, (None, None, 0))(params, x, np.stack(MASKS)))

    np.testing.assert_allclose(jax.grad(total_of_all)(X), by_x.sum(0), rtol=1e-4, atol=1e-4)
    for mask, gradient in zip(MASKS, by_x, strict=True):
        (array,) = reference.run(None, {"x": X, "mask": mask})
        np.testing.assert_allclose(net(X, mask), array, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(jax.grad(total, 1)(params, X, mask), gradient, 1e-4, 1e-4)
        step = np.zeros_like(X)
        step[2, 1] = 2**-8
        difference = total(params, X + step, mask) - total(params, X - step, mask)
        np.testing.assert_allclose(gradient[2, 1], difference / 2**-7, rtol=2e-2, atol=2e-2)


def test_a_run_without_derivatives_has_as_many_iterations_as_the_count() -> None:
    """The program has a loop that ends by the count, and no branch that skips iterations."""
    net, _ = load(CASES["as many iterations as true items"])
    text = jax.jit(net.apply).lower(net.params, X, MASKS[0]).as_text()
    assert text.count("stablehlo.while") == 1
    assert "stablehlo.case" not in text and "stablehlo.if" not in text


def test_second_derivatives() -> None:
    net, _ = load(CASES["as many iterations as true items"])

    def total(x: Any) -> Any:
        return jnp.sum(net(x, MASKS[0]) ** 2)

    np.testing.assert_allclose(
        jax.jit(jax.hessian(total))(X), jax.jit(jax.jacfwd(jax.jacfwd(total)))(X), 1e-3, 1e-3
    )


def test_a_count_without_a_bound_is_refused() -> None:
    inputs = [tensor("x", X.shape), tensor("m", (), INT64)]
    file = model([loop("m", [GO, *STEP, node("Identity", "sine", "next_s")])], inputs,
                 [tensor("y", None)], WEIGHTS, 18)  # fmt: skip
    net = nnef_jax.load(file.SerializeToString())
    with pytest.raises(nnef_jax.UnsupportedError, match="'loop' has no derivatives in reverse"):
        jax.grad(lambda x: jnp.sum(net(x, 3)))(X)


def test_an_export_for_any_length(tmp_path: Path) -> None:
    nodes = CASES["an iteration for each item of a list, which the body reads"]
    inputs = [tensor("x", ("r", 2)), tensor("mask", ("r",), BOOL)]
    file = model(nodes, inputs, [tensor("y", None)], WEIGHTS, 18)
    net = nnef_jax.load(file.SerializeToString())
    path = tmp_path / "net.jaxexport"
    net.export(path, params="beside", platforms=["cpu"])
    exported = jax.export.deserialize(path.read_bytes())
    for rows in (4, 3, 1):
        x = X[:rows]
        for mask in MASKS:
            (array,) = ReferenceEvaluator(file).run(None, {"x": x, "mask": mask[:rows]})
            y = exported.call(net.params, x, mask[:rows])
            np.testing.assert_allclose(y, array, rtol=1e-5, atol=1e-5)
