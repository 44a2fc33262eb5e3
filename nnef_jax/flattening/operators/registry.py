"""A registry that maps the operators of a format, by name and version, to functions.

A format has one `Operators`, in a module that only makes this registry. Other modules, which are
called families, add operators to the registry:

    @operator("Swish")
    def swish(site, x, *, alpha=number("alpha", 1.0)):
        return site.last.mul(x, site.step.sigmoid(site.step.mul(x, alpha)))

The function of an operator adds the operator's operations to the graph. This function is called the
meaning of the operator. Its arguments are the site, the first inputs, and attributes as keywords:

- Positional parameters are inputs. An input with the default None may be left out. `*` takes all
  remaining inputs.
- Keyword parameters are attributes. The default of such a parameter is a value or a function of the
  site; `flattening.operators.attributes` has functions for this. If several operators share a
  function but differ in an attribute, an argument of the decorator replaces the default. `**` takes
  the arguments of the decorator that have no parameter of their name.

After the inputs are read, the attributes that are functions of the site are evaluated in order. The
function of an operator returns the tensor of the first output, or a tuple of outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from inspect import CO_VARARGS, CO_VARKEYWORDS
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lowering.errors import InvalidOperation

if TYPE_CHECKING:
    from nnef_jax.flattening.emission import Emission
    from nnef_jax.flattening.operators.site import OperatorSite

    _Site = OperatorSite[Emission]

Meaning = Callable[..., Any]
_Function = TypeVar("_Function", bound=Meaning)
NEWEST = 2**63 - 1  # the greatest version that a file can have


class Registration(Protocol):
    """The type of the method `Operators.operator`."""

    def __call__(
        self,
        *names: str,
        domain: str = "",
        since: int = 1,
        until: int = NEWEST,
        **attributes: object,
    ) -> Callable[[_Function], _Function]:
        """Return a decorator that registers a function for operators.

        See `Operators.operator`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a format in a range of versions.

    The range ends with the version `until`. It ends earlier if the registry has the same operator
    with a greater `since`.

    Args:
        name: the operator's name in the format.
        domain: the domain of the name, "" in formats without domains.
        since: the first version.
        until: the last version.
        run: a function that takes a site, reads the site's inputs and attributes, and calls
            `meaning`.
        meaning: the function, or the `OperatorRow`, that adds the operator's operations.
        attributes: maps names of keyword parameters of `meaning` to values. A value may also be a
            function, which takes the site and returns the argument.
    """

    name: str
    domain: str
    since: int
    until: int
    run: Callable[..., Any]
    meaning: Meaning
    attributes: Mapping[str, Any]


class Operators:
    """The registry of the operators of a format.

    `families` are the full names of the modules that add operators. The modules are imported when
    an operator is first looked up. `key` is a function that returns the same key for all spellings
    of an operator's name in files.
    """

    def __init__(self, key: Callable[[str], str] = str) -> None:
        self.families: Sequence[str] = ()
        self.key = key
        self._lock = RLock()
        self._by_name: dict[tuple[str, str], list[Operator]] = {}

    def operator(
        self,
        *names: str,
        domain: str = "",
        since: int = 1,
        until: int = NEWEST,
        **attributes: object,
    ) -> Callable[[_Function], _Function]:
        """Return a decorator that registers a function for the operators `names`.

        The function adds the operations of these operators, from version `since` to version
        `until`. `attributes` are arguments for the function's keyword parameters. An argument is a
        value, or another function that takes the site and returns the value.
        """

        def register(meaning: _Function) -> _Function:
            # An argument of the decorator replaces the default of a keyword parameter.
            defaults = getattr(meaning, "__kwdefaults__", None) or {}
            readers = {**defaults, **attributes}
            run = _reading_inputs(meaning, readers)
            for name in names:
                self._add(Operator(name, domain, since, until, run, meaning, readers))
            return meaning

        return register

    def rows(
        self,
        rows: Mapping[str, Meaning],
        *,
        domain: str = "",
        since: int = 1,
        until: int = NEWEST,
    ) -> None:
        """Register several operators. `rows` maps the names of the operators to their functions.

        An `OperatorRow` or a `Refusal` may take the place of a function.
        """
        for name, meaning in rows.items():
            register = self.operator(name, domain=domain, since=since, until=until)
            register(meaning)

    def get(self, name: str, version: int = NEWEST, domain: str = "") -> Operator | None:
        """Return the operator `name` for a version of the domain, or None if there is none."""
        if self.families:
            self._load()
        operators = self._by_name.get((domain, self.key(name)), ())
        for operator in reversed(operators):  # the newest comes first
            if operator.since <= version:
                return operator if version <= operator.until else None
        return None

    def __iter__(self) -> Iterator[Operator]:
        """Iterate over all operators, sorted by domain, name and version."""
        self._load()
        for key in sorted(self._by_name):
            yield from self._by_name[key]

    def _load(self) -> None:
        """Import the modules that add operators to the registry."""
        with self._lock:  # a second thread waits until all families are imported
            for family in self.families:
                import_module(family)
            self.families = ()

    def _add(self, operator: Operator) -> None:
        """Add an operator to the list for its name, and sort the list by the first version."""
        versions = self._by_name.setdefault((operator.domain, self.key(operator.name)), [])
        if any(operator.since == version.since for version in versions):
            raise ValueError(f"'{operator.name}' has two meanings since version {operator.since}")
        versions.append(operator)
        versions.sort(key=lambda x: x.since)


def inputs_of(meaning: Meaning) -> tuple[str, ...]:
    """Return the names of the inputs that the function of an operator takes.

    If `meaning` is an `OperatorRow`, its inputs have no names, and the result is ().
    """
    code = getattr(meaning, "__code__", None)
    return code.co_varnames[1 : code.co_argcount] if code else ()


def _reading_inputs(meaning: Meaning, attributes: Mapping[str, Any]) -> Callable[[_Site], Any]:
    """Make a function that takes a site, and calls `meaning` with the site's inputs and attributes.

    `attributes` maps names of keyword parameters of `meaning` to values. A value may also be a
    function, which takes the site and returns the argument.
    """
    code = getattr(meaning, "__code__", None)
    # A `meaning` without code is an `OperatorRow` with attributes of its own, or a `Refusal`.
    if code is None:
        if attributes:
            raise TypeError(f"a row takes no attributes of a registration, here {[*attributes]}")
        return meaning
    keywords_end = code.co_argcount + code.co_kwonlyargcount
    keywords = {*code.co_varnames[code.co_argcount : keywords_end]}
    missing = keywords - attributes.keys()
    surplus = attributes.keys() - keywords
    takes_surplus = bool(code.co_flags & CO_VARKEYWORDS)
    if missing or (surplus and not takes_surplus):
        raise TypeError(
            f"{meaning.__name__} takes {sorted(keywords)}, its attributes are {[*attributes]}"
        )
    input_count = len(inputs_of(meaning))
    optional_count = len(meaning.__defaults__ or ())
    required_count = input_count - optional_count
    takes_all_inputs = bool(code.co_flags & CO_VARARGS)
    takes_only_site = input_count == 0 and not takes_all_inputs and not attributes
    if takes_only_site:
        return meaning  # there are no inputs or attributes to read

    def run(site: _Site) -> Any:
        inputs = [site.input(i) for i in range(required_count)]
        count = max(input_count, len(site.operands)) if takes_all_inputs else input_count
        inputs += [site.optional(i) for i in range(required_count, count)]
        return meaning(site, *inputs, **_evaluated(attributes, site))

    return run


def _evaluated(attributes: Mapping[str, Any], site: _Site) -> dict[str, Any]:
    """Return attributes, with functions of the site replaced by their results for `site`."""
    values = dict(attributes)
    for name, value_or_function in attributes.items():
        if callable(value_or_function):
            values[name] = value_or_function(site)
    return values


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """Flattens an operator that becomes a single operation.

    Args:
        kind: the name of the operation, such as "mul".
        inputs: the operation's operands. An operand is the index of an input, or a function of the
            site.
        attributes: maps names of attributes of the operation to values. A value may also be a
            function, which takes the site and returns the value.
    """

    kind: str
    inputs: tuple[Any, ...] = (0,)
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self, site: _Site) -> Any:
        """Add the operation at a site and return the operation's results."""
        operands: list[Any] = []
        for index_or_function in self.inputs:
            if callable(index_or_function):
                operands.append(index_or_function(site))
            else:
                operands.append(site.operand(index_or_function))
        add_operation = getattr(site.last, self.kind)
        return add_operation(*operands, **_evaluated(self.attributes, site))


def operation(kind: str, *inputs: int | Callable[..., object], **attributes: object) -> OperatorRow:
    """Return the row of an operator that becomes a single operation, named `kind`.

    `inputs` and `attributes` are described at `OperatorRow`. If there are no `inputs`, the only
    operand of the operation is input 0.
    """
    return OperatorRow(kind, inputs or (0,), attributes)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refuses an operator that is not supported.

    `reason` says why the operator is refused, and `hint` says what the user can do instead.
    """

    reason: str
    hint: str

    def __call__(self, site: _Site) -> Any:
        """Raise InvalidOperation with the reason and the hint."""
        raise InvalidOperation(self.reason, self.hint)
