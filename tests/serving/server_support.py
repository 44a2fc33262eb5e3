"""A server in a thread of the test, and a client of it."""

from __future__ import annotations

import http.client
import importlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

for _name in ("starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(_name, reason="needs the extra serve")
serving: Any = importlib.import_module("nnef_jax.serving")
_Server: Any = importlib.import_module("nnef_jax.serving.server").Server


class Answer(NamedTuple):
    status_code: int
    headers: Any
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class Client(NamedTuple):
    """Sends each request by a connection of its own, from any thread."""

    port: int
    server: Any = None

    def stop(self) -> None:
        self.server.should_exit = True

    def get(self, path: str) -> Answer:
        return self._sent("GET", path)

    def post(self, path: str, content: Any, headers: dict[str, str] | None = None) -> Answer:
        return self._sent("POST", path, content, headers or {})

    def _sent(self, *request: Any) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(*request)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())
        finally:
            connection.close()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def served(models: Any, *, ready: bool = True, idle: float = 30.0, **options: Any) -> Iterator[Any]:
    """Serve models within the block; yield a client once they are ready."""
    urls: list[str] = []
    server = _Server(serving.app(models, **options), "127.0.0.1", 0, idle, urls.append)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: bool(urls))
        client = Client(int(urls[0].rpartition(":")[2]), server)
        until(lambda: not ready or client.get("/v2/health/ready").status_code == 200)
        yield client
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
