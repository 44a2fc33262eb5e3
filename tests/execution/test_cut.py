"""Parts of networks as models of their own: `Model.cut`."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
import pytest

import nnef_jax
from nnef_jax.execution.runnable import execution_of
from tests.helpers import archive, model_of
from tests.quantized import W as QUANTIZED_W
from tests.quantized import X as QUANTIZED_X
from tests.quantized import network as quantized_network

RESIDUAL = """version 1.0;
extension KHR_enable_operator_expressions;

graph net(x, mask) -> (y, z)
{
    x = external<scalar>(shape = [0, 3]);
    mask = external<scalar>(shape = [0, 3]);
    w = variable<scalar>(shape = [3, 3], label = 'w');
    v = variable<scalar>(shape = [3, 3], label = 'v');
    apart = variable<scalar>(shape = [1, 3], label = 'layer.1');
    h1 = matmul(x, w);
    r1 = relu(h1);
    h2 = matmul(r1, v);
    y = h2 + h1;
    [left, right] = split(r1, axis = 1, ratios = [1, 2]);
    side = concat([left, right * 2.0], axis = 1);
    z = side * mask;
    other = apart * 3.0;
}
"""
_RANDOM = np.random.default_rng(5)
W, V = (_RANDOM.normal(size=(3, 3)).astype(np.float32) for _ in range(2))
X, MASK = (_RANDOM.normal(size=(2, 3)).astype(np.float32) for _ in range(2))
H1 = X @ W
R1 = np.maximum(H1, 0)


@pytest.fixture(scope="module")
def net() -> nnef_jax.Model:
    return model_of(RESIDUAL, data={"w": W, "v": V, "layer.1": np.ones((1, 3), np.float32)})


def shown(model: nnef_jax.Model) -> tuple[list[str], list[str], list[str]]:
    return [str(x) for x in model.inputs], [str(y) for y in model.outputs], [*model.params]


def test_a_part_computes_what_is_between_its_tensors(net: nnef_jax.Model) -> None:
    part = net.cut(inputs=["r1", "h1"], outputs=["y"])
    assert shown(part) == (["r1: float32[?,3]", "h1: float32[?,3]"], ["y: float32[?,3]"], ["v"])
    np.testing.assert_allclose(part(R1, H1), R1 @ V + H1, rtol=1e-5)
    np.testing.assert_allclose(part(h1=H1, r1=2 * R1), 2 * R1 @ V + H1, rtol=1e-5)
    table = str(part.summary())
    assert "h2" in table and "side" not in table
    trunk = net.cut(outputs=["r1", "h1"])
    assert shown(trunk) == (["x: float32[?,3]"], ["r1: float32[?,3]", "h1: float32[?,3]"], ["w"])
    for found, wanted in zip(trunk(X), (R1, H1), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert trunk.params["w"] is net.params["w"] or np.array_equal(trunk.params["w"], W)


def test_a_part_is_an_ordinary_model(net: nnef_jax.Model) -> None:
    part = net.cut(inputs=["r1", "h1"], outputs=["y"])
    (y, inside), wanted = part(R1, H1, edit={"h2": lambda v: 2 * v}, capture=["h2"]), 2 * R1 @ V
    np.testing.assert_allclose(inside["h2"], wanted, rtol=1e-5)
    np.testing.assert_allclose(y, wanted + H1, rtol=1e-5)
    assert sorted(part.intermediates(R1, H1)) == ["h1", "h2", "r1", "v", "y"]

    def loss(params: Any, r1: Any) -> Any:
        return part.apply(params, r1[None], H1[:1]).sum()

    found = jax.jit(jax.vmap(jax.grad(loss, argnums=1), (None, 0)))(part.params, R1)
    np.testing.assert_allclose(found, np.tile(V.sum(1), (2, 1)), rtol=1e-5)
    again = part.cut(inputs=["h2", "h1"])
    assert not again.params
    np.testing.assert_allclose(again(H1, X), H1 + X)


def test_the_whole_is_a_part(net: nnef_jax.Model) -> None:
    names = [x.name for x in net.inputs], [y.name for y in net.outputs]
    for part in (net.cut(), net.cut(inputs=names[0], outputs=names[1])):
        assert shown(part) == shown(net)
        for found, wanted in zip(part(X, MASK), net(X, MASK), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_outputs_that_follow_from_the_inputs(net: nnef_jax.Model) -> None:
    part = net.cut(inputs=["r1", "mask"])
    assert [spec.name for spec in part.outputs] == ["z"]
    np.testing.assert_allclose(part(R1, MASK), R1 * [1, 2, 2] * MASK, rtol=1e-6)


def test_parameters_and_one_of_several_results_are_inputs_too(net: nnef_jax.Model) -> None:
    part = net.cut(inputs=["x", "w"], outputs=["h1"])
    assert not part.params
    np.testing.assert_allclose(part(X, 2 * W), 2 * H1, rtol=1e-5)
    part = net.cut(inputs=["left", "r1"], outputs=["side"])
    wanted = np.concatenate([MASK[:, :1], 2 * R1[:, 1:]], axis=1)
    (found, inside) = part(MASK[:, :1], R1, capture=["left"])
    np.testing.assert_allclose(found, wanted)
    np.testing.assert_array_equal(inside["left"], MASK[:, :1])


@pytest.mark.parametrize(
    ("inputs", "outputs", "messages"),
    [
        (["r1"], ["y"], ["also needs 'h1', which no input gives.*inputs=\\['r1', 'h1'\\]"]),
        (["r1"], ["y", "z"], ["also needs 'h1', 'mask', which"]),
        (["mas"], ["z"], ["inputs: the graph has no tensor 'mas'.*did you mean 'mask'"]),
        (["r*"], ["h2", "yy"], ["no tensor 'r\\*'", "outputs: the graph has no tensor 'yy'"]),
        (["layer.1"], ["other"], ["no tensor 'layer.1'.*it is the label of 'apart'"]),
        (["r1", "r1"], ["h2"], ["inputs names 'r1' 2 times"]),
        (["r1"], ["h2", "h2"], ["outputs names 'h2' 2 times"]),
        (["r1", "mask"], ["h2"], ["input 'mask' is not needed"]),
        (["h2", "x"], ["r1"], ["input 'h2' is computed from output 'r1'"]),
        (["x"], ["other", "h1"], ["output 'other' does not depend on an input"]),
        (None, ["other"], ["output 'other' does not depend on an input"]),
        ([], ["h1"], ["inputs names no tensor"]),
    ],
)
def test_wrong_parts_are_refused(
    net: nnef_jax.Model, inputs: Any, outputs: Any, messages: list[str]
) -> None:
    with pytest.raises(nnef_jax.InputError) as caught:
        net.cut(inputs=inputs, outputs=outputs)
    assert len(caught.value.errors) == len(messages)
    for error, message in zip(caught.value.errors, messages, strict=True):
        found = str(error).replace("\n", " ")
        assert re.search(message, found), found


def test_names_are_lists_of_words(net: nnef_jax.Model) -> None:
    for wrong in ("r1", 3, [3]):
        with pytest.raises(TypeError, match="inputs must be a list of names of tensors"):
            net.cut(inputs=wrong)  # type: ignore[arg-type]


def test_wrong_shapes_are_located_in_the_document(net: nnef_jax.Model) -> None:
    part = net.cut(inputs=["r1", "h1"], outputs=["y"])
    with pytest.raises(nnef_jax.ShapeError, match=r"graph\.nnef:14:12: 'add'.*\[2,3\].*\[5,3\]"):
        part(R1, np.ones((5, 3), np.float32))
    with pytest.raises(nnef_jax.InputError, match="input 'r1'"):
        part(np.ones((2, 4), np.float32), H1)


@pytest.mark.parametrize("name", ["part", "part.tgz"])
def test_a_part_is_saved(net: nnef_jax.Model, tmp_path: Path, name: str) -> None:
    part = net.cut(inputs=["r1", "h1"], outputs=["y", "h2"])
    part.save(tmp_path / name, params={"v": 2 * V})
    again = nnef_jax.load(tmp_path / name)
    assert shown(again) == shown(part)
    for found, wanted in zip(again(R1, H1), (2 * R1 @ V + H1, 2 * R1 @ V), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_part_of_a_part_is_saved(net: nnef_jax.Model, tmp_path: Path) -> None:
    part = net.cut(inputs=["r1", "h1"], outputs=["y"]).cut(inputs=["r1"], outputs=["h2"])
    part.save(tmp_path / "part")
    again = nnef_jax.load(tmp_path / "part")
    assert shown(again) == shown(part)
    np.testing.assert_allclose(again(R1), R1 @ V, rtol=1e-5)


RECURRENT = """version 1.0;
extension KHR_enable_operator_expressions;

graph net(x) -> (y)
{
    x = external<scalar>(shape = [1, 2]);
    s = variable<scalar>(shape = [1, 2], label = 'sum');
    t = variable<scalar>(shape = [1, 2], label = 'other');
    double = 2.0 * x;
    new = s + double;
    s_next = update(s, new);
    t_next = update(t, t + x);
    out = new * 10.0;
    y = out + t;
}
"""


def test_states_come_with_their_part(tmp_path: Path) -> None:
    start = {"sum": np.array([[1, 2]], np.float32), "other": np.array([[5, 5]], np.float32)}
    model = model_of(RECURRENT, data=start)
    part = model.cut(inputs=["double"], outputs=["out"])
    assert list(part.init_state()) == ["sum"]
    xs = np.ones((3, 1, 2), np.float32)
    part.save(tmp_path / "part.tgz")
    for net in (part, nnef_jax.load(tmp_path / "part.tgz")):
        out, state = net.step(net.init_state(), xs[0])
        np.testing.assert_array_equal(out, [[20, 30]])
        np.testing.assert_array_equal(state["sum"], [[2, 3]])
        outs, state = net.scan(xs)
        np.testing.assert_array_equal(outs[:, 0, 0], [20, 30, 40])
    with pytest.raises(nnef_jax.InputError, match="also needs 't_next', which no"):
        model.cut(inputs=["out"], outputs=["y"])


def test_a_state_and_its_next_value_are_cut_apart(tmp_path: Path) -> None:
    model = model_of(RECURRENT, data=dict.fromkeys(("sum", "other"), np.ones((1, 2), np.float32)))
    given = np.array([[3, 4]], np.float32)
    outside = model.cut(inputs=["s", "x"], outputs=["new"])  # the caller keeps the state
    assert not outside.init_state()
    np.testing.assert_array_equal(outside(given, given), 3 * given)
    held = model.cut(inputs=["new"], outputs=["s", "out"])  # the state takes what it is given
    held.save(tmp_path / "held.tgz")
    for net in (held, nnef_jax.load(tmp_path / "held.tgz")):
        (s, out), state = net.step(net.init_state(), given)
        np.testing.assert_array_equal(s, [[1, 1]])
        np.testing.assert_array_equal(out, 10 * given)
        np.testing.assert_array_equal(state["sum"], given)


QUANT = """"a": linear_quantize(min = -1.0, max = 1.0, bits = 2);
"y": linear_quantize(min = -1.0, max = 1.0, bits = 3);"""


def test_a_cut_tensor_is_the_rounded_one(tmp_path: Path) -> None:
    model = quantized_network(QUANT)
    levels = np.linspace(-1, 1, 4)
    first = model.cut(outputs=["a"])
    a = np.clip(QUANTIZED_X * np.array(QUANTIZED_W)[..., None], -1, 1)
    np.testing.assert_allclose(
        np.abs(np.asarray(first(QUANTIZED_X))[..., None] - levels).min(-1), 0, atol=1e-6
    )
    assert np.abs(np.asarray(first(QUANTIZED_X)) - a).max() <= 1 / 3 + 1e-6
    last = model.cut(inputs=["a"], outputs=["y"])
    assert [spec.name for spec in last.inputs] == ["a"]
    given = np.full(QUANTIZED_X.shape, 0.2, np.float32)  # no level: it is not rounded again
    wanted = np.round((np.tanh(0.2) + 1) / 2 * 7) / 7 * 2 - 1
    last.save(tmp_path / "last.tgz")
    for net in (last, nnef_jax.load(tmp_path / "last.tgz")):
        np.testing.assert_allclose(net(given), np.full(given.shape, wanted), rtol=1e-5)


TRACT = """version 1.0;
extension tract_registry tract_core;
extension tract_symbol B;

graph net(x) -> (y)
{
    x = tract_core_external(shape = [B, 3], datum_type = 'f32');
    w = variable<scalar>(label = 'w', shape = [3, 4]);
    h = matmul(x, w);
    parts = tract_core_cast(h, to = 'i64');
    i"odd name" = relu(h);
    y = add(i"odd name", parts);
}
"""


def test_a_part_in_the_dialect_of_tract(tmp_path: Path) -> None:
    w = _RANDOM.normal(size=(3, 4)).astype(np.float32)
    model = model_of(TRACT, data={"w": w})
    part = model.cut(inputs=["odd name", "parts"])
    codes = np.arange(8, dtype=np.int32).reshape(2, 4)
    real = codes * np.float32(0.5)
    assert [str(spec) for spec in part.inputs] == ["odd name: float32[?,4]", "parts: int32[?,4]"]
    part.save(tmp_path / "part.tgz")
    for net in (part, nnef_jax.load(tmp_path / "part.tgz")):
        np.testing.assert_allclose(net(real, codes), real + codes)
    trunk = model.cut(outputs=["odd name"])
    trunk.save(tmp_path / "trunk")
    np.testing.assert_allclose(
        nnef_jax.load(tmp_path / "trunk")(X), np.maximum(X @ w, 0), rtol=1e-5
    )


PAIRS = """version 1.0;
extension KHR_enable_operator_expressions;

graph net(x, h) -> (y, h_next)
{
    x = external<scalar>(shape = [1, 2]);
    h = external<scalar>(shape = [1, 2]);
    double = 2.0 * x;
    h_next = h + double;
    y = h_next * 10.0;
}
"""


def test_pairs_stay_states_of_a_part(tmp_path: Path) -> None:
    model = model_of(PAIRS, state={"h": "h_next"})
    part = model.cut(inputs=["double"])
    assert list(part.init_state()) == ["h"]
    xs = np.ones((3, 1, 2), np.float32)
    part.save(tmp_path / "part.tgz")
    for net in (part, nnef_jax.load(tmp_path / "part.tgz", state={"h": "h_next"})):
        ys, state = net.scan(xs)
        np.testing.assert_array_equal(ys[:, 0, 0], [10, 20, 30])
        np.testing.assert_array_equal(state["h"], [[3, 3]])


def test_a_part_that_the_format_cannot_say_is_not_saved(tmp_path: Path) -> None:
    rules = nnef_jax.Registry()
    rules.rule("mish", lambda x: x)(lambda x: x)
    text = """version 1.0;
extension KHR_enable_fragment_definitions;
fragment mish(x: tensor<scalar>) -> (y: tensor<scalar>);
graph net(x) -> (y) { x = external(shape = [2]); h = relu(x); y = mish(h); }
"""
    part = nnef_jax.load(archive(graph=text), rules=rules).cut(inputs=["h"])
    with pytest.raises(nnef_jax.UnsupportedError, match="'mish' is not an operation of the stand"):
        part.save(tmp_path / "part.tgz")
    assert not list(tmp_path.iterdir())


STRIDED = """version 1.0;
extension tract_registry tract_core;
extension tract_symbol B;
extension tract_symbol S;

graph net(x, past) -> (y)
{
    x = tract_core_external(shape = [B, S, 2], datum_type = 'f32');
    past = tract_core_external(shape = [B, 2*S + 1, 2], datum_type = 'f32');
    h = slice(x, axes = [1], begin = [1], end = [0], stride = [1]);
    joined = concat([h, past], axis = 1);
    flat = reshape(joined, shape = [B, 6*S]);
    total = sum_reduce(joined, axes = [1, 2]);
    again = tract_core_broadcast(total, shape = [B, S, 2]);
}
"""


def strided(result: str) -> nnef_jax.Model:
    return model_of(STRIDED.replace("-> (y)", f"-> ({result})"))


def test_extents_inside_tell_those_that_flattening_depends_on(tmp_path: Path) -> None:
    part = strided("flat").cut(inputs=["joined"])
    assert [str(spec) for spec in part.inputs] == ["joined: float32[?,?,2]"]
    for batch, s in ((1, 4), (3, 2), (5, 21)):
        joined = _RANDOM.normal(size=(batch, 3 * s, 2)).astype(np.float32)
        np.testing.assert_array_equal(part(joined), joined.reshape(batch, -1))
    with pytest.raises(nnef_jax.InputError, match=r"no shapes of the network.* make .* \[2,7,2\]"):
        part(np.ones((2, 7, 2), np.float32))
    with pytest.raises(nnef_jax.UnsupportedError, match="depends on an extent that is left open"):
        part.save(tmp_path / "part.tgz")
    whole = model_of(
        STRIDED.replace("-> (y)", "-> (flat)"), input_shapes={"x": (1, 2, 2), "past": (1, 5, 2)}
    )
    whole.cut(inputs=["joined"]).save(tmp_path / "part.tgz")
    again = nnef_jax.load(tmp_path / "part.tgz")
    assert [spec.shape for spec in again.inputs] == [(1, 6, 2)]
    assert again(joined[:1, :6]).shape == (1, 12)
    whole.cut(outputs=["joined"]).save(tmp_path / "trunk.tgz")
    assert nnef_jax.load(tmp_path / "trunk.tgz").inputs[0].shape == (1, 2, 2)


def test_many_extents_are_found_without_compiling() -> None:
    part = strided("flat").cut(inputs=["h", "past"])
    for batch, s in ((2, 3), (700, 50), (1, 4000)):
        graph = execution_of(part).network.specialise([(batch, s - 1, 2), (batch, 2 * s + 1, 2)])
        assert graph.outputs[0].type.shape == (batch, 6 * s)


def test_extents_that_nothing_tells_are_asked_for() -> None:
    part = strided("again").cut(inputs=["total"])
    with pytest.raises(nnef_jax.InputError, match="depends on 'S', which the shapes of its inputs"):
        part(np.ones((2, 1, 1), np.float32))


GUESSED = """version 1.0
fragment folded(twice: tensor, x: tensor) -> (y: tensor)
{
    y = reshape(twice, shape = [shape_of(x)[0], 4]) if shape_of(x)[0] > 1 else twice * 2.0
}
graph net(x) -> (y)
{
    x = external(shape = [0, 2])
    twice = concat([x, x], axis = 0)
    y = folded(twice, x)
}
"""


def test_a_part_of_a_network_whose_structure_depends_on_its_inputs() -> None:
    part = model_of(GUESSED).cut(inputs=["twice"])
    for rows in (1, 4, 9):
        twice = _RANDOM.normal(size=(2 * rows, 2)).astype(np.float32)
        wanted = twice.reshape(rows, 4) if rows > 1 else 2 * twice
        np.testing.assert_array_equal(part(twice), wanted)


def test_parts_are_pickled_exported_and_shared(net: nnef_jax.Model, tmp_path: Path) -> None:
    part, again = (net.cut(inputs=["r1", "h1"], outputs=["y"]) for _ in range(2))
    assert jax.tree.structure(part) == jax.tree.structure(again)
    assert jax.tree.structure(part) != jax.tree.structure(net.cut(inputs=["r1"], outputs=["h2"]))
    wanted = R1 @ V + H1
    np.testing.assert_allclose(pickle.loads(pickle.dumps(part))(R1, H1), wanted, rtol=1e-5)
    np.testing.assert_allclose(part.with_params({"v": 2 * V})(R1, H1), wanted + R1 @ V, rtol=1e-5)
    part.export(tmp_path / "part.npz", batch="b")
    with np.load(tmp_path / "part.npz") as file:
        run = jax.export.deserialize(file["function"])
    for rows in (1, 2):
        found = run.call(part.params, R1[:rows], H1[:rows])
        np.testing.assert_allclose(found, wanted[:rows], rtol=1e-5)
