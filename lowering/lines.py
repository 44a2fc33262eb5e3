"""Makes jax record which line of the document computes what: in HLO, profiles and tracebacks.

jax takes the place of an operation from the frames of Python that trace it. Here a frame between
these stands in the document, as templating languages do it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from lowering.graph import Operation
from lowering.location import Span


def call_at(operation: Operation, run: Callable[[], Any]) -> Any:
    """Return the result of `run`, called by a frame at the operation's place in the document."""
    _leave_out_packages()
    return run() if operation.span is None else _frame(operation.span, operation.name)(run)


@cache
def _leave_out_packages() -> None:
    """Make frames of these packages no places in a user's program; those around them are.

    What it imports takes 15 ms, which a process that finds all in a cache does without.
    """
    # A later jax may lack what is needed, and names a file of ours instead.
    with suppress(ImportError, AttributeError):
        from lowering.jaxprs import leave_out

        for package in ("lowering", "nnef_jax"):
            leave_out(f"{Path(__file__).parents[1] / package}/")


def _frame(span: Span, name: str) -> Callable[..., Any]:
    """Return a function of this name that calls its argument, at this place."""
    line, column = span.source.position(span.offset)
    start, end = column - 1, column - 1 + span.length
    place: Any = {"lineno": line, "col_offset": start, "end_lineno": line, "end_col_offset": end}
    call = ast.Call(ast.Name("run", ast.Load(), **place), [], [], **place)
    parameters = ast.arguments([], [ast.arg("run", **place)], None, [], [], None, [])
    expression = ast.Expression(ast.Lambda(parameters, call, **place))
    function: Any = eval(compile(expression, span.source.name, "eval"), {})
    function.__code__ = function.__code__.replace(co_name=name, co_qualname=name)
    return function
