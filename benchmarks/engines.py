"""The engines that are compared. Each prepares a network as a function that runs it once."""

from __future__ import annotations

import importlib.util
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks import timing
from benchmarks.builders.base import Array
from benchmarks.networks import described

Call = Callable[[], Any]


class Engine(ABC):
    """An engine that runs networks.

    Where the engine's interface allows it, the inputs are converted before the measurement.
    """

    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]  # modules that must be installed
    tolerance: ClassVar[float] = timing.TOLERANCE
    is_usual: ClassVar[bool] = True  # whether it runs by default

    @abstractmethod
    def prepare(self, network: str, batch: int, inputs: Mapping[str, Array], folder: Path) -> Call:
        """Return a function that runs a network on these inputs, and waits for the result.

        Files in `folder` stay as long as the function is used.
        """

    def array(self, result: Any) -> Array:
        """Return the result of a call as a numpy array."""
        return np.asarray(result)

    @classmethod
    def missing(cls) -> list[str]:
        """Return the names of the modules that the engine needs and that are not installed."""
        return [m for m in cls.modules if importlib.util.find_spec(m) is None]


def example(network: str, batch: int) -> dict[str, Array]:
    """Return random inputs for a network, by name."""
    from benchmarks.builders.nnef_builder import NnefBuilder

    builder = NnefBuilder()
    described(network)(builder, batch)
    return builder.arguments()


def write_nnef(network: str, batch: int, folder: Path, suffix: str = "") -> Path:
    """Write a network as an NNEF archive into a folder, unless it is there. Return its path."""
    from benchmarks.builders.nnef_builder import NnefBuilder

    path = folder / f"{network}-{batch}{suffix}"
    if not path.exists():
        builder = NnefBuilder()
        builder.write(path, described(network)(builder, batch))
    return path


def write_onnx(network: str, batch: int, folder: Path) -> Path:
    """Write a network as an ONNX model into a folder, unless it is there. Return its path."""
    from benchmarks.builders.onnx_builder import OnnxBuilder

    path = folder / f"{network}-{batch}.onnx"
    if not path.exists():
        builder = OnnxBuilder()
        model = builder.model(described(network)(builder, batch))
        path.write_bytes(model.SerializeToString())
    return path


class NnefJax(Engine):
    """nnef_jax, with the default options of `load`."""

    name = "nnef_jax"
    modules = ("jax",)
    options: ClassVar[dict[str, Any]] = {}

    def archive(self, network: str, batch: int, folder: Path) -> Path:
        """Write the file that is loaded, unless it is there already. Return its path."""
        return write_nnef(network, batch, folder)

    def prepare(self, network: str, batch: int, inputs: Mapping[str, Array], folder: Path) -> Call:
        import jax.numpy as jnp

        import nnef_jax

        model = nnef_jax.load(self.archive(network, batch, folder), **self.options)
        arrays = {name: jnp.asarray(value) for name, value in inputs.items()}
        return lambda: model(**arrays).block_until_ready()


class Literal(NnefJax):
    """nnef_jax without its optimisations."""

    name = "literal"
    is_usual = False
    options: ClassVar[dict[str, Any]] = {"optimize": False}


class Ir(NnefJax):
    """nnef_jax, which loads the network from OpenVINO's IR.

    OpenVINO converts the IR from the ONNX model of the network.
    """

    name = "ir"
    is_usual = False
    modules = ("jax", "onnx", "openvino")

    def archive(self, network: str, batch: int, folder: Path) -> Path:
        path = folder / f"{network}-{batch}.xml"
        if not path.exists():
            openvino = imported_openvino()
            model = openvino.convert_model(write_onnx(network, batch, folder))
            openvino.save_model(model, path, compress_to_fp16=False)
        return path


class Bfloat16(NnefJax):
    """nnef_jax in bfloat16."""

    name = "bfloat16"
    options: ClassVar[dict[str, Any]] = {"dtype": "bfloat16"}
    tolerance = timing.OF_BFLOAT16
    is_usual = False

    def array(self, result: Any) -> Array:
        return np.asarray(result, np.float32)


class OnnxRuntime(Engine):
    """onnxruntime with all cores and all optimisations."""

    name = "onnxruntime"
    modules = ("onnx", "onnxruntime")

    def prepare(self, network: str, batch: int, inputs: Mapping[str, Array], folder: Path) -> Call:
        import onnxruntime

        session = onnx_session(write_onnx(network, batch, folder))
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
        binding.bind_output(session.get_outputs()[0].name)

        def call() -> Any:
            session.run_with_iobinding(binding)
            return binding.get_outputs()[0]

        return call

    def array(self, result: Any) -> Array:
        return result.numpy()


def onnx_session(path: Path) -> Any:
    """Return a session of onnxruntime on the CPU, with all cores and all optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class OpenVino(Engine):
    """OpenVINO, which is told to compute in float32. By default it might compute in bfloat16."""

    name = "openvino"
    modules = ("onnx", "openvino")
    precision = "f32"

    def prepare(self, network: str, batch: int, inputs: Mapping[str, Array], folder: Path) -> Call:
        openvino = imported_openvino()
        settings = {
            "INFERENCE_PRECISION_HINT": self.precision,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": cores(),
        }
        model = openvino.Core().compile_model(write_onnx(network, batch, folder), "CPU", settings)
        request = model.create_infer_request()
        arrays = dict(inputs)
        return lambda: request.infer(arrays, share_inputs=True, share_outputs=True)[0]


def imported_openvino() -> Any:
    """Import and return the module openvino, in such a way that it sends no usage data."""
    # If this package is missing, openvino uses a stub, which does not start a process to send data.
    sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]
    import openvino

    return openvino


class OpenVinoBfloat16(OpenVino):
    """OpenVINO in bfloat16, which is its default on CPUs that can multiply bfloat16."""

    name = "openvino_bfloat16"
    precision = "bf16"
    tolerance = timing.OF_BFLOAT16
    is_usual = False


class Tract(Engine):
    """tract, which reads the same NNEF archive as nnef_jax.

    Its Python interface has no setting for the number of threads.
    """

    name = "tract"
    modules = ("tract",)

    def prepare(self, network: str, batch: int, inputs: Mapping[str, Array], folder: Path) -> Call:
        import tract

        reader = tract.nnef().with_tract_extra().with_tract_transformers()
        model = reader.load(write_nnef(network, batch, folder)).into_runnable()
        # tract declares this function without marking it as a static method.
        convert: Any = tract.Tensor.from_numpy  # pyright: ignore[reportAttributeAccessIssue]
        tensors = [convert(value) for value in inputs.values()]
        return lambda: model.run(tensors)[0]

    def array(self, result: Any) -> Array:
        return result.to_numpy()


class Torch(Engine):
    """torch in eager mode and inference mode."""

    name = "torch"
    modules = ("torch",)

    def prepare(self, network: str, batch: int, inputs: Mapping[str, Array], folder: Path) -> Call:
        import torch

        from benchmarks.builders.torch_builder import TorchBuilder

        builder = TorchBuilder()
        module = self.compiled(builder.module(described(network)(builder, batch)))
        tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}

        def call() -> Any:
            with torch.inference_mode():
                return module(**tensors)

        return call

    def compiled(self, module: Any) -> Any:
        """Return the module that is called. Subclasses compile it."""
        return module


class TorchCompiled(Torch):
    """torch with `torch.compile`, which needs an installed C++ compiler."""

    name = "torch_compile"
    is_usual = False

    def compiled(self, module: Any) -> Any:
        import torch

        return torch.compile(module)


ENGINES: dict[str, type[Engine]] = {
    e.name: e
    for e in (
        *(NnefJax, Literal, Ir, Bfloat16),
        *(OnnxRuntime, OpenVino, OpenVinoBfloat16, Tract, Torch, TorchCompiled),
    )
}


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
