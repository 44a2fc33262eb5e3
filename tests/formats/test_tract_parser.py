"""The syntax of tract's dialect as its two writers have it, and what tells it from NNEF."""

from __future__ import annotations

from typing import Any

import pytest

from nnef_jax import LimitError, Limits, NnefError, NnefSyntaxError, SemanticError
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.tract import is_tract
from tests.helpers import COMPOSITIONAL
from tests.text_support import MARK
from tests.tract_text import HEADER, graph, parsed

FLAT = "version 1.0;\ngraph net( x ) -> ( y ) { x = external(shape = [1]); y = neg(x); }"


def body(text: str) -> tuple[s.Assignment, ...]:
    """The assignments of a body that has only these."""
    return parsed(f"version 1.0; graph g( x ) -> ( y ) {{ {text} }}").graph.body


def value(text: str) -> s.Expression:
    """The syntax tree of an expression."""
    (assignment,) = body(f"y = {text};")
    return assignment.value


def name(text: str) -> s.Identifier:
    return s.Identifier(0, text)


def number(value: float) -> s.Literal:
    return s.Literal(0, value)


# Identifiers


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("abc_1", "abc_1"),
        ("_", "_"),
        ('i"abc"', "abc"),
        ("i'abc'", "abc"),
        ('i"/model/conv.1/Conv:0;"', "/model/conv.1/Conv:0;"),
        (r'i"a \"b\" \\ c"', 'a "b" \\ c'),
        ("i'don\\'t'", "don't"),
        ('i"2"', "2"),
        ('i"é ü"', "é ü"),
        ('i"graph"', "graph"),
        ("p2o.DynamicDimension.0", "p2o.DynamicDimension.0"),
        *[(word, word) for word in ("graph", "fragment", "version", "extension", "i", "inf", "x1")],
    ],
)
def test_identifiers(text: str, meant: str) -> None:
    (assignment,) = body(f"{text} = copy({text});")
    assert assignment.target == name(meant)
    assert assignment.value == s.Invocation(0, "copy", None, (s.Argument(0, None, name(meant)),))


def test_quoted_names_of_everything() -> None:
    document = parsed(
        HEADER
        + """
        fragment i"f.1"( i"a.b": tensor<scalar>, ) -> ( i"c/d": tensor<scalar>, )
        {
            i"c/d" = neg(i"a.b");
        }
        graph i"a graph"( i"x.1", ) -> ( i"4", )
        {
            i"x.1" = external(shape = [1]);
            i"4" = i"f.1"(i"a.b" = i"x.1");
        }
        """
    )
    (fragment,) = document.fragments.values()
    assert fragment.name == "f.1" and fragment.parameters[0].name == "a.b"
    assert fragment.results[0].name == "c/d"
    assert document.graph.name == "a graph"
    assert document.graph.parameters == (name("x.1"),) and document.graph.results == (name("4"),)


@pytest.mark.parametrize("text", ['i""', "i''", 'i"\t"'])
@pytest.mark.parametrize("place", ["§ = x", "§ = f(x)", "y = §(x)", "y = f(§)", "y = f(§ = x)"])
def test_identifiers_that_are_none(text: str, place: str) -> None:
    with pytest.raises(NnefSyntaxError, match="must not be empty or hold control characters"):
        body(place.replace("§", text) + ";")


# Targets


@pytest.mark.parametrize(
    ("text", "kind", "names"),
    [
        ("a = f();", s.Identifier, ["a"]),
        ("a, b = f();", s.Tuple, ["a", "b"]),
        ("(a, b) = f();", s.Tuple, ["a", "b"]),
        ("( a, b, ) = f();", s.Tuple, ["a", "b"]),
        ("[a, b] = f();", s.Array, ["a", "b"]),
        ("[a] = f();", s.Array, ["a"]),
        ("(a, [b, c]), d = f();", s.Tuple, ["a", "b", "c", "d"]),
        ('i"/a", i"/b" = f();', s.Tuple, ["/a", "/b"]),
    ],
)
def test_targets(text: str, kind: type[s.SyntaxNode], names: list[str]) -> None:
    (assignment,) = body(text)
    assert [i.name for i in s.identifiers(assignment.target)] == names
    assert isinstance(assignment.target, kind) or kind is s.Array


# Literals


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0", 0),
        ("12", 12),
        ("-3", -3),
        ("1.5", 1.5),
        ("-1.5e-3", -0.0015),
        ("1e9", 1e9),
        ("2.", 2.0),
        ("9223372036854775807", 2**63 - 1),
        ("true", True),
        ("false", False),
        ("'a'", "a"),
        ('"a"', "a"),
        (r"'it\'s'", "it's"),
        (r'"\"\\"', '"\\'),
        ("'a # b; \"c\"'", 'a # b; "c"'),
        ("''", ""),
    ],
)
def test_literals(text: str, meant: Any) -> None:
    found = value(text)
    assert found == s.Literal(0, meant) and isinstance(found, s.Literal)
    assert type(found.value) is type(meant)


def test_infinity_is_a_name_that_may_be_negated() -> None:
    assert value("inf") == name("inf")
    assert value("-inf") == s.Unary(0, "-", name("inf"))


def test_nested_arrays() -> None:
    assert value("[]") == s.Array(0, ())
    assert value("[[1, 2,], [3],]") == s.Array(
        0, (s.Array(0, (number(1), number(2))), s.Array(0, (number(3),)))
    )
    assert value("[(0, 0), (1, 2)]") == s.Array(
        0, (s.Tuple(0, (number(0), number(0))), s.Tuple(0, (number(1), number(2))))
    )
    assert value("[[[[3.0]]]]").depth == 4  # type: ignore[union-attr]


# Operators


def binary(operator: str, left: Any, right: Any) -> s.Binary:
    return s.Binary(0, operator, left, right)


def test_precedence() -> None:
    a, b, c = map(name, "abc")
    assert value("a + b * c") == binary("+", a, binary("*", b, c))
    assert value("a * b + c") == binary("+", binary("*", a, b), c)
    assert value("a - b - c") == binary("-", binary("-", a, b), c)
    assert value("a / b * c") == binary("*", binary("/", a, b), c)
    assert value("a ^ b ^ c") == binary("^", binary("^", a, b), c)
    assert value("a * b ^ c") == binary("*", a, binary("^", b, c))
    assert value("a + b < c * a") == binary("<", binary("+", a, b), binary("*", c, a))
    assert value("(a + b) * c") == binary("*", binary("+", a, b), c)
    assert value("-a ^ -b") == binary("^", s.Unary(0, "-", a), s.Unary(0, "-", b))
    assert value("a - -1") == binary("-", a, number(-1))
    assert value("a-1") == binary("-", a, number(1))


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "^", "<", "<=", ">", ">=", "==", "!="])
def test_operators(operator: str) -> None:
    for text in (f"a {operator} b", f"a{operator}b"):
        assert value(text) == binary(operator, name("a"), name("b"))


def test_subscripts() -> None:
    assert value("a[0][i + 1]") == s.Subscript(
        0, s.Subscript(0, name("a"), number(0)), binary("+", name("i"), number(1))
    )


def test_invocations() -> None:
    found = value("f<scalar>(a, b = [1], c = 'd',)")
    assert found == s.Invocation(
        0,
        "f",
        "scalar",
        (
            s.Argument(0, None, name("a")),
            s.Argument(0, "b", s.Array(0, (number(1),))),
            s.Argument(0, "c", s.Literal(0, "d")),
        ),
    )
    assert value("f()") == s.Invocation(0, "f", None, ())
    assert value("variable< integer >(label = 'a')").generic == "integer"  # type: ignore[union-attr]


# Fragments


def test_types_are_not_looked_at() -> None:
    document = parsed(
        HEADER
        + """
        fragment f<? = scalar>(
            a: tensor<?>, b: tensor<scalar>[], c: (string, tensor<scalar>)[] = [], d: integer = -1,
            e: complex = 1.5, g: ?[][] = [[]], h: tdim = 0, i: tensor<> = false
        ) -> ( y: tensor<?>, z )
        {
            y = a; z = b;
        }
        """
        + "graph g( x ) -> ( y ) { y = x; }"
    )
    fragment = document.fragments["f"]
    assert [p.name for p in fragment.parameters] == list("abcdeghi")
    assert [p.default and type(p.default) for p in fragment.parameters] == [
        None, None, s.Array, s.Literal, s.Literal, s.Array, s.Literal, s.Literal,
    ]  # fmt: skip
    assert [r.name for r in fragment.results] == ["y", "z"]


def test_comments_and_white_space() -> None:
    text = 'version 1.0; # one\n#two ; { "\nextension a b;#\n\tgraph g(x)->(y)\f{#\r\ny=x;}#end'
    assert len(parsed(text).graph.body) == 1


# Extensions and properties


def test_extension_lines() -> None:
    document = parsed(
        """version 1.0;
        extension tract_registry tract_core;
        extension   tract_registry
            tract_onnx ;
        extension tract_symbol S;
        extension tract_symbol p2o.DynamicDimension.0;
        extension tract_assert S >= 1;
        extension tract_assert tg: p2o.DynamicDimension.0   ==
            0 ;
        extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;
        extension other "quotes" and [brackets] = anything 1.2.3 # even this ;
        extension pulse;
        graph g( x ) -> ( y ) { y = x; }"""
    )
    assert document.registries == ("tract_core", "tract_onnx")
    assert document.symbols == ("S", "p2o.DynamicDimension.0")
    assert len(document.extensions) == 9 and document.extensions[0] == "tract_registry tract_core"
    one, other = document.assertions
    assert (one.scenario, one.condition) == ("", binary(">=", name("S"), number(1)))
    assert other.scenario == "tg"
    assert other.condition == binary("==", name("p2o.DynamicDimension.0"), number(0))
    text = document.source.text
    assert text[one.offset :].startswith("S >= 1;") and text[other.offset :].startswith("tg: p2o.")
    assert isinstance(one.condition, s.Binary) and text[one.condition.offset :].startswith(">= 1;")


def test_the_old_way_to_declare_the_symbol_of_a_stream() -> None:
    text = "version 1.0; extension tract_pulse_streaming_symbol; graph g(x) -> (y) { y = x; }"
    assert parsed(text).symbols == ("S",)
    assert is_tract(text)


PROPERTIES = HEADER + (
    "fragment tract_core_properties(\n) -> (properties: (string, tensor<scalar>)[])\n"
    "{\n  properties = %s;\n}\n\ngraph g( x ) -> ( y ) { y = x; }"
)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("[]", {}),
        ('[("a", "b")]', {"a": "b"}),
        ("[\n    ('a', 'b'),\n    ('c', '')\n  ]", {"a": "b", "c": ""}),
        (
            '[("cmd", "python -c "print(1, 2)" {{x}}"), ("b", "it\'s; } graph g(")]',
            {"cmd": 'python -c "print(1, 2)" {{x}}', "b": "it's; } graph g("},
        ),
        (
            '[("v", tract_core_cast(8, to = "i64")), ("w", 1.5)]',
            {"v": 'tract_core_cast(8, to = "i64")', "w": "1.5"},
        ),
    ],
)
def test_properties(written: str, meant: dict[str, str]) -> None:
    document = parsed(PROPERTIES % written)
    assert document.properties == meant
    assert not document.fragments and len(document.graph.body) == 1


def test_properties_on_one_line() -> None:
    text = (
        "version 1.0; extension tract_registry tract_core; # fragment tract_core_properties\n"
        "fragment f( x: tensor<scalar> ) -> ( y: tensor<scalar> ) { y = i'x'; }"
        'fragment tract_core_properties() -> (p: (string, string)[]) { p = [("a", "b")]; }'
        'graph g( x ) -> ( y ) { y = [("c", "d")]; }'
    )
    document = parsed(text)
    assert document.properties == {"a": "b"} and list(document.fragments) == ["f"]
    assert document.graph.body[0].value.offset == text.index('[("c"')


def test_places_behind_properties_are_right() -> None:
    text = PROPERTIES % '[\n    ("a", "say "hi""),\n  ]'
    document = parsed(text)
    assert document.graph.body[0].offset == text.index("y = x")


# Which dialect


@pytest.mark.parametrize(
    "text",
    [
        graph("y = x;"),
        "version 1.0; extension tract_registry tract_core; graph g( x ) -> ( y ) { y = x; }",
        "# by tract\nversion 1.0;\nextension\n tract_symbol S;\n",
        "version 1.0;\nfragment tract_core_properties() -> (p: string) { p = []; }",
        'version 1.0; graph network(i"x.1") -> (y) {}',
        "version 1.0; graph network(x) -> (i'y') {}",
        'version 1.0; graph g(x) -> (y) { x = external(shape = [1]); y = neg(i"x"); }',
    ],
)
def test_what_is_the_dialect(text: str) -> None:
    assert is_tract(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        FLAT,
        COMPOSITIONAL + FLAT,
        f"# extension tract_registry tract_core;\n{FLAT}",
        f"{FLAT}\n  # fragment tract_core_properties",
        f"# graph net( i'm a comment )\n{FLAT}",
        FLAT.replace("neg(x)", "variable(label = 'extension tract_registry', shape = [1])"),
        FLAT.replace("neg(x)", "variable(label = \"i'tract'\", shape = [1])"),
        FLAT.replace("neg", "tract_core_erf"),
        "version 1.0; extension KHR_tract_like; " + FLAT,
        f"# it's not closed\n# i\n{FLAT}",
        FLAT.replace("x", "i").replace("neg(i)", "i"),
    ],
)
def test_what_is_not_the_dialect(text: str) -> None:
    assert not is_tract(text)


# What is wrong


def fails(text: str) -> NnefError:
    """The error of a text, which must stand at its mark."""
    before, after = text.split(MARK)
    with pytest.raises(NnefError) as caught:
        parsed(before + after)
    assert caught.value.span is not None and caught.value.span.offset == len(before)
    return caught.value


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("§", "unexpected end of the text, expected 'version'", "the text is empty"),
        ("version §2.0; graph", "version 2.0 is not supported, only 1.0 is", ""),
        (graph("y = x §z = x;"), "unexpected 'z'", "a semicolon may be missing before this"),
        (graph("y = f(x§;"), "unexpected ';'", "a ')' may be missing before this"),
        (graph("y = [x§;"), "unexpected ';'", "a ']' may be missing before this"),
        (graph("y §: x;"), "unexpected ':', expected", "write a single '='"),
        (graph("y = x § ! x;").replace("§ !", "§!"), "unexpected '!'", ""),
        (graph("y = §if;").replace("if;", "? x;"), "unexpected '?'", ""),
        (graph('y = §"abc;'), "unexpected '\"'", "the string does not end on its line"),
        (graph("i§'y = x;"), "unexpected", ""),
        (graph("y = x;").replace("graph net( x )", "graph net §x )"), "unexpected 'x'", ""),
        (graph("y = §123456789012345678901;"), "an integer must fit 64 bits", ""),
        (graph("y = x; f§(1) = x;"), "unexpected '('", ""),
        (
            HEADER.replace(";\nextension", "\nextension", 1),
            "unexpected 'extension'",
            "a semicolon may be missing before this",
        ),
        (
            "version 1.0;\nextension tract_registry tract_core\n§graph g(x) -> (y) { y = x; }",
            "unexpected 'graph' in an extension line",
            "a semicolon may be missing before this",
        ),
        (graph("y = x;", head="extension tract_assert S >=§;"), "unexpected ';'", ""),
        (graph("y = x;", head="extension tract_assert S §= = 1;"), "", ""),
    ],
)
def test_syntax_errors(text: str, message: str, hint: str) -> None:
    if MARK not in text:
        text = text.replace("extension", f"{MARK}extension", 1)
    error = fails(text)
    assert isinstance(error, NnefSyntaxError)
    assert message in error.message and hint in error.hint


def test_a_fragment_twice() -> None:
    fragment = "fragment f( x: T ) -> ( y: T ) { y = x; }\n"
    error = fails(graph("y = x;", fragment + fragment.replace("f(", "§f(")))
    assert isinstance(error, SemanticError) and error.message == "fragment 'f' is defined twice"


@pytest.mark.parametrize("text", ["y = relu(§{{ value }});", "§{% if a %} y = x; {% endif %}"])
def test_templates(text: str) -> None:
    error = fails(graph(text))
    assert error.message == "the text is a template" and error.hint.startswith("render it first")


# Bounds


@pytest.mark.parametrize(
    "text",
    [
        "(" * 300 + "x" + ")" * 300,
        "[" * 100_000 + "x" + "]" * 100_000,
        "-" * 300 + "x",
        "neg(" * 30_000 + "x" + ")" * 30_000,
        "x" + "[0]" * 30_000,
        "x" + " + x" * 300,
        "x" + " ^ x" * 300,
    ],
    ids=["parentheses", "brackets", "minus", "calls", "subscripts", "sums", "powers"],
)
def test_deep_nesting(text: str) -> None:
    with pytest.raises(LimitError, match="nested more than 200 deep") as caught:
        parsed(graph(f"y = {text};"))
    assert caught.value.span is not None and "Limits(nesting=...)" in caught.value.hint


def test_nesting_may_be_allowed() -> None:
    text = graph("y = " + "(" * 30 + "x" + ")" * 30 + ";")
    assert len(parsed(text).graph.body) == 2
    with pytest.raises(LimitError):
        parsed(text, Limits(nesting=20))


def test_many_statements() -> None:
    line = (
        '    i"layer.%d/out" = conv(i"layer.%d/out", w, b, stride = [1, 1], padding = [(0, 1)]);\n'
    )
    text = graph("".join(line % (i + 1, i) for i in range(5000)))
    assert is_tract(text) and len(parsed(text).graph.body) == 5001


def test_hostile_texts_are_refused() -> None:
    for text in (
        PROPERTIES % ('[("k", ' * 10_000),
        "extension tract_symbol S" * 20_000,
        "# i" * 100_000 + "i" * 100_000 + '"' * 100_001,
        "version 1.0;" + "extension a;" * 20_000,
    ):
        is_tract(text)
        with pytest.raises(NnefError):
            parsed(text)
