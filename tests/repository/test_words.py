"""Words of the glossary are those of the code, and newcomers find files where they are told."""

from __future__ import annotations

import ast
import re
from functools import cache, reduce
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
    page = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 45
    return dict(re.findall(r"^\| ([a-z, ]+) \| .* \| `([\w.]+)` \|$", page, re.M))


@cache
def names_and_docstrings() -> dict[Path, tuple[set[str], list[str]]]:
    """The names that each module gives, its own name too, and its docstrings."""
    paths = (path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    return {path: read(path) for path in paths}


def read(path: Path) -> tuple[set[str], list[str]]:
    names, docstrings = {path.stem}, list[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            docstrings.append(ast.get_docstring(node) or "")
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names, docstrings


def words_of(names: set[str]) -> set[str]:
    found = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", " ".join(names))
    return {word.lower() for word in found}


def test_words_of_the_glossary_are_names_of_the_code() -> None:
    used = {word for names, _ in names_and_docstrings().values() for word in words_of(names)}
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
    for path, (names, _) in names_and_docstrings().items():
        known = ENGINES if path.stem == "engines" else set[str]()
        assert not words_of(names) & set(UNUSED) - known, path


def test_docstrings_name_what_they_are_of() -> None:
    for path, (_, docstrings) in names_and_docstrings().items():
        for text in docstrings:
            assert not EMPTY.match(text), f"{path}: {text}"


def test_questions_of_a_newcomer_are_answered_by_modules_that_are_there() -> None:
    """The docstring of a room has lines as "Where ...? `module`", with names within the room."""
    answers: dict[str, list[Path]] = {}
    for path, (_, (docstring, *_)) in names_and_docstrings().items():
        if path.name == "__init__.py":
            for question, answer in re.findall(r"^(Wh.+?\?) (.+(?:\n +.+)*)$", docstring, re.M):
                names = re.findall(r"`([\w.]+)`", answer)
                answers[question] = [path.parent.joinpath(*name.split(".")) for name in names]
    assert len(answers) >= 20
    for question, places in answers.items():
        assert places, question
        for place in places:
            assert place.is_dir() or place.with_suffix(".py").exists(), (question, place)
