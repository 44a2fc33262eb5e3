"""Runs networks in other engines, for comparison."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnef_jax.errors import InputError, UnsupportedError, first_line
from nnef_jax.storage import protected_files

Call = Callable[[], Sequence[Any]]  # The function returns the outputs in order, as numpy arrays.


def engine(name: str, path: str | os.PathLike[str]) -> Callable[[Mapping[str, Any]], Call]:
    """Return a function that prepares calls of another engine.

    The returned function takes inputs by name, and returns a second function without arguments. The
    second function runs the network, waits for the results, and returns them. `path` is the file of
    the network. "onnxruntime" and "openvino" read ONNX, and "tract" reads NNEF.

    Raises ValueError for other names, UnsupportedError if the engine is not installed, and
    InputError if the engine cannot read the file.
    """
    if name not in ENGINES:
        raise ValueError(f"the engines are {', '.join(ENGINES)}; there is no '{name}'")
    try:
        if name == "openvino":
            # openvino sends usage data by the package openvino_telemetry. The entry None makes the
            # import of this package fail, and openvino then uses a stub that sends nothing.
            sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]
        module = importlib.import_module(name)
    except ImportError:
        message = f"{name} is not installed: pip install {name}"
        raise UnsupportedError(message) from None
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    protected_files.note_path(path)
    try:
        return ENGINES[name](module, os.fspath(path))
    except Exception as error:
        # Engines raise exceptions of various classes.
        raise InputError(f"{name} cannot read {path}: {first_line(error)}") from None


def onnx_tensors(
    path: str, values: Mapping[str, Any], *, inside: bool = True
) -> Callable[..., Any]:
    """Return a function that runs an ONNX file in onnxruntime without optimisations.

    `values` maps names of inputs to fixed values. The function takes the remaining inputs, all by
    position or all by name. If `inside` is false, the function returns a tuple of the outputs. If
    `inside` is true, the function returns a dict from names to the outputs and the inner tensors.
    Without the package onnx, the dict has only the outputs.
    """
    # This call checks that onnxruntime is installed and can read the file, and raises an error if
    # not. Its result is not used.
    engine("onnxruntime", path)
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = _with_all_outputs(path) if inside else path
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    input_names = [value.name for value in session.get_inputs() if value.name not in values]
    output_names = [value.name for value in session.get_outputs()]

    def run_session(*arguments: Any, **named: Any) -> Any:
        arrays = named
        if not named:
            # There may be fewer arguments than inputs. `_in_order` then raises an error.
            arrays = dict(zip(input_names, arguments, strict=False))
        inputs = {**_in_order(arrays, input_names), **values}
        all_outputs = None
        results = session.run(all_outputs, _typed(session, inputs))
        return dict(zip(output_names, results, strict=True)) if inside else tuple(results)

    return run_session


def _with_all_outputs(path: str) -> Any:
    """Return an ONNX model with all tensors as outputs, or the path if onnx is not installed."""
    try:
        onnx: Any = importlib.import_module("onnx")
    except ImportError:
        return path
    model = onnx.load(path)
    outputs = {output.name for output in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            # An optional output that a node does not compute has an empty name.
            if name and name not in outputs:
                model.graph.output.append(onnx.ValueInfoProto(name=name))
    return model.SerializeToString()


def _onnxruntime(module: Any, path: str) -> Callable[[Mapping[str, Any]], Call]:
    """Read a file by onnxruntime, and return a function that prepares calls."""
    options = module.SessionOptions()
    options.intra_op_num_threads = _cores()
    options.log_severity_level = 4  # onnxruntime logs only fatal errors.
    session = module.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def prepare(inputs: Mapping[str, Any]) -> Call:
        all_outputs = None
        return partial(session.run, all_outputs, _typed(session, _in_order(inputs, names)))

    return prepare


def _typed(session: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert inputs to the types that an ONNX file declares.

    The types may differ: jax may have made a float32 array for an input of type double.
    """
    numpy_names = {"float": "float32", "double": "float64"}
    dtypes: dict[str, str] = {}
    for declared in session.get_inputs():
        # For example, "tensor(float)" becomes "float32", and "tensor(int8)" becomes "int8".
        element_type: str = declared.type.removeprefix("tensor(").removesuffix(")")
        dtypes[declared.name] = numpy_names.get(element_type, element_type)
    return {name: np.asarray(array, dtypes[name]) for name, array in inputs.items()}


def _openvino(module: Any, path: str) -> Callable[[Mapping[str, Any]], Call]:
    """Read a file by openvino, and return a function that prepares calls."""
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": _cores()}
    compiled = module.Core().compile_model(path, "CPU", settings)
    names = [value.get_any_name() for value in compiled.inputs]
    request = compiled.create_infer_request()

    def prepare(inputs: Mapping[str, Any]) -> Call:
        tensors = _in_order(inputs, names)

        def call() -> Sequence[Any]:
            # Inputs and outputs are not copied.
            results = request.infer(tensors, share_inputs=True, share_outputs=True)
            return [results[index] for index in range(len(compiled.outputs))]

        return call

    return prepare


def _tract(module: Any, path: str) -> Callable[[Mapping[str, Any]], Call]:
    """Read a file by tract, and return a function that prepares calls."""
    model = module.nnef().with_tract_extra().with_tract_transformers().load(path).into_runnable()

    def prepare(inputs: Mapping[str, Any]) -> Call:
        tensors = [module.Tensor.from_numpy(array) for array in inputs.values()]

        def call() -> Sequence[Any]:
            return [output.to_numpy() for output in model.run(tensors)]

        return call

    return prepare


def _in_order(inputs: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return inputs with an engine's names as keys, in the order of the engine.

    `names` are the engine's names of the inputs. If `inputs` has different names, the first input
    gets the first name, and so on. Raises InputError for a wrong number of inputs.
    """
    if set(inputs) == set(names):
        return {name: inputs[name] for name in names}
    if len(inputs) != len(names):
        engine_inputs = f"{len(names)} inputs ({', '.join(names)})"
        network_inputs = f"{len(inputs)} ({', '.join(inputs)})"
        raise InputError(f"it takes {engine_inputs}, the network {network_inputs}")
    return dict(zip(names, inputs.values(), strict=True))


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


ENGINES: dict[str, Callable[[Any, str], Callable[[Mapping[str, Any]], Call]]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "tract": _tract,
}
