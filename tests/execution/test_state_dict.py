"""PyTorch's names of parameters: of exports, and arrays given by them (`with_state_dict`)."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import InputError
from nnef_jax.parameters.module_names import ModuleNames, components
from tests.helpers import model_of

FOLDER = "tests/torch_networks"

# As torch_to_nnef writes two lists of blocks: batch norms by calls, convolutions by names.
BLOCKS = """version 1.0;
graph network(x) -> (y)
{
    x = external<scalar>(shape = [1, 2, 4, 4]);
    f0 = variable<scalar>(shape = [2, 2, 1, 1], label = 'down.0.conv.weight');
    _0_3__conv__convolution0 = conv(x, f0);
    m0 =
        variable<scalar>(shape = [1, 2, 1, 1], label = '_0_3__bn___1__running_mean_0_running_mean');
    v0 = variable<scalar>(shape = [1, 2, 1, 1], label = '_0_3__bn___1__running_var_running_var');
    _0_3__bn___1__batch_norm0 = batch_normalization(_0_3__conv__convolution0, m0, v0, 0.0, 1.0,
        epsilon = 0.001);
    _0_3__relu0 = relu(_0_3__bn___1__batch_norm0);
    f1 = variable<scalar>(shape = [2, 2, 1, 1], label = 'up.0.conv.weight');
    _0__conv__convolution0 = conv(_0_3__relu0, f1);
    m1 =
        variable<scalar>(shape = [1, 2, 1, 1], label = '_0__bn___1__running_mean_0_running_mean');
    v1 = variable<scalar>(shape = [1, 2, 1, 1], label = '_0__bn___1__running_var_running_var');
    _0__bn___1__batch_norm0 = batch_normalization(_0__conv__convolution0, m1, v1, 0.0, 1.0,
        epsilon = 0.001);
    g = variable<scalar>(shape = [2, 2, 2, 2], label = 'out__weight_0_weight');
    y = deconv(_0__bn___1__batch_norm0, g);
}
"""
SHAPES = {
    "down.0.conv.weight": (2, 2, 1, 1),
    "down.0.bn.1.running_mean": (2,),
    "down.0.bn.1.running_var": (2,),
    "up.0.conv.weight": (2, 2, 1, 1),
    "up.0.bn.1.running_mean": (2,),
    "up.0.bn.1.running_var": (2,),
    "out.weight": (2, 2, 2, 2),
}


def drawn(shapes, seed=0):
    generator = np.random.default_rng(seed)
    return {name: np.float32(generator.uniform(0.1, 1, shape)) for name, shape in shapes.items()}


def blocks(text=BLOCKS):
    found = re.findall(r"variable<scalar>\(shape = \[(.*?)\], label = '(.*?)'", text)
    shapes = {label: tuple(map(int, extents.split(","))) for extents, label in found}
    return model_of(text, data=drawn(shapes, 9))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("layer1.0.bn1.weight", "layer1 0 bn1 weight"),
        ("layer1___0__bn1__weight_0_weight", "layer1 0 bn1 weight"),
        ("_4__b1__running_var_running_var", "4 b1 running_var"),
        ("_6__d___1__weight", "6 d 1 weight"),
        ("norm1__bias_0_offset", "norm1 bias"),
        ("/layer1/layer1.0/relu/relu.1/Relu_output_0", "layer1 0 relu 1 Relu_output_0"),
        ("encoder/layer_1/kernel", "encoder layer_1 kernel"),
        ("weight", "weight"),
        ("a_b.weight_norm", "a_b weight_norm"),
        ("__", ""),
    ],
)  # fmt: skip
def test_names_are_spelled_in_one_way(name, parts) -> None:
    assert components(name) == tuple(parts.split())


def test_the_graph_tells_which_list_a_call_is_of() -> None:
    names = ModuleNames(blocks().graph)
    assert ".".join(names.of_label("_0_3__bn___1__running_var_running_var")) in SHAPES
    modules = [".".join(names.of_operation(x)) for x in blocks().graph.operations]
    assert modules[:5] == ["down.0.conv", "down.0.bn.1", "down.0", "up.0.conv", "up.0.bn.1"]
    assert str(blocks().summary()).splitlines()[2].split()[-1] == "module"
    assert "down.0.bn.1" in str(blocks().summary())


def test_a_state_dict_is_stored_as_the_export_has_it() -> None:
    given = drawn(SHAPES)
    model = blocks().with_state_dict({**given, "down.0.bn.1.num_batches_tracked": np.int64(3)})
    params = model.params
    for half, call in (("down", "_0_3"), ("up", "_0")):
        mean = params[f"{call}__bn___1__running_mean_0_running_mean"]
        np.testing.assert_array_equal(mean.ravel(), given[f"{half}.0.bn.1.running_mean"])
        name = f"{half}.0.conv.weight"
        np.testing.assert_array_equal(params[name], given[name])
    # torch_to_nnef swaps the first two axes of what upsamples, however square it is.
    np.testing.assert_array_equal(
        params["out__weight_0_weight"], given["out.weight"].swapaxes(0, 1)
    )


def test_labels_are_names_too_and_arrays_may_be_traced() -> None:
    model = nnef_jax.load(f"{FOLDER}/resnet.nnef.tgz")
    same = model.with_state_dict(model.params)
    assert all((same.params[x] == model.params[x]).all() for x in model.params)
    x = np.ones((1, 3, 32, 32), np.float32)

    def scaled(factor):
        return model.with_state_dict({x: y * factor for x, y in model.params.items()})(x)

    np.testing.assert_allclose(jax.jit(scaled)(1.0), model(x), rtol=1e-5)


def test_what_the_names_of_a_network_are() -> None:
    model = nnef_jax.load(f"{FOLDER}/resnet.nnef.tgz")
    names = ModuleNames(model.graph)
    found = {".".join(names.of_label(label)): x for label, x in model.params.items() if x.ndim}
    for name in ("conv1.weight", "bn1.running_var", "layer2.shortcut.1.bias", "fc.bias"):
        assert name in found
    flat = {
        name: x.reshape(-1) if "bn" in name or ".1." in name else x for name, x in found.items()
    }
    loaded = model.with_state_dict({name: jnp.flip(x) for name, x in flat.items()})
    for label, x in loaded.params.items():
        np.testing.assert_array_equal(x, jnp.flip(model.params[label]) if x.ndim else x)


def test_gates_of_recurrent_layers_are_cut_and_biases_added() -> None:
    model = nnef_jax.load(f"{FOLDER}/lstm.nnef.tgz")
    shapes = {"head.weight": (8, 20), "head.bias": (8,)}
    for layer, width in ((0, 12), (1, 20)):
        shapes |= {f"lstm.weight_ih_l{layer}": (80, width), f"lstm.weight_hh_l{layer}": (80, 20)}
        shapes |= {f"lstm.bias_{x}_l{layer}": (80,) for x in ("ih", "hh")}
    given = drawn(shapes)
    params = model.with_state_dict(given).params
    np.testing.assert_array_equal(params["lstm.l0_w_ig"][0], given["lstm.weight_ih_l0"][40:60])
    bias = given["lstm.bias_ih_l1"] + given["lstm.bias_hh_l1"]
    np.testing.assert_array_equal(params["lstm.l1_b_o"].ravel(), bias[60:])
    with pytest.raises(InputError, match=r"other shapes: 'lstm\.weight_hh_l0'"):
        model.with_state_dict({**given, "lstm.weight_hh_l0": np.zeros((79, 20), np.float32)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("up.0.conv.weight"), "lacks 'up.0.conv.weight'"),
        (lambda d: d.update(head=np.ones(2) * 3), "has unknown 'head'"),
        (lambda d: d.update({"out.weight": np.ones((3, 2, 2, 2))}), r"\[3, 2, 2, 2\] for \[2, 2,"),
        (lambda d: d.update({"up.0.conv.weight": np.ones((1, 2, 2, 1))}), "other shapes"),
        (lambda d: d.update({"up.0.conv.weight": object()}), "up.0.conv.weight"),
        (lambda d: d.update({"up.0.conv.weight": "text"}), "up.0.conv.weight"),
    ],
)
def test_what_does_not_fit_is_named(change, message) -> None:
    given = drawn(SHAPES)
    change(given)
    with pytest.raises(InputError, match=message):
        blocks().with_state_dict(given)
    with pytest.raises(TypeError, match="state_dict"):
        blocks().with_state_dict([1])  # type: ignore[arg-type]


def test_what_does_nothing_or_is_tied_may_be_left_over() -> None:
    given = drawn(SHAPES)
    more = {
        "norm.weight": np.ones(4, np.float32),
        "norm.bias": np.zeros(4, np.float32),
        "tied.weight": given["out.weight"].copy(),
    }
    blocks().with_state_dict(given | more)
    with pytest.raises(InputError, match=r"has unknown 'norm\.weight'"):
        blocks().with_state_dict({**given, **more, "norm.weight": np.float32([1, 1, 1, 2])})
    model = blocks()
    part = {"down.0.conv.weight": given["down.0.conv.weight"], "other": np.ones(3)}
    loaded = model.with_state_dict(part, strict=False).params
    changed = [x for x in loaded if not np.array_equal(loaded[x], model.params[x])]
    assert changed == ["down.0.conv.weight"]


def test_names_that_fit_several_parameters_are_refused() -> None:
    model = blocks(BLOCKS.replace("_0_3__conv__c", "a0").replace("_0__conv__c", "b0"))
    with pytest.raises(InputError, match=r"does not tell which arrays are '_0_3?__bn"):
        model.with_state_dict(drawn(SHAPES))
    named = {label: np.ones(x.shape, np.float32) for label, x in model.params.items()}
    assert all((x == 1).all() for x in model.with_state_dict(named).params.values())
