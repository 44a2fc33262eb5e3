"""Reads a graph.quant of the dialect, which has an entry for each quantised tensor.

    "name": zero_point_linear_quantize(zero_point = 143, scale = 0.02, bits = 8, signed = false);
    i"any name": linear_quantize(min = -1.0, max = 1.0, bits = 8);

The algorithms are those of the standard, with two differences. `linear_quantize` is
`min_max_linear_quantize(..., signed = true, symmetric = false)`. In `zero_point_linear_quantize`,
the argument `symmetric` has no effect: all codes of `bits` bits are used.

A scalar may be written as an integer. Commas and semicolons may be left out, or be added at the
end. If several entries have the same name, the last one is used. A list in brackets, which tract
does not read, has a number for each channel; `bits` and `signed` are the same for all channels.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lowering.location import Source, Span
from nnef_jax.errors import NnefError, NnefSyntaxError, SemanticError, raise_all
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.quantizer import SCALARS, ArgumentValue, Quantizer
from nnef_jax.limits import Meter
from nnef_jax.wording.similar import did_you_mean

_TOKEN = re.compile(
    r"""(?:\s+|\#[^\n]*)*+(?:
    (?P<name>i?"(?:[^"\\\n]++|\\.)*+"|i?'(?:[^'\\\n]++|\\.)*+')
    |(?P<number>[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf\b|nan\b))
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>[\[\]:(),;=])
    |(?P<other>.)
    |(?P<end>\Z))""",
    re.VERBOSE,
)
# Matches the beginning of an entry, which is a name in quotes at the beginning of a line.
_ENTRY = re.compile(r"""^[ \t]*i?["']""", re.MULTILINE)
_ESCAPE = re.compile(r"\\(.)")
_MOST_ERRORS = 20  # after this many wrong entries, the rest of the file is not read
_TOKEN_STEPS = 5  # steps of the meter for a token
_LONGEST_INTEGER = 18  # an integer with at most this many characters fits 64 bits
_MOST_SHOWN = 40  # the largest number of characters of a token in errors

# Maps the name of an algorithm to a dict from names of arguments to their types.
_ARGUMENTS: Mapping[str, Mapping[str, type]] = {
    "zero_point_linear_quantize": {
        "zero_point": int, "scale": float, "bits": int, "signed": bool, "symmetric": bool,
    },
    "linear_quantize": {"min": float, "max": float, "bits": int},
}  # fmt: skip
_EXPECTED = {float: "a number", int: "an integer", bool: "true or false"}
# Maps the dialect's name of an algorithm to the standard's name, where the two names differ.
_STANDARD = {"linear_quantize": "min_max_linear_quantize"}
_OPTIONAL = "symmetric"  # the only argument that an entry may leave out
# Maps the name of an argument to a pair: the offset of the argument in the text, and its value.
_Arguments = dict[str, tuple[int, ArgumentValue]]


@dataclass(frozen=True, slots=True)
class _Token:
    # The name of the group of `_TOKEN` that matched, such as "number". For a mark, the kind is the
    # mark itself, such as ",".
    kind: str
    text: str
    span: Span

    def __str__(self) -> str:
        return "end of the text" if self.kind == "end" else f"'{self.text[:_MOST_SHOWN]}'"

    def literal(self) -> float | int | bool | None:
        """Return the number or truth value that the token stands for, or None for other tokens.

        A number with very many digits becomes a real number.
        """
        if self.kind == "number":
            is_integer = self.text.lstrip("+-").isdigit() and len(self.text) <= _LONGEST_INTEGER
            return int(self.text) if is_integer else float(self.text)
        if self.kind == "word":
            return {"true": True, "false": False}.get(self.text)
        return None


def read_quantization(source: Source, names: Collection[str], meter: Meter) -> dict[str, Quantizer]:
    """Read a graph.quant, and return a dict from names of tensors to quantisers.

    `names` are the names of the graph's tensors. Raises NnefSyntaxError or SemanticError, which
    contains all errors of the file.
    """
    quantizers: dict[str, Quantizer] = {}
    errors: list[NnefError] = []
    reader = _EntryReader(source, meter)
    while not reader.sees("end") and len(errors) < _MOST_ERRORS:
        try:
            name, algorithm, arguments = reader.entry()
            hint = "an entry must name a tensor that the body of the graph itself assigns"
            reader.require(f"the graph has no tensor {name}", name, names, hint)
            quantizers[name.text] = _quantizer(algorithm, arguments)
        except NnefError as error:
            errors += error.errors
    raise_all(errors)
    return quantizers


class _EntryReader:
    """Reads the entries of a graph.quant one after the other.

    After an error, the next entry is searched for at the next line that begins with a name.
    """

    def __init__(self, source: Source, meter: Meter) -> None:
        self._source = source
        self._meter = meter
        self._token = self._read(0)

    def entry(self) -> tuple[_Token, _Token, _Arguments]:
        """Read an entry; return the name of its tensor, its algorithm, and its arguments."""
        start = self._token.span.offset
        try:
            name = self._take("name", "the name of a tensor in quotes")
            self._take(":", "':'")
            algorithm = self._take("word", "a quantisation algorithm")
            self.require(f"{algorithm} is no quantisation algorithm", algorithm, _ARGUMENTS)
            self._take("(", "'('")
            arguments = self._arguments(algorithm.text)
            self._take(")", "')' or the name of an argument")
            self._skip(";")
        except NnefError:
            # The next entry is read even though this entry is wrong.
            following = _ENTRY.search(self._source.text, start + 1)
            self._token = self._read(following.start() if following else len(self._source.text))
            raise
        text_in_quotes = name.text.removeprefix("i")[1:-1]
        unescaped_name = replace(name, text=_ESCAPE.sub(r"\1", text_in_quotes))
        return unescaped_name, algorithm, arguments

    def _arguments(self, algorithm: str) -> _Arguments:
        """Read the arguments of an algorithm, up to the parenthesis that ends them."""
        types = _ARGUMENTS[algorithm]
        arguments: _Arguments = {}
        while self.sees("word"):
            name = self._next()
            self.require(f"{name} is no argument of '{algorithm}'", name, types)
            if name.text in arguments:
                raise SemanticError(f"argument '{name.text}' is given twice", span=name.span)
            self._take("=", "'='")
            has_channels = self.sees("[") and name.text not in SCALARS
            read_value = self._channels if has_channels else self._value
            value = read_value(name.text, types[name.text])
            arguments[name.text] = name.span.offset, value
            self._skip(",")
        return arguments

    def _channels(self, argument: str, type: type) -> list[Any]:
        """Read a list in brackets, which has one value of `argument` for each channel."""
        self._take("[", "'['")
        items: list[Any] = []
        while not self.sees("]"):
            items.append(self._value(argument, type))
            if not self.sees("]"):
                self._take(",", "',' or ']'")
        self._next()
        return items

    def _value(self, argument: str, type: type) -> Any:
        """Read one value of an argument.

        Raises NnefSyntaxError or SemanticError if the value does not have the argument's type.
        """
        token = self._next()
        if token.kind == "word" and self.sees("("):
            raise NnefSyntaxError(
                f"'{argument}' is a printed Python object, {token.text}(...), instead of a number",
                span=token.span,
                hint="torch_to_nnef 0.24.12 writes such objects for quantised models: export again "
                "with a version that writes numbers",
            )
        value = token.literal()
        if value is None:
            message = f"unexpected {token}, expected {_EXPECTED[type]} for '{argument}'"
            raise NnefSyntaxError(message, span=token.span)
        if type is float and value.__class__ is int:
            value = float(value)
        if value.__class__ is not type:
            message = f"'{argument}' must be {_EXPECTED[type]}, it is {token}"
            raise SemanticError(message, span=token.span)
        return value

    def require(self, message: str, token: _Token, names: Collection[str], hint: str = "") -> None:
        """Raise SemanticError with a message if the text of a token is not in `names`.

        The error suggests a similar name, or else has the hint `hint`.
        """
        if token.text not in names:
            similar = did_you_mean(token.text, names, meter=self._meter)
            hint = similar or hint or f"there are {', '.join(names)}"
            raise SemanticError(message, span=token.span, hint=hint)

    # Tokens

    def sees(self, kind: str) -> bool:
        """Tell whether the next token has the kind `kind`."""
        return self._token.kind == kind

    def _take(self, kind: str, expected: str) -> _Token:
        """Read a token of a kind. Raises NnefSyntaxError if the token is of another kind.

        The error shows `expected`.
        """
        token = self._next()
        if token.kind != kind:
            raise NnefSyntaxError(f"unexpected {token}, expected {expected}", span=token.span)
        return token

    def _skip(self, kind: str) -> None:
        """Read the next token if it is of a kind."""
        if self.sees(kind):
            self._next()

    def _next(self) -> _Token:
        """Return the current token, and read the token after it."""
        token = self._token
        self._token = self._read(token.span.offset + len(token.text))
        return token

    def _read(self, position: int) -> _Token:
        """Return the first token from a position on. Blanks and comments are skipped."""
        self._meter.spend(_TOKEN_STEPS, self._source.name)
        match = _TOKEN.match(self._source.text, position)
        assert match is not None and match.lastgroup is not None
        kind = match.lastgroup
        text = match[kind]
        span = Span(self._source, match.start(kind), max(1, len(text)))
        if kind == "mark":
            kind = text
        return _Token(kind, text, span)


def _require_all(algorithm: _Token, arguments: _Arguments) -> None:
    """Raise SemanticError if an argument of an algorithm is missing."""
    missing: list[str] = []
    for name in _ARGUMENTS[algorithm.text]:
        if name not in arguments and name != _OPTIONAL:
            missing.append(name)
    if missing:
        message = f"'{algorithm.text}' lacks {', '.join(map(repr, missing))}"
        written = ", ".join(f"{name} = ..." for name in missing)
        raise SemanticError(message, span=algorithm.span, hint=f"write {written}")


def _quantizer(algorithm: _Token, arguments: _Arguments) -> Quantizer:
    """Return the quantiser for an entry. Raises NnefError if its arguments are wrong."""
    _require_all(algorithm, arguments)
    offset = algorithm.span.offset
    # An argument is a pair: its offset in the text, and its value. `symmetric` has no effect in the
    # dialect, so False replaces its value.
    arguments["symmetric"] = offset, False
    if algorithm.text in _STANDARD:
        # The codes of `linear_quantize` are always signed, since the dialect has no argument
        # `signed` for this algorithm.
        arguments["signed"] = offset, True
    values: dict[str, ArgumentValue] = {}
    nodes: list[s.Argument] = []
    for name, (start, value) in arguments.items():
        values[name] = value
        # The quantiser looks the value of the identifier up in `values`.
        nodes.append(s.Argument(start, name, s.Identifier(start, name)))
    node = s.Invocation(offset, algorithm.text, generic=None, arguments=tuple(nodes))
    operation = _STANDARD.get(algorithm.text, algorithm.text)
    quantizer = Quantizer(algorithm.span.source, node, operation, values)
    raise_all(list(quantizer.problems()))
    return quantizer
