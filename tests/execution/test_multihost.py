"""Two processes as two hosts: `examples/multihost`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import nnef_jax

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "multihost" / "classify.py"
ALIKE = """
import jax, numpy as np, pickle, pytest, sys
import nnef_jax
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from nnef_jax.errors import ArchiveError, InputError
from nnef_jax.storage import joint_writer, writer
from tests.mesh_support import BATCH, WIDTH, assert_close, lstm
port, host = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, host, initialization_timeout=60)
model = lstm()
xs = np.random.default_rng(0).random((3, BATCH, WIDTH), np.float32)
own = np.split(xs, 2, axis=1)[host]
wanted, last = jax.tree.map(np.asarray, model.scan(xs))
mesh = jax.make_mesh((2,), ("data",))
for params in (None, "data"):
    sharded = model.shard(mesh, batch="data", params=params)
    ys, after = sharded.scan(own)
    assert_close(process_allgather((ys, after), tiled=True), (wanted, last))
    y, state = sharded.step(sharded.init_state(), own[0].astype(np.float64))
    assert_close(process_allgather(y, tiled=True), wanted[0])
    state = {label: np.asarray(x) for label, x in model.init_state().items()}
    assert_close(process_allgather(sharded.step(state, own[0])[0], tiled=True), wanted[0])
with pytest.raises(InputError, match=r"over all hosts, the graph declares \\[8,6\\]"):
    sharded(xs[0])
spread = jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), own[0])
with pytest.raises(InputError, match="is on devices of several hosts"):
    model.shard(Mesh(np.array(jax.local_devices()), ("data",)), batch="data")(spread)
assert_close(process_allgather(sharded(spread), tiled=True), wanted[0])
for write in (sharded.export, lambda _: pickle.dumps(sharded)):
    with pytest.raises(InputError, match="process_allgather"):
        write(sys.argv[3])
with pytest.raises(ArchiveError, match="end the path in .tar"):
    sharded.save(sys.argv[3])
path = sys.argv[3] + ".tar"
encoded, most = writer.encode_tensor, []
joint_writer.encode_tensor = writer.encode_tensor = (
    lambda x, **given: most.append(np.shape(x)) or encoded(x, **given)
)
divided = {
    label: jax.make_array_from_process_local_data(
        NamedSharding(mesh, P(None, "data")), np.split(np.asarray(x), 2, axis=1)[host]
    )
    for label, x in model.params.items()
}
sharded.save(path, params=divided)
with pytest.raises((FileExistsError, ArchiveError), match="exists|host 0 failed"):
    sharded.save(path)
assert most and (host == 0 or not {x.shape for x in divided.values()} & {*most})
saved = nnef_jax.load(path)
for label, x in model.params.items():
    np.testing.assert_array_equal(saved.params[label], x)
assert_close(process_allgather(sharded.scan(own)[0], tiled=True), saved.scan(xs)[0])
whole = process_allgather((sharded.params, sharded.init_state()), tiled=True)
if host == 0:
    sharded.save(sys.argv[3], params=whole[0], state=whole[1])
print("alike")
"""


def port() -> str:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return str(found.getsockname()[1])


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(processes: list[subprocess.Popen[str]], within: float) -> list[str]:
    """Return what processes print, which must end in time."""
    stop = time.monotonic() + within
    try:
        return [process.communicate(timeout=stop - time.monotonic())[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_the_example_classifies_as_one_host_does(tmp_path: Path) -> None:
    out, address = tmp_path / "probabilities.npy", f"localhost:{port()}"
    hosts = [start(str(EXAMPLE), address, "2", host, str(out)) for host in "01"]
    for number, printed in enumerate(ended(hosts, 300)):
        assert f"host {number} holds {{" in printed and "'probabilities': (32, 10)" in printed
    assert [host.returncode for host in hosts] == [0, 0]
    images = np.random.default_rng(0).random((64, 1, 8, 8), np.float32)
    model = nnef_jax.load(ROOT / "examples" / "digits" / "model")
    np.testing.assert_allclose(np.load(out), model(images), atol=1e-5)


@pytest.mark.slow
def test_cycles_and_states_on_two_hosts(tmp_path: Path) -> None:
    free = port()
    hosts = [start("-c", ALIKE, free, host, str(tmp_path / "net")) for host in "01"]
    for printed in ended(hosts, 300):
        assert "alike" in printed, printed


@pytest.mark.slow
@pytest.mark.parametrize("comes", (False, True), ids=("missing", "killed"))
def test_a_host_that_is_not_there_ends_the_other(tmp_path: Path, comes: bool) -> None:
    text = EXAMPLE.read_text("utf-8")
    if not comes:
        text = text.replace("initialization_timeout=30", "initialization_timeout=3")
    text = text.replace("heartbeat_timeout_seconds=10", "heartbeat_timeout_seconds=3")
    text = text.replace("Path(__file__).parents[1]", f"Path({str(EXAMPLE.parents[1])!r})")
    dies = "import os\nos._exit(9) if host == 1 else None\nimages = "
    script = tmp_path / "classify.py"
    script.write_text(text.replace("\nimages = ", f"\n{dies}"), encoding="utf-8")
    address = f"localhost:{port()}"
    hosts = [start(str(script), address, "2", host, "out.npy") for host in ("01" if comes else "0")]
    printed = ended(hosts, 120)[0]
    assert hosts[0].returncode != 0
    assert ("task died" if comes else "DEADLINE_EXCEEDED") in printed
