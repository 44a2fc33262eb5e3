"""Imports the names of a package when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def imported(package: str, homes: Mapping[str, str], name: str) -> object:
    """Import the object `name` from its module, and set it as an attribute of the package.

    `homes` maps each name to its module. The name of a submodule is mapped to the package that
    contains the submodule. Raises AttributeError if `homes` lacks the name.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    from importlib import import_module

    home = homes[name]
    module = import_module(home)
    # `dir` of the package itself has all names of `homes`, even names of submodules. But only
    # submodules have the package as their home.
    is_submodule = home == package or name not in dir(module)
    value: object = import_module(f"{home}.{name}") if is_submodule else getattr(module, name)
    setattr(sys.modules[package], name, value)
    return value
