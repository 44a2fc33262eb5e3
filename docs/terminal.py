"""Draws commands and their output as they stand in a terminal: docs/pictures/*.svg.

python docs/terminal.py              all of them
python docs/terminal.py NAME ...     these

The commands are run. Their standard output is drawn black, and their standard error grey. It needs
the extra `text`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
ANIMALS = "nnef-jax generate examples/animals/model.nnef.tgz"
# The commands in each picture.
PICTURES = {
    "generate": [
        f'{ANIMALS} --echo --prompt "The owl"',
        f'{ANIMALS} --chat --prompt "What does the penguin eat?"',
    ]
}
# Without the lines that fetch fonts: no request leaves the reader's machine.
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.S)


def draw(commands: Sequence[str]) -> str:
    """Run commands at the root of the repository, and return the picture as SVG."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=92, file=nowhere, force_terminal=True)
        for command in commands:
            _, *words = shlex.split(command)
            done = subprocess.run(
                [sys.executable, "-m", "nnef_jax", *words],
                cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
            )  # fmt: skip
            console.print(Text(f"$ {command}", "bold"))
            console.print(Text(done.stdout.rstrip("\n")))
            console.print(Text(done.stderr.rstrip("\n"), "bright_black"))
        return console.export_svg(
            title="", theme=DEFAULT_TERMINAL_THEME, code_format=_FORMAT, unique_id="terminal"
        )


def main(argv: Sequence[str]) -> None:
    """Draw the pictures of these names, all of them if there are none."""
    for name in argv or PICTURES:
        path = ROOT / "docs" / "pictures" / f"{name}.svg"
        path.write_text(draw(PICTURES[name]), encoding="utf-8")
        print(f"wrote docs/pictures/{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
