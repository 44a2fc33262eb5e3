"""Run all examples, or those that are named, and print what each has made or needs.

python -m examples [NAME ...] [--out out] [--overwrite]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

HERE = Path(__file__).parent
# The options of each example. {out} is the folder to which all examples write, and {here} is the
# folder of the examples.
EXAMPLES = {
    "saliency": "--out {out}/saliency.png",
    "photograph": "--out {out}/photograph.png",
    "detect": "--out {out}/detect.png",
    "finetune": "--out {out}/finetune.png --save {out}/rotated.nnef.tgz",
    "fixed_point": "--out {out}/fixed_point.png --save {out}/q78.nnef.tgz",
    "adversarial": "--out {out}/adversarial.png --save {out}/robust.nnef.tgz",
    "certified": "--out {out}/certified.png --save {out}/certified.nnef.tgz",
    "decode": "",
    "speech": "--out {out}/speech.png",
    "two_hosts": "--out {out}/two_hosts.png",
    "train": "--save {out}/digits.nnef.tgz",
    "ray/predict": "{here}/digits/model {here}/digits/scans --out {out}/ray",
}


def run(name: str, out: Path, overwrite: bool) -> tuple[str, str]:
    """Run an example. Return its status, such as "done", and the last line that it printed."""
    command = [sys.executable, str(HERE / f"{name}.py")]
    command += [option.format(out=out, here=HERE) for option in EXAMPLES[name].split()]
    if overwrite and name not in ("decode", "ray/predict"):  # they have no such option
        command.append("--overwrite")
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    *_, said = ["", *(done.stderr if done.returncode else done.stdout).strip().splitlines()]
    if done.returncode == 0:
        return "[green]done", said
    if said.startswith("needs "):
        return "[yellow]skipped", said
    print(done.stdout, done.stderr, sep="")
    return "[red]failed", said


def main(argv: Sequence[str] | None = None) -> int:
    """Run the examples one after the other. The exit status is 1 if one of them has failed."""
    parser = argparse.ArgumentParser("python -m examples", description="Run all examples.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXAMPLES))
    parser.add_argument("--out", type=Path, default="out", help="a folder (%(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    args = parser.parse_args(argv)
    if unknown := set(args.names) - set(EXAMPLES):
        parser.error(f"no example is named {', '.join(unknown)}; there are {', '.join(EXAMPLES)}")
    table = Table("example", "", "seconds", "it says", box=None)
    failed = False
    console = Console()
    for name in args.names or EXAMPLES:
        begun = time.perf_counter()
        with console.status(name):
            state, said = run(name, args.out, args.overwrite)
        failed |= "failed" in state
        table.add_row(name, state, f"{time.perf_counter() - begun:.0f}", escape(said))
    console.print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
