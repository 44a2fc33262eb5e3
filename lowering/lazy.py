"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def imported(package: str, homes: Mapping[str, str], name: str) -> object:
    """Return a name of a package from its home, and have the package keep it.

    A name that the home does not have is a module in it. Raises AttributeError for a name without
    a home.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    from importlib import import_module

    home = homes[name]
    module = import_module(home)
    is_in_it = home == package or name not in dir(module)
    value: object = import_module(f"{home}.{name}") if is_in_it else getattr(module, name)
    setattr(sys.modules[package], name, value)
    return value
