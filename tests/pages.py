"""Code blocks of README.md and docs/: what they are, and how they are run.

A page is one session at the root of the repository: a block goes on where the one before it ended.

- `python` is run in one namespace a page.
- `sh` is run line by line: `nnef-jax` in this process, `python` in another one where that is asked
  for. What installs, and what CONTRIBUTING.md is about, is not run. A comment that says "status 1"
  is believed, and checked.
- `<!-- needs: torch, torch_to_nnef -->` above a block names modules that the tests do without.
- All else is text.
"""

from __future__ import annotations

import codeop
import contextlib
import glob
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnef_jax import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
LANGUAGES = {"", "python", "sh", "text", "json", "html", "yaml"}
INSTALLS = {"git", "pip", "python3", ".", "cd", "export"}
DEVELOPS = {"pytest", "ruff", "pyright", "mkdocs", "pre-commit", ".ci/run"}

_FENCE = re.compile(r"(?:^<!-- needs: (.*?) -->\n+)?^```(\S*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the line of its first line."""

    page: str
    line: int
    language: str
    code: str
    needs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, language: str | None = None) -> list[Block]:
    """Return the blocks of a page in order, those of one language if it is given."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [
        Block(
            page,
            text.count("\n", 0, match.start(3)) + 1,
            match[2],
            match[3],
            tuple(re.split(r", *", match[1])) if match[1] else (),
        )
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if language in (None, block.language)]


def session(
    page: str,
    needs: tuple[str, ...] = (),
    *,
    programs: bool = False,
    without: tuple[str, ...] = (),
    within: Callable[[Block], AbstractContextManager[None]] = lambda block: nullcontext(),
) -> Iterator[tuple[Block, dict[str, Any]]]:
    """Run the blocks of a page; yield each with the names that are defined after it.

    Args:
        page: its path from the root of the repository.
        needs: modules that blocks may need; those that need others are left out.
        programs: run lines `python ...` of `sh` blocks, each in a process.
        without: leave out lines of `sh` blocks that begin with this.
        within: returns a context in which a block of Python runs.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if not set(block.needs) <= set(needs):
            continue
        if block.language == "python":
            # With empty lines before it, so that a traceback has the line of the page.
            with within(block):
                exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), names)
        elif block.language == "sh":
            for line in lines(block):
                if line.startswith(without):
                    continue
                run_line(block, line, programs=programs)
        yield block, dict(names)


def lines(block: Block) -> list[str]:
    """Return the commands of a block of `sh`, comments included."""
    parts = block.code.replace("\\\n", " ").replace(" && ", "\n").splitlines()
    return [part for part in map(str.strip, parts) if part and not part.startswith("#")]


def run_line(block: Block, line: str, *, programs: bool) -> None:
    """Run a command of a block, or raise an error if it is not known."""
    words = _words(line)
    program, *arguments = words
    if program == "pip":
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = set(re.findall(r"[\w-]+", "".join(re.findall(r"[ \"]\.\[(.*?)\]", line))))
        assert extras <= known["optional-dependencies"].keys(), f"{block}: no such extra"
    elif program == "nnef-jax":
        target = None
        if ">" in arguments:
            arguments, (target,) = arguments[: arguments.index(">")], arguments[-1:]
        out, hook = io.StringIO(), sys.excepthook
        with contextlib.redirect_stdout(out):
            try:
                status = cli.main(arguments)
            finally:
                sys.excepthook = hook  # which typer sets
        assert status == (1 if "status 1" in line else 0), f"{block}: {line}: status {status}"
        if target is not None:
            Path(target).write_text(out.getvalue(), encoding="utf-8")
    elif program == "python":
        if programs:
            arguments = [x.replace("$PWD", os.getcwd()) for x in arguments]
            subprocess.run([sys.executable, *arguments], check=True, timeout=300)
    else:
        assert program in INSTALLS | DEVELOPS, f"{block}: nothing runs {line!r}"


def _words(line: str) -> list[str]:
    """Split a line into words as a shell does: quotes, comments, patterns of files."""
    lexer = shlex.shlex(line, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    for word in lexer:
        (plain,) = shlex.split(word)
        found = sorted(glob.glob(plain)) if plain == word and glob.has_magic(word) else []
        words += found or [plain]
    return words


def unpasteable(code: str) -> str | None:
    """Return why code cannot be pasted into a REPL that reads line by line; None if it can.

    Such are those of `python` before 3.13: a blank line ends what is indented, and only that does.
    """
    pending: list[str] = []
    for number, line in enumerate(code.splitlines(), start=1):
        pending.append(line)
        try:
            if codeop.compile_command("\n".join(pending), symbol="single") is not None:
                pending = []
        except SyntaxError:
            return f"line {number}: {line!r} needs a blank line before it, and none inside blocks"
    # A block that ends indented needs one more Enter, as all know who have used a REPL.
    try:
        left = codeop.compile_command("\n".join([*pending, "", ""]), symbol="single")
    except SyntaxError:
        left = None
    return None if left is not None or not pending else f"the last lines are incomplete: {pending}"
