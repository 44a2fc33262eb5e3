"""Converts modules to OpenVINO's files, and runs these by its runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import torch

from tests.openvino.networks.base import Array, Network

_EXACT = {
    "INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0", "KV_CACHE_PRECISION": "f32",
}  # fmt: skip


def converted(network: Network) -> Any:
    """Return OpenVINO's model of a network."""
    module = network.module()
    shapes = [
        [-1 if axis in network.open.get(i, ()) else n for axis, n in enumerate(x.shape)]
        for i, x in enumerate(network.inputs)
    ]
    example = tuple(torch.from_numpy(x) for x in network.arrays())
    torch.backends.mha.set_fastpath_enabled(False)  # an operation that is not converted
    model = openvino.convert_model(module, example_input=example, input=shapes)
    for output, name in zip(model.outputs, getattr(module, "outputs", ()), strict=False):
        output.get_tensor().set_names({name})
    return network.changed(model) if network.changed else model


def written(model: Any, folder: Path, *, half: bool) -> Path:
    """Return the file of a model in a folder."""
    path = folder / f"{'half' if half else 'whole'}.xml"
    openvino.save_model(model, path, compress_to_fp16=half)
    return path


class Runtime:
    """OpenVINO's runtime, which computes in float32."""

    def __init__(self, path: Path) -> None:
        core = openvino.Core()
        self._request = core.compile_model(
            core.read_model(path), "CPU", _EXACT
        ).create_infer_request()

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        found = self._request.infer(list(arrays))
        return [np.array(x) for x in found.values()]
