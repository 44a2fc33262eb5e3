"""Runs an application on uvicorn, with bounded connections and a stop that loses no request."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette

# When the server stops, each open connection may send one more request within 1 s. The connection
# is closed after the answer.
_DRAIN_SECONDS = 1.0
_MOST_CONNECTIONS = 512  # The server answers at most this many connections at a time.
_BACKLOG = 2048  # This many connections may wait in the system until the server accepts them.


def listeners(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of a host. Raises OSError if an address is in use."""
    flags = {"type": socket.SOCK_STREAM, "flags": socket.AI_PASSIVE}
    family_by_address: dict[Any, int] = {}
    for family, _type, _protocol, _name, address in socket.getaddrinfo(host, port, **flags):
        # An IPv6 address has two more parts, which `create_server` does not need.
        host_and_port = address[:2]
        family_by_address[host_and_port] = family
    return [
        socket.create_server(address, family=family, backlog=_BACKLOG)
        for address, family in family_by_address.items()
    ]


class Server(uvicorn.Server):
    """A server that stops at a signal, after it has answered all requests that it accepted.

    A connection that has no request in progress for `idle` seconds is closed. Its client may send
    slowly, or not at all, or may not read. `listening` is called with the URL.
    """

    def __init__(
        self, app: Starlette, host: str, port: int, idle: float, listening: Callable[[str], None]
    ) -> None:
        # uvicorn can parse requests by h11 or by httptools. Only h11 limits the headers' length.
        config = uvicorn.Config(
            app,
            host,
            port,
            http="h11",
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=int(2 * idle) + 1,
        )
        super().__init__(config)
        self._app = app
        self._idle = idle
        self._listening = listening
        # Maps a connection to a pair: the connection's last request, and the time at which the
        # connection became idle, in seconds by the monotonic clock.
        self._seen: dict[Any, tuple[Any, float]] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and report the URL."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            if ":" in host:
                # In a URL, an IPv6 address is in brackets.
                host = f"[{host}]"
            self._listening(f"http://{host}:{port}")

    async def on_tick(self, counter: int) -> bool:
        """Close connections that have been idle for too long."""
        # uvicorn calls this method ten times a second. Every tenth call closes idle connections.
        if counter % 10 == 0:
            self._close_idle_connections(time.monotonic())
        return await super().on_tick(counter)

    def _close_idle_connections(self, now: float) -> None:
        """Close connections that were idle for `idle` seconds, and note all other connections.

        `now` is the time in seconds, by the monotonic clock.
        """
        seen_before = self._seen
        # The new dict has only connections that are still open.
        self._seen = {}
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            request = connection.cycle
            last_request, idle_since = seen_before.get(connection, (None, now))
            is_busy = request is not None and not request.response_complete
            has_new_request = request is not last_request
            if is_busy or has_new_request:
                idle_since = now
            if now - idle_since > self._idle:
                connection.transport.abort()
            else:
                self._seen[connection] = request, idle_since

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer the requests on open connections, and then close them."""
        for server in self.servers:
            server.close()
        self._app.state.is_draining = True
        end = time.monotonic() + _DRAIN_SECONDS
        while self.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)
