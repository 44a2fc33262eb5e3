"""Graphs of nodes: chosen, repeated by count or condition, written out; scans; what is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import NnefError, ShapeError

pytest.importorskip("onnx")

from onnx import helper, numpy_helper

from tests.onnx.models import FLOAT, INT, model, node, tensor

BOOL = 9
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def graph(nodes: Any, inputs: Any, outputs: str, **weights: Any) -> Any:
    return helper.make_graph(
        nodes, "body", inputs, [tensor(name, None) for name in outputs.split()],
        [numpy_helper.from_array(np.asarray(x), name) for name, x in weights.items()],
    )  # fmt: skip


def chosen() -> Any:
    """Return x times or plus a tensor of the same name in both branches, which also read w."""
    w = np.float32([1, 2, 3])
    nodes = [[node("Mul", "x a", "m"), node("Add", "m w", "r")], [node("Add", "x a", "r")]]
    names = ("then_branch", "else_branch")
    values = (np.float32([[2], [3]]), np.float32([[5], [7]]))
    branches = {
        name: graph(n, [], "r", a=a) for name, n, a in zip(names, nodes, values, strict=True)
    }
    return model(
        [node("ReduceSum", "x", "s", keepdims=0), node("Greater", "s t", "c"),
         node("If", "c", "y", **branches)],
        weights={"w": w, "t": np.float32(10)},
    )  # fmt: skip


def test_one_of_two_graphs_is_computed() -> None:
    network = nnef_jax.load(chosen())
    many = 2 * X
    np.testing.assert_allclose(network(many), many * [[2], [3]] + [1, 2, 3])
    np.testing.assert_allclose(network(X / 9), X / 9 + [[5], [7]], rtol=1e-6)
    both = jax.vmap(network)(np.stack([many, X / 9]))
    np.testing.assert_allclose(both[1], X / 9 + [[5], [7]], rtol=1e-6)
    slope = jax.grad(lambda x: jnp.sum(network(x)))(many)
    np.testing.assert_allclose(slope, np.broadcast_to([[2.0], [3.0]], (2, 3)))


def test_branches_of_other_shapes_are_refused() -> None:
    found = chosen()
    body = found.graph.node[2].attribute[1].g
    body.node.append(node("Unsqueeze", "r zero", "q"))
    body.initializer.append(numpy_helper.from_array(np.int64([0]), "zero"))
    body.output[0].name = "q"
    with pytest.raises(NnefError, match="one branch has"):
        nnef_jax.load(found)


def halves(rate: Any, *, swapped: bool = False) -> Any:
    """Return x times a matrix of as many rows as a rate says: each branch takes one width."""
    wide, narrow = np.full((4, 2), 3, np.float32), np.full((2, 2), 5, np.float32)
    branches = [graph([node("MatMul", "x w", "r")], [], "r", w=w) for w in (wide, narrow)]
    then, other = reversed(branches) if swapped else branches
    chosen = [node("Equal", rate, "c"), node("If", "c", then_branch=then, else_branch=other)]
    inputs = [tensor("x", ("n", "w")), tensor("rate", (), INT)]
    return model(chosen, inputs, weights={"k": np.int64(16)})


def test_a_branch_that_does_not_fit_is_left_out_by_values() -> None:
    for rate, width, number in ((16, 4, 3), (8, 2, 5)):
        x = np.ones((1, width), np.float32)
        network = nnef_jax.load(halves("rate k"), values={"rate": rate})
        np.testing.assert_array_equal(network(x), np.full((1, 2), width * number))
    for swapped in (False, True):
        network = nnef_jax.load(halves("rate k", swapped=swapped))
        with pytest.raises(ShapeError, match="MatMul") as error:
            network(np.ones((1, 4), np.float32), 16)
        assert "the other branch fits" in error.value.hint
        assert "values={'rate': ...}" in error.value.hint


def test_values_are_named_where_they_help_alone() -> None:
    """Where neither branch fits they do not, nor for a condition of a tensor of several axes."""
    with pytest.raises(ShapeError, match="MatMul") as error:
        nnef_jax.load(halves("rate k"))(np.ones((1, 3), np.float32), 16)
    assert "values" not in error.value.hint
    made = halves("m k")
    made.graph.node.insert(0, node("ReduceMax", "x", "top", keepdims=0))
    made.graph.node.insert(1, node("Cast", "top", "m", to=INT))
    with pytest.raises(ShapeError, match="MatMul") as error:
        nnef_jax.load(made)(np.ones((1, 4), np.float32), 16)
    assert "values" not in error.value.hint


def test_values_are_named_for_a_choice_in_a_choice() -> None:
    made = halves("rate k")
    inner = graph([*made.graph.node[:]], [], "y")
    both = graph([node("Relu", "x", "y")], [], "y")
    del made.graph.node[:]
    made.graph.node.append(node("Greater", "rate zero", "p"))
    made.graph.node.append(node("If", "p", then_branch=inner, else_branch=both))
    made.graph.initializer.append(numpy_helper.from_array(np.int64(0), "zero"))
    with pytest.raises(ShapeError, match="MatMul") as error:
        nnef_jax.load(made)(np.ones((1, 4), np.float32), 16)
    assert error.value.hint.count("values={'rate': ...}") == 2


def test_the_hint_about_shapes_is_for_errors_of_shapes() -> None:
    """A count that a call gives decides a shape, whatever the open extent of x is."""
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s zero", "e"), node("Range", "zero e one", "r"),
        node("ConstantOfShape", "n", "c"), node("Add", "r c"),
    ]  # fmt: skip
    inputs = [tensor("x", ("b",)), tensor("n", (1,), INT)]
    known = {"zero": np.int64(0), "one": np.int64(1)}
    with pytest.raises(NnefError, match="'n' is computed") as error:
        nnef_jax.load(model(nodes, inputs, weights=known))
    assert error.value.hint == "load(..., values={'n': ...}) makes it known"


def loop(body: Any, inputs: str, outputs: str, *, known: Any = None, ports: Any = None) -> Any:
    return nnef_jax.load(
        model(
            [node("Loop", inputs, outputs, body=body)],
            inputs=[tensor("x"), *(ports or [])],
            outputs=[tensor(name, None) for name in outputs.split()],
            weights=known or {},
        )
    )


_TURN = [tensor("i", (), INT), tensor("c", (), BOOL)]


def doubling(last: Any) -> Any:
    """Return a body: s becomes 2 s + i, and s is shown; `last` says whether it goes on."""
    nodes = [
        node("Cast", "i", "f", to=FLOAT), node("Add", "s s", "d"), node("Add", "d f", "n"),
        node("Identity", "s", "shown"), *last,
    ]  # fmt: skip
    return graph(nodes, [*_TURN, tensor("s", None)], "go n shown")


def repeated(x: Any, count: int) -> tuple[Any, Any]:
    seen = []
    for i in range(count):
        seen.append(x)
        x = 2 * x + i
    return x, np.array(seen)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_known_count_is_a_scan(count: int) -> None:
    network = loop(
        doubling([node("Identity", "c", "go")]), "m _ x", "y z", known={"m": np.int64(count)}
    )
    y, z = network(X)
    wanted, seen = repeated(X, count)
    np.testing.assert_allclose(y, wanted)
    np.testing.assert_allclose(z, seen.reshape(count, 2, 3))
    slope = jax.grad(lambda x: jnp.sum(network(x).y))(X)
    np.testing.assert_allclose(slope, np.full_like(X, 2.0**count))


def test_a_computed_condition_ends_a_loop() -> None:
    last = [node("ReduceMax", "n", "top", keepdims=0), node("Less", "top limit", "go")]
    body = doubling(last)
    body.output.pop()
    body.initializer.append(numpy_helper.from_array(np.float32(100), "limit"))
    network = loop(body, "_ _ x", "y")
    wanted, count = X, 0
    while not count or wanted.max() < 100:
        wanted, count = 2 * wanted + count, count + 1
    np.testing.assert_allclose(network(X), wanted)
    many = jax.vmap(network)(np.stack([X, 4 * X]))
    np.testing.assert_allclose(many[0], wanted)


def test_a_condition_false_before_or_after_ends_it() -> None:
    stops = [node("Constant", "", "go", value=numpy_helper.from_array(np.array(False)))]
    body = doubling(stops)
    body.output.pop()
    np.testing.assert_allclose(loop(body, "_ _ x", "y")(X), 2 * X)
    false = {"b": np.array(False)}
    np.testing.assert_allclose(loop(body, "_ b x", "y", known=false)(X), X)


def test_a_count_may_be_computed() -> None:
    body = doubling([node("Identity", "c", "go")])
    body.output.pop()
    network = loop(body, "m _ x", "y", ports=[tensor("m", (), INT)])
    for count in (0, 3):
        np.testing.assert_allclose(network(X, np.int32(count)), repeated(X, count)[0])


def test_a_state_may_grow() -> None:
    nodes = [node("Concat", "s x", "n", axis=0), node("Identity", "c", "go")]
    body = graph(nodes, [*_TURN, tensor("s", None)], "go n")
    network = loop(body, "m _ x", "y", known={"m": np.int64(3)})
    np.testing.assert_allclose(network(X), np.concatenate([X] * 4))


def test_what_a_computed_count_would_give_a_size_to_is_refused() -> None:
    body = doubling([node("Identity", "c", "go")])
    with pytest.raises(NnefError, match="input 0 'm' is computed") as error:
        loop(body, "m _ x", "y z", ports=[tensor("m", (), INT)])
    assert "values={'m': ...}" in error.value.hint
    last = [node("ReduceMax", "n", "top", keepdims=0), node("Less", "top top", "go")]
    with pytest.raises(NnefError, match="the number of its iterations depends on values"):
        loop(doubling(last), "_ _ x", "y z")


def test_the_states_of_a_loop_are_counted() -> None:
    body = doubling([node("Identity", "c", "go")])
    with pytest.raises(NnefError, match="its body has 3 inputs and 3 outputs for 2 states"):
        loop(body, "m _ x x", "y z", known={"m": np.int64(3)})


def scan(version: int, inputs: str, x: Any, s: Any, **attributes: Any) -> Any:
    """Return a network of sums of rows so far, which are states, and of their doubles."""
    nodes = [node("Add", "s r", "n"), node("Add", "n n", "d")]
    body = graph(nodes, [tensor("s", None), tensor("r", None)], "n d")
    return nnef_jax.load(
        model(
            [node("Scan", inputs, "y z", body=body, num_scan_inputs=1, **attributes)],
            inputs=[tensor("x", x.shape), tensor("s0", s.shape)],
            outputs=[tensor("y", None), tensor("z", None)],
            version=version,
        )
    )(x, s)


def test_a_scan_goes_along_an_axis_either_way() -> None:
    s = np.float32([1, 2])
    y, z = scan(
        9, "s0 x", X, s, scan_input_axes=[-1], scan_input_directions=[1], scan_output_axes=[1],
        scan_output_directions=[1],
    )  # fmt: skip
    sums = s[:, None] + np.cumsum(X[:, ::-1], axis=1)
    np.testing.assert_allclose(y, sums[:, -1])
    np.testing.assert_allclose(z, 2 * sums[:, ::-1])


def test_a_scan_of_version_8_has_batches() -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    s = np.float32([[1, 2], [3, 4]])
    y, z = scan(8, "_ s0 x", x, s)
    sums = s[:, None] + np.cumsum(x, axis=1)
    np.testing.assert_allclose(y, sums[:, -1])
    np.testing.assert_allclose(z, 2 * sums)


def test_a_function_that_depends_on_types_has_the_defaults_of_attributes() -> None:
    network = nnef_jax.load(
        model([node("LinearAttention", "x x x", update_rule="linear", q_num_heads=1,
                    kv_num_heads=1)], inputs=[tensor("x", (1, 2, 3))], version=27)
    )  # fmt: skip
    x = X[None]
    memory = np.cumsum(x[0, :, :, None] * x[0, :, None], axis=0)
    wanted = np.einsum("td,tde->te", x[0], memory) / np.sqrt(3)
    np.testing.assert_allclose(network(x)[0], wanted, rtol=1e-5)
