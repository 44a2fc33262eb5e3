"""Public signatures have types: few parameters are Any, and code of a user is checked by them."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax import analysis, openvx, serving
from tests.repository import signatures, user_code

_MOST_ANY = 20  # results of calls are an array or a named tuple, as the document says
_MOST_PARAMETERS = 9
# The docstring of `load` groups its keywords.
_FLAT = {"nnef_jax.loading.load"}
# Parameters are options of a command, or operands and attributes of an operator.
_FLAT_FOLDERS = (
    "nnef_jax.cli.",
    "nnef_jax.formats.onnx.operators.",
    "nnef_jax.formats.openvino.layers.",
    "nnef_jax.formats.tract.operators.",
    "nnef_jax.openvx.layers.",
    "lowering.ops.",
)
_DIGITS, _LSTM = Path("examples/digits/model"), "tests/torch_networks/lstm.nnef.tgz"

Signature = ast.FunctionDef | ast.AsyncFunctionDef


def test_few_types_of_public_signatures_are_any() -> None:
    found = [where for name, node, module in _public() for where in _anys(name, node, module)]
    assert len(found) <= _MOST_ANY, "\n".join(found)


def test_public_functions_and_methods_say_all_their_types() -> None:
    for name, node, _ in _public():
        for function, arguments in _signatures(name, node):
            *given, returned = arguments
            assert all(x is not None for x in given), function
            assert returned is not None or function.endswith("__init__"), function


def test_the_model_comes_first() -> None:
    for name, node, _ in _public():
        if isinstance(node, Signature):
            names = [x.arg for x in (*node.args.args, *node.args.kwonlyargs)]
            assert "model" not in names[1:], name


def test_functions_have_at_most_nine_parameters() -> None:
    long: set[str] = set()
    for path in (*Path("nnef_jax").rglob("*.py"), *Path("lowering").rglob("*.py")):
        module = ".".join(path.with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Signature):
                count = sum(map(len, (node.args.posonlyargs, node.args.args, node.args.kwonlyargs)))
                long |= {f"{module}.{node.name}"} if count > _MOST_PARAMETERS else set()
    assert {name for name in long if not name.startswith(_FLAT_FOLDERS)} <= _FLAT


def test_public_signatures_are_those_that_are_recorded() -> None:
    recorded = signatures.RECORD.read_text(encoding="utf-8").splitlines()
    changes = difflib.unified_diff(recorded, signatures.public_signatures(), lineterm="", n=0)
    lines = [line for line in changes if not line.startswith(("---", "+++", "@@"))]
    assert not lines, "\n".join(
        [
            "public signatures changed. Where that is meant, write tests/repository/signatures.txt",
            "by `python -m tests.repository.signatures`, and say so in CHANGELOG.md under Changed:",
            *lines,
        ]
    )


def _recorded(name: str, value: Any) -> list[str]:
    listing = signatures.Listing(())
    listing.add(f"net.{name}", value)
    return sorted(listing.lines)


def test_what_a_record_has() -> None:
    """Parameters with kinds and defaults that print alike everywhere, fields, attributes."""

    def function(
        a: int, /, b: int = 1, *c: int, d: object = np.float32, e: object = (1.5,), **f: int
    ) -> None: ...

    assert _recorded("function", function) == [
        "net.function(a, /, b=1, *c, d=float32, e=(1.5,), **f) -> None"
    ]
    assert _recorded("Precision", jax.lax.Precision.HIGH) == ["net.Precision: Precision"]
    assert "net.Limits.nesting: field = 200" in _recorded("Limits", nnef_jax.Limits)
    assert "net.Error.hint: attribute" in _recorded("Error", nnef_jax.NnefError)
    members = _recorded("Model", nnef_jax.Model)
    assert "net.Model.graph: property -> Graph" in members
    assert any(x.startswith("net.Model.apply(params, *args, edit=None,") for x in members)


def test_code_of_a_user_runs(tmp_path: Path) -> None:
    model = user_code.load(_DIGITS)
    images = np.random.default_rng(0).uniform(0, 255, (2, 1, 8, 8)).astype(np.float32)
    assert user_code.call(model, images).shape == (2, 10)
    lstm = nnef_jax.load(_LSTM, state={"h0": "h", "c0": "c"})
    y, state = user_code.recur(lstm, np.ones((2, 1, 2, 12), np.float32))
    assert y.shape and sorted(state) == ["c0", "h0"]
    assert user_code.write(model, tmp_path).startswith("version 1.0")
    assert "double" in user_code.add_a_rule()


@pytest.mark.slow
def test_code_of_a_user_that_compiles_for_long_runs() -> None:
    model = user_code.load(_DIGITS)
    images = np.random.default_rng(0).uniform(0, 255, (2, 1, 8, 8)).astype(np.float32)
    assert user_code.differentiate(model, jnp.asarray(images))
    assert user_code.explain(model, images).shape == images.shape
    assert user_code.fixed_point(nnef_jax.load(_DIGITS), images).dtype == np.int16


def _public() -> Iterator[tuple[str, ast.ClassDef | Signature, ModuleType]]:
    """Yield public functions, and classes with their bases, each with its tree and its module."""
    for package in (nnef_jax, analysis, openvx, serving):
        for name in package.__all__:
            thing = getattr(package, name)
            for each in getattr(thing, "__mro__", (thing,)):  # a method may be one of a base
                home, own = getattr(each, "__module__", ""), getattr(each, "__name__", "")
                for node in _tree(home).body if home.startswith(("nnef_jax", "lowering")) else ():
                    if isinstance(node, ast.ClassDef | Signature) and node.name == own:
                        yield f"{package.__name__}.{name}", node, import_module(home)


@cache
def _tree(module: str) -> ast.Module:
    file = import_module(module).__file__
    assert file is not None
    return ast.parse(Path(file).read_text())


def _signatures(
    name: str, node: ast.ClassDef | Signature
) -> Iterator[tuple[str, list[ast.expr | None]]]:
    """Yield the annotations of parameters and of the result, of a class those of its fields too.

    Of an overloaded method its overloads are what users see.
    """
    if isinstance(node, Signature):
        arguments = node.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        given += [x for x in (arguments.vararg, arguments.kwarg) if x is not None]
        types = [x.annotation for x in given if x.arg not in ("self", "cls")]
        yield name, [*types, node.returns]
        return
    overloaded = {x.name for x in node.body if isinstance(x, Signature) and _is_overload(x)}
    for item in filter(_is_public, node.body):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield f"{name}.{item.target.id}", [item.annotation]
        if isinstance(item, Signature) and (item.name not in overloaded or _is_overload(item)):
            yield from _signatures(f"{name}.{item.name}", item)


def _is_public(item: ast.stmt) -> bool:
    target = item.target if isinstance(item, ast.AnnAssign) else item
    name = getattr(target, "id", getattr(target, "name", ""))
    return not name.startswith("_") or name in ("__init__", "__call__")


def _is_overload(node: Signature) -> bool:
    return any(isinstance(x, ast.Name) and x.id == "overload" for x in node.decorator_list)


def _anys(name: str, node: ast.ClassDef | Signature, module: ModuleType) -> Iterator[str]:
    """Yield the signatures that `Any` stands in, once for each annotation with it."""
    for function, types in _signatures(name, node):
        for annotation in types:
            if annotation is not None and _has_any(annotation, module.__name__):
                yield f"{function}: {ast.unparse(annotation)}"


def _has_any(annotation: ast.expr, module: str) -> bool:
    """Tell whether `Any` is in an annotation, or in what one of its names stands for.

    An array of numpy may have any items: numpy 2.0 has no name for it but `NDArray[Any]`.
    """
    text = re.sub(r"(?:NDArray|dtype|floating)\[Any\]", "ndarray", ast.unparse(annotation))
    names = [x.id for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Name)]
    return "Any" in names or any(_is_any(name, module) for name in names)


@cache
def _is_any(name: str, module: str) -> bool:
    """Tell whether a name of a module of ours stands for a type with `Any` in it."""
    for node in _tree(module).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                return _has_any(value, module)
            case ast.ImportFrom(module=str(home), names=names):
                ours = home.startswith(("nnef_jax", "lowering"))
                for each in names if ours else ():
                    if (each.asname or each.name) == name:
                        return _is_any(each.name, home)
            case _:
                pass
    return False
