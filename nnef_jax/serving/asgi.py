"""Implements the ASGI application: routes, bodies of limited size, and errors as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nnef_jax import __version__
from nnef_jax.errors import NnefError
from nnef_jax.formats.base import Progress
from nnef_jax.model import Model
from nnef_jax.serving import protocol
from nnef_jax.serving.bounds import ServingLimits
from nnef_jax.serving.metrics import Metrics
from nnef_jax.serving.servables import Full, Servable
from nnef_jax.serving.service import Service
from nnef_jax.wording.similar import did_you_mean, listed

_Result = TypeVar("_Result")
_log = logging.getLogger("nnef_jax.serving")
_SHOWN_CHARACTERS = 60  # The log shows at most this many characters of a name.
# A JSON text of at least this many bytes, or an array of at least this many items, is read or
# written on a separate thread. Shorter ones are read or written on the thread of the event loop.
_LONG_TEXT = 64 << 10


class RequestProgress:
    """The id of one request, and the seconds that each part of answering it took."""

    def __init__(self) -> None:
        self.id: str = ""
        self._start = time.monotonic()
        self._parts: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Return the seconds that have passed since the request arrived."""
        return time.monotonic() - self._start

    def done(self, part: str) -> None:
        """Note the end of a part of the answer. The part began when the previous part ended."""
        seconds_of_earlier_parts = sum(self._parts.values())
        self._parts[part] = self.seconds - seconds_of_earlier_parts

    def line(self, model: str, status: int) -> str:
        """Return a line for the log. Names in the line are JSON strings, and are shortened."""
        short_name = json.dumps(model[:_SHOWN_CHARACTERS])
        short_id = json.dumps(self.id[:_SHOWN_CHARACTERS])
        line = f"request model={short_name} id={short_id} status={status}"
        line += f" seconds={self.seconds:.6f}"
        for part, seconds in self._parts.items():
            line += f" {part}={seconds:.6f}"
        return line


class Application:
    """The application that answers requests for models by name.

    `starlette` is the ASGI application itself.
    """

    def __init__(
        self,
        models: Mapping[str, Model | Servable],
        sizes: Sequence[int],
        limits: ServingLimits,
        progress: Progress | None,
    ) -> None:
        self.limits: ServingLimits = limits
        self.progress: Progress | None = progress
        self.metrics: Metrics = Metrics()
        self.services: dict[str, Service] = {}
        for name, model in models.items():
            self.services[name] = Service(name, model, sizes, limits, self.metrics)
        # The total number of bytes of the requests that are being read or answered.
        self.bytes_in_memory: int = 0
        self.metrics.bytes.set_function(lambda: self.bytes_in_memory)
        self.json_thread: ThreadPoolExecutor = ThreadPoolExecutor(1, "nnef-jax-json")
        routes = [
            Route("/v2", self._server),
            Route("/v2/health/live", self._live),
            Route("/v2/health/ready", self._ready),
            Route("/metrics", self._metrics_text),
        ]
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            routes += [
                Route(path, self._model),
                Route(f"{path}/ready", self._model_ready),
                Route(f"{path}/infer", self._infer, methods=["POST"]),
            ]
        handlers = {HTTPException: _http_error, Exception: _failure}
        self.starlette: Starlette = Starlette(
            routes=routes, lifespan=self._lifespan, exception_handlers=handlers
        )
        # A server that stops sets `is_draining` to True. Each connection is then closed after its
        # next answer.
        self.starlette.state.is_draining = False

    @asynccontextmanager
    async def _lifespan(self, starlette: Starlette) -> AsyncGenerator[None]:
        """Run the services while the application runs, and close them when it stops."""
        services = self.services.values()
        tasks = [asyncio.create_task(service.run(self._report)) for service in services]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for service in services:
                service.close()
            self.json_thread.shutdown(wait=False)

    def _report(self) -> None:
        """Report the number of services that are ready."""
        if self.progress:
            states = [service.state for service in self.services.values()]
            self.progress(states.count("ready"), len(states))

    async def _server(self, request: Request) -> Response:
        extensions = ["binary_tensor_data", "sequence"]
        return JSONResponse({"name": "nnef_jax", "version": __version__, "extensions": extensions})

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, request: Request) -> Response:
        if self.starlette.state.is_draining:
            raise HTTPException(503, "the server is stopping")
        for service in self.services.values():
            _require_ready(service)
        return JSONResponse({"ready": True})

    async def _metrics_text(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _model(self, request: Request) -> Response:
        return JSONResponse(self._service(request).metadata)

    async def _model_ready(self, request: Request) -> Response:
        service = self._service(request)
        _require_ready(service)
        return JSONResponse({"name": service.name, "ready": True})

    def _service(self, request: Request) -> Service:
        """Return the service of the model that the path of a request names.

        Raises HTTPException if there is no model of this name.
        """
        name = request.path_params["name"]
        version = request.path_params.get("version", "1")
        if name not in self.services:
            hint = did_you_mean(name, self.services)
            message = f"there is no model {name!r:.60}, the models are {listed(self.services)}"
            raise HTTPException(404, f"{message}. {hint}".rstrip(" ."))
        if version != "1":
            raise HTTPException(404, f"'{name}' has no version {version!r:.60}, it has 1")
        return self.services[name]

    async def _infer(self, request: Request) -> Response:
        """Answer an inference request. Record the time and the status, also after an error."""
        service = self._service(request)
        progress = RequestProgress()
        body = bytearray()
        response = Response(status_code=500)
        try:
            response = await self._answer(request, service, body, progress)
        except Exception as error:
            response = self._refusal(service.name, error)
        finally:  # also if the task is cancelled
            self.bytes_in_memory -= len(body)
            self.metrics.requests.labels(service.name, response.status_code).inc()
            self.metrics.seconds.labels(service.name).observe(progress.seconds)
            _log.info("%s", progress.line(service.name, response.status_code))
        if self.starlette.state.is_draining:
            response.headers["Connection"] = "close"
        return response

    async def _answer(
        self, request: Request, service: Service, body: bytearray, progress: RequestProgress
    ) -> Response:
        """Read an inference request into `body`, compute it, and return the response.

        The function may raise any error. The caller reports it to the client.
        """
        _require_ready(service)
        await self._read(request, body)
        progress.done("read")
        json_bytes = protocol.json_length(request.headers.get(protocol.LENGTH), len(body))
        if json_bytes > self.limits.json:
            raise HTTPException(
                413, f"{json_bytes} bytes are JSON, the limit is {self.limits.json}"
            )
        outputs = service.servable.outputs
        decode = partial(protocol.decoded, body, json_bytes, outputs)
        query = await self._called(json_bytes, decode)
        progress.id = query.id
        input_bytes = sum(array.nbytes for array in query.arrays.values())
        bind = partial(service.servable.bind, (), query.arrays)
        arrays = await self._called(input_bytes, bind)
        progress.done("decode")
        remaining = self.limits.timeout - progress.seconds
        results = await service.infer(query.parameters, arrays, remaining)
        progress.done("compute")
        # Only outputs that are not binary are written as JSON, which takes long for many items.
        are_all_binary = all(query.outputs.values())
        json_items = 0 if are_all_binary else sum(result.size for result in results)
        encode = partial(protocol.encoded, service.name, query, outputs, results)
        content, length = await self._called(json_items, encode)
        progress.done("encode")
        if length is None:
            return Response(content, media_type="application/json")
        headers = {protocol.LENGTH: str(length)}
        return Response(content, headers=headers, media_type="application/octet-stream")

    def _refusal(self, name: str, error: Exception) -> Response:
        """Return the response that reports an error to the client. `name` is the model's name."""
        return _response(self._http_exception(name, error))

    def _http_exception(self, name: str, error: Exception) -> HTTPException:
        """Convert an error to an HTTP error with a status. An unexpected error is logged."""
        if isinstance(error, HTTPException):
            return error
        if isinstance(error, NnefError):
            return HTTPException(400, str(error))
        if isinstance(error, ClientDisconnect):
            return HTTPException(400, "the client disconnected")
        if isinstance(error, Full):
            return HTTPException(429, str(error), {"Retry-After": "1"})
        if isinstance(error, TimeoutError):
            return HTTPException(504, f"no answer within {self.limits.timeout:g} s")
        _log.error("'%s' failed", name, exc_info=error)
        return HTTPException(500, f"'{name}' failed: {error}")

    async def _called(self, size: int, work: Callable[[], _Result]) -> _Result:
        """Call the function `work`, and return the result of the function.

        `size` is the amount of work, in bytes or items. A large amount is done by a thread, so that
        other requests can run.
        """
        if size < _LONG_TEXT:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.json_thread, work)

    async def _read(self, request: Request, body: bytearray) -> None:
        """Append the bytes of a request to a body, and count them in `bytes_in_memory`.

        Raises HTTPException for a body that is beyond the limits, or that arrives too late.
        """
        limits = self.limits
        coding = request.headers.get("Content-Encoding", "identity")
        if coding != "identity":
            raise HTTPException(415, f"Content-Encoding {coding!r:.60} is not served")
        length = request.headers.get("Content-Length", "0")
        # Python refuses to convert very long numbers. 20 digits show that a number is too large.
        is_too_long = length.isdecimal() and int(length[:20]) > limits.body
        if is_too_long:
            raise HTTPException(413, f"the body has {length} bytes, the limit is {limits.body}")
        try:
            async with asyncio.timeout(limits.timeout):
                async for part in request.stream():
                    self._append(body, part)
        except TimeoutError:
            message = f"the body did not arrive within {limits.timeout:g} s"
            raise HTTPException(408, message, {"Connection": "close"}) from None

    def _append(self, body: bytearray, part: bytes) -> None:
        """Append a part to a body. Raises HTTPException if the body or the memory is too large."""
        limits = self.limits
        if len(body) + len(part) > limits.body:
            raise HTTPException(413, f"the body has more than {limits.body} bytes")
        if self.bytes_in_memory + len(part) > limits.memory:
            message = f"{self.bytes_in_memory} bytes of requests are in memory"
            raise HTTPException(503, f"{message}, the limit is {limits.memory}")
        self.bytes_in_memory += len(part)
        body += part


def _require_ready(service: Service) -> None:
    """Raise HTTPException unless a service is ready."""
    if service.state != "ready":
        raise HTTPException(503, f"'{service.name}' is {service.state}", {"Retry-After": "1"})


def _response(error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _response(error)


async def _failure(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"the server failed: {type(error).__name__}"}, 500)
