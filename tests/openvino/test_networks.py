"""Networks that OpenVINO converts from PyTorch: results as its runtime's, gradients as PyTorch's.

Needs the extra `test-openvino`. `networks/` has them, a module a family.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax

# Named here, since importing PyTorch takes seconds, which every run of the suite would wait for.
FAMILIES = {
    "convolutional": (
        "convnext", "densenet", "dilated", "efficientnet", "inception", "mobilenet", "resnet",
        "shufflenet", "super_resolution", "unet", "volumes", "wavenet",
    ),
    "heads": ("anchors", "peaks", "suppression", "warped", "yolo"),
    "attention": ("decoder", "encoder", "experts", "llama", "swin", "translator", "vit"),
    "recurrent": (
        "both_ways", "caching", "cells", "gru", "loop", "lstm", "reader", "stepwise", "streaming",
    ),
    "packed": (
        "int8_mobilenet", "int8_resnet", "int8_vit", "weights_int4", "weights_int8",
        "weights_int8_symmetric", "weights_nf4", "weights_uint4",
    ),
}  # fmt: skip
Array = np.ndarray[Any, Any]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's and OpenVINO's, while they convert
]


@pytest.fixture(scope="module")
def networks() -> Any:
    """All networks by name."""
    for module in ("openvino", "torch", "nncf"):
        pytest.importorskip(module, reason="needs nnef_jax[test-openvino]")
    for family in FAMILIES:
        import_module(f"tests.openvino.networks.{family}")
    return import_module("tests.openvino.networks.base").NETWORKS


def test_all_are_named(networks: Any) -> None:
    assert sorted(networks) == sorted(name for family in FAMILIES.values() for name in family)


@pytest.fixture(scope="module", params=[name for names in FAMILIES.values() for name in names])
def case(request: Any, networks: Any, tmp_path_factory: Any) -> Any:
    """A network, its file, and its model."""
    files = import_module("tests.openvino.networks.converted")
    network = networks[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    model = files.converted(network)
    files.written(model, folder, half=True)
    path = files.written(model, folder, half=False)
    return network, path, nnef_jax.load(path)


def listed(outputs: Any) -> list[Array]:
    """Return results of a call, one or several, as arrays."""
    return [np.asarray(y) for y in (outputs if isinstance(outputs, tuple) else (outputs,))]


def assert_close(found: Any, wanted: Sequence[Any], levels: int = 0, within: float = 1e-4) -> None:
    """Assert that items differ by so much of the largest one; of 99.9 % by less than a level."""
    found = listed(found)
    assert len(found) == len(wanted)
    for y, z in zip(found, map(np.asarray, wanted), strict=True):
        if y.shape != z.shape:  # rows behind those that are found
            assert y.shape[1:] == z.shape[1:] and len(y) > len(z)
            y = y[: len(z)]
        if z.dtype.kind in "iub":
            np.testing.assert_array_equal(y, z)
            continue
        apart = np.abs(y.astype(np.float64) - z)
        if levels:
            assert np.mean(apart <= np.ptp(z) / (levels - 1)) >= 0.999
        else:
            assert apart.max() <= within * max(np.abs(z).max(), 1e-6), apart.max()


@pytest.mark.parametrize("half", [False, True])
def test_results(case: Any, half: bool) -> None:
    network, path, model = case
    if half:
        path = path.with_name("half.xml")
        model = nnef_jax.load(path)
    runtime = import_module("tests.openvino.networks.converted").Runtime(path)
    for inputs in (network.inputs, *([network.again] if network.again else [])):
        arrays = network.arrays(inputs)
        if not network.steps:
            assert_close(model(*arrays), runtime(arrays), network.levels)
    if network.steps:
        state = model.init_state()
        for seed in range(network.steps):
            arrays = network.arrays(network.inputs[:1], seed)
            outputs, state = model.step(state, *arrays)
            assert_close(outputs, runtime(arrays))


def gradients_of(network: Any, arrays: Sequence[Array], weights: Any) -> Iterator[Any]:
    """Yield the name and gradient of each parameter and real input, of PyTorch's."""
    import torch

    module = network.module()
    tensors = [torch.from_numpy(x) for x in arrays]
    for x in tensors:
        x.requires_grad_(x.is_floating_point())
    found = module(*tensors)
    outputs = found if isinstance(found, tuple) else (found,)
    sum((y * torch.from_numpy(w)).sum() for y, w in zip(outputs, weights, strict=True)).backward()
    for i, x in enumerate(tensors):
        if x.requires_grad:
            yield i, None, x.grad.numpy()
    for name, x in module.named_parameters():
        if x.grad is not None:
            yield name, x.detach().numpy(), x.grad.numpy()


def test_gradients(case: Any) -> None:
    network, _, model = case
    if not network.has_gradient or network.steps:
        pytest.skip("what is rounded or selected has no gradient to compare")
    arrays = network.arrays()
    shapes = jax.eval_shape(model.apply, model.params, *arrays)
    rng = np.random.default_rng(2)
    weights = [
        rng.uniform(-1, 1, y.shape).astype(np.float32)
        for y in (shapes if isinstance(shapes, tuple) else (shapes,))
    ]

    def loss(params: Any, reals: dict[int, Any]) -> Any:
        outputs = model.apply(params, *(reals.get(i, x) for i, x in enumerate(arrays)))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))

    reals = {i: jnp.asarray(x) for i, x in enumerate(arrays) if x.dtype == np.float32}
    of_params, of_inputs = jax.grad(loss, (0, 1))(model.params, reals)
    compared = 0
    for name, value, wanted in gradients_of(network, arrays, weights):
        if value is None:
            assert_close(of_inputs[name], [wanted])
            compared += 1
        else:  # as far as it is a constant of its own in the file
            label = f"self.{name}"
            held = model.params.get(label)
            if held is not None and held.shape == value.shape and np.array_equal(held, value):
                assert_close(of_params[label], [wanted])
                compared += 1
    assert compared


def test_uses(case: Any, tmp_path: Path) -> None:
    """Under vmap, pickled, exported, in bfloat16, saved as NNEF and read again."""
    network, path, model = case
    assert str(model.summary())
    arrays = network.arrays(network.inputs[: 1 if network.steps else None])
    wanted, levels = listed(model(*arrays)), network.levels
    assert_close(pickle.loads(pickle.dumps(model))(*arrays), wanted, levels)
    if network.is_batched:
        pairs = [np.stack([x, y]) for x, y in zip(arrays, network.arrays(seed=7), strict=False)]
        found = jax.vmap(lambda *xs: model.apply(model.params, *xs))(*pairs)
        for i in range(2):
            alone = listed(model(*(x[i] for x in pairs)))
            assert_close(tuple(y[i] for y in listed(found)), alone, levels)
    shapes = {spec.name: x.shape for spec, x in zip(model.inputs, arrays, strict=True)}
    closed = nnef_jax.load(path, input_shapes=shapes)
    closed.export(tmp_path / "exported")
    if not network.steps:
        narrow = nnef_jax.load(path, dtype="bfloat16")
        reals = [x.astype("bfloat16") if x.dtype == np.float32 else x for x in arrays]
        outputs = jax.tree.leaves(jax.eval_shape(narrow.apply, narrow.params, *reals))
        assert {y.dtype.name for y in outputs} <= {"bfloat16", "int32"}
    if network.is_nnef:
        closed.save(tmp_path / "net")
        assert_close(nnef_jax.load(tmp_path / "net")(*arrays), wanted)
    else:
        with pytest.raises(nnef_jax.UnsupportedError):
            closed.save(tmp_path / "net")
