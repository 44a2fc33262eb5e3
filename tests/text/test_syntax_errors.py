"""What is said of texts that do not follow the grammar, and where; how deep they may nest."""

from __future__ import annotations

import pytest

from nnef_jax import LimitError, Limits, NnefSyntaxError, SemanticError
from tests.text_support import PROVISIONAL, error, graph, network, parsed

FLAT = "version 1.0;\ngraph net( x ) -> ( y ) {{ x = external(shape = [1]); {} }}"

SYNTAX_ERRORS = [
    ("", "unexpected end of the text, expected 'version'", "the text is empty"),
    (
        "version 1.0;§",
        "unexpected end of the text, expected one of 'extension', 'fragment', 'graph'",
        "",
    ),
    ("§hello", "unexpected 'hello', expected 'version'", "starts with 'version 1.0;'"),
    (
        "§\ufeffversion 1.0;",
        "unexpected '\\ufeff', expected 'version'",
        "without a byte order mark",
    ),
    ("version §abc;", "unexpected 'abc', expected a number", ""),
    ("version §'1.0';", 'unexpected "\'", expected a number', ""),
    ("version §1;", "a version is two numbers with a point between, as in 1.0", ""),
    (
        "version 1.0;\nextension A\n§graph",
        "unexpected 'graph', expected one of ',', ';'",
        "semicolon may be missing",
    ),
    ("version 1.0; graph §( x )", "unexpected '(', expected an identifier", ""),
    ("version 1.0; graph net( §)", "unexpected ')', expected an identifier", ""),
    ("version 1.0; graph net( x ) §( y )", "unexpected '(', expected '->'", ""),
    ("version 1.0; graph net( x§: scalar )", "unexpected ':', expected one of ')', ','", ""),
    (
        "version 1.0; graph net( x ) -> ( y ) {§}",
        "unexpected '}', expected one of '(', '[', an identifier",
        "",
    ),
    (
        FLAT.format("§1.0 = y;"),
        "unexpected '1.0', expected one of '(', '[', '}', an identifier",
        "",
    ),
    (FLAT.format("neg§(x) = y;"), "unexpected '(', expected one of ',', '='", ""),
    (FLAT.format("y§;"), "unexpected ';', expected one of ',', '='", ""),
    (
        FLAT.format("y = neg(x);").replace("; }", " §}"),
        "unexpected '}'",
        "a semicolon may be missing before this",
    ),
    (
        FLAT.format("y = neg(x) §z = neg(y);"),
        "unexpected 'z'",
        "a semicolon may be missing before this",
    ),
    (FLAT.format("y = neg(x§;"), "unexpected ';'", "a ')' may be missing before this"),
    (
        FLAT.format("y = tile(x, repeats = [2§;"),
        "unexpected ';'",
        "a ']' may be missing before this",
    ),
    (FLAT.format("y = neg(x)§);"), "unexpected ')', expected one of ',', ';'", ""),
    (FLAT.format("y = neg(x) §& x;"), "unexpected '&'", ""),
    (FLAT.format("y = add(x, §.5);"), "unexpected '.5'", ""),
    (FLAT.format("y = add(x, 1§e);"), "unexpected 'e'", ""),
    (FLAT.format("y = add(x, 0§x10);"), "unexpected 'x10'", ""),
    (FLAT.format("y = add(x, §1e400);"), "the number is too large for a double", ""),
    (
        FLAT.format("y = tile(x, repeats = [§9223372036854775808]);"),
        "an integer must fit 64 bits",
        "",
    ),
    (
        FLAT.format(f"y = tile(x, repeats = [§{'9' * 5000}]);"),
        "an integer must fit 64 bits",
        "",
    ),
    (FLAT.format("y = add(x, §²);"), "unexpected '²'", ""),
    (
        FLAT.format("y = pad(x, border = §'a);"),
        'unexpected "\'"',
        "the string does not end on its line",
    ),
    (FLAT.format("y = pad(x, border = §'a\");"), 'unexpected "\'"', "has quotes of two kinds"),
    (FLAT.format("y = pad(x, border = §'a\tb');"), "a string must not hold control characters", ""),
    (
        FLAT.format("y = cast§<float>(x);"),
        "'<float>' does not name a type",
        "scalar, integer, logical and string",
    ),
    (FLAT.format("y = [x, §];"), "unexpected ']'", ""),
    (FLAT.format("y = (§);"), "unexpected ')'", ""),
    (
        FLAT.format("y = neg(x); ") + " §graph",
        "unexpected 'graph', expected the end of the text",
        "",
    ),
    (FLAT.format("y = neg(x); ") + "§;", "unexpected ';', expected the end of the text", ""),
    (graph("y = x §? x : x;"), "unexpected '?'", ""),
    (graph("y =§= x;"), "unexpected '='", "write a single '='"),
    (graph("y = [for i in [x]§];"), "unexpected ']', expected one of ',', 'if', 'yield'", ""),
    (graph("y = x;", "fragment f( x: §float ) -> ( y: T );"), "'float' is not a type", ""),
    (
        graph("y = x;", "fragment f( x: tensor§<string> ) -> ( y: T );"),
        "a tensor cannot hold 'string'",
        "scalar",
    ),
    (
        graph("y = x;", "fragment f( x: T ) -> ( y: T §= 1.0 );"),
        "unexpected '=', expected one of ')', ',', '['",
        "",
    ),
    (
        graph("y = x;", "fragment f( x: T ) -> ( y: T ) { y = x;").replace(
            "graph net", "graph §net"
        ),
        "unexpected 'net', expected one of ',', '='",
        "the body before this may lack its '}'",
    ),
    (
        graph("y = scalar§(1, 2);").replace("§(", "(").replace("scalar(", "§scalar("),
        "'scalar' takes one positional argument",
        "",
    ),
]


@pytest.mark.parametrize(("text", "message", "hint"), SYNTAX_ERRORS)
def test_syntax_errors(text: str, message: str, hint: str) -> None:
    found = error(text if "§" in text else f"§{text}")
    assert isinstance(found, NnefSyntaxError)
    assert found.message == message or (
        found.message.startswith(message) and ", expected" not in message
    )
    assert hint in found.hint and bool(hint) == bool(found.hint)


@pytest.mark.parametrize("version", ["0.9", "1.1", "2.0", "10.0"])
def test_other_versions_are_refused(version: str) -> None:
    found = error(
        f"version §{version}; graph net( x ) -> ( y ) {{ x = external(shape = [1]); y = neg(x); }}"
    )
    assert isinstance(found, SemanticError)
    assert found.message == f"version {version} is not supported, only 1.0 is"


def test_the_message_shows_line_and_caret() -> None:
    with pytest.raises(NnefSyntaxError) as caught:
        parsed(
            "version 1.0;\ngraph net( x ) -> ( y )\n{\n\tx = "
            "external(shape = [1])\n    y = neg(x);\n}"
        )
    assert str(caught.value) == (
        "graph.nnef:5:5: unexpected 'y'\n"
        "        y = neg(x);\n"
        "        ^\n"
        "  hint: a semicolon may be missing before this"
    )


# Nesting


MANY = 5_000  # five times what Python's stack holds


@pytest.mark.parametrize(
    "value",
    [
        "(" * MANY + "x" + ")" * MANY,
        "[" * MANY + "x" + "]" * MANY,
        "-" * MANY + "x",
        "!" * MANY + "x",
        "neg(" * MANY + "x" + ")" * MANY,
        "x" + "[0]" * MANY,
        "x" + " + x" * MANY,
        "x" + " ^ x" * MANY,
    ],
    ids=["parentheses", "brackets", "minus", "not", "calls", "subscripts", "sums", "powers"],
)
def test_deep_nesting_is_a_limit(value: str) -> None:
    for text in (graph(f"y = {value};"), graph(f"y = {value}", header=PROVISIONAL)):
        with pytest.raises(LimitError, match="expressions are nested more than 200 deep") as caught:
            parsed(text)
        assert caught.value.span is not None and "Limits(nesting=...)" in caught.value.hint


@pytest.mark.parametrize("opening", ["(", "[", "f("])
def test_deep_nesting_without_an_end_is_a_syntax_error(opening: str) -> None:
    with pytest.raises(NnefSyntaxError):
        parsed(graph(f"y = {opening * MANY}"))


@pytest.mark.parametrize(
    "type", ["integer" + "[]" * MANY, "(" * MANY + "integer" + ", integer)" * MANY]
)
def test_deeply_nested_types_are_a_limit(type: str) -> None:
    for fragment in (
        f"fragment f( x: T, §a: {type} ) -> ( y: T );",
        f"fragment f( x: T ) -> ( §y: {type} );",
    ):
        assert error(graph("y = f(x);", fragment)).message == "types are nested more than 200 deep"


def test_limits_far_above_the_default_end_in_an_error_too() -> None:
    limits = Limits(nesting=10**9)
    for value in ("[" * MANY + "x" + "]" * MANY, "!" * MANY + "x"):
        with pytest.raises(LimitError, match="too deeply for Python's stack"):
            network(graph(f"y = {value};"), limits=limits)


def test_what_is_within_the_limit_is_read() -> None:
    assert len(parsed(graph("y = " + "(" * 190 + "x" + ")" * 190 + ";")).graph.body) == 2
    with pytest.raises(LimitError):
        parsed(graph("y = " + "(" * 30 + "x" + ")" * 30 + ";"), Limits(nesting=20))
