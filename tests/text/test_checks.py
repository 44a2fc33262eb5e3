"""The semantic rules of the language: one wrong document for each (spec 3.3.1 to 3.3.3).

The places are those of the `§` in the documents, see `text_support`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nnef_jax import NnefError, SemanticError, load
from tests.text_support import PROVISIONAL, checked, error, errors, graph, in_fragment

# What is wrong -> fragments, statements of the graph, message, hint (or a part of it).
DECLARATIONS = {
    "fragment twice": (
        "fragment f( x: T ) -> ( y: T ) { y = x; }\nfragment "
        "§f( x: T ) -> ( y: T ) { y = neg(x); }",
        "y = f(x);",
        "fragment 'f' is already defined on line 3",
        "",
    ),
    "name of the standard": (
        "fragment §conv( x: T ) -> ( y: T ) { y = x; }",
        "y = neg(x);",
        "'conv' is an operation of the standard, it cannot be defined again",
        "give the fragment another name",
    ),
    "parameter twice": (
        "fragment f( x: T, §x: T ) -> ( y: T ) { y = x; }",
        "y = f(x, x);",
        "'x' is declared twice in 'f'",
        "",
    ),
    "result twice": (
        "fragment f( x: T ) -> ( y: T, §y: T ) { y = neg(x); }",
        "y, z = f(x);",
        "'y' is declared twice in 'f'",
        "",
    ),
    "parameter as result": (
        "fragment f( x: T ) -> ( §x: T ) { x = neg(x); }",
        "y = f(x);",
        "'x' is declared twice in 'f'",
        "",
    ),
    "tensor after attribute": (
        "fragment f( n: integer, §x: T ) -> ( y: T ) { y = x; }",
        "y = f(n = 1, x = x);",
        "tensor 'x' is declared after attribute 'n'",
        "declare all tensors first: only they may be positional",
    ),
    "default of another type": (
        "fragment f( x: T, n: integer = §2.0 ) -> ( y: T ) { y = x; }",
        "y = f(x);",
        "the default of 'n' has type scalar, declared is integer",
        "",
    ),
    "integer as default of a tensor": (
        "fragment f( x: T = §0 ) -> ( y: T ) { y = neg(x); }",
        "y = f();",
        "the default of 'x' has type integer, declared is tensor<scalar>",
        "",
    ),
    "default of mixed types": (
        "fragment f( x: T, n: integer[] = [1, §'a'] ) -> ( y: T ) { y = x; }",
        "y = f(x);",
        "item 1 has type string, the items before it integer",
        "",
    ),
    "default that is computed": (
        "fragment f( x: T, n: integer = 1 §+ 1 ) -> ( y: T ) { y = x; }",
        "y = f(x);",
        "the default of 'n' is not a literal",
        "",
    ),
    "default that is a name": (
        "fragment f( n: integer, m: integer = §n ) -> ( y: T ) { y = 1.0; }",
        "y = f(n = 1);",
        "the default of 'm' is not a literal",
        "",
    ),
    "result never assigned": (
        "fragment f( x: T ) -> ( y: T, §z: T ) { y = neg(x); }",
        "y, z = f(x);",
        "result 'z' of 'f' is never assigned",
        "",
    ),
    "result assigned twice": (
        "fragment f( x: T ) -> ( y: T ) { y = neg(x); §y = exp(x); }",
        "y = f(x);",
        "'y' is already assigned",
        "use another name",
    ),
    "result of another type": (
        "fragment f( x: T ) -> ( y: tensor<logical> ) { §y = x; }",
        "y = f(x);",
        "result 'y' is declared as tensor<logical>, the assigned value is tensor<scalar>",
        "",
    ),
    "array as result": (
        "fragment f( x: T ) -> ( y: T ) { §y = [x]; }",
        "y = f(x);",
        "result 'y' is declared as tensor<scalar>, the assigned value is tensor<scalar>[]",
        "",
    ),
    "parameter assigned": (
        "fragment f( x: T ) -> ( y: T ) { §x = neg(x); y = x; }",
        "y = f(x);",
        "parameter 'x' must not be assigned",
        "",
    ),
    "local assigned twice": (
        "fragment f( x: T ) -> ( y: T ) { a = neg(x); §a = exp(x); y = a; }",
        "y = f(x);",
        "'a' is already assigned",
        "use another name",
    ),
    "local used before": (
        "fragment f( x: T ) -> ( y: T ) { y = §a; a = neg(x); }",
        "y = f(x);",
        "'a' is not defined here",
        "it is assigned later: a name must be assigned before it is used",
    ),
    "name of another body": (
        "fragment g( q: T ) -> ( y: T ) { y = q; } fragment f( x: T ) -> ( y: T ) { y = §q; }",
        "y = f(x);",
        "'q' is not defined here",
        "assign it before this, or make it a parameter",
    ),
    "external in a fragment": (
        "fragment f( x: T ) -> ( y: T ) { y = §external(shape = [1]); }",
        "y = f(x);",
        "'external' is not allowed in a fragment",
        "pass the tensor as an argument",
    ),
    "single value to two names": (
        "fragment f( x: T ) -> ( y: T ) { §a, b = neg(x); y = a; }",
        "y = f(x);",
        "a value of type tensor<scalar> cannot be assigned to this target",
        "",
    ),
    "two results to three names": (
        "fragment f( x: T ) -> ( y: T ) { §a, b, c = moments(x, axes = [0]); y = a; }",
        "y = f(x);",
        "2 results cannot be assigned to 3 names",
        "",
    ),
    "tuple to an array": (
        "fragment f( x: T ) -> ( y: T ) { §[a, b] = moments(x, axes = [0]); y = a; }",
        "y = f(x);",
        "a value of type (tensor<scalar>,tensor<scalar>) cannot be assigned to this target",
        "",
    ),
    "array to a tuple": (
        "fragment f( x: T ) -> ( y: T ) { §(a, b) = [x, x]; y = a; }",
        "y = f(x);",
        "a value of type tensor<scalar>[] cannot be assigned to this target",
        "",
    ),
    "an error in a fragment that nothing calls": (
        "fragment f( x: T ) -> ( y: T ) { y = neg(§q); }",
        "y = neg(x);",
        "'q' is not defined here",
        "",
    ),
}


@pytest.mark.parametrize("what", DECLARATIONS)
def test_fragments(what: str) -> None:
    fragments, body, message, hint = DECLARATIONS[what]
    found = error(graph(body, fragments))
    assert isinstance(found, SemanticError)
    assert found.message == message
    assert hint in found.hint


INVOCATIONS = {
    "y = neg(x, §x);": ("'neg' takes at most 1 argument, this is number 2", ""),
    "y = §add(x);": ("'add' lacks its argument 'y'", ""),
    "y = §conv();": ("'conv' lacks its arguments 'input', 'filter'", ""),
    "y = neg(§z = x);": ("'neg' has no parameter 'z'", "its parameters are x"),
    "y = transpose(x, §perm = [1,0]);": ("'transpose' has no parameter 'perm'", "input, axes"),
    "y = neg(x = x, §x = x);": ("argument 'x' is given twice", ""),
    "y = neg(x, §x = x);": ("argument 'x' is given by position and by name", ""),
    "y = add(x = x, §x);": ("a positional argument must not follow a named one", ""),
    "y = leaky_relu(x, §0.1);": (
        "'alpha' of 'leaky_relu' is an attribute: it must be named",
        "write alpha = ...",
    ),
    "y = leaky_relu(x, alpha = §1);": (
        "'alpha' of 'leaky_relu' must be of type scalar, this is integer",
        "with a point",
    ),
    "y = leaky_relu(x, alpha = §x);": (
        "'alpha' of 'leaky_relu' must be of type scalar, this is tensor<scalar>",
        "",
    ),
    "y = leaky_relu(x, alpha = §'a');": (
        "'alpha' of 'leaky_relu' must be of type scalar, this is string",
        "",
    ),
    "y = sum_reduce(x, axes = §1);": (
        "'axes' of 'sum_reduce' must be of type integer[], this is integer",
        "",
    ),
    "y = sum_reduce(x, axes = §[1.0]);": (
        "'axes' of 'sum_reduce' must be of type integer[], this is scalar[]",
        "",
    ),
    "y = pad(x, padding = §[0, 0]);": (
        "'padding' of 'pad' must be of type (integer,integer)[], this is integer[]",
        "",
    ),
    "y = pad(x, padding = §[(0, 0, 0)]);": (
        "'padding' of 'pad' must be of type "
        "(integer,integer)[], this is (integer,integer,integer)[]",
        "",
    ),
    "y = concat(§x, axis = 1);": (
        "'values' of 'concat' must be of type tensor<?>[], this is tensor<scalar>",
        "",
    ),
    "y = add(x, §1);": ("'y' of 'add' must be of type tensor<scalar>, this is integer", "point"),
    "y = not(§x);": ("'x' of 'not' must be of type tensor<logical>, this is tensor<scalar>", ""),
    "y = add(x, x §< x);": (
        "'y' of 'add' must be of type tensor<scalar>, this is tensor<logical>",
        "",
    ),
    "y = gather(x, §x);": (
        "'indices' of 'gather' must be of type tensor<integer>, this is tensor<scalar>",
        "",
    ),
    "y = select(x < x, x, x §< x);": (
        "'false_value' of 'select' must be of type tensor<scalar>, this is tensor<logical>",
        "",
    ),
    "y = §neg<scalar>(x);": ("'neg' is not generic, it takes no <scalar>", ""),
    "y = copy<integer>(§x);": (
        "'x' of 'copy' must be of type tensor<integer>, this is tensor<scalar>",
        "",
    ),
    "y = §cast<?>(x);": ("'?' stands for nothing here", ""),
    "y = §cast<string>(x);": ("a tensor cannot hold strings", ""),
    "y = §constant(shape = [1], value = ['a']);": ("a tensor cannot hold strings", ""),
    "y = §cast(x);": (
        "the arguments of 'cast' do not tell what its '?' stands for",
        "write cast<scalar>(...), cast<integer>(...) or cast<logical>(...)",
    ),
    "y = constant<integer>(shape = [1], value = §[1.0]);": (
        "'value' of 'constant' must be of type integer[], this is scalar[]",
        "",
    ),
}


@pytest.mark.parametrize("body", INVOCATIONS)
def test_invocations(body: str) -> None:
    message, hint = INVOCATIONS[body]
    found = error(graph(body))
    assert isinstance(found, SemanticError)
    assert found.message == message
    assert hint in found.hint


GRAPHS = {
    "graph net( x, §x ) -> ( y ) { x = external(shape = [1]); y = neg(x); }": (
        "parameter 'x' of the graph is declared twice",
        "",
    ),
    "graph net( x ) -> ( y, §y ) { x = external(shape = [1]); y = neg(x); }": (
        "result 'y' of the graph is declared twice",
        "",
    ),
    "graph net( x ) -> ( y, §x ) { x = external(shape = [1]); y = neg(x); }": (
        "'x' is a parameter of the graph and a result of it",
        "write y = copy(x);",
    ),
    "graph net( x ) -> ( y, §z ) { x = external(shape = [1]); y = neg(x); }": (
        "graph result 'z' is never assigned",
        "",
    ),
    "graph net( x, §w ) -> ( y ) { x = external(shape = [1]); y = neg(x); }": (
        "graph parameter 'w' is never assigned",
        "write w = external(shape = [...]);",
    ),
    "graph net( x ) -> ( y ) { §x = constant(shape = [1], value = [1.0]); y = neg(x); }": (
        "graph parameter 'x' must be assigned by 'external'",
        "",
    ),
    "graph net( x ) -> ( y ) { §x = neg(external(shape = [1])); y = neg(x); }": (
        "graph parameter 'x' must be assigned by 'external'",
        "",
    ),
    "graph net( x ) -> ( y ) { x = external(shape = [1]); §w "
    "= external(shape = [1]); y = neg(x); }": (
        "'w' is assigned by 'external' but is not a parameter of the graph",
        "add it: graph net( ..., w ) -> ...",
    ),
    "graph net( x ) -> ( y ) { x = external(shape = [1]); y = add(x, §external(shape = [1])); }": (
        "'external' must be assigned to a parameter of the graph",
        "graph net( ..., name ) -> ...",
    ),
    "graph net( x, z ) -> ( y ) { §x, z = external(shape = [1]); y = neg(x); }": (
        "a value of type tensor<scalar> cannot be assigned to this target",
        "",
    ),
    "graph net( x ) -> ( y ) { x = external(shape = [1]); §x "
    "= external(shape = [2]); y = neg(x); }": (
        "'x' is already assigned",
        "",
    ),
    "graph net( x ) -> ( y ) { x = external(shape = [1]); y = neg(§y); }": (
        "'y' is not defined here",
        "it is assigned later",
    ),
    "graph net( x ) -> ( y ) { y = neg(§x); x = external(shape = [1]); }": (
        "'x' is not defined here",
        "it is assigned later",
    ),
    "graph net( input ) -> ( y ) { input = external(shape = [1]); y = neg(§inptu); }": (
        "'inptu' is not defined here",
        "did you mean 'input'?",
    ),
    "graph net( x ) -> ( y ) { x = external(shape = [1]); §y = moments(x, axes = [0]); }": (
        "'y' has type (tensor<scalar>,tensor<scalar>), in the "
        "graph every name stands for one tensor",
        "unpack tuples as (a, b) = ... and arrays as [a, b] = ...",
    ),
    "graph net( x ) -> ( y ) { x = external(shape = [1]); §y = copy_n(x, times = 2); }": (
        "'y' has type tensor<scalar>[], in the graph every name stands for one tensor",
        "unpack",
    ),
    "graph net( x ) -> ( y ) { x = external(shape = [1]); y = neg(x); §s = 'a'; }": (
        "'s' has type string, in the graph every name stands for one tensor",
        "",
    ),
}


@pytest.mark.parametrize("text", GRAPHS)
def test_the_graph(text: str) -> None:
    message, hint = GRAPHS[text]
    found = error(
        f"version 1.0;\nextension KHR_enable_operator_expressions;\n{text}",
    )
    assert isinstance(found, SemanticError)
    assert found.message == message
    assert hint in found.hint


def test_several_errors_are_reported_in_the_order_of_the_text() -> None:
    found = errors(
        graph(
            "a = §nge(x);\n    b = add(§c, §1);\n    y = "
            "leaky_relu(b, §slope = 0.1);\n    §b = neg(y);",
            "fragment f( x: T, §x: T ) -> ( §z: T ) { w = neg(§v); }\n",
        )
    )
    assert [e.message for e in found] == [
        "'x' is declared twice in 'f'",
        "result 'z' of 'f' is never assigned",
        "'v' is not defined here",
        "unknown operation 'nge'",
        "'c' is not defined here",
        "'y' of 'add' must be of type tensor<scalar>, this is integer",
        "'leaky_relu' has no parameter 'slope'",
        "'b' is already assigned",
    ]


def test_one_mistake_is_reported_once() -> None:
    found = error(
        graph(
            "a = neg(§q); b = add(a, q); c = a + q * q; y = b + c[0] + f(a);",
            "fragment f( x: T ) -> ( y: T );",
        )
    )
    assert found.message == "'q' is not defined here"
    error(graph("a = §frobnicate(x); [b, c] = a; d = b + a[1] - !c; y = d if a else c;"))
    error(
        graph(
            "a = 'a' §+ 1; y = a * x + [a][0] + f(a, a);", "fragment f( x: T, y: T ) -> ( y2: T );"
        )
    )


def test_all_unknown_operations_are_counted() -> None:
    text = graph(
        "a = relo(x);\n    b = relo(a) + §frobnicate(relo(x));\n   "
        " [c, d] = frobnicate(a);\n    y = §g(b);",
        "fragment f( x: T ) -> ( y: T ) { y = §zzz(x) + §relo(x); "
        "}\nfragment gg( x: T ) -> ( y: T ) { y = x; }",
    )
    found = errors(text)
    assert [(e.message, e.hint) for e in found] == [
        (
            "unknown operation 'zzz'",
            "operations beyond the standard need a fragment that defines them",
        ),
        ("unknown operation 'relo', used 4 times", "did you mean 'relu'?"),
        (
            "unknown operation 'frobnicate', used 2 times",
            "operations beyond the standard need a fragment that defines them",
        ),
        ("unknown operation 'g'", found[3].hint),
    ]


def test_the_provisional_dialect_declares_some_operations_otherwise() -> None:
    checked(
        in_fragment(
            "y = matmul(x, transpose(x, perm = [1,0]), trA = true, trB = true)", header=PROVISIONAL
        )
    )
    found = error(in_fragment("y = transpose(x, §axes = [1,0])", header=PROVISIONAL))
    assert found.hint == "its parameters are input, perm"


def test_fragments_may_be_used_before_they_are_defined() -> None:
    checked(
        graph(
            "y = f(x);",
            "fragment f( x: T ) -> ( y: T ) { y = g(x); } "
            "fragment g( x: T ) -> ( y: T ) { y = f(x); }",
        )
    )


def test_the_shared_invalid_documents_are_refused(shared_cases: Path) -> None:
    folder = shared_cases / "invalid"
    names = [
        path.name
        for path in sorted(folder.iterdir())
        if path.name.startswith(("syn_", "sem_", "shp_"))
    ]
    assert names
    for name in names:
        if name != "sem_exponential_calls":  # its like is in test_limits
            with pytest.raises(NnefError) as caught:
                load(folder / name)
            assert all(e.span is not None for e in caught.value.errors), name
