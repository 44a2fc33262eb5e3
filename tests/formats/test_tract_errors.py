"""What is said of documents of tract's dialect that cannot be run, and where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnef_jax
from nnef_jax import DataError, InputError, SemanticError, ShapeError, UnsupportedError
from tests.helpers import archive, model_of
from tests.tract_files import TR, tensor
from tests.tract_text import error, errors, graph, model

# Operations that nothing can run


def test_unknown_operations_are_all_listed_at_once() -> None:
    text = graph(
        """
        a = tract_core_mystery(x);
        b = f(tract_core_mystery(a), foo(x));
        c = tract_core_scan(body = 'step', scan = [('a', b, 0, 1)], full = [], state = [],
            output = [('y', 'full', 0, 1)]);
        y = g(c) + §tract_extra_thing(x) + tract_core_mystery(c);
        """,
        """
        fragment f( x: T, y: T ) -> ( z: T ) { z = relu(§bar(x)) + §tract_core_mystery(y); }
        fragment g( x: T, n: T = §in_a_default(1) ) -> ( z: T ) { z = f(x, x); }
        fragment step( a: T ) -> ( y: T ) { y = §baz(§foo(a)); }
        fragment unused( a: T ) -> ( y: T ) { y = never_mentioned(a); }
        """,
    )
    found = errors(text)
    assert all(isinstance(e, UnsupportedError) for e in found)
    assert [e.message.removeprefix("there is no rule for operation ") for e in found] == [
        "'bar', used 1 time",
        "'tract_core_mystery' of registry tract_core, used 4 times",
        "'in_a_default', used 1 time",
        "'baz', used 1 time",
        "'foo', used 2 times",
        "'tract_extra_thing' of registry tract_extra, used 1 time",
    ]
    assert "mean" not in found[1].hint


@pytest.mark.parametrize(
    ("call", "registry", "hint"),
    [
        ("§relux(x)", "", "did you mean 'relu'?"),
        ("§tract_core_gathr(x, 0, 0)", " of registry tract_core", "'tract_core_gather'?"),
        ("§zzz(x)", "", "neither the document nor a registry of tract"),
        ("§update(x, x)", "", "load(..., state={INPUT: OUTPUT})"),
        (
            "§tract_transformers_dyn_kv_cache(x, name = 'k', axis = 1)",
            " of registry tract_transformers",
            "export the cache as inputs and outputs",
        ),
        ("§tract_transformers_window_kv_sdpa(x, x, x)", " of registry tract_transformers", "cache"),
        ("§tract_transformers_quantized_kv_sdpa(x)", " of registry tract_transformers", "cache"),
        ("§tract_onnx_random(shape = [2])", " of registry tract_onnx", "pass them to the network"),
        ("§tract_onnx_multinomial(x)", " of registry tract_onnx", "random numbers"),
    ],
)
def test_unknown_operations(call: str, registry: str, hint: str) -> None:
    found = error(graph(f"y = {call};"))
    name = call.split("(")[0].removeprefix("§")
    assert found.message == f"there is no rule for operation '{name}'{registry}, used 1 time"
    assert hint in found.hint


def test_a_body_that_is_only_known_when_it_is_called() -> None:
    fragment = "fragment f( a: T ) -> ( y: T ) { y = §nothing(a); }"
    body = "name = 'f'; y = tract_core_scan(name, [('a', x, 0, 1)], [], [], [('y', 'full', 0, 1)]);"
    assert error(graph(body, fragment)).message == "there is no operation 'nothing'"


def test_arguments_have_the_names_of_the_document() -> None:
    inputs = {"a": "[2,3,4] f32", "b": "[2,3,5] f32"}
    found = error(graph("y = §tract_transformers_sdpa(a, b, b);", **inputs))
    assert "'q' and 'k' must have as many items" in found.message
    assert "(q float32[2,3,4], k float32[2,3,5], v float32[2,3,5]" in found.message
    found = error(graph("y = §tract_core_one_hot(x, axis = 0, dim = 0);", x="[2] i32"))
    assert found.message == "'tract_core_one_hot': 'dim' must be positive, it is 0 (input int32[2])"


# Results of which nobody knows the extent


def test_padding_is_not_for_other_operations() -> None:
    found = errors(graph("n = tract_onnx_non_zero(x); y = §neg(n) + §concat([n], axis = 1);"))
    for one in found:
        assert "reads 'n', whose extent depends on the data" in one.message
        assert "padded with -1" in one.message and one.hint == "end the network before it, " + (
            "and go on outside of the network"
        )
    boxes = (
        "n = tract_onnx_non_max_suppression(b, s, max_output_boxes_per_class = 2,"
        " iou_threshold = 0.5); "
    )
    inputs = {"b": "[1,4,4] f32", "s": "[1,1,4] f32"}
    assert model(graph(boxes + "y = n;", **inputs)).outputs[0].shape[1] == 3
    found = errors(graph(boxes + "y = §slice(n, axes = [1], begin = [0], end = [1]);", **inputs))
    assert found[0].message.startswith("'y' reads 'n', whose extent depends on the data")


def test_padding_within_a_scan() -> None:
    fragment = "fragment f( a: T ) -> ( y: T ) { n = §tract_onnx_non_zero(a); y = neg(n); }"
    body = "y = tract_core_scan('f', [('a', x, 0, 1)], [], [], [('y', 'full', 0, 1)]);"
    found = error(graph(body, fragment))
    assert isinstance(found, UnsupportedError) and "in the body of a scan" in found.message


# Names


@pytest.mark.parametrize(
    ("body", "fragments", "message"),
    [
        ("y = §z;", "", "'z' is not defined here"),
        ("z = x; y = §Z;", "", "'Z' is not defined here"),
        ("y = §z; z = x;", "", "'z' is not defined here"),
        ("y = neg(§net);", "", "'net' is not defined here"),
        ("y = f(x);", "fragment f( a: T ) -> ( b: T ) { c = a; }", "'b' is not defined here"),
        ("y = f(x);", "fragment f( a: T ) -> ( b: T ) { b = neg(§x); }", "'x' is not defined here"),
    ],
)
def test_unknown_names(body: str, fragments: str, message: str) -> None:
    if "c = a" in fragments:
        fragments = fragments.replace("( b: T )", "( §b: T )")
    assert error(graph(body, fragments)).message == message


def test_unknown_outputs_and_inputs() -> None:
    assert error(graph("z = x;", results="§y")).message == "'y' is not defined here"
    text = graph("y = x;").replace("net( x )", "net( x, §z )")
    found = error(text)
    assert found.message == "input 'z' is not declared" and "tract_core_external" in found.hint
    text = graph("y = x;").replace("net( x )", "net( §z )")
    assert error(text).message == "input 'z' is not declared"
    two = graph("z = §external(shape = [1]); y = x;")
    assert "'z' is no input in the header of the graph" in error(two).message


def test_errors_that_are_independent_come_together() -> None:
    found = errors(
        graph("a = §concat([x], axis = 5); b = a + 1; c = §q; y = §reshape(x, shape = [4]);")
    )
    assert [type(e) for e in found] == [SemanticError, SemanticError, ShapeError]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = neg(§external(shape = [1]));", "an input must be assigned to its name"),
        ("x = §external(shape = [1]); y = x;", "input 'x' is declared twice"),
        ("(a, b) = §external(shape = [1]); y = x;", "an input must be assigned to its name"),
        ("[z] = §external(shape = [1]); y = x;", "'z' is no input in the header"),
        ("y = f(x);", "'external' is not allowed in a fragment"),
    ],
)
def test_inputs_in_wrong_places(body: str, message: str) -> None:
    fragment = "fragment f( a: T ) -> ( b: T ) { b = external(shape = [1]); }"
    if "f(x)" in body:
        fragment = fragment.replace("external", "§external")
    assert message in error(graph(body, fragment)).message


# Arguments


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        ("§concat([x, x])", "'concat' lacks its argument 'axis'", "write concat(..., axis = ...)"),
        ("§slice(x)", "'slice' lacks its arguments 'axes', 'begin', 'end'", ""),
        ("§tract_core_cast()", "'tract_core_cast' lacks its argument 'input'", ""),
        ("relu(x, §x)", "'relu' takes at most 1 argument, this is number 2", ""),
        ("pad(x, §pading = [])", "'pad' has no parameter 'pading'", "did you mean 'padding'?"),
        ("pad(x, [], §padding = [])", "argument 'padding' is given by position and by name", ""),
        ("§concat([x, x], axis = 'a')", "'axis': a number is due, this is 'a'", ""),
        ("§concat([x, x], axis = [0, 1])", "'axis': one value is due, this is [0, 1]", ""),
        ("§concat([x, x], axis = x)", "'axis': 'x' must be known when the network", "shapes"),
        ("§sum_reduce(x, axes = [x])", "'axes': 'x' must be known when the network", ""),
        ("§concat(['a', x], axis = 0)", "'values[0]': a number is due, this is 'a'", ""),
        ("§neg('abc')", "'x': a number is due, this is 'abc'", ""),
        ("§neg(('a', 1))", "'x': a number is due, this is 'a'", ""),
        ("§pad(x, padding = [(1, 1)], border = 3)", "'border': a string is due, this is 3", ""),
        ("'abc'", "", ""),
    ],
)
def test_wrong_arguments(call: str, message: str, hint: str) -> None:
    if not message:
        found = error(graph(f"y = {call};", results="§y"))
        assert "a number is due, this is 'abc'" in found.message
        return
    found = error(graph(f"y = {call};"))
    assert message in found.message and hint in found.hint


# Shapes


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = x §+ z;", "'add': shapes [2,3] and [4,3] do not broadcast"),
        ("y = §matmul(x, x);", "the columns of 'A' must be as many as the rows of 'B'"),
        ("y = §concat([x, z], axis = 1);", "'concat'"),
        ("y = §reshape(x, shape = [4, 2]);", "'reshape'"),
        ("y = §squeeze(x, axes = [0]);", "'squeeze'"),
        ("y = §transpose(x, axes = [0, 0]);", "'transpose'"),
        ("y = §conv(x, z);", "'conv'"),
        ("y = §tract_core_einsum([x, z], 'ij,ij->i', acc = 'f32');", "'tract_core_einsum'"),
    ],
)
def test_wrong_shapes(body: str, message: str) -> None:
    found = error(graph(body, x="[2,3] f32", z="[4,3] f32"))
    assert message in found.message and "float32[" in found.message


@pytest.mark.parametrize(
    ("x", "w", "s", "message"),
    [
        ("[1,3]", "[3,3]", "[3,3]", "the last axis of 'weight' must have 4 taps"),
        ("[1,3]", "[]", "[3,4]", "the last axis of 'weight' must have 4 taps"),
        ("[1,3]", "[2,4]", "[3,4]", "'weight' [2,4] must have 4 items for each of the 3 items"),
        ("[1,3]", "[3,4]", "[4,3,2]", "'initial_state' [4,3,2] must have 4 items for each"),
        ("[2,3,5]", "[3,4]", "[2,3,4]", "'weight' [3,4] must have 4 items for each of the 30"),
    ],
)
def test_wrong_shapes_of_a_causal_convolution(x: str, w: str, s: str, message: str) -> None:
    call = "(y, z) = §tract_transformers_causal_conv1d_update(x, w, s);"
    assert message in error(graph(call, x=f"{x} f16", w=f"{w} f16", s=f"{s} f16")).message


def test_shapes_that_are_wrong_for_a_call_only() -> None:
    text = graph("y = §reshape(x, shape = [2, 2]);", x="[S] f32")
    assert model(text.replace("§", ""))(np.ones(4, np.float32)).shape == (2, 2)
    found = error(text, np.ones(5, np.float32))
    assert isinstance(found, ShapeError) and "float32[5]" in found.message
    with pytest.raises(InputError, match="has shape"):
        model(text.replace("§", ""))(np.ones((4, 1), np.float32))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("[-1]", "must not be negative"),
        ("[2.5]", "a whole number is due"),
        ("['a']", "a number is due, this is 'a'"),
        ("[1000000000000, 1000000000000]", "items, more than"),
    ],
)
def test_wrong_shapes_of_inputs(shape: str, message: str) -> None:
    with pytest.raises(nnef_jax.NnefError) as caught:
        model(graph("y = a;", a=f"{shape} f32"))
    assert message in caught.value.message and caught.value.span is not None


# Data


def test_strings() -> None:
    text = graph("w = §variable(label = 'w', shape = [2]); y = x;")
    before, after = text.split("§")
    file = tensor((2,), 0xFFFF_FFFF, 0x1000, b"\1\0\0\0a\1\0\0\0b", vendor=TR)
    with pytest.raises(UnsupportedError, match=r"w\.dat holds strings") as caught:
        nnef_jax.load(archive(graph=before + after, w=file))
    assert caught.value.span is not None and caught.value.span.offset == len(before)
    for type in ("string", "blob"):
        found = error(graph("y = x;").replace("= tract", "= §tract").replace("f32", type))
        assert f"datum type '{type}' cannot be computed with" in found.message


def test_wrong_files() -> None:
    for arrays, message in (
        ({}, "no member 'w.dat' for the variable 'w'"),
        ({"w": np.ones((3, 2), np.float32)}, "w.dat has shape [3,2]"),
        ({"w": np.array([[2**40] * 3] * 2)}, "do not fit int32"),
    ):
        found = error(graph("w = §variable(label = 'w', shape = [2, 3]); y = x;"), data=arrays)
        assert isinstance(found, DataError | nnef_jax.ArchiveError) and message in found.message
    with pytest.raises(nnef_jax.NnefError, match=r"w\.dat"):
        nnef_jax.load(archive(graph=graph("w = variable(label = 'w'); y = x;"), w=b"\x4e\xef"))


def test_entries_of_graph_quant_for_nothing() -> None:
    quant = '"z": linear_quantize(min = 0.0, max = 1.0, bits = 8);'
    with pytest.raises(SemanticError, match="the graph has no tensor") as caught:
        nnef_jax.load(archive(graph=graph("y = x;"), quant=quant))
    assert "graph.quant:1:1" in str(caught.value)


# How it looks


def test_the_whole_text_of_an_error() -> None:
    fragment = "fragment layer( a: T ) -> ( b: T )\n{\n    b = concat([a, a], axis = 7);\n}\n"
    text = graph("y = twice(x);", fragment + "fragment twice( a: T ) -> ( b: T ) { b = layer(a); }")
    with pytest.raises(SemanticError) as caught:
        model_of(text)
    assert str(caught.value) == (
        "the archive/graph.nnef:5:9: 'concat': 'axis' must lie in [0,2), it has 7 "
        "(values [float32[2,3], float32[2,3]])\n"
        "        b = concat([a, a], axis = 7);\n"
        "            ^^^^^^\n"
        "  in fragment 'layer', called at the archive/graph.nnef:7:68\n"
        "  in fragment 'twice', called at the archive/graph.nnef:11:9\n"
        "  hint: axes count from 0, the last one is 1"
    )


def test_operators_are_called_by_their_signs() -> None:
    for body, message in (
        ("y = 1 §/ 0;", "'/': division by 0"),
        ("y = §-'a';", "'-': 'x': a number is due, this is 'a'"),
        ("y = 3 §^ 64;", "'^': the result is no integer of 64 bits"),
    ):
        found = error(graph(body, x="[2,3] f32", z="[4] f32"))
        assert found.message.startswith(message)


def test_a_rule_of_ones_own_for_an_operation_of_tract() -> None:
    from lowering.registry import Registry

    rules = Registry()

    @rules.rule("tract_core_silu", lambda x: x)
    def silu(x: Any) -> Any:
        return 10 * x

    text = graph("y = tract_core_silu(x);")
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(model_of(text, rules=rules)(x), 10 * x)
