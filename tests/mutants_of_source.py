"""Changes statements of the source at random, and reports whether a test of their room fails.

    python -m tests.mutants_of_source draw --count 60 --seed 52  # writes the list beside this file
    python -m tests.mutants_of_source check                      # says which are not killed today

The tests of all rooms run once with a mark before each statement that is drawn: it writes down the
test that runs it. Each mutant then is a copy of the repository, where the tests that ran the
statement run until one fails (killed), all pass (survived), or three minutes of processor time are
over (slow). What is slow, and what no test of its room runs, is drawn again. Only statements of
functions are drawn: what a module does when it is imported has no test of its own. A statement of
the list is found by its text: in its function, else wherever it stands once.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.unix import resource

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".json")
_ROOMS = {  # of tests, by the longest prefix of a source file
    "lowering/": ("execution", "lowering", "operations"),
    "lowering/kernels/": ("execution", "operations"),
    "lowering/ops/": ("formats", "operations"),
    "nnef_jax/": ("execution", "storage"),
    "nnef_jax/analysis/": ("analysis",),
    "nnef_jax/cli/": ("cli",),
    "nnef_jax/flattening/": ("formats", "onnx", "openvino"),
    "nnef_jax/formats/": ("formats", "text"),
    "nnef_jax/formats/onnx/": ("onnx",),
    "nnef_jax/formats/openvino/": ("openvino",),
    "nnef_jax/measure/": ("measure",),
    "nnef_jax/openvx/": ("openvx",),
    "nnef_jax/serving/": ("serving",),
    "nnef_jax/storage/": ("storage",),
    "nnef_jax/viewing/": ("viewing",),
}
_MARK = """import os

_seen = set()


def ran(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test and (number, test) not in _seen:
        _seen.add((number, test))
        with open(f"{os.environ['MARKS']}/{number}", "a") as file:
            file.write(f"{test}\\n")
"""
# Tests that are named by lines of the input: a command would be too long.
_MANY_TESTS = (
    sys.executable, "-c", "import pytest, sys; options = '-x -p no:cacheprovider'.split();"
    "sys.exit(pytest.main([*options, *sys.stdin.read().splitlines()]))",
)  # fmt: skip
_SECONDS = 180  # of the processor, for a mutant
_RESULTS = ("killed", "survived")
_LONGEST = 900  # seconds: a mutant may wait for ever
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A statement and its replacement, with the last result and the test that killed it.

    For a compound statement, both are conditions.
    """

    path: str
    function: str
    statement: str
    mutant: str
    result: str = ""
    test: str = ""


@dataclass(frozen=True)
class Place:
    """A statement of a function, or its condition, with the line where the statement begins."""

    path: str
    function: str
    node: ast.stmt | ast.expr
    text: str
    line: int


def places(path: str, root: Path = ROOT) -> list[Place]:
    """Return the places of a file that can be mutated."""
    source = (root / path).read_text()
    lines = source.splitlines()
    result = list[Place]()

    def walk(node: ast.AST, scope: tuple[str, ...], inside: bool) -> None:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            scope, inside = (*scope, node.name), not isinstance(node, ast.ClassDef)
        for child in ast.iter_child_nodes(node):
            if inside and isinstance(child, ast.stmt):
                line, part = lines[child.lineno - 1], _mutable(child)
                # A mark needs a line of its own above it: `elif` has none.
                if part and line[: child.col_offset].isspace() and "elif" not in line:
                    result.append(
                        Place(path, ".".join(scope), part, ast.unparse(part), child.lineno)
                    )
            walk(child, scope, inside)

    walk(ast.parse(source), (), False)
    return result


def _mutable(statement: ast.stmt) -> ast.stmt | ast.expr | None:
    match statement:
        case ast.If(test=test) | ast.While(test=test):
            return test
        case ast.Expr(value=ast.Constant()):  # a docstring
            return None
        case (
            ast.Expr()
            | ast.Return()
            | ast.Assign()
            | ast.AnnAssign()
            | ast.AugAssign()
            | ast.Raise()
        ):
            return statement
    return None


def mutations(node: ast.stmt | ast.expr) -> list[str]:
    """Return replacements of a statement or condition."""
    result = list[ast.AST]()
    for i, _ in enumerate(ast.walk(node)):
        changed = copy.deepcopy(node)
        target = list(ast.walk(changed))[i]
        match target:
            case ast.Constant(value=bool() as value):
                target.value = not value
            case ast.Constant(value=int() as value):
                target.value = value + 1
            case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in _SWAPS:
                target.op = _SWAPS[type(op)]()  # pyright: ignore[reportAttributeAccessIssue]
            case ast.Compare(ops=[op]) if type(op) in _SWAPS:
                target.ops = [_SWAPS[type(op)]()]  # pyright: ignore[reportAttributeAccessIssue]
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                target.value = ast.Constant(None)
            case ast.Expr() | ast.Raise() | ast.AugAssign():
                changed = ast.Pass()
            case _:
                continue
        result.append(changed)
    if isinstance(node, ast.expr):
        result.append(ast.UnaryOp(ast.Not(), node))
    return [ast.unparse(x) for x in result]


def all_places() -> list[Place]:
    files = [*ROOT.glob("nnef_jax/**/*.py"), *ROOT.glob("lowering/**/*.py")]
    return [x for file in sorted(files) for x in places(file.relative_to(ROOT).as_posix())]


def place_of(row: Mutant, everywhere: Sequence[Place]) -> Place | None:
    """Return where a statement of the list is today, or None."""
    same = [x for x in everywhere if x.text == row.statement]
    moved = [x for x in same if x.function == row.function]
    here = [x for x in moved if x.path == row.path]
    elsewhere = moved or same
    return here[0] if here else elsewhere[0] if len(elsewhere) == 1 else None


def room(path: str) -> tuple[str, ...]:
    return _ROOMS[max((x for x in _ROOMS if path.startswith(x)), key=len)]


def copied(folder: Path, changed: Mapping[str, str]) -> Path:
    """Copy the repository with links to its files, except for `changed` ones."""
    ignored = shutil.ignore_patterns(".*", "build", "node_modules")
    shutil.copytree(ROOT, folder, ignore=ignored, copy_function=os.link)
    for path, text in changed.items():
        (folder / path).unlink(missing_ok=True)
        (folder / path).write_text(text)
    return folder


def runs(chosen: Sequence[Place], folder: Path) -> list[list[str]]:
    """Return the tests of its room that run each place."""
    texts = {"ran.py": _MARK}
    for path in {x.path for x in chosen}:
        lines = (ROOT / path).read_text().splitlines(keepends=True)
        for place in sorted((x for x in chosen if x.path == path), key=lambda x: -x.line):
            above = place.line - 1
            space = lines[above][: len(lines[above]) - len(lines[above].lstrip())]
            lines.insert(above, f"{space}import ran; ran.ran({chosen.index(place)})\n")
        texts[path] = "".join(lines)
    marks = folder / "marks"
    marks.mkdir()
    rooms = sorted({x for place in chosen for x in room(place.path)})
    tree = copied(folder / "marked", texts)
    environment = os.environ | {"PYTHONPATH": str(tree), "MARKS": str(marks)}
    command = [sys.executable, "-m", "pytest", "-n", "2", *(f"tests/{x}" for x in rooms)]
    # Tests that look at files of the source may fail here.
    subprocess.run(command, cwd=tree, env=environment, check=False)
    result = list[list[str]]()
    for number, place in enumerate(chosen):
        file = marks / str(number)
        tests = file.read_text().splitlines() if file.exists() else []
        begins = tuple(f"tests/{x}/" for x in room(place.path))
        result.append(sorted({x for x in tests if x.startswith(begins)}))
    return result


def tried(row: Mutant, place: Place, tests: Sequence[str], folder: Path) -> Mutant:
    """Run the tests with the mutant in its place; return the row with the result."""
    if not tests:
        return replace(row, result="not run", test="")
    changed = {place.path: _mutated(row, place)}
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        tree = copied(Path(temporary) / "tree", changed)
        with open(tree / "output", "w+") as output:
            process = subprocess.Popen(
                _MANY_TESTS, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)},
                stdin=subprocess.PIPE, text=True, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=_limit,
            )  # fmt: skip
            try:
                process.communicate("\n".join(tests), _LONGEST)
                code = process.returncode
            except subprocess.TimeoutExpired:
                code = -signal.SIGXCPU
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            printed = output.read()
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return replace(row, result="slow", test="")
    is_import_error = "loading conftest" in printed or "\nERROR tests/" in printed
    if code == 5 or (code == 4 and not is_import_error):
        raise RuntimeError(f"{row}: {printed[-2000:]}")
    failed = [x.split()[1] for x in printed.splitlines() if x.startswith(("FAILED ", "ERROR "))]
    return replace(row, result="killed" if code else "survived", test="".join(failed[:1]))


def _mutated(row: Mutant, place: Place) -> str:
    """Return the file of a place with the mutant there."""
    lines = (ROOT / place.path).read_bytes().splitlines(keepends=True)  # columns count bytes
    node = place.node
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    text = f"({row.mutant})" if isinstance(node, ast.expr) else row.mutant
    before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    parts = [*lines[:first], before, text.encode(), after, *lines[last + 1 :]]
    return b"".join(parts).decode()


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS + 5))


def tried_all(rows: Sequence[Mutant], most: int) -> list[Mutant]:
    """Try mutants, two at a time, until so many were killed or survived."""
    everywhere = all_places()
    where = [place_of(row, everywhere) for row in rows]
    chosen = [x for x in where if x is not None]
    result = list[Mutant]()
    with tempfile.TemporaryDirectory(dir=ROOT.parent) as temporary:
        folder = Path(temporary)
        tests = dict(zip(map(id, chosen), runs(chosen, folder), strict=True))

        def one(i: int) -> Mutant:
            place = where[i]
            if place is None:
                return replace(rows[i], result="not there", test="")
            return tried(rows[i], place, tests[id(place)], folder)

        numbers = iter(range(len(rows)))
        with ThreadPoolExecutor(2) as pool:
            while sum(x.result in _RESULTS for x in result) < most:
                pair = [x for _, x in zip(range(2), numbers, strict=False)]
                if not pair:
                    break
                for row in pool.map(one, pair):
                    print(
                        f"{row.result}: {row.path}: {row.statement} -> {row.mutant}  {row.test}",
                        flush=True,
                    )
                    result.append(row)
    return result


def drawn(count: int, seed: int) -> list[Mutant]:
    """Draw `count` mutants of the source."""
    draw = random.Random(seed)
    result = list[Mutant]()
    everywhere = all_places()
    for place in draw.sample(everywhere, len(everywhere)):
        choices = mutations(place.node)
        row = Mutant(place.path, place.function, place.text, "")
        if choices and place_of(row, everywhere) is place:
            result.append(replace(row, mutant=draw.choice(choices)))
        if len(result) == count:
            break
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["draw", "check"])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.what == "draw":
        rows = tried_all(drawn(2 * options.count, options.seed), options.count)
        rows = [x for x in rows if x.result in _RESULTS][: options.count]
        LIST.write_text(json.dumps([asdict(x) for x in rows], indent=1) + "\n")
        return
    before = [Mutant(**x) for x in json.loads(LIST.read_text())]
    after = tried_all(before, len(before))
    lost = [y for x, y in zip(before, after, strict=True) if x.result == "killed" != y.result]
    for row in lost:
        print(f"no longer killed ({row.result}): {row.path}: {row.statement} -> {row.mutant}")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
