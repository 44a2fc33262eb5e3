"""The documentation: generated pages are up to date, messages suffice, claims have tests.

What its blocks do is in test_pages.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import nnef_jax
from benchmarks.timing import geometric_mean
from nnef_jax import cli
from nnef_jax.formats.syntax.standard import standard
from tests.execution import test_narrow
from tests.operations import test_numerics
from tests.wrong_documents import SECTIONS, WRONG_DOCUMENTS, WrongDocument, message

DOCS = Path(__file__).resolve().parents[2] / "docs"
GENERATED = {"index.md", "contributing.md", "changelog.md", "analysis_api.md", "gallery.md"}


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = script(DOCS / "generate.py")


@pytest.mark.parametrize("name", generate.GENERATED)
def test_generated_page_is_up_to_date(name: str) -> None:
    text: Callable[[], str] = generate.GENERATED[name]
    written = (DOCS / name).read_text(encoding="utf-8")
    assert written == text(), f"docs/{name} is not up to date: run python docs/generate.py"


def test_check_fails_for_a_stale_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "docs/errors.md is not up to date" in capsys.readouterr().out
    assert not list((tmp_path / "docs").iterdir())
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "docs" / "errors.md").write_text("stale", encoding="utf-8")
    assert generate.main(["--check"]) == 1


def test_every_operation_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` ", (DOCS / "operations.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(standard())


def test_there_are_twenty_wrong_documents() -> None:
    assert len(WRONG_DOCUMENTS) == len({document.name for document in WRONG_DOCUMENTS}) == 20


@pytest.mark.parametrize("document", WRONG_DOCUMENTS, ids=lambda document: document.name)
def test_message_is_enough_to_mend_the_document(document: WrongDocument) -> None:
    told = message(document)
    assert [words for words in document.words if words not in told] == []
    assert re.match(r"net/graph\.nnef:\d+:\d+: ", told)
    assert len(told.splitlines()) <= 15


@pytest.mark.parametrize(
    "document", SECTIONS["Shapes, inside fragments"], ids=lambda document: document.name
)
def test_shape_errors_show_the_chain_of_calls(document: WrongDocument) -> None:
    called = len(
        re.findall(r"in fragment '\w+', called at net/graph\.nnef:\d+:\d+", message(document))
    )
    assert called == document.text.count("fragment ")


def test_a_right_document_is_no_wrong_one() -> None:
    right = WRONG_DOCUMENTS[0].text.replace("relu(x)", "relu(x);")
    with pytest.raises(ValueError, match="nothing is wrong with 'right'"):
        message(WrongDocument("right", "", right, []))


def test_every_numerical_claim_has_a_test() -> None:
    text = (DOCS / "numerics.md").read_text(encoding="utf-8")
    claims = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
    named = [re.findall(r"`(test_\w+)`", claim.split("\n\n")[0]) for claim in claims]
    assert all(named), "a claim names no test"
    tests = {name for name in vars(test_numerics) if name.startswith("test_")}
    memory = {name for name in vars(test_narrow) if name.startswith("test_")}
    pages = {name for names in named for name in names}
    assert tests <= pages <= tests | memory


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    site = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    pages |= {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.ipynb")}
    assert pages == set(re.findall(r"([\w/]+\.(?:md|ipynb))$", site, re.MULTILINE)) - GENERATED


@pytest.mark.parametrize("word", ["fine-tune", "freeze", "captum"])
def test_headings_have_the_words_that_people_search_for(word: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")]
    assert any(re.search(rf"^#+ .*\b{word}\b", text, re.M | re.I) for text in texts)


def test_every_public_name_is_in_the_reference() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: nnef_jax\.(\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(
        set(nnef_jax.__all__) - {"__version__", "analysis", "generation", "openvx", "serving"}
    )
    (members,) = re.findall(r"members: \[(.*?)\]", text, re.DOTALL)
    public = [x for x in dir(nnef_jax.Model) if not x.startswith("_")]
    assert sorted(re.findall(r"\w+", members)) == public


def test_a_command_has_the_name_of_the_function_that_does_the_same() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    row = r"^\| \[?`([a-z -]+)`.*? \| (?:`(nnef_jax\.[\w.]+)`|no function) \| (.*) \|$"
    rows = re.findall(row, text, re.MULTILINE)
    helps = {name: help.split("\n")[0] for name, help in _commands(cli.app)}
    assert {command: help for command, _, help in rows} == helps and len(rows) == len(helps)
    functions = {
        f"{room}{name}"
        for room, names in {
            "": nnef_jax.__all__,
            "analysis.": nnef_jax.analysis.__all__,
            "openvx.": nnef_jax.openvx.__all__,
            "serving.": nnef_jax.serving.__all__,
            "Model.": dir(nnef_jax.Model),
            "openvx.Lowered.": dir(nnef_jax.openvx.Lowered),
            "generation.Decoder.": dir(nnef_jax.generation.Decoder),
        }.items()
        for name in names
    }
    for command, name, _ in rows:
        above, _, word = command.rpartition(" ")
        same = {x for x in functions if x.rpartition(".")[2] == word.replace("-", "_")}
        same = {x for x in same if x.startswith("openvx.") or not above}
        assert {name.removeprefix("nnef_jax.")} - {""} == same, command
        assert all(callable(attrgetter(x)(nnef_jax)) for x in same)


def _commands(app: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names of commands with their help."""
    for command in app.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")
        yield above + name, command.help or command.callback.__doc__
    for group in app.registered_groups:
        yield from _commands(group.typer_instance, f"{group.name} ")


def test_pictures_are_small_and_all_are_shown() -> None:
    texts = "".join(p.read_text("utf-8") for p in [DOCS.parent / "README.md", *DOCS.glob("*.md")])
    for path in (DOCS / "pictures").iterdir():
        assert path.stat().st_size < 150_000, f"{path.name} is too large"
        assert f"pictures/{path.name}" in texts, f"no page shows docs/pictures/{path.name}"
        # No request leaves the reader's machine: a picture has no font from elsewhere.
        assert path.suffix != ".svg" or 'url("http' not in path.read_text("utf-8"), path.name
    for name in re.findall(r"pictures/([\w-]+\.\w+)", texts):
        assert (DOCS / "pictures" / name).is_file(), f"there is no docs/pictures/{name}"


def test_means_of_speed_are_those_of_the_rows() -> None:
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    tables = [table.splitlines() for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    cells = [[[x.strip() for x in row.split("|")[1:-1]] for row in table] for table in tables]
    ((_, _, *rows, mean),) = [x for x in cells if x[-1][0].startswith("geometric mean")]
    measured = [row for row in rows if "dense layers" not in row[0]]
    for column, wanted in [(i, x) for i, x in enumerate(mean[1:], 1) if x]:
        values = [float(row[column]) for row in measured if row[column]]
        assert float(wanted) == pytest.approx(geometric_mean(values), abs=0.006)
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    row = next(x for x in readme.splitlines() if x.startswith("| nnef_jax's time"))
    onnxruntime, openvino, _, torch = re.findall(r"\d\.\d+", row)
    means = next(
        rows for rows in cells if rows[0] == ["machine", "onnxruntime", "OpenVINO", "torch"]
    )
    assert [onnxruntime, openvino, torch] in [row[1:] for row in means]


def test_each_promise_of_security_names_a_test_that_is_there() -> None:
    text = (DOCS / "security.md").read_text(encoding="utf-8")
    tests = Path(__file__).resolve().parents[1]
    named = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", text)
    assert len(named) >= 10
    for file, function in named:
        assert f"def {function}(" in (tests / file).read_text(encoding="utf-8"), function
    for module in re.findall(r"`python -m tests\.(\w+)`", text):
        assert (tests / f"{module}.py").is_file()


def test_load_call_and_save_go_the_ways_that_are_written(tmp_path: Path) -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    step = r"^\d+\. `((?:nnef_jax|lowering)[\w.]+)`"
    roads = {
        heading: re.findall(step, section, re.MULTILINE)
        for heading, section in re.findall(
            r"^## The road of a (.+)\n((?:(?!## ).*\n)+)", text, re.M
        )
    }
    # Whoever reads the road of a call opens few files, and comes back to few that were left.
    modules = [
        module
        for module, _ in groupby(re.sub(r"(\.[A-Z]\w+)?\.\w+$", "", x) for x in roads["first call"])
    ]
    assert len(set(modules)) <= 8 and len(modules) - len(set(modules)) <= 2
    net = "version 1.0; graph net(x) -> (y) { x = external(shape = [2]); "
    net += "w = variable(shape = [2], label = 'w'); y = mul(x, w); }"
    x = np.ones(2, np.float32)
    nnef_jax.write_archive(tmp_path / "net.tar", net, {"w": x})
    model = nnef_jax.load(tmp_path / "net.tar")
    done: dict[str, Callable[[], object]] = {
        "load": lambda: nnef_jax.load(tmp_path / "net.tar"),
        "first call": lambda: model(x),
        "save": lambda: model.save(tmp_path / "saved.tar"),
    }
    assert done.keys() == roads.keys() and all(map(len, roads.values()))
    for heading, run in done.items():
        entered = iter(functions_entered(run))
        road = roads[heading]
        assert [name for name in road if name in entered] == road


def functions_entered(run: Callable[[], object]) -> list[str]:
    """The functions that are entered in a run, in order."""
    entered: list[str] = []

    def enter(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            entered.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}")

    sys.setprofile(enter)
    try:
        run()
    finally:
        sys.setprofile(None)
    return entered
