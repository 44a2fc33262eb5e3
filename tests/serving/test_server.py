"""The server as a process, and hostile clients: each gets an HTTP error, the others an answer."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from tests.cli_support import fails
from tests.serving.server_support import Client, served, serving, until
from tests.serving.test_serving import Slow

_DIGITS = Path("examples/digits/model")
_BODY = 1 << 20


class Process:
    """`nnef-jax serve` on the digits."""

    def __init__(self) -> None:
        told = [sys.executable, "-m", "nnef_jax", "serve", f"digits={_DIGITS}", "--port", "0"]
        told += ["--sizes", "1,4", "--timeout", "1", "--body", str(_BODY), "--no-cache"]
        self.process = subprocess.Popen(told, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening at http://127\.0\.0\.1:(\d+): digits\n", line)
        assert found, line
        self.client = Client(int(found[1]))
        assert self.process.stdout.readline() == "ready\n"

    @property
    def memory(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.findall(r"VmRSS:\s+(\d+)", status)[0])

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        with self.process:
            return self.process.wait(20)


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    server = Process()
    try:
        yield server
    finally:
        server.stop()


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


@pytest.mark.parametrize("sent", [b"", b"POST /v2/mod", _told(100)[:-2]])
def test_slow_headers_end_the_connection(server: Process, sent: bytes) -> None:
    with _connected(server.client.port) as connection:
        connection.sendall(sent)
        with suppress(ConnectionResetError):
            assert _received(connection) == b""


def test_a_slow_body_is_refused(server: Process) -> None:
    with _connected(server.client.port) as connection:
        connection.sendall(_told(100))
        connection.sendall(b"{")
        found = _received(connection)
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


def test_a_signal_stops_the_process() -> None:
    server = Process()
    with _connected(server.client.port) as idle:
        idle.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert server.stop() == -signal.SIGTERM
    with pytest.raises(OSError):
        server.client.get("/v2")


@pytest.mark.parametrize(
    ("told", "named"),
    [
        (["x=nowhere"], "nowhere"),
        ([str(_DIGITS), str(_DIGITS)], "two networks have the same name"),
        ([str(_DIGITS), "--sizes", "1,x"], "no numbers"),
        ([str(_DIGITS), "--sizes", "0"], "sizes must be"),
        ([str(_DIGITS), "--port", "99999"], "65535"),
    ],
)
def test_wrong_usage_is_told(told: list[str], named: str) -> None:
    run = [sys.executable, "-m", "nnef_jax", "serve", *told]
    found = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert found.returncode in (1, 2) and named in found.stderr


def test_it_needs_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "nnef_jax.serving.server")
    told = fails("serve", "examples/digits/model")
    assert "serving needs uvicorn" in told and 'pip install "nnef_jax[serve]"' in told
