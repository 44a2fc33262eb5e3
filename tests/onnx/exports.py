"""Whole networks as exporters, quantisers and optimisers write them, with onnxruntime's results.

    python -m tests.onnx.exports    # where torch, skl2onnx and onnxruntime (1.32) are

writes `exports/`: files, and `results.npz` with an input of each and its outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "exports"
RESULTS = FOLDER / "results.npz"


def _modules() -> dict[str, tuple[Any, Any]]:
    """Return modules, each with an input: convolutions, and a layer of a transformer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    pictures = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8), nn.SiLU(), nn.Conv2d(8, 4, 1), nn.Flatten(),
        nn.Linear(16, 5),
    )  # fmt: skip
    words = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)
    return {
        "pictures": (pictures.eval(), torch.randn(2, 3, 8, 8)),
        "words": (words.eval(), torch.randn(2, 5, 16)),
    }


def _learned() -> dict[str, tuple[Any, Any]]:
    """Return fitted models of scikit-learn with rows to judge."""
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.svm import SVC

    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3)).astype(np.float32)
    x[:, 2] = rng.integers(0, 3, 60)
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] * x[:, 2] > 0.5)
    columns = [("real", StandardScaler(), [0, 1]), ("kind", OneHotEncoder(), [2])]
    machine = make_pipeline(StandardScaler(), SVC(probability=True, random_state=0))
    trees = GradientBoostingClassifier(n_estimators=4, max_depth=2)
    return {
        "machine": (machine.fit(x, y), x[:8]),
        "trees": (make_pipeline(ColumnTransformer(columns), trees).fit(x, y), x[:8]),
    }


def _write() -> None:
    import onnx
    import onnxruntime
    import torch
    from onnxruntime import quantization
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from skl2onnx import to_onnx

    inputs: dict[str, Any] = {}
    for name, (module, x) in _modules().items():
        path = FOLDER / f"{name}.onnx"
        how: dict[str, Any] = {"dynamo": name == "words", "external_data": False}
        torch.onnx.export(module, (x,), path, input_names=["x"], opset_version=18, **how)
        inputs[name] = x.numpy()
    for name, (model, x) in _learned().items():
        made = to_onnx(model, x[:1], options={id(model): {"zipmap": False}}, target_opset=17)
        onnx.save(made, FOLDER / f"{name}.onnx")
        inputs[name] = x

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [{"x": inputs["pictures"]}]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    pictures, words = (FOLDER / f"{name}.onnx" for name in ("pictures", "words"))
    for how in quantization.QuantFormat:
        to = FOLDER / f"pictures-{how.name.lower()}.onnx"
        quantization.quantize_static(pictures, to, Reader(), how, per_channel=True)
    quantization.quantize_dynamic(words, FOLDER / "words-dynamic.onnx")
    halves = convert_float_to_float16(onnx.load(pictures), keep_io_types=True)
    onnx.save(halves, FOLDER / "pictures-float16.onnx")
    bits = MatMulNBitsQuantizer(onnx.load(words), block_size=16)
    bits.process()
    bits.model.save_model_to_file(str(FOLDER / "words-bits.onnx"))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(FOLDER / "words-fused.onnx")
    onnxruntime.InferenceSession(words, options)
    found: dict[str, Any] = {}
    for path in sorted(FOLDER.glob("*.onnx")):
        model = onnx.load(path)
        for part in (*model.graph.node, *model.graph.value_info, model.graph, model):
            part.ClearField("metadata_props")  # stacks of calls of the exporter
            part.ClearField("doc_string")
        onnx.save(model, path)
        x = inputs[path.stem.split("-")[0]]
        session = onnxruntime.InferenceSession(path)
        results = session.run(None, {session.get_inputs()[0].name: x})
        found |= {f"{path.stem}/x": x}
        found |= {f"{path.stem}/{i}": y for i, y in enumerate(results)}
    np.savez_compressed(RESULTS, **found)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    _write()
