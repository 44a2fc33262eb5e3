"""Mutates texts, tensor files, archives, graph.quant, safetensors and XML; loads the mutants.

    python -m tests.fuzz --minutes 20
    python -m tests.fuzz --count 1000000 --seed 7

Each mutant may end in a model or an NnefError, within 10 seconds of the processor and 2 GB beside
what the process holds before it. Whatever else comes of one is minimised and written to
tests/regressions, which `tests/formats/test_hostile.py` loads. The seed is printed; the same seed,
count and number of processes make the same mutants.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import multiprocessing
import os
import random
import resource
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import nnef_jax
from tests.hostile import tar

FOUND = Path(__file__).resolve().parent / "regressions"
_SECONDS = 10.0
_BYTES = 2 << 30
_REPORT = 5_000  # mutants between two lines

Members = dict[str, bytes]


class TooSlowError(BaseException):
    """A mutant takes more than its time. Not an Exception, so that nothing makes another of it."""


def seeds() -> list[tuple[str, Members]]:
    """Networks that are right, with their dialect; nearly all have one operation."""
    from tests import op_cases, tract_cases
    from tests.formats.test_tract_mutations import DATA, OWN
    from tests.text.test_mutations import FINAL, OLD

    found = [("final", {"graph.nnef": op_cases.document(c).encode()}) for c in op_cases.ALL_CASES]
    found += [
        ("tract", {"graph.nnef": tract_cases.document(c).encode()}) for c in tract_cases.ALL_CASES
    ]
    found += [("final", {"graph.nnef": text.encode()}) for text in (FINAL, OLD)] * 5
    data = {f"{label}.dat": _tensor_file(array) for label, array in DATA.items()}
    found += [("tract", {"graph.nnef": text.encode(), **data}) for text in OWN] * 10
    return [(dialect, members) for dialect, members in found if len(members["graph.nnef"]) < 6000]


def _tensor_file(array: np.ndarray) -> bytes:
    from nnef_jax.storage.tensorfile import encode_tensor

    header, data = encode_tensor(array)
    return header + bytes(data)


_VARIABLES = """version 1.0;
graph net( x ) -> ( y, z )
{{
    x = external<scalar>(shape = [1, 3]);
    v = variable<{kind}>(shape = [2, 3], label = 'v');
    y = copy(v); z = relu(x);
}}
"""
_TRACT_VARIABLES = """version 1.0;
extension tract_registry tract_core;
extension tract_registry tract_resource;
graph net( x ) -> ( y, z )
{
    x = tract_core_external(shape = [1, 3], datum_type = 'f32');
    v = variable<scalar>(shape = [2, 3], label = 'v');
    c = tract_resource_get('c', 'a.b[1]');
    y = tract_core_cast(v, to = 'f32'); z = x * c;
}
"""
_JSON = b'{"a": {"b": [1, 2.5, [true, "x"]]}, "c": null}'
_QUANT = (
    b'"x": linear_quantize(min = -1.0, max = 1.0, bits = 8);\n'
    b'"y": zero_point_linear_quantize(zero_point = 3, scale = 0.5, bits = 8, signed = true, '
    b"symmetric = false);\n"
)
_TRACT_QUANT = (
    b'"x": linear_quantize(min = -1.0, max = 1.0, bits = 8);\n'
    b'i"y": zero_point_linear_quantize(zero_point = [1, 2, 3], scale = 0.5, bits = 8, '
    b"signed = false);\n"
)


def _stored(chance: random.Random) -> tuple[str, Members, str]:
    """A network with a variable in a file of any kind, and that file."""
    array = chance.choice(
        [
            np.arange(6, dtype=np.float32).reshape(2, 3),
            np.arange(6, dtype=np.float16).reshape(2, 3),
            np.arange(6, dtype=np.int64).reshape(2, 3),
            np.array([[True, False, True], [False, False, True]]),
        ]
    )
    if chance.random() < 0.5:
        kind = {"f": "scalar", "i": "integer", "b": "logical"}[array.dtype.kind]
        graph = _VARIABLES.format(kind=kind).encode()
        return "final", {"graph.nnef": graph, "v.dat": _tensor_file(array)}, "v.dat"
    members = {"graph.nnef": _TRACT_VARIABLES.encode(), "c.json": _JSON}
    if chance.random() < 0.5:
        return "tract", {**members, "v.dat": _tensor_file(array)}, "v.dat"
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    header = json.dumps({"__metadata__": {}, "v": entry}).encode()
    content = struct.pack("<Q", len(header)) + header + array.astype(np.float32).tobytes()
    member = "m.safetensors" if chance.random() < 0.7 else "c.json"
    return "tract", {**members, "m.safetensors": content}, member


def mutant(chance: random.Random, known: list[tuple[str, Members]]) -> tuple[str, bytes]:
    """The kind of a mutant, and an archive with it."""
    kinds = ["text", "words", "tensor", "archive", "quantisation", "xml"]
    (kind,) = chance.choices(kinds, [4, 3, 3, 2, 2, 4])
    match kind:
        case "text":
            dialect, members = chance.choice(known)
            members = {**members, "graph.nnef": _bytes_mutated(members["graph.nnef"], chance)}
        case "words":
            dialect, members = chance.choice(known)
            text = _words_mutated(members["graph.nnef"].decode(), dialect, chance)
            members = {**members, "graph.nnef": text.encode("utf-8", "surrogatepass")}
        case "tensor":
            dialect, members, member = _stored(chance)
            members[member] = _bytes_mutated(members[member], chance)
        case "xml":
            dialect, members = "openvino", xml_mutated(chance)
        case "archive":
            dialect, members, _ = _stored(chance)
            content = tar(members)
            content = gzip.compress(content, 1) if chance.random() < 0.5 else content
            return f"archive {dialect}", _bytes_mutated(content, chance)
        case _:
            dialect, members, _ = _stored(chance)
            text = _QUANT if dialect == "final" else _TRACT_QUANT
            quant = _words_mutated(text.decode(), dialect, chance).encode()
            members["graph.quant"] = _bytes_mutated(quant, chance)
    return f"{kind} {dialect}", tar(members)


@cache
def _networks() -> list[tuple[str, bytes]]:
    from tests.openvino import mutations

    return [*mutations.seeds()]


def xml_mutated(chance: random.Random) -> Members:
    """A network of OpenVINO with another text or other weights; both in a few."""
    from tests.openvino import mutations

    text, data = chance.choice(_networks())
    if chance.random() < 0.7:
        text = mutations.mutated(text, chance)
    content = text.encode("utf-8", "surrogatepass")
    content = _bytes_mutated(content, chance) if chance.random() < 0.3 else content
    return {"net.xml": content, "net.bin": _bytes_mutated(data, chance)}


def _words_mutated(text: str, dialect: str, chance: random.Random) -> str:
    from tests.formats import test_tract_mutations
    from tests.text import test_mutations

    if dialect == "tract":
        return test_tract_mutations.mutated(text, chance)
    tokens = test_mutations._TOKEN.findall(text)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(tokens))
        tokens[at] = chance.choice([*test_mutations._WORDS, chance.choice(tokens), ""])
    return "".join(tokens)


_INTERESTING = (0, 1, 7, 8, 127, 128, 255)


def _bytes_mutated(content: bytes, chance: random.Random) -> bytes:
    """Some bytes inverted, replaced, removed, repeated or moved."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at, other = (chance.randrange(len(changed) + 1) for _ in range(2))
        first, last = min(at, other), max(at, other)
        match chance.randrange(8):
            case 0 | 1 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 2 | 3 if at < len(changed):
                changed[at] = chance.choice(_INTERESTING)
            case 4:
                del changed[at : at + chance.choice((1, 2, 4, 8, 64))]
            case 5:
                changed[at:at] = changed[first : min(last, first + 64)]
            case 6:
                width = chance.choice((2, 4, 8))
                value = chance.choice((0, 1, 2**31, 2**63, 2 ** (8 * width) - 1))
                changed[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
            case _:
                del changed[first : last if chance.random() < 0.3 else first + 1]
    return bytes(changed)


def trial(source: bytes) -> str:
    """ "model", or the name of the NnefError; anything else passes through."""
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
        model = nnef_jax.load(source)
        model.summary()
    except nnef_jax.NnefError as error:
        str(error)
        return type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "model"


def failure(source: bytes) -> str:
    """What a mutant raised that it must not, with the place; '' if it did not."""
    try:
        trial(source)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = next((f for f in reversed(frames) if "nnef_jax" in f.filename), frames[-1])
        return f"{type(error).__name__} in {Path(last.filename).name}:{last.name}"
    return ""


def minimised(source: bytes, wanted: str) -> bytes:
    """An archive of the same failure with as little text and data as can be found soon."""
    import io
    import tarfile

    try:
        with tarfile.open(fileobj=io.BytesIO(source)) as archive:
            files = {m.name: archive.extractfile(m) for m in archive.getmembers() if m.isfile()}
            members = {name: file.read() for name, file in files.items() if file}
    except (tarfile.TarError, OSError, EOFError):
        return source
    if failure(tar(members)) != wanted:
        return source
    end = time.monotonic() + 60
    for name in list(members):
        size = len(members[name])
        while size and time.monotonic() < end:
            at = 0
            while at < len(members[name]) and time.monotonic() < end:
                kept = members[name]
                members[name] = kept[:at] + kept[at + size :]
                if failure(tar(members)) != wanted:
                    members[name] = kept
                    at += size
            size //= 2
    return tar(members)


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlowError


def _bounded() -> None:
    """Take no more memory than is allowed beside what is there, nor more time than `trial` says."""
    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + _BYTES, held + _BYTES))
    signal.signal(signal.SIGPROF, _too_slow)


def work(seed: str, count: int, end: float, report: Callable[[Any], None]) -> None:
    """Load mutants until there are enough of them or the time is over."""
    chance, known = random.Random(seed), seeds()
    for _, members in known[::97]:
        trial(tar(members))  # what is loaded and cached once is nobody's fault
    _bounded()
    outcomes: Counter[str] = Counter()
    slowest, done = 0.0, 0
    while done < count and time.time() < end:
        kind, source = mutant(chance, known)
        start = time.process_time()
        found = failure(source)
        slowest = max(slowest, time.process_time() - start)
        done += 1
        outcomes[kind.split()[0] + (" failed" if found else "")] += 1
        if found:
            small = minimised(source, found)
            name = f"{found.split()[0]}-{hashlib.sha256(small).hexdigest()[:12]}.tar"
            FOUND.mkdir(exist_ok=True)
            (FOUND / name).write_bytes(small)
            report(f"{kind}: {found}: {name}")
        if done % _REPORT == 0 or done == count:
            report((os.getpid(), done, slowest, dict(outcomes), _peak()))
    report((os.getpid(), done, slowest, dict(outcomes), _peak()))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> int:
    """Run in as many processes as there are processors; 1 if anything was found."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--count", type=int, default=1 << 62)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.processes} processes", flush=True)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    end = time.time() + 60 * options.minutes
    share = -(-options.count // options.processes)
    workers = [
        context.Process(target=work, args=(f"{options.seed}/{i}", share, end, queue.put))
        for i in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    latest: dict[int, Any] = {}
    problems: list[str] = []
    shown = time.time()
    while any(w.is_alive() for w in workers) or not queue.empty():
        try:
            item = queue.get(timeout=1)
        except Exception:  # the queue's own, which no module names
            continue
        if isinstance(item, str):
            problems.append(item)
            print(item, flush=True)
        else:
            latest[item[0]] = item
        if time.time() - shown > 30:
            shown = time.time()
            _show(latest, problems)
    _show(latest, problems)
    died = [w.exitcode for w in workers if w.exitcode]
    if died:
        print(f"processes ended with {died}")
    return int(bool(problems or died))


def _show(latest: dict[int, Any], problems: list[str]) -> None:
    total: Counter[str] = Counter()
    for *_, outcomes, _ in latest.values():
        total.update(outcomes)
    done = sum(item[1] for item in latest.values())
    slowest = max((item[2] for item in latest.values()), default=0.0)
    peak = max((item[4] for item in latest.values()), default=0)
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(total.items()))
    print(
        f"{done:,} mutants ({kinds}), {len(problems)} failures, slowest {slowest:.2f} s, "
        f"{peak / 1e6:.2f} GB in a process",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
