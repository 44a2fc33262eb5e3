"""`python -m benchmarks --against`: its arithmetic, its turns, and what it leaves behind."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import nnef_jax
from benchmarks import against, change, figures, networks, parsing, timing, training, worker
from benchmarks.__main__ import main
from benchmarks.builders.nnef_builder import NnefBuilder
from benchmarks.change import THAT, THIS, TWIN, Change
from benchmarks.figures import Task

GOOD = """
class Model:
    params = {}

def load(path):
    return Model()
"""


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(root), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose package does nothing, in place of this one."""
    root = tmp_path / "repository"
    for package, text in (("nnef_jax", GOOD), ("lowering", "")):
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").write_text(text)
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "First")
    monkeypatch.setattr(against, "ROOT", root)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # as `main` would leave it
    return root


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def rounds(this: list[float], twin: list[float], that: list[float] | None = None) -> Change:
    that = that or [1.0] * len(this)
    found = [
        dict(zip((THIS, THAT, TWIN), v, strict=True)) for v in zip(this, that, twin, strict=True)
    ]
    return Change("figure", "s", found)


# Arithmetic


def test_what_all_rounds_share_cancels() -> None:
    """A machine that slows down tenfold changes neither the ratio nor the spread."""
    drift = np.geomspace(1, 10, 8)
    found = rounds(list(1.1 * drift), list(drift), list(drift))
    assert found.ratio == pytest.approx(1.1)
    assert found.spread == pytest.approx(1)
    assert found.verdict == "worse"
    assert found.median(THAT) == pytest.approx(math.sqrt(drift[3] * drift[4]), rel=0.1)


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.3, "worse"), (1.1, ""), (1.0, ""), (1 / 1.1, ""), (1 / 1.3, "better")]
)
def test_a_change_counts_beyond_the_spread(ratio: float, verdict: str) -> None:
    twin = [1.2, 1 / 1.2] * 4  # whichever of the two copies was the faster one
    found = rounds([ratio] * 8, twin)
    assert found.ratio == pytest.approx(ratio)
    assert found.spread == pytest.approx(1.2)
    assert found.verdict == verdict


def noisy(random: np.random.Generator, effect: float) -> Change:
    """Processes that differ by 10 %, two rounds of each that differ by 5 %."""
    by_process = np.repeat(random.normal(0, 0.1, (3, 4)), 2, axis=1)
    this, twin, that = np.exp(by_process + random.normal(0, 0.05, (3, 8))).tolist()
    return rounds([effect * value for value in this], twin, that)


@pytest.mark.parametrize(
    ("effect", "least", "most"), [(1.0, 0, 0.05), (1.6, 0.95, 1), (1 / 1.6, 0.95, 1)]
)
def test_marks_are_seldom_wrong(effect: float, least: float, most: float) -> None:
    random = np.random.default_rng(0)
    marked = [noisy(random, effect).verdict != "" for _ in range(400)]
    assert least <= np.mean(marked) <= most


def test_summary_and_table() -> None:
    changes = [rounds([2.0, 2.0], [1.0, 1.0]), rounds([0.5, 0.5], [1.0, 1.0])]
    changes.append(rounds([1.0, 1.0], [1.5, 1.5]))
    found = change.summarise(changes)
    assert found["mean"] == pytest.approx(1)
    assert found["mean_to_itself"] == pytest.approx(1.5 ** (1 / 3))
    assert (found["worse"], found["better"], found["figures"]) == (1, 1, 3)
    console = Console(file=io.StringIO(), width=140)
    change.print_changes(console, changes)
    printed = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "+100.0 %" in printed and "-33.3 to +50.0 %" in printed
    assert "1 of 3 are worse, 1 better" in printed


# Turns


class Pretended:
    """A worker that tells who had a turn, and takes seconds that depend on it."""

    turns: list[str]
    disturbed: tuple[int, ...] = ()

    def __init__(self, role: str, output: float) -> None:
        self.role = role
        self.output = output

    def ask(self, message: dict[str, str]) -> None:
        np.save(message["output"], np.float32([self.output]))

    def answer(self) -> dict[str, float]:
        return {}

    def turn(self) -> dict[str, float]:
        self.turns.append(self.role)
        disturbed = len(self.turns) in self.disturbed
        return {"seconds": float(len(self.turns)), "elsewhere": float(disturbed)}


def pretend(monkeypatch: pytest.MonkeyPatch, **outputs: float) -> None:
    @contextmanager
    def started(role: str, tree: Path) -> Generator[Pretended]:
        yield Pretended(role, outputs.get(role, 1.0))

    Pretended.turns = []
    monkeypatch.setattr(against, "_worker", started)


TASK = Task("call", {"seconds": "figure"}, lambda folder: {})
TREES = dict.fromkeys(change.ROLES, Path())


def test_turns_go_forth_and_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each is as often first, second and last; every second round reverses the one before."""
    pretend(monkeypatch)
    (found,) = against.measure(TASK, TREES, 6, tmp_path)
    orders = [Pretended.turns[i : i + 3] for i in range(0, 18, 3)]
    assert len({tuple(order) for order in orders}) == 6
    assert orders[1::2] == [order[::-1] for order in orders[::2]]
    assert [found.rounds[0][role] for role in orders[0]] == [1, 2, 3]
    assert [found.rounds[5][role] for role in orders[5]] == [16, 17, 18]
    assert found.elsewhere == 0


@pytest.mark.parametrize("number", [1, 2, 3, 8])
def test_there_are_as_many_rounds_as_asked_for(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch)
    (found,) = against.measure(TASK, TREES, number, tmp_path)
    assert len(found.rounds) == number


def test_disturbed_rounds_are_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch)
    monkeypatch.setattr(timing, "_WAIT", 0.0)
    monkeypatch.setattr(Pretended, "disturbed", (2, 11))  # turns of the first and fourth round
    (found,) = against.measure(TASK, TREES, 4, tmp_path)
    turns = [sorted(values.values()) for values in found.rounds]
    assert turns == [[4, 5, 6], [7, 8, 9], [13, 14, 15], [16, 17, 18]]
    assert found.elsewhere == 0
    monkeypatch.setattr(Pretended, "disturbed", range(1000))
    (found,) = against.measure(TASK, TREES, 4, tmp_path)
    assert len(found.rounds) == 4
    assert found.elsewhere == 1
    assert len(Pretended.turns) == 3 * (6 + 3 * 4)


def test_other_results_are_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, this=1.01)
    with pytest.raises(timing.DisagreementError, match=r"differ from that: this by 0\.01"):
        against.measure(TASK, TREES, 2, tmp_path)
    assert Pretended.turns == []


# Checkouts


def test_checkouts(repository: Path, tmp_path: Path) -> None:
    """What is not committed is this checkout's, and the repository stays as it is."""
    package = repository / "nnef_jax"
    (package / "__init__.py").write_text("changed = 1\n")
    (package / "new.py").write_text("")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "old.pyc").write_text("")
    before = content(repository)
    digest = against.find_commit(repository, "HEAD")
    trees = against.checkouts(repository, digest, tmp_path / "trees")
    assert content(repository) == before
    texts = {role: (tree / "nnef_jax/__init__.py").read_text() for role, tree in trees.items()}
    assert texts == {THIS: "changed = 1\n", THAT: GOOD, TWIN: GOOD}
    assert [role for role, tree in trees.items() if (tree / "nnef_jax/new.py").exists()] == [THIS]
    assert not list((tmp_path / "trees").rglob("old.pyc"))
    here = Path(worker.__file__).read_text()
    assert all((tree / "benchmarks/worker.py").read_text() == here for tree in trees.values())


@pytest.mark.parametrize("commit", ["", "nope", "-x", "--all", "HEAD:nnef_jax", "HEAD^{tree}"])
def test_unknown_commits(commit: str, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--against={commit}", "--networks", "mlp"]) == 1
    assert f"no commit '{commit}'" in capsys.readouterr().out


def test_nothing_to_check_out(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(repository, "rm", "-r", "--quiet", "nnef_jax")
    git(repository, "commit", "--quiet", "-m", "Without")
    with pytest.raises(against.AgainstError, match="has no nnef_jax"):
        against.checkouts(repository, git(repository, "rev-parse", "HEAD"), repository)
    with pytest.raises(against.AgainstError, match="is not the root of a git repository"):
        against.find_commit(repository / "lowering", "HEAD")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(repository.parent.parent))
    with pytest.raises(against.AgainstError, match="not a git repository"):
        against.find_commit(repository.parent, "HEAD")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(against.AgainstError, match="git, which is not installed"):
        against.find_commit(repository, "HEAD")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "a positive number is needed, not '0'"),
        (["--batch", "1,x"], "a positive number is needed, not 'x'"),
        (["--json", "nowhere/found.json"], "there is no folder nowhere"),
        (["--against", "HEAD", "--engines", "torch"], "--against has no engines"),
        (["--against", "HEAD", "--plot", "bars.png"], "--against has no engines"),
    ],
)
def test_options(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_parts_without_figures(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--against", "HEAD", "--training", "--networks", "mlp"]) == 1
    assert "none of these networks" in capsys.readouterr().out


def test_figures_have_names_of_their_own() -> None:
    parts = ["table", "training", "startup", "parse"]
    tasks = figures.tasks(parts, list(networks.NETWORKS), [1, 8])
    titles = [title for task in tasks for title in task.titles.values()]
    assert (
        len(set(titles))
        == len(titles)
        == 2 * len(networks.NETWORKS) + len(training.TRAINED) + 7 + 4
    )
    assert {task.kind for task in tasks} == worker._KINDS.keys()


# Processes


BAD = {
    "raises": ("raise TypeError('one\\ntwo')", "that: TypeError: one"),
    "exits": ("raise SystemExit(3)", "that: ended with 3"),
    "dies": ("os.kill(os.getpid(), 9)", "that: ended with -9"),
    "complains": ("os.write(2, b'first\\nlast\\n'); os._exit(4)", "that: ended with 4 last"),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", [1, 4])  # while it prepares, in a turn
@pytest.mark.parametrize("kind", BAD)
def test_a_checkout_that_fails(kind: str, call: int, repository: Path, tmp_path: Path) -> None:
    statement, message = BAD[kind]
    bad = f"    calls.append(1)\n    if len(calls) == {call}: {statement}\n    return"
    text = GOOD.replace("    return", bad)
    package = repository / "nnef_jax" / "__init__.py"
    package.write_text(f"import os\ncalls = []\n{text}")
    git(repository, "commit", "--all", "--quiet", "-m", "Bad")
    package.write_text(GOOD)
    trees = against.checkouts(repository, git(repository, "rev-parse", "HEAD"), tmp_path / "trees")
    task = Task("load", {"seconds": "load"}, lambda folder: {"path": "x"})
    with pytest.raises(against.WorkerError) as caught:
        against.measure(task, trees, 1, tmp_path)
    assert (str(caught.value), caught.value.role) == (message, THAT)


NO_TRACT = GOOD.replace(
    "    return",
    """
    print("noise", flush=True)
    assert "tract" not in open(path + "/graph.nnef").read(), "no"
    return""",
)


@pytest.mark.parametrize(
    ("this", "that", "status"), [(GOOD, NO_TRACT, 0), (NO_TRACT, GOOD, 1)], ids=["that", "this"]
)
def test_what_a_checkout_cannot_do_is_left_out(
    this: str,
    that: str,
    status: int,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other figures are there, whatever is printed. That commit may lack what this one has."""
    package = repository / "nnef_jax" / "__init__.py"
    package.write_text(that)
    git(repository, "commit", "--all", "--quiet", "--allow-empty", "-m", "That")
    package.write_text(this)
    before = content(repository)
    monkeypatch.setattr(parsing, "SIZES", (20,))
    path = tmp_path / "found.json"
    assert main(["--against", "HEAD", "--parse", "--rounds", "1", "--json", str(path)]) == status
    found: dict[str, Any] = json.loads(path.read_text())["against"]
    assert [figure["title"] for figure in found["figures"]] == ["20 statements, standard"]
    assert found["figures"][0]["rounds"][0].keys() == set(change.ROLES)
    (left_out,) = found["left_out"]
    assert left_out["title"] == "20 statements, tract"
    assert "AssertionError: no" in left_out["reason"]
    assert found["checkouts"][THIS].endswith("That, and what is not committed")
    assert content(repository) == before


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder is this repository; tests that need its history skip where it has none."""
    root = Path(against.__file__).resolve().parents[1]
    try:
        against.find_commit(root, "HEAD")
    except against.AgainstError as error:
        pytest.skip(str(error))
    monkeypatch.chdir(root)
    return root


def test_a_worker_knows_its_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="instead of its checkout's"):
        worker.prepare("load", "", path="x")


def test_tasks_of_networks(here: Path, tmp_path: Path) -> None:
    builder = NnefBuilder()
    builder.write(tmp_path / "net", networks.mlp(builder, 2, layers=2))
    np.savez(tmp_path / "inputs.npz", **builder.arguments())
    expected = np.asarray(nnef_jax.load(tmp_path / "net")(**builder.arguments()))
    paths = {"path": str(tmp_path / "net"), "inputs": str(tmp_path / "inputs.npz")}
    output = str(tmp_path / "output.npy")
    assert worker.prepare("call", output, **paths)()["seconds"] > 0
    assert np.load(output).shape == expected.shape
    assert worker.prepare("step", output, **paths)()["seconds"] > 0
    assert np.load(output).shape == ()
    probe = worker.prepare("process", output, task="nnef_jax load", path=paths["path"])
    assert probe()["peak"] > 1e7
    with pytest.raises(RuntimeError, match="FileNotFoundError"):
        worker.prepare("process", output, task="nnef_jax load", path="nowhere")()


@pytest.mark.slow
def test_against_the_last_commit(here: Path, tmp_path: Path) -> None:
    """The whole path with the smallest network."""
    command = [sys.executable, "-m", "benchmarks", "--against", "HEAD", "--networks", "mlp"]
    command += ["--batch", "1", "--rounds", "1", "--json", str(tmp_path / "found.json")]
    subprocess.run(command, check=True)
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())["against"]
    assert found["figures"][0]["title"] == "mlp, 1"
    assert len(found["figures"][0]["rounds"]) == 1
    assert found["left_out"] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_interrupted(number: int, here: Path, tmp_path: Path) -> None:
    # A shell ignores SIGINT for what it runs in the background, and so would the tests in it.
    start = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    start += "runpy.run_module('benchmarks', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", start, "--against", "HEAD", "--parse", "--rounds", "100000"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    while process.poll() is None and not list(tmp_path.glob("*/*/text/graph.nnef")):
        time.sleep(0.02)
    process.send_signal(number)
    errors = process.communicate()[1]
    assert (process.returncode, errors) == (128 + number, b"")
    assert list(tmp_path.iterdir()) == []
    wait_until_nobody_works_in(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc")
def test_a_worker_ends_with_what_it_has_started(repository: Path, tmp_path: Path) -> None:
    hangs = "import subprocess\ndef load(path): subprocess.run(['sleep', '1000'])\n"
    (repository / "nnef_jax" / "__init__.py").write_text(hangs)
    digest = against.find_commit(repository, "HEAD")
    trees = against.checkouts(repository, digest, tmp_path / "trees")
    with against._worker(THIS, trees[THIS]) as started:
        started.ask({"kind": "load", "output": "", "path": "x"})
        while working_folders().count(str(trees[THIS])) < 2:
            time.sleep(0.02)
    wait_until_nobody_works_in(trees[THIS])


def wait_until_nobody_works_in(folder: Path) -> None:
    """Processes that were killed may take a moment to go."""
    for _ in range(3000):
        if not any(path.startswith(str(folder)) for path in working_folders()):
            return
        time.sleep(0.02)
    raise AssertionError(f"there is still a process in {folder}")


def working_folders() -> list[str]:
    """Of all processes, where there is a /proc."""
    found: list[str] = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            found.append(os.readlink(link))
        except OSError:  # gone, or another user's
            continue
    return found
