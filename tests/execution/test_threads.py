"""Threads that call a model for the first time compile it once, and none waits for ever."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax import Registry
from nnef_jax.execution.threads import Once
from tests.execution.test_citizen import compilations
from tests.helpers import model_of

pytestmark = pytest.mark.optimised  # else threads would lower programs in one context of MLIR

WAIT = 60  # seconds, after which a test fails instead of waiting for ever
NET = """
version 1.0;
extension KHR_enable_fragment_definitions;
fragment watched( x: tensor<scalar> ) -> ( y: tensor<scalar> );
graph net( x ) -> ( y )
{
    x = external(shape = [0,3]);
    w = variable(shape = [3,3], label = 'w');
    s = variable(shape = [3,3], label = 's');
    y = watched(mul(linear(x, w), 2.0));
    t = update(s, mul(s, w));
}
"""
RNG = np.random.default_rng(0)
DATA = {name: RNG.normal(size=(3, 3)).astype(np.float32) for name in "ws"}
X = RNG.normal(size=(2, 3)).astype(np.float32)
WANTED = 2 * X @ DATA["w"].T


class Together:
    """Threads that start together; what they return, or raise."""

    def __init__(self, *calls: Callable[[], Any]) -> None:
        self.found: list[Any] = [None] * len(calls)
        self._asking = threading.Semaphore(0)

        def run(index: int, call: Callable[[], Any]) -> None:
            self._asking.release()
            try:
                self.found[index] = call()
            except BaseException as error:
                self.found[index] = error

        self._threads = [
            threading.Thread(target=run, args=x, daemon=True) for x in enumerate(calls)
        ]
        for thread in self._threads:
            thread.start()
        assert all(self._asking.acquire(timeout=WAIT) for _ in calls)

    def results(self) -> list[Any]:
        """What all of them return, or raise."""
        for thread in self._threads:
            thread.join(WAIT)
        assert not any(thread.is_alive() for thread in self._threads)
        return self.found


class Work:
    """Makes a value after it is told to; it fails with the given errors first."""

    def __init__(self, *errors: BaseException) -> None:
        self.calls = 0
        self.begun, self.go = threading.Event(), threading.Event()
        self._errors = list(errors)

    def __call__(self) -> int:
        self.calls += 1
        self.begun.set()
        assert self.go.wait(WAIT)
        if self._errors:
            raise self._errors.pop(0)
        return self.calls


def first_and_others(call: Callable[[], Any], work: Work, count: int = 7) -> list[Any]:
    """What a thread finds that does the work, and others that ask meanwhile."""
    first = Together(call)
    assert work.begun.wait(WAIT)
    others = Together(*[call] * count)
    work.go.set()
    return first.results() + others.results()


def test_one_makes_and_others_wait() -> None:
    once, work = Once(), Work()
    assert first_and_others(lambda: once.get("key", work), work) == [1] * 8
    assert once.get("key", work) == work.calls == 1


def test_keys_are_made_at_the_same_time() -> None:
    once, both = Once(), threading.Barrier(2)
    threads = Together(
        *(lambda key=key: once.get(key, lambda: both.wait(WAIT) * 0 + key) for key in (1, 2))
    )
    assert threads.results() == [1, 2]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=repr)
def test_what_fails_is_not_kept(error: BaseException) -> None:
    once, work = Once(), Work(error)
    first, *others = first_and_others(lambda: once.get("key", work), work)
    assert first is error and others == [2] * 7


def test_an_interrupt_frees_those_that_wait() -> None:
    once, others = Once(), list[Together]()

    def interrupted() -> int:
        others.append(Together(*[lambda: once.get("key", lambda: 3)] * 3))
        raise KeyboardInterrupt  # as a signal does, which processes in the background ignore

    with pytest.raises(KeyboardInterrupt):
        once.get("key", interrupted)
    assert others[0].results() == [3] * 3
    assert once.get("key", lambda: 4) == 3


def test_who_makes_waits_for_nobody() -> None:
    once, both = Once(), threading.Barrier(2)

    def crossed(own: str, other: str) -> str:
        def make() -> str:
            both.wait(WAIT)
            return once.get(other, lambda: other)

        return once.get(own, make)

    threads = Together(lambda: crossed("a", "b"), lambda: crossed("b", "a"))
    assert {*threads.results()} <= {"a", "b"}
    assert once.get("self", lambda: once.get("self", lambda: 5) + 1) == 5


def test_a_thread_of_a_runtime_waits_for_nobody() -> None:
    once, found, ended = Once(), list[int](), threading.Event()

    def make() -> int:
        def callback() -> None:
            found.append(once.get("key", lambda: 7))
            ended.set()

        _thread.start_new_thread(callback, ())
        assert ended.wait(WAIT)
        return 8

    assert once.get("key", make) == 7 and found == [7]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    program = f"""
import os, signal, threading
from nnef_jax.execution.threads import Once
once, begun, go = Once(), threading.Event(), threading.Event()
def make():
    begun.set()
    go.wait({WAIT})
    return 1
thread = threading.Thread(target=lambda: once.get("key", make))
thread.start()
begun.wait({WAIT})
child = os.fork()
if not child:
    signal.alarm({WAIT // 2})
    os._exit(once.get("key", lambda: 2))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
go.set()
thread.join()
print(once.get("key", lambda: 3))
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=2 * WAIT)
    assert ended.stdout.split() == ["2", "1"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_call_in_a_process_that_was_forked_after_jax_ran_is_refused() -> None:
    """A large network waits for threads that are not there, for ever."""
    program = f"""
import os, signal
import jax, numpy as np, nnef_jax
x = np.zeros((1, 1, 8, 8), np.float32)
model = nnef_jax.load("examples/digits/model", measure=False)
for run in (lambda: None, lambda: jax.numpy.ones(3) + 1, lambda: model(x)):
    run()
    child = os.fork()
    if not child:
        signal.alarm({WAIT})
        jitted = jax.jit(lambda x: model.apply(model.params, x))
        for call in (model, jitted, lambda x: model(image=x), lambda x: model.batcher((1,))(x)):
            try:
                np.asarray(call(x))
                print("computed", flush=True)
            except nnef_jax.UnsupportedError as error:
                print("refused" if "forked after jax" in str(error) else error, flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
print(np.asarray(model(x)).shape)
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3 * WAIT)
    computed, refused = (["computed"] * 4 + ["0"], ["refused"] * 4 + ["0"])
    assert ended.stdout.splitlines() == [*computed, *refused, *refused, "(1, 10)"]


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The names of what XLA compiles."""
    with compilations() as names:
        yield names


def watched(work: Callable[[], Any], **options: Any) -> nnef_jax.Model:
    """A network with an operation that works when it is traced."""
    rules = Registry()

    @rules.rule("watched", lambda x: x)
    def rule(x: Any) -> Any:
        work()
        return x

    return model_of(NET, data=DATA, rules=rules, **options)


def count(compiled: list[str], *names: str) -> list[int]:
    return [compiled.count(f"jit_{name}") for name in names]


def test_a_model_is_compiled_once(compiled: list[str]) -> None:
    work = Work()
    model = watched(work)
    for found in first_and_others(lambda: model(X), work):
        np.testing.assert_allclose(found, WANTED, rtol=1e-5)
    assert count(compiled, "net") == [1]
    model(X)
    assert count(compiled, "net") == [1]


def test_ways_into_a_model_are_compiled_at_the_same_time(compiled: list[str]) -> None:
    both, entered = threading.Barrier(2), threading.local()

    def work() -> None:
        if not hasattr(entered, "once"):  # a rule may be traced twice
            entered.once = True
            both.wait(WAIT)

    model = watched(work)
    state = model.init_state()
    calls = [lambda: model(X), lambda: model.step(state, X)[0]] * 4
    for found in Together(*calls).results():
        np.testing.assert_allclose(found, WANTED, rtol=1e-5)
    assert count(compiled, "net", "net_step") == [1, 1]


def test_arrays_that_are_committed_are_compiled_for_once(compiled: list[str]) -> None:
    model, committed = watched(lambda: None), jax.device_put(X, jax.devices()[0])
    for found in Together(*[lambda: model(X), lambda: model(committed)] * 4).results():
        np.testing.assert_allclose(found, WANTED, rtol=1e-5)
    assert count(compiled, "net") == [2]


def test_models_of_one_network_share_what_one_of_them_compiles(compiled: list[str]) -> None:
    work = Work()
    model = watched(work)
    models = iter([model.with_params(model.params) for _ in range(8)])
    for found in first_and_others(lambda: next(models)(X), work):
        np.testing.assert_allclose(found, WANTED, rtol=1e-5)
    assert count(compiled, "net") == [1]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=repr)
def test_others_compile_where_one_fails(error: BaseException, compiled: list[str]) -> None:
    work = Work(error, error)
    model = watched(work, optimize=False)
    first, *others = first_and_others(lambda: model(X), work, count=3)
    assert first is error
    assert sum(found is error for found in others) == 1
    for found in others:
        if found is not error:
            np.testing.assert_allclose(found, WANTED, rtol=1e-5)
    assert count(compiled, "net") == [1]


def test_a_model_that_is_called_while_it_is_traced() -> None:
    found: list[Any] = []

    def work() -> None:
        if not found:
            found.append(None)
            found[0] = model(X)

    model = watched(work)
    np.testing.assert_allclose(model(X), WANTED, rtol=1e-5)
    # The outer trace has it as a part.
    assert found[0].shape == WANTED.shape


def test_within_a_trace_nothing_is_compiled_by_itself(compiled: list[str]) -> None:
    model = watched(lambda: None)
    found = jax.jit(lambda one: model(X) + one)(np.float32(1))
    np.testing.assert_allclose(found, WANTED + 1, rtol=1e-5)
    assert count(compiled, "net") == [0]
    np.testing.assert_allclose(model(X), WANTED, rtol=1e-5)
    assert count(compiled, "net") == [1]
