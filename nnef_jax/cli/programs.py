"""Prints programs after passes, for `compile --print-after`."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from lowering import Program, Target


@contextmanager
def printed_after(names: Sequence[str]) -> Generator[list[str]]:
    """Yield a list. After each pass in `names`, the lines of the program are added to the list.

    The name "all" stands for all passes. Raises BadParameter for a pass that the target of the
    default device does not have.
    """
    if not names:
        yield []
        return
    from lowering import DIFFERENTIABLE, name_of, target_of, watched
    from nnef_jax.execution.places import default_platform

    target = target_of(default_platform())
    passes = (*DIFFERENTIABLE.passes, *target.passes)
    distinct_names = dict.fromkeys(map(name_of, passes))
    choices = [*distinct_names, "all"]
    for name in names:
        if name not in choices:
            message = f"{name!r} is not one of {', '.join(choices)}"
            raise typer.BadParameter(message, param_hint="--print-after")
    lines: list[str] = []

    def watch(name: str, target: Target, before: Program, after: Program) -> None:
        """Add the lines of the program after a pass, if the pass is in `names`."""
        is_named = name in names or "all" in names
        if not is_named:
            return
        text_after = str(after)
        head = f"after {name} for {target.platform or 'all platforms'}:"
        is_unchanged = after is before or text_after == str(before)
        if is_unchanged:
            lines.append(f"{head} as before")
        else:
            lines.extend([head, *text_after.split("\n")])

    with watched(watch):
        yield lines
