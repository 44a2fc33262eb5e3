"""The command line: starting it, `summary`, `check`, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading

import pytest

import nnef_jax
import nnef_jax.reading.read
from nnef_jax import cli
from tests.cli_support import call, fails, linear_scores, ok, write


@pytest.fixture
def scores(tmp_path):
    return linear_scores(tmp_path / "scores")


# Starting


def python(code, *, check=True, **options):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=check,
        timeout=600,
        **options,
    )


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_help_and_version_import_little(option):
    done = python(
        "import sys\n"
        "from nnef_jax.cli import main\n"
        f"assert main(['{option}']) == 0\n"
        "heavy = {'jax', 'jaxlib', 'numpy', 'lark', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    assert done.stderr == ""
    if option == "--version":
        assert done.stdout == f"nnef-jax {nnef_jax.__version__}\n"
    else:
        assert all(command in done.stdout for command in ("summary", "check", "run"))


@pytest.mark.parametrize(
    ("command", "neighbours"),
    [
        ("check", ["summary", "compare", "diff"]),
        ("compare", ["diff"]),
        ("diff", ["compare"]),
        ("weight-statistics", ["activation-statistics"]),
        ("activation-statistics", ["weight-statistics"]),
    ],
)
def test_help_says_in_a_line_what_is_done_and_names_the_neighbour(command, neighbours):
    (line,) = re.findall(rf"^  {command} +(.*)$", ok("--help"), re.MULTILINE)
    text = ok(command, "--help")
    assert line.endswith(".") and not line.endswith("...")
    assert line in text and all(f"`{name}`" in text for name in neighbours)


@pytest.mark.parametrize("group", [[], ["openvx"]])
def test_help_says_in_a_line_what_each_command_does(group):
    commands = ok(*group, "--help").split("Commands:")[1]
    lines = re.findall(r"^  [a-z-]+ +(.*)$", commands, re.MULTILINE)
    assert len(lines) >= 3
    assert all(line.endswith(".") and not line.endswith("...") for line in lines), lines


def test_module_runs(scores):
    done = subprocess.run(
        [sys.executable, "-m", "nnef_jax", "check", scores],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok: ")


@pytest.mark.parametrize(
    "args", [["nonsense"], ["run"], ["summary", "--nonsense"], ["run", "m", "--top", "0"]]
)
def test_wrong_usage(args):
    code, out, err = call(*args)
    assert (code, out) == (2, "")
    assert "Usage: nnef-jax" in err


def test_a_choice_that_there_is_not():
    code, out, err = call("cost", "m", "--platform", "gpu")
    assert (code, out) == (2, "")
    assert "'--platform': 'gpu' is not one of 'cpu', 'cuda', 'rocm', 'tpu'" in err


@pytest.mark.parametrize(
    ("command", "names"),
    [("convert", "{SOURCE} [OUTPUT]"), ("compare", "{A} {B}"), ("diff", "{A} {B}")],
)
def test_help_names_arguments_in_capitals(command, names):
    usage = ok(command, "--help").splitlines()[0]
    assert names in usage or re.sub("[{}]", "", names) in usage  # as an earlier typer writes them


# info and check


def test_info(scores):
    out = ok("summary", scores)
    lines = [line.split() for line in out.splitlines()]
    assert ["name", "scores"] in lines
    assert ["dialect", "NNEF", "1.0"] in lines
    assert ["input", "x:", "float32[?,4]"] in lines
    assert ["output", "y:", "float32[?,3]"] in lines
    assert ["operations", "1"] in lines
    assert ["parameters", "15"] in lines
    assert ["weight", "bytes", "60"] in lines
    assert any(line[:3] == ["y", "linear", "[?,3]"] for line in lines)


def test_info_as_json(scores):
    found = json.loads(ok("summary", scores, "--json"))
    assert found["name"] == "scores"
    assert found["dialect"] == "NNEF 1.0"
    assert found["inputs"] == [{"name": "x", "shape": [None, 4], "dtype": "float32"}]
    assert found["outputs"] == [{"name": "y", "shape": [None, 3], "dtype": "float32"}]
    counts = {"operations": 1, "variables": 2, "parameters": 15, "unused_parameters": 0}
    assert found["counts"] == counts | {"state": 0, "weight_bytes": 60, "multiply_adds": 12}
    assert [o["kind"] for o in found["operations"]] == ["linear"]
    assert found["operations"][0]["multiply_adds"] == 12  # for one item of the open batch
    assert {v["label"] for v in found["variables"]} == {"dense/filter", "bias"}
    assert found == nnef_jax.load(scores).summary().to_dict()


def test_info_names_the_provisional_dialect(tmp_path):
    text = "version 1.0\ngraph g(x) -> (y) { x = external(shape = [1, 2]); y = relu(x); }"
    assert "NNEF 1.0 provisional" in ok("summary", write(tmp_path / "m", text))


def test_info_keeps_long_names(tmp_path):
    name = "layer_" * 40
    text = f"version 1.0; graph g(x) -> ({name}) {{ x = external(shape = [1]); {name} = relu(x); }}"
    out = ok("summary", write(tmp_path / "m", text))
    assert "…" not in out
    assert out.replace("\n", "").replace(" ", "").count("layer_") >= 40


def test_check(scores):
    assert ok("check", scores) == f"ok: {scores}: scores, NNEF 1.0, 1 operations, 2 variables\n"


def test_check_shows_all_errors(tmp_path):
    rows = "".join(f"    y{i} = nothing{i}(x);\n" for i in range(30))
    text = f"version 1.0;\ngraph g(x) -> (y0) {{\n    x = external(shape = [1]);\n{rows}}}"
    folder = write(tmp_path / "m", text)
    err = fails("check", folder)
    assert err.count("error: ") == 30
    for i in range(30):
        assert f"graph.nnef:{4 + i}:" in err
        assert f"    y{i} = nothing{i}(x);\n" in err


def test_errors_are_neither_wrapped_nor_markup(tmp_path):
    row = "    y = [bold]nothing[/bold](x, " + "x, " * 18 + "x);"
    text = f"version 1.0;\ngraph g(x) -> (y) {{\n    x = external(shape = [1]);\n{row}\n}}"
    err = fails("check", write(tmp_path / "m", text))
    assert row in err
    assert re.search(r"^ +\^", err, re.MULTILINE)


def test_check_finds_missing_data(scores):
    (scores / "bias.dat").unlink()
    (scores / "dense/filter.dat").write_bytes(b"no tensor")
    err = fails("check", scores)
    assert err.count("error: ") == 2
    assert "bias.dat" in err and "dense/filter.dat" in err


def test_the_head_of_a_summary_has_two_columns():
    head = ok("summary", "docs/tutorial/digits.nnef.tgz").split("\n\n")[0].splitlines()
    assert "unused parameters  1" in head
    assert {line[18:19] for line in head} == {" "} and all(line[19] != " " for line in head)


@pytest.mark.parametrize("command", ["summary", "check", "run"])
def test_missing_source(command, tmp_path):
    err = fails(command, tmp_path / "none")
    assert err == f"error: {tmp_path / 'none'}: No such file or directory\n"


def test_broken_archive(tmp_path):
    (tmp_path / "m.tgz").write_bytes(b"\x1f\x8b\x08 no archive")
    assert "m.tgz" in fails("summary", tmp_path / "m.tgz")


def test_names_in_errors_hold_no_escapes(tmp_path):
    assert r"none\u001b[31m" in fails("check", tmp_path / "none\x1b[31m")


# Endings


def test_other_exceptions_pass_through(scores, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(nnef_jax.reading.read, "read", broken)
    with pytest.raises(ZeroDivisionError, match="a fault of ours"):
        cli.main(["check", str(scores)])


def on_a_terminal(code, **environment):
    """Run code with stderr on a terminal: exit code, stdout, stderr."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    chunks = []

    def drain():
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while chunk := os.read(ours, 4096):
                chunks.append(chunk)

    reader = threading.Thread(target=drain)
    reader.start()
    plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=600,
        env=plain | {"TERM": "xterm"} | environment,
    )
    os.close(theirs)
    reader.join()
    os.close(ours)
    return done.returncode, done.stdout.decode(), b"".join(chunks).decode()


SPINNER = {  # when it is drawn, whatever the speed of the machine
    "at once": "class Timer(threading.Timer):\n    start = lambda self: self.function()\n"
    "    join = lambda self: None\nthreading.Timer = Timer\n",
    "never": "cli.terminal.STATUS_AFTER = 3600\n",
}


def main_on_a_terminal(drawn, *args, **environment):
    return on_a_terminal(
        f"import sys, threading\nfrom nnef_jax import cli\n{SPINNER[drawn]}"
        f"sys.exit(cli.main({list(map(str, args))!r}))",
        **environment,
    )


def test_spinner_on_a_terminal(scores):
    code, out, err = main_on_a_terminal("at once", "check", scores)
    assert code == 0
    assert out.startswith("ok: ") and "\x1b" not in out
    assert "reading" in err
    assert "\x1b[?25" not in err  # the cursor stays: a signal may leave things as they are


@pytest.mark.slow
def test_a_short_command_has_no_spinner(scores):
    code, _, err = main_on_a_terminal("never", "check", scores)
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    "no_color, drawn",
    [
        (False, "never"),
        (True, "at once"),
        pytest.param(True, "never", marks=pytest.mark.slow),
        pytest.param(False, "at once", marks=pytest.mark.slow),
    ],
)
def test_errors_on_a_terminal(tmp_path, no_color, drawn):
    environment = {"NO_COLOR": "1"} if no_color else {}
    code, out, err = main_on_a_terminal(drawn, "check", tmp_path, **environment)
    assert (code, out) == (1, "")
    assert ("reading" in err) == (drawn == "at once")
    assert ("\x1b[31m\x1b[1merror:\x1b[0m" in err) != no_color
    assert "has no graph.nnef" in err[err.rindex("error:") :]
