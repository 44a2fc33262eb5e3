"""Whole networks in the provisional dialect, as appendix C of its text describes them.

Layers are fragments with variables in them, whose shapes come from `shape_of`; the text is our own.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax.reading.read import network_of_text
from tests.helpers import model_of

LAYERS = """
version 1.0

fragment conv_layer(
    x: tensor, channels: extent, size: extent[], stride: extent[] = [],
    padding: (extent,extent)[] = [], groups: extent = 1, scope: string )
-> ( y: tensor )
{
    filter = variable(shape = [channels, shape_of(x)[1] / groups] + size, label = scope + '/filter')
    bias = variable(shape = [1, channels], label = scope + '/bias')
    y = conv(x, filter, bias, stride = stride, padding = padding, groups = groups)
}
fragment pool_layer(
    x: tensor, size: extent[], stride: extent[] = [1,1], padding: (extent,extent)[] = [] )
-> ( y: tensor )
{
    y = max_pool(x, size = [1,1] + size, stride = [1,1] + stride, border = 'ignore',
                 padding = [(0,0)] * 2 + padding if length_of(padding) > 0 else [])
}
fragment norm_layer( x: tensor, scope: string ) -> ( y: tensor )
{
    shape = [1, shape_of(x)[1]]
    mean = variable(shape = shape, label = scope + '/mean')
    variance = variable(shape = shape, label = scope + '/variance')
    beta = variable(shape = shape, label = scope + '/beta')
    gamma = variable(shape = shape, label = scope + '/gamma')
    y = batch_normalization(x, mean, variance, beta, gamma, epsilon = 1e-3)
}
"""

ALEXNET = (
    LAYERS
    + """
graph alexnet( x ) -> ( y )
{
    x = external(shape = [1,3,224,224])
    c1 = conv_layer(x, channels = 96, size = [11,11], 
                    padding = [(0,0)] * 2, stride = [4,4], scope = 'c1')
    n1 = local_response_normalization(relu(c1), size = [1,5], alpha = 1e-4, beta = 0.75)
    p1 = pool_layer(n1, size = [3,3], stride = [2,2], padding = [(0,1)] * 2)
    c2 = conv_layer(p1, channels = 256, size = [5,5], groups = 2, scope = 'c2')
    n2 = local_response_normalization(relu(c2), size = [1,5], alpha = 1e-4, beta = 0.75)
    p2 = pool_layer(n2, size = [3,3], stride = [2,2], padding = [(0,0)] * 2)
    c3 = conv_layer(p2, channels = 384, size = [3,3], scope = 'c3')
    c4 = conv_layer(relu(c3), channels = 384, size = [3,3], groups = 2, scope = 'c4')
    c5 = conv_layer(relu(c4), channels = 256, size = [3,3], groups = 2, scope = 'c5')
    p5 = pool_layer(relu(c5), size = [3,3], stride = [2,2], padding = [(0,0)] * 2)
    c6 = conv_layer(p5, channels = 4096, size = [6,6], padding = [(0,0)] * 2, scope = 'c6')
    c7 = conv_layer(relu(c6), channels = 4096, size = [1,1], scope = 'c7')
    c8 = conv_layer(relu(c7), channels = 1000, size = [1,1], scope = 'c8')
    y = softmax(c8)
}
"""
)

GOOGLENET = (
    LAYERS
    + """
fragment inception( x: tensor, channels: extent[], scope: string ) -> ( y: tensor )
{
    sizes = [1, 1, 3, 1, 5, 1]
    inputs = [x, x, x, x, x, pool_layer(x, size = [3,3])]
    first = [relu(conv_layer(inputs[i], channels = channels[i], size = [sizes[i]] * 2,
                             scope = scope + '/' + string(i)))
             for i in [0, 1, 3, 5]]
    b = relu(conv_layer(first[1], channels = channels[2], size = [3,3], scope = scope + '/2'))
    c = relu(conv_layer(first[2], channels = channels[4], size = [5,5], scope = scope + '/4'))
    y = concat([first[0], b, c, first[3]], axis = 1)
}
fragment stack( x: tensor, modules: extent[][], scope: string ) -> ( y: tensor )
{
    top = inception(x, channels = modules[0], scope = scope + string(length_of(modules)))
    y = stack(top, modules = modules[1:], scope = scope) if length_of(modules) > 1 else top
}
graph googlenet( x ) -> ( y )
{
    x = external(shape = [1,3,224,224])
    c1 = conv_layer(x, channels = 64, size = [7,7], stride = [2,2],
                    padding = [(3,2)] * 2, scope = 'c1')
    p1 = pool_layer(relu(c1), size = [3,3], stride = [2,2], padding = [(0,1)] * 2)
    c2 = conv_layer(p1, channels = 64, size = [1,1], scope = 'c2')
    c3 = conv_layer(relu(c2), channels = 192, size = [3,3], scope = 'c3')
    p2 = pool_layer(relu(c3), size = [3,3], stride = [2,2], padding = [(0,1)] * 2)
    a = stack(p2, scope = 'a', modules = [[64, 96, 128, 16, 32, 32], [128, 128, 192, 32, 96, 64]])
    p3 = pool_layer(a, size = [3,3], stride = [2,2], padding = [(0,1)] * 2)
    b = stack(p3, scope = 'b', modules = [
        [192, 96, 208, 16, 48, 64], [160, 112, 224, 24, 64, 64], [128, 128, 256, 24, 64, 64],
        [112, 144, 288, 32, 64, 64], [256, 160, 320, 32, 128, 128]])
    p4 = pool_layer(b, size = [3,3], stride = [2,2], padding = [(0,1)] * 2)
    c = stack(p4, scope = 'c', modules = [
        [256, 160, 320, 32, 128, 128], [384, 192, 384, 48, 128, 128]])
    p5 = avg_pool(c, size = [1,1,7,7], padding = [(0,0)] * 4)
    c4 = conv_layer(p5, channels = 1000, size = [1,1], scope = 'c4')
    y = softmax(c4)
}
"""
)

RESNET = (
    LAYERS
    + """
fragment step(
    x: tensor, channels: extent, size: extent[], stride: extent[] = [], scope: string )
-> ( y: tensor )
{
    c = conv_layer(x, channels = channels, size = size, stride = stride, scope = scope)
    y = norm_layer(c, scope = scope + '/norm')
}
fragment unit( x: tensor, channels: extent, inner: extent, stride: extent[], scope: string )
-> ( y: tensor )
{
    shortcut = step(x, channels = channels, size = [1,1], stride = stride, scope = scope + '/s')
    a = relu(step(x, channels = inner, size = [1,1], scope = scope + '/a'))
    b = relu(step(a, channels = inner, size = [3,3], stride = stride, scope = scope + '/b'))
    y = relu(shortcut + step(b, channels = channels, size = [1,1], scope = scope + '/c'))
}
fragment block( x: tensor, units: (extent,extent,extent)[], scope: string, index: extent = 1 )
-> ( y: tensor )
{
    channels, inner, stride = units[0]
    first = unit(x, channels = channels, inner = inner, stride = [stride] * 2,
                 scope = scope + '/unit' + string(index))
    y = block(first, units = units[1:], scope = scope, index = index + 1)
        if length_of(units) > 1 else first
}
fragment blocks( x: tensor, all: (extent,extent,extent)[][] ) -> ( y: tensor )
{
    last = length_of(all) - 1
    before = blocks(x, all = all[:last]) if last > 0 else x
    y = block(before, units = all[last], scope = 'block' + string(last))
}
graph resnet( x ) -> ( y )
{
    x = external(shape = [1,3,SIDE,SIDE])
    c1 = step(x, channels = 64 / THIN, size = [7,7], stride = [2,2], scope = 'c1')
    p1 = pool_layer(relu(c1), size = [3,3], stride = [2,2], padding = [(0,1)] * 2)
    b = blocks(p1, all = [
        [(256 / THIN, 64 / THIN, 1)] * 2 + [(256 / THIN, 64 / THIN, 2)],
        [(512 / THIN, 128 / THIN, 1)] * 3 + [(512 / THIN, 128 / THIN, 2)],
        [(1024 / THIN, 256 / THIN, 1)] * MANY + [(1024 / THIN, 256 / THIN, 2)],
        [(2048 / THIN, 512 / THIN, 1)] * 3])
    m = mean_reduce(b, axes = [2,3])
    c = conv_layer(m, channels = 1000 / THIN, size = [1,1], scope = 'logits')
    y = softmax(c)
}
"""
)


def resnet(thin: int, side: int, many: int) -> str:
    return RESNET.replace("THIN", str(thin)).replace("SIDE", str(side)).replace("MANY", str(many))


def random_arrays(text: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    graph = network_of_text(text).graph
    shapes = {p.label: p.value.type.shape for p in graph.parameters}
    arrays: dict[str, np.ndarray] = {}
    for label, shape in shapes.items():
        low = 0.5 if "norm" in label else -1.0
        spread = 1.0 if "norm" in label else max(1, np.prod(shape[1:])) ** -0.5
        arrays[label] = (random.uniform(low, 1, shape) * spread).astype(np.float32)
    return arrays


# Convolutions, and millions of parameters as the papers count them, to 2 %: AlexNet 61 M, GoogLeNet
# 7.0 M without its auxiliary heads; ResNet-101 has a projection in each of its 33 units here, which
# the paper's has not.
@pytest.mark.parametrize(
    ("text", "convolutions", "millions"),
    [
        (ALEXNET, 8, 61.0),
        (GOOGLENET, 3 + 9 * 6 + 1, 7.0),
        (resnet(1, 224, 22), 1 + 33 * 4 + 1, None),
    ],
    ids=["alexnet", "googlenet", "resnet101"],
)
def test_published_networks(text: str, convolutions: int, millions: float | None) -> None:
    graph = network_of_text(text).graph
    assert graph.outputs[0].type.shape == (1, 1000, 1, 1)
    assert sum(operation.kind == "conv" for operation in graph.operations) == convolutions
    if millions is not None:
        count = sum(np.prod(p.value.type.shape) for p in graph.parameters)
        assert count / 1e6 == pytest.approx(millions, rel=0.02)


@pytest.fixture(scope="module")
def thin() -> nnef_jax.Model:
    text = resnet(32, 64, 1).replace("* 3", "* 1").replace("* 2 + [(", "* 1 + [(")
    inner = ("[(512 / ", "[(1024 / ")  # two blocks of four
    text = "\n".join(x for x in text.splitlines() if not x.strip().startswith(inner))
    return model_of(text, data=random_arrays(text))


def test_thin_resnet_runs_and_differentiates(thin: nnef_jax.Model) -> None:
    x = np.random.default_rng(1).uniform(-1, 1, (1, 3, 64, 64)).astype(np.float32)

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        y = thin.apply(params, x)
        return y[0, 3, 0, 0], y

    gradients, y = jax.jit(jax.grad(loss, has_aux=True))(thin.params)
    assert y.shape == (1, 31, 1, 1)
    assert float(y.sum()) == pytest.approx(1, abs=1e-5)
    assert all(np.isfinite(g).all() for g in gradients.values())
    assert max(float(np.abs(g).max()) for g in gradients.values()) > 0


def test_names_tell_the_fragments(thin: nnef_jax.Model) -> None:
    assert {"c1_c", "p1", "m", "y"} <= {operation.name for operation in thin.graph.operations}
    deepest = max(thin.graph.operations, key=lambda operation: len(operation.calls))
    fragments = [call.fragment for call in deepest.calls]
    assert fragments[0] == "blocks"
    assert fragments[-3:] == ["unit", "step", "conv_layer"]


def test_inner_names_leave_the_graphs_own_alone() -> None:
    text = """version 1.0
    fragment f( x: tensor ) -> ( y: tensor ) { t = neg(x) y = exp(t) }
    graph g( x ) -> ( y, y_t ) { x = external(shape = [2]) y = f(x) y_t = sin(x) }
    """
    model = model_of(text)
    x = np.float32([1, 2])
    np.testing.assert_allclose(model.intermediates(x, names=["y_t"])["y_t"], np.sin(x), rtol=1e-6)
    np.testing.assert_allclose(model(x).y_t, np.sin(x), rtol=1e-6)
