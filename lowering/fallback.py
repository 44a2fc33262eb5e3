"""Runs a network unoptimised if rewriting fails, as may happen with a later version of jax."""

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
    """Describes a network to the functions that rewrite it.

    Args:
        name: the network's name, for warnings.
        is_strict: whether a failed pass is an error instead of a warning.
        rates: the measured speeds of the machine, or None for the profile that is current when the
            network is lowered.
        is_open: whether programs for other shapes read the same parameters, see
            `Target.is_open`.
    """

    name: str = ""
    is_strict: bool = False
    rates: MachineProfile | None = None
    is_open: bool = False


class FailedPass(RuntimeError):
    """Raised with `optimize="strict"` if a pass fails or returns an invalid program."""


UNNAMED = About()
_about = ContextVar("about", default=UNNAMED)


def named(about: About) -> AbstractContextManager[None]:
    """Set the network's name for warnings in the block of a `with` statement."""
    return holding(_about, about)


def is_strict() -> bool:
    """Tell whether programs are checked after each pass, and whether a failed pass is an error."""
    return _about.get().is_strict


def or_else(rewritten: Callable[[], T], as_written: Callable[[], T], step: str = "") -> T:
    """Return `rewritten()`, or if it fails, warn and return `as_written()`.

    The warning names `step`, the step that is left out. "" stands for all optimisation. A
    warning is given only once for each network. If both functions fail, for example because of
    an error in a user's edit, the error of `as_written` is raised. If `is_strict()` is true,
    FailedPass is raised instead of a warning.
    """
    try:
        return rewritten()
    except FailedPass:
        raise
    except Exception as error:
        # If this call fails too, its error is the one that the user sees.
        result = as_written()
        if is_strict():
            raise FailedPass(f"{step or 'optimisation'} fails: {reason(error)}") from error
        _warn(_about.get().name, step, reason(error))
        return result


def reason(error: Exception) -> str:
    """Return a text with an error's type and first line, and the equation that raised the error."""
    lines = str(error).strip().splitlines()
    first_line = lines[0] if lines else ""
    equation = getattr(error, "equation", None)
    place = f", at {equation}" if equation else ""
    return f"{type(error).__name__}: {first_line}{place}"


@functools.lru_cache(1024)
def _warn(name: str, step: str, reason: str) -> None:
    """Warn about a failed step. This function is cached, so equal warnings are given once."""
    network = f"network '{name}'" if name else "a network"
    unoptimised = "runs unoptimised, since rewriting"
    without_step = f"is compiled without {step}, which"
    outcome = without_step if step else unoptimised
    warnings.warn(
        f"{network} {outcome} fails with jax {jax.__version__}; it is slower: {reason}",
        stacklevel=2,
    )
