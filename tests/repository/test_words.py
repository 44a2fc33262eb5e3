"""Words of the glossary are those of the code, and newcomers find files where they are told."""

from __future__ import annotations

import ast
import re
from functools import reduce
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("nnef_jax", "lowering")
# Other words for what the glossary names, or short forms that say nothing.
UNUSED = [
    "arr",
    "attr",
    "backend",
    "cfg",
    "eqn",
    "exporter",
    "fn",
    "func",
    "hook",
    "idx",
    "importer",
    "manager",
    "misc",
    "nets",
    "obj",
    "op",
    "ops",
    "opname",
    "overlay",
    "param",
    "runtime",
    "session",
    "util",
    "utils",
    "var",
    "vars",
]
ENGINES = {"session", "op"}  # words of other engines, in the file that runs them
# A docstring that begins so names nothing: "Return what ...".
EMPTY = re.compile(r"\w+ (what|those|that|so many|it|them|all that|which of)\b")


def glossary() -> dict[str, str]:
    """The dotted path by the words of each row."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.split("## Words\n")[1].split("\n## ")[0]
    assert len(section.splitlines()) <= 40
    return dict(re.findall(r"^\| ([a-z, ]+) \| .* \| `([\w.]+)` \|$", section, re.M))


def trees() -> dict[Path, ast.Module]:
    paths = (path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def words_of(path: Path, tree: ast.Module) -> set[str]:
    """The words of all names that a module gives, its own name too."""
    names = {path.stem}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case _:
                pass
    found = (re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name) for name in names)
    return {word.lower() for words in found for word in words}


def test_words_of_the_glossary_are_names_of_the_code() -> None:
    used = {word for path, tree in trees().items() for word in words_of(path, tree)}
    rows = glossary()
    assert len(rows) > 25
    for row, path in rows.items():
        assert resolved(path) is not None, path
        for word in row.split(", "):
            assert {word, f"{word}s", f"{word}es"} & used, word


def resolved(path: str) -> object:
    """What a dotted path names: a module, or what is in one."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[count:], module)
    raise AssertionError(path)


def test_what_has_a_word_has_no_other_one() -> None:
    for path, tree in trees().items():
        known = ENGINES if path.stem == "engines" else set[str]()
        assert not words_of(path, tree) & set(UNUSED) - known, path


def test_docstrings_name_what_they_are_of() -> None:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    for path, tree in trees().items():
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            assert not EMPTY.match(text or ""), f"{path}: {text}"


def test_questions_of_a_newcomer_are_answered_by_files_that_are_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    questions = re.findall(r"^- (Wh\w+ .*?\? .*?)(?=^- |^$)", page, re.M | re.S)
    assert len(questions) == 10
    for question in questions:
        paths = re.findall(r"`((?:nnef_jax|lowering)/[\w/.]+)`", question)
        assert paths and all((ROOT / path).exists() for path in paths), question
