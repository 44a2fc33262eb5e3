"""How the process of a command ends: by signals at any moment, by outputs that take nothing.

`python -m tests.interrupt_cli` sends hundreds of signals at random moments.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tomllib

import pytest

from nnef_jax import cli
from tests.cli_support import call, ok
from tests.interrupt_cli import MODEL, ROOT, commands

COMMANDS = ["check", "summary", "convert", "run", "batch", "compile"]
GUARD = 600  # seconds, against hanging alone

# Sends itself a signal when so many things have happened: imports, opened files and the like, or
# runs of the garbage collector. So a moment is the same one on every machine.
_SIGNALLED = """
import gc, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests were started with
what, number, left = sys.argv.pop(1), int(sys.argv.pop(1)), int(sys.argv.pop(1))
def happened(*_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), number)
from nnef_jax.__main__ import main
sys.addaudithook(happened) if what == "audit" else gc.callbacks.append(happened)
sys.exit(main())
"""


def python(code, *args, **options):
    """Run code in a process: exit code, stdout, stderr."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=GUARD,
        **options,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_installed_command_is_that_process():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"nnef-jax": "nnef_jax.__main__:main"}


# Signals


@pytest.mark.slow
@pytest.mark.parametrize("what, left", [("audit", 3000), ("gc", 100)])
@pytest.mark.parametrize("command", COMMANDS)
def test_signals_end_a_command_at_once(tmp_path, command, what, left):
    number = signal.SIGINT if what == "gc" or command in ("check", "run") else signal.SIGTERM
    ended = python(_SIGNALLED, what, int(number), left, *commands(tmp_path)[command])
    assert ended == (-number, "", "")


@pytest.mark.parametrize(
    "left", [10, 300, 6000, *(pytest.param(x, marks=pytest.mark.slow) for x in (1, 100, 1000))]
)
def test_an_interrupt_ends_imports_and_reading(left):
    ended = python(_SIGNALLED, "audit", int(signal.SIGINT), left, "check", MODEL)
    assert ended == (-signal.SIGINT, "", "")


def test_an_ignored_interrupt_stays_ignored():
    """So shells start commands in the background."""
    code = _SIGNALLED.replace("signal.default_int_handler", "signal.SIG_IGN")
    ended = python(code, "audit", int(signal.SIGINT), 20, "--version")
    assert ended == (0, ok("--version"), "")


def test_a_function_call_leaves_signals_alone():
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGPIPE]
    before = [signal.getsignal(number) for number in numbers]
    ok("check", MODEL)
    assert [signal.getsignal(number) for number in numbers] == before


def test_an_interrupt_of_a_function_call_is_a_status(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("nnef_jax.reading.read.read", interrupted)
    assert call("check", MODEL) == (130, "", "")


# Outputs that are closed or full


def shell(line, *args):
    """Run `nnef-jax ARGS` with the redirections of a shell: exit code, stdout, stderr."""
    program = [sys.executable, "-m", "nnef_jax", *map(str, args)]
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; "$@" {line}', "bash", *program],
        capture_output=True,
        text=True,
        timeout=GUARD,
    )
    return done.returncode, done.stdout, done.stderr


@contextlib.contextmanager
def nobody_reads():
    """The writing end of a pipe whose reading end is closed."""
    read, written = os.pipe()
    os.close(read)
    try:
        yield written
    finally:
        os.close(written)


@pytest.mark.slow
@pytest.mark.parametrize("command", [*COMMANDS, "--version"])
def test_output_that_cannot_be_written(tmp_path, command):
    args = commands(tmp_path).get(command, [command])
    wanted = "error: standard output: Bad file descriptor\n"
    assert shell(">&-", *args) == (1, "", wanted)
    with nobody_reads() as written:
        program = [sys.executable, "-m", "nnef_jax", *args]
        done = subprocess.run(program, stdout=written, stderr=subprocess.PIPE, timeout=GUARD)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["check", "--version"])
def test_output_without_room(tmp_path, command):
    args = commands(tmp_path).get(command, [command])
    wanted = "error: standard output: No space left on device\n"
    assert shell(">/dev/full", *args) == (1, "", wanted)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_stderr_that_is_closed(tmp_path, command):
    code, out, err = shell("2>&-", *commands(tmp_path)[command])
    assert (code, err) == (0, "") and out


@pytest.mark.slow
@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full", ">&- 2>&-", "<&- >&- 2>&-"])
def test_the_status_tells_where_messages_cannot(tmp_path, redirected):
    assert shell(redirected, "check", tmp_path / "none") == (1, "", "")


def test_wrong_usage_without_stderr():
    assert shell("2>&-", "nonsense") == (2, "", "")


def test_a_reader_that_leaves_early(tmp_path):
    nodes = "".join(f"    y{i + 1} = neg(y{i});\n" for i in range(3000))
    text = f"graph g(y0) -> (y3000) {{\n    y0 = external(shape = [1]);\n{nodes}}}"
    (tmp_path / "graph.nnef").write_text(f"version 1.0;\n{text}\n")
    code, out, err = shell("| head -c 9", "convert", tmp_path, "--flat")
    assert (code, out, err) == (128 + signal.SIGPIPE, "version 1", "")


@pytest.mark.parametrize(
    "closed",
    ["2>&-", "<&- >&- 2>&-", *(pytest.param(x, marks=pytest.mark.slow) for x in ("<&-", ">&-"))],
)
def test_a_file_never_takes_the_place_of_a_closed_stream(tmp_path, closed):
    """What a library writes to descriptor 2 would go into that file."""
    code = (
        "import os, sys\nfrom nnef_jax.__main__ import main\nsys.argv[1:] = ['--version']\n"
        f"main(); file = open({str(tmp_path / 'file')!r}, 'w'); file.write(str(file.fileno()))"
    )
    subprocess.run(
        ["bash", "-c", f'"$@" {closed}', "bash", sys.executable, "-c", code], timeout=GUARD
    )
    assert int((tmp_path / "file").read_text()) > 2


def test_a_function_call_needs_no_stderr(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["check", str(MODEL)]) == 0
    assert cli.main(["check", str(MODEL / "none")]) == 1
