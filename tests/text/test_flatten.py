"""From a document to its flat graph: calls, generics, operators on tensors, names (spec 3.3, 6)."""

from __future__ import annotations

import pytest

from lowering.graph import Graph, Operation, Value
from nnef_jax import SemanticError, ShapeError, UnsupportedError
from nnef_jax.formats.syntax.standard import standard
from tests.helpers import COMPOSITIONAL
from tests.op_cases import NNEF
from tests.op_cases import document as case_document
from tests.text_support import PROVISIONAL, error, errors, flat, graph, in_fragment, network


def shown(graph: Graph) -> list[str]:
    """The operations as text: `z = add(x, 1.0)`, with attributes that have no default left out."""

    def operand(item: object) -> str:
        if isinstance(item, tuple):
            return f"[{', '.join(map(operand, item))}]"
        return item.name if isinstance(item, Value) else repr(item)

    def line(operation: Operation) -> str:
        results = ", ".join(operand(result) for result in operation.results)
        return (
            f"{results} = {operation.kind}({', '.join(operand(o) for _, o in operation.operands)})"
        )

    return [line(operation) for operation in graph.operations]


def kinds(graph: Graph) -> list[str]:
    return [operation.kind for operation in graph.operations]


def of_fragment(body: str, header: str = COMPOSITIONAL) -> list[str]:
    """The operations of y = f(x) with this body of f."""
    return shown(flat(in_fragment(body, header=header)))


# Operators on tensors are operations (table 1 of the spec)


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("x + x", "add"),
        ("x - x", "sub"),
        ("x * x", "mul"),
        ("x / x", "div"),
        ("x ^ x", "pow"),
    ],
)
def test_arithmetic_operators(expression: str, kind: str) -> None:
    assert of_fragment(f"y = {expression};") == [f"y = {kind}(x, x)"]


@pytest.mark.parametrize(
    ("operator", "kind"),
    [("<", "lt"), ("<=", "le"), (">", "gt"), (">=", "ge"), ("==", "eq"), ("!=", "ne")],
)
def test_comparison_operators(operator: str, kind: str) -> None:
    found = flat(graph(f"y = x {operator} 1.5;"))
    assert shown(found) == [f"y = {kind}(x, 1.5)"]
    assert found.outputs[0].type.dtype == "bool"


def test_logical_and_unary_operators() -> None:
    body = "a = x < x; b = !a && a || true; y = select(b, -x, +x);"
    assert of_fragment(body) == [
        "y_a = lt(x, x)",
        "y_not = not(y_a)",
        "y_and = and(y_not, y_a)",
        "y_b = or(y_and, True)",
        "y_neg = neg(x)",
        "y_copy = copy(x)",
        "y = select(y_b, y_neg, y_copy)",
    ]


def test_a_known_left_side_decides_logic_with_tensors() -> None:
    body = "a = x < x; y = select(false && a, x, x) + select(true && a, x, 1.0);"
    assert of_fragment(body) == [
        "y_a = lt(x, x)",
        "y_select = select(False, x, x)",
        "y_select_1 = select(y_a, x, 1.0)",
        "y = add(y_select, y_select_1)",
    ]


def test_precedence_becomes_the_order_of_operations() -> None:
    assert of_fragment("y = -x + 2.0 * x ^ 2.0;") == [
        "y_neg = neg(x)",
        "y_pow = pow(x, 2.0)",
        "y_mul = mul(2.0, y_pow)",
        "y = add(y_neg, y_mul)",
    ]


def test_literals_given_for_tensors_are_computed_with_at_once() -> None:
    fragment = "fragment f( x: T, a: T = 2.0 ) -> ( y: T ) { b = a * 3.0 + 1.0; y = x * b; }"
    assert shown(flat(graph("y = f(x);", fragment))) == ["y = mul(x, 7.0)"]


# Calls


def test_nested_calls_and_arguments_by_position_name_and_default() -> None:
    fragments = (
        "fragment f( a: T, b: T, s: scalar = 2.0, t: scalar ) -> ( y: T ) { y = a * s + b * t; }\n"
        "fragment g( a: T ) -> ( y: T ) { y = f(exp(a), t = 3.0, b = a); }"
    )
    assert shown(flat(graph("y = g(neg(x));", fragments))) == [
        "neg = neg(x)",
        "y_exp = exp(neg)",
        "y_mul = mul(y_exp, 2.0)",
        "y_mul_1 = mul(neg, 3.0)",
        "y = add(y_mul, y_mul_1)",
    ]


def test_several_results_tuples_and_arrays() -> None:
    fragments = (
        "fragment f( x: T ) -> ( a: T, b: (T, T[]) ) { a = neg(x); b = (exp(x), [log(x), a]); }\n"
        "fragment g( p: (T, T[]) ) -> ( y: T ) { q, [r, s] = p; y = q + r * p[1][1]; }"
    )
    body = "(h, (i, [j, k])) = f(x); y = g((i, [j, k]));"
    found = flat(graph(body, fragments))
    assert shown(found) == [
        "h = neg(x)",
        "h_exp = exp(x)",
        "h_log = log(x)",
        "y_mul = mul(h_log, h)",
        "y = add(h_exp, y_mul)",
    ]
    named = {name: found.values[name].name for name in "hijk"}
    assert named == {"h": "h", "i": "h_exp", "j": "h_log", "k": "h"}


def test_arrays_of_tensors() -> None:
    body = (
        "[a, b, c] = split(x, axis = 1, ratios = [1,1,1]); y = concat([c] + [a, b] * 2, axis = 1);"
    )
    assert shown(flat(graph(body))) == [
        "[a, b, c] = split(x)",
        "y = concat([c, a, b, a, b])",
    ]


def test_comprehensions_over_tensors() -> None:
    body = (
        "[a, b] = [for t in split(x, axis = 0, ratios = [1,1]), s "
        "in [2.0, 3.0] yield t * s]; y = a + b;"
    )
    found = flat(graph(body))
    assert kinds(found) == ["split", "mul", "mul", "add"]
    assert [o.operands[1][1] for o in found.operations[1:3]] == [2.0, 3.0]


def test_the_provisional_comprehension() -> None:
    body = "y = add_n([x * s for s in [1.0, 2.0, 3.0] if s != 2.0])"
    found = flat(in_fragment(body, header=PROVISIONAL))
    assert [o.operands[1][1] for o in found.operations[:2]] == [1.0, 3.0]
    assert kinds(found) == ["mul", "mul", "add_n"]


def test_only_the_chosen_side_of_if_makes_operations() -> None:
    assert of_fragment("y = exp(x) if length_of([1]) == 1 else log(x);") == ["y = exp(x)"]
    assert of_fragment("y = x if true else split(x, axis = 7, ratios = [9])[5];") == []


def test_recursion() -> None:
    fragment = (
        "fragment f( x: T, n: integer ) -> ( y: T ) { y = "
        "f(neg(x), n = n - 1) if n > 0 else exp(x); }"
    )
    assert kinds(flat(graph("y = f(x, n = 250);", fragment))) == ["neg"] * 250 + ["exp"]
    fragments = (
        "fragment f( x: T, n: integer ) -> ( y: T ) { y = g(neg(x), n = n - 1) if n > 0 else x; }\n"
        "fragment g( x: T, n: integer ) -> ( y: T ) { y = f(exp(x), n = n - 1) if n > 0 else x; }"
    )
    assert kinds(flat(graph("y = f(x, n = 5);", fragments))) == ["neg", "exp", "neg", "exp", "neg"]
    fragment = (
        "fragment total( v: scalar[] ) -> ( s: scalar )"
        "{ s = v[0] + total(v = v[1:]) if length_of(v) > 0 else 0.0; }"
    )
    assert shown(flat(graph("y = x * total(v = [1.0, 2.0, 3.5]);", fragment))) == [
        "y = mul(x, 6.5)"
    ]


# Generic fragments


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        ("y = f(x);", "float32"),
        ("y = f(x < x);", "bool"),
        ("y = f(argmax_reduce(x, axes = [0]));", "int32"),
        ("y = f<scalar>(x);", "float32"),
        ("y = f(2);", "int32"),
        ("y = f(2.0);", "float32"),
        ("y = g();", "float32"),
        ("y = g<integer>();", "int32"),
        ("y = cast<integer>(x);", "int32"),
        ("y = cast<logical>(x);", "bool"),
        ("y = constant(shape = [1], value = [3]);", "int32"),
        ("y = constant(shape = [1], value = [true]);", "bool"),
        ("y = constant<scalar>(shape = [1], value = []  + [3.0]);", "float32"),
        ("y = variable<integer>(shape = [1], label = 'a');", "int32"),
        ("y = variable(shape = [1], label = 'a');", "float32"),
        ("y = select(x < x, 1, 2);", "int32"),
    ],
)
def test_what_generic_tensors_hold(call: str, dtype: str) -> None:
    fragments = (
        "fragment f<?>( x: tensor<?> ) -> ( y: tensor<?> ) { y = copy<?>(x); }\n"
        "fragment g<? = scalar>() -> ( y: tensor<?> ) { y = "
        "variable<?>(shape = [1], label = 'g'); }\n"
    )
    assert flat(graph(call, fragments)).outputs[0].type.dtype == dtype


def test_a_generic_parameter_does_not_stand_for_an_array() -> None:
    fragment = (
        "fragment f<?>( v: ?[], n: integer ) -> ( w: ?[] ) { w = "
        "f(v = §[v], n = n - 1) if n > 0 else v; }"
    )
    found = error(graph("y = x * scalar(length_of(f(v = [1], n = 99)));", fragment))
    assert found.message == "'v' of 'f' must be of type ?[], this is ?[][]"


def test_the_provisional_dialect_has_no_integer_tensors_of_literals() -> None:
    for value in ("1", "constant(shape = [1], value = [1])", "select(x > 0, 1, 0)", "copy(1)"):
        assert (
            flat(in_fragment(f"y = {value}", header=PROVISIONAL)).outputs[0].type.dtype == "float32"
        )
    fragments = (
        "fragment half( x: tensor ) -> ( s: scalar ) { s = 1 }\n"
        "fragment f( x: tensor ) -> ( y: tensor ) { y = x * (half(x) / 2) }"
    )
    assert shown(flat(graph("y = f(x)", fragments, header=PROVISIONAL))) == ["y = mul(x, 0.5)"]


# Names, variables, updates


def test_names_follow_the_document() -> None:
    fragments = (
        "fragment inner( x: T ) -> ( y: T ) { t = x * 2.0; y = t + exp(x); }\n"
        "fragment outer( x: T ) -> ( y: T, z: T ) { y = inner(x); z = neg(inner(y)); }"
    )
    found = flat(graph("a, b = outer(x); y = inner(a) + inner(b);", fragments))
    named = {name: value.name for name, value in found.values.items()}
    assert {"a", "b", "y", "x"} <= set(named) and all(named[name] == name for name in "abxy")
    assert len(set(named.values())) == len(named)
    assert {"a_t", "a_exp"} <= set(named)


def test_inner_names_leave_those_of_the_graph_alone() -> None:
    fragment = "fragment f( x: T ) -> ( y: T ) { t = exp(x); y = neg(t); }"
    found = flat(graph("a = f(x); a_t = log(x); exp = sin(a); y = cos(exp(a_t + exp));", fragment))
    assert [found.values[name].name for name in ("a", "a_t", "exp", "y")] == [
        "a",
        "a_t",
        "exp",
        "y",
    ]
    made = {value.name: o.kind for o in found.operations for value in o.writes()}
    assert (made["a"], made["a_t"], made["exp"]) == ("neg", "log", "sin")
    assert len(made) == len(found.operations)


def test_aliases_and_constants() -> None:
    found = flat(graph("a = x; b = a; c = 2.5; n = 3; t = true; y = b * c;"))
    assert found.values["a"] is found.values["b"] is found.inputs[0]
    assert shown(found)[-1] == "y = mul(x, c)"
    assert {n: (found.values[n].type.dtype, found.values[n].type.shape) for n in "cnt"} == {
        "c": ("float32", (1,)),
        "n": ("int32", (1,)),
        "t": ("bool", (1,)),
    }


def test_a_result_may_be_an_input_by_another_name() -> None:
    found = flat(graph("y = neg(x); x2 = x; x3 = x2;", results="x2, y, x3"))
    assert found.output_names == ("x2", "y", "x3")
    assert found.outputs[0] is found.outputs[2] is found.inputs[0]


def test_one_label_is_one_parameter() -> None:
    fragment = (
        "fragment f( x: T, l: string ) -> ( y: T ) { y = x * "
        "variable(shape = [2,3], label = l + '/w'); }"
    )
    found = flat(
        graph(
            "a = f(x, l = 'a'); b = f(a, l = 'b'); y = f(b, l = 'a'); w "
            "= variable(shape = [2,3], label = 'b/w');",
            fragment,
        )
    )
    assert [p.label for p in found.parameters] == ["a/w", "b/w"]
    assert found.values["w"] is found.parameters[1].value
    found_error = error(
        graph(
            "v = variable(shape = [2,3], label = 'v'); y = §variable(shape = [3,2], label = 'v');"
        )
    )
    assert isinstance(found_error, ShapeError) and "one shape" in found_error.hint


def test_updates_make_state() -> None:
    found = flat(graph("h = variable(shape = [2,3], label = 'h'); y = update(h, h + x);"))
    (state,) = found.states
    assert (state.label, state.value.name) == ("h", "h")
    assert found.outputs[0] is found.values["y"] is state.update and not found.parameters
    reset = flat(graph("h = variable(shape = [1,1], label = 'h'); y = update(h, 0.0);"))
    assert reset.states[0].update.type.shape == (1, 1)


UPDATES = {
    "y = §update(x, x);": "must be a variable",
    "v = variable(shape = [2,3], label = 'v'); "
    "w = copy(v); y = §update(w, x);": "must be a variable",
    "v = variable(shape = [2,3], label = 'v'); y = "
    "update(v, x); z = §update(y, x);": "must be a variable",
    "v = variable(shape = [2,3], label = 'v'); y = "
    "update(v, x); z = §update(v, x);": "updated twice",
    "v = variable(shape = [2,3], label = 'v'); w = variable(shape = [2,3], label = 'v');"
    "y = update(v, x); z = §update(w, x);": "updated twice",
    "v = variable(shape = [2,1], label = "
    "'v'); y = §update(v, x);": "has shape [2,1], its new value has [2,3]",
    "v = variable(shape = [2,3], label = 'v'); y = §update(v, 1.0);": "its new value has [1,1]",
    "y = §variable(shape = [2,3], label = '');": "'label' of a variable must not be empty",
    "y = §variable(shape = [2,0], label = 'v');": "'shape' of a variable must be "
    "positive, it is [2, 0]",
    "y = neg(x); z = §constant(shape = [2], value = []);": "takes 1 or 2 values, it has 0",
}


@pytest.mark.parametrize("body", UPDATES)
def test_wrong_variables_and_updates(body: str) -> None:
    found = error(graph(body))
    assert isinstance(found, SemanticError)
    assert UPDATES[body] in found.message


# Errors


def test_errors_show_the_chain_of_calls() -> None:
    fragments = (
        "fragment inner( x: T ) -> ( y: T ) { y = x §+ constant(shape = [5], value = [1.0]); }\n"
        "fragment outer( x: T ) -> ( y: T ) { a = neg(x); y = inner(a); }"
    )
    found = error(graph("y = outer(x);", fragments))
    assert isinstance(found, ShapeError)
    assert found.message.startswith("'add': ") and "x float32[2,3], y float32[5]" in found.message
    assert [call.fragment for call in found.calls] == ["outer", "inner"]
    lines = found.block().split("\n")
    assert lines[3].startswith("  in fragment 'inner', called at graph.nnef:4:")
    assert lines[4].startswith("  in fragment 'outer', called at graph.nnef:8:")


def test_errors_in_the_standard_library_name_the_call() -> None:
    found = error(graph("y = §sum_reduce(x, axes = [5]);"), expand="all")
    assert found.calls == ()
    with pytest.raises(SemanticError) as caught:
        flat(graph("y = softmax(x, axes = [5]);"), expand="all")
    assert str(caught.value.span).startswith("stdlib.nnef:")
    assert "in fragment 'softmax', called at graph.nnef:7:9" in str(caught.value)


def test_independent_errors_are_reported_at_once() -> None:
    found = errors(
        graph(
            "a = §sum_reduce(x, axes = [2]);\n    b = exp(a) + x;\n    c = neg(b);\n"
            "    d = §reshape(x, shape = [7]);\n    y = c + d;"
        )
    )
    assert [e.message.split(":")[0] for e in found] == ["'sum_reduce'", "'reshape'"]


def test_operations_that_nothing_can_run_are_reported_at_once() -> None:
    fragments = (
        "fragment conv3( x: T ) -> ( y: T );\nfragment other( x: T ) -> ( y: T );\n"
        "fragment unused( x: T ) -> ( y: T );\n"
        "fragment f( x: T ) -> ( y: T ) { y = §conv3(x) + conv3(x); }"
    )
    found = errors(graph("a = §other(x); b = f(a); y = other(f(b));", fragments))
    assert all(isinstance(e, UnsupportedError) for e in found)
    assert [e.message for e in found] == [
        "there is no rule for operation 'conv3', used 2 times",
        "there is no rule for operation 'other', used 2 times",
    ]


# Expansion to primitives (spec 6)


def test_expansion_leaves_primitives_only() -> None:
    for case in NNEF[::7]:
        for kind in kinds(network(case_document(case), expand="all").graph):
            assert standard()[kind].body is None, (case, kind)


def test_compound_operations_stay_whole_unless_expanded() -> None:
    text = graph("y = elu(x);")
    assert kinds(flat(text)) == ["elu"]
    assert kinds(flat(text, expand="all")) == ["lt", "exp", "sub", "mul", "select"]
