"""The server as a process, and hostile clients: each gets an HTTP error, the others an answer."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from tests.cli_support import call, fails
from tests.serving.server_support import Client, served, serving, until
from tests.serving.test_serving import Slow

_DIGITS = Path("examples/digits/model")
_BODY = 1 << 20


class Process:
    """`nnef-jax serve` on the digits and two other networks, with a line for each request."""

    def __init__(self, folder: Path) -> None:
        text = "extension KHR_enable_operator_expressions; graph g(x) -> (y)"
        text += " { x = external(shape = [0, 0]); y = 2.0 * x; }"
        for name in ("one", "two"):
            (folder / name).mkdir()
            (folder / name / "graph.nnef").write_text(f"version 1.0; {text}")
        networks = [f"digits={_DIGITS}", *(f"{x}={folder / x}" for x in ("one", "two"))]
        told = [sys.executable, "-m", "nnef_jax", "serve", *networks, "--port", "0"]
        told += ["--sizes", "1,4", "--timeout", "1", "--body", str(_BODY), "--no-cache"]
        told += ["--shape", "one:x=?,3", "--shape", "two:x=?,4", "--log-level", "info"]
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(told, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening at http://127\.0\.0\.1:(\d+): [\w, ]+\n", line)
        assert found, line
        self.client = Client(int(found[1]))
        assert self.process.stdout.readline() == "ready\n"

    @property
    def memory(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    server = Process(tmp_path_factory.mktemp("server"))
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.communicate(timeout=20)


@pytest.fixture(autouse=True)
def answers_others(server: Process) -> Iterator[None]:
    yield
    x = np.zeros((1, 1, 8, 8)).tolist()
    tensor = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": x}
    answer = server.client.post("/v2/models/digits/infer", json.dumps({"inputs": [tensor]}))
    assert answer.status_code == 200, answer.text


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def _told(length: object, *headers: str) -> bytes:
    lines = ["POST /v2/models/digits/infer HTTP/1.1", "Host: x", *headers]
    lines += [f"Content-Length: {length}"] if length is not None else []
    return "\r\n".join([*lines, "", ""]).encode()


def _received(connection: socket.socket) -> bytes:
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


def test_rows_by_tritonclient(server: Process) -> None:
    triton = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")
    client = triton.InferenceServerClient(f"127.0.0.1:{server.client.port}")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("digits")
    metadata = client.get_model_metadata("digits")
    assert metadata["outputs"] == [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]}]
    x = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    wanted = np.asarray(nnef_jax.load(_DIGITS, input_shapes={"image": x.shape})(x))
    for is_binary in (True, False):
        tensor = triton.InferInput("image", x.shape, "FP32")
        tensor.set_data_from_numpy(x, binary_data=is_binary)
        output = triton.InferRequestedOutput("probabilities", binary_data=is_binary)
        found = client.infer("digits", [tensor], outputs=[output], request_id="3")
        assert found.get_response()["id"] == "3"
        np.testing.assert_allclose(found.as_numpy("probabilities"), wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(Exception, match="there is no model 'digit'"):
        client.infer("digit", [tensor])


def test_a_large_body_is_refused_before_it_is_sent(server: Process) -> None:
    with _connected(server.client.port) as connection:
        connection.sendall(_told(1 << 30))
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_large_body_takes_no_memory(server: Process) -> None:
    before = server.memory
    chunk = b"10000\r\n" + bytes(65536) + b"\r\n"
    for head, part in (
        (_told(1 << 30), bytes(65536)),
        (_told(None, "Transfer-Encoding: chunked"), chunk),
    ):
        with _connected(server.client.port) as connection:
            connection.sendall(head)
            sent = 0
            try:
                for _ in range(3200):  # 200 MB
                    sent += connection.send(part)
            except OSError:  # the server does not listen for ever
                assert sent > _BODY
            assert server.memory < before + (50 << 20)


def test_slow_headers_end_the_connection_and_a_slow_body_is_refused(server: Process) -> None:
    with ExitStack() as stack:
        slow = [b"", b"POST /v2/mod", _told(100)[:-2], _told(100) + b"{"]
        connections = [stack.enter_context(_connected(server.client.port)) for _ in slow]
        for connection, sent in zip(connections, slow, strict=True):
            connection.sendall(sent)
        for connection in connections[:3]:
            with suppress(ConnectionResetError):
                assert _received(connection) == b""
        found = _received(connections[3])
    assert found.startswith(b"HTTP/1.1 408 ") and b"did not arrive within 1 s" in found


@pytest.mark.parametrize(
    "sent",
    [
        b"\0" * 100 + b"\r\n\r\n",
        b"POST /v2/models/digits/infer HTTP/9\r\n\r\n",
        _told(None, *(f"X-{i}: {'y' * 1000}" for i in range(200))),
        _told(-1),
        _told("1e9"),
        _told("1" * 5000),
        _told(5, "Content-Length: 6"),
        b"POST " + b"/x" * 50_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(server: Process, sent: bytes) -> None:
    with _connected(server.client.port) as connection:
        connection.sendall(sent)
        assert re.match(rb"HTTP/1.1 4\d\d ", connection.recv(65536))


@pytest.mark.parametrize(
    ("length", "code"), [("5", 400), ("-5", 400), ("1e3", 400), ("9" * 400, 400), ("", 400)]
)
def test_a_wrong_length_of_json_is_refused(server: Process, length: str, code: int) -> None:
    headers = {"Inference-Header-Content-Length": length}
    answer = server.client.post("/v2/models/digits/infer", b"{}", headers)
    assert answer.status_code == code and "the body has 2 bytes" in answer.json()["error"]


def test_bytes_of_requests_are_bounded() -> None:
    limits = serving.ServingLimits(body=4096, memory=8192)
    with served({"digits": Slow()}, limits=limits) as client:
        held = [_connected(client.port) for _ in range(2)]
        for connection in held:
            connection.sendall(_told(4000) + bytes(3900))
        until(lambda: "request_bytes 7800.0" in client.get("/metrics").text)
        answer = client.post("/v2/models/digits/infer", bytes(1000))
        assert answer.status_code == 503
        assert "7800 bytes of requests are in memory" in answer.json()["error"]
        for connection in held:
            connection.close()
        until(lambda: "request_bytes 0.0" in client.get("/metrics").text)


def test_a_stop_answers_what_it_has_accepted() -> None:
    slow = Slow()
    with served({"slow": slow}) as client:
        x = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
        body = json.dumps({"inputs": [x]})
        found: list[Any] = []
        threads = [
            threading.Thread(
                target=lambda: found.append(client.post("/v2/models/slow/infer", body))
            )
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        until(lambda: f"request_bytes {5 * len(body)}.0" in client.get("/metrics").text)
        client.stop()
        time.sleep(0.3)
        slow.free.release(5)
        for thread in threads:
            thread.join(20)
    assert [answer.status_code for answer in found] == [200] * 5
    assert all(answer.headers["Connection"] == "close" for answer in found)


def _requests() -> list[bytes]:
    """What clients send: tensors in JSON and in binary, and what there is to know."""
    x = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    tensor = {"name": "image", "shape": x.shape, "datatype": "FP32"}
    text = json.dumps({"inputs": [{**tensor, "data": x.ravel().tolist()}]}).encode()
    parameters = {"binary_data_size": x.nbytes}
    head = json.dumps({"inputs": [{**tensor, "parameters": parameters}]}).encode()
    length = f"Inference-Header-Content-Length: {len(head)}"
    known = [f"GET /v2{x} HTTP/1.1\r\nHost: x\r\n\r\n" for x in ("/models/digits", "/health/ready")]
    return [
        _told(len(text)) + text,
        _told(len(head) + x.nbytes, length) + head + x.tobytes(),
        *map(str.encode, known),
    ]


def _leave(port: int, chance: random.Random, requests: list[bytes]) -> None:
    """Send a part of a request, or all of it, and go away: at once, or after a while."""
    sent = chance.choice(requests)
    with _connected(port) as connection, suppress(ConnectionError):
        connection.sendall(sent[: chance.choice([chance.randrange(len(sent)), len(sent)])])
        if chance.random() < 0.5:  # the other side is told by a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(chance.choice([0, 0, 0.001, 0.005]))


def _in_haste(port: int, chance: random.Random, requests: list[bytes]) -> None:
    """Send a request and wait for the answer, or for 1 to 30 ms."""
    with _connected(port) as connection, suppress(ConnectionError, TimeoutError):
        connection.settimeout(chance.uniform(0.001, 0.03))
        connection.sendall(chance.choice(requests))
        while connection.recv(65536):
            pass


def _answered(server: Process, id: str = "") -> list[float]:
    """The answer to a request: the same each time, but for what other sizes of batches round."""
    x = np.random.default_rng(1).random((1, 1, 8, 8), np.float32)
    tensor = {"name": "image", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}
    body = json.dumps({"id": id, "inputs": [tensor]})
    answer = server.client.post("/v2/models/digits/infer", body)
    assert answer.status_code == 200
    return answer.json()["outputs"][0]["data"]


def _survives(server: Process, clients: int, hasty: int) -> None:
    """Many clients that leave at any byte, then 16 at once that do not wait."""
    before, requests, port = _answered(server), _requests(), server.client.port
    for i in range(clients):
        _leave(port, random.Random(i), requests)

    def run(number: int) -> None:
        chance = random.Random(f"haste {number}")
        for _ in range(hasty):
            _in_haste(port, chance, requests)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    assert server.process.poll() is None
    np.testing.assert_allclose(_answered(server), before, rtol=1e-5)
    until(lambda: "request_bytes 0.0" in server.client.get("/metrics").text)


def test_clients_may_go_away(server: Process) -> None:
    _survives(server, clients=100, hasty=3)


@pytest.mark.slow
def test_thousands_of_clients_may_go_away(server: Process) -> None:
    _survives(server, clients=2000, hasty=200)


def test_nobody_needs_to_read_what_it_prints_and_a_signal_stops_the_process() -> None:
    """`nnef-jax serve ... | head -1`: it goes on without."""
    told = [sys.executable, "-m", "nnef_jax", "serve", f"digits={_DIGITS}", "--port", "0"]
    told += ["--sizes", "1", "--timeout", "1", "--no-cache"]
    reader, writer = os.pipe()
    process = subprocess.Popen(told, stdout=writer)
    os.close(writer)
    try:
        with os.fdopen(reader) as output:
            port = int(output.readline().split(":")[2])
        client = Client(port)
        until(lambda: client.get("/v2/health/ready").status_code == 200)
        with _connected(port) as idle:
            idle.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert idle.recv(65536).startswith(b"HTTP/1.1 200 ")
            assert process.poll() is None
            process.terminate()
            assert process.wait(20) == -signal.SIGTERM
        with pytest.raises(OSError):
            client.get("/v2")
    finally:
        process.kill()
        process.wait(20)


def test_health_is_answered_while_json_is_read() -> None:
    """Others wait for a fraction of the time that Python's own reader takes at once."""
    numbers = np.random.default_rng(0).random((2, 200_000)).astype(np.float32)
    x = {"name": "x", "shape": numbers.shape, "datatype": "FP32", "data": numbers.tolist()}
    body = json.dumps({"inputs": [x]})
    start = time.monotonic()
    json.loads(body)
    whole = time.monotonic() - start
    slow = Slow()
    slow.free.release(9)
    with served({"slow": slow}) as client:
        # One of ten: the machine itself may have one wait.
        assert any(_longest_wait(client, body) < whole / 2 for _ in range(10))


def _longest_wait(client: Client, body: str) -> float:
    """The longest time between two answers about health while a request is answered."""
    found: list[Any] = []
    send = threading.Thread(target=lambda: found.append(client.post("/v2/models/slow/infer", body)))
    times = [time.monotonic()]
    send.start()
    while send.is_alive():
        assert client.get("/v2/health/live").status_code == 200
        times.append(time.monotonic())
        time.sleep(0.005)
    send.join()
    assert found[0].status_code == 200
    assert len(found[0].json()["outputs"][0]["data"]) == 400_000
    return max(np.diff(times))


def test_a_shape_is_for_one_of_several_networks(server: Process) -> None:
    shapes = {
        name: server.client.get(f"/v2/models/{name}").json()["inputs"][0]["shape"]
        for name in ("digits", "one", "two")
    }
    assert shapes == {"digits": [-1, 1, 8, 8], "one": [-1, 3], "two": [-1, 4]}


def test_a_line_a_request_is_written_where_it_is_asked_for(server: Process) -> None:
    _answered(server, "once")
    line = ' INFO: request model="digits" id="once" status=200 '
    until(lambda: line in server.log.read_text())
    assert server.log.read_text().count("once") == 1


def test_an_address_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = fails("serve", _DIGITS, "--port", str(port))
    assert "already in use" in told and str(port) in told


@pytest.mark.parametrize(
    ("told", "named"),
    [
        (["x=nowhere"], "nowhere"),
        ([str(_DIGITS), str(_DIGITS)], "two networks have the same name"),
        ([str(_DIGITS), "--sizes", "1,x"], "not a list of numbers"),
        ([str(_DIGITS), "--sizes", "0"], "sizes must be"),
        ([str(_DIGITS), "--port", "99999"], "65535"),
    ],
)
def test_wrong_usage_is_told(told: list[str], named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnef_jax.serving.server.listeners", lambda host, port: [])
    code, _, errors = call("serve", *told)
    assert code in (1, 2) and named in errors


def test_it_needs_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "nnef_jax.serving.server")
    told = fails("serve", "examples/digits/model")
    assert "serving needs uvicorn" in told and 'pip install "nnef_jax[serve]"' in told
