"""Compares networks of nnef_jax with the same networks in plain jax, on devices not attached.

    python -m benchmarks.devices [--only resnet50,bert] [--batch 1,8,128] [--out devices.json]

The networks are compiled for a TPU (v5e) and a GPU (H100), but nothing runs. All figures come from
the compilers. For the v5e there is XLA's estimate of the time of a call. For both devices there are
the bytes that a call holds in memory, the bytes that its instructions read and write, and the
number of fusions, copies and transpositions. For the GPU there is also the number of cuDNN's
convolutions, and how many of these are fused with a bias and with a ReLU. `--out` names a file that
keeps the figures. Networks whose figures are in the file are not compiled again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import jax

import nnef_jax
from benchmarks.builders.jax_builder import JaxBuilder, function_of
from benchmarks.builders.nnef_builder import NnefBuilder
from benchmarks.networks import NETWORKS, Describe, gpt
from benchmarks.networks.convolutional import c3d
from benchmarks.networks.detector import DetectorJaxBuilder, DetectorNnefBuilder, detector
from benchmarks.networks.gpt import GptJaxBuilder, GptNnefBuilder
from benchmarks.networks.llama import LlamaJaxBuilder, LlamaNnefBuilder, llama
from nnef_jax.execution.runnable import execution_of
from nnef_jax.measure.device_costs import estimated_seconds
from nnef_jax.measure.hlo import HloText
from nnef_jax.measure.topologies import Chip, topology_of
from nnef_jax.measure.unattached import Compiled, LoweredFunction, compile_for, lowered_program

GPT = "gpt_step"
LAYERS = 12
DESCRIBED: dict[str, Describe] = NETWORKS | {"c3d": c3d, "llama": llama, "detector": detector}
ONES = (
    *("resnet50", "mobilenet_v2", "vit_s", "bert", GPT, "llama", "lstm", "unet", "c3d"),
    "detector",
)
# The builders of networks with operations that other builders lack.
BUILDERS: dict[str, tuple[type[NnefBuilder], type[JaxBuilder]]] = {
    "llama": (LlamaNnefBuilder, LlamaJaxBuilder),
    "detector": (DetectorNnefBuilder, DetectorJaxBuilder),
}
TOPOLOGIES = ("v5e:1", "h100")
DTYPES = ("float32", "bfloat16")
_CONVOLUTION = "__cudnn$conv"
_FUSED = "__cudnn$convBiasActivationForward"

Figures = dict[str, float]


def figures(compiled: Compiled) -> Figures:
    """Return the figures of a compiled program, by name."""
    text = HloText(compiled.text)
    convolutions = [x for x in text.instructions if _CONVOLUTION in x.definition]
    fused = [x for x in convolutions if _FUSED in x.definition]
    seconds = estimated_seconds(compiled.analysis, text)
    held = compiled.argument_bytes + compiled.output_bytes - compiled.alias_bytes
    accessed = compiled.analysis.get("bytes accessed") or text.accessed_bytes

    def count(*opcodes: str) -> int:
        return sum(x.opcode in opcodes for x in text.instructions)

    return {
        "us": (seconds or 0) * 1e6,
        "MB held": (held + compiled.temp_bytes) / 1e6,
        "MB temporary": compiled.temp_bytes / 1e6,
        "MB accessed": accessed / 1e6,
        "convolutions": len(convolutions),
        "with bias": len(fused),
        "with ReLU": sum('"activation_mode":"kRelu"' in x.definition for x in fused),
        "fusions": count("fusion"),
        "copies": count("copy", "copy-start", "transpose"),
    }


def model_of(name: str, batch: int, dtype: str, parameters: str = "arrays") -> nnef_jax.Model:
    """Return the model of a network. For `GPT`, it is the model of one decoding step.

    The caches of a decoding step are donated.
    """
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        path = Path(folder, "network")
        options: dict[str, Any] = {"parameters": parameters, "dtype": dtype}
        if name == GPT:
            builder = GptNnefBuilder()
            logits = gpt.network(builder, LAYERS)
            builder.write(path, ", ".join([logits, *builder.states.values()]))
            return nnef_jax.load(path, state=builder.states, donate_state=True, **options)
        builder = _builders(name)[0]()
        builder.write(path, DESCRIBED[name](builder, batch))
        return nnef_jax.load(path, **options)


def ours(name: str, batch: int, dtype: str, chip: Chip) -> LoweredFunction:
    """Lower the program that a call of nnef_jax's model runs. For `GPT`, lower a step."""
    platform, capability = chip.platform, chip.compute_capability
    model = model_of(name, batch, dtype, "shapes")
    execution = execution_of(model)
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in model.inputs]
    if name != GPT:
        function, arguments = execution.program(
            execution.outputs, types, platform, compute_capability=capability
        )
        return lowered_program(function, arguments, platform)
    function, arguments = execution.program(
        execution.step, types, platform, compute_capability=capability
    )
    return lowered_program(jax.jit(function, donate_argnums=2), arguments, platform)


def plain(name: str, batch: int, dtype: str, chip: Chip) -> LoweredFunction:
    """Lower the same network as `ours`, written in plain jax."""
    function, parameters, inputs = plain_function(name, batch, dtype)
    types = {key: jax.ShapeDtypeStruct(x.shape, dtype) for key, x in parameters.items()}
    caches = {key: x for key, x in inputs.items() if "." in key}
    tokens = {key: x for key, x in inputs.items() if key not in caches}

    def call(parameters: Any, inputs: Any, caches: Any) -> Any:
        return function(parameters, inputs | caches)

    return lowered_program(jax.jit(call, donate_argnums=2), (types, tokens, caches), chip.platform)


def plain_function(name: str, batch: int, dtype: str) -> Any:
    """Return a network as a function in plain jax, its parameters, and the types of its inputs."""
    if name != GPT:
        return function_of(DESCRIBED[name], batch, dtype, _builders(name)[1])
    collected = GptJaxBuilder(dtype)

    def step(builder: GptJaxBuilder) -> Any:
        logits = gpt.network(builder, LAYERS).array
        return logits, builder.caches

    def function(parameters: Any, inputs: Any) -> Any:
        return step(GptJaxBuilder(dtype, parameters, inputs))

    jax.eval_shape(lambda: step(collected))
    return function, collected.values, collected.input_types


def _builders(name: str) -> tuple[type[NnefBuilder], type[JaxBuilder]]:
    return BUILDERS.get(name, (NnefBuilder, JaxBuilder))


def main(argv: Sequence[str] | None = None) -> None:
    """Compile the networks that the command line selects, and print their figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(ONES))
    parser.add_argument("--batch", default="1,8,128")
    parser.add_argument("--dtype", default=",".join(DTYPES))
    parser.add_argument("--topology", default=",".join(TOPOLOGIES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    results: dict[str, dict[str, Figures]] = {}
    if options.out and options.out.exists():
        results = json.loads(options.out.read_text())
    for name in options.only.split(","):
        for topology in options.topology.split(","):
            for batch in map(int, options.batch.split(",")):
                for dtype in options.dtype.split(","):
                    if name == GPT and batch > 1:
                        continue
                    key = f"{topology} {name} b{batch} {dtype}"
                    if key not in results:
                        results[key] = _compiled(topology, name, batch, dtype)
                        if options.out:
                            options.out.write_text(json.dumps(results, indent=1))
                    print(_row(key, results[key]), flush=True)
    for topology in options.topology.split(","):
        # A compiler may refuse one of the two: XLA 0.10.2 refuses plain ViT of batch 8 for an H100.
        pairs = [x for key, x in results.items() if key.startswith(topology)]
        rows = [x for x in pairs if x.keys() >= {"ours", "plain"}]
        for figure in ("us", "MB held", "MB accessed"):
            ratios = [x["ours"][figure] / x["plain"][figure] for x in rows if x["plain"][figure]]
            if ratios:
                print(f"{topology}, {figure}: {geometric_mean(ratios):.3f} of plain jax")


def _compiled(topology: str, name: str, batch: int, dtype: str) -> dict[str, Figures]:
    devices = topology_of(topology)
    makers: dict[str, Callable[..., LoweredFunction]] = {"ours": ours, "plain": plain}
    programs = [make(name, batch, dtype, devices.chip) for make in makers.values()]
    compiled = zip(makers, compile_for(devices, programs), strict=True)
    return {key: figures(x) for key, x in compiled if isinstance(x, Compiled)}


def _row(key: str, values: dict[str, Figures]) -> str:
    cells = [f"{name} {_of(values, name)}" for name in values.get("ours", {})]
    return f"{key}: " + ", ".join(cells)


def _of(values: dict[str, Figures], name: str) -> str:
    return " / ".join(f"{x[name]:.4g}" for x in values.values())


if __name__ == "__main__":
    main()
