"""The values of captum, where it is installed: `pip install torch captum scikit-learn`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnef_jax import analysis
from tests.analysis.captum_networks import NETWORKS, convolutional, in_torch
from tests.analysis.captum_rows import ROWS, close, found, wanted

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
pytest.importorskip("captum.attr")
DOCS = Path(__file__).parents[2] / "docs" / "analysis.md"
PAIRS = [(row, net) for row, (_, networks, *_) in ROWS.items() for net in networks or NETWORKS]


@pytest.mark.parametrize(("row", "network"), PAIRS)
def test_a_method_of_captum(row: str, network: str) -> None:
    close(row, found(row, network), wanted(row, network))


def test_the_page_has_all_rows() -> None:
    text = DOCS.read_text()
    for row, (here, *_) in ROWS.items():
        assert f"| `{row}` | `{here}` |" in text


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
def test_attacks_of_captum() -> None:
    robust = pytest.importorskip("captum.robust")
    network = convolutional()
    net, classes = in_torch(network)[0], torch.tensor(network.classes)
    x = torch.tensor(network.x, requires_grad=True)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    bounds = float(network.x.min()), float(network.x.max())
    ends: Any = {"lower_bound": bounds[0], "upper_bound": bounds[1]}
    options: Any = {"epsilon": 0.1, "target": network.classes, "bounds": bounds}
    hit = robust.FGSM(net, loss, **ends).perturb(x, 0.1, classes)
    ours = analysis.fgsm(network.model, network.x, **options).x
    np.testing.assert_allclose(ours, hit.detach().numpy(), rtol=1e-4, atol=1e-5)
    hit = robust.PGD(net, loss, **ends).perturb(x, 0.1, 0.03, 3, classes)
    ours = analysis.pgd(network.model, network.x, step_size=0.03, steps=3, **options).x
    np.testing.assert_allclose(ours, hit.detach().numpy(), rtol=1e-4, atol=1e-5)
