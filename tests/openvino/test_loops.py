"""Loops that a computed count or condition ends, and bodies in bodies, against plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax import UnsupportedError
from tests.openvino.documents import Writer
from tests.openvino.layers import shows

END = 20.0


def inside(body: Writer, ports: str, back: str = "") -> str:
    layers, edges = "".join(body.layers), "".join(body.edges)
    back = f"<back_edges>{back}</back_edges>"
    return f"<port_map>{ports}</port_map>{back}<body><layers>{layers}</layers><edges>{edges}</edges></body>"  # noqa: E501


def loop(
    count: int | None, *, below: bool = True, joins: bool = False, cuts: bool = False
) -> Writer:
    """h = 1.5 h + x + turn, `below` END at most; `count` None is an input, x is cut if it `cuts`.

    Inputs are h, x and what is no constant of count and the condition to begin.
    """
    body, net = Writer(), Writer()
    h, x = body.input("h", (2,)), body.input("x", (1, 2) if cuts else (2,))
    turn = body.input("turn", (), "i64")
    row = body.layer("Squeeze", [x, body.constant(np.array([0]))], [(2,)]) if cuts else x
    number = body.layer("Convert", [turn], [()], attributes={"destination_type": "f32"})
    total = body.layer("Multiply", [h, body.constant(np.float32(1.5), "b/half")], [(2,)])
    total = body.layer("Add", [body.layer("Add", [total, row], [(2,)]), number], [(2,)])
    largest = body.layer("ReduceMax", [total, body.constant(np.array([0]))], [()])
    going = body.layer("Less", [largest, body.constant(np.float32(END), "b/end")], [()])
    part = body.layer("Unsqueeze", [total, body.constant(np.array([0]))], [(1, 2)])
    results: list[int] = []
    for value in (total, going if below else body.constant(np.array(True)), part):
        body.result(value)
        results.append(len(body.layers) - 1)
    net.data = body.data
    inputs = [net.input("h", (2,)), net.input("x", (-1, 2) if cuts else (2,))]
    most = net.input("n", (), "i64") if count is None else net.constant(np.array(count))
    begins = net.input("begins", (), "boolean")
    cut = 'axis="0" start="0" end="-1" stride="1" part_size="1"'
    ports = (
        f'<input external_port_id="2" internal_layer_id="{h}"/>'
        f'<input external_port_id="3" internal_layer_id="{x}" {cut if cuts else ""}/>'
        f'<input external_port_id="-1" internal_layer_id="{turn}" purpose="current_iteration"/>'
        f'<output external_port_id="-1" internal_layer_id="{results[1]}" '
        'purpose="execution_condition"/>'
        f'<output external_port_id="4" internal_layer_id="{results[0]}"/>'
    )
    shapes = [(2,)]
    if joins:
        ports += f'<output external_port_id="5" internal_layer_id="{results[2]}" {cut}/>'
        shapes.append((-1, 2))
    back = f'<edge from-layer="{results[0]}" to-layer="{h}"/>'
    made = net.layer(
        "Loop", [most, begins, *inputs], shapes, inside=inside(body, ports, back), opset="opset5"
    )
    return net.result(*((made, 4 + i) for i in range(len(shapes))))


def wanted(
    h: np.ndarray, x: np.ndarray, count: int, begins: bool = True, below: bool = True
) -> tuple[np.ndarray, list[np.ndarray]]:
    values: list[np.ndarray] = []
    while begins and len(values) != count:
        h = 1.5 * h + (x if x.ndim == 1 else x[len(values)]) + len(values)
        values.append(h)
        begins = h.max() < END or not below
    return h, values


H, X = np.float32([0.3, -0.2]), np.float32([0.5, 1])


@shows("Loop")
@pytest.mark.parametrize("count", [9, 3, -1, None])
def test_a_condition_ends_it(count: int | None, tmp_path: Path) -> None:
    model = loop(count).load(tmp_path)
    for n in [count] if count else [9, 3, 0]:
        given = () if count else (np.array(n),)
        for h, begins in ((H, True), (H * 50, True), (H, False)):
            found = model(h, X, *given, np.array(begins))
            np.testing.assert_allclose(found, wanted(h, X, n, begins)[0], rtol=1e-5)


def test_a_count_that_is_computed(tmp_path: Path) -> None:
    model = loop(None, below=False).load(tmp_path)
    for n in (4, 1, 0):
        found = model(H, X, np.array(n), np.array(True))
        np.testing.assert_allclose(found, wanted(H, X, n, below=False)[0], rtol=1e-5)
    with pytest.raises(UnsupportedError, match="'loop' has no derivatives in reverse mode"):
        jax.grad(lambda h: model.apply(model.params, h, X, 3, True).sum())(H)
    _, slope = jax.jvp(lambda h: model.apply(model.params, h, X, 3, True), (H,), (H,))
    np.testing.assert_allclose(slope, 1.5**3 * H, rtol=1e-5)


def test_values_of_all_iterations(tmp_path: Path) -> None:
    """NaN fills up those of iterations that there are not; derivatives go through the others."""
    model = loop(9, joins=True).load(tmp_path)
    last, values = wanted(H, X, 9)
    found, every = model(H, X, np.array(True))
    assert 1 < len(values) < 9
    np.testing.assert_allclose(found, last, rtol=1e-5)
    np.testing.assert_allclose(every, [*values, *[H * np.nan] * (9 - len(values))], rtol=1e-5)
    slope = jax.grad(lambda h: model.apply(model.params, h, X, True)[0].sum())(H)
    np.testing.assert_allclose(slope, 1.5 ** len(values) * np.ones(2), rtol=1e-5)
    several = jnp.stack([H, H * 50])
    mapped = jax.vmap(model.apply, (None, 0, None, None))(model.params, several, X, True)[0]
    np.testing.assert_allclose(mapped, [wanted(h, X, 9)[0] for h in several], rtol=1e-5)


def test_parts_of_a_tensor_until_a_condition(tmp_path: Path) -> None:
    model, x = loop(-1, cuts=True).load(tmp_path), np.tile(X, (6, 1))
    for h in (H, H * 50, H - 30):
        np.testing.assert_allclose(model(h, x, np.array(True)), wanted(h, x, 6)[0], rtol=1e-5)


def test_values_of_a_count_that_is_not_known_are_refused(tmp_path: Path) -> None:
    with pytest.raises(nnef_jax.SemanticError, match=r"net\.xml:1:.*\(Loop\).* joined"):
        loop(-1, joins=True).load(tmp_path)


def body_of(type: str) -> tuple[Writer, str]:
    """A body with a layer, and the text of its ports: 1 to the layer, that to 2."""
    part = Writer()
    x = part.input("v", (2,))
    part.result(part.layer(type, [x], [(2,)]))
    ports = f'<input external_port_id="1" internal_layer_id="{x}"/>'
    return part, f'{ports}<output external_port_id="2" internal_layer_id="{len(part.layers) - 1}"/>'


def chosen(net: Writer, condition: int, x: int, *types: str) -> int:
    """Add an If whose bodies have a layer each."""
    text = ""
    for name, type in zip(("then", "else"), types, strict=True):
        part, ports = body_of(type)
        layers, edges = "".join(part.layers), "".join(part.edges)
        text += f"<{name}_port_map>{ports}</{name}_port_map><{name}_body><layers>{layers}</layers>"
        text += f"<edges>{edges}</edges></{name}_body>"
    return net.layer("If", [condition, x], [(2,)], inside=text, opset="opset8")


def three_turns(body: Writer, h: int, turn: int) -> Writer:
    """A network that runs a body three times; its last layer gives the next of its input h."""
    net, end = Writer(data=body.data), len(body.layers) - 1
    inputs = [net.constant(np.array(3)), net.constant(np.array(True)), net.input("h", (2,))]
    ports = (
        f'<input external_port_id="2" internal_layer_id="{h}"/>'
        f'<input external_port_id="-1" internal_layer_id="{turn}" purpose="current_iteration"/>'
        f'<output external_port_id="3" internal_layer_id="{end}"/>'
    )
    back = f'<edge from-layer="{end}" to-layer="{h}"/>'
    made = net.layer("Loop", inputs, [(2,)], inside=inside(body, ports, back), opset="opset5")
    return net.result(made)


def test_a_choice_in_a_loop(tmp_path: Path) -> None:
    body = Writer()
    h, turn = body.input("h", (2,)), body.input("turn", (1,), "i64")
    odd = body.layer("Mod", [turn, body.constant(np.array([2]))], [(1,)])
    odd = body.layer("Equal", [odd, body.constant(np.array([1]))], [(1,)])
    body.result(chosen(body, odd, h, "Exp", "Negative"))
    model = three_turns(body, h, turn).load(tmp_path)
    np.testing.assert_allclose(model(H), -np.exp(-H), rtol=1e-5)


def test_results_of_other_shapes_are_refused(tmp_path: Path) -> None:
    net = Writer()
    condition, x = net.input("c", (), "boolean"), net.input("x", (2,))
    net.result(chosen(net, condition, x, "Exp", "ShapeOf"))
    pattern = r"net\.xml:1:.*\(If\).*one branch has float32\[2\] where the other has int32\[1\]"
    with pytest.raises(nnef_jax.SemanticError, match=pattern) as error:
        net.load(tmp_path)
    assert "values={'c': ...}" in error.value.hint


def test_a_branch_that_cannot_be_computed_is_left_out_by_values(tmp_path: Path) -> None:
    net = Writer()
    condition, x = net.input("c", (), "boolean"), net.input("x", (2,))
    net.result(chosen(net, condition, x, "Exp", "NMSRotated"))
    with pytest.raises(nnef_jax.NnefError, match="NMSRotated") as error:
        net.load(tmp_path)
    assert "values={'c': ...}" in error.value.hint
    found = net.load(tmp_path, values={"c": True})
    np.testing.assert_allclose(found(H), np.exp(H), rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('stride="2"', "parts that overlap or leave items out"),
        ('end="9"', "its parts from 0 to 9 do not fit 6 items"),
        ('axis="4"', "there is no axis 4 of 2"),
        ('start="1" end="-1" stride="4" part_size="4"', "its parts of 4 items do not divide"),
    ],
)
def test_wrong_port_maps(text: str, message: str, tmp_path: Path) -> None:
    path, name = loop(6, cuts=True).write(tmp_path), text.split("=")[0]
    found: Any = path.read_text()
    known = {
        "stride": 'stride="1"',
        "end": 'end="-1"',
        "axis": 'axis="0"',
        "start": 'start="0" end="-1" stride="1" part_size="1"',
    }[name]
    path.write_text(found.replace(known, text, 1))
    with pytest.raises(nnef_jax.NnefError, match=rf"\(Loop\): {message}"):
        nnef_jax.load(path, input_shapes={"x": (6, 2)})


def test_an_output_that_no_port_map_gives(tmp_path: Path) -> None:
    path = loop(6).write(tmp_path)
    text = path.read_text()
    path.write_text(text.replace('<output external_port_id="4"', '<output external_port_id="5"'))
    with pytest.raises(nnef_jax.SemanticError, match=r"\(Loop\): output port"):
        nnef_jax.load(path)
