"""Measures networks of 8 bits, beside float32 and beside other engines.

    python -m benchmarks.quantised [--networks resnet50,mobilenet_v2,bert] [--batch 1,8]

onnxruntime quantises the ONNX model of each network, by the ranges of tensors for one random input.
Activations become uint8, and weights become int8 with a scale for each channel. The kernels of
onnxruntime and OpenVINO are made for these types: ResNet-50 takes 10 ms in onnxruntime and 4 ms in
OpenVINO, and 30 ms and 31 ms if activations are int8. onnxruntime and OpenVINO run the quantised
ONNX model. nnef_jax runs the IR to which OpenVINO converts this model. The calls alternate in one
process. A ratio is the time of nnef_jax in 8 bits divided by that of the engine in the row.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.builders.base import Array
from benchmarks.engines import cores, example, imported_openvino, onnx_session, write_nnef
from benchmarks.engines import write_onnx as write_real
from benchmarks.timing import measure, relative_difference

NETWORKS = "resnet50,mobilenet_v2,bert"
_OURS = "nnef_jax, 8 bits"


class _Once:
    """A reader of calibration data for onnxruntime, which has a single input."""

    def __init__(self, inputs: Mapping[str, Array]) -> None:
        self._given = iter([inputs])

    def get_next(self) -> Mapping[str, Array] | None:
        """Return the input, then None."""
        return next(self._given, None)


def write_quantised(network: str, batch: int, inputs: Mapping[str, Array], folder: Path) -> Path:
    """Write the quantised ONNX model, and beside it OpenVINO's IR. Return the model's path."""
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path, prepared = folder / "quantised.onnx", folder / "prepared.onnx"
    quant_pre_process(write_real(network, batch, folder), prepared, skip_symbolic_shape=True)
    reader: Any = _Once(inputs)
    q.quantize_static(
        prepared,
        path,
        reader,
        quant_format=q.QuantFormat.QDQ,
        per_channel=True,
        activation_type=q.QuantType.QUInt8,
        weight_type=q.QuantType.QInt8,
    )
    openvino = imported_openvino()
    model = openvino.convert_model(path)
    openvino.save_model(model, path.with_suffix(".xml"), compress_to_fp16=False)
    return path


def calls_of(network: str, batch: int, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return the functions to time, by engine. Each runs the network and returns a numpy array."""
    import nnef_jax

    inputs = example(network, batch)
    path = write_quantised(network, batch, inputs, folder)
    (name,), (x,) = inputs, inputs.values()
    session = onnx_session(path)
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",  # for operations that are not in 8 bits
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": cores(),
    }
    openvino = imported_openvino().Core().compile_model(path, "CPU", settings)
    request = openvino.create_infer_request()
    ours = nnef_jax.load(path.with_suffix(".xml"))
    real = nnef_jax.load(write_nnef(network, batch, folder))
    return {
        _OURS: lambda: np.asarray(ours(x)),
        "float32": lambda: np.asarray(real(x)),
        "onnxruntime": lambda: session.run(None, {name: x})[0],
        "OpenVINO": lambda: request.infer([x])[0],
    }


def main() -> None:
    """Print the times, their ratios, and the differences of the results from those in float32."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    given = parser.parse_args()
    for network in given.networks.split(","):
        for batch in map(int, given.batch.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                calls = calls_of(network, batch, Path(folder))
                wanted = calls["float32"]()
                found = measure(calls, given.rounds)
                print(f"{network}, batch {batch} (others used {found.elsewhere:.1f} cores)")
                for name, seconds in found.medians.items():
                    ratio = found.medians[_OURS] / seconds
                    off = relative_difference(wanted, calls[name]())
                    print(f"  {name:16} {1e3 * seconds:8.2f} ms {ratio:6.2f}   off {off:.3f}")


if __name__ == "__main__":
    main()
