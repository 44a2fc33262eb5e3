"""Builds an NNEF archive, in plain NNEF 1.0 if possible, and otherwise in tract's dialect.

Operations that the standard lacks are written in the way of torch_to_nnef, so tract can read every
archive.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from benchmarks.builders.base import Array, Builder
from nnef_jax.storage.writer import write_members

_FRAGMENTS = {
    "layer_norm_with_affine": """
fragment layer_norm_with_affine(
    x: tensor<scalar>, gamma: tensor<scalar>, beta: tensor<scalar>, mean_axes: integer[],
    eps: scalar
) -> ( y: tensor<scalar> )
{
    mean = sum_reduce(x, axes = mean_axes, normalize = true);
    sub_mean = x - mean;
    inv_stdvar = rsqrt(sum_reduce(sqr(sub_mean), axes = mean_axes, normalize = true) + eps);
    y = sub_mean * inv_stdvar * gamma + beta;
}
""",
    "tract_gelu": """
fragment tract_gelu( x: tensor<scalar> ) -> ( y: tensor<scalar> )
{
    y = 0.5 * x * ( 1.0 + tract_core_erf(x * 0.7071067811865475));
}
""",
    "lstm_scan_loop": """
fragment lstm_scan_loop(
    c_t_prev: tensor<scalar>, h_t_prev: tensor<scalar>,
    xt_Wi_t: tensor<scalar>, xt_Wf_t: tensor<scalar>, xt_Wg_t: tensor<scalar>,
    xt_Wo_t: tensor<scalar>,
    W_hi: tensor<scalar>, W_hf: tensor<scalar>, W_hg: tensor<scalar>, W_ho: tensor<scalar>
) -> ( c_t: tensor<scalar>, h_t: tensor<scalar> )
{
    i_t = sigmoid(xt_Wi_t + matmul(h_t_prev, W_hi, transposeB = true));
    f_t = sigmoid(xt_Wf_t + matmul(h_t_prev, W_hf, transposeB = true));
    g_t = tanh(xt_Wg_t + matmul(h_t_prev, W_hg, transposeB = true));
    o_t = sigmoid(xt_Wo_t + matmul(h_t_prev, W_ho, transposeB = true));
    c_t = f_t * c_t_prev + i_t * g_t;
    h_t = o_t * tanh(c_t);
}
""",
    "gru_scan_loop": """
fragment gru_scan_loop(
    h_t_prev: tensor<scalar>,
    xt_Wr_t: tensor<scalar>, xt_Wz_t: tensor<scalar>, xt_Wn_t: tensor<scalar>,
    W_hr: tensor<scalar>, W_hz: tensor<scalar>, W_hn: tensor<scalar>, b_hn: tensor<scalar>
) -> ( h_t: tensor<scalar> )
{
    r_t = sigmoid(xt_Wr_t + matmul(h_t_prev, W_hr, transposeB = true));
    z_t = sigmoid(xt_Wz_t + matmul(h_t_prev, W_hz, transposeB = true));
    n_t = tanh(xt_Wn_t + r_t * (matmul(h_t_prev, W_hn, transposeB = true) + b_hn));
    h_t = (1.0 - z_t) * n_t + z_t * h_t_prev;
}
""",
}


class NnefBuilder(Builder[str]):
    """Collects the statements and files of an archive. A tensor is represented by its name."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._statements: list[str] = []
        self._members: dict[str, bytes | Array] = {}
        self._ranks: dict[str, int] = {}
        self._extensions: dict[str, None] = {}
        self._fragments: dict[str, None] = {}

    def write(self, path: str | os.PathLike[str], output: str) -> None:
        """Write the network with this output, to a folder or an archive by the suffix of `path`."""
        write_members(path, {"graph.nnef": self.text(output).encode(), **self._members})

    def text(self, output: str) -> str:
        """Return the document of the network with this output."""
        header = ["version 1.0;", *(f"extension tract_registry {e};" for e in self._extensions)]
        fragments = [_FRAGMENTS[name] for name in self._fragments]
        body = [f"    {statement};" for statement in self._statements]
        graph = [f"graph network({', '.join(self.inputs)}) -> ({output})", "{", *body, "}", ""]
        return "\n".join([*header, *fragments, "", *graph])

    def declare(self, name: str, shape: tuple[int, ...]) -> str:
        self._ranks[name] = len(shape)
        self._statements.append(f"{name} = external<scalar>(shape = {list(shape)})")
        return name

    def parameter(self, name: str, value: Array, *, trainable: bool = True) -> str:
        identifier = name.replace(".", "_")
        self._members[f"{name}.dat"] = value
        self._ranks[identifier] = value.ndim
        shape = list(value.shape)
        self._statements.append(
            f"{identifier} = variable<scalar>(label = '{name}', shape = {shape})"
        )
        return identifier

    def conv(
        self,
        x: str,
        weight: str,
        bias: str | None,
        *,
        stride: int,
        padding: int,
        dilation: int,
        groups: int,
    ) -> str:
        rank = self._ranks[x]
        axes = rank - 2
        return self._add(
            f"conv({x}, {weight}, {self._row(bias) if bias else 0.0}, border = 'constant', "
            f"padding = {[(padding, padding)] * axes}, stride = {[stride] * axes}, "
            f"dilation = {[dilation] * axes}, groups = {groups})",
            rank,
        )

    def deconv(self, x: str, weight: str, bias: str, *, stride: int) -> str:
        # The first axis of the filter is the outputs in tract, and the inputs in the standard. A
        # document that both engines read must therefore be in tract's dialect.
        self._need("tract_core")
        weight = self.transpose(weight, (1, 0, 2, 3))
        return self._add(
            f"deconv({x}, {weight}, {self._row(bias)}, border = 'constant', "
            f"padding = [(0, 0), (0, 0)], stride = {[stride] * 2}, dilation = [1, 1], "
            "output_shape = [], groups = 1)",
            4,
        )

    def batch_norm(
        self, x: str, mean: str, variance: str, scale: str, offset: str, epsilon: float
    ) -> str:
        rows = [self._row(v) for v in (mean, variance, offset, scale)]
        text = f"batch_normalization({x}, {', '.join(rows)}, epsilon = {epsilon})"
        return self._add(text, self._ranks[x])

    def layer_norm(self, x: str, scale: str, offset: str, epsilon: float) -> str:
        self._need("tract_core", "layer_norm_with_affine")
        rank = self._ranks[x]
        affine = ", ".join(self._expanded(v, rank) for v in (scale, offset))
        return self._add(
            f"layer_norm_with_affine({x}, {affine}, mean_axes = [{rank - 1}], eps = {epsilon})",
            rank,
        )

    def relu(self, x: str) -> str:
        return self._same(x, f"relu({x})")

    def relu6(self, x: str) -> str:
        return self._same(x, f"clamp({x}, 0.0, 6.0)")

    def gelu(self, x: str) -> str:
        self._need("tract_core", "tract_gelu")
        return self._same(x, f"tract_gelu({x})")

    def sigmoid(self, x: str) -> str:
        return self._same(x, f"sigmoid({x})")

    def softmax(self, x: str) -> str:
        return self._same(x, f"softmax({x}, axes = [{self._ranks[x] - 1}])")

    def max_pool(self, x: str, *, size: int, stride: int, padding: int) -> str:
        return self._pool("max_pool", x, size, stride, padding)

    def average_pool(self, x: str, *, size: int) -> str:
        return self._pool("avg_pool", x, size, size, 0)

    def _pool(self, kind: str, x: str, size: int, stride: int, padding: int) -> str:
        rank = self._ranks[x]
        axes = rank - 2
        return self._add(
            f"{kind}({x}, size = {[1, 1] + [size] * axes}, border = 'ignore', "
            f"padding = {[(0, 0)] * 2 + [(padding, padding)] * axes}, "
            f"stride = {[1, 1] + [stride] * axes}, dilation = {[1] * rank})",
            rank,
        )

    def global_average(self, x: str) -> str:
        axes = list(range(2, self._ranks[x]))
        mean = self._add(f"mean_reduce({x}, axes = {axes})", self._ranks[x])
        return self._add(f"squeeze({mean}, axes = {axes})", 2)

    def dense(self, x: str, weight: str, bias: str) -> str:
        rank = self._ranks[x]
        affine = ", ".join(self._expanded(v, rank) for v in (weight, bias))
        return self._add(f"linear({x}, {affine})", rank)

    def matmul(self, a: str, b: str) -> str:
        return self._same(a, f"matmul({a}, {b})")

    def scale(self, x: str, factor: float) -> str:
        return self._same(x, f"{x} * {factor}")

    def attention(
        self, q: str, k: str, v: str, size: int, *, whole: bool, bias: str | None = None
    ) -> str:
        if not whole:
            return self.spelled_attention(q, k, v, size, bias)
        self._need("tract_core")
        self._need("tract_transformers")
        return self._same(
            q,
            f"tract_transformers_sdpa({q}, {k}, {v}, datum_type = 'f32', "
            "acc_datum_type = 'f32', is_causal = false)",
        )

    def add(self, a: str, b: str) -> str:
        return self._same(a, f"add({a}, {b})")

    def multiply(self, a: str, b: str) -> str:
        return self._same(a, f"mul({a}, {b})")

    def concat(self, values: Sequence[str], axis: int) -> str:
        return self._same(values[0], f"concat([{', '.join(values)}], axis = {axis})")

    def reshape(self, x: str, shape: tuple[int, ...]) -> str:
        return self._add(f"reshape({x}, shape = {list(shape)})", len(shape))

    def transpose(self, x: str, axes: tuple[int, ...]) -> str:
        return self._same(x, f"transpose({x}, axes = {list(axes)})")

    def slice(self, x: str, axis: int, begin: int, end: int) -> str:
        return self._same(x, f"slice({x}, axes = [{axis}], begin = [{begin}], end = [{end}])")

    def repeat(self, x: str, count: int) -> str:
        return self._same(x, f"tile({x}, repeats = {[count] + [1] * (self._ranks[x] - 1)})")

    def lstm(self, x: str, name: str, w: Array, r: Array, b: Array, start: Array) -> str:
        h, c = (self.parameter(f"{name}.{state}", start) for state in ("h0", "c0"))
        scanned, full = self._gates("ifgo", x, name, w, r, b)
        states = f"('c_t_prev', {c}, 'c_t'), ('h_t_prev', {h}, 'h_t')"
        return self._scan("lstm_scan_loop", scanned, full, states)

    def gru(self, x: str, name: str, w: Array, r: Array, b: Array, n: Array, start: Array) -> str:
        h = self.parameter(f"{name}.h0", start)
        scanned, full = self._gates("rzn", x, name, w, r, b)
        full.append(f"('b_hn', {self.parameter(f'{name}.b_hn', n[None, None])})")
        return self._scan("gru_scan_loop", scanned, full, f"('h_t_prev', {h}, 'h_t')")

    def _gates(
        self, gates: str, x: str, name: str, w: Array, r: Array, b: Array
    ) -> tuple[list[str], list[str]]:
        """Return the operands that a loop reads item by item, and those that it reads entirely."""
        hidden = r.shape[1]
        scanned: list[str] = []
        full: list[str] = []
        for index, gate in enumerate(gates):
            rows = np.s_[None, index * hidden : (index + 1) * hidden]
            weight = self.parameter(f"{name}.w_i{gate}", w[rows])
            bias = self.parameter(f"{name}.b_{gate}", b[rows][None])
            of_states = self.parameter(f"{name}.w_h{gate}", r[rows])
            product = self._same(x, f"matmul({x}, {weight}, transposeB = true)")
            scanned.append(f"('xt_W{gate}_t', {self.add(product, bias)}, 0, 1)")
            full.append(f"('W_h{gate}', {of_states})")
        return scanned, full

    def _scan(self, body: str, scanned: list[str], full: list[str], states: str) -> str:
        self._need("tract_core", body)
        return self._add(
            f"tract_core_scan(body = '{body}', scan = [{', '.join(scanned)}], "
            f"full = [{', '.join(full)}], state = [{states}], "
            "output = [('h_t', 'full', 0, 1)], skip = 0)",
            3,
        )

    def _add(self, call: str, rank: int) -> str:
        name = f"v{len(self._ranks)}"
        self._ranks[name] = rank
        self._statements.append(f"{name} = {call}")
        return name

    def _same(self, x: str, call: str) -> str:
        return self._add(call, self._ranks[x])

    def _row(self, vector: str) -> str:
        """Add an axis for the batch before the axis of a vector over channels."""
        return self._expanded(vector, 2)

    def _expanded(self, x: str, rank: int) -> str:
        """Add leading axes up to a rank, because the standard aligns shapes at the left."""
        missing = list(range(rank - self._ranks[x]))
        return self._add(f"unsqueeze({x}, axes = {missing})", rank) if missing else x

    def _need(self, extension: str, fragment: str | None = None) -> None:
        self._extensions[extension] = None
        if fragment:
            self._fragments[fragment] = None
