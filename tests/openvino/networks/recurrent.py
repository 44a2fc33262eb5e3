"""Networks with steps: recurrent ones, loops, and states that are kept from call to call."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.openvino.networks.base import network, real
from tests.openvino.networks.convolutional import conv


@network(real(2, 6, 5), open={0: (0, 1)}, again=(real(3, 4, 5),))
class lstm(nn.Module):
    """Two layers, all steps and the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(5, 8, 2, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, (h, c) = self.cells(x)
        return self.last(y), h[-1] + c[-1]


@network(real(6, 2, 5), real(1, 2, 8))
class gru(nn.Module):
    """Time first, with an initial state."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(5, 8)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return self.cells(x, h)


@network(real(1, 6, 5), open={0: (0,)}, again=(real(3, 6, 5),))
class both_ways(nn.Module):
    """LSTM and plain cells in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(5, 6, batch_first=True, bidirectional=True)
        self.second = nn.RNN(12, 4, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)[0])[0]


@network(real(1, 1, 16, 24))
class reader(nn.Module):
    """Text in a picture: convolutions, a GRU in both directions along the width, letters."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(conv(1, 6), nn.MaxPool2d(2), conv(6, 8), nn.MaxPool2d((2, 1)))
        self.cells = nn.GRU(32, 8, bidirectional=True)
        self.letters = nn.Linear(16, 7)

    def forward(self, x: Tensor) -> Tensor:
        y = self.trunk(x).permute(3, 0, 1, 2).flatten(2)
        return self.letters(self.cells(y)[0]).log_softmax(-1)


@network(real(2, 3, 4), is_nnef=True)
class cells(nn.Module):
    """A loop that Python unrolls."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.other = nn.GRUCell(4, 6), nn.LSTMCell(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        h, (s, c) = torch.zeros(2, 6), (torch.zeros(2, 5), torch.zeros(2, 5))
        for t in range(3):
            h = self.cell(x[:, t], h)
            s, c = self.other(h, (s, c))
        return torch.cat([h, s, c], 1)


class Steps(nn.Module):
    """A loop that is kept as one: a sum of products."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) / 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x)
        for _ in range(5):
            h = torch.tanh(h @ self.weight + x)
        return h


@network(real(2, 4))
def loop() -> nn.Module:
    return torch.jit.script(Steps())


def keeping(**pairs: str) -> Any:
    """Return a function that changes inputs to states, which are set to outputs."""

    def changed(model: Any) -> Any:
        from openvino._offline_transformations import apply_make_stateful_transformation

        apply_make_stateful_transformation(model, pairs)
        return model

    return changed


@network(real(1, 4), real(1, 6), changed=keeping(h="new_h"), steps=3, is_nnef=True)
class stepwise(nn.Module):
    """A cell whose state is an input."""

    outputs = ("y", "new_h")

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.GRUCell(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.cell(x, h)
        return self.last(h), h * 1.0


@network(real(1, 3, 2), real(1, 3, 4), changed=keeping(h="new_h"), steps=3, is_nnef=True)
class streaming(nn.Module):
    """A causal convolution that keeps the items before those it is given."""

    outputs = ("y", "new_h")

    def __init__(self) -> None:
        super().__init__()
        self.window = nn.Conv1d(3, 5, 5)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([h, x], 2)
        return F.relu(self.window(x)), x[:, :, 2:] * 1.0


@network(
    real(1, 1, 8), real(1, 2, 8, 4), real(1, 2, 8, 4), real(1, 8), steps=3,
    changed=keeping(keys="new_keys", values="new_values", used="new_used"),
)  # fmt: skip
class caching(nn.Module):
    """Attention of a token to a cache of fixed length, oldest entries pushed out."""

    outputs = ("y", "new_keys", "new_values", "new_used")

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, used: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (z.reshape(1, 1, 2, 4).transpose(1, 2) for z in self.mixed(x).chunk(3, -1))
        keys = torch.cat([keys, k], 2)[:, :, 1:]
        values = torch.cat([values, v], 2)[:, :, 1:]
        used = torch.cat([used, torch.ones(1, 1)], 1)[:, 1:]
        mask = torch.where(used > 0, 0.0, -1e9)[:, None, None]
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2)), keys, values, used
