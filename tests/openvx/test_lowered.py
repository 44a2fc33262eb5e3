"""Networks in fixed point: against integers of Python, in jax's transformations, their errors."""

from __future__ import annotations

import json
import pickle
from fractions import Fraction

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax import openvx
from nnef_jax.openvx import Tensor
from tests.cli_support import call, ok
from tests.helpers import model_of
from tests.openvx import reference

rng = np.random.default_rng(7)
TEXT = """version 1.0;
graph net(x) -> (y, z) {
    x = external(shape = [0,4,5,5]);
    k = variable(shape = [4,2,3,1], label = 'k');
    b = variable(shape = [1,4], label = 'b');
    m = variable(shape = [1,4], label = 'm');
    v = variable(shape = [1,4], label = 'v');
    w = variable(shape = [3,8], label = 'w');
    c = conv(x, k, b, padding = [(1,1),(0,0)], groups = 2);
    n = batch_normalization(c, m, v, b, b, epsilon = 0.001);
    e = elu(n);
    p = max_pool(e, size = [1,1,2,2], stride = [1,1,1,1], padding = [(0,0),(0,0),(0,0),(0,0)]);
    s = slice(p, axes = [2,3], begin = [0,0], end = [2,1]);
    z = mul(s, b);
    f = reshape(z, shape = [0,-1]);
    y = linear(f, w, 0.25);
}"""
DATA = {
    "k": rng.normal(0, 0.4, (4, 2, 3, 1)),
    "b": rng.normal(0, 0.4, (1, 4)),
    "m": rng.normal(0, 0.4, (1, 4)),
    "v": rng.uniform(0.5, 2, (1, 4)),
    "w": rng.normal(0, 0.3, (3, 8)),
}
DATA = {label: x.astype(np.float32) for label, x in DATA.items()}


@pytest.fixture(scope="module")
def model() -> nnef_jax.Model:
    return model_of(TEXT, data=DATA)


@pytest.fixture(scope="module")
def fixed(model: nnef_jax.Model) -> openvx.Lowered:
    return openvx.lower(model)


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return rng.normal(0, 2, (2, 4, 5, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def small() -> nnef_jax.Model:
    text = """version 1.0; graph net(x) -> (y, z) {
        x = external(shape = [0,8]); w = variable(shape = [3,8], label = 'w');
        y = linear(x, w, 0.25); z = elu(y); }"""
    return model_of(text, data={"w": DATA["w"]})


SMALL = np.random.default_rng(8).normal(0, 2, (2, 8)).astype(np.float32)


def q78(values) -> np.ndarray:
    whole = [round(Fraction(float(v)) * 256) for v in np.ravel(values)]
    return np.clip(whole, -32768, 32767).astype(np.int16).reshape(np.shape(values))


def slowly(
    x: np.ndarray, overflow: str, rounding: str, khronos: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The network in integers, one item of the batch: as the text of the extension has it."""
    k, b, m, v = (DATA[label].astype(np.float64) for label in "kbmv")
    factor = b / np.sqrt(v + 0.001)
    k, bias = k * factor.reshape(4, 1, 1, 1), ((b - m) * factor + b).ravel()
    k, bias = q78(np.float32(k)), q78(np.float32(bias))
    policies = overflow, rounding
    halves = [slice(0, 2), slice(2, 4)]
    c = np.concatenate(
        [
            reference.convolution(
                x[half], k[half], bias[half], (2, 5, 5), policies, khronos, padding=(0, 1)
            )
            for half in halves
        ]
    )
    real = c / 256.0
    e = q78(np.where(real < 0, np.expm1(np.minimum(real, 0)), real))
    p = np.max([e[:, i : i + 4, j : j + 4] for i in range(2) for j in range(2)], axis=0)[:, :2, :1]
    factors = q78(DATA["b"]).reshape(4, 1, 1)
    z = np.zeros(p.shape, np.int16)
    for at in np.ndindex(*p.shape):
        exact = Fraction(int(p[at]) * int(factors[at[0], 0, 0]), 256)
        z[at] = reference.fitted(reference.rounded(exact, rounding), overflow, np.int16)
    bias = np.full(3, 64, np.int16)
    return reference.fully_connected(z.ravel(), q78(DATA["w"]), bias, policies, khronos), z


# What each policy does, layer by layer, is in test_layers.
CHOICES = [
    ("saturate", "nearest_even", False),
    ("wrap", "to_zero", False),
    ("saturate", "to_zero", True),
]
OTHERS = [("saturate", "to_zero", False), ("wrap", "nearest_even", False)]


@pytest.mark.parametrize(
    ("overflow", "rounding", "khronos"),
    [*CHOICES, *(pytest.param(*others, marks=pytest.mark.slow) for others in OTHERS)],
)
def test_integers_are_those_of_python(model, overflow: str, rounding: str, khronos: bool) -> None:
    raw = rng.integers(-9000, 9000, (2, 4, 5, 5)).astype(np.int16)
    semantics = "khronos" if khronos else "spec"
    options = {"overflow_policy": overflow, "rounding_policy": rounding, "semantics": semantics}
    found = openvx.lower(model, **options)(Tensor(raw))
    made = np.asarray(found.y.data), np.asarray(found.z.data)
    for i in range(2):
        for ours, theirs in zip(made, slowly(raw[i], overflow, rounding, khronos), strict=True):
            np.testing.assert_array_equal(ours[i], theirs)


def test_between_real_numbers(model, fixed, x) -> None:
    found, wanted = fixed.float(x), model(x)
    raw = fixed(*fixed.quantize(x))
    for a, b, c in zip(found, wanted, raw, strict=True):
        np.testing.assert_array_equal(a, c.to_float())
        np.testing.assert_allclose(a, b, atol=0.05)


def test_transformations(small) -> None:
    fixed, tensor = openvx.lower(small), Tensor.quantize(SMALL)
    once = fixed(tensor)
    inside = jax.jit(lambda t: fixed(t).y.data)(tensor)
    np.testing.assert_array_equal(inside, once.y.data)
    many = np.stack([tensor.data, -np.asarray(tensor.data)])
    mapped = np.asarray(jax.jit(jax.vmap(fixed))(Tensor(many)).y.data)
    for i in range(2):
        np.testing.assert_array_equal(mapped[i], fixed(Tensor(many[i])).y.data)
    again = pickle.loads(pickle.dumps(fixed))
    np.testing.assert_array_equal(again(tensor).y.data, once.y.data)
    assert repr(again) == repr(fixed)

    @jax.jit
    def traced(params):
        return openvx.lower(small.with_params(params))(tensor).y.data

    np.testing.assert_array_equal(traced(small.params), once.y.data)
    other = openvx.lower(small.with_params({**small.params, "w": -np.asarray(small.params["w"])}))
    np.testing.assert_allclose(other.float(SMALL).y, 0.5 - np.asarray(once.y.to_float()), atol=0.01)


def test_gradients_pass_straight_through(model, fixed, x) -> None:

    @jax.jit
    def slopes(params):
        def total(params, apply):
            values = apply(params, x)
            return values.y[:, 1].sum(), values

        return [jax.grad(total, has_aux=True)(params, net.apply) for net in (fixed, model)]

    (gradient, values), (wanted, _) = jax.tree.map(np.asarray, slopes(model.params))
    exact = fixed.float(x)
    for a, b in zip(values, exact, strict=True):
        np.testing.assert_array_equal(a, b)
    # Where nothing is cut off, that of y to w is what w is multiplied with: fixed-point numbers.
    z = np.asarray(exact.z).reshape(2, -1).sum(0)
    np.testing.assert_allclose(gradient["w"][1], z, rtol=1e-6)
    assert not gradient["w"][0].any()
    for label in "kbmv":
        scale = np.abs(wanted[label]).max()
        np.testing.assert_allclose(gradient[label], wanted[label], atol=0.05 * scale)


def test_what_is_cut_off_has_no_derivative() -> None:
    text = "version 1.0; graph net(x) -> (y) { x = external(shape = [4]); y = mul(x, 100.0); }"
    fixed = openvx.lower(model_of(text))
    x = np.float32([-200.0, -0.5, 0.5, 2.0])
    np.testing.assert_array_equal(fixed.float(x), np.float32([-128, -50, 50, 127.99609375]))
    slope = jax.jit(jax.grad(lambda x: fixed.apply({}, x).sum()))(x)
    np.testing.assert_array_equal(slope, np.float32([0, 100, 100, 0]))


def test_a_table_is_the_nearest_number_everywhere() -> None:
    text = "version 1.0; graph net(x) -> (y) { x = external(shape = [65536]); y = exp(x); }"
    raw = np.arange(-32768, 32768).astype(np.int16)
    found = openvx.lower(model_of(text))(Tensor(raw)).data
    exact = np.exp(raw / 256.0) * 256
    wanted = np.clip(np.rint(exact), -32768, 32767)
    near = np.abs(exact - np.floor(exact) - 0.5) < 1e-3  # halves of float32 may go either way
    np.testing.assert_array_equal(np.asarray(found)[~near], wanted[~near])


@pytest.mark.parametrize(
    "operation",
    [
        "batch_normalization(x, b, v, b, v, epsilon = 0.01)",
        "prelu(x, one)",
        "mul(one, x)",
        "sub(x, one)",
        "leaky_relu(x, alpha = 0.1)",
    ],
)
def test_operands_that_are_parameters(operation: str, x) -> None:
    text = f"""version 1.0; graph net(x) -> (y) {{
        x = external(shape = [2,4,5,5]);
        b = variable(shape = [1,4], label = 'b'); v = variable(shape = [1,4], label = 'v');
        one = variable(shape = [1,1], label = 'one');
        y = {operation}; }}"""
    model = model_of(text, data={**{n: DATA[n] for n in "bv"}, "one": np.float32([[-0.6]])})
    fixed = openvx.lower(model)
    found = fixed.float(x)
    np.testing.assert_allclose(found, model(x), atol=0.05)
    np.testing.assert_array_equal(fixed.apply(model.params, x), found)


def test_what_does_not_fit_is_computed_between(x) -> None:
    text = """version 1.0; graph net(x) -> (y, i) {
        x = external(shape = [2,4,5,5]); s = sum_reduce(x, axes = [1]); y = relu(s);
        i = argmax_reduce(y, axes = [2,3]); }"""
    model = model_of(text)
    with pytest.raises(nnef_jax.UnsupportedError, match=r"'s' .*does not fit") as error:
        openvx.lower(model)
    assert [e.span is not None for e in error.value.errors] == [True, True]
    found = openvx.lower(model, on_unfit="float")(Tensor.quantize(x))
    wanted = np.maximum(q78(x).astype(int).sum(1, keepdims=True), 0)
    np.testing.assert_array_equal(found.y.data, wanted)
    np.testing.assert_array_equal(np.ravel(found.i), wanted.reshape(2, -1).argmax(1))


def test_integers_between_stay_integers() -> None:
    windows = "size = [1,1,1,2], stride = [1,1,1,2], padding = [(0,0),(0,0),(0,0),(0,0)]"
    text = f"""version 1.0; graph net(x) -> (y) {{ x = external(shape = [1,1,1,300]);
        p, i = max_pool_with_index(x, {windows}); y = desample(p, i, {windows}); }}"""
    x = np.linspace(0, 1, 300, dtype=np.float32).reshape(1, 1, 1, 300)
    found = openvx.lower(model_of(text), on_unfit="float").stats(x, isolate=True)
    assert found.tensors["y"].own_snr > 40


def test_statistics_tell_where_numbers_are_lost() -> None:
    text = """version 1.0; graph net(x) -> (z) {
        x = external(shape = [0,8]); w = variable(shape = [3,8], label = 'w');
        y = linear(x, w, 0.0); z = relu(y); }"""
    w = np.zeros((3, 8), np.float32)
    w[0, 0], w[1, 1], w[2, 2] = 100, 1, 200
    model = model_of(text, data={"w": w})
    x = np.zeros((4, 8), np.float32)
    x[:, 0], x[:2, 1] = [1, 2, 3, 0.5], [500, 400]
    found = openvx.lower(model).stats(x)
    assert found.clipped == {"y.filter": 1}
    assert found.first is found.tensors["x"] and found.first.reason == "saturation"
    assert found.tensors["x"].beyond == 2 / 32
    assert found.tensors["y"].beyond == 2 / 12 and found.tensors["z"].beyond == 0
    assert (found.tensors["y"].low, found.tensors["y"].high) == (0, 127.99609375)
    assert (
        "4 samples, " in str(found)
        and "1 item of weights cut off" in str(found)
        and json.dumps(found.to_dict())
    )
    wrapped = openvx.lower(model, overflow_policy="wrap").stats(x, isolate=True)
    assert wrapped.tensors["z"].own_snr > wrapped.tensors["z"].snr + 1  # which it inherits
    assert wrapped.tensors["y"].low == -56 and wrapped.tensors["y"].beyond == 2 / 12
    with pytest.raises(TypeError, match="isolate"):
        openvx.lower(model).stats(x, isolate=1)  # pyright: ignore[reportArgumentType]


def test_statistics_of_a_set_are_mapped(small) -> None:
    fixed = openvx.lower(small)
    batch, many = fixed.stats(SMALL), fixed.stats(SMALL[:, None])
    assert many.samples == 2 and list(many.tensors) == list(batch.tensors)
    for name, one in batch.tensors.items():
        assert many.tensors[name].beyond == pytest.approx(one.beyond, nan_ok=True)
        assert many.tensors[name].snr == pytest.approx(one.snr, rel=1e-3)


def test_positions(model, x) -> None:
    positions = openvx.search_positions(model, x, profile="openvx-8bit")
    for name, values in (("x", x), ("y.filter", DATA["w"])):
        errors = {}
        for p in range(-4, 16):
            whole = np.clip(np.rint(values * 2.0**p), -128, 127)
            errors[p] = float(np.sum((values - whole / 2.0**p) ** 2))
        assert errors[positions[name]] == min(errors.values())
    fine = openvx.lower(
        model, "openvx-8bit", positions=positions, strict=False, on_unfit="float"
    ).stats(x)
    coarse = openvx.lower(model, "openvx-8bit", on_unfit="float").stats(x)
    assert fine.tensors["y"].snr > coarse.tensors["y"].snr + 10
    assert fine.tensors["c" if "c" in fine.tensors else "n"].position == positions["n"]


def test_wrong_calls(model, fixed, x) -> None:
    with pytest.raises(TypeError, match=r"must be a Tensor, not ndarray: .*\.float"):
        fixed(x)
    with pytest.raises(openvx.VxError, match="INVALID_FORMAT: input 'x' has the type int8"):
        fixed(Tensor(x.astype(np.int8)))
    with pytest.raises(openvx.VxError, match="it must be 8"):
        fixed(Tensor(x.astype(np.int16), 4))
    with pytest.raises(nnef_jax.InputError, match="shape"):
        fixed(Tensor(x[:, :3].astype(np.int16)))
    with pytest.raises(ValueError, match="must be 'saturate' or 'wrap', it is 'saturated'"):
        openvx.lower(model, overflow_policy="saturated")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="strict=False"):
        openvx.lower(model, positions={"x": 3})
    with pytest.raises(nnef_jax.InputError, match=r"(?s)no tensor 'n.filtre'.*'n.filter'"):
        openvx.lower(model, positions={"n.filtre": 3}, strict=False)
    with pytest.raises(openvx.VxError, match="-32 to 32, not 40"):
        openvx.lower(model, positions={"x": 40}, strict=False)
    with pytest.raises(ValueError, match="semantics='spec'"):
        openvx.lower(model, positions={"x": 4}, strict=False, semantics="khronos")
    with pytest.raises(nnef_jax.InputError, match="inputs"):
        fixed.stats(x[None], x[None])
    with pytest.raises(nnef_jax.InputError, match=r"one length above 0, they have \[0\]"):
        fixed.stats(np.zeros((0, *x.shape), np.float32))


def test_the_commands(small, tmp_path) -> None:
    fixed = openvx.lower(small)
    small.save(tmp_path / "net")
    np.save(tmp_path / "x.npy", SMALL)
    given = (tmp_path / "net", tmp_path / "x.npy")
    shown = json.loads(ok("openvx", "run", *given, "--json"))
    outputs = {output["name"]: output["values"] for output in shown["results"][0]["outputs"]}
    np.testing.assert_allclose(outputs["y"], fixed.float(SMALL).y)
    ok("openvx", "run", *given, "--raw", "--output", tmp_path / "raw.npz")
    with np.load(tmp_path / "raw.npz") as saved:
        np.testing.assert_array_equal(saved["y"], fixed(Tensor.quantize(SMALL)).y.data)
    for wrong in (["run", *given, "--unsigned"], ["stats", *given, "--rtol", "0"]):
        code, _, said = call("openvx", *wrong)
        assert code == 2 and ("needs --profile" in said or "must not both be 0" in said)
    found = json.loads(ok("openvx", "stats", *given, "--overflow", "wrap", "--json"))
    assert found["samples"] == 2 and next(iter(found["tensors"])) == "x"
