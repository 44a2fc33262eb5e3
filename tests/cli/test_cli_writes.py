"""What commands write replaces nothing unasked, no input at all, and is never half there."""

from __future__ import annotations

import errno
import os
from inspect import signature
from pathlib import Path
from types import NoneType
from typing import get_args

import numpy as np
import pytest

import nnef_jax
from nnef_jax.cli import app
from tests.cli_support import call, fails, linear_scores, ok

# All that writes, by command and parameter: arguments before the path, and its endings, "" for a
# folder. {net} is a network, {x} an input of it.
_RUN = "run {net} {x} --no-cache -o", (".npz", ".npy", ".dat", "")
_OPENVX = "--shape x=2,4"
WRITES = {
    ("convert", "output"): ("convert {net}", (".tar", ".tgz", "")),
    ("run", "output"): _RUN,
    ("export", "output"): ("export {net} --platforms cpu -o", (".npz",)),
    ("view", "output"): ("view {net} -o", (".html",)),
    ("compare", "plot"): ("compare {net} {net} {x} --plot", (".png",)),
    ("weight-statistics", "plot"): ("weight-statistics {net} --plot", (".svg",)),
    ("activation-statistics", "plot"): ("activation-statistics {net} {x} --plot", (".png",)),
    ("profile", "plot"): ("profile {net} {x} --calls 1 --plot", (".png",)),
    ("profile", "trace"): ("profile {net} {x} --calls 1 --trace", (".json", ".json.gz")),
    ("benchmark", "plot"): ("benchmark {net} {x} --rounds 1 --seconds 0 --plot", (".png",)),
    ("openvx run", "output"): (f"openvx run {{net}} {{x}} {_OPENVX} -o", (".npz", "")),
    ("openvx stats", "plot"): (f"openvx stats {{net}} {{x}} {_OPENVX} --plot", (".pdf",)),
}
# Folders of our own, which take no --overwrite, and have tests of their own below.
FOLDERS = {(name, "cache_dir") for name in ("run", "batch", "compile", "serve", "generate")}
FOLDERS |= {("batch", "out")}
READS = {"source", "inputs", "weights", "listed", "labels", "onnx", "profile", "compare", "a", "b"}
READS |= {"sources", "tokenizer"}
TEXTS = {
    "topology",
    "mesh",
    "batch_axis",
    "params_axis",
    "shapes",
    "values",
    "mean",
    "scale",
    "dialect",
    "names",
    "platforms",
    "batch",
    "batches",
}
TEXTS |= {"prompt", "tokens", "system", "stop"}
TEXTS |= {"constraints", "print_after", "host", "sizes", "shard", "name"}
CASES = [(command, end) for command, ends in WRITES.values() for end in ends]
# One case of each function that writes; the others are slow where they compute.
_WRITERS = [("convert", ""), ("convert", ".tgz"), ("run", ".npz"), ("run", ""), ("export", ".npz")]
_WRITERS += [("view", ".html"), ("weight-statistics", ".svg"), ("profile", ".json.gz")]
WRITERS = [
    case
    if (case[0].split()[0], case[1]) in _WRITERS
    else pytest.param(*case, marks=pytest.mark.slow)
    for case in CASES
]


def parameters(commands, above=""):
    """The parameters of all commands that take a path or a text, with their command."""
    for group in commands.registered_groups:
        yield from parameters(group.typer_instance, f"{group.name} ")
    for command in commands.registered_commands:
        function = command.callback
        for name, parameter in signature(function, eval_str=True).parameters.items():
            if type_of_items(get_args(parameter.annotation)[0]) in (Path, str):
                yield above + (command.name or function.__name__.replace("_", "-")), name


def type_of_items(type):
    """The type without None and lists, that of `list[str] | None` being str."""
    others = [x for x in get_args(type) if x is not NoneType]
    return type_of_items(others[0]) if len(others) == 1 else type


def test_the_walk_has_all_that_writes():
    found = set(parameters(app))
    unknown = {(c, name) for c, name in found if name not in TEXTS and name not in READS}
    # `profile` and `compare` are files that `view` reads, and commands.
    assert unknown == set(WRITES) | FOLDERS
    assert {command for command, _ in found} >= {command for command, _ in WRITES}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    linear_scores(Path("net"))
    np.save("x.npy", np.float32([[1, 2, 3, 4], [4, -3, 2, -1]]))
    Path("out").mkdir()


def line(command, target, *options):
    return [*command.format(net="net", x="x=x.npy").split(), str(target), *options]


def tree(folder="."):
    """All that is there: bytes of files, targets of links, None for folders."""
    return {
        str(path): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in Path(folder).rglob("*")
    }


def something(target):
    """What a command of this ending may replace: a file, or a folder with a network or results."""
    if target.suffix:
        target.write_bytes(b"precious")
    else:
        target.mkdir()
        (target / "y.dat").write_bytes(b"precious")


@pytest.mark.parametrize("command, end", CASES)
def test_what_exists_stays_unless_told_otherwise(command, end):
    target = Path(f"out/it{end}")
    something(target)
    before = tree()
    assert "exists already (--overwrite replaces it" in fails(*line(command, target))
    assert tree() == before
    if not end and not command.startswith(("run", "openvx")):
        nnef_jax.convert("net", "out/other")  # a network is replaced by another alone
        target = Path("out/other")
    ok(*line(command, target, "--overwrite"))
    after = tree()
    assert {name for name in after if not name.startswith("out")} == {
        name for name in before if not name.startswith("out")
    }
    assert b"precious" not in [after.get(str(target)), after.get(f"{target}/y.dat")]


@pytest.mark.parametrize("command, end", WRITERS)
def test_a_link_is_replaced_itself(command, end):
    Path("precious").write_bytes(b"precious")
    target = Path(f"out/it{end}")
    if not end:
        Path("elsewhere").mkdir()
        Path("elsewhere/precious").write_bytes(b"precious")
    target.symlink_to(Path("precious" if end else "elsewhere").absolute())
    before = tree()
    assert "exists already" in fails(*line(command, target))
    assert tree() == before
    ok(*line(command, target, "--overwrite"))
    assert not target.is_symlink()
    after = tree()
    assert {k: after[k] for k in before if "precious" in k} == {
        k: v for k, v in before.items() if "precious" in k
    }


def same_file(end, kind):
    """A path of this ending that is an input of all commands: a file of the network."""
    target, source = Path(f"out/it{end}"), Path("net/dense/filter.dat")
    if kind == "hard link":
        os.link(source, target)
    elif kind == "link":
        target.symlink_to(source.absolute())
    else:  # the file itself, which the network has by a link
        target = Path(f"out/../net/it{end}")
        os.rename(source, target)
        source.symlink_to(Path("..") / target.name)
    return target


FILES = [(c, end) for c, end in CASES if end]


@pytest.mark.parametrize(
    "command, end, kind",
    [
        *((*case, "hard link") for case in FILES),
        *(
            (*case, kind)
            for case in FILES
            if case[1] in (".tgz", ".npy")
            for kind in ("link", "file")
        ),
    ],
)
def test_an_input_is_never_replaced(command, end, kind):
    target = same_file(end, kind)
    before = tree()
    assert "is read by the same command, and is not replaced" in fails(
        *line(command, target, "--overwrite")
    )
    assert tree() == before


FOLDER_CASES = [c for c, end in CASES if not end]


@pytest.mark.parametrize("command", FOLDER_CASES)
@pytest.mark.parametrize("spelling", ["net", "out/../net/", "link", "."])
def test_a_folder_with_an_input_is_never_replaced(command, spelling):
    Path("link").symlink_to("net")
    before = tree()
    for options in ((), ("--overwrite",)) if spelling != "link" else ((),):
        fails(*line(command, spelling, *options))
        assert tree() == before


@pytest.mark.parametrize("command", [c for c in FOLDER_CASES if "{x}" in c])
def test_a_folder_of_results_that_is_an_input(command):
    Path("results").mkdir()
    nnef_jax.write_tensor("results/y.dat", np.load("x.npy"))
    before = tree()
    command = command.replace("{x}", "x=results/y.dat")
    assert "is read by the same command" in fails(*line(command, "results", "--overwrite"))
    assert tree() == before


def test_an_output_of_a_labels_name_does_not_replace_weights():
    text = Path("net/graph.nnef").read_text()
    Path("net/graph.nnef").write_text(text.replace("(y)", "(bias2)").replace("y =", "bias2 ="))
    Path("net/graph.nnef").write_text(
        Path("net/graph.nnef").read_text().replace("'bias'", "'bias2'")
    )
    os.rename("net/bias.dat", "net/bias2.dat")
    before = tree()
    for target in ("net", "net/bias2.dat", "out/../net/bias2.dat"):
        for options in ((), ("--overwrite",)):
            fails("run", "net", "x.npy", "--no-cache", "-o", target, *options)
            assert tree() == before


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("command, end", WRITERS)
def test_a_failure_midway_leaves_what_was_there(monkeypatch, command, end, existing):
    target = Path(f"out/it{end}")
    if existing and not end and not command.startswith(("run", "openvx")):
        nnef_jax.convert("net", target)
    elif existing:
        something(target)
    before = tree()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in fails(*line(command, target, "--overwrite"))
    assert tree() == before


def test_results_go_into_an_empty_folder_and_replace_only_their_own():
    ok(*line(_RUN[0], "out"))
    before = tree()
    assert "exists already" in fails(*line(_RUN[0], "out"))
    ok(*line(_RUN[0], "out", "--overwrite"))
    assert tree() == before
    Path("out/thesis.txt").write_text("mine")
    before = tree()
    assert "holds 'thesis.txt'" in fails(*line(_RUN[0], "out", "--overwrite"))
    assert tree() == before


def test_results_that_are_to_replace_a_file_say_what_files_they_are():
    Path("thesis").write_text("mine")
    assert "hint: a file of outputs is a .npz, .npy or .dat" in fails(*line(_RUN[0], "thesis"))
    assert Path("thesis").read_text() == "mine"


def test_other_files_that_a_command_reads_stay():
    Path("labels.png").write_text("a\nb\nc\n")
    Path("profile.html").write_text('{"operations": [{"name": "y", "seconds": 1}]}')
    before = tree()
    for command in (
        "run net x.npy --no-cache --top 1 --labels labels.png -o labels.npz",
        "view net --profile profile.html -o profile.html",
    ):
        if command.startswith("run"):
            os.link("labels.png", "labels.npz")
            before = tree()
        told = fails(*command.split(), "--overwrite")
        assert "is read by the same command, and is not replaced" in told
        assert tree() == before


def test_a_batch_spares_what_is_no_result_of_its_own():
    Path("data").mkdir()
    np.save("data/0.npy", np.zeros(4, np.float32))
    Path("mine").mkdir()
    Path("mine/part-00000.npz").write_bytes(b"precious")
    Path("link").symlink_to("mine")
    before = tree()
    for target in ("net", "net/", "data", "mine", "link", "x.npy"):
        fails("batch", "net", "data/0.npy", "--no-cache", "-o", target)
        assert tree() == before
    Path("alias").symlink_to("results")
    Path("results").mkdir()
    ok("batch", "net", "data", "--no-cache", "-o", "results")
    before = tree()
    assert "in the output folder" in fails(
        "batch", "net", "alias/part-00000.npz", "--no-cache", "-o", "results"
    )
    Path("results/list").write_text("data/0.npy\n")
    assert "in the output folder" in fails(
        "batch", "net", "--list", "alias/list", "--no-cache", "-o", "results"
    )
    os.unlink("results/list")
    assert tree() == before


@pytest.mark.parametrize("command", ["run net x.npy", "compile net --shape x=2,4"])
def test_a_cache_replaces_nothing_of_others(command):
    before = tree()
    assert call(*command.split(), "--cache-dir", "net")[0] == 0
    assert {name: content for name, content in tree().items() if name in before} == before


def test_functions_spare_their_source():
    before = tree()
    with pytest.raises(FileExistsError, match="read by the same"):
        nnef_jax.convert("net", "net", flat=True, overwrite=True)
    with pytest.raises(FileExistsError, match="read by the same"):
        nnef_jax.view("net", "net/graph.nnef", overwrite=True)
    assert tree() == before
    model = nnef_jax.load("net")
    Path("trace.json").write_text("mine")
    with pytest.raises(FileExistsError, match="exists already"):
        nnef_jax.profile(model, np.load("x.npy"), calls=1, trace="trace.json")
    with pytest.raises(FileExistsError, match="exists already"):
        nnef_jax.write_tensor("net/bias.dat", np.zeros(3, np.float32), overwrite=False)
    assert {k: v for k, v in tree().items() if k in before} == before
    assert Path("trace.json").read_text() == "mine"
    model.save("net", overwrite=True)  # a model may take the place of what it was loaded from
