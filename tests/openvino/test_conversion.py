"""Networks of OpenVINO as documents of NNEF, with custom operations for what NNEF has not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import nnef_jax
from tests.cli_support import fails, ok
from tests.openvino.documents import Writer

RNG = np.random.default_rng(0)


def largest() -> Writer:
    """The two largest of four, and round(x), halves to even ones."""
    net = Writer()
    x, given = net.input("x", (2, 4)), {"axis": 1, "mode": "max", "sort": "value"}
    k = net.constant(np.array(2))
    found = net.layer("TopK", [x, k], [(2, 2), (2, 2)], attributes=given, name="best")
    even = net.layer("Round", [x], [(2, 4)], attributes={"mode": "half_to_even"}, name="even")
    return net.result((found, 2), (found, 3), even)


def again(model: nnef_jax.Model, source: Path, *inputs: Any, **options: Any) -> nnef_jax.Model:
    """Convert a network, load what results, and compare what the two compute."""
    target = source.with_suffix(".nnef.tar")
    nnef_jax.convert(source, target, overwrite=True, **options)
    converted = nnef_jax.load(target)
    pairs = zip(jax.tree.leaves(model(*inputs)), jax.tree.leaves(converted(*inputs)), strict=True)
    for wanted, found in pairs:
        assert wanted.dtype == found.dtype
        np.testing.assert_array_equal(np.float64(wanted), np.float64(found))
    return converted


def test_each_layer_that_nnef_has_not_is_named(tmp_path: Path) -> None:
    path = largest().write(tmp_path)
    with pytest.raises(nnef_jax.UnsupportedError, match="keep=True") as caught:
        nnef_jax.convert(path)
    names = [error.message.split(":")[0] for error in caught.value.errors]
    assert names == ["layer 'best' (TopK)", "layer 'even' (Round)"]
    assert all(error.span for error in caught.value.errors)
    assert "layer 'best' (TopK)" in fails("convert", path, tmp_path / "net.tgz")
    assert not (tmp_path / "net.tgz").exists()


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    path = largest().write(tmp_path)
    x = RNG.integers(-9, 9, (2, 4)).astype(np.float32) / 2
    model = again(nnef_jax.load(path), path, x, keep=True)
    text = nnef_jax.convert(path, keep=True)
    assert "fragment nnef_jax_topk(" in text and "fragment nnef_jax_round(" in text
    slope = jax.grad(lambda x: model.apply({}, x)[0].sum())(x)
    assert slope.sum() == 4
    model.save(tmp_path / "saved.tgz")
    np.testing.assert_array_equal(nnef_jax.load(tmp_path / "saved.tgz")(x)[1], model(x)[1])
    assert ok("convert", path, tmp_path / "net.tgz", "--keep").startswith("saved ")
    np.testing.assert_array_equal(nnef_jax.load(tmp_path / "net.tgz")(x)[1], model(x)[1])
    half = nnef_jax.load(tmp_path / "net.tgz", dtype="bfloat16")
    assert half(x.astype(ml_dtypes.bfloat16))[0].dtype == "bfloat16"


def loop() -> Writer:
    """h = h + tanh(x_t) along an axis, with a count of the steps: a body with two types."""
    body = Writer()
    x, h, n = body.input("xt", (1, 1, 3)), body.input("h", (1, 1, 3)), body.input("n", (), "i32")
    total = body.layer("Add", [h, body.layer("Tanh", [x], [(1, 1, 3)])], [(1, 1, 3)])
    one = body.constant(np.int32(1), type="i32")
    body.result(total, body.layer("Add", [n, one], [()], precision="I32"))
    first, second = len(body.layers) - 2, len(body.layers) - 1
    inside = (
        f'<port_map><input axis="1" external_port_id="0" internal_layer_id="{x}"/>'
        f'<input external_port_id="1" internal_layer_id="{h}"/>'
        f'<input external_port_id="2" internal_layer_id="{n}"/>'
        f'<output axis="1" external_port_id="3" internal_layer_id="{first}"/>'
        f'<output external_port_id="4" internal_layer_id="{second}"/></port_map>'
        f'<back_edges><edge from-layer="{first}" to-layer="{h}"/>'
        f'<edge from-layer="{second}" to-layer="{n}"/></back_edges>'
        f"<body><layers>{''.join(body.layers)}</layers><edges>{''.join(body.edges)}</edges></body>"
    )
    net = Writer()
    inputs = [
        net.input("x", (1, 4, 3)), net.input("h0", (1, 1, 3)), net.input("n0", (), "i32"),
    ]  # fmt: skip
    found = net.layer("TensorIterator", inputs, [(1, 4, 3), ()], inside=inside)
    net.data = body.data
    return net.result((found, 3), (found, 4))


def test_loops_are_kept_with_their_bodies(tmp_path: Path) -> None:
    path = loop().write(tmp_path)
    inputs = RNG.normal(size=(1, 4, 3)).astype("f4"), np.ones((1, 1, 3), "f4"), np.int32(7)
    model = again(nnef_jax.load(path), path, *inputs, keep=True)
    assert model(*inputs)[1] == 11
    np.testing.assert_allclose(model(*inputs)[0], 1 + np.cumsum(np.tanh(inputs[0]), 1), rtol=1e-5)
    slope = jax.grad(lambda h: model.apply({}, inputs[0], h, inputs[2])[0].sum())(inputs[1])
    np.testing.assert_allclose(slope, np.full((1, 1, 3), 4.0), rtol=1e-6)


WEIGHTS = {  # each with the bits that a tensor file takes for an item
    "f16": (np.float16, 16), "bf16": (ml_dtypes.bfloat16, 32),
    "f8e4m3": (ml_dtypes.float8_e4m3fn, 16),
    "i4": (ml_dtypes.int4, 4), "u4": (ml_dtypes.uint4, 4),
}  # fmt: skip


@pytest.mark.parametrize("type", WEIGHTS)
def test_weights_of_few_bits(type: str, tmp_path: Path) -> None:
    dtype, bits = WEIGHTS[type]
    codes = RNG.integers(0 if type[0] == "u" else -7, 8, (3, 4))
    net = Writer()
    stored = codes.astype(dtype)
    raw = stored.view(np.uint8) if bits >= 8 else np.uint8(codes & 15)
    packed = raw.reshape(-1) if bits >= 8 else raw.reshape(-1)[::2] | raw.reshape(-1)[1::2] << 4
    x, w = net.input("x", (2, 4)), net.packed(packed, (3, 4), type, "w")
    wide = net.layer("Convert", [w], [(3, 4)], attributes={"destination_type": "f32"})
    net.result(net.layer("MatMul", [x, wide], [(2, 3)], attributes={"transpose_b": "true"}))
    path, x = net.write(tmp_path), RNG.normal(size=(2, 4)).astype(np.float32)
    np.testing.assert_allclose(nnef_jax.load(path)(x), x @ codes.T.astype(np.float32), rtol=1e-5)
    converted = again(nnef_jax.load(path), path, x)
    assert list(converted.params) == ["w"]
    nnef_jax.convert(path, tmp_path / "folder")
    size = (tmp_path / "folder" / "w.dat").stat().st_size
    assert size == 128 + 12 * bits // 8


def test_types_that_nnef_has_not_are_kept(tmp_path: Path) -> None:
    """Sums of 8 bits wrap, bfloat16 rounds: casts make these of what a document declares."""
    net = Writer()
    x, b = net.input("x", (3,), "i8"), net.constant(np.array([100, 1, -100], np.int8), "b", "i8")
    wraps = net.layer("Add", [x, b], [(3,)], precision="I8")
    y = net.input("y", (3,))
    rounds = net.layer("Convert", [y], [(3,)], attributes={"destination_type": "bf16"})
    net.result(wraps, net.layer("Add", [rounds, rounds], [(3,)]))
    path = net.write(tmp_path)
    inputs = np.array([100, 2, -100], np.int8), np.float32([1.001, 2, 3])
    with pytest.raises(nnef_jax.UnsupportedError, match="it has items of bfloat16"):
        nnef_jax.convert(path)
    model = again(nnef_jax.load(path), path, *inputs, keep=True)
    np.testing.assert_array_equal(model(*inputs)[0], [-56, 3, 56])
    assert float(model(*inputs)[1][0]) == 2


HEAD = "version 1.0;\nextension KHR_enable_fragment_definitions;\n"
BODY = "graph G( x ) -> ( y )\n{\n    x = external(shape = [1,3]);\n    %s;\n}\n"
WRONG = {
    "argument": ("fragment nnef_jax_exp( z: tensor<scalar> ) -> ( y: tensor<scalar> );\n",
                 "y = nnef_jax_exp(x)", "takes no 'z'"),
    "missing": ("fragment nnef_jax_topk( input: tensor<scalar> ) -> ( y: tensor<scalar> );\n",
                "y = nnef_jax_topk(x)", "the rule needs"),
    "kind": ("fragment nnef_jax_quux( x: tensor<scalar> ) -> ( y: tensor<scalar> );\n",
             "y = nnef_jax_quux(x)", "no rule for operation 'nnef_jax_quux'"),
    "type": ("fragment nnef_jax_softmax( x: tensor<scalar>, axes: string )"
             " -> ( y: tensor<scalar> );\n", "y = nnef_jax_softmax(x, axes = 'b')", "softmax"),
    "dtype": ("fragment nnef_jax_cast( input: tensor<scalar>, dtype: string )"
              " -> ( y: tensor<scalar> );\n",
              "y = nnef_jax_cast(x, dtype = 'O')", "'dtype' must be one of numbers or 'bool'"),
    "no body": ("fragment nnef_jax_branch( condition: tensor<logical>, operands: tensor<scalar>[],"
                " then_body: (string,string), else_body: (string,string) )"
                " -> ( y: tensor<scalar>[] );\n",
                "[y] = nnef_jax_branch(true, [x], then_body = ('nnef_jax_body','a'), "
                "else_body = ('nnef_jax_body','b'))", "does not take its arguments"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_custom_operations_that_are_wrong(name: str) -> None:
    declaration, use, message = WRONG[name]
    archive = {"graph.nnef": (HEAD + declaration + BODY % use).encode()}
    with pytest.raises(nnef_jax.NnefError, match=message) as caught:
        nnef_jax.load(packed(archive))
    assert "graph.nnef:" in str(caught.value)


def test_a_body_within_itself() -> None:
    kind = (
        "fragment nnef_jax_branch( condition: tensor<logical>, operands: tensor<scalar>[], "
        "then_body: (string,(string,integer[])), else_body: (string,(string,integer[])) ) "
        "-> ( y: tensor<scalar>[] );\n"
    )
    both = ", ".join(f"{x} = ('nnef_jax_body',('real',[1,3]))" for x in ("then_body", "else_body"))
    use = f"[y] = nnef_jax_branch(true, [x], {both})"
    body = f"fragment nnef_jax_body( x: tensor<scalar> ) -> ( y: tensor<scalar> )\n{{ {use}; }}\n"
    text = HEAD + kind + body + BODY % use
    with pytest.raises(nnef_jax.NnefError, match="'nnef_jax_body' contains itself"):
        nnef_jax.load(packed({"graph.nnef": text.encode()}))


@pytest.mark.parametrize("kind", ["tree_ensemble", "tract__tree_ensemble"])
def test_a_kind_by_the_name_that_earlier_documents_have(kind: str) -> None:
    half, two, seven = np.float32([0.5, 2, 7]).view(np.int32).tolist()
    text = (
        HEAD
        + f"""fragment nnef_jax_{kind}( input: tensor<scalar>, trees: tensor<integer>,
    nodes: tensor<integer>, leaves: tensor<integer>, classes: integer, aggregate: string )
    -> ( y: tensor<scalar> );
graph G( x ) -> ( y )
{{
    x = external(shape = [2,1]);
    trees = constant<integer>(shape = [1], value = [0]);
    nodes = constant<integer>(
        shape = [3,5], value = [0,1,2,{half},3, 0,1,0,0,0, 1,2,0,0,0]);
    leaves = constant<integer>(shape = [2,2], value = [0,{two}, 0,{seven}]);
    y = nnef_jax_{kind}(x, trees, nodes, leaves, classes = 1, aggregate = 'SUM');
}}
"""
    )
    model = nnef_jax.load(packed({"graph.nnef": text.encode()}))
    assert {operation.kind for operation in model.graph.operations} == {"tree_ensemble", "constant"}
    np.testing.assert_array_equal(model(np.float32([[0.25], [0.75]])), [[2], [7]])


def packed(members: dict[str, bytes]) -> bytes:
    from tests.openvino.test_files import tar

    return tar(members)


@pytest.mark.slow
def test_the_collection_again(shared_cases: Path, tmp_path: Path) -> None:
    """All that loads is value-equal once it is converted, with custom operations or without."""
    cases = json.loads((shared_cases / "openvino" / "manifest.json").read_text())
    for i, case in enumerate(cases):
        path = shared_cases / "openvino" / case["xml"]
        model = nnef_jax.load(path)
        data = np.load(shared_cases / "openvino" / case["data"])
        inputs = [data[f"in/{x['name']}"] for x in case["inputs"]]
        nnef_jax.convert(path, tmp_path / f"{i}.tar", keep=True)
        found = jax.tree.leaves(nnef_jax.load(tmp_path / f"{i}.tar")(*inputs))
        for wanted, array in zip(jax.tree.leaves(model(*inputs)), found, strict=True):
            np.testing.assert_allclose(
                np.float64(array), np.float64(wanted), rtol=1e-5, atol=1e-6, err_msg=case["name"]
            )
