"""Estimates a call's cost by XLA, beside the multiply-adds of the document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from lowering import total
from nnef_jax.calls.arguments import Example
from nnef_jax.execution.places import default_device
from nnef_jax.measure.examples import declared_types
from nnef_jax.measure.instructions import program_of
from nnef_jax.model import Model
from nnef_jax.options import require, require_choice
from nnef_jax.results import Result, Table, table_of
from nnef_jax.workings import bind, compiled, graph_for, types_of

_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


@dataclass(frozen=True, eq=False, repr=False)
class Cost(Result):
    """XLA's estimate of the cost of a call; figures that XLA does not report are None.

    Attributes:
        network: the name of the network.
        platform: the platform that the network is compiled or lowered for.
        compiled: whether it is compiled. A network that is only lowered is counted before XLA fuses
            operations, so that `bytes_accessed` is too large.
        multiply_adds: multiply-adds of products and convolutions in the document.
        flops: floating-point operations of the program, 2 for a multiply-add. Other kernels may
            need fewer than the document, and XLA does not count products with the padding of a
            convolution. On a mesh all figures but `multiply_adds` are for one device.
        transcendentals: the number of exponentials, logarithms and the like.
        bytes_accessed: bytes that kernels read and write, without caches.
        argument_bytes: bytes of inputs and prepared parameters. Small parameters are a part of the
            program instead.
        output_bytes: bytes of the outputs.
        temporary_bytes: the peak memory for intermediate tensors.
        code_bytes: bytes of the program.
        loops: the number of loops; XLA counts the body of a loop once.
    """

    network: str
    platform: str
    compiled: bool
    multiply_adds: int
    flops: float | None
    transcendentals: float | None
    bytes_accessed: float | None
    argument_bytes: int | None
    output_bytes: int | None
    temporary_bytes: int | None
    code_bytes: int | None
    loops: int

    @property
    def intensity(self) -> float | None:
        """Return flops per byte; below about 10, memory limits the speed of most machines."""
        return self.flops / self.bytes_accessed if self.flops and self.bytes_accessed else None

    def to_dict(self) -> dict[str, object]:
        """Return the attributes and `intensity`."""
        return super().to_dict() | {"intensity": self.intensity}

    def table(self) -> Table:
        """Return a table of XLA's figures."""
        share = self.flops / 2 / self.multiply_adds if self.flops and self.multiply_adds else None
        rows: list[tuple[str, Any, str]] = [
            ("multiply-adds", self.multiply_adds, "of products and convolutions in the document"),
            ("flops", self.flops, f"{share:.2f} of 2 a multiply-add" if share else ""),
            ("transcendentals", self.transcendentals, ""),
            ("bytes accessed", self.bytes_accessed, "" if self.compiled else "before fusion"),
            ("flops a byte", self.intensity and f"{self.intensity:.3g}", ""),
            ("arguments", self.argument_bytes, "bytes of inputs and prepared parameters"),
            ("outputs", self.output_bytes, "bytes"),
            ("temporaries", self.temporary_bytes, "bytes"),
            ("code", self.code_bytes, "bytes"),
            ("loops", self.loops or None, "whose bodies are counted once"),
        ]
        shown = [
            (name, value if isinstance(value, str) else f"{int(value):,}", note)
            for name, value, note in rows
            if value is not None
        ]
        how = "compiled" if self.compiled else "lowered"
        table = table_of(f"{self.network}, {how} for {self.platform}", ("", "", ""), shown)
        table.show_header = False
        table.columns[1].justify = "right"
        return table


def cost(model: Model, *inputs: Example, platform: str | None = None, **named: Example) -> Cost:
    """Return XLA's estimate of a call's cost: flops, bytes accessed, memory.

    For the default platform of jax the program of `model(*inputs)` is compiled. For another
    platform `jax.jit(model.apply)` is lowered, and memory is unknown. The network is not run.

    Args:
        model: the model of the call.
        inputs: arrays or `jax.ShapeDtypeStruct`s; the declared shapes by default.
        platform: "cpu", "cuda", "rocm" or "tpu"; by default where jax computes.
        named: inputs by name.

    Raises InputError as a call does, and if shapes are open and no inputs are given.

    >>> nnef_jax.cost(model, images).flops
    """
    require("model", model, Model, "a nnef_jax.Model")
    present = _canonical(default_device())
    if platform is not None:
        require_choice("platform", platform, _PLATFORMS)
    examples = inputs or tuple([] if named else declared_types(model))
    types = types_of(model, examples, named)
    graph = graph_for(model, types)
    stage: jax.stages.Lowered | jax.stages.Compiled
    if platform in (None, present):
        arrays = bind(model, [jax.numpy.zeros(x.shape, x.dtype) for x in types])
        stage = compiled(model, "outputs", {}, arrays)
        memory, loops = stage.memory_analysis(), program_of(stage.as_text() or "", ()).loops
    else:
        traced = jax.jit(model.apply).trace(model.params, *types)
        stage = traced.lower(lowering_platforms=(platform,))
        memory, loops = None, stage.as_text().count("stablehlo.while")
    analysis: Any = stage.cost_analysis() or {}
    return Cost(
        graph.name,
        platform or present,
        platform in (None, present),
        total(graph),
        analysis.get("flops"),
        analysis.get("transcendentals"),
        analysis.get("bytes accessed"),
        getattr(memory, "argument_size_in_bytes", None),
        getattr(memory, "output_size_in_bytes", None),
        getattr(memory, "temp_size_in_bytes", None),
        getattr(memory, "generated_code_size_in_bytes", None) or None,
        loops,
    )


def _canonical(device: Any) -> str:
    """Return the name of the device's platform in lowering: cuda or rocm instead of gpu."""
    if device.platform == "gpu":
        return "rocm" if "rocm" in device.client.platform_version else "cuda"
    return device.platform
