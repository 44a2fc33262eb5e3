"""Describes a network, or the host, in the lines that `summary` and `machine` print."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

from lowering import DEFAULT
from nnef_jax.execution import host_profile
from nnef_jax.measure.summary import Summary


def describe(summary: Summary) -> list[str]:
    """Return the lines of a summary: facts, inputs and outputs of the network, then the table."""
    lines = [("name", summary.name), ("dialect", summary.dialect)]
    lines += [("extension", extension) for extension in summary.extensions]
    lines += [("input", str(tensor)) for tensor in summary.inputs]
    lines += [("output", str(tensor)) for tensor in summary.outputs]
    counts = [(name, n) for name, n in summary.counts.items() if n and name != "multiply_adds"]
    lines += [(name.replace("_", " "), f"{n:,}") for name, n in counts]
    lines += [("unknown", operator) for operator in summary.unknown]
    width = max(16, *(len(name) + 2 for name, _ in lines))
    return [*(f"{name:<{width}}{text}" for name, text in lines), "", *str(summary).split("\n")]


def machine_lines(*, as_json: bool) -> list[str]:
    """Return the lines that show the rates of the machine, and the decisions that depend on them.

    If `as_json`, the lines are JSON.

    Rates that are not stored are measured. If they cannot be measured, the rates that are shipped
    with the package are used.
    """
    profile = DEFAULT
    path = ""
    if host_profile.may_measure():
        profile = host_profile.read() or host_profile.measure() or DEFAULT
        path = host_profile.path_in() or ""
    if not os.path.exists(path):
        path = ""
    if as_json:
        rates = asdict(profile)
        return [json.dumps({"file": path or None, **rates, "decisions": profile.decisions()})]
    lines = [("file", path or "none: the shipped rates are used")]
    lines.append(("threads", str(profile.threads)))
    for part in (profile, profile.costs):
        lines += [(name, _rate(name, getattr(part, name))) for name in part.names()]
    for name, is_chosen in profile.decisions().items():
        lines.append((name, "yes" if is_chosen else "no"))
    return [f"{name.replace('_', ' '):<21}{text}" for name, text in lines]


def _rate(name: str, value: float) -> str:
    return f"{value * 1e6:.3g} us" if name == "start" else f"{value / 1e9:.3g} G/s"
