"""Types of tract's dialect: what literals become, casts, 64 bits, float16, codes, other kinds."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import nnef_jax
from nnef_jax import DataError, InputError
from tests.helpers import archive, model_of
from tests.tract_files import TR, tensor
from tests.tract_text import error, graph, model, run

X = np.array([[1.5, -2.0, 3.0], [-4.0, 0.0, 6.5]], np.float32)
I = np.array([-7, 0, 7, 2])
INPUTS = {
    "x": "[2,3] f32",
    "h": "[2,3] f16",
    "i": "[4] i64",
    "j": "[4] i32",
    "u": "[4] u8",
    "t": "[4] bool",
    "c": "[2] complexf32",
    "d": "[2,3] f64",
}
ARRAYS = [
    X,
    X.astype(np.float16),
    I,
    I.astype(np.int32),
    np.array([0, 1, 200, 255], np.uint8),
    np.array([True, False, True, False]),
    np.array([1 + 2j, -1j], np.complex64),
    X.astype(np.float64),
]


@pytest.mark.parametrize(
    ("expression", "dtype", "wanted"),
    [
        ("x + 1", "float32", X + 1),
        ("h + 1.0", "float16", X + 1),
        ("h * 2", "float16", X * 2),
        ("1 / (h + 10)", "float16", 1 / (X + 10)),
        ("h + x", "float32", 2 * X),
        ("i * 2", "int32", I * 2),
        ("i * 2.0", "int32", I * 2),
        ("i * 0.5", "float32", I * 0.5),
        ("i / 2", "int32", [-3, 0, 3, 1]),
        ("i / 2.0", "float32", I / 2),
        ("i / 3", "int32", [-2, 0, 2, 0]),
        ("i < 0.5", "bool", I < 0.5),
        ("max(i, 0.0)", "int32", np.maximum(I, 0)),
        ("min(i, inf)", "float32", I),
        ("i + 1.5", "float32", I + 1.5),
        ("select(i > 0, i, 0)", "int32", np.where(I > 0, I, 0)),
        ("select(i > 0, i, -inf)", "float32", np.where(I > 0, I, -np.inf)),
        ("select(t, i, j + 1)", "int32", np.where([1, 0, 1, 0], I, I + 1)),
        ("u + 1", "uint8", [1, 2, 201, 0]),
        ("u / 2", "uint8", [0, 0, 100, 127]),
        ("u * 0.5", "float32", [0, 0.5, 100, 127.5]),
        ("u + i", "int32", np.array([0, 1, 200, 255]) + I),
        ("t * 2", "int32", [2, 0, 2, 0]),
        ("t == 1", "bool", [True, False, True, False]),
        ("not(t)", "bool", [False, True, False, True]),
        ("and(t, i > 0)", "bool", [False, False, True, False]),
        ("sqrt(u)", "float32", np.sqrt([0, 1, 200, 255])),
        ("exp(i)", "float32", np.exp(I)),
        ("d + 1.0", "float32", X + 1),
        ("d + h", "float32", 2 * X),
        ("concat([x, h], axis = 0)", "float32", np.vstack([X, X])),
        ("stack([i, [1, 2, 3, 4]], axis = 0)", "int32", [I, [1, 2, 3, 4]]),
        ("linear(h, [[1.0, 1.0, 1.0]])", "float16", X.sum(1, keepdims=True)),
        ("sum_reduce(i, axes = [0])", "int32", [I.sum()]),
        ("argmax_reduce(x, axes = [1])", "int32", [[2], [2]]),
        ("c * 2.0", "complex64", [2 + 4j, -2j]),
        ("c + c", "complex64", [2 + 4j, -2j]),
        ("tract_core_complex_to_inner_dim(c)", "float32", [[1, 2], [0, -1]]),
        # Casts
        ("tract_core_cast(x, to = 'i64')", "int32", [[1, -2, 3], [-4, 0, 6]]),
        ("tract_core_cast(x, to = 'I32')", "int32", [[1, -2, 3], [-4, 0, 6]]),
        ("tract_core_cast(x, to = 'TDim')", "int32", [[1, -2, 3], [-4, 0, 6]]),
        ("tract_core_cast(x, to = 'F16')", "float16", X),
        ("tract_core_cast(x, to = 'f64')", "float32", X),
        ("tract_core_cast(x, to = 'bool')", "bool", X != 0),
        ("tract_core_cast(x, to = 'u8')", "uint8", [[1, 0, 3], [0, 0, 6]]),
        ("tract_core_cast(i * 100, to = 'i8')", "int8", (I * 100).astype(np.int8)),
        ("tract_core_cast(u, to = 'i8')", "int8", [0, 1, -56, -1]),
        ("tract_core_cast(t, to = 'f32')", "float32", [1, 0, 1, 0]),
        ("tract_core_cast(i, to = 'complexf32')", "complex64", I),
        ("tract_core_cast(x)", "float32", X),
        ("tract_core_cast(x, to = 'QU8(Z:3 S:0.5)')", "float32", X),
        ("tract_core_cast(2.5, to = 'f16')", "float16", 2.5),
        ("tract_core_cast([300, -1], to = 'u8')", "uint8", [44, 255]),
        ("tract_core_cast(7, to = 'i16')", "int16", 7),
        ("tract_core_cast(7, to = 'complexf32')", "complex64", 7),
        ("tract_core_cast(7, to = 'f16') * x", "float32", X * 7),
        ("slice(i, [0], begin = [tract_core_cast(2, to = 'u8')], end = [4])", "int32", I[2:]),
    ],
)  # fmt: skip
def test_types(expression: str, dtype: str, wanted: Any, outputs: dict[str, np.ndarray]) -> None:
    got = outputs[expression]
    assert got.dtype.name == dtype and got.shape == np.shape(wanted)
    np.testing.assert_allclose(got, wanted, rtol=2e-3 if dtype == "float16" else 1e-6)


@pytest.fixture(scope="module")
def outputs() -> dict[str, np.ndarray]:
    """All the expressions as outputs of one network."""
    (mark,) = [m for m in test_types.pytestmark if m.name == "parametrize"]  # type: ignore
    expressions = [row[0] for row in mark.args[1]]
    names = [f"y{k}" for k in range(len(expressions))]
    body = "\n".join(f"{n} = {e};" for n, e in zip(names, expressions, strict=True))
    found = run(graph(body, results=", ".join(names), **INPUTS), *ARRAYS)
    return dict(zip(expressions, found, strict=True))


@pytest.mark.parametrize(
    ("body", "message", "hint"),
    [
        ("y = §tract_core_cast(x, to = 'string');", "'string' cannot be computed with", "bool, u8"),
        ("y = §tract_core_cast(x, to = 'float');", "'float' is not one of tract's", "bool, u8"),
        ("y = §tract_core_cast(x, to = 3);", "a string is due, this is 3", ""),
        ("y = u §* 300;", "300 does not fit uint8", ""),
        ("y = u §+ -5;", "-5 does not fit uint8", ""),
        ("y = i §+ 3000000000;", "3000000000 does not fit int32", "x64"),
        ("y = i §+ 1e30;", "1e+30 does not fit int32", ""),
        ("y = §tract_core_gather(x, 0.5, axis = 0);", "a whole number is due, this is 0.5", ""),
        ("y = §tract_core_einsum([x, x], 'ij,ij->i', acc = 'f31');", "'f31' is not one", ""),
        ("y = §tract_core_einsum([x, x], 'ij,ij->i', acc = '');", "'' is not one", ""),
    ],
)
def test_wrong_types(body: str, message: str, hint: str) -> None:
    found = error(graph(body, **INPUTS))
    assert message in found.message and hint in found.hint


def test_kinds_of_inputs() -> None:
    specs = {i.name: i.dtype for i in model(graph("y = x;", **INPUTS)).inputs}
    assert specs == {
        "x": "float32", "h": "float16", "i": "int32", "j": "int32", "u": "uint8", "t": "bool",
        "c": "complex64", "d": "float32",
    }  # fmt: skip
    for name, type in (("external<integer>", "int32"), ("external<logical>", "bool"),
                       ("external", "float32"), ("external<scalar>", "float32")):  # fmt: skip
        text = (
            graph("y = x;").replace("tract_core_external", name).replace(", datum_type = 'f32'", "")
        )
        assert model(text).inputs[0].dtype == type
    with pytest.raises(InputError, match="has dtype float32, the graph declares uint8"):
        model(graph("y = u;", u="[4] u8"))(np.ones(4, np.float32))
    with pytest.raises(InputError, match="which do not fit int32"):
        model(graph("y = i;", i="[1] i64"))(np.array([2**40]))


def test_parameters_take_the_type_of_the_tensors_beside_them() -> None:
    data = {"eps": np.array(0.25, np.float64), "k": np.array([[1, 2, 3]], np.int64)}
    variables = (
        "eps = variable<scalar>(label = 'eps', shape = []);"
        "k = variable<scalar>(label = 'k', shape = [1, 3]);"
    )
    for body, dtype, wanted in (
        ("y = x + eps;", "float32", X + 0.25),
        ("y = h + eps;", "float16", X + 0.25),
        ("y = h * k;", "float16", X * [[1, 2, 3]]),
        ("y = k * eps;", "float32", np.array([[0.25, 0.5, 0.75]])),
        ("y = k * 2;", "int32", np.array([[2, 4, 6]])),
        ("y = i * eps;", "float32", I * 0.25),
    ):
        got = run(graph(variables + body, **INPUTS), *ARRAYS, data=data)
        assert got.dtype.name == dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-3)


# 64 bits


def test_stored_integers_that_do_not_fit() -> None:
    text = graph("k = §variable<scalar>(label = 'k', shape = [2]); y = x;")
    found = error(text, data={"k": np.array([1, 2**40])})
    assert isinstance(found, DataError) and "do not fit int32" in found.message
    assert "x64" in found.hint


# tract holds extents and padding in unsigned integers, in which -1 wraps.
WRAPPED = {-1: 2**64 - 1, -2: 2**64 - 2, -3: 2**64 - 3, -(2**63): 2**63}


@pytest.mark.parametrize(
    "call",
    [
        "pad(x, padding = [(-1, 1), (0, -1)])",
        "pad(x, padding = [[-1, 1], [0, -2]], border = 'replicated')",
        "pad(x, [(0, 1), (1, -1)], border = 'reflect')",
        "conv(unsqueeze(x, axes = [0]), [[[1.0]], [[1.0]]], groups = 2, padding = [(0, 0)])",
        "slice(x, axes = [-1], begin = [-2], end = [0])",
        "reshape(x, shape = [-1])",
        "[1.0, 2.0, 3.0][-2] * x",
        "transpose(x, axes = [-1, 0])",
        "tract_core_scan('f', [('a', x, -2, -1)], [], [], [('a', 'full', 0, -1)])",
    ],
)
def test_negative_integers_in_64_bits_without_a_sign(call: str) -> None:
    text = graph(f"y = {call};", "fragment f( a: T ) -> ( a: T ) { }")
    wrapped = re.sub(r"-\d+", lambda found: str(WRAPPED[int(found[0])]), text)
    np.testing.assert_array_equal(run(wrapped, X), run(text, X))


def test_the_largest_integers_of_64_bits() -> None:
    for number in (2**63, 2**64 - 1):
        found = error(graph(f"y = §concat([x, x], axis = {number});"))
        assert "'axis' must lie in" in found.message and str(number - 2**64) in found.message
    found = error(graph(f"y = §concat([x, x], axis = {2**64});"))
    assert "an integer of 64 bits is due, this is 18446744073709551616" in found.message


def test_64_bits() -> None:
    """With jax's x64 mode nothing is narrowed; it is the process that has it."""
    code = """
        import jax, numpy as np
        jax.config.update("jax_enable_x64", True)
        from tests.tract_text import graph, model, run
        i, d, x = np.array([2**40, -3]), np.array([0.1, 0.2]), np.array([1, 2], np.float32)
        inputs = {"i": "[2] i64", "d": "[2] f64", "x": "[2] f32"}
        for body, dtype, wanted in (
            ("y = i + 3000000000;", "int64", i + 3000000000),
            ("y = d * 2.0;", "float64", d * 2),
            ("y = x + 0.5;", "float32", x + 0.5),
            ("y = x + d;", "float64", x + d),
            ("y = 3000000000;", "int64", 3000000000),
            ("y = 0.5;", "float32", 0.5),
            ("y = w * x;", "float32", x * 0.1),
            ("y = w * d;", "float64", d * 0.1),
            ("y = k;", "int64", 2**40),
            ("y = tract_core_cast(i, to = 'i32');", "int32", [0, -3]),
            ("y = tract_core_cast(d, to = 'f32');", "float32", d.astype("f4")),
            ("y = tract_core_cast(7, to = 'i32');", "int32", 7),
            ("y = tract_core_cast(7, to = 'f64');", "float64", 7),
            ("y = reshape(x, shape = [1, tract_core_cast(2, to = 'i32')]);", "float32", [[1, 2]]),
            ("y = argmax_reduce(d, axes = [0]);", None, [1]),
            ("y = tract_core_shape_of(x);", "int64", [2]),
            ("y = tract_core_range(0, 100000, 1);", "int64", np.arange(100000)),
        ):
            setup = ("w = variable<scalar>(label = 'w', shape = []);"
                     "k = variable<scalar>(label = 'k', shape = []);")
            data = {"w": np.array(0.1), "k": np.array(2**40)}
            got = run(graph(setup + body, **inputs), i, d, x, data=data)
            assert dtype is None or got.dtype.name == dtype, (body, got.dtype)
            np.testing.assert_allclose(got, wanted, rtol=1e-7 if got.dtype == np.float64 else 1e-6)
        print("right")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("right\n"), done.stderr


# Real numbers of other widths


def test_documents_in_float16() -> None:
    text = graph(
        "w = variable<scalar>(label = 'w', shape = [2, 3]); z = linear(h, w, 0.5);"
        "y = softmax(z * 2.0 + 1e-3, axes = [1]); n = sum_reduce(z, axes = [1]) / 3;",
        results="y, n",
        h="[2,3] f16",
    )
    w = np.arange(6, dtype=np.float16).reshape(2, 3) / 8
    found = model(text, data={"w": w})
    assert found.params["w"].dtype == jnp.float16
    y, n = found(X.astype(np.float16))
    z = X @ w.astype(np.float32).T + 0.5
    wanted = np.exp(2 * z - 2 * z.max(1, keepdims=True))
    wanted /= wanted.sum(1, keepdims=True)
    assert y.dtype == n.dtype == jnp.float16
    np.testing.assert_allclose(y, wanted, atol=5e-3)
    np.testing.assert_allclose(n, z.sum(1, keepdims=True) / 3, atol=2e-2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_real_numbers_computed_in_another_type(dtype: str) -> None:
    text = graph(
        "w = variable<scalar>(label = 'w', shape = [1, 3]); s = tract_core_shape_of(x)[1];"
        "y = x * w + 0.5 / s; n = tract_core_cast(s, to = 'f32'); k = s * 2; h = h * 1.0;",
        results="y, n, k, h",
        x="[2,3] f32",
        h="[1] f16",
    )
    found = model(text, data={"w": np.float32([[1, 2, 3]])}, dtype=dtype)
    y, n, k, h = found(X, np.ones(1, np.float16))
    assert found.params["w"].dtype == y.dtype == n.dtype == dtype
    assert k.dtype == jnp.int32 and h.dtype == jnp.float16
    np.testing.assert_allclose(np.asarray(y, np.float32), X * [[1, 2, 3]] + 0.5 / 3, rtol=2e-2)


# Codes


QUANT = (
    '"x": zero_point_linear_quantize(zero_point = 10, scale = 0.5, bits = 8, signed = false);\n'
    '"w": zero_point_linear_quantize(zero_point = 0, scale = 0.25, bits = 8, signed = true);\n'
    '"b": zero_point_linear_quantize(zero_point = 0, scale = 0.125, bits = 32, signed = true);\n'
    '"y": zero_point_linear_quantize(zero_point = 100, scale = 2.0, bits = 8, signed = false);\n'
)
CODES = np.array([[4, -8, 12], [1, 2, -3]], np.int8)
BIAS = np.array([[8, -16]], np.int32)


def quantised(quantization: Any = "apply") -> nnef_jax.Model:
    """y = x W + b with W and b stored as codes."""
    text = graph(
        "x = tract_core_cast(x); w = variable(label = 'w', shape = [2, 3]);"
        "b = variable<integer>(label = 'b', shape = [1, 2]); y = linear(x, w, b);"
        "z = tract_core_cast(y, to = 'f32');",
        results="z",
    )
    data = archive(
        graph=text,
        quant=QUANT,
        w=tensor((2, 3), 8, 3, CODES.tobytes()),
        b=tensor((1, 2), 32, 3, BIAS.tobytes()),
    )
    return nnef_jax.load(data, quantization=quantization)


def rounded(x: np.ndarray, zero: int, scale: float) -> np.ndarray:
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def test_tensors_of_graph_quant_are_rounded() -> None:
    w, b = CODES * 0.25, BIAS * 0.125
    x = X * 3 + 0.2
    wanted = rounded(rounded(x, 10, 0.5) @ w.T + b, 100, 2.0)
    found = quantised()
    np.testing.assert_allclose(found(x), wanted, atol=1e-6)
    np.testing.assert_array_equal(found.params["w"], w)
    np.testing.assert_array_equal(found.params["b"], b)
    exact = quantised("ignore")
    np.testing.assert_allclose(exact(x), x @ w.T + b, rtol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(exact(x)))(jnp.asarray(x))
    np.testing.assert_allclose(gradient, np.broadcast_to(w.sum(0), X.shape), rtol=1e-6)


def test_q4_0() -> None:
    random = np.random.default_rng(3)
    codes = random.integers(-8, 8, (4, 64))
    codes[:, ::32] = -8
    scales = np.array([0.5, 0.25, 1.0, 2.0], np.float32)
    weights = codes.astype(np.float32) * scales[:, np.newaxis]
    low, high = (codes.reshape(8, 2, 16) + 8).astype(np.uint8).swapaxes(0, 1)
    rows = zip(scales.repeat(2).astype("<f2"), low | high << 4, strict=True)
    data = b"".join(scale.tobytes() + pairs.tobytes() for scale, pairs in rows)
    file = tensor((4, 64), 0xFFFF_FFFF, 0x3040, data, vendor=TR)
    text = graph(
        "w = variable(label = 'w', shape = [4, 64]); y = linear(x, w, 0.0);"
        "g = tract_core_gather(w, 2, axis = 0, datum_type = 'f32');"
        "k = variable(label = 'w', shape = [4, 64]);",
        results="y, g",
        x="[3, 64] f32",
    )
    found = nnef_jax.load(archive(graph=text, w=file))
    x = random.uniform(-1, 1, (3, 64)).astype(np.float32)
    y, g = found(x)
    np.testing.assert_allclose(y, x @ weights.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(g, weights[2])
    convolution = graph(
        "w = variable(label = 'w', shape = [4, 2, 32]); y = conv(x, w, padding = [(0, 0)]);",
        x="[1, 2, 40] f32",
    )
    signal = random.uniform(-1, 1, (1, 2, 40)).astype(np.float32)
    got = nnef_jax.load(archive(graph=convolution, w=file))(signal)
    windows = np.lib.stride_tricks.sliding_window_view(signal[0], 32, axis=1)
    wanted = np.einsum("ctk,ock->ot", windows, weights.reshape(4, 2, 32))
    np.testing.assert_allclose(got[0], wanted, rtol=1e-4, atol=1e-4)


def test_complex_parameters() -> None:
    file = tensor((2,), 64, 0, np.array([1j, 2 - 1j], np.complex64).tobytes(), vendor=TR)
    text = graph("w = variable(label = 'w', shape = [2]); y = c * w;", c="[2] complexf32")
    found = nnef_jax.load(archive(graph=text, w=file))
    c = np.array([1 + 1j, 2], np.complex64)
    np.testing.assert_allclose(found(c), c * np.array([1j, 2 - 1j]))
    wrong = graph("w = variable(label = 'w', shape = [2]); y = reshape(c, shape = w);",
                  c="[2] complexf32")  # fmt: skip
    with pytest.raises(nnef_jax.SemanticError, match="these numbers are complex"):
        nnef_jax.load(archive(graph=wrong, w=file))


@pytest.mark.parametrize("expression", ["c * 2.0", "c + tract_core_cast(7, to = 'complexf32')"])
def test_complex_numbers_in_flat_documents(expression: str, tmp_path: Path) -> None:
    source = archive(graph=graph(f"y = {expression};", c="[2] complexf32"))
    text = nnef_jax.convert(source, tmp_path / "flat", flat=True)
    assert "complexf16" not in text
    c = np.array([1 + 1j, 2], np.complex64)
    wanted = c * 2 if "*" in expression else c + 7
    np.testing.assert_allclose(nnef_jax.load(tmp_path / "flat")(c), wanted)


def test_complex_numbers_that_no_file_holds(tmp_path: Path) -> None:
    file = tensor((), 64, 0, np.array(1j, np.complex64).tobytes(), vendor=TR)
    text = graph("w = variable(label = 'w', shape = []); y = c * w;", c="[2] complexf32")
    with pytest.raises(nnef_jax.UnsupportedError, match="'w' holds complex numbers"):
        nnef_jax.convert(archive(graph=text, w=file), tmp_path / "flat", flat=True)
    with pytest.raises(DataError, match="cannot hold items of dtype complex64"):
        nnef_jax.load(archive(graph=text, w=file)).save(tmp_path / "saved")
    assert not list(tmp_path.iterdir())


def test_bfloat16_parameters() -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    array = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    text = graph("w = variable(label = 'w', shape = [2]); y = x * w;", x="[2] f32")
    data = archive(graph=text)
    buffer = io.BytesIO(data)
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        content = safetensors.save({"w": array})
        info = tarfile.TarInfo("model.safetensors")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    got = np.asarray(nnef_jax.load(buffer.getvalue())(np.ones(2, np.float32)))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, [1.5, -2.0])


def test_variables_of_all_kinds() -> None:
    data = {
        "b": np.array([True, False]),
        "u8": np.array([0, 255], np.uint8),
        "i8": np.array([-128, 127], np.int8),
        "i16": np.array([-1, 2], np.int16),
        "i64": np.array([-1, 2]),
        "f16": np.array([0.5, 2], np.float16),
        "f64": np.array([0.1, 2]),
    }
    variables = " ".join(f"{n} = variable<scalar>(label = '{n}', shape = [2]);" for n in data)
    outputs = model_of(graph(variables, results=", ".join(data)), data=data)(X)
    narrow = {"i64": "int32", "f64": "float32"}
    for (name, array), got in zip(data.items(), outputs, strict=True):
        assert got.dtype.name == narrow.get(name, array.dtype.name)
        np.testing.assert_allclose(got, array, rtol=1e-6)
