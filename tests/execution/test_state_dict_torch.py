"""Modules of PyTorch that torch_to_nnef exports take other weights by PyTorch's names."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import nnef_jax

torch = pytest.importorskip("torch")
pytest.importorskip("torch_to_nnef")
pytestmark = pytest.mark.slow


def bottleneck(inputs, width, stride=1):
    """A block of a ResNet-50, with a convolution beside where shapes change."""
    nn, outputs = torch.nn, 4 * width

    class Bottleneck(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
            self.downsample = nn.Sequential()
            if stride > 1 or inputs != outputs:
                beside = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
                self.downsample = nn.Sequential(beside, nn.BatchNorm2d(outputs))

        def forward(self, x):
            y = self.bn1(self.conv1(x)).relu()
            y = self.bn2(self.conv2(y)).relu()
            return (self.bn3(self.conv3(y)) + self.downsample(x)).relu()

    return Bottleneck()


def resnet():
    nn = torch.nn
    stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    stages = nn.Sequential(
        nn.Sequential(bottleneck(8, 8), bottleneck(32, 8)),
        nn.Sequential(bottleneck(32, 16, 2), bottleneck(64, 16)),
    )
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return nn.Sequential(stem, stages, head)


def vit():
    sys.path.insert(0, str(Path("tests/torch_networks").resolve()))
    try:
        from modules import VisionTransformer
    finally:
        sys.path.pop(0)
    return VisionTransformer()


def randomise(module, seed):
    """Weights and statistics that differ between seeds, norms among them."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.5 + 0.1)
    return module.eval()


@pytest.mark.parametrize("make", [resnet, vit])
def test_an_export_takes_the_weights_of_another_initialisation(make, tmp_path, monkeypatch) -> None:
    from torch_to_nnef.export import export_model_to_nnef
    from torch_to_nnef.inference_target import TractNNEF

    monkeypatch.setattr(sys, "argv", sys.argv[:1])
    tract = tmp_path / "tract"  # the exporter asks it for its version alone
    tract.write_text("#!/bin/sh\necho tract 0.22.1\n")
    tract.chmod(0o755)
    target = TractNNEF("0.22.1", check_io=False, specific_tract_binary_path=tract)
    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "net.nnef.tgz"
    export_model_to_nnef(randomise(make(), 1), (x,), path, target, ["x"], ["y"])
    model, other = nnef_jax.load(path), randomise(make(), 2)
    before = model.params
    model = model.with_state_dict(other.state_dict())
    wanted = other(x).detach().numpy()
    np.testing.assert_allclose(model(x.numpy()), wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())
    again = model.with_state_dict(randomise(make(), 1).state_dict())
    assert all(np.array_equal(again.params[label], before[label]) for label in before)
