"""Networks of convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.openvino.networks.base import network, real


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, **given) -> nn.Sequential:
    """Return a convolution with padding, its normalisation, an activation."""
    activation = given.pop("activation", nn.ReLU)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False, **given),
        nn.BatchNorm2d(outputs),
        activation(),
    )


class Sum(nn.Module):
    """x + f(x), or s(x) + f(x)."""

    def __init__(self, inside: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.inside, self.shortcut = inside, shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.inside(x)


def head(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, outputs))


@network(real(2, 3, 32, 32), is_nnef=True)
def resnet() -> nn.Module:
    def bottleneck(inputs: int, width: int, outputs: int, stride: int) -> nn.Module:
        inside = nn.Sequential(
            conv(inputs, width, 1),
            conv(width, width, 3, stride),
            conv(width, outputs, 1, activation=nn.Identity),
        )
        return Sum(inside, conv(inputs, outputs, 1, stride, activation=nn.Identity))

    basic = nn.Sequential(conv(8, 8), conv(8, 8, activation=nn.Identity))
    return nn.Sequential(
        conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1),
        Sum(basic), nn.ReLU(), bottleneck(8, 4, 16, 2), nn.ReLU(), head(16, 10), nn.Softmax(1),
    )  # fmt: skip


class Squeeze(nn.Module):
    """A gate for each channel, computed from the means of all channels."""

    def __init__(self, channels: int, gate: type[nn.Module], activation: type[nn.Module]) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 4, 1), activation(),
            nn.Conv2d(4, channels, 1), gate(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x * self.inside(x)


def inverted(inputs: int, outputs: int, size: int, stride: int, **given) -> nn.Module:
    gate, activation = given["gate"], given["activation"]
    wide = 3 * inputs
    inside = nn.Sequential(
        conv(inputs, wide, 1, activation=activation),
        conv(wide, wide, size, stride, groups=wide, activation=activation),
        Squeeze(wide, gate, nn.ReLU if gate is nn.Hardsigmoid else activation),
        conv(wide, outputs, 1, activation=nn.Identity),
    )
    return Sum(inside) if stride == 1 and inputs == outputs else inside


@network(real(1, 3, 24, 24), open={0: (0,)}, again=(real(3, 3, 24, 24),))
def mobilenet() -> nn.Module:
    kind = {"gate": nn.Hardsigmoid, "activation": nn.Hardswish}
    return nn.Sequential(
        conv(3, 8, 3, 2, activation=nn.ReLU6), inverted(8, 8, 3, 1, **kind),
        inverted(8, 12, 5, 2, **kind), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(12, 10),
    )  # fmt: skip


@network(real(2, 3, 24, 20), is_nnef=True)
def efficientnet() -> nn.Module:
    kind = {"gate": nn.Sigmoid, "activation": nn.SiLU}
    return nn.Sequential(
        conv(3, 8, 3, 2, activation=nn.SiLU), inverted(8, 8, 3, 1, **kind),
        inverted(8, 12, 5, 2, **kind), head(12, 10),
    )  # fmt: skip


class ChannelNorm(nn.LayerNorm):
    """Normalises channels, which are the second axis."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Scale(nn.Module):
    """A factor for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.1, 1, channels).reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


@network(real(2, 3, 32, 32))
def convnext() -> nn.Module:
    def block(channels: int) -> nn.Module:
        return Sum(
            nn.Sequential(
                nn.Conv2d(channels, channels, 7, padding=3, groups=channels),
                ChannelNorm(channels, 1e-6), nn.Conv2d(channels, 4 * channels, 1), nn.GELU(),
                nn.Conv2d(4 * channels, channels, 1), Scale(channels),
            )
        )  # fmt: skip

    return nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), ChannelNorm(8), block(8), ChannelNorm(8), nn.Conv2d(8, 12, 2, 2),
        block(12), head(12, 5),
    )  # fmt: skip


class Densely(nn.Module):
    """Each layer reads the results of all before it."""

    def __init__(self, inputs: int, layers: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(inputs + i * growth), nn.ReLU(),
                nn.Conv2d(inputs + i * growth, growth, 3, padding=1, bias=False),
            )
            for i in range(layers)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


@network(real(2, 3, 16, 16))
def densenet() -> nn.Module:
    return nn.Sequential(
        conv(3, 6), Densely(6, 3, 4), nn.BatchNorm2d(18), nn.ReLU(), nn.Conv2d(18, 8, 1),
        nn.AvgPool2d(2, 2), Densely(8, 2, 4), nn.BatchNorm2d(16), nn.ReLU(), head(16, 5),
        nn.LogSoftmax(1),
    )  # fmt: skip


@network(real(1, 1, 24, 24), open={0: (2, 3)}, again=(real(1, 1, 16, 32),), is_nnef=True)
class unet(nn.Module):
    """Down, up by deconvolution and by bilinear interpolation, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = conv(1, 4), conv(4, 8), conv(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.up_second, self.up_first = conv(16, 4), conv(8, 4)
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (2, 2, 2, 2), mode="reflect")
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        third = self.third(F.max_pool2d(second, 2))
        y = self.up_second(torch.cat([self.up(third), second], 1))
        y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        y = self.up_first(torch.cat([y, first], 1))
        return self.last(y)[:, :, 2:-2, 2:-2]


@network(real(2, 4, 20, 20))
class dilated(nn.Module):
    """Windows of several dilations beside each other, joined, and enlarged: DeepLab's head."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Conv2d(4, 6, 3, padding=d, dilation=d, bias=False) for d in (1, 2, 5)
        )
        self.pooled, self.joined = conv(4, 6, 1), conv(24, 8, 1)
        self.last = nn.Conv2d(8, 3, (1, 3), padding=(0, 1))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        mean = F.interpolate(
            self.pooled(x.mean((2, 3), keepdim=True)), size, mode="bilinear", align_corners=False
        )
        y = self.joined(torch.cat([F.relu(b(x)) for b in self.branches] + [mean], 1))
        y = F.interpolate(self.last(y), scale_factor=2, mode="bilinear", align_corners=True)
        return F.interpolate(y, size=(30, 50), mode="bicubic", align_corners=False)


@network(real(1, 3, 9, 11), open={0: (0, 2, 3)}, again=(real(2, 3, 8, 6),), is_nnef=True)
def super_resolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, padding="same"), nn.PReLU(), Sum(nn.Conv2d(8, 8, 3, 1, 1)), nn.PReLU(8),
        nn.ConvTranspose2d(8, 8, 3, 2, 1, 1, groups=4), nn.LeakyReLU(0.1),
        nn.Conv2d(8, 12, 3, padding=1, padding_mode="replicate"), nn.PixelShuffle(2), nn.Tanh(),
    )  # fmt: skip


@network(real(2, 4, 30), open={0: (0, 2)}, again=(real(1, 4, 17),), is_nnef=True)
class wavenet(nn.Module):
    """Causal convolutions of one axis with gates, dilated, weights normalised."""

    def __init__(self) -> None:
        super().__init__()
        normed = nn.utils.parametrizations.weight_norm
        self.gates = nn.ModuleList(
            normed(nn.Conv1d(4, 8, 2, dilation=d, bias=d > 1)) for d in (1, 2, 4)
        )
        self.last = nn.Sequential(nn.AvgPool1d(2, ceil_mode=True), nn.ELU(), nn.Conv1d(4, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        for gate, dilation in zip(self.gates, (1, 2, 4), strict=True):
            x = x + F.glu(gate(F.pad(x, (dilation, 0))), 1)
        return self.last(x)


@network(real(1, 2, 6, 10, 10), is_nnef=True)
def volumes() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ReLU(),
        nn.MaxPool3d((1, 3, 3), 2, (0, 1, 1)), nn.Conv3d(6, 6, (1, 3, 3), groups=3),
        nn.GroupNorm(2, 6), nn.Softplus(),
        nn.AvgPool3d(2, 1, 1, count_include_pad=False), nn.ConvTranspose3d(6, 4, 2, 2),
        nn.Upsample(scale_factor=2, mode="nearest"), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
        nn.Linear(4, 3),
    )  # fmt: skip


class Branches(nn.Module):
    """Results of several modules, joined along channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


@network(real(2, 3, 19, 17), is_nnef=True)
def inception() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.LocalResponseNorm(3, 1e-2, 0.75, 2.0),
        nn.MaxPool2d(3, 2, ceil_mode=True), nn.InstanceNorm2d(8, affine=True),
        Branches(
            conv(8, 4, 1), nn.Sequential(conv(8, 4, 1), conv(4, 4, 5)),
            nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(8, 4, 1, activation=nn.SELU)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(8, 4, 1, activation=nn.Mish)),
        ),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 4, bias=False), nn.Softmin(1),
    )  # fmt: skip


@network(real(2, 4, 12, 12), is_nnef=True)
class shufflenet(nn.Module):
    """Half of the channels are kept unchanged; then groups exchange channels."""

    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(
            nn.Sequential(conv(2, 4, 1), conv(4, 4, groups=4), conv(4, 2, 1)) for _ in range(2)
        )
        self.last = head(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for unit in self.units:
            still, moved = x.chunk(2, 1)
            x = F.channel_shuffle(torch.cat([still, unit(moved)], 1), 2)
        return F.normalize(self.last(x), dim=1)
