"""The profile of the host, as `nnef-jax info --machine` shows it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

from lowering import machine
from nnef_jax.execution import host_profile


def shown(*, as_json: bool) -> list[str]:
    """Return rates and what is decided by them, as lines or as JSON.

    They are measured now if they are not kept yet. Where they cannot be they are the shipped ones.
    """
    folder = host_profile.users_folder() if host_profile.may_measure() else None
    found = folder and (host_profile.read(folder) or host_profile.measure(folder))
    profile = found or machine.DEFAULT
    path = host_profile.path_in(folder) if folder else ""
    path = path if os.path.exists(path) else None
    if as_json:
        return [json.dumps({"file": path, **asdict(profile), "decisions": profile.decisions()})]
    lines = [("file", path or "none: the shipped rates hold"), ("threads", str(profile.threads))]
    for part in (profile, profile.costs):
        lines += [(name, _rate(name, getattr(part, name))) for name in machine.names(type(part))]
    decisions = profile.decisions().items()
    lines += [(name, "yes" if decided else "no") for name, decided in decisions]
    return [f"{name.replace('_', ' '):<21}{text}" for name, text in lines]


def _rate(name: str, value: float) -> str:
    return f"{value * 1e6:.3g} us" if name == "start" else f"{value / 1e9:.3g} G/s"
