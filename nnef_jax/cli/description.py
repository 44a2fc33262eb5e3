"""Describes a network, or the host, in the lines that `summary` and `machine` print."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

from lowering import DEFAULT
from nnef_jax.execution import host_profile
from nnef_jax.measure.summary import Summary


def describe(summary: Summary) -> list[str]:
    """Return the lines of a summary: facts about the network, and then the table."""
    facts = [("name", summary.name), ("dialect", summary.dialect)]
    facts += [("extension", extension) for extension in summary.extensions]
    facts += [("input", str(tensor)) for tensor in summary.inputs]
    facts += [("output", str(tensor)) for tensor in summary.outputs]
    for name, count in summary.counts.items():
        # The lines below the table contain the multiply-adds already.
        if count and name != "multiply_adds":
            facts.append((name.replace("_", " "), f"{count:,}"))
    facts += [("unknown", operator) for operator in summary.unknown]
    width = max(16, *(len(name) + 2 for name, _text in facts))
    lines = [f"{name:<{width}}{text}" for name, text in facts]
    return [*lines, "", *str(summary).split("\n")]


def machine_lines(*, as_json: bool) -> list[str]:
    """Return the lines that show the machine's speeds (rates), and what they decide.

    If `as_json`, the result is a single line of JSON. Rates that are not stored are measured. If
    rates cannot be measured, the rates that are shipped with the package are shown.
    """
    profile = DEFAULT
    path = ""
    if host_profile.may_measure():
        stored_or_measured = host_profile.read() or host_profile.measure()
        profile = stored_or_measured or DEFAULT
        path = host_profile.path_in() or ""
    # Measured rates may not have been stored.
    if not os.path.exists(path):
        path = ""
    if as_json:
        rates = asdict(profile)
        return [json.dumps({"file": path or None, **rates, "decisions": profile.decisions()})]
    facts = [("file", path or "none: the shipped rates are used")]
    facts.append(("threads", str(profile.threads)))
    for part in (profile, profile.costs):
        facts += [(name, _rate(name, getattr(part, name))) for name in part.names()]
    for name, is_chosen in profile.decisions().items():
        facts.append((name, "yes" if is_chosen else "no"))
    return [f"{name.replace('_', ' '):<21}{text}" for name, text in facts]


def _rate(name: str, value: float) -> str:
    """Return the text of a rate. The rate "start" is in seconds, and all other rates in 1/s."""
    if name == "start":
        return f"{value * 1e6:.3g} us"
    return f"{value / 1e9:.3g} G/s"
