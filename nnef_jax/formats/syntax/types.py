"""The types of NNEF's language, and which arguments fit which parameters (spec 3.3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

PRIMITIVES = ("scalar", "integer", "logical", "string")


@dataclass(frozen=True, slots=True)
class Primitive:
    """The type of a value that is no tensor.

    `name` is "scalar" for real numbers, "integer", "logical", "string", or "?" for a generic type.
    """

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Tensor:
    """The type of a tensor.

    `item` is the name of the type of the tensor's items: "scalar" for real numbers, "integer",
    "logical", or "?" for a generic type. It is None if the items may be of any type.
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

    `size` is the number of items, where an inner tuple counts as its items: 3 for ((a, b), c).
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
    """Return the number of types that a type consists of, including the type itself.

    For example, an array of pairs of numbers has the weight 4.
    """
    count = 1
    while isinstance(type, ArrayOf):
        count += 1
        type = type.item
    return count + type.size if isinstance(type, TupleOf) else count


def _size(type: Type) -> int:
    """Return the number of items that a value of a type counts as, such as 2 for a pair."""
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

    The rules are those of section 3.3.2 of the specification, Type Casting. A primitive fits a
    tensor with items of this primitive type. An array or tuple fits if its items fit. If `mixed`,
    an integer fits a scalar (spec 3.2.2).
    """
    if actual == formal or isinstance(actual, Anything) or isinstance(formal, Anything):
        return True
    match actual, formal:
        case Tensor(None), Tensor():
            return True
        case Tensor(), Tensor(None):
            return True
        case Primitive("integer"), (Primitive("scalar") | Tensor("scalar")):
            return mixed
        case Primitive("string"), Tensor():
            return False
        case Primitive(), Tensor(None):
            return True
        case Primitive(name), Tensor(item):
            return name == item
        case ArrayOf(actual_item), ArrayOf(formal_item):
            return fits(actual_item, formal_item, mixed=mixed)
        case TupleOf(actual_items), TupleOf(formal_items):
            if len(actual_items) != len(formal_items):
                return False
            pairs = zip(actual_items, formal_items, strict=True)
            return all(fits(x, y, mixed=mixed) for x, y in pairs)
        case _:
            return False


def common(a: Type, b: Type) -> Type | None:
    """Return the type to which values of the types `a` and `b` can be converted.

    Return None if there is no such type. Examples are tensor<scalar> for scalar and tensor<scalar>,
    and (tensor<>,tensor<>) for (tensor<>,scalar) and (scalar,tensor<>).
    """
    match a, b:
        case Anything(), _:
            return b
        case _, Anything():
            return a
        case ArrayOf(item_a), ArrayOf(item_b):
            common_item = common(item_a, item_b)
            return ArrayOf(common_item) if common_item else None
        case TupleOf(items_a), TupleOf(items_b) if len(items_a) == len(items_b):
            common_items: list[Type] = []
            for item_a, item_b in zip(items_a, items_b, strict=True):
                common_item = common(item_a, item_b)
                if common_item is None:
                    return None
                common_items.append(common_item)
            return TupleOf(tuple(common_items))
        case _ if fits(a, b):
            return b
        case _:
            return a if fits(b, a) else None


def deduce(actual: Type, formal: Type) -> str | None:
    """Return the type of `?` in the type `formal` of a parameter.

    `actual` is the type of the argument. Return None if `formal` does not contain `?`.
    """
    match actual, formal:
        case ((Tensor(name) | Primitive(name)), (Tensor("?") | Primitive("?"))):
            return name
        case ArrayOf(actual_item), ArrayOf(formal_item):
            return deduce(actual_item, formal_item)
        case TupleOf(actual_items), TupleOf(formal_items) if len(actual_items) == len(formal_items):
            for actual_item, formal_item in zip(actual_items, formal_items, strict=True):
                deduced = deduce(actual_item, formal_item)
                if deduced:
                    return deduced
            return None
        case _:
            return None


def _levels(type: Type) -> Iterator[list[Type]]:
    """Yield the types in a type by level: the type itself, its items, their items, and so on."""
    level: list[Type] = [type]
    while level:
        yield level
        next_level: list[Type] = []
        for outer_type in level:
            if isinstance(outer_type, TupleOf):
                next_level += outer_type.items
            elif isinstance(outer_type, ArrayOf):
                next_level.append(outer_type.item)
        level = next_level


def _types_in(type: Type) -> Iterator[Type]:
    """Yield a type and all types that it consists of, at any depth."""
    for level in _levels(type):
        yield from level


def holds(type: Type, *leaves: Type) -> bool:
    """Tell whether a type is one of `leaves`, or contains one of them at any depth."""
    return any(inner_type in leaves for inner_type in _types_in(type))


def has_tensor(type: Type) -> bool:
    """Tell whether a type contains tensors. Only arguments of such a type may be positional."""
    return any(isinstance(inner_type, Tensor) for inner_type in _types_in(type))


def nesting(type: Type) -> int:
    """Return the number of levels of arrays and tuples in a type: 2 for an array of pairs."""
    levels = list(_levels(type))
    return len(levels) - 1  # the last level has only primitives and tensors
