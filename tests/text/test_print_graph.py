"""Flat graphs as text: read by the Khronos parser, and by us with the same results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowering.extents import UNKNOWN
from lowering.graph import Graph, Operation, Parameter, TensorType, Value
from nnef_jax import Model, UnsupportedError, load
from nnef_jax.reading.read import network_of_text, read
from tests.helpers import model_of
from tests.printed import ALIASES, assert_same_results, khronos, print_graph

MOST_RUN = 50  # of the shared cases; compiling takes most of the time


def flat_body(text: str) -> list[str]:
    """The statements of the flat document for a text, which Khronos reads and we do as the same."""
    printed = print_graph(network_of_text(text).graph)
    khronos(printed)
    assert print_graph(network_of_text(printed).graph) == printed
    return [line.strip() for line in printed.split("\n") if line.startswith("    ")]


def test_a_graph_is_printed_with_what_differs_from_the_defaults() -> None:
    body = [
        "x = external(shape = [0,2,4]);",
        "i = external<integer>(shape = []);",
        "c = external<logical>(shape = [1]);",
        "w = variable(shape = [3,2,3], label = 'w');",
        "k = variable<integer>(shape = [2], label = \"it's\");",
        "q = variable<logical>(shape = [1], label = 'a/b-c');",
        "n = constant<integer>(shape = [2], value = [1,-2]);",
        "l = constant<logical>(shape = [2], value = [true,false]);",
        "f = constant(shape = [1], value = [1e-05]);",
        "conv1 = conv(x, w, padding = [(1,1)]);",
        "conv2 = conv(x, w, 1.0, border = 'replicate', stride = [2]);",
        "[a, b] = split(x, axis = 1, ratios = [1,1]);",
        "[one] = unstack(f, axis = 0);",
        "m, v = moments(x, axes = [0,2]);",
        "p, index = max_pool_with_index(x, size = [1,1,2]);",
        "joined = concat([a, b], axis = 1);",
        "to_scalar = cast<scalar>(n);",
        "to_logical = cast<logical>(x);",
        "chosen = select(c, k, 3);",
        "either = or(q, l);",
        "big = max(x, -1.5);",
        "s1 = softmax(x);",
        "s2 = softmax(x, axes = [2]);",
        "padded = pad(x, padding = [(0,0),(0,0),(1,2)], value = -0.0);",
        "activation = selu(x, lambda = 2.0);",
        "at = gather(x, i, axis = 2);",
    ]  # fmt: skip
    lines = "\n".join(f"    {line}" for line in body)
    text = f"version 1.0;\n\ngraph G( x, i, c ) -> ( conv2, at )\n{{\n{lines}\n}}\n"
    assert flat_body(text) == body


def test_defaults_that_are_spelled_out_are_dropped() -> None:
    body = flat_body(
        "version 1.0; graph G( x ) -> ( y ) { x = external<scalar>(shape = [1,2,4]);"
        "w = variable<scalar>(label = 'w', shape = [3,2,3]);"
        "y = conv(input = x, filter = w, bias = 0.0, padding = [], groups = 1); }"
    )
    assert body[1:] == ["w = variable(shape = [3,2,3], label = 'w');", "y = conv(x, w);"]


STATE = """version 1.0;
graph G( x ) -> ( y, n, h, z )
{
    x = external(shape = [2,3]);
    h = variable(shape = [2,3], label = 'h');
    g = variable(shape = [2,3], label = 'g');
    k = variable<integer>(shape = [1], label = 'k');
    t = add(x, h);
    y = update(h, t);
    s = mul(y, 0.5);
    n = copy(k);
    c = constant<integer>(shape = [1], value = [3]);
    ignored = update(k, c);
    r = update(g, s);
    z = mul(g, r);
}
"""
STATE_DATA = {
    "h": np.arange(6, dtype=np.float32).reshape(2, 3),
    "g": np.ones((2, 3), np.float32),
    "k": np.array([7], np.int32),
}


def test_variables_are_updated_at_the_end() -> None:
    body = flat_body(STATE)
    assert body[-3:] == [
        "y = update(h, t);",
        "g_update = update(g, s);",
        "k_update = update(k, c);",
    ]
    printed = print_graph(network_of_text(STATE).graph)
    assert_same_results(model_of(STATE, data=STATE_DATA), model_of(printed, data=STATE_DATA))


def test_results_that_go_by_other_names_are_copies() -> None:
    body = flat_body(ALIASES)
    assert {"z = copy(y);", "same = copy(x);", "w = copy(y_w);"} <= set(body)
    printed = print_graph(network_of_text(ALIASES).graph)
    assert "graph relu_1( x, extent )" in printed  # no graph is called as an operation is
    data = {"s/w": np.array([2.5], np.float32)}
    assert_same_results(model_of(ALIASES, data=data), model_of(printed, data=data))


def test_a_result_that_is_an_input_gets_a_name_of_its_own() -> None:
    x = Value("x", TensorType((2,), "float32"))
    printed = print_graph(Graph("G", (x,), (x,), ("x",), ()))
    khronos(printed)
    assert "graph G( x ) -> ( x_1 )" in printed
    assert "x_1 = copy(x);" in printed


def a_graph(kind: str, name: str = "y", **attributes: Any) -> Graph:
    """A graph of one operation, as other formats may give it."""
    x = Value("x", TensorType((2,), "float32"))
    y = Value(name, TensorType((2,), "float32"))
    operands = {"x": x} | {k: attributes.pop(k) for k in ("y",) if k in attributes}
    operation = Operation(kind, tuple(operands.items()), tuple(attributes.items()), (y,))
    return Graph("G", (x,), (y,), (name,), (operation,))


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("a/b:0", "a_b_0"),
        ("1", "_1"),
        ("", "_"),
        ("if", "if_1"),
        ("integer", "integer_1"),
        ("x", "x_1"),
    ],
)
def test_names_are_made_valid(name: str, printed: str) -> None:
    text = print_graph(a_graph("relu", name))
    khronos(text)
    assert text.endswith(f"    {printed} = relu(x);\n}}\n")
    assert [o.name for o in model_of(text).outputs] == [printed]


def test_integers_are_scalars_where_scalars_are_declared() -> None:
    assert "leaky_relu(x, alpha = 1.0)" in print_graph(a_graph("leaky_relu", alpha=1))
    assert "add(x, 2.0)" in print_graph(a_graph("add", y=2))


@pytest.mark.parametrize(("y", "computed"), [("inf", "rcp(0.0)"), ("-inf", "log(0.0)")])
def test_infinite_numbers_are_computed(y: str, computed: str) -> None:
    text = print_graph(a_graph("min", y=float(y)))
    khronos(text)
    assert f"infinity = {computed};" in text
    wanted = np.minimum(np.float32([1, -2]), float(y))
    np.testing.assert_array_equal(model_of(text)(np.float32([1, -2])), wanted)


def test_what_the_language_cannot_say_is_refused() -> None:
    refused = {
        "not finite": a_graph("leaky_relu", alpha=float("inf")),
        "unknown extent": a_graph("transpose", input=1.0, axes=(UNKNOWN,)),
        "other operation": a_graph("tract.scan"),
        "no inputs": Graph("G", (), (), (), ()),
        "foreign result": Graph("G", a_graph("relu").inputs, a_graph("relu").outputs, ("y",), ()),
    }
    messages = {}
    for name, graph in refused.items():
        with pytest.raises(UnsupportedError) as caught:
            print_graph(graph)
        messages[name] = str(caught.value)
    assert "is inf" in messages["not finite"]
    assert "left open" in messages["unknown extent"]
    assert "'tract.scan' is not an operation of the standard" in messages["other operation"]
    assert "without inputs" in messages["no inputs"]
    assert "result 'y' is not computed" in messages["foreign result"]


def test_variables_keep_their_labels() -> None:
    value = Value("w", TensorType((2,), "float32"))
    graph = a_graph("relu")
    text = print_graph(
        Graph("G", graph.inputs, (value,), ("w",), (), parameters=(Parameter("a'b\"c", value),))
    )
    (parameter,) = network_of_text(text).graph.parameters
    assert parameter.label == "a'b\"c"


# The shared cases


def core_cases(folder: Path) -> list[tuple[str, Path]]:
    """Name and model of the cases that the standard decides."""
    cases = json.loads((folder / "nnef" / "manifest.json").read_text())["cases"]
    return sorted((c["name"], folder / "nnef" / c["model"]) for c in cases if c["tier"] == "core")


@pytest.mark.parametrize("expand", ["auto", "all"])
def test_graphs_of_the_shared_cases_are_valid_for_khronos(shared_cases: Path, expand: Any) -> None:
    for name, path in core_cases(shared_cases):
        graph = read(path, expand=expand).graph
        text = print_graph(graph)
        found = khronos(text)
        assert tuple(found.inputs) == tuple(value.name for value in graph.inputs), name
        assert tuple(found.outputs) == graph.output_names, name
        again = network_of_text(text).graph
        kinds = [o.kind for o in again.operations if o.kind != "copy"]
        assert kinds == [o.kind for o in graph.operations if o.kind != "copy"], name


@pytest.mark.slow
def test_graphs_of_the_shared_cases_give_the_same_results(shared_cases: Path) -> None:
    cases = core_cases(shared_cases)
    for name, path in cases[:: -(-len(cases) // MOST_RUN)]:
        model = load(path)
        arrays = {**model.params, **model.init_state()}
        try:
            assert_same_results(model, model_of_arrays(print_graph(model.graph), arrays))
        except AssertionError as error:
            raise AssertionError(name) from error


def model_of_arrays(text: str, arrays: dict[str, Any]) -> Model:
    """The model of a document with these arrays for its variables, in labels that name files."""
    data = {label.removeprefix("/"): np.asarray(array) for label, array in arrays.items()}
    return model_of(text, data=data)
