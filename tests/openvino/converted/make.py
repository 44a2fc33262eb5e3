"""Makes the networks of this folder, and `results.npz`: an input of each and its runtime's outputs.

pip install tensorflow-cpu ai-edge-litert && python -m tests.openvino.converted.make tensorflow
pip install paddlepaddle setuptools && python -m tests.openvino.converted.make paddle
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results.npz"


def tensorflow() -> dict[str, Any]:
    """Write four networks of one module: a SavedModel, a frozen graph, TF Lite's in two types."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    random = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return random.normal(size=shape).astype(np.float32)

    class Net(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter, self.matrix = tf.Variable(normal(3, 2, 2, 4)), tf.Variable(normal(8, 3))

        @tf.function(input_signature=[tf.TensorSpec((None, 6, 5, 2), name="x")])
        def __call__(self, x: Any) -> Any:
            y = tf.nn.relu6(tf.nn.conv2d(x, self.filter, (1, 2, 1, 1), "SAME"))
            y = tf.nn.max_pool2d(y, 2, 2, "VALID")
            y = tf.reduce_mean(y, 1)
            return {"y": tf.nn.softmax(tf.matmul(tf.reshape(y, (-1, 8)), self.matrix))}

    net, x = Net(), normal(3, 6, 5, 2)
    tf.saved_model.save(net, FOLDER / "saved", net.__call__)
    (FOLDER / "saved" / "fingerprint.pb").unlink()
    (FOLDER / "saved" / "assets").rmdir()
    frozen = convert_variables_to_constants_v2(net.__call__.get_concrete_function())
    (FOLDER / "frozen.pb").write_bytes(frozen.graph.as_graph_def().SerializeToString())
    results = {"x": x, "saved": net(x)["y"].numpy(), "frozen.pb": frozen(tf.constant(x))[0].numpy()}
    for name in ("float.tflite", "int8.tflite"):
        converter = tf.lite.TFLiteConverter.from_saved_model(str(FOLDER / "saved"))
        if name.startswith("int8"):
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda: ([normal(1, 6, 5, 2)] for _ in range(40))
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        (FOLDER / name).write_bytes(converter.convert())
        results[name] = interpreted(FOLDER / name, x)
    return results


def interpreted(path: Path, x: Any) -> Any:
    """Return the results of TF Lite's interpreter."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    given = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(given, x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given, x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def paddle() -> dict[str, Any]:
    """Write one network with its parameters beside it."""
    os.environ["FLAGS_enable_pir_api"] = "0"  # noqa: SIM112 - a .pdmodel instead of a .json
    import paddle
    from paddle import nn, static

    paddle.seed(0)
    x = np.random.default_rng(1).normal(size=(2, 2, 4, 4)).astype(np.float32)
    paddle.enable_static()
    main, start = static.Program(), static.Program()
    with static.program_guard(main, start), tempfile.TemporaryDirectory() as folder:
        given = static.data("image", (None, 2, 4, 4))
        layers = nn.Conv2D(2, 3, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3), nn.Softmax()
        found = nn.Sequential(*layers)(given)
        run = static.Executor(paddle.CPUPlace())
        run.run(start)
        (result,) = run.run(main.clone(for_test=True), {"image": x}, [found])
        static.save_inference_model(f"{folder}/net", [given], [found], run, program=main)
        shutil.copy(f"{folder}/net.pdiparams", FOLDER)
        program = static.Program.parse_from_string(Path(f"{folder}/net.pdmodel").read_bytes())
        for operation in program.global_block().ops:
            operation._remove_attr("op_callstack")  # which has paths of the machine
        (FOLDER / "net.pdmodel").write_bytes(program.desc.serialize_to_string())
    return {"image": x, "net.pdmodel": result}


if __name__ == "__main__":
    old = dict(np.load(RESULTS)) if RESULTS.exists() else {}
    np.savez(RESULTS, **old | {"tensorflow": tensorflow, "paddle": paddle}[sys.argv[1]]())
