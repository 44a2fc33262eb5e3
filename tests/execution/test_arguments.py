"""Each argument of each public function is checked by name: a wrong one ends in an error with it.

NnefError is a ValueError; beside it only TypeError and FileNotFoundError may be raised, and the
message names the argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from lowering.host import aligned
from nnef_jax import InputError
from tests.helpers import archive, model_of

_TEXT = """version 1.0;
graph g(x, n) -> (y, m)
{
    x = external(shape = [2,3]);
    n = external<integer>(shape = [3]);
    w = variable(shape = [2,3], label = 'w');
    s = variable(shape = [2,3], label = 's');
    a = add(x, w);
    y = add(a, s);
    m = copy<integer>(n);
    t = update(s, y);
}
"""
X, N = np.ones((2, 3), np.float32), np.arange(3, dtype=np.int32)
_DATA = {"w": X, "s": 0 * X}


class Odd:
    """An object without any meaning, which cannot even be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "Odd()"


# What fits no argument at all.
_ANYTHING: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "number": lambda: 17,
    "nan": lambda: float("nan"),
    "text": lambda: "nonsense",
    "bytes": lambda: b"nonsense",
    "object": Odd,
    "generator": lambda: (x for x in (1, 2)),
    "list": lambda: [1, "a", None],
    "set": lambda: {1, 2},
    "dict": lambda: {"a": 1},
    "keys": lambda: {1: X, None: X},
    "type": lambda: int,
    "function": lambda: len,
    "array": lambda: np.ones((7, 7)),
    "objects": lambda: np.array([None, "a"], object),
    "complex": lambda: np.ones((2, 3), np.complex64),
    "logical": lambda: np.ones((2, 3), bool),
    "dates": lambda: np.zeros((2, 3), "datetime64[s]"),
    "masked": lambda: np.ma.masked_array(X, X > 0),
    "key": lambda: jax.random.key(0),
    "struct": lambda: jax.ShapeDtypeStruct((2, 3), jnp.float32),
    "ragged": lambda: [[1.0], [1.0, 2.0]],
    "huge": lambda: 10**30,
}


@pytest.fixture(scope="module")
def model() -> nnef_jax.Model:
    return model_of(_TEXT, data=_DATA)


# Arrays: each is of one place, and refused there with its name.


def _arrays() -> dict[str, tuple[Callable[[nnef_jax.Model, Any], Any], str]]:
    """Calls with a wrong array in one place, and what errors call the place."""

    def state(m: nnef_jax.Model) -> dict[str, Any]:
        return m.init_state()

    return {
        "call": (lambda m, v: m(v, N), "input 'x'"),
        "call_by_name": (lambda m, v: m(n=N, x=v), "input 'x'"),
        "call_integers": (lambda m, v: m(X, v), "input 'n'"),
        "apply": (lambda m, v: m.apply(m.params, v, N), "input 'x'"),
        "apply_params": (lambda m, v: m.apply({"w": v}, X, N), "params: 'w'"),
        "step": (lambda m, v: m.step(state(m), v, N), "input 'x'"),
        "step_state": (lambda m, v: m.step({"s": v}, X, N), "state: 's'"),
        "step_params": (lambda m, v: m.step(state(m), X, N, params={"w": v}), "params: 'w'"),
        "scan": (lambda m, v: m.scan(v, N[None]), "input 'x'"),
        "scan_state": (lambda m, v: m.scan(X[None], N[None], state={"s": v}), "state: 's'"),
        "scan_params": (lambda m, v: m.scan(X[None], N[None], params={"w": v}), "params: 'w'"),
        "intermediates": (lambda m, v: m.intermediates(v, N), "input 'x'"),
        "save_params": (lambda m, v: m.save("never", params={"w": v}), "params: 'w'"),
        "save_state": (lambda m, v: m.save("never", state={"s": v}), "state: 's'"),
        "save": (
            lambda m, v: nnef_jax.write_archive("never", _TEXT, {"w": v, "s": X}),
            "params: the array for 'w'",
        ),
    }


@pytest.mark.parametrize("call", _arrays())
def test_wrong_arrays(call: str, model: nnef_jax.Model, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    function, place = _arrays()[call]
    for name, make in _ANYTHING.items():
        with pytest.raises(nnef_jax.NnefError) as caught:
            function(model, make())
        assert place in caught.value.message, name
    assert not list(tmp_path.iterdir())


_ABSTRACT = [name for name in _ANYTHING if name != "struct"]


@pytest.mark.parametrize("name", _ABSTRACT)
def test_lower(name: str, model: nnef_jax.Model) -> None:
    with pytest.raises(InputError, match="input 'x'"):
        model.lower(_ANYTHING[name](), N)


def test_lower_takes_what_stands_for_arrays(model: nnef_jax.Model) -> None:
    narrow = jax.ShapeDtypeStruct((3,), jnp.int16)
    lowered = model.lower(jax.ShapeDtypeStruct((2, 3), jnp.bfloat16), narrow)
    assert [x.dtype for x in lowered.in_avals[0][1:]] == [jnp.float32, jnp.int32]


# Options and dicts: a call with one wrong value, by the name of the argument.


def _options() -> Iterator[tuple[str, Callable[[nnef_jax.Model, Any], Any], set[str]]]:
    """The name of an argument, a call with a value for it, and which of the values are right."""
    document = "version 1.0; graph g(x) -> (y) { x = external(shape = [2]); y = neg(x); }"
    plain = archive(graph=document)

    def load(name: str) -> Callable[[nnef_jax.Model, Any], Any]:
        return lambda m, v: nnef_jax.load(plain, **{name: v})

    def convert(name: str) -> Callable[[nnef_jax.Model, Any], Any]:
        return lambda m, v: nnef_jax.convert(plain, **{name: v})

    def calibrate(name: str) -> Callable[[nnef_jax.Model, Any], Any]:
        return lambda m, v: nnef_jax.calibrate(m, [(X, N)], **{name: v})

    buffers = {"array", "logical", "objects", "masked", "complex", "dates"}
    readable = {"text", "bytes"} | buffers  # these are no archives
    yield "source", lambda m, v: nnef_jax.load(v), readable
    yield "input_shapes", load("input_shapes"), {"none"}
    yield "dtype", load("dtype"), set()
    yield "precision", load("precision"), {"none"}
    yield "quantization", load("quantization"), set()
    yield "expand", load("expand"), set()
    yield "state", load("state"), {"none"}
    yield "rules", load("rules"), {"none"}
    yield "limits", load("limits"), {"none"}
    yield "progress", load("progress"), {"none", "type", "function"}
    for flag in ("optimize", "autotune", "donate_state", "unused"):
        yield flag, load(flag), set()
    yield "source", lambda m, v: nnef_jax.convert(v), readable
    yield "path", convert("path"), {"none", "text"}
    yield "flat", convert("flat"), set()
    yield "expand", convert("expand"), set()
    yield "overwrite", convert("overwrite"), set()
    yield "limits", convert("limits"), {"none"}
    yield "path", lambda m, v: nnef_jax.write_archive(v, _TEXT, _DATA), {"text"}
    yield "text", lambda m, v: nnef_jax.write_archive("never", v, _DATA), {"text"}
    yield "params", lambda m, v: nnef_jax.write_archive("never", _TEXT, v), set()
    yield (
        "quantization",
        lambda m, v: nnef_jax.write_archive("never", _TEXT, _DATA, quantization=v),
        {"none", "text"},
    )
    yield "rules", lambda m, v: nnef_jax.write_archive("never", _TEXT, _DATA, rules=v), {"none"}
    yield (
        "overwrite",
        lambda m, v: nnef_jax.write_archive("never", _TEXT, _DATA, overwrite=v),
        set(),
    )
    yield "model", lambda m, v: nnef_jax.calibrate(v, [X]), set()
    yield "sample", lambda m, v: nnef_jax.calibrate(m, v), set()
    yield "bits", calibrate("bits"), set()
    for flag in ("signed", "symmetric", "per_channel"):
        yield flag, calibrate(flag), set()
    yield "algorithm", calibrate("algorithm"), set()
    yield "percentile", calibrate("percentile"), {"none"}
    yield "names", calibrate("names"), {"none"}
    yield "source", lambda m, v: nnef_jax.read_tensor(v), readable
    yield "file", lambda m, v: nnef_jax.write_tensor(v, X), {"text"}
    stored = {"number", "nan", "array", "logical"}
    yield "array", lambda m, v: nnef_jax.write_tensor("never", v), stored
    yield "bits", lambda m, v: nnef_jax.write_tensor("never", X, bits=v), {"none"}
    yield "quantized", lambda m, v: nnef_jax.write_tensor("never", X, quantized=v), set()
    yield "params", lambda m, v: m.apply(v, X, N), set()
    yield "state", lambda m, v: m.step(v, X, N), set()
    yield "params", lambda m, v: m.step(m.init_state(), X, N, params=v), {"none"}
    yield "state", lambda m, v: m.scan(X[None], N[None], state=v), {"none"}
    yield "params", lambda m, v: m.scan(X[None], N[None], params=v), {"none"}
    yield "names", lambda m, v: m.intermediates(X, N, names=v), {"none"}
    yield "path", lambda m, v: m.save(v), {"text"}
    yield "params", lambda m, v: m.save("never", params=v), {"none"}
    yield "state", lambda m, v: m.save("never", state=v), {"none"}
    yield "quantize|sample|graph.quant", lambda m, v: m.save("never", quantize=v), {"none"}
    yield "overwrite", lambda m, v: m.save("never", overwrite=v), set()


@pytest.mark.parametrize("index", range(len(list(_options()))))
def test_wrong_options(index: int, model: nnef_jax.Model, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    name, call, right = list(_options())[index]
    for kind, make in _ANYTHING.items():
        if kind in right:
            continue
        with pytest.raises((ValueError, TypeError, FileNotFoundError)) as caught:
            call(model, make())
        assert re.search(name, str(caught.value)), (kind, str(caught.value))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, jnp.dtype("bfloat16"), "float16"])
def test_a_dtype_is_a_name_or_a_dtype(dtype: Any) -> None:
    model = model_of(_TEXT, data=_DATA, dtype=dtype)
    assert model.outputs[0].dtype == jnp.dtype(dtype).name
    assert {x.dtype for x in model.params.values()} == {jnp.dtype(dtype)}


# Dtypes: of one kind they are converted, and integers must fit.


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_real_arrays_of_any_width_are_converted(dtype: str, model: nnef_jax.Model) -> None:
    x = X.astype(jnp.dtype(dtype))
    state, params = {"s": 2 * x}, {"w": x}
    y, after = model.step(state, x, N, params=params)
    np.testing.assert_array_equal(y.y, 4 * X)
    assert after["s"].dtype == jnp.float32
    assert model.apply(params, x, N).y.dtype == jnp.float32
    ys, after = model.scan(x[None], N[None], state=state, params=params)
    assert ys.y.dtype == after["s"].dtype == jnp.float32


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64"])
def test_integers_must_fit(dtype: str, model: nnef_jax.Model) -> None:
    """As numpy's, as jax's, and traced, where their dtype alone is known."""
    most = np.iinfo(dtype).max
    fits = most <= np.iinfo("int32").max
    given = [np.full(3, most, dtype)]
    if dtype not in ("int64", "uint64"):  # which jax does not have by default
        given.append(jnp.asarray(given[0]))
    for values in given:
        if fits:
            np.testing.assert_array_equal(model(X, values).m, values.astype("int32"))
            np.testing.assert_array_equal(jax.jit(model)(X, values).m, values.astype("int32"))
            continue
        with pytest.raises(InputError, match=rf"values from {most} to {most}, .* not fit int32"):
            model(X, values)
        np.testing.assert_array_equal(model(X, values // values).m, [1, 1, 1])
        if isinstance(values, jax.Array):
            batch = X[None], values[None]
            for traced, arrays in ((jax.jit(model), (X, values)), (jax.vmap(model), batch)):
                with pytest.raises(InputError, match=f"traced with dtype {dtype}") as caught:
                    traced(*arrays)
                assert "x.astype('int32')" in caught.value.hint


def test_unsigned_inputs_of_tract_are_checked_as_well() -> None:
    from tests.tract_text import graph

    model = model_of(graph("y = x;", x="[2] u8"))
    np.testing.assert_array_equal(model(np.array([0, 255])), [0, 255])
    for values in ([-1, 0], [0, 256]):
        with pytest.raises(InputError, match="do not fit uint8"):
            model(np.array(values))


def test_a_complex_state_is_refused(model: nnef_jax.Model) -> None:
    with pytest.raises(InputError, match="state: 's' has dtype complex64"):
        model.step({"s": X.astype(np.complex64)}, X, N)
    with pytest.raises(InputError, match="params: 'w' has dtype complex64"):
        jax.jit(lambda w: model.apply({"w": w}, X, N))(X.astype(np.complex64))


def test_errors_of_several_arrays_come_at_once(model: nnef_jax.Model) -> None:
    with pytest.raises(InputError) as caught:
        model("a", "b")
    assert [e.message.split()[1] for e in caught.value.errors] == ["'x'", "'n'"]


@pytest.mark.parametrize("make", [np.array, jnp.asarray])
def test_later_calls_are_checked_as_the_first(
    make: Callable[[Any], Any], model: nnef_jax.Model
) -> None:
    x, n = make(X), make(N)
    for _ in range(2):  # the second time what is compiled is found by the types
        for y in (model(x, n), model(x, n=n), model(n=n, x=x), model(x.astype(np.float16), n)):
            np.testing.assert_array_equal(y["y"], 2 * X)
            np.testing.assert_array_equal(y["m"], N)
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: model(x, n, z=n), "no input 'z'"),
        (lambda: model(x, n, x=x), "by position and by name"),
        (lambda: model(x, x=x), "by position and by name"),
        (lambda: model(x), "input 'n' is missing"),
        (lambda: model(n=n), "input 'x' is missing"),
        (lambda: model(x, n, n), "3 inputs are given"),
        (lambda: model(x[:1], n), r"'x' has shape \[1,3\]"),
        (lambda: model(n, x), "'x' has shape"),
        (lambda: model(x.astype(bool), n=n), "'x' has dtype bool"),
    ]
    for call, message in refused:
        with pytest.raises(InputError, match=message):
            call()


def test_an_array_may_be_changed_after_each_call() -> None:
    text = """version 1.0; graph g(x) -> (y) {
    x = external(shape = [256, 256]); a = matmul(x, x); b = matmul(a, a); c = matmul(b, b);
    y = add(c, x); }"""
    model, x = model_of(text), aligned((256, 256), np.dtype(np.float32))
    for _ in range(3):
        x[...] = np.eye(256)
        y = model(x)
        x[...] = 7  # while it may still be read
        np.testing.assert_array_equal(y, 2 * np.eye(256))


# Transformations and modes of jax.


def test_nothing_is_made_concrete(model: nnef_jax.Model) -> None:
    params, state = model.params, model.init_state()
    shapes = jax.eval_shape(model.apply, params, X, N)
    assert shapes.y.shape == (2, 3)
    assert jax.eval_shape(model.step, state, X, N)[1]["s"].shape == (2, 3)
    slope = jax.grad(lambda p, s: model.step(s, X, N, params=p)[1]["s"].sum(), (0, 1))(
        params, state
    )
    np.testing.assert_array_equal(slope[0]["w"], X)
    np.testing.assert_array_equal(slope[1]["s"], X)
    many = {"w": jnp.stack([params["w"]] * 4)}
    assert jax.vmap(model.apply, (0, None, None))(many, X, N).y.shape == (4, 2, 3)
    exported = jax.export.export(jax.jit(model.apply))(params, X, N)
    np.testing.assert_array_equal(exported.call(params, X, N).y, 2 * X)


@pytest.mark.parametrize("called_before", [False, True])
def test_without_jit(called_before: bool) -> None:
    model = model_of(_TEXT, data=_DATA)
    params, state = model.params, model.init_state()

    def run() -> list[Any]:
        return [
            model(X, N),
            model(jnp.asarray(X), jnp.asarray(N)),
            model.apply(params, X, N),
            model.step(state, X, N),
            model.step(state, X, N, params=params),
            model.scan(X[None], N[None]),
            model.intermediates(X, N),
            jax.grad(lambda p: model.apply(p, X, N).y.sum())(params),
            jax.vmap(lambda x: model(x, N))(X[None]),
        ]

    if called_before:
        run()
    with jax.disable_jit():
        plain = run()
    jax.tree.map(np.testing.assert_array_equal, plain, run())


def test_scan_of_no_steps(model: nnef_jax.Model) -> None:
    ys, state = model.scan(X[None][:0], N[None][:0])
    assert ys.y.shape == (0, 2, 3)
    np.testing.assert_array_equal(state["s"], 0 * X)


def test_traced_arrays_cannot_be_saved(model: nnef_jax.Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="params: 'w' is traced"):
        jax.jit(lambda w: model.save(tmp_path / "net", params={"w": w}))(X)
    assert not list(tmp_path.iterdir())


def test_input_shapes_may_be_empty_or_open() -> None:
    text = "version 1.0; graph g(x) -> (y) { x = external(shape = [2]); y = neg(x); }"
    assert model_of(text, input_shapes={"x": [None]}).inputs[0].shape == (None,)
    assert model_of(text, input_shapes={"x": (np.int64(3),)}).inputs[0].shape == (3,)
    assert model_of(text, input_shapes={"x": [0]})(np.ones(0, np.float32)).shape == (0,)
    for shape in ("3", 3, [3.0], [True], {3}, ["3"]):
        with pytest.raises(TypeError, match="input_shapes of 'x' must"):
            model_of(text, input_shapes={"x": shape})  # pyright: ignore


@pytest.mark.parametrize(
    ("declared", "shape", "hint"),
    [
        ((2, 3, 4, 4), (2, 4, 4, 3), "another order"),
        ((0, 3, 4, 4), (2, 4, 4, 3), "another order"),  # pictures of torchvision and of PIL
        ((0, 3, 0, 0), (2, 5, 4, 3), "another order"),
        ((0, 3, 4, 4), (2, 4, 4, 1), "input_shapes"),
        ((0, 3, 4, 4), (3, 4, 4), "x[None]"),
    ],
)
def test_hints_for_wrong_shapes(declared: Any, shape: Any, hint: str) -> None:
    text = f"graph g(x) -> (y) {{ x = external(shape = {[*declared]}); y = relu(x); }}"
    model = model_of(f"version 1.0; {text}")
    with pytest.raises(InputError) as error:
        model(np.ones(shape, np.float32))
    assert hint in error.value.hint
