"""The types of NNEF's language, and which arguments fit which parameters (spec 3.3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

PRIMITIVES = ("scalar", "integer", "logical", "string")


@dataclass(frozen=True, slots=True)
class Primitive:
    """The type of a value that is no tensor: scalar, integer, logical, string or generic `?`."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Tensor:
    """The type of a tensor whose items are scalar, integer, logical or generic `?`.

    `item` is None if the items may be of any type.
    """

    item: str | None

    def __str__(self) -> str:
        return f"tensor<{self.item or ''}>"


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """The type of an array. The items of an empty array literal have the type `ANY`."""

    item: Type

    def __str__(self) -> str:
        return "[]" if isinstance(self.item, Anything) else f"{self.item}[]"


@dataclass(frozen=True, slots=True)
class TupleOf:
    """The type of a tuple.

    `size` is the number of its items, including the items of inner tuples.
    """

    items: tuple[Type, ...]
    size: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sum(map(_size, self.items)))

    def __str__(self) -> str:
        return "(" + ",".join(map(str, self.items)) + ")"


@dataclass(frozen=True, slots=True)
class Anything:
    """A type that fits every type.

    It is the type of the items of an empty array, and of an expression that has an error.
    """

    def __str__(self) -> str:
        return "any"


def weight(type: Type) -> int:
    """Return the number of types that a type consists of, including the type itself."""
    depth = 1
    while isinstance(type, ArrayOf):
        depth += 1
        type = type.item
    return depth + type.size if isinstance(type, TupleOf) else depth


def _size(type: Type) -> int:
    while isinstance(type, ArrayOf):
        type = type.item
    return type.size if isinstance(type, TupleOf) else 1


Type = Primitive | Tensor | ArrayOf | TupleOf | Anything

SCALAR = Primitive("scalar")
INTEGER = Primitive("integer")
LOGICAL = Primitive("logical")
STRING = Primitive("string")
GENERIC = Primitive("?")
ANY = Anything()
TENSOR = Tensor(None)


# The types of literals. A number without point and exponent is an integer.
LITERALS: dict[type, Type] = {bool: LOGICAL, int: INTEGER, float: SCALAR, str: STRING}


def substitute(type: Type, generic: str | None) -> Type:
    """Replace `?` in a type by the primitive type `generic`, or by `ANY` if `generic` is None."""
    match type:
        case Primitive("?"):
            return Primitive(generic) if generic else ANY
        case Tensor("?"):
            return Tensor(generic)
        case ArrayOf(item):
            return ArrayOf(substitute(item, generic))
        case TupleOf(items):
            return TupleOf(tuple(substitute(item, generic) for item in items))
        case _:
            return type


def fits(actual: Type, formal: Type, *, mixed: bool = False) -> bool:
    """Tell whether an argument of type `actual` fits a parameter of type `formal`.

    See section 3.3.2 of the specification, Type Casting. A primitive fits a tensor with items of
    this primitive type. An array or tuple fits if its items fit. If `mixed`, an integer fits a
    scalar (spec 3.2.2).
    """
    if actual == formal or isinstance(actual, Anything) or isinstance(formal, Anything):
        return True
    match actual, formal:
        case Tensor(a), Tensor(b):
            return a is None or b is None or a == b
        case Primitive("integer"), (Primitive("scalar") | Tensor("scalar")):
            return mixed
        case Primitive(a), Tensor(b):
            return a != "string" and (b is None or a == b)
        case ArrayOf(a), ArrayOf(b):
            return fits(a, b, mixed=mixed)
        case TupleOf(a), TupleOf(b):
            if len(a) != len(b):
                return False
            return all(fits(x, y, mixed=mixed) for x, y in zip(a, b, strict=True))
        case _:
            return False


def common(a: Type, b: Type) -> Type | None:
    """Return the type to which values of the types `a` and `b` can be converted.

    It is `a` or `b` or consists of parts of them. Return None if there is no such type.
    """
    match a, b:
        case Anything(), _:
            return b
        case _, Anything():
            return a
        case ArrayOf(x), ArrayOf(y):
            item = common(x, y)
            return ArrayOf(item) if item else None
        case TupleOf(x), TupleOf(y) if len(x) == len(y):
            items: list[Type] = []
            for i, j in zip(x, y, strict=True):
                item = common(i, j)
                if item is None:
                    return None
                items.append(item)
            return TupleOf(tuple(items))
        case _ if fits(a, b):
            return b
        case _:
            return a if fits(b, a) else None


def deduce(actual: Type, formal: Type) -> str | None:
    """Return the type of `?` in `formal` if an argument for it has the type `actual`.

    Return None if `formal` does not contain `?`.
    """
    match actual, formal:
        case ((Tensor(name) | Primitive(name)), (Tensor("?") | Primitive("?"))):
            return name
        case ArrayOf(a), ArrayOf(b):
            return deduce(a, b)
        case TupleOf(a), TupleOf(b) if len(a) == len(b):
            for x, y in zip(a, b, strict=True):
                deduced = deduce(x, y)
                if deduced:
                    return deduced
            return None
        case _:
            return None


def _levels(type: Type) -> Iterator[list[Type]]:
    """Yield the types in a type by level: the type itself, its items, their items, and so on."""
    level = [type]
    while level:
        yield level
        level = [inner for outer in level for inner in _parts(outer)]


def _parts(type: Type) -> Sequence[Type]:
    if isinstance(type, TupleOf):
        return type.items
    return (type.item,) if isinstance(type, ArrayOf) else ()


def holds(type: Type, *leaves: Type) -> bool:
    """Tell whether a type is one of `leaves`, or contains one of them at any depth."""
    return any(inner in leaves for level in _levels(type) for inner in level)


def has_tensor(type: Type) -> bool:
    """Tell whether a type contains tensors. Only arguments of such a type may be positional."""
    return any(isinstance(inner, Tensor) for level in _levels(type) for inner in level)


def nesting(type: Type) -> int:
    """Return the number of levels of arrays and tuples in a type: 2 for an array of pairs."""
    return sum(1 for _ in _levels(type)) - 1
