"""Start two processes that act as two hosts, and draw the parts of arrays that each holds.

    python examples/two_hosts.py [--out out/two_hosts.png]

Both processes run `multihost/classify.py`. The parameters and a batch of 64 digits are sharded over
the devices of both. The result of both together is compared with the result of a single process.
"""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import nnef_jax
from common import BLUE, DIGITS, GREEN, Options, picture

CLASSIFY = Path(__file__).parent / "multihost" / "classify.py"
Shapes = dict[str, tuple[int, ...]]


def on_two_hosts() -> tuple[list[Shapes], np.ndarray]:
    """Return the shapes of the arrays that each host holds, and the probabilities (64, 10)."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    with TemporaryDirectory() as folder:
        out = Path(folder) / "probabilities.npy"
        command = [sys.executable, str(CLASSIFY), address, "2"]
        hosts = [
            subprocess.Popen(
                [*command, str(host), str(out)],
                env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
                stdout=subprocess.PIPE,
                text=True,
            )
            for host in range(2)
        ]
        printed = [host.communicate()[0] for host in hosts]
        if any(host.returncode for host in hosts):
            raise SystemExit("a host failed; what it said is above")
        held = re.findall(r"holds (.*)", "".join(printed))  # other lines are printed by gloo
        return [ast.literal_eval(shapes) for shapes in held], np.load(out)


def draw(path: Path, held: Sequence[Shapes], whole: Shapes) -> None:
    """Draw each array as a bar, with the parts that each host holds."""
    with picture(path, 8, 3.6, [["all"]]) as axes:
        axis = axes["all"]
        for row, (name, shape) in enumerate(whole.items()):
            if all(shapes[name] == shape for shapes in held):
                axis.barh(row, 1, 0.7, color="#e5e7eb")
                axis.text(0.5, row, "all of it on both", ha="center", va="center")
                continue
            for host, color in enumerate((BLUE, GREEN)):
                text = f"host {host}: {list(held[host][name])}"
                axis.barh(row, 0.5, 0.7, host / 2, color=color, edgecolor="white")
                axis.text(0.25 + host / 2, row, text, color="white", ha="center", va="center")
        labels = [f"{name}  {list(shape)}" for name, shape in whole.items()]
        axis.set_yticks(range(len(whole)), labels)
        axis.set(xlim=(0, 1), xticks=[], title="What each of two hosts holds")
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
        axis.invert_yaxis()


def main(argv: Sequence[str] | None = None) -> None:
    args = Options(__doc__, ["matplotlib"], out="two_hosts.png").read(argv)
    held, together = on_two_hosts()
    model = nnef_jax.load(DIGITS / "model")
    alone = np.asarray(model(np.random.default_rng(0).random((64, 1, 8, 8), np.float32)))
    whole = {**{k: v.shape for k, v in model.params.items()}, "probabilities": alone.shape}
    for name, shape in whole.items():
        print(f"{name:14} {shape!s:16}", *(f"host {i}: {h[name]!s:14}" for i, h in enumerate(held)))
    print(f"largest difference from one process: {np.abs(together - alone).max():.1e}")
    draw(args.out, held, whole)


if __name__ == "__main__":
    main()
