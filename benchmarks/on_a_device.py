"""Checks nnef_jax's operations on jax's device, and measures networks there.

    python -m benchmarks.on_a_device [--minutes 8] [--out report.json]

In the first half of the time, the rows of the tests' tables of operations run on jax's default
device, in a random order that `--seed` determines. Their results are compared with the reference
implementation of the tests. In the second half, networks run alternately in nnef_jax and in plain
jax, and are timed. The report has the device, the versions, the rows whose results differ from the
reference by more than their tolerance, and the milliseconds of a call.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

import nnef_jax
from benchmarks.devices import DTYPES, GPT, ONES, plain_function
from benchmarks.devices import model_of as network_of
from tests.helpers import model_of
from tests.op_cases import NNEF, TRACT, OpCase, document, expected, inputs

_TOGETHER = 24  # rows that are compiled as one program
_TIMED = [name for name in ONES if name != GPT]
_ROUNDS = 12


def main(minutes: float, seed: int, out: Path | None) -> None:
    """Run rows and networks for `minutes`, and print a report. Also write it to the file `out`."""
    rows = [*NNEF, *TRACT]
    random.Random(seed).shuffle(rows)
    begin = time.monotonic()
    middle, end = (begin + 60 * minutes * part for part in (0.5, 1))
    wrong: dict[str, str] = {}
    count = 0
    for start in range(0, len(rows), _TOGETHER):
        if time.monotonic() > middle:
            break
        group = rows[start : start + _TOGETHER]
        try:
            wrong |= _differing(group)
        except Exception:
            for case in group:
                try:
                    wrong |= _differing([case])
                except Exception as error:
                    wrong[case.name] = f"{type(error).__name__}: {str(error)[:200]}"
        count += len(group)
    device: Any = jax.devices()[0]
    report = {
        "device": device.device_kind,
        "platform": device.platform,
        "versions": {"jax": jax.__version__, "jaxlib": jaxlib.__version__}
        | {"nnef_jax": nnef_jax.__version__},
        "rows": count,
        "of": len(rows),
        "wrong": wrong,
        "milliseconds": _milliseconds(end),
    }
    text = json.dumps(report, indent=1)
    print(text)
    if out is not None:
        out.write_text(text + "\n")


def _milliseconds(end: float) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of a call, by network and then by "nnef_jax" and "jax"."""
    times: dict[str, dict[str, float]] = {}
    for name, dtype, batch in itertools.product(_TIMED, DTYPES, (8, 1)):
        if time.monotonic() > end:
            break
        model = network_of(name, batch, dtype)
        function, parameters, types = plain_function(name, batch, dtype)
        parameters = {key: jnp.asarray(x, dtype) for key, x in parameters.items()}
        ours = [jnp.ones(x.shape, x.dtype) for x in model.inputs]
        plain = {key: jnp.ones(x.shape, x.dtype) for key, x in types.items()}
        calls = {
            "nnef_jax": partial(model, *ours),
            "jax": partial(jax.jit(function), parameters, plain),
        }
        seconds: dict[str, list[float]] = {key: [] for key in calls}
        for _ in range(_ROUNDS):
            for key, call in calls.items():
                start = time.perf_counter()
                jax.block_until_ready(call())
                seconds[key].append(time.perf_counter() - start)
        # The first call compiles.
        times[f"{name} b{batch} {dtype}"] = {k: 1e3 * median(x[1:]) for k, x in seconds.items()}
    return times


def _differing(cases: Sequence[OpCase]) -> dict[str, str]:
    """Return a message with the largest error for each row that differs from the reference."""
    models = [model_of(document(x), precision="highest") for x in cases]
    arrays = [inputs(case) for case in cases]

    def run(arrays: Sequence[Sequence[Any]]) -> list[Any]:
        return [m.apply({}, *xs) for m, xs in zip(models, arrays, strict=True)]

    wrong: dict[str, str] = {}
    for case, outputs in zip(cases, jax.jit(run)(arrays), strict=True):
        for x, y in zip(jax.tree.leaves(outputs), expected(case), strict=True):
            got, reference = np.asarray(x, y.dtype), np.asarray(y)
            allowed = case.tolerance * (1 + np.abs(reference)) if y.dtype.kind in "fc" else 0
            error = np.abs(got.astype(np.float64) - reference.astype(np.float64))
            bad = ~(error <= allowed) & ~(np.isnan(got) & np.isnan(reference))
            if bad.any() and not np.array_equal(got, reference):
                wrong[case.name] = f"error {error[bad].max():.3g}"
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    main(arguments.minutes, arguments.seed, arguments.out)
