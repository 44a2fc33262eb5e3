"""Describes a network, or the host, as `summary` and `machine` show it, as text and as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from lowering import DEFAULT, multiply_adds
from lowering.extents import UNKNOWN, known, volume
from lowering.graph import UNTYPED, Parameter, StateVariable, Value
from nnef_jax.execution import host_profile
from nnef_jax.flattening.outline import unknown_operators
from nnef_jax.network import Network
from nnef_jax.summary import summarise
from nnef_jax.tensor_spec import TensorSpec, spec_of


def describe(network: Network) -> list[str]:
    """Return a network's description in lines, above the table of its operations."""
    graph, counts = network.graph, _counts(network)
    lines = [("name", graph.name), ("dialect", network.frontend.dialect)]
    lines += [("extension", extension) for extension in network.frontend.extensions]
    lines += [("input", str(spec)) for spec in network.specs(graph.inputs)]
    lines += [("output", str(x)) for x in network.specs(graph.outputs, graph.output_names)]
    lines += [(name.replace("_", " "), _shown(count)) for name, count in counts.items() if count]
    lines += [("unknown", name) for name in unknown_operators(graph)]
    width = max(16, *(len(name) + 2 for name, _ in lines))
    head = [f"{name:<{width}}{text}" for name, text in lines]
    return [*head, "", *summarise(network).split("\n")]


def description(network: Network) -> dict[str, Any]:
    """Return the same as an object for JSON; an unknown extent or count is null."""
    graph = network.graph
    return {
        "name": graph.name,
        "dialect": network.frontend.dialect,
        "extensions": list(network.frontend.extensions),
        "inputs": [_told(x) for x in network.specs(graph.inputs)],
        "outputs": [_told(x) for x in network.specs(graph.outputs, graph.output_names)],
        "unknown": unknown_operators(graph),
        "counts": {name: _known(count) for name, count in _counts(network).items()},
        "operations": [
            {
                "name": operation.name,
                "kind": operation.kind,
                "results": [{"name": x.name, **_type(x)} for x in operation.writes()],
                "multiply_adds": multiply_adds(operation),
            }
            for operation in graph.operations
        ],
        "variables": [
            {"label": v.label, **_type(v.value), "unused": v.label in network.unused}
            for v in (*graph.parameters, *graph.states)
        ],
    }


def _counts(network: Network) -> dict[str, int]:
    graph = network.graph
    return {
        "operations": len(graph.operations),
        "variables": len(graph.parameters) + len(graph.states),
        "parameters": _items(p for p in graph.parameters if p.label not in network.unused),
        "unused_parameters": _items(p for p in graph.parameters if p.label in network.unused),
        "state": _items(graph.states),
        "weight_bytes": sum(array.nbytes for array in network.data.values()),
    }


def _items(variables: Iterable[Parameter | StateVariable]) -> int:
    return sum(volume(known(variable.value.type.shape)) for variable in variables)


def _told(spec: TensorSpec) -> dict[str, Any]:
    """Return a description as an object for JSON, with the names of extents where there are any."""
    told: dict[str, Any] = {"name": spec.name, "shape": spec.shape, "dtype": spec.dtype}
    if spec.dtype == UNTYPED.dtype:
        told["shape"] = None
    return told | ({"extents": spec.extents} if any(spec.extents) else {})


def _type(value: Value) -> dict[str, Any]:
    told = _told(spec_of(value.name, value))
    return {name: told[name] for name in ("shape", "dtype")}


def _known(count: int) -> int | None:
    return None if count is UNKNOWN else count


def _shown(count: int) -> str:
    return "?" if count is UNKNOWN else f"{count:,}"


def machine_lines(*, as_json: bool) -> list[str]:
    """Return rates and what is decided by them, as lines or as JSON.

    They are measured now if they are not kept yet. Where they cannot be they are the shipped ones.
    """
    profile, path = DEFAULT, ""
    if host_profile.may_measure():
        profile = host_profile.read() or host_profile.measure() or DEFAULT
        path = host_profile.path_in() or ""
    path = path if os.path.exists(path) else ""
    if as_json:
        return [
            json.dumps({"file": path or None, **asdict(profile), "decisions": profile.decisions()})
        ]
    lines = [("file", path or "none: the shipped rates hold"), ("threads", str(profile.threads))]
    for part in (profile, profile.costs):
        lines += [(name, _rate(name, getattr(part, name))) for name in part.names()]
    decisions = profile.decisions().items()
    lines += [(name, "yes" if decided else "no") for name, decided in decisions]
    return [f"{name.replace('_', ' '):<21}{text}" for name, text in lines]


def _rate(name: str, value: float) -> str:
    return f"{value * 1e6:.3g} us" if name == "start" else f"{value / 1e9:.3g} G/s"
