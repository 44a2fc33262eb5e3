"""Chooses how a network is run that is run once."""

from __future__ import annotations

from typing import Any

from lowering.devices import on_cpu
from lowering.work import total
from nnef_jax.execution.entry_points import Execution

# Multiply-adds of a call beyond which the kernels for CPUs may gain more than they take to compile:
# on two cores of a Zen 3 they gain 0.04 s in a billion (ResNet-18) to 0.3 s (MobileNetV2), and take
# 4 s and 1 s of processor time.
_LONG = 10_000_000_000


def for_one_call(execution: Execution, inputs: list[Any]) -> Execution:
    """Return what answers a single call soonest: the network as it is written, most of the time.

    One that is compiled already is faster, and one whose call takes long.
    """
    if not on_cpu():
        return execution
    graph = execution.network.specialise([x.shape for x in inputs])
    is_kept = execution.outputs.is_kept(inputs)
    return execution if is_kept or total(graph) > _LONG else execution.literal()
