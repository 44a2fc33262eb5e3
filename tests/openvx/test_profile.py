"""Which operations of a network are layers of OpenVX, and why others are not."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import nnef_jax
from nnef_jax import openvx
from tests.cli_support import call
from tests.helpers import model_of

POOL = "size = [1,1,2,2], stride = [1,1,2,2]"
NONE = "[(0,0),(0,0),(0,0),(0,0)]"
AROUND = "[(0,0),(0,0),(1,1),(1,1)]"
BEFORE = "[(0,0),(0,0),(1,0),(1,0)]"

# An operation on x [1,8,8,8], the node that it is, and why it is none.
CASES = {
    "conv(x, k, 0.0, padding = [(1,1),(1,1)])": "vxConvolutionLayer",
    "conv(x, k, 0.0, padding = [(1,1),(1,1)], stride = [2,2])": "vxConvolutionLayer",
    "conv(x, k2, 0.0, padding = [(1,1),(1,1)], groups = 4)": "4 x vxConvolutionLayer",
    "conv(x, k, 0.0, padding = [(0,1),(0,1)])": "not the same on both sides",
    "conv(x, k, 0.0, padding = [(1,1),(1,1)], border = 'reflect')": "border is 'reflect'",
    "conv(x, x, 0.0, padding = [(0,0),(0,0)])": "[static]",
    "conv(x, k1, 0.0, padding = [(0,0),(0,0)], stride = [5,5])": "stride is 5, OpenVX infers 4",
    "conv(x, k1, 0.0, padding = [(0,0),(0,0)], stride = [7,7])": "vxConvolutionLayer",
    "deconv(x, k, 0.0, padding = [(1,1),(1,1)], stride = [2,2])": "vxDeconvolutionLayer",
    "deconv(x, k, 0.0, padding = [(0,0),(0,0)], dilation = [2,2])": "the layer has none",
    f"max_pool(x, {POOL}, padding = {NONE})": "vxPoolingLayer",
    f"max_pool(x, {POOL}, padding = {AROUND}, border = 'constant')": "vxPoolingLayer",
    f"max_pool(x, {POOL}, padding = {AROUND}, border = 'ignore')": "may be negative",
    f"max_pool(relu(x), {POOL}, padding = {AROUND}, border = 'ignore')": "vxPoolingLayer",
    f"max_pool(x, {POOL}, padding = {BEFORE})": "not the same on both sides",
    f"avg_pool(x, {POOL}, padding = {AROUND}, border = 'constant')": "vxPoolingLayer",
    f"avg_pool(x, {POOL}, padding = {AROUND}, border = 'ignore')": "leave out the padding",
    f"box(x, {POOL}, padding = {NONE})": "sums",
    "mean_reduce(x, axes = [2,3])": "vxPoolingLayer",
    "mean_reduce(x, axes = [1])": "reduces axes [1]",
    "softmax(x, axes = [1])": "vxSoftmaxLayer",
    "softmax(x, axes = [3])": "vxSoftmaxLayer",
    "softmax(x, axes = [2,3])": "over axes [2, 3]",
    "local_response_normalization(x, size = [1,5,1,1])": "vxNormalizationLayer",
    "local_response_normalization(x, size = [1,9,1,1])": "takes 3, 5 or 7",
    "relu(x)": "vxActivationLayer RELU",
    "tanh(x)": "vxActivationLayer HYPERBOLIC_TAN",
    "clamp(x, 0.0, 6.0)": "vxActivationLayer BRELU",
    "min(relu(x), 6.0)": "vxActivationLayer BRELU",
    "min(x, 6.0)": "vxTensorTableLookupNode",
    "mul(x, 0.5)": "vxActivationLayer LINEAR",
    "mul(x, -0.5)": "vxTensorTableLookupNode",
    "exp(x)": "vxTensorTableLookupNode",
    "add(x, relu(x))": "vxTensorAddNode",
    "mul(x, b)": "vxTensorMultiplyNode",
    "div(x, relu(x))": "no quotient",
    "div(x, 1e-320)": "vxTensorTableLookupNode",
    "matmul(x, relu(x))": "8 x vxTensorMatrixMultiplyNode",
    "matmul(x, m)": "vxFullyConnectedLayer",
    "batch_normalization(x, b, b, b, b, epsilon = 0.1)": "8 x vxConvolutionLayer",
    "reshape(x, shape = [0,-1])": "view",
    "transpose(x, axes = [0,2,3,1])": "vxTensorTransposeNode",
    "argmax_reduce(x, axes = [1])": "no node for argmax_reduce",
    "pad(x, padding = [(0,0),(0,0),(1,1),(1,1)])": "no node for pad",
}
SHAPES = {"k": (8, 8, 3, 3), "k1": (8, 8, 1, 1), "k2": (8, 2, 3, 3), "b": (1, 8), "m": (1, 1, 8, 5)}


def network(operations: dict[str, str]) -> nnef_jax.Model:
    lines = [f"{name} = {operation};" for name, operation in operations.items()]
    used = [n for n in SHAPES if re.search(rf"\b{n}\b", " ".join(operations.values()))]
    variables = [
        f"{name} = variable(shape = {list(SHAPES[name])}, label = '{name}');" for name in used
    ]
    text = f"""version 1.0;
    extension KHR_enable_operator_expressions;
    graph net(x) -> ({", ".join(operations)}) {{
        x = external(shape = [1,8,8,8]);
        {" ".join(variables)}
        {" ".join(lines)}
    }}"""
    return model_of(text, data={name: np.ones(SHAPES[name], np.float32) for name in used})


def test_each_operation_has_a_layer_or_a_reason() -> None:
    model = network({f"y{i}": operation for i, operation in enumerate(CASES)})
    found = {node.name: node for node in openvx.check_profile(model, "openvx-16bit").nodes}
    for i, (operation, said) in enumerate(CASES.items()):
        node = found[f"y{i}"]
        assert said in (node.layer if node.fits else node.reason), (operation, node)
        assert node.fits is (node.reason == "") is (node.layer != "")


def test_profiles_differ_in_tables_and_normalisation() -> None:
    model = network(
        {"a": "exp(x)", "b": "local_response_normalization(x, size = [1,3,1,1])", "c": "relu(x)"}
    )

    def fits(profile: str, **options: str) -> list[bool]:
        return [node.fits for node in openvx.check_profile(model, profile, **options).nodes]

    assert fits("openvx-16bit") == [True, True, True]
    assert fits("openvx-8bit") == [False, False, True]
    assert fits("openvx-8bit", dtype="uint8") == [True, False, True]


def test_semantics_differ_in_padding() -> None:
    pools = {b: f"max_pool(x, {POOL}, padding = {AROUND}, border = '{b}')" for b in ("a", "b")}
    model = network(
        {n: p.replace("'a'", "'constant'").replace("'b'", "'ignore'") for n, p in pools.items()}
    )

    def fits(semantics: str) -> list[bool]:
        found = openvx.check_profile(model, "openvx-16bit", semantics=semantics)
        return [node.fits for node in found.nodes]

    assert fits("spec") == [True, False]
    assert fits("khronos") == [False, True]


def test_what_is_folded_and_what_is_not() -> None:
    model = network(
        {
            "c": "conv(x, k, 0.0, padding = [(1,1),(1,1)])",
            "n": "batch_normalization(c, b, b, b, b, epsilon = 0.1)",
        }
    )
    # c is an output too: it is computed by itself
    assert [node.layer for node in openvx.check_profile(model, "openvx-16bit").nodes] == [
        "vxConvolutionLayer",
        "8 x vxConvolutionLayer",
    ]
    inner = model.cut(outputs=["n"])
    report = openvx.check_profile(inner, "openvx-16bit")
    assert [node.layer for node in report.nodes] == ["vxConvolutionLayer", "in c"]
    assert report.fits and json.dumps(report.to_dict())


def test_wrong_arguments() -> None:
    model = network({"y": "relu(x)"})
    with pytest.raises(ValueError, match="must be 'openvx-8bit' or 'openvx-16bit'"):
        openvx.check_profile(model, "openvx16bit")
    with pytest.raises(ValueError, match="dtype must be 'int8' or 'uint8'"):
        openvx.check_profile(model, "openvx-8bit", dtype="int16")
    with pytest.raises(TypeError, match=r"nnef_jax.Model"):
        openvx.check_profile("model", "openvx-16bit")  # pyright: ignore[reportArgumentType]


def test_state_and_open_shapes_are_refused_where_they_are() -> None:
    recurrent = """version 1.0;
graph net(x) -> (y) {
    x = external(shape = [1,2]);
    h = variable(shape = [1,2], label = 'h');
    y = add(x, h);
    u = update(h, y);
}"""
    with pytest.raises(nnef_jax.UnsupportedError, match=r"graph.nnef:4:\d+: 'h' is state"):
        openvx.check_profile(
            model_of(recurrent, data={"h": np.zeros((1, 2), np.float32)}), "openvx-16bit"
        )
    free = "version 1.0; graph net(x) -> (y) { x = external(shape = [1,2,0]); y = relu(x); }"
    with pytest.raises(nnef_jax.InputError, match=r"(?s)shape of input .x. is open.*input_shapes"):
        openvx.lower(model_of(free))


def test_the_command(tmp_path) -> None:
    network({"y": "relu(x)"}).save(tmp_path / "fits")
    network({"y": "relu(x)", "z": "div(x, relu(x))"}).save(tmp_path / "wrong")
    code, out, err = call("openvx", "check-profile", tmp_path / "fits")
    assert (code, err) == (0, "") and "all operations fit" in out
    code, out, err = call("openvx", "check-profile", tmp_path / "wrong", "--json")
    found = json.loads(out)
    assert (code, err, found["fits"]) == (1, "", False)
    assert [node["fits"] for node in found["nodes"]] == [True, True, False]
