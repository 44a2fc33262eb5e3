"""Batches of any size by programs for few, and which networks have none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from lowering import jaxprs
from lowering.batches import NotSeparableError, batch_axes
from lowering.program import Program
from nnef_jax import InputError
from tests.helpers import COMPOSITIONAL, model_of

_RNG = np.random.default_rng(7)
_DATA = {
    "f": _RNG.standard_normal((4, 3, 3, 3)).astype(np.float32),
    "w": _RNG.standard_normal((5, 64)).astype(np.float32),
}


def _network(batch: int, rows: object, body: str = "", outputs: str = "y") -> str:
    return f"""{COMPOSITIONAL}
graph net(x) -> ({outputs})
{{
    x = external(shape = [{batch}, 3, 4, 4]);
    f = variable(shape = [4, 3, 3, 3], label = 'f');
    w = variable(shape = [5, 64], label = 'w');
    c = relu(conv(x, f));
    r = reshape(c, shape = [{rows}, 64]);
    y = linear(r, w);
    {body}
}}"""


def _model(batch: int, rows: object, **options: object) -> nnef_jax.Model:
    return model_of(_network(batch, rows), data=_DATA, **options)


def _x(count: int) -> np.ndarray:
    return _RNG.standard_normal((count, 3, 4, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def one() -> nnef_jax.Model:
    return _model(1, 1)


def _rows(one: nnef_jax.Model, x: np.ndarray) -> np.ndarray:
    return np.concatenate([np.asarray(one(row[None])) for row in x])


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 9])
@pytest.mark.parametrize(
    ("batch", "rows"), [(1, 1), (2, 0), (2, 2)], ids=["written down", "passed on", "of two"]
)
def test_rows_equal_those_of_single_items(
    one: nnef_jax.Model, batch: int, rows: int, count: int
) -> None:
    batcher = _model(batch, rows).batcher((1, 4))
    x = _x(count)
    wanted = _rows(one, x) if count else np.zeros((0, 5), np.float32)
    np.testing.assert_allclose(batcher(x), wanted, rtol=1e-5, atol=1e-5)


def test_each_format_is_served_alike(tmp_path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    x = _RNG.random((3, 1, 8, 8), np.float32)
    nnef = nnef_jax.load("examples/digits/model")
    wanted = np.concatenate([np.asarray(nnef(row[None])) for row in x])
    for model in (nnef, nnef_jax.load("examples/digits/ir/digits.xml")):
        np.testing.assert_allclose(model.batcher((4,))(x), wanted, rtol=1e-4, atol=1e-6)
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"], axis=1),
    ]
    w = onnx.numpy_helper.from_array(_DATA["w"][:, :64].T.copy(), "w")
    ends = [
        [helper.make_tensor_value_info(name, kind, shape)]
        for name, shape in (("x", ["n", 1, 8, 8]), ("y", ["n", 5]))
    ]
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", *ends, [w])), path)
    logits = np.exp(x.reshape(3, 64) @ _DATA["w"].T)
    found = nnef_jax.load(path).batcher((4,))(x)
    np.testing.assert_allclose(found, logits / logits.sum(1, keepdims=True), rtol=1e-4, atol=1e-6)


def _expanded(positions: object) -> nnef_jax.Model:
    """Return a network that adds embeddings of positions, in rows of which there are [rows,5]."""
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    helper, types = onnx.helper, onnx.TensorProto
    nodes = [
        ("Shape", ["x"], "s", {"end": 1}), ("Concat", ["s", "five"], "es", {"axis": 0}),
        *positions, ("Gather", ["table", "e"], "g", {}), ("Gather", ["table", "x"], "t", {}),
        ("Add", ["t", "g"], "a", {}), ("MatMul", ["m", "a"], "b", {}),
        ("Expand", ["w", "fw"], "v", {}), ("MatMul", ["b", "v"], "y", {}),
    ]  # fmt: skip
    arrays = {
        "five": np.int64([5]), "row": np.arange(5)[None], "zero": np.int64(0), "one": np.int64(1),
        "axes": np.int64([1]), "table": _RNG.standard_normal((300, 4)).astype(np.float32),
        "m": _RNG.standard_normal((1, 5, 5)).astype(np.float32), "w": _DATA["w"][:4, :4],
        "ff": np.int64([4, 4]), "many": np.int64(4),
    }  # fmt: skip
    nodes.insert(-2, ("Concat", ["s", "ff"], "fw", {"axis": 0}))
    graph = helper.make_graph(
        [helper.make_node(kind, read, [y], **more) for kind, read, y, more in nodes],
        "g",
        [helper.make_tensor_value_info("x", types.INT64, ("b", 5))],
        [helper.make_tensor_value_info("y", types.FLOAT, ("b", 5, 4))],
        [onnx.numpy_helper.from_array(x, name) for name, x in arrays.items()],
    )
    sets = [helper.make_opsetid("", 18)]
    return nnef_jax.load(helper.make_model(graph, opset_imports=sets).SerializeToString())


def test_what_is_expanded_from_one_row_is_the_same_for_all_items() -> None:
    """As positions and kinds of tokens are, as torch's dynamo writes a BERT, and weights."""
    model = _expanded([("Expand", ["row", "es"], "e", {})])
    x = _RNG.integers(300, size=(7, 5))
    wanted = np.concatenate([np.asarray(model(row[None])) for row in x])
    np.testing.assert_allclose(model.batcher((1, 4))(x), wanted, rtol=1e-5, atol=1e-5)


def test_rows_that_differ_in_large_batches_alone_are_refused() -> None:
    """The first four items have the number 0 and the next ones 1."""
    counted = [
        ("Squeeze", ["s"], "n", {}), ("Range", ["zero", "n", "one"], "r", {}),
        ("Div", ["r", "many"], "d", {}), ("Unsqueeze", ["d", "axes"], "u", {}),
        ("Expand", ["u", "es"], "e", {}),
    ]  # fmt: skip
    model = _expanded(counted)
    assert model.batcher((1, 4))(np.zeros((3, 5), np.int64)).shape == (3, 5, 4)
    with pytest.raises(InputError, match="may depend on one another"):
        model.batcher((1, 8))


def test_sizes_alone_are_compiled(one: nnef_jax.Model) -> None:
    seen: list[tuple[int, int]] = []
    batcher = _model(1, 0, input_shapes={"x": (None, 3, 4, 4)}).batcher((4, 2, 2))
    assert batcher.sizes == (2, 4)
    assert str(batcher.inputs[0]) == "x: float32[?,3,4,4]"
    batcher.compile(lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nnef_jax.execution.executables.Executables.get", _not_again)
        for count in (1, 2, 3, 5, 7):
            assert batcher(x=_x(count)).shape == (count, 5)


def test_sizes_are_multiples_of_a_batch_that_is_written_down() -> None:
    assert _model(2, 2).batcher((1, 3, 4)).sizes == (2, 4)


def test_several_outputs_keep_their_names() -> None:
    text = _network(1, 0, "z = softmax(y, axes = [1]);", "y, z")
    found = model_of(text, data=_DATA).batcher((2,))(_x(3))
    assert found._fields == ("y", "z") and found.z.shape == (3, 5)
    np.testing.assert_allclose(found.z.sum(1), 1, rtol=1e-5)


def _not_again(*_: object) -> None:
    raise AssertionError("it is compiled")


def test_what_is_compiled_is_found_again(tmp_path, monkeypatch) -> None:
    x = _x(3)
    for batch in (1, 2):  # once as the batch is open, once mapped
        wanted = _model(batch, batch, cache_dir=tmp_path).batcher((2,))(x)
        again = _model(batch, batch, cache_dir=tmp_path).batcher((2,))
        with monkeypatch.context() as patch:
            patch.setattr("nnef_jax.execution.executables.Executables._split_and_jit", _not_again)
            np.testing.assert_array_equal(again(x), wanted)


def test_it_is_sharded_as_its_model() -> None:
    mesh = jax.make_mesh((2,), ("data",))
    batcher = _model(1, 0, input_shapes={"x": (None, 3, 4, 4)}).shard(mesh, batch="data")
    batcher = batcher.batcher((1, 4))
    assert batcher.sizes == (2, 4)
    x = _x(3)
    np.testing.assert_allclose(batcher(x), _rows(_model(1, 1), x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("y = softmax(x, axes = [0]);", "reduce_max of y .*graph.nnef:7"),
        ("y = x - mean_reduce(x, axes = [0]);", "reduce_sum of"),
        ("y = matmul(x, x, transposeA = true);", "dot_general of y"),
        ("y = concat([x, x], axis = 0);", "no axis for a batch of 2"),
        ("y = transpose(x, axes = [1, 0]);", "output 'y' has no row for each item"),
        ("y = reshape(x, shape = [1, -1]);", "no axis for a batch of 2"),
        ("s = mean_reduce(x, axes = [0, 1]); y = squeeze(s, axes = [0, 1]);", "has no axis"),
    ],
)
def test_items_that_meet_are_refused(body: str, named: str) -> None:
    text = f"{COMPOSITIONAL}\ngraph g(x) -> (y)\n{{\nx = external(shape = [2, 2]);\n{body}\n}}"
    with pytest.raises(InputError, match=named):
        model_of(text).batcher()


def test_rows_that_depend_on_how_many_there_are_are_refused() -> None:
    """As mean_reduce along the batch is, if it is written as a division."""
    text = """version 1.0;
extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;
extension tract_registry tract_core;
graph g(x) -> (y)
{
    x = external<scalar>(shape = [%s, 2]);
    n = tract_core_cast(tract_core_shape_of(x)[0], to = 'f32');
    y = x / n;
}"""
    with pytest.raises(InputError, match="depends on the number of items"):
        model_of(text % 2, input_shapes={"x": (None, 2)}).batcher()
    mapped = model_of(text % 2).batcher((4,))
    np.testing.assert_allclose(mapped(np.float32([[2, 4]] * 3)), [[1, 2]] * 3)


def test_what_has_no_batch_is_refused() -> None:
    text = f"{COMPOSITIONAL} graph g(x, z) -> (y) {{ x = external(shape = [2, 3]); %s y = x + z; }}"
    for z, named in (
        ("z = external(shape = [1, 3]);", "no batch of the same size"),
        ("z = external(shape = []);", "input 'z' has no axis"),
        ("z = variable(shape = [1, 3], label = 'f'); w = update(z, relu(z));", "has a state"),
    ):
        inputs = text % z if "external" in z else (text % z).replace("(x, z)", "(x)", 1)
        with pytest.raises(InputError, match=named):
            model_of(inputs, data={"f": np.zeros((1, 3), np.float32)}).batcher()


def test_wrong_arguments_are_refused(one: nnef_jax.Model) -> None:
    for sizes in ((), (0, 2), (-1,)):
        with pytest.raises(InputError, match="sizes must be"):
            one.batcher(sizes)
    with pytest.raises(TypeError, match="a size must be"):
        one.batcher((1.5,))  # pyright: ignore
    batcher = one.batcher((2,))
    with pytest.raises(InputError, match=r"shape \[2,3,4\]"):
        batcher(np.zeros((2, 3, 4), np.float32))
    with pytest.raises(InputError, match="missing"):
        batcher()
    text = "version 1.0; graph g(x) -> (y) { x = external(shape = [1, 3]); y = relu(x); }"
    with pytest.raises(InputError, match="is not known"):
        model_of(text, input_shapes={"x": (None, None)}).batcher().compile()


def _axes_of(function: object, *arrays: object) -> list[int | None]:
    """The axes of a function's results along which items of its first argument's axis 0 are."""
    program = Program(jaxprs.spliced(jax.make_jaxpr(function)(*arrays), "plain"))
    axes = batch_axes(program, {program.arguments[0]: 0}, resizes=False)
    return [axes.get(v) for v in program.results]


_WIDE = jnp.ones((3, 4, 5))
_TABLE = jnp.ones((7, 6))


@pytest.mark.parametrize(
    ("function", "axes"),
    [
        (lambda x: x.swapaxes(0, 1) + jnp.zeros((4, 1, 5)), [1]),
        (lambda x: _TABLE[x[:, :, 0].astype(int)], [0]),
        (lambda x: jnp.take(x, jnp.array([0, 2]), axis=1), [0]),
        (lambda x: jnp.take_along_axis(x, x.argmax(1, keepdims=True), axis=1), [0]),
        (lambda x: jnp.sort(x, axis=1), [0]),
        (lambda x: jax.lax.top_k(x, 2)[0], [0]),
        (lambda x: jax.lax.dynamic_slice(x, (0, 1, 0), (3, 2, 5)), [0]),
        (lambda x: jnp.flip(x, 1), [0]),
        (lambda x: jnp.concatenate([jnp.tile(jnp.ones((1, 1, 5)), (3, 1, 1)), x], 1), [0]),
        (lambda x: x * jnp.where(jnp.arange(5) > 2, 1.0, 0.0)[None, None], [0]),
        (lambda x: x + np.tile(np.arange(20.0, dtype=np.float32).reshape(1, 4, 5), (3, 1, 1)), [0]),
        (lambda x: x + _TABLE[jnp.zeros((3, 4), int), :5], [0]),
        (lambda x: x @ jnp.tile(jnp.arange(10.0).reshape(1, 5, 2), (3, 1, 1)), [0]),
        (lambda x: x + jnp.tile(_TABLE[:1, :4], (3, 1)).reshape(3, 4, 1), [0]),
        (
            lambda x: jax.lax.scan(
                lambda h, y: (jnp.tanh(h + y), h), jnp.zeros((3, 5)), x.swapaxes(0, 1)
            ),
            [0, 1],
        ),
    ],
    ids=lambda x: None,
)
def test_items_are_followed_through(function: object, axes: list[int | None]) -> None:
    assert _axes_of(function, _WIDE) == axes


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.lax.scan(lambda h, y: (h + y, h), jnp.zeros((4, 5)), x),
        lambda x: jax.lax.scan(
            lambda h, y: (h + y, h), jnp.arange(15.0).reshape(3, 5), x.swapaxes(0, 1)
        ),
        lambda x: jax.lax.scan(
            lambda h, y: (h + y.sum(0), None), jnp.zeros((5,)), x.swapaxes(0, 1)
        ),
        lambda x: x[jnp.array([0, 0, 1])],
        lambda x: jnp.sort(x, axis=0),
        lambda x: jnp.flip(x, 0),
        lambda x: jnp.cumsum(x, axis=0),
        lambda x: x + jnp.arange(60.0).reshape(3, 4, 5),
        lambda x: x + np.arange(60, dtype=np.float32).reshape(3, 4, 5),
        lambda x: x @ jnp.arange(30.0).reshape(3, 5, 2),
        lambda x: x + _TABLE[jnp.arange(12).reshape(3, 4) // 2, :5],
        lambda x: jax.lax.dynamic_slice(x, (0, 1, 0), (2, 2, 5)),
        lambda x: jax.lax.while_loop(lambda x: (x < 9).all(), lambda x: x + 1, x),
    ],
    ids=lambda x: None,
)
def test_items_that_may_meet_end_it(function: object) -> None:
    with pytest.raises(NotSeparableError):
        _axes_of(function, _WIDE)
