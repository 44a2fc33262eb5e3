"""Runs a network as it is written where rewriting fails, as it may in a later jax (`jaxprs`)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

import jax

from lowering.contexts import holding
from lowering.machine import MachineProfile

T = TypeVar("T")


class About(NamedTuple):
    """Says which network is rewritten, whether what fails then is an error, and for which rates.

    With none they are those that hold where the network is rewritten. It `is_open` if programs of
    other shapes read its parameters, as a target says.
    """

    name: str = ""
    is_strict: bool = False
    rates: MachineProfile | None = None
    is_open: bool = False


class FailedPass(RuntimeError):
    """A pass fails, or breaks the program, where that is an error: `optimize="strict"`."""


NONE = About()
_about = ContextVar("about", default=NONE)


def named(about: About) -> AbstractContextManager[None]:
    """Rewrite a network meanwhile."""
    return holding(_about, about)


def is_strict() -> bool:
    """Tell whether what fails now is an error, and what passes make is checked."""
    return _about.get().is_strict


def or_else(rewritten: Callable[[], T], as_written: Callable[[], T], step: str = "") -> T:
    """Return `rewritten()`; if it fails `as_written()`, with one warning a network and error.

    The warning names the `step` that is left out, if it is one of several. Nothing else is
    remembered: what is computed next is rewritten again. Where both fail the error is that of
    `as_written`, of a user's edit say.
    """
    try:
        return rewritten()
    except FailedPass:
        raise
    except Exception as error:
        result = as_written()
        if is_strict():
            raise FailedPass(f"{step or 'optimisation'} fails: {reason(error)}") from error
        _warn(_about.get().name, step, reason(error))
        return result


def reason(error: Exception) -> str:
    """Return an error's first line, and the equation of a program at which it came up."""
    first, *_ = str(error).strip().splitlines() or [""]
    equation = getattr(error, "equation", None)
    where = f", at {equation}" if equation else ""
    return f"{type(error).__name__}: {first}{where}"


@functools.lru_cache(1024)
def _warn(name: str, step: str, reason: str) -> None:
    network = f"network '{name}'" if name else "a network"
    told = f"is compiled without {step}, which" if step else "runs as it is written, since that"
    warnings.warn(
        f"{network} {told} fails with jax {jax.__version__}; it is slower so: {reason}",
        stacklevel=2,
    )
