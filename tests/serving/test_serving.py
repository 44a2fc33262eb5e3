"""The application behind a server: batches, sequences, limits, errors."""

from __future__ import annotations

import importlib
import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import nnef_jax
from nnef_jax import InputError, TensorSpec, UnsupportedError
from tests.helpers import COMPOSITIONAL, model_of
from tests.serving.server_support import Client, served, serving, until

app, ServingLimits = serving.app, serving.ServingLimits
batch_size: Any = importlib.import_module("nnef_jax.serving.service").batch_size

_LIMITS = ServingLimits(
    body=4096, json=1024, memory=8192, queue=4, timeout=5, shapes=2, sequences=2, idle=0.3
)


def _model(body: str, **options: Any) -> nnef_jax.Model:
    text = f"{COMPOSITIONAL}\ngraph g(x) -> (y)\n{{\n{body}\n}}"
    return model_of(text, **options)


_DOUBLE = "x = external(shape = [1, 2]); y = 2.0 * x;"
_STATE = """
    x = external(shape = [1, 2]);
    s = variable(shape = [1, 2], label = 's');
    t = s + x;
    y = update(s, t);
"""


class Slow(serving.Servable):
    """Rows times two, by a function that waits until it is let go: no network at all."""

    inputs = outputs = (TensorSpec("x", (None, 2), "float32"),)
    sizes = (1, 2, 4, 8)

    def __init__(self) -> None:
        self.computed: list[int] = []
        self.free = threading.Semaphore(0)
        self.fails = False

    def compile(self, progress: Any = None) -> None:
        pass

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        return [kwargs["x"]]

    def compute(self, arrays: list[Any]) -> list[Any]:
        self.free.acquire(timeout=10)
        if self.fails:
            raise RuntimeError("the device is gone")
        self.computed.append(len(arrays[0]))
        return [2 * arrays[0]]


@pytest.fixture(scope="module")
def slow() -> Slow:
    return Slow()


@pytest.fixture(scope="module")
def client(slow: Slow) -> Iterator[Any]:
    mixing = "x = external(shape = [3, 2]); y = softmax(x, axes = [0]);"
    models = {
        "double": _model(_DOUBLE),
        "a b": _model(_DOUBLE, dtype="bfloat16"),
        "mixing": _model(mixing),
        "open": _model(_DOUBLE, input_shapes={"x": (None, None)}),
        "state": _model(_STATE, data={"s": np.float32([[1, 1]])}),
        "slow": slow,
    }
    with served(models, sizes=(1, 4), limits=_LIMITS) as client:
        yield client


def _sent(client: Client, model: str, x: Any, dtype: str = "FP32", **parameters: Any) -> Any:
    x = np.asarray(x)
    tensor = {"name": "x", "shape": x.shape, "datatype": dtype, "data": x.tolist()}
    document = {"inputs": [tensor], "parameters": parameters}
    return client.post(f"/v2/models/{model}/infer", content=json.dumps(document))


def _rows(response: Any) -> Any:
    assert response.status_code == 200, response.text
    (output,) = response.json()["outputs"]
    return np.reshape(output["data"], output["shape"]).tolist()


def test_metadata(client: Client) -> None:
    assert client.get("/v2").json()["name"] == "nnef_jax"
    assert client.get("/v2/health/live").status_code == 200
    tensor = {"datatype": "FP32", "shape": [-1, 2]}
    for path in ("/v2/models/double", "/v2/models/double/versions/1"):
        assert client.get(path).json() == {
            "name": "double",
            "versions": ["1"],
            "platform": "nnef_jax",
            "inputs": [{"name": "x", **tensor}],
            "outputs": [{"name": "y", **tensor}],
        }
        assert client.get(f"{path}/ready").json()["ready"]
    assert client.get("/v2/models/a%20b").json()["inputs"][0]["datatype"] == "BF16"
    assert client.get("/v2/models/mixing").json()["inputs"][0]["shape"] == [3, 2]


def test_answers(client: Client) -> None:
    assert _rows(_sent(client, "double", [[1, 2], [3, 4], [5, 6]])) == [[2, 4], [6, 8], [10, 12]]
    assert _rows(_sent(client, "double", [[1, 2]], "FP64")) == [[2, 4]]
    assert _rows(_sent(client, "a%20b", [[1, 2]], "BF16")) == [[2, 4]]
    assert _rows(_sent(client, "mixing", [[1, 1]] * 3)) == pytest.approx(np.full((3, 2), 1 / 3))


@pytest.mark.parametrize(
    ("response", "code", "named"),
    [
        (lambda c: c.get("/v2/models/duble"), 404, "did you mean 'double'"),
        (lambda c: c.get("/v2/models/double/versions/2"), 404, "no version '2'"),
        (lambda c: c.get("/v2/models/..%2F..%2Fetc%2Fpasswd"), 404, ""),
        (lambda c: c.get("/v2/models/%2e%2e"), 404, ""),
        (lambda c: c.get("/v2/models/" + "x" * 5000), 404, "no model"),
        (lambda c: c.get("/v2/models/double%00"), 404, "no model"),
        (lambda c: c.get("/etc/passwd"), 404, ""),
        (lambda c: c.get("/v2/models/double/infer"), 405, ""),
        (lambda c: _sent(c, "double", [[1, 2, 3]]), 400, r"shape \[1,3\]"),
        (lambda c: _sent(c, "double", [[1, 2]], "INT32"), 400, "dtype int32"),
        (lambda c: _sent(c, "double", [[1, 2]] * 5), 400, "at most 4 items, this has 5"),
        (lambda c: _sent(c, "double", [[1, 2]], sequence_id=3), 400, "has no state"),
        (lambda c: _sent(c, "mixing", [[1, 2]] * 2), 400, r"shape \[2,2\]"),
        (lambda c: c.post("/v2/models/double/infer", content="{}"), 400, "'x' is missing"),
        (lambda c: c.post("/v2/models/double/infer", content=b"\0"), 400, "not JSON"),
        (lambda c: c.post("/v2/models/double/infer", content=bytes(4097)), 413, "limit is 4096"),
        (lambda c: c.post("/v2/models/double/infer", content=bytes(1025)), 413, "are JSON"),
        (
            lambda c: c.post("/v2/models/double/infer", content=iter([bytes(3000)] * 2)),
            413,
            "more than 4096",
        ),
        (
            lambda c: c.post(
                "/v2/models/double/infer", content=b"", headers={"Content-Encoding": "gzip"}
            ),
            415,
            "gzip",
        ),
    ],
)
def test_what_is_wrong_is_an_error_in_json(
    client: Client, response: Callable[[Any], Any], code: int, named: str
) -> None:
    found = response(client)
    assert found.status_code == code
    assert re.search(named, found.json()["error"])
    assert _rows(_sent(client, "double", [[1, 2]])) == [[2, 4]]


def test_few_shapes_are_compiled(client: Client) -> None:
    for width in (2, 3, 2):
        assert _rows(_sent(client, "open", np.ones((1, width)))) == [[2] * width]
    response = _sent(client, "open", np.ones((1, 4)))
    assert response.status_code == 400 and "inputs of 2 shapes" in response.json()["error"]


def test_requests_of_unlike_lengths_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batcher with buckets pads them to one length, for which it was compiled at the start."""
    text = """version 1.0;
extension tract_registry tract_core;
extension tract_symbol N;
extension tract_symbol S;
graph g(x) -> (y)
{
    x = tract_core_external(shape = [N, S], datum_type = 'f32');
    y = add(x, x);
}"""
    batcher = model_of(text).batcher((4,), buckets={"S": (4,)})
    counts: list[int] = []
    compute_each = batcher.compute_each

    def counted(requests: Any) -> Any:
        counts.append(len(requests))
        return compute_each(requests)

    monkeypatch.setattr(batcher, "compute_each", counted)
    limits = ServingLimits(delay=1, timeout=20, shapes=1)
    with served({"lengths": batcher}, limits=limits) as client:
        found, threads = _in_threads(4, lambda i: _sent(client, "lengths", np.ones((1, i + 1))))
        for thread in threads:
            thread.join(20)
        assert [_rows(x) for x in found] == [[[2] * (i + 1)] for i in range(4)]
        assert counts == [4]
        long = _sent(client, "lengths", np.ones((1, 5)))
        assert long.status_code == 400 and "the largest bucket is 4" in long.json()["error"]


def test_sequences(client: Client) -> None:
    def step(id: int | str, **parameters: Any) -> Any:
        return _sent(client, "state", [[1, 2]], sequence_id=id, **parameters)

    assert _rows(_sent(client, "state", [[1, 2]])) == [[2, 3]]
    assert _rows(step(1, sequence_start=True)) == [[2, 3]]
    assert _rows(step("a", sequence_start=True)) == [[2, 3]]
    full = step(3, sequence_start=True)
    assert full.status_code == 429 and "2 sequences are open" in full.json()["error"]
    assert _rows(step(1)) == [[3, 5]]
    assert _rows(step("a")) == [[3, 5]]
    assert _rows(step(1, sequence_end=True)) == [[4, 7]]
    ended = step(1)
    assert ended.status_code == 400 and "there is no sequence 1" in ended.json()["error"]
    assert 'sequences{model="state"} 1.0' in client.get("/metrics").text
    until(lambda: 'sequences{model="state"} 0.0' in client.get("/metrics").text)
    assert step("a").status_code == 400
    for wrong in ({"id": 1.5}, {"id": True}, {"id": 1, "sequence_start": "yes"}):
        assert step(**wrong).status_code == 400
    for long in ("x" * 257, 1 << 64, -(1 << 64)):
        refused = step(long, sequence_start=True)
        assert refused.status_code == 400
        assert "sequence_id has at most 256 characters, or 64 bits" in refused.json()["error"]
    assert _rows(step("x" * 256, sequence_start=True, sequence_end=True)) == [[2, 3]]
    assert _rows(step(-(1 << 63), sequence_start=True, sequence_end=True)) == [[2, 3]]


def _in_threads(count: int, send: Callable[[int], Any]) -> list[Any]:
    found: list[Any] = [None] * count

    def run(i: int) -> None:
        found[i] = send(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    return [found, threads]


def _waiting(client: Client, count: int) -> Callable[[], bool]:
    return lambda: f'waiting{{model="slow"}} {count}.0' in client.get("/metrics").text


def test_requests_that_wait_are_computed_together(client: Client, slow: Slow) -> None:
    slow.computed.clear()
    first, threads = _in_threads(1, lambda _: _sent(client, "slow", [[9, 9]]))
    until(lambda: 'slow"} 0.0' in client.get("/metrics").text and threads[0].is_alive())
    time.sleep(0.1)  # it is being computed
    found, others = _in_threads(4, lambda i: _sent(client, "slow", [[i, i]] * (1 + i % 2)))
    until(_waiting(client, 4))
    refused = _sent(client, "slow", [[1, 1]])
    assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
    assert "4 requests wait" in refused.json()["error"]
    slow.free.release(2)
    for thread in (*threads, *others):
        thread.join(20)
    assert _rows(first[0]) == [[18, 18]]
    assert [_rows(x) for x in found] == [[[2 * i, 2 * i]] * (1 + i % 2) for i in range(4)]
    assert slow.computed == [1, 6]


def test_time_is_limited() -> None:
    slow = Slow()
    with served({"slow": slow}, limits=ServingLimits(timeout=0.2)) as client:
        for _ in range(2):  # one that is computed, one that waits
            response = _sent(client, "slow", [[1, 1]])
            assert response.status_code == 504
            assert "no answer within 0.2 s" in response.json()["error"]
        slow.free.release(2)
        assert _rows(_sent(client, "slow", [[3, 3]])) == [[6, 6]]
        assert slow.computed == [1, 1]  # what nobody waits for any more is not computed


def test_a_sequence_ends_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model(_STATE, data={"s": np.float32([[1, 1]])})
    free = threading.Semaphore(1)
    step = model.step

    def slow(*args: Any) -> Any:
        free.acquire(timeout=10)
        return step(*args)

    limits = ServingLimits(timeout=0.2)
    with served({"state": model}, limits=limits) as client:
        monkeypatch.setattr(model, "step", slow)
        start = _sent(client, "state", [[1, 2]], sequence_id=1, sequence_start=True)
        assert _rows(start) == [[2, 3]]
        assert _sent(client, "state", [[1, 2]], sequence_id=1).status_code == 504
        free.release(2)
        until(lambda: _sent(client, "state", [[1, 2]], sequence_id=1).status_code == 400)


def test_what_fails_is_an_error(client: Client, slow: Slow) -> None:
    slow.fails = True
    slow.free.release()
    response = _sent(client, "slow", [[1, 1]])
    slow.fails = False
    assert response.status_code == 500 and "the device is gone" in response.json()["error"]
    assert 'code="500",model="slow"} 1.0' in client.get("/metrics").text


def test_a_request_has_a_line_in_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nnef_jax.serving")
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    for id in ("a\n b", "x" * 500):
        body = json.dumps({"id": id, "inputs": [tensor]})
        assert client.post("/v2/models/double/infer", body).status_code == 200
    _sent(client, "a%20b", [[1, 2, 3]])
    client.post("/v2/models/double/infer", b"{")
    number = r"\d+\.\d{6}"
    parts = " ".join(f"{x}={number}" for x in ("seconds", "read", "decode", "compute", "encode"))
    wanted = [
        rf'request model="double" id="a\\n b" status=200 {parts}',
        rf'request model="double" id="x{{60}}" status=200 {parts}',
        rf'request model="a b" id="" status=400 seconds={number} read={number}',
        rf'request model="double" id="" status=400 seconds={number} read={number}',
    ]
    until(lambda: len(caplog.messages) >= len(wanted))
    for line, pattern in zip(caplog.messages, wanted, strict=True):
        assert re.fullmatch(pattern, line), line


def test_metrics_count(client: Client) -> None:
    _sent(client, "double", [[1, 2]])
    text = client.get("/metrics").text
    assert 'requests_total{code="200",model="double"}' in text
    assert 'seconds_count{model="double"}' in text
    assert 'batch_items_count{model="double"}' in text
    assert "request_bytes 0.0" in text


def test_a_network_that_does_not_compile_is_not_ready() -> None:
    class Broken(Slow):
        def compile(self, progress: Any = None) -> None:
            raise RuntimeError("no memory")

    with served({"broken": Broken()}, ready=False) as client:
        until(lambda: "no memory" in client.get("/v2/health/ready").text)
        assert client.get("/v2/health/live").status_code == 200
        response = _sent(client, "broken", [[1, 1]])
        assert response.status_code == 503 and "no memory" in response.json()["error"]


def test_wrong_arguments_are_refused() -> None:
    model = _model(_DOUBLE)
    for models in ({}, {"": model}, {"a/b": model}, {"a\n": model}):
        with pytest.raises(InputError):
            app(models)
    with pytest.raises(TypeError, match="models must be"):
        app(model)  # pyright: ignore
    with pytest.raises(InputError, match="queue must be more than 0"):
        ServingLimits(queue=0)
    with pytest.raises(TypeError, match="body must be"):
        ServingLimits(body="1")  # pyright: ignore
    narrow = Slow()
    narrow.outputs = (TensorSpec("y", (None, 2), "int4"),)
    with pytest.raises(UnsupportedError, match="int4"):
        app({"narrow": narrow})


@pytest.mark.parametrize(
    ("waiting", "size"), [(1, 1), (2, 2), (3, 4), (5, 4), (6, 8), (11, 8), (12, 16), (99, 16)]
)
def test_batches_are_filled_well(waiting: int, size: int) -> None:
    assert batch_size((1, 2, 4, 8, 16), waiting) == size
    assert batch_size((8, 16), 1) == 8


def test_importing_the_package_imports_no_server() -> None:
    names = "('starlette', 'uvicorn', 'prometheus_client', 'jax')"
    told = f"import nnef_jax, sys; print([x for x in {names} if x in sys.modules])"
    run = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
