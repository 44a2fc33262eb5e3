"""Generates text over eight devices, and prints in JSON the tokens and collectives.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.generation.eight_devices

It is a program since the tests themselves have two devices.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType

import nnef_jax
from nnef_jax.execution.routine import RoutineEntry
from nnef_jax.execution.runnable import execution_of
from nnef_jax.generation import Decoder, Sampling
from nnef_jax.generation.token_loop import TokenChoice, TokenLoop
from nnef_jax.generation.token_sampling import stop_array
from tests.mesh_support import of_program

NETWORKS = Path(__file__).parent / "networks"
PLACES = 64
_GATHERED = re.compile(r"\w+\[([\d,]+)\]\S* (?:all-gather|all-to-all|collective-permute)")


def decoder() -> Decoder:
    """Return the decoder of a Llama of eight heads, one on each device."""
    source = nnef_jax.decoder(nnef_jax.load(NETWORKS / "llama8.nnef.tgz"), PLACES)
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
    return source.with_model(source.model.shard(mesh, batch=None, params="model"))


def collectives(program: jax.stages.Compiled) -> dict[str, Any]:
    """Return the collectives of a program by kind, and the largest array that one of them moves.

    All-reduces are left out of the largest array.
    """
    shapes = [m[1].split(",") for m in _GATHERED.finditer(program.as_text() or "")]
    sizes = [int(np.prod(np.array(shape, int))) for shape in shapes]
    return {**of_program(program), "largest": max(sizes, default=0)}


def main() -> None:
    """Print the results."""
    sharded = decoder()
    execution = execution_of(sharded.model)
    with np.load(NETWORKS / "llama8.npz") as arrays:
        prompt = arrays["prompt"]
    results: dict[str, Any] = {"tokens": sharded.generate(prompt, 40).tokens[0].tolist()}
    text = np.concatenate([prompt[0], results["tokens"]])
    rows = np.stack([text[:20], np.pad(text[:14], (0, 6))])
    results["rows"] = sharded.generate(rows, 8, lengths=[20, 14]).tokens.tolist()
    for name, count in (("step", 1), ("chunk", 16)):
        inputs = execution.bind((), {"input_ids": np.zeros((1, count), np.int32)})
        program = execution.compiled(execution.step, sharded.init_state(1), inputs)
        results[name] = collectives(program)
    loop = TokenLoop(64)
    choice = TokenChoice(Sampling().numbers(), stop_array(()))
    request = sharded._request(prompt, 20, None, Sampling(), 0, (), None, {})  # pyright: ignore[reportPrivateUsage]
    start, prompts = sharded._start(request)  # pyright: ignore[reportPrivateUsage]
    run = execution.executables.jitted_routine(RoutineEntry(execution.definition, loop))
    params = execution.arrays.params_for_traced_calls()
    program = run.lower(params, start, prompts, choice, np.int32(20), []).compile()
    results["loop"] = collectives(program)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
