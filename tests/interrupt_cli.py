"""Signals at random moments of every command: `python -m tests.interrupt_cli --count 200`.

Each run either is complete, or the signal ends it without a word. What Python says of a signal
before our first line is counted by itself.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "examples/digits/model"
SCAN = ROOT / "examples/digits/scans/3_scan0045.png"


def commands(folder: Path) -> dict[str, list[str]]:
    """Return a successful call of each command. What they save goes into the folder."""
    return {
        "check": ["check", str(MODEL)],
        "summary": ["summary", str(MODEL)],
        "convert": ["convert", str(MODEL)],
        "run": ["run", str(MODEL), str(SCAN), "--no-cache"],
        "batch": ["batch", str(MODEL), str(SCAN), f"--out={folder}", "--no-cache"],
        "compile": ["compile", str(MODEL), f"--cache-dir={folder}", "--shape=image=1,1,8,8"],
    }


def judged(number: signal.Signals, code: int, output: str, errors: str, complete: str) -> str:
    """Return how a run ended that was sent a signal; 'FAILED ...' for a wrong end."""
    if (code, output, errors) == (0, complete, ""):
        return "complete"
    if (code, errors) == (-number, "") and complete.startswith(output):
        return "ended by the signal"
    if errors.rstrip().endswith("KeyboardInterrupt") and "nnef_jax" not in errors:
        return "ended before our first line"
    return f"FAILED: status {code}, output {output!r}, errors {errors!r}"


def main() -> int:
    """Send the signals and count how runs ended; return 1 if one ended badly."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    chance = random.Random(options.seed)
    found: Counter[str] = Counter()
    delays: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"  # one folder, as its name is printed; emptied for each run
        programs = {k: [sys.executable, "-m", "nnef_jax", *v] for k, v in commands(cache).items()}
        complete: dict[str, str] = {}
        durations: dict[str, float] = {}
        for name, program in programs.items():
            for _ in range(2):  # the first one reads more from the disk
                _empty(cache)
                start = time.perf_counter()
                done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
                complete[name], durations[name] = done.stdout, time.perf_counter() - start
        for index in range(options.count):
            name = list(programs)[index % len(programs)]
            number = chance.choice([signal.SIGINT, signal.SIGTERM])
            _empty(cache)
            started = time.perf_counter()
            with subprocess.Popen(
                programs[name],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                time.sleep(chance.uniform(0, durations[name]))
                process.send_signal(number)
                sent = time.perf_counter()
                output, errors = process.communicate(timeout=600)
                delays.append(time.perf_counter() - sent)
            if process.returncode == 0:
                durations[name] = min(durations[name], time.perf_counter() - started)
            outcome = judged(number, process.returncode, output, errors, complete[name])
            found[outcome.partition(":")[0]] += 1
            if outcome.startswith("FAILED"):
                print(f"{name}, {number.name}: {outcome}")
    for outcome, count in found.most_common():
        print(f"{count:6} {outcome}")
    print(f"from signal to end: median {median(delays):.3f} s, longest {max(delays):.3f} s")
    return 1 if found["FAILED"] else 0


def _empty(folder: Path) -> None:
    for file in folder.glob("*"):
        file.unlink()


if __name__ == "__main__":
    sys.exit(main())
