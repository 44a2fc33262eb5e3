"""Files of ONNX: where weights are, what names there are, and what is wrong with them."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import ArchiveError, InputError, NnefError, UnsupportedError
from nnef_jax.execution.runnable import execution_of

pytest.importorskip("onnx")

import onnx
from onnx import helper, numpy_helper

from tests.onnx.models import INT, model, node, tensor

X = np.arange(6, dtype=np.float32).reshape(2, 3)
RANDOM = np.random.default_rng(0).normal(size=(3, 400)).astype(np.float32)


def affine() -> Any:
    nodes = [node("Mul", "x w", "p", name="scale"), node("Add", "p b", "y", name="shift")]
    return model(nodes, weights={"w": X + 1, "b": np.float32([1, 2, 3])})


def test_names_are_those_of_the_file() -> None:
    found = nnef_jax.load(affine())
    assert [x.name for x in found.inputs] == ["x"] and [y.name for y in found.outputs] == ["y"]
    assert {name: x.shape for name, x in found.params.items()} == {"w": (2, 3), "b": (3,)}
    np.testing.assert_allclose(found(X), X * (X + 1) + np.float32([1, 2, 3]))
    assert set(found.intermediates(X, names=["p"])) == {"p"}


def test_an_extent_of_minus_one_is_open() -> None:
    """As onnxruntime reads it; exporters of PaddlePaddle write it."""
    found = nnef_jax.load(model([node("Relu", "x")], [tensor("x", (-1, 3))]))
    assert found.inputs[0].shape == (None, 3)
    for rows in (2, 5):
        np.testing.assert_array_equal(found(np.ones((rows, 3), np.float32)), np.ones((rows, 3)))


def test_a_weight_may_be_read_in_several_shapes() -> None:
    nodes = [node("Add", "x b", "p"), node("Unsqueeze", "b a", "c"), node("MatMul", "p c", "y")]
    found = nnef_jax.load(model(nodes, weights={"b": np.float32([1, 2, 3]), "a": np.array([1])}))
    assert found.params["b"].shape == (3,)
    b = np.float32([1, 2, 3])
    np.testing.assert_allclose(found(X), (X + b) @ b[:, None])


def test_large_tensors_are_left_in_the_file(tmp_path: Path) -> None:
    inner = model([node("Add", "x big", "y")], [tensor("x", (3, 400))], weights={"big": RANDOM})
    path = tmp_path / "net.onnx"
    onnx.save(inner, path)
    found = nnef_jax.load(path)
    np.testing.assert_array_equal(found.params["big"], RANDOM)
    np.testing.assert_array_equal(found(RANDOM), RANDOM + RANDOM)


def test_tensors_in_nodes_and_in_inner_graphs(tmp_path: Path) -> None:
    constant = node("Constant", "", "c", value=numpy_helper.from_array(RANDOM))
    inner = model([constant, node("Add", "x c", "y")], [tensor("x", (3, 400))])
    np.testing.assert_array_equal(nnef_jax.load(inner)(RANDOM), RANDOM + RANDOM)


@pytest.mark.parametrize("offset", [None, 4096])
def test_external_data(tmp_path: Path, offset: int | None) -> None:
    saved = external(tmp_path, "data.bin", offset)
    (tmp_path / "data.bin").write_bytes(b"\0" * (offset or 0) + RANDOM.tobytes())
    np.testing.assert_array_equal(nnef_jax.load(saved)(RANDOM), RANDOM + RANDOM)


def external(folder: Path, location: str, offset: int | None = None, length: Any = None) -> Path:
    """Write a model whose weights are in another file."""
    made = model([node("Add", "x big", "y")], [tensor("x", (3, 400))], weights={"big": RANDOM})
    (weight,) = made.graph.initializer
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    entries = {"location": location, "offset": offset, "length": length}
    for key, value in entries.items():
        if value is not None:
            weight.external_data.add(key=key, value=str(value))
    (folder / "net.onnx").write_bytes(made.SerializeToString())
    return folder / "net.onnx"


def test_external_data_stay_in_the_folder(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "data.bin").write_bytes(RANDOM.tobytes())
    (inner / "link.bin").symlink_to(tmp_path / "data.bin")
    (inner / "short.bin").write_bytes(b"\0" * 100)
    for location, reason in {
        "../data.bin": "'..'",
        str(tmp_path / "data.bin"): "no|absolute|outside",
        "link.bin": "link",
        "short.bin": "which has 100",
        "none.bin": "none.bin",
        "": "empty",
    }.items():
        with pytest.raises(NnefError, match=rf"initializer 'big': .*({reason})"):
            nnef_jax.load(external(inner, location))
    with pytest.raises(NnefError, match="is no number"):
        nnef_jax.load(external(inner, "short.bin", length="many"))


@pytest.mark.parametrize(
    ("held", "told", "hint"),
    [
        (None, "there is no file '.*two.bin'", "beside it"),
        (b"\0" * 100, "4800 bytes at 0 of 'two.bin', which has 100", "cut off"),
        (b"version https://git-lfs.github.com/spec/v1", "a pointer of git-lfs", "git lfs pull"),
    ],
    ids=["missing", "short", "pointer"],
)
def test_an_unreadable_file_of_weights_is_one_error(
    held: bytes | None, told: str, hint: str, tmp_path: Path
) -> None:
    nodes = [node("Add", "x a", "s"), node("Add", "s b", "y")]
    weights = {"a": RANDOM, "b": RANDOM}
    made = model(nodes, [tensor("x", (3, 400))], weights=weights)
    options = {"save_as_external_data": True, "location": "two.bin", "size_threshold": 0}
    onnx.save(made, tmp_path / "net.onnx", **options)
    (tmp_path / "two.bin").unlink()
    if held is not None:
        (tmp_path / "two.bin").write_bytes(held)
    with pytest.raises(NnefError, match=f"initializer 'a': its data are .*{told}") as error:
        nnef_jax.load(tmp_path / "net.onnx")
    assert len(error.value.errors) == 1 and hint in error.value.hint


def test_nodes_may_stand_before_what_they_read() -> None:
    nodes = [node("Sub", "b a"), node("Neg", "x", "a"), node("Add", "a x", "b")]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(nnef_jax.load(model(nodes))(x), x)


def test_all_unsupported_operators_are_named_at_once() -> None:
    nodes = [
        node("Splurge", "x", "a", name="one"),
        node("Relu", "a", "b"),
        node("Fancy", "b", "y", name="two", domain="com.acme"),
    ]
    with pytest.raises(UnsupportedError) as error:
        nnef_jax.load(model(nodes))
    text = str(error.value)
    assert "node 'one' (Splurge): 'Splurge' of ONNX, version 21, is not supported" in text
    assert "'Fancy' of domain 'com.acme', version 1" in text
    assert "the archive:3:1" in text and "com.acme.Fancy 'two' (b) -> (y)" in text


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: model([node("Add", "x z")]), "reads 'z', which nothing before it gives"),
        (lambda: model([node("Add", "x y", "z"), node("Relu", "z")]), "reads 'z', which nothing"),
        (lambda: model([node("Conv", "x x", domain="com.microsoft.nchwc")]), "ORT_ENABLE_EXTENDED"),
        (lambda: model([node("Relu", "x", "z")]), "nothing gives output 'y'"),
        (lambda: model([node("Add", "x b")], weights={"b": np.zeros(4, "f4")}), "Add"),
        (lambda: model([node("Relu", "x")], [tensor("x", None)]), "its rank is open"),
        (lambda: model([node("Relu", "x")], [tensor("x", (2,), 8)]), "strings"),
        (lambda: model([node("Relu", "x")], [tensor("x", (-2,))]), "negative extent"),
        (lambda: model([node("Relu", "x")], [tensor("x", (1 << 40,) * 3)]), "items, more than"),
        (lambda: model([node("Add", "x")]), "input 1 is missing"),
        (
            lambda: model([node("Cast", "x", to="int")]),
            "'to': a whole number is due, this is",
        ),
        (lambda: model([node("Cast", "x")]), "attribute 'to' is missing"),
        (lambda: model([node("Cast", "x", to=99)]), "there is no element type 99"),
        (lambda: model([node("Relu", "x x")]), "has 2 inputs, the operator has at most 1"),
        (lambda: model([node("Relu", "x", "y z")]), "has 2 outputs, the operator has at most 1"),
        (lambda: model([node("Elu", "x", alfa=2.0)]), "no attribute 'alfa'"),
        (lambda: model([node("Relu", "x", "b")], weights={"b": X}), "'b' is given twice"),
        (lambda: given_again("initializer"), "'b' is given twice"),
        (lambda: given_again("input"), "'b' is given twice"),
        (lambda: given_again("attribute"), "'alpha' is given twice"),
        (lambda: calling(2), "has 2 inputs, the function has 1"),
    ],
)
def test_wrong_models(made: Any, message: str) -> None:
    with pytest.raises(NnefError) as error:
        nnef_jax.load(made())
    assert message in str(error.value)


def given_again(what: str) -> Any:
    """Return a model that says one thing twice."""
    made = model([node("Elu", "x", "e", alpha=2.0), node("Add", "e b")], weights={"b": X})
    made.graph.input.append(tensor("b"))  # which an initialiser gives by default
    said = getattr(made.graph.node[0] if what == "attribute" else made.graph, what)
    said.append(said[-1])
    return made


def calling(count: int) -> Any:
    """Return a model that calls a function of one input."""
    sets = [helper.make_opsetid("", 21)]
    function = helper.make_function("own", "F", ["a"], ["b"], [node("Abs", "a", "b")], sets)
    return model([helper.make_node("F", ["x"] * count, ["y"], domain="own")], functions=[function])


def test_what_looks_wrong_and_is_not() -> None:
    """An initialiser may be an output, or an input's default; inputs that are left out may end."""
    made = model(
        [node("Clip", "x _ _")], outputs=[tensor("y", None), tensor("w")], weights={"w": X}
    )
    y, w = nnef_jax.load(made)(-X)
    np.testing.assert_array_equal(y, -X)
    np.testing.assert_array_equal(w, X)
    np.testing.assert_array_equal(nnef_jax.load(calling(1))(-X), X)


@pytest.mark.parametrize(
    ("type", "wrong", "right", "wanted"),
    [
        (onnx.TensorProto.INT8, 200, -3, -3),
        (onnx.TensorProto.UINT8, -1, 255, 255),
        (onnx.TensorProto.UINT16, 1 << 16, 40000, 40000),
        (onnx.TensorProto.BOOL, 2, 1, True),
        (onnx.TensorProto.FLOAT16, 1 << 16, 0xC000, -2),
        (onnx.TensorProto.FLOAT8E4M3FN, 256, 0xC0, -2),
        (onnx.TensorProto.INT4, 256, 0x0F, -1),
        (onnx.TensorProto.UINT32, 1 << 32, 7, 7),
    ],
)
def test_numbers_that_their_type_does_not_have(
    type: Any, wrong: int, right: int, wanted: Any
) -> None:
    def made(number: int) -> Any:
        found = model([node("Cast", "b", to=1)], [], weights={"b": np.float32([0])})
        stored = onnx.TensorProto(name="b", data_type=type, dims=[1])
        field = stored.uint64_data if type == onnx.TensorProto.UINT32 else stored.int32_data
        field.append(number)
        found.graph.initializer[0].CopyFrom(stored)
        return found

    np.testing.assert_array_equal(nnef_jax.load(made(right))(), np.float32([wanted]))
    with pytest.raises(NnefError, match=r"initializer 'b': it has .*, which is no"):
        nnef_jax.load(made(wrong))


def test_wrong_tensors() -> None:
    made = affine()
    made.graph.initializer[0].dims[0] = 1 << 40
    made.graph.initializer[1].raw_data = b"abc"
    with pytest.raises(NnefError) as error:
        nnef_jax.load(made)
    assert "initializer 'w': it has 24 bytes" in str(error.value)
    assert "initializer 'b': it has 3 bytes" in str(error.value)


def test_mutations_end_in_an_error_or_a_model() -> None:
    data = model([node("Add", "x big", "y")], [tensor("x", (3, 400))], weights={"big": RANDOM})
    whole, chosen = bytearray(data.SerializeToString()), random.Random(0)
    places = [*range(80), *range(len(whole) - 120, len(whole))]
    for _ in range(400):
        mutant = whole[:]
        for _ in range(chosen.randint(1, 3)):
            mutant[chosen.choice(places)] = chosen.randrange(256)
        if chosen.random() < 0.2:
            del mutant[chosen.randrange(len(mutant)) :]
        with suppress(NnefError):
            nnef_jax.load(bytes(mutant))


def test_nested_graphs_are_bounded() -> None:
    def message(number: int, data: bytes) -> bytes:
        size, length = len(data), bytearray()
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        return bytes([number << 3 | 2]) + bytes(length) + bytes([size]) + data

    data = b""
    for _ in range(10_000):
        data = message(1, message(5, message(6, data)))  # a graph of an attribute of a node
    with pytest.raises(NnefError):
        nnef_jax.load(b"\x08\x0a" + message(7, data))


def test_functions_that_call_each_other_end() -> None:
    calls = helper.make_node("F", ["a"], ["b"], domain="own")
    function = helper.make_function(
        "own", "F", ["a"], ["b"], [calls], [helper.make_opsetid("own", 1)]
    )
    made = model([helper.make_node("F", ["x"], ["y"], domain="own")], functions=[function])
    with pytest.raises(NnefError, match="without end"):
        nnef_jax.load(made)


def test_functions_take_attributes() -> None:
    double = helper.make_node("Constant", [], ["c"])
    double.attribute.add(name="value_float", ref_attr_name="factor", type=onnx.AttributeProto.FLOAT)
    times = helper.make_node("Mul", ["a", "c"], ["b"])
    sets = [helper.make_opsetid("", 21)]
    function = helper.make_function("own", "F", ["a"], ["b"], [double, times], sets, ["factor"])
    call = helper.make_node("F", ["x"], ["y"], domain="own", factor=0.5)
    made = model([call], functions=[function])
    np.testing.assert_array_equal(nnef_jax.load(made)(X), X / 2)


def test_values_of_inputs() -> None:
    shape = model([node("ConstantOfShape", "n")], [tensor("n", (2,), INT)])
    with pytest.raises(NnefError, match=r"input 0 'n' is computed") as error:
        nnef_jax.load(shape)
    assert "values={'n': ...}" in error.value.hint
    found = nnef_jax.load(shape, values={"n": [2, 3]})
    assert not found.inputs
    np.testing.assert_array_equal(found(), np.zeros((2, 3)))
    for values, message in (
        ({"m": 1}, "values names 'm'"),
        ({"n": [1, 2, 3]}, r"has the shape \[3\]"),
        ({"n": [1.5, 2]}, "it must be int64"),
        ({"n": "ab"}, "must be numbers"),
    ):
        with pytest.raises((InputError, NnefError), match=message):
            nnef_jax.load(shape, values=values)


def test_what_is_no_model() -> None:
    for data in (b"\x08\x0a\x12\xff", b"\x08\x0a\x3a\x05abc"):
        with pytest.raises(ArchiveError, match="is no ONNX"):
            nnef_jax.load(data)


@pytest.mark.parametrize("version", [32, 127, 128, 1 << 40, -1])
def test_a_model_of_an_unknown_version_is_told_as_such(tmp_path: Path, version: int) -> None:
    made = affine()
    made.ir_version = version
    (tmp_path / "net.onnx").write_bytes(made.SerializeToString())
    for source in (made, made.SerializeToString(), tmp_path / "net.onnx"):
        with pytest.raises(ArchiveError, match=f"is an ONNX model of IR version {version}, which"):
            nnef_jax.load(source)


@pytest.mark.parametrize("version", [2**31, 2**63 - 1])
def test_versions_of_operator_sets_have_64_bits(version: int) -> None:
    made = model([node("QuickGelu", "x", "h", domain="com.microsoft"), node("Relu", "h")])
    for x in made.opset_import:
        x.version = version
    kinds = [operation.kind for operation in nnef_jax.load(made).graph.operations]
    assert kinds == ["mul", "sigmoid", "mul", "relu"]


def test_a_model_without_a_version_is_one() -> None:
    made = affine()
    made.ClearField("ir_version")
    np.testing.assert_array_equal(nnef_jax.load(made)(X), nnef_jax.load(affine())(X))


def test_folded_tensors_are_told_as_such() -> None:
    """Shapes and what is made of them, and initialisers that are no weights."""
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s one", "g"), node("Unsqueeze", "g zero", "u"),
        node("Concat", "some u", "c", axis=0), node("Reshape", "x c", "r"), node("Relu", "r"),
        node("Add", "g one", "idle"),
    ]  # fmt: skip
    known = {"one": np.int64(1), "zero": np.int64([0]), "some": np.int64([-1])}
    for shape in ((2, 3), ("b", 3)):
        found = nnef_jax.load(model(nodes, [tensor("x", shape)], weights=known))
        for name in ("s", "g", "u", "c", "zero", "some"):
            with pytest.raises(InputError, match=f"no tensor '{name}'") as error:
                found(X, capture=[name])
            assert f"'{name}' was folded" in error.value.hint
            assert error.value.hint.endswith("take what reads it: 'r'")
        with pytest.raises(InputError, match="no tensor 'idle'") as error:
            found(X, edit={"idle": np.abs})
        assert "folded" not in error.value.hint
        assert found(X, capture=["r"])[1]["r"].shape == (2, 3)


def test_open_extents_by_name() -> None:
    made = model([node("Add", "x x")], [tensor("x", ("batch", 3))])
    assert nnef_jax.load(made).inputs[0].shape == (None, 3)
    assert nnef_jax.load(made, input_shapes={"batch": 4}).inputs[0].shape == (4, 3)
    with pytest.raises(InputError, match="the graph's open extents are batch") as error:
        nnef_jax.load(made, input_shapes={"batsh": 4})
    assert error.value.hint == "did you mean 'batch'?"
    closed = model([node("Relu", "x")])
    with pytest.raises(InputError, match="names 'batch', the graph has no open extent with a name"):
        nnef_jax.load(closed, input_shapes={"batch": 4})


def test_an_error_tells_extents_of_one_name_that_differ() -> None:
    nodes = [node("Shape", "x", "s"), node("Reshape", "z s", "r"), node("Add", "x r", "y")]
    ports = [tensor("x", ("batch", "length")), tensor("z", ("batch", "length"))]
    network = nnef_jax.load(model(nodes, ports))
    with pytest.raises(NnefError) as error:
        network(np.ones((2, 3), np.float32), np.ones((2, 5), np.float32))
    assert "'length' is 3 in 'x', 5 in 'z'" in error.value.hint
    with pytest.raises(NnefError, match="cannot be reshaped") as error:
        nnef_jax.load(model([node("Reshape", "x n")], weights={"n": np.int64([4])}))
    assert "length" not in error.value.hint


def test_open_extents_are_shown_by_name() -> None:
    """An extent without a name is `?`, as is one that the file knows and `load` opened."""
    shape = ("batch", 3, "height", None)
    made = model([node("Relu", "x")], [tensor("x", shape)], [tensor("y", shape)])
    found = nnef_jax.load(made)
    named = "float32[batch,3,height,?]"
    assert str(found.inputs[0]) == f"x: {named}" and str(found.outputs[0]) == f"y: {named}"
    assert found.inputs[0].extents == ("batch", "", "height", "")
    assert "[batch,3,height,?]" in str(found.summary()) and named in repr(found)
    with pytest.raises(InputError, match=r"the graph declares \[batch,3,height,\?\]"):
        found(np.ones((2, 4, 5, 6), np.float32))
    with pytest.raises(InputError, match=r"the graph declares \[batch,3,height,\?\]"):
        nnef_jax.load(made, input_shapes={"x": (1, 3)})
    some = nnef_jax.load(made, input_shapes={"x": (2, None, None, 7)})
    assert str(some.inputs[0]) == "x: float32[2,?,height,7]"
    assert str(found.batcher((1,)).inputs[0]) == f"x: {named}"


def test_two_loads_of_a_file_are_equal() -> None:
    """Large tensors are told apart by random marks, which are no content of a network."""
    path = Path(__file__).parents[1] / "generation" / "networks" / "llama.onnx"
    first, second = (execution_of(nnef_jax.load(path)).definition for _ in range(2))
    assert first.content == second.content
