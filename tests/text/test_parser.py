"""From text to syntax tree: lexical rules, precedence, both dialects (spec 3.1, 3.2)."""

from __future__ import annotations

import pytest

from nnef_jax import NnefSyntaxError
from nnef_jax.formats.syntax import tree as s
from tests.helpers import COMPOSITIONAL
from tests.text_support import PROVISIONAL, error, graph, in_fragment, parsed

FLAT = "version 1.0;\ngraph net( x ) -> ( y ) {{ x = external(shape = [1]); {} }}"


def shown(node: s.Expression | None) -> str:
    """An expression with all its parentheses."""
    match node:
        case None:
            return ""
        case s.Literal(value=bool(value)):
            return "true" if value else "false"
        case s.Literal(value=value):
            return repr(value)
        case s.Identifier(name=name):
            return name
        case s.Array(items=items):
            return f"[{', '.join(map(shown, items))}]"
        case s.Tuple(items=items):
            return f"({', '.join(map(shown, items))})"
        case s.Unary(operator=operator, operand=operand):
            return f"({operator}{shown(operand)})"
        case s.Binary(operator=operator, left=left, right=right):
            return f"({shown(left)} {operator} {shown(right)})"
        case s.Select(condition=condition, true_value=yes, false_value=no):
            return f"({shown(yes)} if {shown(condition)} else {shown(no)})"
        case s.Subscript(sequence=sequence, index=index):
            return f"{shown(sequence)}[{shown(index)}]"
        case s.Subrange(sequence=sequence, begin=begin, end=end):
            return f"{shown(sequence)}[{shown(begin)}:{shown(end)}]"
        case s.Builtin(function=function, argument=argument):
            return f"{function}({shown(argument)})"
        case s.Invocation(operation=operation, arguments=arguments):
            given = ", ".join(
                (f"{a.name} = " if a.name else "") + shown(a.value) for a in arguments
            )
            return f"{operation}({given})"
        case s.Comprehension(loops=loops, condition=condition, item=item):
            over = ", ".join(f"{loop.name} in {shown(loop.iterable)}" for loop in loops)
            where = f" if {shown(condition)}" if condition else ""
            return f"[for {over}{where} yield {shown(item)}]"


def expression(text: str, header: str = COMPOSITIONAL) -> s.Expression:
    """The tree of an expression in a fragment."""
    end = "" if header is PROVISIONAL else ";"
    return (parsed(in_fragment(f"y = {text}{end}", header=header)).fragments[0].body or ())[0].value


PRECEDENCE = {
    "a + b * c": "(a + (b * c))",
    "a * b + c": "((a * b) + c)",
    "(a + b) * c": "((a + b) * c)",
    "a - b - c": "((a - b) - c)",
    "a / b / c": "((a / b) / c)",
    "a * b / c * d": "(((a * b) / c) * d)",
    "a ^ b ^ c": "(a ^ (b ^ c))",
    "a * b ^ c": "(a * (b ^ c))",
    "-a ^ b": "(-(a ^ b))",
    "a ^ -b": "(a ^ (-b))",
    "a ^ -2.0": "(a ^ -2.0)",
    "-a + b": "((-a) + b)",
    "-a * b": "((-a) * b)",
    "a - -b": "(a - (-b))",
    "--a": "(-(-a))",
    "+-a": "(+(-a))",
    "-f(a)[0]": "(-f(a)[0])",
    "!a || b": "((!a) || b)",
    "!a == b": "((!a) == b)",
    "a < b && c >= d": "((a < b) && (c >= d))",
    "a || b && c": "(a || (b && c))",
    "a && b || c && d": "((a && b) || (c && d))",
    "a && b && c": "((a && b) && c)",
    "a + b == c - d": "((a + b) == (c - d))",
    "a == b == c": "((a == b) == c)",
    "a in b && c": "((a in b) && c)",
    "a + 1 in [1, 2]": "((a + 1) in [1, 2])",
    "a if b else c if d else e": "(a if b else (c if d else e))",
    "(a if b else c) if d else e": "((a if b else c) if d else e)",
    "a + b if c || d else e * g": "((a + b) if (c || d) else (e * g))",
    "a[0][1:2][:][b:][:c + 1]": "a[0][1:2][:][b:][:(c + 1)]",
    "a * b[i] ^ c": "(a * (b[i] ^ c))",
    "(a, b)[0]": "(a, b)[0]",
    "((a, b), [c])": "((a, b), [c])",
    "[]": "[]",
    "[[], [a]]": "[[], [a]]",
    "'a'[0]": "'a'[0]",
    "[for i in a yield i]": "[for i in a yield i]",
    "[for i in a, j in b if i < j yield i * j]": "[for i in a, j in b if (i < j) yield (i * j)]",
    "[for i in a yield b if c else d]": "[for i in a yield (b if c else d)]",
    "[for i in [for j in a yield j] yield i]": "[for i in [for j in a yield j] yield i]",
    "length_of(a) - integer(b)": "(length_of(a) - integer(b))",
    "f(a, b = c + d, e = [1])": "f(a, b = (c + d), e = [1])",
    "forest + inner - iffy": "((forest + inner) - iffy)",
}


@pytest.mark.parametrize("text", PRECEDENCE)
def test_precedence_and_associativity(text: str) -> None:
    assert shown(expression(text)) == PRECEDENCE[text]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("00012", 12),
        ("9223372036854775807", 2**63 - 1),
        ("-5", -5),
        ("- 5", -5),
        ("--5", 5),
        ("+5", 5),
        ("1.", 1.0),
        ("1.5", 1.5),
        ("1e5", 1e5),
        ("1E+5", 1e5),
        ("1.e-3", 1e-3),
        ("1e-400", 0.0),
        ("0.1", 0.1),
        ("true", True),
        ("''", ""),
        ("'a\"b'", 'a"b'),
        ('"a\'b"', "a'b"),
        (r"'a\'b'", "a'b"),
        (r'"a\"b"', 'a"b'),
        (r"'a\\b'", "a\\b"),
        (r"'\\'", "\\"),
        ("'# no comment'", "# no comment"),
        ("'a = b; }'", "a = b; }"),
    ],
)
@pytest.mark.parametrize("header", [COMPOSITIONAL, PROVISIONAL])
def test_literals(text: str, value: object, header: str) -> None:
    literal = expression(text, header)
    assert isinstance(literal, s.Literal)
    assert (type(literal.value), literal.value) == (type(value), value)


def test_a_sign_before_a_logical_value_is_no_literal() -> None:
    assert shown(expression("-false")) == "(-false)"
    assert shown(expression("!true")) == "(!true)"


def test_white_space_and_comments_go_anywhere() -> None:
    plain = "version 1.0; graph net( x ) -> ( y ) { x = external(shape = [1]); y = neg(x); }"
    spaced = "# c;\n" + plain.replace(" ", " \t\r\n\f # a 'comment' = { ;\n ") + "# no line end"
    tight = "version 1.0;graph net(x)->(y){x=external(shape=[1]);y=neg(x);}"
    assert parsed(plain).graph == parsed(spaced).graph == parsed(tight).graph
    ended = "version 1.0; # to the form feed\fgraph net(x)->(y){x=external(shape=[1]);y=neg(x);}"
    assert parsed(ended).graph == parsed(plain).graph


@pytest.mark.parametrize("hashes", ["#" * 100_000, "# # " * 25_000])
def test_long_comments(hashes: str) -> None:
    for text in (
        f"{hashes}\n{FLAT.format('y = neg(x);')}",
        f"{FLAT.format('y = neg(x);')}\n{hashes}",
    ):
        assert parsed(text).graph.name == "net"
    with pytest.raises(NnefSyntaxError):
        parsed(f"{hashes}\nx")


# The provisional dialect: semicolons are optional


def test_semicolons_of_the_provisional_dialect_are_optional_in_every_form() -> None:
    fragment = (
        "fragment f( x: tensor ) -> ( y: tensor, z: tensor ) {{ t = x, neg(x){0} (y, z) = t{0} }}\n"
    )
    body = (
        "x = external(shape = [2,3]){0}\n"
        "a, b = f(x){0} (c, d) = f(a){0}\n"
        "[e, g] = copy_n(b, times = 2){0} # = a comment\n"
        "label = variable(shape = [1], label = 'a = b'){0}\n"
        "y\n=\nneg\n(c){0}\n{0}"
    )
    text = PROVISIONAL + fragment + "graph net( x ) -> ( y )\n{{ " + body.removesuffix("{0}") + "}}"
    ended, bare = parsed(text.format(";")), parsed(text.format(""))
    assert ended.provisional and bare.provisional
    assert bare.fragments == ended.fragments
    assert bare.graph == ended.graph
    mixed = parsed(text.replace("{0}", ";", 2).format(""))
    assert mixed.graph == ended.graph and mixed.fragments == ended.fragments


@pytest.mark.parametrize(
    "body",
    [
        "x=external(shape=[1])y=neg(x)",
        "x=external(shape=[1])y=neg(x);",
        "x=external(shape=[1]);y=neg(x)",
        "x=external(shape=[1])#c\ny=neg(x)#d\n",
        "x=external(shape=[1])\n;\ny=neg(x)\n;\n",
    ],
)
def test_statements_without_white_space_between(body: str) -> None:
    text = f"version 1.0\ngraph net(x)->(y){{{body}}}"
    spaced = "version 1.0\ngraph net( x ) -> ( y ) { x = external(shape = [1]) y = neg(x) }"
    assert parsed(text).graph == parsed(spaced).graph


def test_targets_after_values_that_they_could_continue() -> None:
    document = parsed(
        in_fragment("a = x [b, c] = [a, a] d = a (e, f) = (a, d) y = f", header=PROVISIONAL)
    )
    body = document.fragments[0].body or ()
    assert [shown(a.target) for a in body] == ["a", "[b, c]", "d", "(e, f)", "y"]
    assert [shown(a.value) for a in body] == ["x", "[a, a]", "a", "(a, d)", "f"]


def test_places_in_a_provisional_text_are_those_of_the_text() -> None:
    error("version 1.0\ngraph net( x ) -> ( y )\n{ x = external(shape = [1]) # c\n  y = neg(§z)\n}")
    error("version 1.0\ngraph net( x ) -> ( y )\n{ x = external(shape = [1])\n  y = neg(x\n§}")


# Dialects


@pytest.mark.parametrize(
    ("text", "provisional"),
    [
        ("version 1.0;", False),
        ("version 1.0 ;", False),
        ("version 1.0\n# c\n;", False),
        ("# version 1.0\nversion 1.0;", False),
        ("version 1.0", True),
        ("\fversion 1.0 # ;\n", True),
    ],
)
def test_the_semicolon_of_the_version_tells_the_dialect(text: str, provisional: bool) -> None:
    body = "graph net( x ) -> ( y ) { x = external(shape = [1]); y = neg(x); }"
    assert parsed(f"{text} {body}").provisional is provisional


FINAL_REFUSES = {
    "fragment f( x: §tensor ) -> ( y: T ) { y = x; }": (
        "'tensor' without an item type",
        "write 'tensor<scalar>'",
    ),
    "fragment f( x: T, n: §extent ) -> ( y: T ) { y = x; }": ("type 'extent'", "write 'integer'"),
    "fragment f( x: T ) -> ( y: T ) { n = §extent(2.5); y = x; }": (
        "type 'extent'",
        "write 'integer'",
    ),
    "fragment f( x: T ) -> ( y: T ) { n = §[i for i in [1]]; y = x; }": (
        "without 'yield'",
        "yield item]",
    ),
    "fragment f( x: T ) -> ( y: T ) { a, b = §x, x; y = x; }": (
        "a tuple without",
        "into parentheses",
    ),
    "fragment f( x: T ) -> ( y: T ) { n = §shape_of(x); y = x; }": ("'shape_of'", "deprecated"),
    "fragment f( x: T ) -> ( y: T ) { n = §tensor(shape = [1]); y = x; }": (
        "'tensor'",
        "write 'external'",
    ),
}
PROVISIONAL_REFUSES = {
    "extension §KHR_enable_fragment_definitions;": "'extension'",
    "fragment f( x: §tensor<scalar> ) -> ( y: tensor ) { y = x }": "with an item type",
    "fragment f( x: tensor, n: §integer ) -> ( y: tensor ) { y = x }": "type 'integer'",
    "fragment f§<?>( x: tensor ) -> ( y: tensor ) { y = x }": "a generic type",
    "fragment f( x: tensor ) -> ( y: tensor ) { y = cast§<scalar>(x) }": "a generic type",
    "fragment f( x: tensor ) -> ( y: tensor ) { a = §[for i in [1] yield i] y = x }": "'yield'",
}


@pytest.mark.parametrize("fragment", FINAL_REFUSES)
def test_what_only_the_provisional_dialect_has(fragment: str) -> None:
    message, hint = FINAL_REFUSES[fragment]
    found = error(graph("y = neg(x);", fragment))
    assert isinstance(found, NnefSyntaxError)
    assert message in found.message and found.message.endswith("not part of NNEF 1.0 final")
    assert hint in found.hint


@pytest.mark.parametrize("text", PROVISIONAL_REFUSES)
def test_what_only_the_final_dialect_has(text: str) -> None:
    found = error(graph("y = neg(x)", text, header=PROVISIONAL))
    assert isinstance(found, NnefSyntaxError)
    assert found.message == f"{PROVISIONAL_REFUSES[text]} is not part of NNEF 1.0 provisional" or (
        PROVISIONAL_REFUSES[text] in found.message
    )
    assert "'version 1.0;', with the semicolon" in found.hint


def test_a_final_text_without_the_first_semicolon_has_one_error() -> None:
    text = graph(
        "y = f<scalar>(x);", "fragment f<?>( x: tensor<?> ) -> ( y: tensor<?> ) { y = x; }"
    )
    text = text.replace("version 1.0;", "version 1.0").replace("extension ", "extension §", 1)
    assert "semicolon" in error(text).hint


@pytest.mark.parametrize(
    "word", ["graph", "fragment", "tensor", "scalar", "for", "if", "in", "true"]
)
@pytest.mark.parametrize("header", [COMPOSITIONAL, PROVISIONAL])
def test_keywords_are_no_names(word: str, header: str) -> None:
    with pytest.raises(NnefSyntaxError):
        parsed(graph(f"{word} = neg(x); y = neg(x);", header=header))


@pytest.mark.parametrize("word", ["integer", "yield", "extension", "version", "extent"])
def test_keywords_of_one_dialect_are_names_in_the_other(word: str) -> None:
    body = f"{word} = neg(x); y = neg({word});"
    allowed, refused = (
        (COMPOSITIONAL, PROVISIONAL) if word == "extent" else (PROVISIONAL, COMPOSITIONAL)
    )
    assert len(parsed(graph(body, header=allowed)).graph.body) == 3
    found = error(graph("§" + body, header=refused))
    assert found.message == f"'{word}' is a keyword, it cannot be a name"


# Extensions


@pytest.mark.parametrize(
    "extensions",
    [
        "extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;",
        "extension KHR_enable_fragment_definitions; extension KHR_enable_operator_expressions;",
        "extension\nKHR_enable_fragment_definitions # one\n,\n  KHR_enable_operator_expressions\n;",
        "extension KHR_enable_fragment_definitions,KHR_enable_operator_expressions , other thing;",
    ],
)
def test_extensions(extensions: str) -> None:
    document = parsed(graph("y = neg(x) + 1.0;", header=f"version 1.0;\n{extensions}\n"))
    assert document.extensions[:2] == (
        "KHR_enable_fragment_definitions",
        "KHR_enable_operator_expressions",
    )


def test_compositional_syntax_needs_extensions() -> None:
    fragment = "fragment §f( x: T ) -> ( y: T ) { y = neg(x); }"
    assert (
        "extension KHR_enable_fragment_definitions;"
        in error(graph("y = f(x);", fragment, header="version 1.0;")).hint
    )
    header = "version 1.0; extension KHR_enable_fragment_definitions;"
    fragment = "fragment f( x: T ) -> ( y: T ) { y = neg(x §+ 1.0); }"
    assert (
        "extension KHR_enable_operator_expressions;"
        in error(graph("y = f(x);", fragment, header=header)).hint
    )
    assert (
        "KHR_enable_operator_expressions" in error(graph("y = neg(x §+ 1.0);", header=header)).hint
    )


@pytest.mark.parametrize("value", ["§x", "neg(x) §+ 1.0", "§[x][0]", "§1.0"])
def test_statements_of_a_provisional_graph_are_invocations(value: str) -> None:
    assert "into a fragment" in error(graph(f"y = {value}", header=PROVISIONAL)).hint
