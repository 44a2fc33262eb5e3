"""The values of captum, where it is installed: `pip install torch captum`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnef_jax import analysis
from tests.analysis.known_networks import document, normal
from tests.helpers import model_of

torch = pytest.importorskip("torch")
attr = pytest.importorskip("captum.attr")

DATA = {"f": normal(3, 2, 3, 3), "fb": normal(1, 3), "w": normal(4, 90) / 10, "wb": normal(1, 4)}
MODEL = model_of(
    document("""
    x = external<scalar>(shape = [0,2,5,6]);
    f = variable<scalar>(shape = [3,2,3,3], label = 'f');
    fb = variable<scalar>(shape = [1,3], label = 'fb');
    w = variable<scalar>(shape = [4,90], label = 'w');
    wb = variable<scalar>(shape = [1,4], label = 'wb');
    conv = conv(x, f, fb, padding = [(1,1), (1,1)]);
    maps = relu(conv);
    flat = reshape(maps, shape = [0,90]);
    y = linear(flat, w, wb);
"""),
    data=DATA,
)
X, CLASSES = normal(3, 2, 5, 6), [2, 0, 3]


def network() -> Any:
    """The same network, written in torch."""
    conv, linear = torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.Linear(90, 4)
    with torch.no_grad():
        for layer, weight, bias in ((conv, "f", "fb"), (linear, "w", "wb")):
            layer.weight.copy_(torch.tensor(DATA[weight]))
            layer.bias.copy_(torch.tensor(DATA[bias][0]))
    return torch.nn.Sequential(conv, torch.nn.ReLU(), torch.nn.Flatten(), linear)


def equal(found: Any, wanted: Any, **tolerance: Any) -> None:
    tolerance = {"rtol": 1e-4, "atol": 1e-5, **tolerance}
    np.testing.assert_allclose(found, wanted.detach().numpy(), **tolerance)


def test_values_of_captum() -> None:
    net, x, classes = network(), torch.tensor(X, requires_grad=True), torch.tensor(CLASSES)
    question: Any = {"target": CLASSES}
    there: Any = {"target": classes}
    equal(
        analysis.saliency(MODEL, X, **question).values,
        attr.Saliency(net).attribute(x, abs=False, **there),
    )
    product = analysis.saliency(MODEL, X, times_input=True, **question)
    equal(product.values, attr.InputXGradient(net).attribute(x, **there))

    path = analysis.integrated_gradients(MODEL, X, baseline=0.5, steps=20, **question)
    wanted, gap = attr.IntegratedGradients(net).attribute(
        x,
        torch.full_like(x, 0.5),
        n_steps=20,
        method="riemann_middle",
        return_convergence_delta=True,
        **there,
    )
    equal(path.values, wanted)
    equal(path.gap, gap, atol=1e-4)

    cam = analysis.grad_cam(MODEL, X, layer="maps", **question)
    wanted = attr.LayerGradCam(net, net[1]).attribute(x, relu_attributions=True, **there)
    equal(cam.values, wanted[:, 0])

    covered = analysis.occlusion(MODEL, X, window=(2, 3), stride=(2, 1), baseline=1.0, **question)
    wanted = attr.Occlusion(net).attribute(x, (2, 2, 3), strides=(2, 2, 1), baselines=1.0, **there)
    equal(covered.values, wanted[:, 0])

    # Captum takes gradients at the ends of steps.
    flow = analysis.layer_conductance(MODEL, X, layer="maps", steps=1000, **question)
    wanted = attr.LayerConductance(net, net[1]).attribute(
        x, n_steps=1000, method="riemann_middle", **there
    )
    equal(flow.values, wanted, atol=1e-2 * float(wanted.detach().abs().max()))


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
def test_attacks_of_captum() -> None:
    robust = pytest.importorskip("captum.robust")
    net, x, classes = network(), torch.tensor(X, requires_grad=True), torch.tensor(CLASSES)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    bounds = float(X.min()), float(X.max())
    wanted = robust.FGSM(net, loss, lower_bound=bounds[0], upper_bound=bounds[1]).perturb(
        x, 0.1, classes
    )
    found = analysis.fgsm(MODEL, X, epsilon=0.1, target=CLASSES, bounds=bounds)
    equal(found.x, wanted)
    options: Any = {"epsilon": 0.1, "target": CLASSES, "bounds": bounds, "steps": 3}
    wanted = robust.PGD(net, loss, lower_bound=bounds[0], upper_bound=bounds[1]).perturb(
        x, 0.1, 0.03, 3, classes
    )
    equal(analysis.pgd(MODEL, X, step_size=0.03, **options).x, wanted)


def test_a_tensor_inside_of_captum() -> None:
    net, x, classes = network(), torch.tensor(X, requires_grad=True), torch.tensor(CLASSES)
    question: Any = {"target": CLASSES, "wrt": "maps", "steps": 20}
    method = attr.LayerIntegratedGradients(net, net[1])
    wanted = method.attribute(x, target=classes, n_steps=20, method="riemann_middle")
    equal(analysis.integrated_gradients(MODEL, X, **question).values, wanted, atol=1e-6)
    assert np.abs(wanted.detach().numpy()).max() > 0.01
