"""Changes of documents in NNEF's language: of words, or of parts as arguments and statements.

Most changes of parts leave the grammar intact: checks, flattening and tracing see the damage.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nnef_jax
from tests.fuzz.draw import FINITE, NUMBERS, changed_list

TOKEN = re.compile(
    r"\s+|#[^\n]*|i?\"[^\"\n]*\"|'[^'\n]*'|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\w+"
    r"|[=<>!]=|->|&&|\|\||.",
    re.DOTALL,
)

STRINGS = (
    "''", "'x'", "'constant'", "'ignore'", "'reflect'", "'replicate'", "'reflect-even'", "'f16'",
    "'f32'", "'f64'", "'i8'", "'u8'", "'i64'", "'bool'", "'string'", "'tdim'", "'complexf32'",
    "'symmetric'", "'asymmetric'", "'aligned'", "'body'", "'full'", "'last'", "'none'", "'sum'",
    "'ab,bc->ac'", "'a,a->'", "'->'", "'aa->a'", "'nearest'", "'linear'", "'half_pixel'", "'v'",
)  # fmt: skip
WHOLE = (
    "[]", "[0]", "[-1]", "[1]", "[0,1]", "[1,1]", "[0,1,2,3]", "[2,2,2,2,2]", "[(0,0)]", "[(1,1)]",
    "[(0,0),(0,0)]", "[(-1,0)]", "[(0,99999999999)]", "[0]*3", "[1.5]", "[true]", "['a']", "[[1]]",
    "[99999999999]", "[4294967296,4294967296]", "(1,2)", "()", "true", "false", "1.0", "x", "y",
)  # fmt: skip
WORDS = (
    *"()[]{},;:=+-*/^<>?!#'\"\\",
    *("==", "&&", "||", "->", "in", "for", "if", "else", "yield", "fragment", "graph", "extension"),
    *("1/0", "2^63", "scalar", "integer", "extent", "string", "logical", "tensor", "tensor<?>"),
    *("<?>", "<scalar>", "<string>", "tensor<scalar>", "[[]]", "[0:1]", "[:]", "x[0]", "[[1],2]"),
    *("[0]*100000", "\0", "é", "{{", "[1.0, S]", "(-1)", "* 1000000000", "[[[[[[[[[[1]]]]]]]]]]"),
    *("i'4'", "input.1", "shape_of(x)[1]", "'QU8(Z:128 S:0.5)'"),
)  # fmt: skip
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_OPEN, _CLOSED = "([{", ")]}"


@dataclass
class Place:
    """The tokens from `start` to `end` of a document: an argument's value, or an operand."""

    start: int
    end: int


@cache
def _operations(dialect: str) -> tuple[str, ...]:
    """Names of operations: those of the standard, and in tract's dialect those of the dialect."""
    texts = Path(nnef_jax.__path__[0]).glob("**/*.nnef")
    names = {n for path in texts for n in re.findall(r"fragment\s+(\w+)", path.read_text("utf-8"))}
    names |= {"external", "variable", "constant"}
    return tuple(sorted(n for n in names if dialect == "tract" or not n.startswith("tract_")))


class Change:
    """One document while its parts are changed."""

    def __init__(self, text: str, dialect: str, chance: random.Random) -> None:
        self.tokens = TOKEN.findall(text)
        self.dialect, self.chance = dialect, chance
        self.numbers = (*NUMBERS, "S", "2*S", "S+1") if dialect == "tract" else FINITE
        self.names = re.findall(r"([\w.]+)\s*=[^=]|fragment (\w+)", text)
        self.names = [name or fragment for name, fragment in self.names] or ["x"]

    def like(self, at: int) -> Sequence[str]:
        """Return a text that may replace a token."""
        if self.tokens[at][0].isdigit():
            return self.numbers
        if self.tokens[at][0] in "'\"":
            return STRINGS
        return _operations(self.dialect) if self.tokens[at + 1 : at + 2] == ["("] else self.names

    def _number(self) -> str:
        return self.chance.choice(self.numbers)

    def _next(self, at: int) -> int:
        """Return the first token from `at` on that is no space."""
        while at < len(self.tokens) and (self.tokens[at].isspace() or self.tokens[at][0] == "#"):
            at += 1
        return at

    def _end(self, at: int) -> int:
        """Return where a value ends that starts `at`: at a comma, semicolon or closing bracket."""
        depth = 0
        while at < len(self.tokens):
            token = self.tokens[at]
            if not depth and (token in _CLOSED or token in ",;"):
                return at
            depth += (token in _OPEN) - (token in _CLOSED)
            at += 1
        return at

    def _calls(self) -> list[int]:
        """Return the tokens that name an invoked operation."""
        following = zip(self.tokens, [*self.tokens[1:], ""], strict=True)
        return [i for i, (one, two) in enumerate(following) if two == "(" and one[0].isalpha()]

    def _arguments(self, named: bool | None = None) -> list[Place]:
        """Return the arguments of operations: those by name, by position, or (None) both."""
        places: list[Place] = []
        for call in self._calls():
            at = self._next(call + 2)
            while at < len(self.tokens) and self.tokens[at] not in _CLOSED:
                equals = self._next(at + 1)
                by_name = equals < len(self.tokens) and self.tokens[equals] == "="
                start = self._next(equals + 1) if by_name else at
                end = self._end(start)
                if named is None or named == by_name:
                    places.append(Place(start, end))
                if end >= len(self.tokens) or self.tokens[end] != ",":
                    break
                at = self._next(end + 1)
        return places

    def _statements(self) -> list[Place]:
        """Return the assignments with their semicolons."""
        places: list[Place] = []
        start = next((i + 1 for i, t in enumerate(self.tokens) if t == "{"), len(self.tokens))
        for i in range(start, len(self.tokens)):
            if self.tokens[i] in "{;}":
                if self.tokens[i] == ";":
                    places.append(Place(start, i + 1))
                start = i + 1
        return places

    def _put(self, place: Place, text: str) -> None:
        self.tokens[place.start : place.end] = [text]

    def attribute(self) -> None:
        """Set an argument that an operation is given by name."""
        places = self._arguments(named=True) or self._arguments()
        if not places:
            return
        chance, place = self.chance, self.chance.choice(places)
        old = "".join(self.tokens[place.start : place.end]).strip()
        if chance.random() < 0.15:
            new = chance.choice((*WHOLE, *STRINGS, *self.numbers, *self.names))
        elif old.startswith("["):
            new = self._list(old)
        elif old[:1] in ("'", '"'):
            new = chance.choice(STRINGS)
        elif old in ("true", "false"):
            new = "true" if old == "false" else "false"
        else:
            new = self._number()
        self._put(place, new)

    def _list(self, old: str) -> str:
        """Return the list or a changed one."""
        if self.chance.random() < 0.15:
            return self.chance.choice(WHOLE)
        pairs = "(" in old

        def item() -> str:
            return f"({self._number()},{self._number()})" if pairs else self._number()

        return f"[{','.join(changed_list(_split(old[1:-1]), item, self.chance))}]"

    def number(self) -> None:
        """Set any number, those of types, versions and expressions too."""
        places = [i for i, token in enumerate(self.tokens) if _NUMBER.fullmatch(token)]
        if places:
            self.tokens[self.chance.choice(places)] = self._number()

    def operand(self) -> None:
        """Give an operation another tensor, a literal, or those that it has in another order."""
        places = self._arguments(named=False)
        if not places:
            return
        chance, place = self.chance, self.chance.choice(places)
        match chance.randrange(5):
            case 0 | 1:
                self._put(place, chance.choice(self.names))
            case 2:
                self._put(place, chance.choice((*self.numbers, *WHOLE)))
            case 3:
                one, two = sorted((place, chance.choice(places)), key=lambda p: p.start)
                if one.end <= two.start:
                    first = self.tokens[one.start : one.end]
                    second = self.tokens[two.start : two.end]
                    self.tokens[two.start : two.end] = first
                    self.tokens[one.start : one.end] = second
            case _:
                new = chance.choice(self.names)
                self._put(place, f"[{new}, {chance.choice(self.names)}]")

    def argument(self) -> None:
        """Leave an argument out, repeat it, or rename it."""
        places = self._arguments(named=True)
        if not places:
            return
        chance, place = self.chance, self.chance.choice(places)
        start = max((i for i in range(place.start) if self.tokens[i] in (",", "(")), default=0) + 1
        match chance.randrange(3):
            case 0:
                after = place.end < len(self.tokens) and self.tokens[place.end] == ","
                self.tokens[start : place.end + after] = []
            case 1:
                self.tokens[start:start] = [*self.tokens[start : place.end], ","]
            case _:
                known = ("axes", "axis", "shape", "size", "stride", "padding", "groups", "begin")
                self.tokens[self._next(start)] = chance.choice((*known, "end", "label", "bogus"))

    def kind(self) -> None:
        """Invoke another operation."""
        if calls := self._calls():
            self.tokens[self.chance.choice(calls)] = self.chance.choice(_operations(self.dialect))

    def shape(self) -> None:
        """Change the value of `shape =`: rank, extents, all of it."""
        places = [
            p for p in self._arguments(named=True) if "shape" in self.tokens[p.start - 4 : p.start]
        ]
        if not places:
            return self.attribute()
        place = self.chance.choice(places)
        old = "".join(self.tokens[place.start : place.end]).strip()
        if old.startswith("[") and self.chance.random() < 0.6:
            items = changed_list(
                _split(old[1:-1]), lambda: self.chance.choice("012357"), self.chance
            )
            self._put(place, f"[{','.join(items)}]")
        else:
            self._put(place, self._list(old) if old.startswith("[") else self.chance.choice(WHOLE))

    def statement(self) -> None:
        """Remove, repeat, or move a statement, or put one behind it."""
        places = self._statements()
        if not places:
            return
        chance, place = self.chance, self.chance.choice(places)
        part = self.tokens[place.start : place.end]
        match chance.randrange(5):
            case 0:
                self.tokens[place.start : place.end] = []
            case 1:
                self.tokens[place.end : place.end] = part
            case 2:
                other = chance.choice(places)
                self.tokens[place.start : place.end] = []
                at = other.start - (len(part) if other.start > place.start else 0)
                self.tokens[at:at] = part
            case _:
                name = chance.choice(self.names)
                kind = chance.choice(_operations(self.dialect))
                operands = ", ".join(
                    chance.choice(self.names) for _ in range(chance.choice((1, 1, 2, 3)))
                )
                self.tokens[place.end : place.end] = [f" {name} = {kind}({operands}); "]

    def name(self) -> None:
        """Use or assign another name, those of the graph's inputs and outputs too."""
        places = [i for i, token in enumerate(self.tokens) if token in self.names]
        if places:
            self.tokens[self.chance.choice(places)] = self.chance.choice(self.names)

    def type(self) -> None:
        """Change the type that a declaration or an operation is given."""
        kinds = ("scalar", "integer", "logical", "string", "?", "tensor", "tensor<scalar>")
        places = [i for i, token in enumerate(self.tokens) if token in kinds]
        if places:
            self.tokens[self.chance.choice(places)] = self.chance.choice(kinds)
        else:
            self.statement()

    def fragment(self) -> None:
        """Remove or repeat a declaration, or one of its parameters or results."""
        starts = [i for i, t in enumerate(self.tokens) if t in ("fragment", "graph", "extension")]
        if not starts:
            return
        chance, start = self.chance, self.chance.choice(starts)
        end = next((i for i in starts if i > start), len(self.tokens))
        match chance.randrange(4):
            case 0:
                del self.tokens[start:end]
            case 1:
                self.tokens[start:start] = self.tokens[start:end]
            case _:
                commas = [i for i in range(start, end) if self.tokens[i] == ","][:6]
                if commas:
                    at = chance.choice(commas)
                    del self.tokens[at : self._end(at + 1)]


def _split(text: str) -> list[str]:
    """Return the items between commas outside brackets."""
    items, depth, start = list[str](), 0, 0
    for i, letter in enumerate(text):
        depth += (letter in _OPEN) - (letter in _CLOSED)
        if letter == "," and not depth:
            items.append(text[start:i])
            start = i + 1
    return [*items, text[start:]] if text.strip() else items


CHANGES = {
    Change.attribute: 7,
    Change.number: 3,
    Change.operand: 4,
    Change.argument: 2,
    Change.kind: 3,
    Change.shape: 5,
    Change.statement: 2,
    Change.name: 2,
    Change.type: 1,
    Change.fragment: 1,
}


def changed_parts(text: str, dialect: str, chance: random.Random) -> str:
    """Return a document with one to three of its parts changed."""
    change = Change(text, dialect, chance)
    for _ in range(chance.choice((1, 1, 2, 2, 2, 3))):
        (make,) = chance.choices(list(CHANGES), list(CHANGES.values()))
        make(change)
        change.tokens = TOKEN.findall("".join(change.tokens))
    return "".join(change.tokens)


def changed_words(text: str, dialect: str, chance: random.Random) -> str:
    """Return a text with a few words removed, repeated, swapped, or replaced by their like."""
    change = Change(text, dialect, chance)
    tokens = change.tokens
    for _ in range(chance.randint(1, 3)):
        places = [i for i, token in enumerate(tokens) if not token.isspace()] or [0]
        at, other = chance.choice(places), chance.choice(places)
        match chance.randrange(12) if tokens else 3:
            case 0:
                del tokens[at]
            case 1:
                tokens.insert(at, tokens[other])
            case 2:
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case 3:
                tokens.insert(at, chance.choice(WORDS))
            case 4 | 5:
                tokens[at] = chance.choice((*WORDS, tokens[other]))
            case _:
                replaceable = [
                    i for i in places if tokens[i][0].isalnum() or tokens[i][0] in "'\"_"
                ]
                at = chance.choice(replaceable or places)
                tokens[at] = chance.choice(change.like(at))
    return "".join(tokens)
