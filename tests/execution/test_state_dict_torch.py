"""Modules of PyTorch that torch_to_nnef exports take other weights by PyTorch's names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

import nnef_jax

torch = pytest.importorskip("torch")
pytest.importorskip("torch_to_nnef")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::Warning"),  # of torch, as it traces
]


def modules():
    """The modules of tests/torch_networks, which only a process with torch can import."""
    sys.path.insert(0, str(Path("tests/torch_networks").resolve()))
    try:
        return importlib.import_module("modules")
    finally:
        sys.path.pop(0)


NETWORKS = {
    "resnet": lambda: modules().ResNet50(width=8, blocks=(2, 2, 1, 1)),
    "vit": lambda: modules().VisionTransformer(),
}


def randomise(module, seed):
    """Weights and statistics that differ between seeds, norms among them."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.5 + 0.1)
    return module.eval()


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
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
