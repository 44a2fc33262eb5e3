"""Symbolic extents: what they are solved from, where they may stand, what is asserted of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.extents import UNKNOWN
from nnef_jax import InputError, NnefError
from nnef_jax.execution.runnable import execution_of
from nnef_jax.formats.tract import symbols
from nnef_jax.limits import Meter
from tests.helpers import model_of
from tests.tract_text import error, graph, model, parsed, run

SYMBOLS = "extension tract_symbol S;\nextension tract_symbol B;\n"


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


# Solving


def solved(inputs: dict[str, str], shapes: dict[str, Any], head: str = SYMBOLS) -> dict[str, int]:
    document = parsed(graph("y = x;", head=head, **{n: f"{s} f32" for n, s in inputs.items()}))
    return symbols.solve(document, shapes, Meter())


@pytest.mark.parametrize(
    ("shape", "extents", "wanted"),
    [
        ("[S]", [7], 7),
        ("[S]", [0], 0),
        ("[2 * S]", [8], 4),
        ("[S * 3 - 1]", [8], 3),
        ("[10 - S]", [3], 7),
        ("[S + S]", [6], 3),
        ("[(S + 2) * 4]", [12], 1),
        ("[S / 2]", [3], 6),
        ("[(S + 1) / 2]", [3], 5),
        ("[(S + 7) / 8 * 8]", [16], 9),
        ("[S * S]", [49], 7),
        ("[S - S / 2]", [5], 9),
        ("[-S + 4]", [1], 3),
        ("[S / 2, S]", [3, 7], 7),
        ("[S, S / 2]", [6, 3], 6),
        ("[1, S]", [5, 2], 2),
        ("[B, S]", [5, 2], 2),
        ("[B * S, B]", [10, 5], 2),
        ("[B + S, B - S]", [None, None], UNKNOWN),
    ],
)
def test_solutions(shape: str, extents: list[int | None], wanted: int) -> None:
    assert solved({"x": shape}, {"x": extents})["S"] is wanted or (
        solved({"x": shape}, {"x": extents})["S"] == wanted
    )


def test_symbols_are_found_across_inputs() -> None:
    inputs = {"mask": "[B, P + S]", "past": "[B, P]", "x": "[B, S]"}
    shapes = {"mask": (2, 9), "past": (2, 5), "x": (2, 4)}
    head = "extension tract_symbol B;\n"
    assert solved(inputs, shapes, head) == {"B": 2, "P": 5, "S": 4}
    assert solved(inputs, {"mask": (2, 9), "past": (2, 9)}, head) == {"B": 2, "P": 9, "S": 0}
    open = solved(inputs, {"x": (None, 4)}, head)
    assert open == {"B": UNKNOWN, "P": UNKNOWN, "S": 4}


@pytest.mark.parametrize(
    ("shape", "extents"),
    [
        ("[2 * S]", 5),
        ("[S + 3]", 1),
        ("[S * S]", 50),
        ("[4 - S]", 9),
        ("[S / 1000000000000000]", 9),
    ],
)
def test_extents_that_no_symbol_gives(shape: str, extents: int) -> None:
    with pytest.raises(InputError, match="which no value of S gives") as caught:
        model(graph("y = neg(x);", head=SYMBOLS, x=f"{shape} f32"))(ones(extents))
    assert caught.value.span is not None


def test_symbols_that_disagree() -> None:
    found = error(
        graph("y = a;", head=SYMBOLS, a="[S, 2] f32", b="[2 §* S] f32"), ones(3, 2), ones(4)
    )
    assert found.message == "input 'b' has extent 4 at axis 0, it should be 6: S = 3"
    assert found.hint == "inputs that share a symbol must agree on it"
    assert model(graph("y = a;", head=SYMBOLS, a="[S] f32", b="[2 * S] f32"))(
        ones(3), ones(6)
    ).shape == (3,)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("['a']", "a number is due, this is 'a'"),
        ("['a' + 1]", "a number is due, this is 'a'"),
        ("[S + 'a']", "a number is due, this is 'a'"),
        ("[1.5]", "a whole number is due, this is 1.5"),
        ("[f(S)]", "there is no rule for operation 'f'"),
        ("[-3]", "must not be negative"),
    ],
)
def test_wrong_shapes(shape: str, message: str) -> None:
    with pytest.raises(NnefError) as caught:
        model(graph("y = x;", head=SYMBOLS, x=f"{shape} f32"))
    assert message in caught.value.message and caught.value.span is not None


# Symbols in bodies


DYNAMIC = graph(
    """
    flat = reshape(x, shape = [B * S, 4]);
    last = slice(x, axes = [1], begin = [S - 1], end = [S]);
    n = tract_core_cast(S, to = 'f32');
    mean = sum_reduce(x, axes = [1]) / n;
    p = tract_core_range(0, S, 1);
    picked = tract_core_gather(x, p, axis = 1);
    causal = tract_core_trilu(tract_core_broadcast(1.0, shape = [S, S]), k = 0, upper = false);
    half = tail(x);
    length = tract_core_shape_of(concat([x, x], axis = 1))[1];
    """,
    """
    fragment tail( x: T ) -> ( y: T )
    {
        n = tract_core_shape_of(x)[1];
        y = slice(x, axes = [1], begin = [n - n / 2], end = [n]) + S;
    }
    """,
    head=SYMBOLS,
    results="flat, last, mean, picked, causal, half, length",
    x="[B, S, 4] f32",
)


def dynamic(x: np.ndarray) -> list[np.ndarray]:
    b, s, _ = x.shape
    tail = x[:, s - s // 2 :] + s
    mean = x.mean(1, keepdims=True)
    return [x.reshape(b * s, 4), x[:, -1:], mean, x, np.tri(s), tail, np.asarray(2 * s)]


def test_symbols_in_bodies_and_fragments() -> None:
    found = model(DYNAMIC)
    assert found.inputs[0].shape == (None, None, 4)
    for shape in ((2, 5, 4), (1, 2, 4), (3, 1, 4), (2, 5, 4)):
        x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
        for got, wanted in zip(found(x), dynamic(x), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
        for got, wanted in zip(jax.jit(found.apply)({}, x), dynamic(x), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_one_executable_for_each_shape() -> None:
    found = model(DYNAMIC)
    for length in (2, 3, 2, 3, 2):
        found(ones(1, length, 4))
    executables = [execution_of(found).executable_for((ones(1, length, 4),)) for length in (2, 3)]
    assert len({*map(id, executables)}) == 2 and None not in executables


def test_an_extent_may_be_0() -> None:
    text = graph(
        "y = concat([past, x], axis = 1); n = tract_core_shape_of(past)[1]; m = P + S;",
        head="extension tract_symbol P;\nextension tract_symbol S;\n",
        results="y, n, m",
        past="[1, P, 2] f32",
        x="[1, S, 2] f32",
    )
    y, n, m = run(text, ones(1, 0, 2), ones(1, 3, 2))
    assert y.shape == (1, 3, 2) and n == 0 and m == 3
    zeros = run(graph("y = tract_core_broadcast(1.0, shape = [S, 2]);", head=SYMBOLS, x="[S] f32"),
                ones(0))  # fmt: skip
    assert zeros.shape == (0, 2) and zeros.dtype == np.float32


def test_input_shapes() -> None:
    found = model(DYNAMIC, input_shapes={"x": (2, None, 4)})
    assert found.inputs[0].shape == (2, None, 4)
    assert found(ones(2, 3, 4)).flat.shape == (6, 4)
    with pytest.raises(InputError, match="has shape"):
        found(ones(1, 3, 4))
    fixed = model(DYNAMIC, input_shapes={"x": (2, 3, 4)})
    assert [o.shape for o in fixed.outputs] == [y.shape for y in dynamic(ones(2, 3, 4))]
    with pytest.raises(InputError, match="gives 'x' rank 3"):
        model(graph("y = x;"), input_shapes={"x": (2, 3, 4)})
    with pytest.raises(InputError, match="names 'z'"):
        model(graph("y = x;"), input_shapes={"z": (2, 3)})
    with pytest.raises(ValueError, match="negative extent -3"):
        model(graph("y = x;"), input_shapes={"x": (2, -3)})
    assert model(graph("y = x;"), input_shapes={"x": (5, None)})(ones(5, 7)).shape == (5, 7)


def test_an_undeclared_symbol_is_one_where_an_input_has_it() -> None:
    assert run(graph("y = x + N;", x="[N] f32"), ones(3))[0] == 4
    found = error(graph("y = x + §N;"))
    assert found.message == "'N' is not defined here"


@pytest.mark.parametrize("body", ["y = x + §T;", "y = reshape(x, shape = [§T / 2, -1]);"])
def test_a_symbol_that_nothing_tells(body: str) -> None:
    head = SYMBOLS + "extension tract_symbol T;\n"
    found = error(graph(body, head=head))
    assert found.message == "symbol 'T' does not follow from the shapes of the inputs"
    found = error(graph(body, head=head, x="[S, 3] f32"), ones(2, 3))
    assert found.message == "symbol 'T' does not follow from the shapes of the inputs"


def test_names_of_the_body_come_before_symbols() -> None:
    assert run(graph("S = 10; y = x * S;", head=SYMBOLS, x="[S] f32"), ones(2))[0] == 10


def test_infinity_may_be_a_name() -> None:
    assert run(graph("inf = 2.0; y = x * inf;", x="[1] f32"), ones(1))[0] == 2


# Values that are given

PAIR = graph("y = neg(x); z = neg(m);", head=SYMBOLS, x="[B, S] f32", m="[B, 2 * S + 1] f32")


def test_input_shapes_by_symbols() -> None:
    found = model(PAIR, input_shapes={"B": 8})
    assert [x.shape for x in found.inputs] == [(8, None), (8, None)]
    found = model(PAIR, input_shapes={"B": 8, "S": 3})
    assert [x.shape for x in found.inputs] == [(8, 3), (8, 7)]
    found = model(PAIR, input_shapes={"S": 3, "x": (None, 3)})
    assert [x.shape for x in found.inputs] == [(None, 3), (None, 7)]


def test_wrong_symbols() -> None:
    with pytest.raises(InputError, match="names 'C', the graph's open extents are S, B"):
        model(PAIR, input_shapes={"C": 8})
    found = error(PAIR.replace("[B, S]", "[§B, S]"), input_shapes={"B": 8, "x": (4, 3)})
    assert found.message == "input 'x' has extent 4 at axis 0, it should be 8: B = 8"
    head = f"{SYMBOLS}extension tract_assert §B < 8;\n"
    found = error(graph("y = x;", head=head, x="[B] f32"), input_shapes={"B": 8})
    assert found.message == "the document asserts B < 8, the inputs make B = 8"


def test_a_symbol_that_no_input_tells_may_be_given() -> None:
    head = f"{SYMBOLS}extension tract_symbol T;\n"
    text = graph("y = x * T;", head=head, x="[S] f32")
    found = model(text, input_shapes={"T": 5})
    np.testing.assert_array_equal(found(ones(2)), [5, 5])


def test_open_extents_are_shown_by_symbols() -> None:
    found = model(PAIR)
    assert [*map(str, found.inputs)] == ["x: float32[B,S]", "m: float32[B,2 * S + 1]"]
    assert "[B,2 * S + 1]" in str(found.summary())
    assert str(model(PAIR, input_shapes={"B": 8}).inputs[0]) == "x: float32[8,S]"


# Assertions


@pytest.mark.parametrize(
    ("assertion", "length", "holds"),
    [
        ("S >= 2", 2, True),
        ("S >= 2", 1, False),
        ("S + B < 5", 2, True),
        ("S + B < 5", 4, False),
        ("S == 2 * B", 2, True),
        ("S != 3", 3, False),
        ("S / 2 * 2 == S", 3, False),
        ("first: S == 1", 3, True),
        ("T > 5", 3, True),
        ("2 > 1", 3, True),
        ("-S < -2", 3, True),
    ],
)
def test_assertions(assertion: str, length: int, holds: bool) -> None:
    head = f"{SYMBOLS}extension  tract_assert  §{assertion} ;\n"
    text = graph("y = neg(x);", head=head, x="[B, S] f32")
    x = ones(1, length)
    if holds:
        assert run(text.replace("§", ""), x).shape == x.shape
    else:
        found = error(text, x)
        assert isinstance(found, InputError)
        assert found.message.startswith(f"the document asserts {assertion}, the inputs make ")
        assert f"S = {length}" in found.message


def test_assertions_hold_for_input_shapes_too() -> None:
    text = graph("y = x;", head=f"{SYMBOLS}extension tract_assert §S < 4;\n", x="[S] f32")
    assert error(text, input_shapes={"x": (5,)}).message.endswith("the inputs make S = 5")
    found = error(graph("y = x;", head="extension tract_assert §2 < 1;\n"))
    assert found.message == "the document asserts 2 < 1"


# Export with symbolic extents


def exported(text: str, *shapes: str, data: dict[str, Any] | None = None) -> Any:
    """The function of the parameters and inputs of these symbolic shapes, as jax.export has it."""
    found = model_of(text, data=data)
    scope = jax.export.SymbolicScope()
    inputs = [
        jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), jnp.dtype(spec.dtype))
        for shape, spec in zip(shapes, found.inputs, strict=True)
    ]
    return jax.export.export(jax.jit(lambda *xs: found.apply(found.params, *xs)))(*inputs).call


def test_export() -> None:
    call = exported(DYNAMIC, "b, s, 4")
    for shape in ((2, 5, 4), (1, 2, 4)):
        x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
        for got, wanted in zip(call(x), dynamic(x), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = S;", lambda x: 5),
        ("y = tract_core_shape_of(x);", lambda x: [2, 5]),
        ("y = [S, B, 7];", lambda x: [5, 2, 7]),
        ("y = x / sqrt(tract_core_cast(S, to = 'f32'));", lambda x: x / np.sqrt(5)),
        ("y = x + max(S, 4);", lambda x: x + 5),
        ("y = select(S == 5, x, -x);", lambda x: x),
        ("y = select(S != B, 1, 2);", lambda x: 1),
        ("y = x + (S ^ 2);", lambda x: x + 25),
        ("r = reshape(x, shape = [B * S]); n = tract_core_shape_of(r)[0]; y = r / n;",
         lambda x: x.reshape(10) / 10),
        ("y = tract_core_range(2 * S, S, -1);", lambda x: np.arange(10, 5, -1)),
        ("y = pad(x, padding = [(0, 0), (0, S)]);", lambda x: np.pad(x, [(0, 0), (0, 5)])),
        ("y = tile([[1.0]], repeats = [B, S]) - x;", lambda x: 1 - x),
    ],
)  # fmt: skip
def test_export_of_extents_as_numbers(body: str, wanted: Any) -> None:
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    text = graph(body, head=SYMBOLS, x="[B, S] f32")
    np.testing.assert_allclose(exported(text, "b, s")(x), wanted(x), rtol=1e-6)
    np.testing.assert_allclose(run(text, x), wanted(x), rtol=1e-6)


def test_export_of_several_inputs() -> None:
    text = graph(
        "y = concat([past, x], axis = 1) * unsqueeze(mask, axes = [2]);",
        past="[B, P, 2] f32",
        x="[B, S, 2] f32",
        mask="[B, P + S] f32",
    )
    call = exported(text, "b, p, 2", "b, s, 2", "b, p + s")
    assert call(ones(2, 3, 2), ones(2, 4, 2), ones(2, 7)).shape == (2, 7, 2)


def test_export_of_multiples() -> None:
    text = graph("y = reshape(x, shape = [S, -1]);", x="[2 * S] f32")
    assert exported(text, "2 * s")(ones(10)).shape == (5, 2)


def test_export_of_a_scan() -> None:
    body = (
        "fragment add( a: T, s: T ) -> ( t: T ) { n = tract_core_shape_of(s)[1]; t = a + s * n; }"
    )
    text = graph(
        "start = tract_core_broadcast([[0.0]], shape = [B, 1]);"
        "y = tract_core_scan(body = 'add', scan = [('a', x, 1, 1)], full = [],"
        " state = [('s', start, 't')], output = [('t', 'full', 1, 1)]);",
        body,
        x="[B, S] f32",
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(exported(text, "b, s")(x), x.cumsum(1))


def test_export_of_what_cannot_be_decided() -> None:
    text = graph("y = slice(x, axes = [0], begin = [0], end = [min(S, 4)]);", x="[S] f32")
    assert run(text, ones(9)).shape == (4,)
    with pytest.raises(NnefError) as caught:
        exported(text, "s")
    assert caught.value.span is not None
