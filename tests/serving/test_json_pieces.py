"""Long JSON that is read and written in pieces is as Python's own reader has it."""

from __future__ import annotations

import importlib
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

json_pieces: Any = importlib.import_module("nnef_jax.serving.json_pieces")
Pieces = json_pieces.Pieces


def flat(value: Any) -> Any:
    """A value with the items of lists in lists in one list."""
    match value:
        case dict():
            return {key: flat(x) for key, x in value.items()}
        case Pieces():
            return flat([x for items in value.lists for x in items])
        case list():
            found = [flat(x) if isinstance(x, list | Pieces) else [flat(x)] for x in value]
            return [x for items in found for x in items]
        case _:
            return value


def drawn(chance: random.Random, depth: int = 0) -> Any:
    """Some value: long lists of numbers, equal lists in lists, strings with brackets, objects."""

    def number() -> Any:
        return chance.choice(
            [chance.random(), chance.randrange(-(10**20), 10**20), True, None, 1e300]
        )

    match chance.randrange(7 if depth < 4 else 3):
        case 0:
            return number()
        case 1:
            return chance.choice(['a"b', "[1, {", "]}", "\\", "ü\U0001f600", "", "x" * 70_000])
        case 2:
            return [number() for _ in range(chance.choice([0, 1, 3, 20_000]))]
        case 3:
            size = chance.choice([1, 2, 5000])
            return [[number() for _ in range(size)] for _ in range(chance.choice([1, 7, 30]))]
        case 4:
            return [drawn(chance, depth + 1) for _ in range(chance.randrange(5))]
        case 5:
            return {f"k{i}": drawn(chance, depth + 1) for i in range(chance.randrange(5))}
        case _:
            return [[[number()] * 3] * 4000] * chance.choice([1, 9])


@pytest.mark.parametrize(
    "seed", [x if 12 <= x < 20 else pytest.param(x, marks=pytest.mark.slow) for x in range(40)]
)
def test_values_are_those_of_python(seed: int) -> None:
    chance = random.Random(seed)
    value = [drawn(chance), "x" * 70_000, drawn(chance)]
    spaces = chance.choice([{}, {"separators": (",", ":")}, {"indent": 1}])
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5, **spaces)
    assert flat(json_pieces.loads(text.encode())) == flat(json.loads(text))


def test_a_long_array_is_in_pieces_of_equal_lists() -> None:
    rows = np.arange(300_000).reshape(-1, 3).tolist()
    found = json_pieces.loads(json.dumps({"rows": rows, "shape": [3, 4]}).encode())
    assert found["shape"] == [3, 4] and isinstance(found["rows"], Pieces)
    assert [x for items in found["rows"].flat() for x in json_pieces.flattened(items)] == [
        *range(300_000)
    ]
    rows[0] = [1]
    items = next(json_pieces.loads(json.dumps(rows).encode()).flat())
    with pytest.raises(ValueError, match="differ in length"):
        json_pieces.flattened(items)


_LONG = "[" + "1.5, " * 30_000


@pytest.mark.parametrize(
    "text",
    [
        _LONG, _LONG + "]", _LONG + ",1]", _LONG + "1", _LONG + "1]]", _LONG + "1}", _LONG + "01]",
        _LONG + "1] 2", _LONG + '"a]', _LONG + "1e]", _LONG + "nul]", _LONG + "1,]", "[[" * 60_000,
        '{"a":' * 60_000, _LONG[:-2] + " 1]", _LONG + "{]", _LONG + '{"a" 1}]', _LONG + "{1: 2}]",
        _LONG + '{"a": 1,}]', '{"a": ' + _LONG + "1]", "x" * 70_000, '"' + "x" * 70_000,
        "1" * 70_000, _LONG + "[1]]]", "[" * 500 + "1, " * 30_000, _LONG + '"\n"]',
    ],
    ids=lambda text: "",
)  # fmt: skip
def test_what_python_refuses_is_refused(text: str) -> None:
    for read in (json.loads, lambda x: json_pieces.loads(x.encode())):
        with pytest.raises((ValueError, RecursionError)):
            read(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" + '"a",' * 100_000 + "1]", "[" + "1,{}," * 60_000 + "1]",
        "{" + ",".join(f'"{i}":1' for i in range(50_000)) + "}",
        "[" + ",".join(["[" * 250 + "1," * 33_000 + "1" + "]" * 250] * 60) + "]",
    ],
    ids=["strings", "objects", "members", "nests"],
)  # fmt: skip
def test_many_values_that_are_read_one_by_one_are_refused(text: str) -> None:
    """A MB of them would take the processor for 5 to 10 s."""
    start = time.process_time()
    with pytest.raises(ValueError, match="strings, objects and long lists"):
        json_pieces.loads(text.encode())
    assert time.process_time() - start < 5


def _longest_pause(work: Callable[[], Any]) -> float:
    """The longest time that another thread waits for meanwhile, beyond what it asks for."""
    pauses, done = [0.0], threading.Event()

    def tick() -> None:
        while not done.is_set():
            start = time.perf_counter()
            time.sleep(0.001)
            pauses.append(time.perf_counter() - start)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return max(pauses)


def test_other_threads_get_on() -> None:
    """Python's reader and writer stop them for as long as they take."""
    array = np.random.default_rng(0).random((1000, 500))
    text = json.dumps(array.tolist()).encode()
    start = time.perf_counter()
    json.loads(text)
    whole = time.perf_counter() - start
    # One of ten: the machine itself may stop a thread.
    assert any(_longest_pause(lambda: json_pieces.loads(text)) < whole / 2 for _ in range(10))
    written = "".join(json_pieces.dumped(array))
    assert json.loads(f"[{written}]") == array.ravel().tolist()
