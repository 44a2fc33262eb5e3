"""The public surface of lowering: its names, and the program in its docstring."""

from __future__ import annotations

import doctest
import subprocess
import sys

import lowering


def test_the_docstring_is_a_program_that_runs() -> None:
    results = doctest.testmod(lowering, optionflags=doctest.ELLIPSIS)
    assert results.attempted > 15 and not results.failed


def test_names_are_imported_when_they_are_used() -> None:
    program = "import sys, lowering, nnef_jax; print({'jax', 'numpy'} & {*sys.modules})"
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
    assert all(getattr(lowering, name) is not None for name in dir(lowering))
