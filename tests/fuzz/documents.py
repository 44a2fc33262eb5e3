"""Documents of many operations that are right, of the standard and of the dialect of tract."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.helpers import COMPOSITIONAL

EXPORTED = """
version 1.0;

extension tract_registry tract_core;
extension tract_registry tract_transformers;
extension tract_symbol S;
extension tract_assert S >= 1;
extension tract_assert first: S == 1;

fragment tract_core_properties(
) -> (properties: (string, tensor<scalar>)[])
{
  properties = [
    ("torch_version", "2.13.0"),
    ("export_cmd", "python "quoted" export.py")
  ];
}

fragment gelu( x: tensor<scalar> ) -> ( y: tensor<scalar> )
{
    half = 0.5 * x;
    y = half * (1.0 + tract_core_erf(x / 1.4142135));
}

fragment body( step: tensor<scalar>, state: tensor<scalar>, w: tensor<scalar> )
-> ( next: tensor<scalar>, out: tensor<scalar> )
{
    next = tanh(matmul(step, w) + state);
    out = gelu(next);
}

fragment norm( input: tensor<scalar>, axes: integer[], eps: scalar = 1e-5 )
-> ( output: tensor<scalar> )
{
    mean, variance = moments(input, axes = axes);
    output = sub(input, mean) * rsqrt(variance + eps);
}

graph net( input, ids ) -> ( output, last, total )
{
    input = tract_core_external(shape = [2, S, 4], datum_type = 'f32');
    ids = tract_core_external(shape = [2, S], datum_type = 'i64');
    weight = variable<scalar>(label = 'layer.weight', shape = [4, 4]);
    bias = variable<scalar>(label = 'layer.bias', shape = []);
    w = unsqueeze(weight, axes = [0]);
    # the length of the sequence
    input_shape = tract_core_shape_of(input);
    length = squeeze(slice(input_shape, axes = [0], begin = [1], end = [2]), axes = [0]);
    flat = reshape(input, shape = [2 * length, -1]);
    hidden = linear(flat, weight, bias);
    hidden = relu(hidden);
    hidden = reshape(hidden, shape = [2, length, 4]);
    hidden = norm(hidden, axes = [2], eps = 1e-6);
    positions = tract_core_range(0, length, 1);
    mask = lt(unsqueeze(positions, axes = [0]), ids);
    masked = select(unsqueeze(mask, axes = [2]), hidden, -inf);
    scores = softmax(pad(hidden, padding = [(0, 0), (0, 0), (0, 1)]), axes = [2]);
    start = tile([[[0.0]]], repeats = [2, 1, 4]);
    (out, last) = tract_core_scan(
        body = "body",
        scan = [("step", hidden, 1, 1)],
        full = [("w", w)],
        state = [("state", start, "next")],
        output = [("out", "full", 1, 1), ("next", "last", 1, 1)],
        skip = 0,
        reset_every_turn = 0
    );
    [a, b] = unstack(last, axis = 0);
    values, places = tract_core_topk(a, k = 2, axis = 1, largest = true);
    picked = tract_core_gather(input, places, axis = 2);
    output = concat([out, conv(out, tile([[[1.0]]], repeats = [4, 1, 1]), groups = 4)], axis = 1);
    total = sum_reduce(scores, axes = [1, 2]) / tract_core_cast(length, to = 'f32') + (2.0 ^ 2);
}
"""

WRITTEN = """
version 1.0;

extension tract_registry tract_core;

graph network(i"input.1", i"mask/b") -> (i"4", y)
{
  i"input.1" = external(shape = [1, 3, 8, 8]);
  i"mask/b" = tract_core_external(shape = [1], datum_type = "bool");
  i"/conv.weight" = variable<scalar>(label = "/conv.weight", shape = [2, 3, 3, 3]);
  i"/conv" = conv(i"input.1", i"/conv.weight", [[0.5], [-0.5]], dilation = [1, 1], stride = [2, 2],
      border = "constant", groups = 1, padding = [(1, 1), (1, 1)]);
  i"/relu" = max(i"/conv", [[[[0.0]]]]);
  i"/pool" = max_pool(i"/relu", size = [1, 1, 2, 2], stride = [1, 1, 2, 2],
      padding = [(0, 0), (0, 0), (0, 1), (1, 0)], border = "ignore");
  i"/up" = tract_core_resize(i"/pool", [1.0, 1.0, 2.0, 2.0], interpolator = "linear");
  i"/mean" = sum_reduce(i"/up", axes = [2, 3], normalize = true);
  i"/sum" = tract_core_einsum([i"/mean", i"/mean"], expr = "abcd,aecd->be", acc = "f32");
  i"/top", i"/index" = tract_core_topk(i"/sum", 1, axis = 0, largest = true);
  i"4" = i"/top";
  y = select(i"mask/b", tract_core_cast(i"/index", to = "i64"), 7);
}
"""

PULSED = """
version 1.0;
extension tract_registry tract_core;
extension tract_registry tract_pulse;

graph net(x) -> (y)
{
  x = external(shape = [1, 2, 4]);
  w = variable<scalar>(label = "w", shape = [2, 2, 3]);
  x_delay = tract_pulse_delay(x, axis = 2, delay = 0, overlap = 2);
  c = conv(x_delay, w, padding = [(0, 0)]);
  y = tract_pulse_mask(c, axis = 2, begin = 2, end = 9, value = 0.0);
}
"""
DATA: dict[str, Any] = {
    "layer.weight": np.ones((4, 4), np.float32),
    "layer.bias": np.ones((), np.float32),
    "conv.weight": np.ones((2, 3, 3, 3), np.float32),
    "w": np.ones((2, 2, 3), np.float32),
}
TRACT = (EXPORTED, WRITTEN, PULSED)
FINAL = (
    COMPOSITIONAL
    + """
fragment layer<? = scalar>(
    x: tensor<?>, n: integer = 2, s: string = 'ab', p: (integer,integer)[] = [(0,1)], v: ?[] = [] )
-> ( y: tensor<?>, z: tensor<?>[] )
{
    k = [for i in range_of(p), q in p if i < n && true yield q[0] + i * 2];
    t, u = (n + 1, s + 'x' * 2);
    a = copy<?>(x) if length_of(s) > 1 || n == 3 else x;
    y = a;
    z = [a] * (length_of(k) + 1);
}
fragment total( v: scalar[] ) -> ( s: scalar )
{
    s = v[0] + total(v = v[1:]) if length_of(v) > 0 else 0.0;
}
fragment rec( x: tensor<scalar>, n: integer ) -> ( y: tensor<scalar> )
{
    y = rec(-x * 2.0 + 1.0, n = n - 1) if n > 0 else x ^ -2.0;
}
graph net( x, k ) -> ( y, w )
{
    x = external(shape = [2,3,0]);
    k = external<integer>(shape = [2]);   # an index
    filter = variable(shape = [2,3,4], label = 'a/b');
    (h, [c, d]) = layer(x, n = 7 / 2, v = [1.5,2.5]);
    s = select(h < 0.5 && !(h >= 2.0), h, -c) + total(v = [1.0, 2.0, 3.0]);
    [p, q] = split(s, axis = 0, ratios = [1,1]);
    e = concat([p, q], axis = 0) / filter;
    y = rec(e, n = 3);
    g = gather(e, k, axis = 0);
    w = update(filter, e);
    m, o = moments(g, axes = [0,1]);
}
"""
)
OLD = """version 1.0

fragment layer( x: tensor, n: extent = 2, s: string = 'ab' ) -> ( y: tensor, z: tensor )
{
    sh = shape_of(x)
    w = variable(shape = [1, sh[1]], label = s + '/w')
    k = [i * 2 for i in range_of(sh) if i > 0]
    a, b = x * w, reshape(x, shape = [sh[0], -1])
    [c, d] = split(a, axis = 1, ratios = [1,2])
    y = a + 2 if sh[0] > 1 else neg(a) z = matmul(a, b, trB = true)
}
graph net( x ) -> ( y )
{
    x = external(shape = [0,3])   # open
    (h, u) = layer(x, s = 'l1')
    y = relu(transpose(h, perm = [1,0]));
}
"""
