"""The recipes of CONTRIBUTING.md and docs/extending.md, done in a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))


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


def copy_repository(path: Path) -> None:
    for name in ("nnef_jax", "lowering", "tests", "docs"):
        ignored = shutil.ignore_patterns("__pycache__", "*.npz")
        shutil.copytree(ROOT / name, path / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", path)


def run(text: str, path: Path) -> None:
    """Run the lines of a block in the copy."""
    python = Path(sys.executable).parent
    paths = os.pathsep.join([str(python), os.environ["PATH"]])
    environment = os.environ | {"PATH": paths, "PYTHONPATH": str(path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the next run is of the same files
    command = ["bash", "-euo", "pipefail", "-c", text]
    ended = subprocess.run(
        command, cwd=path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A copy of the repository, and the recipes that have yet to be done in it."""
    path = tmp_path_factory.mktemp("copy")
    copy_repository(path)
    return path, list(RECIPES)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(recipe: str, begun: tuple[Path, list[str]]) -> None:
    path, left = begun
    while recipe in left:
        for language, file, text in blocks(left.pop(0)):
            if file:
                write(path / file, language, text)
    for language, _, text in blocks(recipe):
        if language == "sh":
            run(text, path)


def test_operations_of_a_format(tmp_path: Path) -> None:
    """A block of docs/extending.md names a file, and shows what is put into it or at its end."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    section = re.search(r"^# An operation of NNEF, or of tract's.*?(?=^# |\Z)", page, re.M | re.S)
    assert section is not None
    copy_repository(tmp_path)
    for file, text in re.findall(r"^```text\n(\S+)\n(.*?)^```$", section[0], re.M | re.S):
        if text.startswith("+"):
            added = "".join(line[1:] for line in text.splitlines(keepends=True))
            with (tmp_path / file).open("a", encoding="utf-8") as stream:
                stream.write(added)
        else:
            write(tmp_path / file, "diff", text)
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", section[0], re.M | re.S)
    run(commands, tmp_path)
