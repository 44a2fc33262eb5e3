"""Three networks as NNEF, and the same ones in torch, for the methods of captum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import nnef_jax
from tests.analysis.known_networks import document, normal
from tests.helpers import model_of


@dataclass(frozen=True)
class Network:
    """A network and a question: `layer` is a tensor inside, `unit` one of its units."""

    name: str
    model: nnef_jax.Model
    weights: dict[str, Any]
    x: Any
    classes: list[int]
    layer: str
    unit: tuple[int, ...]
    mask: Any


_POOLS = "padding = [(0,0),(0,0),(0,0),(0,0)], border = 'ignore'"


def _variables(weights: dict[str, Any]) -> str:
    lines = [
        f"{k} = variable<scalar>(shape = {[*w.shape]}, label = '{k}');" for k, w in weights.items()
    ]
    return "\n".join(lines) + "\n"


def _network(name: str, extents: str, body: str, weights: dict[str, Any], **own: Any) -> Network:
    text = f"x = external<scalar>(shape = [0,{extents}]);\n" + _variables(weights) + body
    return Network(name, model_of(document(text), data=weights), weights, **own)


@cache
def dense() -> Network:
    weights = {"w1": normal(8, 6), "b1": normal(1, 8), "w2": normal(7, 8), "b2": normal(1, 7)}
    weights |= {"w3": normal(4, 7), "b3": normal(1, 4)}
    body = """h1 = linear(x, w1, b1);
    r = relu(h1);
    h2 = linear(r, w2, b2);
    t = tanh(h2);
    y = linear(t, w3, b3);
"""
    mask = np.array([0, 0, 1, 2, 2, 3])
    own: Any = {"x": normal(3, 6), "classes": [2, 0, 3], "layer": "r", "unit": (5,), "mask": mask}
    return _network("dense", "6", body, weights, **own)


@cache
def convolutional() -> Network:
    weights = {"f1": normal(3, 2, 3, 3), "c1": normal(1, 3), "f2": normal(4, 3, 3, 3) / 3}
    weights |= {"c2": normal(1, 4), "w": normal(4, 16) / 4, "b": normal(1, 4)}
    body = f"""h1 = conv(x, f1, c1, padding = [(1,1),(1,1)]);
    maps = relu(h1);
    p1 = max_pool(maps, size = [1,1,2,2], stride = [1,1,2,2], {_POOLS});
    h2 = conv(p1, f2, c2, padding = [(1,1),(1,1)]);
    r2 = relu(h2);
    p2 = avg_pool(r2, size = [1,1,2,2], stride = [1,1,2,2], {_POOLS});
    flat = reshape(p2, shape = [0,16]);
    y = linear(flat, w, b);
"""
    mask = np.arange(2)[:, None, None] * 4 + np.kron([[0, 1], [2, 3]], np.ones((4, 4), int))
    own: Any = {"layer": "maps", "unit": (0, 1, 3), "mask": mask}
    return _network(
        "convolutional", "2,8,8", body, weights, x=normal(3, 2, 8, 8), classes=[2, 0, 3], **own
    )


@cache
def residual() -> Network:
    weights = {"f1": normal(3, 2, 3, 3), "c1": normal(1, 3), "f2": normal(3, 3, 3, 3) / 3}
    weights |= {"c2": normal(1, 3), "w": normal(4, 3), "b": normal(1, 4)}
    for i in (1, 2):
        weights |= {f"m{i}": normal(1, 3) / i, f"v{i}": normal(1, 3) ** 2 + i}
        weights |= {f"o{i}": normal(1, 3), f"s{i}": normal(1, 3) + i}
    body = """h1 = conv(x, f1, c1, padding = [(1,1),(1,1)]);
    n1 = batch_normalization(h1, m1, v1, o1, s1, epsilon = 1e-5);
    maps = relu(n1);
    h2 = conv(maps, f2, c2, padding = [(1,1),(1,1)]);
    n2 = batch_normalization(h2, m2, v2, o2, s2, epsilon = 1e-5);
    sum = add(n2, maps);
    r2 = relu(sum);
    mean = mean_reduce(r2, axes = [2,3]);
    flat = squeeze(mean, axes = [2,3]);
    y = linear(flat, w, b);
"""
    mask = np.arange(2)[:, None, None] * 4 + np.kron([[0, 1], [2, 3]], np.ones((3, 3), int))
    own: Any = {"layer": "maps", "unit": (1, 2, 4), "mask": mask}
    return _network(
        "residual", "2,6,6", body, weights, x=normal(3, 2, 6, 6), classes=[1, 0, 3], **own
    )


NETWORKS = {"dense": dense, "convolutional": convolutional, "residual": residual}


def in_torch(network: Network) -> tuple[Any, Any]:
    """Return the network in torch, and the module that its layer is of."""
    import torch
    from captum.attr._utils.custom_modules import Addition_Module
    from torch import nn

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 4)
            )

        @property
        def layer(self) -> Any:
            return self.layers[1]

        @property
        def before(self) -> Any:
            return self.layers[0]

        def forward(self, x: Any) -> Any:
            return self.layers(x)

    class Convolutional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU())
            self.pool = nn.MaxPool2d(2)
            self.second = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2))
            self.last = nn.Linear(16, 4)

        @property
        def layer(self) -> Any:
            return self.first[1]

        @property
        def before(self) -> Any:
            return self.first[0]

        def forward(self, x: Any) -> Any:
            # Captum's DeepLift loses what a pooling says right beside a rectifier.
            x = self.pool(self.first(x) * 1.0)
            return self.last(self.second(x).flatten(1))

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU())
            self.second = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))
            self.add, self.relu, self.pool = Addition_Module(), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
            self.last = nn.Linear(3, 4)

        @property
        def layer(self) -> Any:
            return self.first[2]

        @property
        def before(self) -> Any:
            return self.first[1]

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            x = self.relu(self.add(self.second(x), x))
            return self.last(self.pool(x).flatten(1))

    net: Any = {"dense": Dense, "convolutional": Convolutional, "residual": Residual}[
        network.name
    ]()
    w = {k: torch.tensor(v) for k, v in network.weights.items()}
    layers = [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    labels = {
        "dense": ("w1 b1", "w2 b2", "w3 b3"),
        "convolutional": ("f1 c1", "f2 c2", "w b"),
        "residual": ("f1 c1", "f2 c2", "w b"),
    }[network.name]
    with torch.no_grad():
        for module, pair in zip(layers, labels, strict=True):
            weight, bias = pair.split()
            module.weight.copy_(w[weight])
            module.bias.copy_(w[bias][0])
        norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
        for i, module in enumerate(norms, 1):
            module.running_mean.copy_(w[f"m{i}"][0])
            module.running_var.copy_(w[f"v{i}"][0])
            module.bias.copy_(w[f"o{i}"][0])
            module.weight.copy_(w[f"s{i}"][0])
    net.eval()
    return net, net.layer
