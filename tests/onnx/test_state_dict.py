"""Weights by PyTorch's names in what torch.onnx exports."""

from __future__ import annotations

import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import InputError
from tests.onnx.models import model, node, tensor


def test_weights_of_linear_layers_are_transposed_back() -> None:
    generator = np.random.default_rng(0)
    weight, bias = np.float32(generator.normal(size=(3, 3))), np.float32([1, 2, 3])
    nodes = [
        node("MatMul", "x onnx::MatMul_7", "/blocks/blocks.0/fc/MatMul_output_0"),
        node("Add", "blocks.0.fc.bias /blocks/blocks.0/fc/MatMul_output_0"),
    ]
    weights = {"onnx::MatMul_7": np.zeros((3, 3), np.float32), "blocks.0.fc.bias": np.float32(bias)}
    exported = model(nodes, [tensor("x", (2, 3))], weights=weights)
    found = nnef_jax.load(exported.SerializeToString())
    state_dict = {"blocks.0.fc.weight": weight, "blocks.0.fc.bias": bias}
    x = np.float32(generator.normal(size=(2, 3)))
    y = found.with_state_dict(state_dict)(x)
    np.testing.assert_allclose(y, x @ weight.T + bias, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="other shapes"):
        found.with_state_dict({**state_dict, "blocks.0.fc.weight": weight[0]})


def test_folded_batch_norms_are_explained() -> None:
    found = nnef_jax.load("tests/onnx/exports/pictures.onnx")
    with pytest.raises(InputError, match=r"lacks 'onnx::Conv") as error:
        found.with_state_dict({"4.weight": found.params["4.weight"]})
    assert "TrainingMode.PRESERVE" in error.value.hint
