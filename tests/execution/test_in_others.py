"""Models in other libraries' worlds, and calls as these make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax import ArchiveError, InputError

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
X = np.ones((2, 1, 8, 8), np.float32)


@pytest.fixture(scope="module")
def model() -> nnef_jax.Model:
    return nnef_jax.load(DIGITS / "model")


def test_inputs_are_given_as_one_dict(model: nnef_jax.Model) -> None:
    name = model.inputs[0].name
    np.testing.assert_array_equal(model({name: X}), model(X))
    np.testing.assert_allclose(model.apply(model.params, {name: X}), model(X), rtol=1e-5)
    with pytest.raises(InputError, match="the graph has no input 'other'"):
        model({"other": X})
    with pytest.raises(InputError, match="is missing"):
        model({})


@pytest.mark.parametrize("key", [None, jax.random.key(0), jax.random.PRNGKey(0)])
def test_a_key_as_equinox_gives_it_is_left_out(model: nnef_jax.Model, key: Any) -> None:
    np.testing.assert_array_equal(model(X, key=key), model(X))
    with pytest.raises(InputError, match="the graph has no input 'key'"):
        model(X, key=3)


def test_in_a_sequence_of_equinox(model: nnef_jax.Model) -> None:
    eqx = pytest.importorskip("equinox")
    layers = eqx.nn.Sequential([eqx.nn.Lambda(jnp.negative), model])
    np.testing.assert_allclose(layers(X), model(-X), rtol=1e-5)
    np.testing.assert_allclose(layers(X, key=jax.random.key(0)), model(-X), rtol=1e-5)


def test_in_a_module_of_flax(model: nnef_jax.Model) -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, net: Any) -> None:
            self.net = net

        def __call__(self, x: Any) -> Any:
            return self.net(x)

    with pytest.raises(ValueError, match=r"nnx\.data"):  # which is the line
        Net(model)
    net = Net(nnx.data(model))
    np.testing.assert_allclose(nnx.jit(lambda net, x: net(x))(net, X), model(X), rtol=1e-5)
    leaves = jax.tree.leaves(nnx.state(net))
    assert sum(x.size for x in leaves) == sum(x.size for x in model.params.values())


def test_what_vmap_takes_away_is_named(model: nnef_jax.Model) -> None:
    with pytest.raises(InputError, match="has shape") as caught:
        jax.vmap(model)(X)
    assert caught.value.hint is not None and "jax.vmap removes it" in caught.value.hint
    within = jax.vmap(lambda x: model(x[None])[0])(X)
    np.testing.assert_allclose(within, model(X), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["s.onnx", "s.xml", "S.ONNX", "s.safetensors"])
def test_no_folder_is_named_as_another_format(
    model: nnef_jax.Model, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ArchiveError, match="would be of another format") as caught:
        model.save(tmp_path / name)
    assert caught.value.hint is not None and ".tgz" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_folder_above_a_network_names_it() -> None:
    with pytest.raises(ArchiveError, match=r"has no graph.nnef") as caught:
        nnef_jax.load(DIGITS)
    assert caught.value.hint == f"there is one in {DIGITS / 'ir'}, {DIGITS / 'model'}"


def test_params_are_a_fresh_dict(model: nnef_jax.Model) -> None:
    for label in model.params:
        model.params[label] = jnp.zeros(())
    np.testing.assert_array_equal(model(X), nnef_jax.load(DIGITS / "model")(X))
    assert "a new dict" in (nnef_jax.Model.params.__doc__ or "")


def safetensors(arrays: dict[str, Any]) -> bytes:
    """A file of safetensors, as its specification has it."""
    import json

    header, data = dict[str, Any](), b""
    for label, x in arrays.items():
        end = len(data) + x.nbytes
        header[label] = {"dtype": "F32", "shape": [*x.shape], "data_offsets": [len(data), end]}
        data += x.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_weights_are_read_from_safetensors(model: nnef_jax.Model, tmp_path: Path) -> None:
    halved = {k: np.float32(0.5) * np.asarray(x) for k, x in model.params.items()}
    (tmp_path / "w.safetensors").write_bytes(safetensors(halved))
    # The tensor files need not be there.
    (tmp_path / "graph.nnef").write_bytes((DIGITS / "model" / "graph.nnef").read_bytes())
    loaded = nnef_jax.load(tmp_path / "graph.nnef", weights=tmp_path / "w.safetensors")
    np.testing.assert_array_equal(loaded(X), model.with_params(halved)(X))
    loaded.save(tmp_path / "net.tgz")
    np.testing.assert_array_equal(nnef_jax.load(tmp_path / "net.tgz")(X), loaded(X))


def test_wrong_weights_of_safetensors(model: nnef_jax.Model) -> None:
    arrays = {k: np.asarray(x) for k, x in model.params.items()}
    with pytest.raises(InputError, match="weights= has other, but the network has no such"):
        nnef_jax.load(DIGITS / "model", weights=safetensors({**arrays, "other": X}))
    label = next(iter(arrays))
    with pytest.raises(nnef_jax.NnefError, match="shape"):
        nnef_jax.load(DIGITS / "model", weights=safetensors({label: X}))
    with pytest.raises(nnef_jax.NnefError, match="the header must have"):
        data = safetensors(arrays).replace(b'"data_offsets"', b'"data_0ffsets"', 1)
        nnef_jax.load(DIGITS / "model", weights=data)
