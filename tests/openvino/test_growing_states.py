"""Loops whose states change their shape in each iteration, compared with OpenVINO's runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax

openvino = pytest.importorskip("openvino")

from openvino import opset13 as op  # noqa: E402 - after the check that it is installed

from tests.differences import assert_slopes  # noqa: E402

X = np.float32([[1, 2], [3, 4], [5, 7], [6, -1]])
# A mask with items comes first: without iterations, the runtime returns joined outputs of the call
# before.
MASKS = [np.array([True, False, True, True]), np.array([False, True, False, False]),
         np.ones(4, bool)]  # fmt: skip
NONE = np.zeros(4, bool)
Node = Any


def number(value: Any) -> Node:
    return op.constant(np.array(value))


def items(mask: Node) -> Node:
    """The number of true items."""
    return op.reduce_sum(op.convert(mask, "i64"), number([0]), False)


def chosen(rows: Node) -> Node:
    """The rows whose first number is more than 2."""
    column = op.gather(rows, number(0), number(1))
    stays = op.convert(op.greater(column, number(np.float32(2))), "i64")
    return op.gather(rows, op.squeeze(op.non_zero(stays, "i64"), number([0])), number(0))


def total(rows: Node) -> Node:
    return op.reduce_sum(rows, number([0, 1]), False)


def always(_: Node) -> Node:
    return number(True)


def until_11(rows: Node) -> Node:
    return op.less(total(rows), number(np.float32(11)))


def loop(
    grow: Callable[[Node, Node], Node],
    count: int | None = None,
    goes_on: Callable[[Node], Node] = always,
    joins: bool = False,
) -> Any:
    """A loop with one state, to which `grow` applies a row of x in each iteration.

    There are `count` iterations, or as many as the mask has true items.
    """
    x, mask = op.parameter([4, 2], np.float32, "x"), op.parameter([4], np.bool_, "mask")
    most = items(mask) if count is None else number(count)
    i, state = op.parameter([], np.int64), op.parameter([-1, 2], np.float32)
    rows = op.parameter([4, 2], np.float32)
    place = op.mod(i, number(4))
    row = op.unsqueeze(op.gather(rows, place, number(0)), number([0]))
    after = grow(state, row)
    node = op.loop(most, number(True))
    node.set_function(openvino.Model([goes_on(after), after, row], [i, state, rows], "body"))
    node.set_special_body_ports([0, 0])
    node.set_merged_input(state, number(np.float32([[1, 1]])).output(0), after.output(0))
    node.set_invariant_input(rows, x.output(0))
    results = [node.get_iter_value(after.output(0), -1)]
    if joins:
        results.append(node.get_concatenated_slices(row.output(0), 0, 1, 1, -1, 0))
    return openvino.Model(results, [x, mask], "net")


def append(rows: Node, row: Node) -> Node:
    return op.concat([rows, row], 0)


def append_and_choose(rows: Node, row: Node) -> Node:
    return chosen(append(rows, row))


CASES: dict[str, Callable[[], Any]] = {
    "three rows": lambda: loop(append, 3),
    "seventy rows": lambda: loop(append, 70),
    "rows until a condition": lambda: loop(append, 4, until_11),
    "as many rows as a mask has": lambda: loop(append),
    "rows that are joined too": lambda: loop(append, joins=True),
    "rows that are joined until a condition": lambda: loop(append, None, until_11, joins=True),
    "large rows of three": lambda: loop(append_and_choose, 3),
    "large rows": lambda: loop(append_and_choose, joins=True),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_loops_are_those_of_the_runtime(case: str, tmp_path: Path) -> None:
    file = CASES[case]()
    openvino.save_model(file, tmp_path / "net.xml", compress_to_fp16=False)
    runtime = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    net = nnef_jax.load(tmp_path / "net.xml")

    def total(x: Any, mask: Any) -> Any:
        return sum(jax.numpy.nansum(y**2) for y in jax.tree.leaves(net(x, mask)))

    gradients = jax.jit(jax.vmap(jax.grad(total), (None, 0)))(X, np.stack(MASKS))
    for mask, gradient in zip(MASKS, gradients, strict=True):
        for y, array in zip(outputs_of(net, mask), runtime([X, mask]).values(), strict=True):
            np.testing.assert_array_equal(y, array)
        assert_slopes(partial(total, mask=mask), X, gradient)


@pytest.mark.parametrize("count", [0, None])
def test_no_iterations(count: int | None, tmp_path: Path) -> None:
    openvino.save_model(loop(append, count), tmp_path / "net.xml")
    (state,) = outputs_of(nnef_jax.load(tmp_path / "net.xml"), NONE)
    np.testing.assert_array_equal(state, [[1, 1]])


def test_no_iterations_join_no_rows(tmp_path: Path) -> None:
    openvino.save_model(loop(append, joins=True), tmp_path / "net.xml")
    _, joined = outputs_of(nnef_jax.load(tmp_path / "net.xml"), NONE)
    assert joined.shape == (0, 2)


def parts(cut: Node, *inputs: Node, backwards: bool, count: Node | None = None) -> Any:
    """A layer that puts the rows of `cut` before its state: a Loop if it has a count.

    Its outputs are the state and the rows. The runtime runs no TensorIterator whose state grows.
    """
    state, part = op.parameter([-1, 2], np.float32), op.parameter([1, 2], np.float32)
    after = op.concat([part, state], 0)
    node = op.tensor_iterator() if count is None else op.loop(count, number(True))
    results = [after, part] if count is None else [number(True), after, part]
    node.set_function(openvino.Model(results, [state, part], "body"))
    if count is not None:
        node.set_special_body_ports([-1, 0])
    node.set_merged_input(state, number(np.float32([[1, 1]])).output(0), after.output(0))
    start, step, end = (-1, -1, 0) if backwards else (0, 1, -1)
    node.set_sliced_input(part, cut.output(0), start, step, 1, end, 0)
    outputs = [
        node.get_iter_value(after.output(0), -1),
        node.get_concatenated_slices(part.output(0), 0, 1, 1, -1, 0),
    ]
    return openvino.Model(outputs, [*inputs], "net")


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("most", [None, -1, 2, 3, 9])
def test_rows_of_a_list_are_put_first(most: int | None, backwards: bool, tmp_path: Path) -> None:
    x, mask = op.parameter([4, 2], np.float32, "x"), op.parameter([4], np.bool_, "mask")
    places = op.squeeze(op.non_zero(op.convert(mask, "i64"), "i64"), number([0]))
    rows = op.gather(x, places, number(0))
    count = None if most is None else number(most)
    file = parts(rows, x, mask, backwards=backwards, count=count)
    openvino.save_model(file, tmp_path / "net.xml", compress_to_fp16=False)
    net = nnef_jax.load(tmp_path / "net.xml")
    for items in [*MASKS, NONE]:
        steps = X[items][::-1] if backwards else X[items]
        steps = steps[:most] if most and most > 0 else steps
        state, joined = outputs_of(net, items)
        np.testing.assert_array_equal(state, [*steps[::-1], [1, 1]])
        np.testing.assert_array_equal(joined, steps)


def test_parts_of_a_list_are_single_items(tmp_path: Path) -> None:
    x, mask = op.parameter([4, 2], np.float32, "x"), op.parameter([4], np.bool_, "mask")
    places = op.squeeze(op.non_zero(op.convert(mask, "i64"), "i64"), number([0]))
    file = parts(op.gather(x, places, number(0)), x, mask, backwards=False)
    openvino.save_model(file, tmp_path / "net.xml")
    text = (tmp_path / "net.xml").read_text()
    (tmp_path / "net.xml").write_text(text.replace('start="0" end="-1"', 'start="1" end="-1"', 1))
    with pytest.raises(nnef_jax.SemanticError, match="each part must be a single item"):
        nnef_jax.load(tmp_path / "net.xml")


@pytest.mark.parametrize("merged", [False, True])
def test_a_condition_that_the_body_passes_on(merged: bool, tmp_path: Path) -> None:
    state, go = op.parameter([2], np.float32, "s"), op.parameter([], np.bool_, "go")
    s, inner = op.parameter([2], np.float32), op.parameter([], np.bool_)
    after = op.add(s, number(np.float32(1)))
    node = op.loop(number(5), number(True))
    node.set_function(openvino.Model([inner, after], [s, inner], "body"))
    node.set_special_body_ports([-1, 0])
    node.set_merged_input(s, state.output(0), after.output(0))
    if merged:
        node.set_merged_input(inner, go.output(0), inner.output(0))
    else:
        node.set_invariant_input(inner, go.output(0))
    file = openvino.Model([node.get_iter_value(after.output(0), -1)], [state, go], "net")
    openvino.save_model(file, tmp_path / "net.xml")
    net = nnef_jax.load(tmp_path / "net.xml")
    for goes_on, iterations in [(True, 5), (False, 1)]:
        np.testing.assert_array_equal(net(X[0], np.array(goes_on)), X[0] + iterations)


def test_a_known_number_of_parts_needs_no_length(tmp_path: Path) -> None:
    x = op.parameter([4, 2], np.float32, "x")
    openvino.save_model(parts(x, x, backwards=True), tmp_path / "net.xml", compress_to_fp16=False)
    net = nnef_jax.load(tmp_path / "net.xml")
    assert not net.lengths
    state, joined = net(X)
    np.testing.assert_array_equal(state, [*X, [1, 1]])
    np.testing.assert_array_equal(joined, X[::-1])


def test_a_known_number_of_rows_needs_no_length(tmp_path: Path) -> None:
    openvino.save_model(loop(append, 70), tmp_path / "net.xml")
    net = nnef_jax.load(tmp_path / "net.xml")
    assert net.outputs[0].shape == (71, 2)
    assert not net.lengths


def test_a_state_beside_states_that_are_exchanged(tmp_path: Path) -> None:
    """All three states get the same room. The last one does not fill it."""
    inner = [op.parameter([-1, 2], np.float32) for _ in range(3)]
    row = number(np.float32([[3, 4]]))
    after = [append(inner[1], row), inner[0], append(inner[2], row)]
    node = op.loop(number(70), number(True))
    node.set_function(openvino.Model([number(True), *after], inner, "body"))
    node.set_special_body_ports([-1, 0])
    x = op.parameter([4, 2], np.float32, "x")
    first = number(np.float32([[1, 1]]))
    for state, start, value in zip(inner, (x, first, first), after, strict=True):
        node.set_merged_input(state, start.output(0), value.output(0))
    file = openvino.Model([node.get_iter_value(v.output(0), -1) for v in after], [x], "net")
    openvino.save_model(file, tmp_path / "net.xml", compress_to_fp16=False)
    net = nnef_jax.load(tmp_path / "net.xml")
    outputs, lengths = net(X, capture=net.lengths)
    rows = 35 * [[3, 4]]  # each of the exchanged states gets a row in every second iteration
    expected = [[*X, *rows], [[1, 1], *rows], [[1, 1], *rows, *rows]]
    for y, array in zip(nnef_jax.trim(outputs, lengths), expected, strict=True):
        np.testing.assert_array_equal(y, array)


def test_a_state_without_a_largest_size_is_refused(tmp_path: Path) -> None:
    openvino.save_model(loop(lambda rows, _: append(rows, rows)), tmp_path / "net.xml")
    message = r"\(Loop\).*no bound is known for the number of items of axis 0 of state 0"
    with pytest.raises(nnef_jax.SemanticError, match=message):
        nnef_jax.load(tmp_path / "net.xml")


def outputs_of(net: nnef_jax.Model, mask: Any) -> list[Any]:
    """Return the outputs for X and a mask, cut to their numbers of items."""
    outputs, lengths = net(X, mask, capture=net.lengths)
    trimmed = nnef_jax.trim(outputs, lengths)
    return list(trimmed) if isinstance(trimmed, tuple) else [trimmed]
