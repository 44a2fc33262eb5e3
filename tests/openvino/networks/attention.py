"""Transformers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.openvino.networks.base import codes, network, real

WIDTH, HEADS = 16, 4


def heads(x: Tensor, count: int = HEADS) -> Tensor:
    """Return (batch, heads, length, width of one) of (batch, length, width)."""
    return x.reshape(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def causal(length: int, device: torch.device) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


class Attention(nn.Module):
    """Attention of x to y, or to itself."""

    def __init__(self, *, masked: bool = False, spelled: bool = False) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.masked, self.spelled = masked, spelled

    def forward(self, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        y = x if y is None else y
        q, k, v = heads(self.query(x)), heads(self.key(y)), heads(self.value(y))
        if not self.spelled:
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.masked)
            return self.out(joined(z))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if self.masked:
            keep = causal(scores.shape[-1], scores.device)
            scores = scores.masked_fill(~keep, float("-inf"))
        if mask is not None:
            scores = scores + mask
        return self.out(joined(scores.softmax(-1) @ v))


class Block(nn.Module):
    """Attention, also to a memory if there is one, and two dense layers."""

    def __init__(self, *, cross: bool = False, **given: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 + cross))
        self.attention = Attention(**given)
        self.cross = Attention() if cross else None
        self.dense = nn.Sequential(
            nn.Linear(WIDTH, 32), nn.GELU("tanh" if cross else "none"), nn.Linear(32, WIDTH)
        )

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        x = x + self.attention(self.norms[0](x), None, mask if self.cross is None else None)
        if self.cross is not None:
            x = x + self.cross(self.norms[2](x), memory, mask)
        return x + self.dense(self.norms[1](x))


@network(
    codes(2, 7, below=20), codes(2, 7, below=2), open={0: (0, 1), 1: (0, 1)},
    again=(codes(1, 4, below=20), codes(1, 4, below=2)),
)  # fmt: skip
class encoder(nn.Module):
    """Tokens with a mask of padding (BERT): all positions, and the first through a tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, WIDTH), nn.Embedding(12, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, 1e-12)
        self.blocks = nn.ModuleList([Block(), Block(spelled=True)])
        self.pool = nn.Linear(WIDTH, 8)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(tokens.shape[1])[None]
        x = self.norm(self.tokens(tokens) + self.places(places))
        added = (1.0 - mask[:, None, None, :].to(torch.float32)) * -10000.0
        for block in self.blocks:
            x = block(x, None, added)
        return x, self.pool(x[:, 0]).tanh()


@network(codes(2, 6, below=20), open={0: (0, 1)}, again=(codes(1, 9, below=20),))
class decoder(nn.Module):
    """Tokens that see those before them (GPT), attention spelled out and not."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, WIDTH), nn.Embedding(12, WIDTH)
        self.blocks = nn.ModuleList([Block(masked=True), Block(masked=True, spelled=True)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class Rms(nn.Module):
    """Divide x by the root of its mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Turn pairs of items by angles (RoFormer, arXiv:2104.09864), halves as Llama has them."""
    first, second = x.chunk(2, -1)
    other = torch.cat([-second, first], -1)
    both = torch.cat([angles, angles], -1)
    return x * both.cos() + other * both.sin()


class Grouped(nn.Module):
    """A layer of Llama: rotary positions, two heads of keys for four of queries, gates."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.second = Rms(width), Rms(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width // 2, bias=False)
        self.value = nn.Linear(width, width // 2, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)
        size = width // HEADS // 2
        self.register_buffer("speeds", 10000.0 ** (-torch.arange(size) / size))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        y = self.first(x)
        angles = (places[:, :, None].float() * self.speeds)[:, None]
        q = turned(heads(self.query(y)), angles)
        k, v = turned(heads(self.key(y), 2), angles), heads(self.value(y), 2)
        k, v = (
            z[:, :, None].expand(-1, -1, 2, -1, -1).reshape(z.shape[0], HEADS, z.shape[2], -1)
            for z in (k, v)
        )
        mask = causal(x.shape[1], x.device)[None, None]
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
        x = x + self.out(joined(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@network(
    codes(1, 6, below=20), codes(1, 6, below=9), open={0: (0, 1), 1: (0, 1)},
    again=(codes(2, 3, below=20), codes(2, 3, below=9)),
)  # fmt: skip
class llama(nn.Module):
    """Tokens and their positions to scores of the next token."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, width)
        self.layers = nn.ModuleList(Grouped(width) for _ in range(2))
        self.norm, self.scores = Rms(width), nn.Linear(width, 20, bias=False)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, places)
        return self.scores(self.norm(x))


@network(
    real(2, 5, WIDTH), real(2, 8, WIDTH), codes(2, 8, below=2), open={0: (1,), 1: (1,), 2: (1,)},
    again=(real(2, 3, WIDTH), real(2, 4, WIDTH), codes(2, 4, below=2)),
)  # fmt: skip
class translator(nn.Module):
    """A decoder that attends to a memory; two results."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = Block(), Block(cross=True, masked=True)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        added = torch.where(mask[:, None, None].bool(), 0.0, -1e4)
        memory = self.encode(memory, None, added)
        return self.decode(x, memory, added), memory


@network(real(2, 3, 16, 16))
class vit(nn.Module):
    """Patches, a token for the class, PyTorch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 17, WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm, self.block, self.last = nn.LayerNorm(WIDTH), Block(), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.last(self.block(x)[:, 0])


@network(real(1, 8, 8, WIDTH))
class swin(nn.Module):
    """Attention in windows of 4x4, then in shifted ones with a mask, a bias by distance."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.bias = nn.Parameter(torch.randn(49, HEADS))
        at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"))
        apart = (at.flatten(1)[:, :, None] - at.flatten(1)[:, None]) + 3
        self.register_buffer("apart", apart[0] * 7 + apart[1])
        part = torch.zeros(8, 8)
        for i, rows in enumerate((slice(0, 4), slice(4, 6), slice(6, 8))):
            for j, columns in enumerate((slice(0, 4), slice(4, 6), slice(6, 8))):
                part[rows, columns] = 3 * i + j
        part = self.windows(part[None, :, :, None]).squeeze(-1)
        self.register_buffer("mask", (part[:, None] != part[:, :, None]).float() * -100)
        self.merge = nn.Linear(4 * WIDTH, 8, bias=False)

    @staticmethod
    def windows(x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        x = x.reshape(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, 16, c)

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            y = torch.roll(x, (-2, -2), (1, 2)) if i else x
            y = block(self.windows(y)).reshape(-1, 16, 3, HEADS, WIDTH // HEADS)
            q, k, v = y.permute(2, 0, 3, 1, 4).unbind(0)
            scores = (q * 0.5) @ k.transpose(-2, -1)
            scores = scores + self.bias[self.apart.flatten()].reshape(16, 16, -1).permute(2, 0, 1)
            if i:
                scores = scores + self.mask[:, None]
            y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(1, 2, 2, 4, 4, WIDTH)
            y = y.permute(0, 1, 3, 2, 4, 5).reshape(1, 8, 8, WIDTH)
            x = x + (torch.roll(y, (2, 2), (1, 2)) if i else y)
        parts = [x[:, i::2, j::2] for j in range(2) for i in range(2)]
        return self.merge(torch.cat(parts, -1))


@network(real(2, 6, WIDTH))
class experts(nn.Module):
    """The two best of four experts for each token, and linear attention by sums of products."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(WIDTH, 4)
        self.inside = nn.Parameter(torch.randn(4, WIDTH, 8))
        self.outside = nn.Parameter(torch.randn(4, 8, WIDTH))
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mixed(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.einsum("bnd,bne->bde", k, v)
        size = torch.einsum("bnd,bd->bn", q, k.sum(1))
        x = x + torch.einsum("bnd,bde->bne", q, state) / size[..., None]
        weight, which = self.route(x).softmax(-1).topk(2, -1)
        gate = torch.zeros(2, 6, 4).scatter(-1, which, weight / weight.sum(-1, keepdim=True))
        y = F.relu(torch.einsum("bnd,edh->bneh", x, self.inside))
        return torch.einsum("bneh,ehd,bne->bnd", y, self.outside, gate)
