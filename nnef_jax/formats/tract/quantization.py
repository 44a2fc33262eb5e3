"""graph.quant of the dialect: which tensors hold quantised numbers, and how these are spaced.

    "name": zero_point_linear_quantize(zero_point = 143, scale = 0.02, bits = 8, signed = false);
    i"any name": linear_quantize(min = -1.0, max = 1.0, bits = 8);

The algorithms are the standard's, but `linear_quantize` is `min_max_linear_quantize(...,
signed = true, symmetric = false)`; the other's `symmetric` has no effect, all codes of so many bits
count. Integers may stand for scalars; commas and semicolons may be left out or trail. The last
entry of a name counts. A list in brackets, which tract does not read, has a number for each
channel; bits and signs are the same for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.location import Source, Span
from nnef_jax.errors import NnefError, NnefSyntaxError, SemanticError, raise_all
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.quantizer import WHOLE, Given, Quantizer
from nnef_jax.limits import Meter
from nnef_jax.similar import did_you_mean

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
_ENTRY = re.compile(r"""^[ \t]*i?["']""", re.MULTILINE)
_ESCAPE = re.compile(r"\\(.)")
_MOST_ERRORS = 20
_STEPS = 5  # of the meter, to read a token
_MOST_DIGITS = 18
_MOST_SHOWN = 40

# The arguments of the algorithms with their types, and the standard's names of the algorithms.
_NUMBER = "a number"
_INTEGER = "an integer"
_LOGICAL = "true or false"
_ARGUMENTS = {
    "zero_point_linear_quantize": {
        "zero_point": _INTEGER,
        "scale": _NUMBER,
        "bits": _INTEGER,
        "signed": _LOGICAL,
        "symmetric": _LOGICAL,
    },
    "linear_quantize": {"min": _NUMBER, "max": _NUMBER, "bits": _INTEGER},
}
_STANDARD = {"linear_quantize": "min_max_linear_quantize"}
_OPTIONAL = "symmetric"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    span: Span


def read_quantization(source: Source, names: Collection[str], meter: Meter) -> dict[str, Quantizer]:
    """Return quantisers by tensor. Raises NnefSyntaxError or SemanticError for all at once."""
    found: dict[str, Quantizer] = {}
    errors: list[NnefError] = []
    reader = _Reader(source, meter)
    while not reader.at_end() and len(errors) < _MOST_ERRORS:
        try:
            name, algorithm, given = reader.entry()
            if name.text not in names:
                raise _unknown(name, names, meter)
            found[name.text] = _quantizer(algorithm, given)
        except NnefError as error:
            errors += error.errors
    raise_all(errors)
    return found


class _Reader:
    """Reads one entry after the other; after an error it goes on at the next line with a name."""

    def __init__(self, source: Source, meter: Meter) -> None:
        self.position = 0
        self._source = source
        self._meter = meter

    def at_end(self) -> bool:
        return self._peek().kind == "end"

    def entry(self) -> tuple[_Token, _Token, dict[str, s.Argument]]:
        start = self._peek().span.offset
        try:
            return self._entry()
        except NnefError:
            following = _ENTRY.search(self._source.text, start + 1)
            self.position = following.start() if following else len(self._source.text)
            raise

    def _entry(self) -> tuple[_Token, _Token, dict[str, s.Argument]]:
        name = self._take("name", "the name of a tensor in quotes")
        body = name.text.removeprefix("i")[1:-1]
        self._take(":", "':'")
        algorithm = self._take("word", "a quantisation algorithm")
        if algorithm.text not in _ARGUMENTS:
            raise _not_known("quantisation algorithm", algorithm, _ARGUMENTS, self._meter)
        self._take("(", "'('")
        given = dict(self._arguments(algorithm))
        self._take(")", "')' or the name of an argument")
        if self._peek().kind == ";":
            self._next()
        return _Token("name", _ESCAPE.sub(r"\1", body), name.span), algorithm, given

    def _arguments(self, algorithm: _Token) -> Iterator[tuple[str, s.Argument]]:
        known = _ARGUMENTS[algorithm.text]
        seen: set[str] = set()
        while self._peek().kind == "word":
            name = self._next()
            if name.text not in known:
                raise _not_known(f"argument of '{algorithm.text}'", name, known, self._meter)
            if name.text in seen:
                raise SemanticError(f"argument '{name.text}' is given twice", span=name.span)
            seen.add(name.text)
            self._take("=", "'='")
            is_array = self._peek().kind == "[" and name.text not in WHOLE
            read = self._channels if is_array else self._value
            value = read(name.text, known[name.text])
            yield name.text, s.Argument(name.span.offset, name.text, value)
            if self._peek().kind == ",":
                self._next()

    def _channels(self, argument: str, expected: str) -> s.Array:
        start = self._take("[", "'['")
        items: list[s.Expression] = []
        while self._peek().kind != "]":
            items.append(self._value(argument, expected))
            if self._peek().kind != "]":
                self._take(",", "',' or ']'")
        self._next()
        return s.Array(start.span.offset, tuple(items))

    def _value(self, argument: str, expected: str) -> s.Literal:
        token = self._next()
        if token.kind == "word" and self._peek().kind == "(":
            raise NnefSyntaxError(
                f"'{argument}' is a printed Python object, {token.text}(...), instead of a number",
                span=token.span,
                hint="torch_to_nnef 0.24.12 prints quantised models so: export again with a "
                "version that writes numbers",
            )
        value = _literal(token)
        if value is None:
            raise NnefSyntaxError(
                f"unexpected {_shown(token)}, expected {expected} for '{argument}'", span=token.span
            )
        if expected == _NUMBER and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not {_NUMBER: float, _INTEGER: int, _LOGICAL: bool}[expected]:
            raise SemanticError(
                f"'{argument}' must be {expected}, it is {_shown(token)}", span=token.span
            )
        return s.Literal(token.span.offset, value)

    def _take(self, kind: str, expected: str) -> _Token:
        token = self._next()
        if token.kind != kind:
            raise NnefSyntaxError(
                f"unexpected {_shown(token)}, expected {expected}", span=token.span
            )
        return token

    def _peek(self) -> _Token:
        position = self.position
        token = self._next()
        self.position = position
        return token

    def _next(self) -> _Token:
        self._meter.spend(_STEPS, self._source.name)
        found = _TOKEN.match(self._source.text, self.position)
        assert found is not None and found.lastgroup is not None
        self.position = found.end()
        kind, text = found.lastgroup, found[found.lastgroup]
        span = Span(self._source, found.start(kind), max(1, len(text)))
        return _Token(text if kind == "mark" else kind, text, span)


def _literal(token: _Token) -> float | int | bool | None:
    text = token.text
    if token.kind == "number":
        is_integer = text.lstrip("+-").isdigit() and len(text) <= _MOST_DIGITS
        return int(text) if is_integer else float(text)
    return {"true": True, "false": False}.get(text) if token.kind == "word" else None


def _shown(token: _Token) -> str:
    return "end of the text" if token.kind == "end" else f"'{token.text[:_MOST_SHOWN]}'"


def _quantizer(algorithm: _Token, given: dict[str, s.Argument]) -> Quantizer:
    missing = [n for n in _ARGUMENTS[algorithm.text] if n not in given and n != _OPTIONAL]
    if missing:
        raise SemanticError(
            f"'{algorithm.text}' lacks {', '.join(repr(name) for name in missing)}",
            span=algorithm.span,
            hint=f"write {', '.join(f'{name} = ...' for name in missing)}",
        )
    offset = algorithm.span.offset
    fixed = {"symmetric": False} | ({"signed": True} if algorithm.text in _STANDARD else {})
    for name, value in fixed.items():
        given[name] = s.Argument(offset, name, s.Literal(offset, value))
    values: dict[str, Given] = {}
    for name, argument in given.items():
        match argument.value:
            case s.Array(items=items):
                values[name] = [item.value for item in items if isinstance(item, s.Literal)]
            case s.Literal(value=value):
                values[name] = value
            case _:
                raise AssertionError
    node = s.Invocation(offset, algorithm.text, None, tuple(given.values()))
    operation = _STANDARD.get(algorithm.text, algorithm.text)
    quantizer = Quantizer(algorithm.span.source, node, operation, values)
    raise_all(list(quantizer.problems()))
    return quantizer


def _not_known(what: str, token: _Token, known: Collection[str], meter: Meter) -> SemanticError:
    hint = did_you_mean(token.text, known, meter=meter) or f"there are {', '.join(known)}"
    return SemanticError(f"{_shown(token)} is no {what}", span=token.span, hint=hint)


def _unknown(name: _Token, names: Collection[str], meter: Meter) -> SemanticError:
    return SemanticError(
        f"the graph has no tensor {_shown(name)}",
        span=name.span,
        hint=did_you_mean(name.text, names, meter=meter)
        or "an entry names what the graph's own body assigns",
    )


def step_of(quantizer: Quantizer) -> NDArray[Any] | None:
    """Return a quantised tensor's steps, an array where channels differ; None without steps."""
    given: Any = quantizer.arguments
    match given:
        case {"scale": scale}:
            return np.asarray(scale, np.float64)
        case {"min": low, "max": high, "bits": bits}:
            return (np.asarray(high, np.float64) - np.asarray(low, np.float64)) / (2**bits - 1)
        case _:
            return None
