"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def imported(package: str, homes: Mapping[str, str], name: str) -> object:
    """Return a name of a package from its home: a module that has it, or a package that it is in.

    The package keeps it. Raises AttributeError for a name without a home.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    from importlib import import_module

    home = homes[name]
    is_module = home in (package, "lowering.kernels")
    value: object = import_module(f"{home}.{name}" if is_module else home)
    value = value if is_module else getattr(value, name)
    setattr(sys.modules[package], name, value)
    return value
