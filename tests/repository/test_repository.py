"""The files around the packages: licence, versions, and what is run for every commit."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import nnef_jax
from tests.quick import FILES

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SITE = "mkdocs build --strict"
CI = (ROOT / ".github/workflows/ci.yml").read_text()


def commands(path: str) -> set[str]:
    """The commands of a script or workflow that check something, without their environment."""
    lines = re.findall(
        r"^[ \-]*(?:run: |entry: )?((?:ruff|pyright|mkdocs|pytest).*)$", read(path), re.M
    )
    return {re.sub(r" --pythonpath .*| --force-exclude| -n \w+", "", line) for line in lines}


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_licence() -> None:
    text = read("LICENSE")
    assert text.split()[:6] == ["Apache", "License", "Version", "2.0,", "January", "2004"]
    assert "END OF TERMS AND CONDITIONS" in text and len(text) == 11_358
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert "\nlicense: Apache-2.0\n" in read("CITATION.cff")


def test_versions_agree() -> None:
    assert f"\nversion: {nnef_jax.__version__}\n" in read("CITATION.cff")
    newest = re.findall(r"^## \[(.*?)\]", read("CHANGELOG.md"), re.M)[0]
    assert newest in ("Unreleased", nnef_jax.__version__)


def test_ci_runs_on_every_supported_python_with_the_oldest_and_the_newest_versions() -> None:
    supported = re.findall(r":: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={supported[0]}"
    tested = re.findall(r'python: "(.*)", versions: (\w+)', CI)
    assert {python for python, _ in tested} == set(supported)
    assert (supported[0], "oldest") in tested and (supported[-1], "newest") in tested


def test_lock_files_have_the_lowest_and_newer_versions() -> None:
    versions = {}
    for side in ("oldest", "newest"):
        lines = [line for line in read(f".ci/{side}.txt").splitlines() if line[0] != "#"]
        pairs = [line.partition(" ;")[0].split("==") for line in reversed(lines)]
        versions[side] = {name: numbers(version) for name, version in pairs}
    extras = PROJECT["optional-dependencies"]
    for line in (*PROJECT["dependencies"], *extras["test"], *extras["docs"]):
        if match := re.match(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", line):
            name, bound = match[1], numbers(match[2])
            oldest, newest = (versions[side][name] for side in ("oldest", "newest"))
            assert oldest[: len(bound)] == bound, name
            assert newest >= oldest, name


def numbers(version: str) -> list[int]:
    return [int(x) for x in re.findall(r"\d+", version)]


def test_every_commit_is_checked_by_the_same_commands() -> None:
    always = commands(".ci/run")
    assert always == {"ruff check .", "ruff format --check .", "pyright", "pytest", SITE}
    assert commands(".github/workflows/ci.yml") == always | {
        "pytest -m devices",
        "pytest -m quick",
        "pytest -m slow",
        "pytest --optimised",
    }


def test_quick_tests_are_of_every_room() -> None:
    assert [file for file in FILES if not file.is_file()] == []
    rooms = {x.parent for x in (ROOT / "tests").rglob("test_*.py")}
    assert {file.parent for file in FILES} == rooms - {ROOT / "tests" / "devices"}


def test_hooks_are_local_and_known() -> None:
    hooks = read(".pre-commit-config.yaml")
    assert re.findall(r"repo: (.*)", hooks) == ["local"]
    wanted = {"ruff check", "ruff format --check", "pyright", "pytest -m quick"}
    assert commands(".pre-commit-config.yaml") == wanted
