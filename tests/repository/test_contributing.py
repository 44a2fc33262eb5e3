"""The recipes of CONTRIBUTING.md and docs/extending.md, done in a copy of the repository."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = dict(
    re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.split("\n# Recipes\n")[1], re.M | re.S)
)


def blocks(recipe: str) -> list[tuple[str, str, str]]:
    """The language, the file and the text of each block."""
    return re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", RECIPES[recipe], re.M | re.S)


def write(path: Path, language: str, text: str) -> None:
    """Put a block at the end of a file, or a difference into it at its only place."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if language == "diff":
        lines = text.splitlines(keepends=True)
        before, after = ("".join(x[1:] for x in lines if x[0] in signs) for signs in (" -", " +"))
        assert old.count(before) == 1, f"{path} has these lines {old.count(before)} times: {before}"
        path.write_text(old.replace(before, after), encoding="utf-8")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{old}\n\n{text}" if old else text, encoding="utf-8")


def test_there_are_six_recipes() -> None:
    wanted = ["An operation", "A kernel", "A pass", "A case", "A command-line option", "A format"]
    assert list(RECIPES) == wanted
    assert all(any(language == "sh" for language, _, _ in blocks(recipe)) for recipe in RECIPES)


def steps() -> dict[str, list[tuple[str, str, str]]]:
    """The blocks of all recipes: those above, and one of docs/extending.md.

    A block there names a file, and shows what is put into it or at its end.
    """
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    title = "An operation of NNEF"  # and of tract, behind it
    section = re.search(rf"^# {title}.*\Z", page, re.M | re.S)
    assert section is not None
    shown = []
    for file, text in re.findall(r"^```text\n(\S+)\n(.*?)^```$", section[0], re.M | re.S):
        added = "".join(line[1:] for line in text.splitlines(keepends=True))
        shown.append(("text", file, added) if text.startswith("+") else ("diff", file, text))
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", section[0], re.M | re.S)
    all_blocks = {recipe: blocks(recipe) for recipe in RECIPES}
    return all_blocks | {title: [*shown, ("sh", "", commands)]}


def follow() -> None:
    """Do all recipes in this copy of the repository, one after the other.

    Each line is a fork of this process, so that jax is imported once. Lines that run a file of
    tests wait, and are done together before a recipe that has one of them again, and at the end.
    """
    importlib.import_module("jax")
    failed: list[str] = []
    waiting: list[str] = []
    for parts in [*steps().values(), []]:
        lines = "".join(text for language, _, text in parts if language == "sh").splitlines()
        if waiting and (not parts or not set(waiting).isdisjoint(lines)):
            failed += fork(" ".join(["pytest", *(line.split()[1] for line in waiting)]))
            waiting.clear()
        for language, file, text in parts:
            if file:
                write(ROOT / file, language, text)
        for line in lines:
            if re.fullmatch(r"pytest \S+", line):
                waiting.append(line)
            else:
                failed += fork(line)
    assert not failed, failed


def fork(line: str) -> list[str]:
    """Run a line in a process of its own; return it if it fails."""
    process = multiprocessing.get_context("fork").Process(target=run, args=(line,))
    process.start()
    process.join()
    return [line] if process.exitcode else []


def run(line: str) -> None:
    """Run a line of a recipe in this process; exit with its status."""
    program, *sys.argv = shlex.split(line)
    if program == "pytest":
        checks: Any = importlib.import_module("tests.operation_checks")
        checks._ROWS = 1  # compiled together: recipes ask for one of hundreds
        sys.exit(pytest.main(sys.argv))
    elif program == "python":
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        subprocess.run([program, *sys.argv], check=True)


def test_recipes(tmp_path: Path) -> None:
    for name in ("nnef_jax", "lowering", "tests", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.npz"))
    for name in ("pyproject.toml", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path)
    code = "from tests.repository.test_contributing import follow; follow()"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
