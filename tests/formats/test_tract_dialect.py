"""Documents of tract's dialect: what is read in another way, what is refused, and how."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from tests.helpers import archive, model_of

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def document(body: str, *, inputs: str = "x", outputs: str = "y", extra: str = "") -> str:
    declared = {
        "x": "x = tract_core_external(shape = [2, 3], datum_type = 'f32');",
        "h": "h = tract_core_external(shape = [2, 3], datum_type = 'f16');",
        "i": "i = tract_core_external(shape = [3], datum_type = 'i64');",
        "s": "s = tract_core_external(shape = [B, 3, S], datum_type = 'f32');",
    }
    lines = "\n".join(f"    {declared[name.strip()]}" for name in inputs.split(",") if name)
    return (
        "version 1.0;\nextension tract_registry tract_core;\n"
        f"{extra}\ngraph network({inputs}) -> ({outputs})\n{{\n{lines}\n    {body}\n}}\n"
    )


def run(body: str, *arrays: np.ndarray, **options: str) -> np.ndarray:
    return np.asarray(model_of(document(body, **options))(*arrays))


# The language


def test_the_last_assignment_counts() -> None:
    model = model_of(document("y = x + 1.0; y = y * 2.0; z = y; y = y - z;"))
    np.testing.assert_array_equal(model(X), np.zeros((2, 3)))
    np.testing.assert_array_equal(model.intermediates(X, names=["z"])["z"], (X + 1) * 2)


def test_an_input_may_be_a_result() -> None:
    for output in model_of(document("y = x;", outputs="x, y"))(X):
        np.testing.assert_array_equal(output, X)


def test_identifiers_in_quotes() -> None:
    text = """version 1.0;
extension tract_registry tract_core;
graph network(i"onnx::x") -> (i"2", i"a/b")
{
  i"onnx::x" = external(shape = [2, 3]);
  i"2" = neg(i"onnx::x");
  i"q\\"" = [[1.0, 2.0, 3.0]];
  i"a/b" = add(i"onnx::x", i"q\\"");
}
"""
    model = model_of(text)
    assert [spec.name for spec in model.outputs] == ["2", "a/b"]
    negated, sums = model(**{"onnx::x": X})
    np.testing.assert_array_equal(negated, -X)
    np.testing.assert_array_equal(sums, X + np.array([[1, 2, 3]]))


def test_fragments_shadow_operations_and_see_their_parameters_alone() -> None:
    shadow = "fragment silu(v: tensor<scalar>, by: scalar = 2.0) -> (w: tensor<scalar>) "
    np.testing.assert_array_equal(run("y = silu(x);", X, extra=shadow + "{ w = v * by; }"), X * 2)
    np.testing.assert_array_equal(
        run("y = silu(x, by = 3.0);", X, extra=shadow + "{ w = v * by; }"), X * 3
    )
    with pytest.raises(nnef_jax.SemanticError, match="'x' is not defined here"):
        model_of(document("y = silu(x);", extra=shadow + "{ w = x * by; }"))


def test_element_wise_operations_ignore_what_they_do_not_know() -> None:
    np.testing.assert_allclose(run("y = tanh(x, axes = [1]);", X), np.tanh(X), rtol=1e-6)
    with pytest.raises(nnef_jax.SemanticError, match="has no parameter 'axis'"):
        model_of(document("y = sum_reduce(x, axis = 1);"))


def test_precedence_of_operators() -> None:
    np.testing.assert_allclose(run("y = 1.0 + 2.0 * x ^ 2.0 - -x;", X), 1 + 2 * X**2 + X)


# Types


def test_literals_take_the_type_of_the_tensor_beside_them() -> None:
    half = model_of(document("y = h + 1.0;", inputs="h"))
    assert half(X.astype(np.float16)).dtype == jnp.float16
    whole = np.array([-3, 2, 7], np.int64)
    np.testing.assert_array_equal(run("y = i * 2;", whole, inputs="i"), whole * 2)
    np.testing.assert_array_equal(run("y = i / 2;", whole, inputs="i"), [-1, 1, 3])
    np.testing.assert_allclose(run("y = i * 0.5;", whole, inputs="i"), whole * 0.5)
    np.testing.assert_allclose(run("y = i / 2.0;", whole, inputs="i"), whole / 2)


def test_integers_beyond_32_bits_are_refused_not_wrapped() -> None:
    model = model_of(document("y = i + 1;", inputs="i"))
    with pytest.raises(nnef_jax.InputError, match="do not fit int32"):
        model(np.array([1, 2, 2**40]))


# Shapes as values


def test_shapes_are_values_for_each_shape_of_the_inputs() -> None:
    body = (
        "n = tract_core_shape_of(s); b = squeeze(slice(n, axes = [0], begin = [0], end = [1]), "
        "axes = [0]); y = reshape(s, shape = [b * 3, -1]);"
    )
    symbols = "extension tract_symbol B;\nextension tract_symbol S;\nextension tract_assert S >= 2;"
    model = model_of(document(body, inputs="s", extra=symbols))
    assert model.inputs[0].shape == (None, 3, None)
    for shape in [(1, 3, 4), (5, 3, 2)]:
        assert model(np.zeros(shape, np.float32)).shape == (shape[0] * 3, shape[2])
    with pytest.raises(nnef_jax.InputError, match="the document asserts S >= 2") as info:
        model(np.zeros((1, 3, 1), np.float32))
    assert info.value.span is not None and info.value.span.line == 5
    extents = jax.export.symbolic_shape("b, 3, s", constraints=["s >= 2"])
    exported = jax.export.export(jax.jit(lambda x: model.apply({}, x)))(
        jax.ShapeDtypeStruct(extents, jnp.float32)
    )
    assert str(exported.out_avals[0].shape) == "(3*b, s)"


def test_inputs_that_share_a_symbol_must_agree() -> None:
    text = document("y = x;").replace("[2, 3]", "[N, 2*N+1]")
    model = model_of(text)
    assert model(np.zeros((2, 5), np.float32)).shape == (2, 5)
    with pytest.raises(nnef_jax.InputError, match="has extent 4 at axis 1, it should be 5: N = 2"):
        model(np.zeros((2, 4), np.float32))


def test_attributes_that_depend_on_data_are_named() -> None:
    with pytest.raises(nnef_jax.SemanticError, match="'n' must be known when the network is"):
        model_of(document("n = tract_core_cast(x, to = 'i64'); y = tile(x, repeats = n);"))


# What cannot be run


def test_everything_that_is_missing_is_listed_at_once() -> None:
    text = document(
        "y = tract_core_mystery(x); y = helper(y); y = tract_onnx_multinomial(y);",
        extra=(
            "fragment helper(a: tensor<scalar>) -> (b: tensor<scalar>)\n"
            "{ b = tract_core_mystery(strange(a)); }\n"
            "fragment unused(a: tensor<scalar>) -> (b: tensor<scalar>) { b = never_read(a); }"
        ),
    )
    with pytest.raises(nnef_jax.UnsupportedError) as info:
        model_of(text)
    messages = {error.message: error for error in info.value.errors}
    mystery = (
        "there is no rule for operation 'tract_core_mystery' of registry tract_core, used 2 times"
    )
    assert mystery in messages
    first = messages[mystery].span
    assert first is not None and first.line == 4
    assert any("'strange'" in message for message in messages)
    random = next(e for m, e in messages.items() if "tract_onnx_multinomial" in m)
    assert "registry tract_onnx" in random.message and "random numbers" in random.hint
    assert len(messages) == 3


def test_padding_goes_to_outputs_only() -> None:
    model = model_of(document("y = tract_onnx_non_zero(x);"))
    found = np.asarray(model(X))
    np.testing.assert_array_equal(found[:, :5], np.stack(np.nonzero(X)))
    np.testing.assert_array_equal(found[:, 5:], -1)
    with pytest.raises(nnef_jax.UnsupportedError, match="reads 'n', whose extent depends on"):
        model_of(document("n = tract_onnx_non_zero(x); y = n * 2;"))


def test_a_fragment_that_calls_itself_is_refused() -> None:
    with pytest.raises(nnef_jax.SemanticError, match="calls itself"):
        model_of(
            document(
                "y = f(x);",
                extra="fragment f(a: tensor<scalar>) -> (b: tensor<scalar>) { b = f(a); }",
            )
        )


def test_a_template_is_refused() -> None:
    with pytest.raises(nnef_jax.NnefSyntaxError, match="is a template"):
        model_of(document("y = x; {% for i in range(3) %} {% endfor %}"))


# Networks in networks, streams


def test_a_network_within_another() -> None:
    inner = (
        "version 1.0;\nextension tract_registry tract_core;\ngraph inner(a) -> (b, c)\n"
        "{ a = tract_core_external(shape = [N, 3], datum_type = 'f32');\n"
        "  w = variable<scalar>(label = 'w', shape = [1, 3]); b = a * w; c = b + 1.0; }\n"
    )
    from nnef_jax.storage.tensorfile import encode_tensor

    weight = b"".join(map(bytes, encode_tensor(np.array([[1, 2, 3]], np.float32))))
    text = document(
        "(u, v) = tract_core_submodel([x], label = 'part'); y = u + v;",
    )
    data = archive(graph=text, **{"part/w": weight})
    whole = archive_with(data, "part/graph.nnef", inner.encode())
    model = nnef_jax.load(whole)
    assert list(model.params) == ["part/w"]
    np.testing.assert_array_equal(model(X), 2 * X * [[1, 2, 3]] + 1)


def archive_with(data: bytes, name: str, content: bytes) -> bytes:
    """The archive with one more member."""
    import io
    import tarfile

    buffer = io.BytesIO(data)
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_a_stream_in_pieces_is_the_stream_at_once() -> None:
    """A causal convolution of 3 samples with dilation 2, in pieces of 4."""
    kernel = np.array([0.5, -1.0, 2.0], np.float32)
    text = """version 1.0;
extension tract_registry tract_core;
extension tract_registry tract_pulse;
graph network(x) -> (y)
{
    x = external(shape = [1, 1, 4]);
    late = tract_pulse_delay(x, axis = 2, delay = 0, overlap = 4);
    k = [[[0.5, -1.0, 2.0]]];
    y = conv(late, k, 0.0, dilation = [2], padding = [(0, 0)], stride = [1], border = 'constant');
}
"""
    model = model_of(text)
    signal = np.random.default_rng(0).normal(size=40).astype(np.float32)
    ys, state = model.scan(signal.reshape(10, 1, 1, 4))
    padded = np.concatenate([np.zeros(4), signal])
    wanted = sum(kernel[j] * padded[2 * j : 2 * j + 40] for j in range(3))
    np.testing.assert_allclose(np.asarray(ys).ravel(), wanted, rtol=1e-5, atol=1e-6)
    (kept,) = state.values()
    np.testing.assert_array_equal(np.asarray(kept).ravel(), signal[-4:])


def test_the_border_of_a_stream_is_masked() -> None:
    text = """version 1.0;
extension tract_registry tract_pulse;
graph network(x) -> (y)
{
    x = external(shape = [1, 4]);
    y = tract_pulse_mask(x, axis = 1, begin = 3, end = 9, value = -1.0);
}
"""
    signal = np.arange(1, 13, dtype=np.float32)
    ys, _ = model_of(text).scan(signal.reshape(3, 1, 4))
    places = np.arange(12)
    wanted = np.where((places >= 3) & (places < 9), signal, -1)
    np.testing.assert_array_equal(np.asarray(ys).ravel(), wanted)


# Recurrence


def test_scan_with_two_states_and_a_variable_in_its_body() -> None:
    extra = """fragment turn(
    a: tensor<scalar>, total: tensor<scalar>, count: tensor<integer>, by: scalar)
-> (t: tensor<scalar>, n: tensor<integer>, out: tensor<scalar>)
{
    w = variable<scalar>(label = 'w', shape = [1, 3]);
    t = total * by + a * w;
    n = count + 1;
    out = t + tract_core_cast(n, to = 'f32');
}"""
    body = (
        "zero = [[0.0, 0.0, 0.0]]; (y, last, n) = tract_core_scan(body = 'turn', "
        "scan = [('a', x, 0, -1)], full = [('by', 0.5)], "
        "state = [('total', zero, 't'), ('count', 0, 'n')], "
        "output = [('out', 'full', 0, -1), ('t', 'last', 0, 1), ('n', 'last', 0, 1)]);"
    )
    text = document(body, outputs="y, last, n", extra=extra)
    weight = np.array([[1.0, -1.0, 2.0]], np.float32)
    model = model_of(text, data={"w": weight})
    y, last, n = model(X)
    total, outs = np.zeros((1, 3)), []
    for turn, a in enumerate(X[::-1]):
        total = total * 0.5 + a * weight
        outs.append(total + turn + 1)
    np.testing.assert_allclose(y, np.concatenate(outs[::-1]), rtol=1e-6)
    np.testing.assert_allclose(last, total, rtol=1e-6)
    assert int(n) == 2
    slope = jax.grad(lambda p: jnp.sum(model.apply(p, X)[1]))(model.params)["w"]
    np.testing.assert_allclose(slope, X[1:] * 0.5 + X[:1], rtol=1e-6)
