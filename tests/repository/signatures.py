"""The public signatures, a line a name, as tests/repository/signatures.txt records them.

python -m tests.repository.signatures    # write them anew

A line has the parameters of a function or method with their kinds and defaults, and what it
returns. A field has its default. Classes that public functions return, and keywords that several
functions share, are listed by name wherever they are defined: as `nnef_jax.*.Profile`.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, is_typeddict

import lowering
import nnef_jax
from nnef_jax import analysis, openvx, serving

RECORD = Path(__file__).with_suffix(".txt")
PACKAGES = (nnef_jax, analysis, openvx, serving, lowering)
_OPERATORS = ("__call__", "__contains__", "__getitem__", "__iter__", "__len__")
_PLAIN = (bool, int, float, str, type(None))


def public_signatures() -> list[str]:
    """Return the lines, sorted."""
    return sorted(Listing(PACKAGES).lines)


class Listing:
    """The lines of packages, and of the classes that these lead to."""

    def __init__(self, packages: Sequence[ModuleType]) -> None:
        self.lines: list[str] = []
        named = {p: {name: getattr(p, name) for name in p.__all__} for p in packages}
        self._classes = {x for names in named.values() for x in names.values() if _is_class(x)}
        for package, names in named.items():
            for name, value in names.items():
                self.add(f"{package.__name__}.{name}", value)

    def add(self, name: str, value: Any) -> None:
        """Add the lines of a name."""
        match value:
            case ModuleType():
                for inner, function in sorted(vars(value).items()):
                    is_own = getattr(function, "__module__", "") == value.__name__
                    if value not in PACKAGES and is_own and not inner.startswith("_"):
                        self.add(f"{name}.{inner}", function)
            case type():
                self._add_class(name, value)
            case _ if callable(value):
                self._add_function(name, value)
            case _:
                self.lines.append(f"{name}: {type(value).__name__}")

    def _add_function(self, name: str, function: Callable[..., Any], bound: int = 0) -> None:
        """Add a function, or a method without its first parameters, which are bound."""
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[bound:]
        shown = [x.replace(annotation=x.empty, default=_Shown.of(x.default)) for x in parameters]
        returned = signature.return_annotation
        arrow = f" -> {returned}" if isinstance(returned, str) else ""
        self.lines.append(f"{name}{inspect.Signature(shown)}{arrow}")
        shared = [x.annotation for x in parameters if x.kind is x.VAR_KEYWORD]
        if not bound or name.startswith("nnef_jax.Model."):
            self._follow(f"{returned} {shared}", inspect.unwrap(function).__module__)

    def _add_class(self, name: str, class_: type) -> None:
        bases = [b.__name__ for b in class_.__bases__ if b is not object and b.__name__[0] != "_"]
        self.lines.append(f"{name}: class{' of ' if bases else ''}{', '.join(bases)}")
        described = list(_fields(class_))
        for field, default, annotation, module in described:
            self.lines.append(f"{name}.{field}: field{default}")
            self._follow(str(annotation), module)
        init = class_.__init__
        if "__init__" in vars(class_) and not is_dataclass(class_):
            self._add_function(f"{name}.__init__", init, bound=1)
            attributes = [x for x in _assigned(init) if not hasattr(class_, x)]
            self.lines += [f"{name}.{attribute}: attribute" for attribute in attributes]
        # Members of a base that is listed are not listed again.
        above = {c for base in class_.__mro__[1:] if base in self._classes for c in base.__mro__}
        names = {x for x in dir(class_) if not x.startswith("_") or x in _OPERATORS}
        for member in names.difference(x for x, *_ in described):
            owner = next(c for c in class_.__mro__ if member in vars(c))
            if _is_ours(owner) and owner not in above:
                self._add_member(f"{name}.{member}", vars(owner)[member])

    def _add_member(self, name: str, member: Any) -> None:
        match member:
            case property() | cached_property():
                getter: Any = member.fget if isinstance(member, property) else member.func
                returned = inspect.signature(getter).return_annotation
                self.lines.append(f"{name}: property -> {returned}")
                if name.startswith("nnef_jax.Model."):
                    self._follow(returned, getter.__module__)
            case staticmethod():
                self._add_function(name, member.__func__)
            case classmethod():
                self._add_function(name, member.__func__, bound=1)
            case _ if inspect.isroutine(member):
                self._add_function(name, member, bound=1)
            case _:
                self.lines.append(f"{name}: attribute")

    def _follow(self, annotation: str, module: str) -> None:
        """Add the classes of ours that an annotation names, if no package does."""
        for word in re.findall(r"\b[A-Za-z]\w*", annotation):
            class_ = _resolved(word, module)
            if _is_class(class_) and class_ not in self._classes:
                self._classes.add(class_)
                self._add_class(f"{class_.__module__.split('.')[0]}.*.{word}", class_)


class _Shown(str):
    """A default, whose repr is the text itself."""

    def __repr__(self) -> str:
        return str(self)

    @classmethod
    def of(cls, default: Any) -> Any:
        """Return a default as it prints alike everywhere: a value, or the name of what it is."""
        match default:
            case inspect.Parameter.empty:
                return default
            case Enum():
                return cls(f"{type(default).__name__}.{default.name}")
            case tuple() if not hasattr(default, "_fields"):
                items = [repr(cls.of(x)) for x in default]
                return cls(f"({', '.join(items)}{',' if len(items) == 1 else ''})")
            case _ if isinstance(default, _PLAIN):
                return cls(repr(default))
            case _:
                return cls(getattr(default, "__name__", f"{type(default).__name__}()"))


def _fields(class_: type) -> Iterator[tuple[str, str, Any, str]]:
    """Yield the fields of a class: names, defaults as text, annotations and modules of these."""
    if is_dataclass(class_):
        for field in fields(class_):
            if not field.name.startswith("_"):
                owner = next(c for c in class_.__mro__ if field.name in inspect.get_annotations(c))
                default = f" = {_Shown.of(field.default)}" if field.default is not MISSING else ""
                if field.default_factory is not MISSING:
                    default = f" = {field.default_factory.__name__}()"
                kind = ", keyword" if field.kw_only else ""
                yield field.name, kind + default, field.type, owner.__module__
    elif is_typeddict(class_) or hasattr(class_, "_fields"):
        defaults: dict[str, Any] = getattr(class_, "_field_defaults", {})
        for name, annotation in inspect.get_annotations(class_).items():
            default = f" = {_Shown.of(defaults[name])}" if name in defaults else ""
            text = getattr(annotation, "__forward_arg__", annotation)
            yield name, default, text, class_.__module__


def _assigned(init: Callable[..., Any]) -> list[str]:
    """Return the public attributes that `__init__` assigns."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(init)))
    targets = [x for x in ast.walk(tree) if isinstance(x, ast.Attribute)]
    stored = [x for x in targets if isinstance(x.ctx, ast.Store) and ast.unparse(x.value) == "self"]
    return sorted({x.attr for x in stored if not x.attr.startswith("_")})


def _resolved(word: str, module: str) -> Any:
    """Return what a name means in a module, or in what it imports for types alone."""
    home = import_module(module)
    if hasattr(home, word) or not _is_ours(home):
        return getattr(home, word, None)
    origin = _imports(home).get(word)
    return origin and getattr(import_module(origin), word, None)


@cache
def _imports(module: ModuleType) -> dict[str, str]:
    """Return the modules that names are imported from, by the names."""
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {x.name: node.module or "" for node in imports for x in node.names}


def _is_class(value: Any) -> bool:
    return isinstance(value, type) and _is_ours(value)


def _is_ours(value: Any) -> bool:
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return (module or "").split(".")[0] in ("nnef_jax", "lowering")


if __name__ == "__main__":
    RECORD.write_text("\n".join([*public_signatures(), ""]), encoding="utf-8")
