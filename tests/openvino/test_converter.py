"""The process that converts networks, with a package of its own for OpenVINO that misbehaves."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import nnef_jax
from nnef_jax import Limits
from nnef_jax.errors import ArchiveError, InputError, LimitError, NnefError, UnsupportedError
from nnef_jax.formats.openvino import converter
from tests.cli_support import fails
from tests.openvino.documents import Writer

ROOT = Path(__file__).resolve().parents[2]
TFLITE = b"\x1c\0\0\0TFL3 and so on"
GRAPH = b"\x0a\x12\x0a\x01x\x12\x0bPlaceholder"  # a node x of a GraphDef
Fake = Callable[[str], None]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, of this test alone."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


@pytest.fixture
def fake(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """What makes a package `openvino` of the body of its function that reads a network."""

    def make(body: str) -> None:
        write_fake(tmp_path, body)
        monkeypatch.syspath_prepend(tmp_path / "fake")

    return make


def write_fake(folder: Path, body: str) -> None:
    lines = ["import os, signal, sys, time", "class Core:", "  def read_model(self, path):"]
    lines += [f"    {line}" for line in body.splitlines()]
    lines += ["def save_model(model, path, compress_to_fp16):", "    assert not compress_to_fp16"]
    (folder / "fake").mkdir(exist_ok=True)
    (folder / "fake" / "openvino.py").write_text("\n".join(lines))


def net_in(folder: Path, name: str = "net.tflite", data: bytes = TFLITE) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def ir(folder: Path) -> Writer:
    """Write an IR of y = x + w, whose weights are large enough to be mapped."""
    net = Writer()
    x = net.input("x", [512, 1024])
    w = net.constant(np.arange(512 * 1024, dtype=np.float32).reshape(512, 1024), "w")
    net.result(net.layer("Add", [x, w], [[512, 1024]], name="y")).write(folder)
    return net


FAILURES = {
    "crash": ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by Segmentation fault"),
    "abort": ("sys.stderr.write('told so'); sys.stderr.flush(); os.abort()", "ended by Aborted"),
    "hang": ("time.sleep(1000)", "takes more than 1 s; load(..., limits=nnef_jax.Limits(steps="),
    "spin": ("while True: pass", "takes more than 1 s"),
    "memory": ("bytearray(8 << 30)", "MemoryError"),
    "disk": ("open('big', 'wb').write(bytes(3 << 20))", "File too large"),
    "garbage": (
        "os.write(1, bytes(10**6)); os.write(2, b'\\xff\\0' * 10**6); os._exit(3)",
        "\ufffd",
    ),
    "word": ("raise RuntimeError('unknown\\noperator')", "RuntimeError: unknown operator"),
    "status": ("os._exit(5)", "with status 5 and no message"),
    "nothing": ("pass", "with status 0 and no message"),
    "a folder": ("os.mkdir('converted.xml')", "is a folder"),
    "a fifo": ("os.mkfifo('converted.xml')", "is a fifo"),
    "a link": ("os.symlink('/etc/passwd', 'converted.xml')", "outside of the folder"),
}


_MARKS = {"spin": [pytest.mark.slow]}  # ended by the same time-out as "hang"


@pytest.mark.parametrize("name", [pytest.param(x, marks=_MARKS.get(x, [])) for x in FAILURES])
def test_a_converter_that_fails(name: str, fake: Fake, tmp_path: Path, temporary: Path) -> None:
    body, said = FAILURES[name]
    fake(body)
    path = net_in(tmp_path)
    with pytest.raises(ArchiveError) as error:
        steps = 200_000 if "more than 1 s" in said else 10_000_000
        nnef_jax.load(path, limits=Limits(steps=steps, expanded_bytes=2 << 20))
    assert str(path) in error.value.message and said in error.value.message
    assert len(error.value.message) <= 1100
    assert [*temporary.iterdir()] == []


def test_what_it_writes_is_read_as_any_file(fake: Fake, tmp_path: Path, temporary: Path) -> None:
    fake("open('converted.xml', 'w').write('<net>\\n  <layers><layer')")
    path = net_in(tmp_path)
    with pytest.raises(NnefError) as error:
        nnef_jax.load(path)
    assert str(error.value.span).startswith(f"{path}/converted.xml:2:")
    assert [*temporary.iterdir()] == []


def test_all_that_it_started_is_ended(fake: Fake, tmp_path: Path, temporary: Path) -> None:
    fake(
        "child = os.fork()\n"
        "if not child: time.sleep(1000)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child))\n"
        "os._exit(1)"
    )
    with pytest.raises(ArchiveError, match="with status 1"):
        nnef_jax.load(net_in(tmp_path))
    assert ended(int((tmp_path / "pid").read_text()))
    assert [*temporary.iterdir()] == []


def ended(process: int) -> bool:
    """Tell whether a process ends within some seconds; one that nobody waits for has."""
    for _ in range(1000):
        try:
            if ") Z " in Path(f"/proc/{process}/stat").read_text():
                return True
            os.kill(process, 0)
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def killed(number: int, body: str, tmp_path: Path, steps: int = 10_000_000) -> int:
    """Send a signal to a load while the fake converter runs; return the converter's process."""
    started = tmp_path / "pid"
    write_fake(tmp_path, f"open({str(started)!r}, 'w').write(str(os.getpid()))\n{body}")
    (tmp_path / "temporary").mkdir(exist_ok=True)
    paths = [str(tmp_path / "fake"), *map(os.path.abspath, sys.path)]
    given = {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(tmp_path / "temporary")}
    code = (
        f"import sys, nnef_jax; nnef_jax.load(sys.argv[1], limits=nnef_jax.Limits(steps={steps}))"
    )
    if number == signal.SIGINT:
        code = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL);" + code
    command = [sys.executable, "-c", code, str(net_in(tmp_path))]
    parent = subprocess.Popen(command, env=os.environ | given)
    while not (started.exists() and started.read_text()) and parent.poll() is None:
        time.sleep(0.01)
    parent.send_signal(number)
    assert parent.wait() == -number
    return int(started.read_text())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_it_ends_with_the_one_that_asked(number: int, tmp_path: Path) -> None:
    assert ended(killed(number, "time.sleep(1000)", tmp_path))
    assert [*(tmp_path / "temporary").iterdir()] == []


def test_native_code_that_hangs_ends_by_itself(fake: Fake, tmp_path: Path, temporary: Path) -> None:
    hang = "import ctypes; ctypes.PyDLL(None).sleep(1000)"  # and no other thread of Python runs
    assert ended(killed(signal.SIGKILL, hang, tmp_path, 350_000))
    assert len([*temporary.iterdir()]) == 1
    fake("os._exit(1)")
    with pytest.raises(ArchiveError, match="with status 1"):
        nnef_jax.load(net_in(tmp_path))
    assert [*temporary.iterdir()] == []  # the next one removes what was left


def test_files_are_gone_and_weights_are_there(fake: Fake, tmp_path: Path, temporary: Path) -> None:
    net = ir(tmp_path)
    found = f"{str(tmp_path / 'net')!r}"
    fake(
        "import shutil\n"
        f"for end in ('.xml', '.bin'): shutil.copy({found} + end, 'converted' + end)\n"
        f"open({str(tmp_path / 'seen')!r}, 'w').write(repr((path, sorted(os.listdir()))))"
    )
    model = nnef_jax.load(net_in(tmp_path, "--o'\"\n$(x)\u2028.tflite"))
    assert [*temporary.iterdir()] == []
    assert (
        (tmp_path / "seen").read_text() == "('source.tflite', ['converted.bin', "
        "'converted.log', 'converted.xml', 'source.tflite'])"
    )
    assert [x.name for x in model.inputs] == ["x"]
    x = np.ones((512, 1024), np.float32)
    np.testing.assert_array_equal(
        model(x), np.frombuffer(net.data, np.float32).reshape(x.shape) + 1
    )


@pytest.mark.parametrize("kind", ["a file", "bytes", "an open file", "a path of another name"])
def test_sources(kind: str, fake: Fake, tmp_path: Path) -> None:
    fake("raise RuntimeError(path + ' of ' + str(os.path.getsize(path)))")
    path = net_in(tmp_path, "net.pb", GRAPH)
    sources = {"bytes": GRAPH, "an open file": io.BytesIO(GRAPH), "a file": path}
    source = sources.get(kind) or net_in(tmp_path, "renamed", GRAPH)
    with pytest.raises(ArchiveError, match=f"RuntimeError: source.pb of {len(GRAPH)}"):
        nnef_jax.load(source)


@pytest.mark.parametrize("packed", [False, True])
def test_a_saved_model(packed: bool, fake: Fake, tmp_path: Path) -> None:
    fake(
        "raise RuntimeError(sorted(os.path.join(*x) for y in os.walk(path) for x in "
        "[(y[0], z) for z in y[2]]))"
    )
    names = ("saved_model.pb", "variables/variables.index", "variables/variables.data-0-of-1")
    for name in (*names, "assets/words.txt", "variables/other", "notes"):
        (tmp_path / "net" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "net" / name).write_bytes(b"\x08\x01\x12")
    source = tmp_path / "net"
    if packed:
        source = tmp_path / "net.tgz"
        with tarfile.open(source, "w:gz") as file:
            file.add(tmp_path / "net", "net")
    copies = [
        "source/saved_model.pb",
        "source/variables/variables.data-0-of-1",
        "source/variables/variables.index",
    ]
    with pytest.raises(ArchiveError) as error:
        nnef_jax.load(source)
    assert str(copies) in error.value.message
    assert str(source / "saved_model.pb") in error.value.message


def test_links_of_a_saved_model_stay_inside(fake: Fake, tmp_path: Path, temporary: Path) -> None:
    fake("raise RuntimeError(open(path + '/variables/variables.index').read())")
    folder = tmp_path / "net"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"\x08\x01\x12")
    (folder / "text").write_text("inside")
    link = folder / "variables" / "variables.index"
    link.symlink_to("../text")
    with pytest.raises(ArchiveError, match="RuntimeError: inside"):
        nnef_jax.load(folder)
    link.unlink()
    link.symlink_to("/etc/passwd")
    with pytest.raises(ArchiveError, match=r"variables\.index' is a symbolic link that leads out"):
        nnef_jax.load(folder)
    assert [*temporary.iterdir()] == []


def test_a_model_of_paddle_has_its_parameters(fake: Fake, tmp_path: Path) -> None:
    fake("raise RuntimeError(path, open('source.pdiparams').read())")
    net_in(tmp_path, "net.pdiparams", b"numbers")
    with pytest.raises(ArchiveError, match=r"\('source.pdmodel', 'numbers'\)"):
        nnef_jax.load(net_in(tmp_path, "net.pdmodel"))


def test_copies_are_counted(fake: Fake, tmp_path: Path, temporary: Path) -> None:
    fake("os._exit(9)")
    path = net_in(tmp_path)
    os.truncate(path, 1 << 30)  # a hole
    with pytest.raises(LimitError, match=r"net\.tflite: the network takes more than 1048576 bytes"):
        nnef_jax.load(path, limits=Limits(expanded_bytes=1 << 20))
    assert [*temporary.iterdir()] == []


def test_without_limits_there_are_none(fake: Fake, tmp_path: Path) -> None:
    fake("import resource\nraise RuntimeError(resource.getrlimit(resource.RLIMIT_FSIZE))")
    with pytest.raises(ArchiveError, match=r"RuntimeError: \(-1, -1\)"):
        nnef_jax.load(net_in(tmp_path), limits=Limits.unbounded())


def test_without_a_place_for_copies(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("pass")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(ArchiveError, match=r"net\.tflite cannot be converted: No such file"):
        nnef_jax.load(net_in(tmp_path))


def test_weights_elsewhere_are_refused(fake: Fake, tmp_path: Path) -> None:
    fake("pass")
    with pytest.raises(InputError, match="weights= is not for"):
        nnef_jax.load(net_in(tmp_path), weights=b"")


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("net.tflite", TFLITE, "TensorFlow Lite"),
        ("net.pb", GRAPH, "TensorFlow"),
        ("saved_model.pb", b"\x08\x01\x12", "TensorFlow"),
        ("net.pdmodel", b"\x0a\x10", "PaddlePaddle"),
    ],
)
def test_without_the_extra(
    name: str, data: bytes, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converter, "find_spec", lambda name: None)
    path = net_in(tmp_path, name, data)
    said = f"{path} is a network of {kind}, and OpenVINO, which reads it, is not installed"
    assert said in fails("summary", path).replace("\n", " ")
    with pytest.raises(UnsupportedError, match="is not installed") as error:
        nnef_jax.load(tmp_path if name == "saved_model.pb" else path)
    assert error.value.message == said
    assert error.value.hint == 'pip install "nnef_jax[convert]"'


def test_other_formats_do_without_it() -> None:
    code = (
        "import sys, nnef_jax; nnef_jax.load('examples/digits/model');"
        "print([x for x in sys.modules if 'openvino.converter' in x or x == 'openvino'])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr
