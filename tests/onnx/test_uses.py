"""Every use of a model, for networks of ONNX as for any other: the truth is numpy's."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import InputError, UnsupportedError
from nnef_jax.execution import definition
from tests.cli_support import call, fails, ok

pytest.importorskip("onnx")

import onnx

from tests.onnx.models import INT, model, node, tensor
from tests.onnx.uses_networks import NAMES, Example, example


@dataclass(frozen=True)
class Subject:
    """An example, loaded from a file in a folder of its own."""

    name: str
    example: Example
    model: nnef_jax.Model
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "net.onnx"

    @property
    def inputs(self) -> tuple[Any, ...]:
        return self.example.inputs

    @property
    def shapes(self) -> list[str]:
        """Options that close what is open."""
        return [f"--shape={name}={n}" for name, n in self.example.closed.items()]

    def closed(self, **options: Any) -> nnef_jax.Model:
        """Return the model with shapes that are known."""
        return nnef_jax.load(self.file, input_shapes=self.example.closed, **options)

    def require(self, found: Any, wanted: Any = None, rtol: float | None = None) -> None:
        """Compare outputs with what they must be."""
        wanted = self.example.truth() if wanted is None else wanted
        rtol = self.example.rtol if rtol is None else rtol
        for x, y in zip(outputs(found), wanted, strict=True):
            array = np.asarray(x)
            assert array.shape == np.shape(y)
            np.testing.assert_allclose(array.astype(np.float64), y, rtol=rtol, atol=rtol)


def outputs(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """Return networks by name, each loaded once."""
    made: dict[str, Subject] = {}

    def subject(name: str) -> Subject:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            onnx.save(example(name).made, folder / "net.onnx")
            model = nnef_jax.load(folder / "net.onnx")
            made[name] = Subject(name, example(name), model, folder)
        return made[name]

    return subject


def calls(it: Subject) -> None:
    it.require(it.model(*it.inputs))
    it.require(it.model(**dict(zip((x.name for x in it.model.inputs), it.inputs, strict=True))))


def jit(it: Subject) -> None:
    it.require(jax.jit(it.model.apply)(it.model.params, *it.inputs))
    it.require(it.model.apply(it.model.prepare(it.model.params, *it.inputs), *it.inputs))


def vmap(it: Subject) -> None:
    both = [np.stack([x, x if i else -x]) for i, x in enumerate(it.inputs)]
    found = outputs(jax.vmap(lambda *x: it.model.apply(it.model.params, *x))(*both))
    for k in range(2):
        it.require(tuple(y[k] for y in found), it.example.truth(*(x[k] for x in both)))


def grad(it: Subject) -> None:
    """Derivatives along a direction are differences of what numpy computes in 64 bits."""

    def loss(params: Any, *x: Any) -> Any:
        found = outputs(it.model.apply(params, *x))
        return sum(jnp.sum(jnp.sin(y.astype(jnp.float32))) for y in found)

    slopes = jax.jit(jax.grad(loss, argnums=(0, 1)))(it.model.params, *it.inputs)
    random, step, (x, *others) = np.random.default_rng(1), 1e-5, it.inputs
    along = random.normal(size=x.shape)
    turned = {name: random.normal(size=w.shape) for name, w in it.example.params.items()}

    def truth(t: float, u: float) -> float:
        weights = {k: w.astype(np.float64) + u * turned[k] for k, w in it.example.params.items()}
        found = it.example.truth(x.astype(np.float64) + t * along, *others, params=weights)
        return sum(np.sin(y).sum() for y in found)

    rtol = 100 * it.example.rtol
    wanted = (truth(step, 0) - truth(-step, 0)) / (2 * step)
    found = np.sum(np.asarray(slopes[1], np.float64) * along)
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol)
    wanted = (truth(0, step) - truth(0, -step)) / (2 * step)
    found = sum(np.sum(np.asarray(slopes[0][name], np.float64) * v) for name, v in turned.items())
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol)


def params(it: Subject) -> None:
    kinds = {name: (x.shape, x.dtype) for name, x in it.model.params.items()}
    assert kinds == {name: (x.shape, x.dtype) for name, x in it.example.params.items()}
    new = {k: (2 * x if x.dtype.kind == "i" else x * 1.5).astype(x.dtype)
           for k, x in it.example.params.items()}  # fmt: skip
    it.require(it.model.with_params(new)(*it.inputs), it.example.truth(params=new))


def pickled(it: Subject) -> None:
    it.require(pickle.loads(pickle.dumps(it.model))(*it.inputs))


def cached(it: Subject) -> None:
    """A second load traces nothing."""
    traced: list[int] = []
    trace = definition.trace

    def spy(*args: Any) -> Any:
        traced.append(1)
        return trace(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(definition, "trace", spy)
        for _ in range(2):
            before = len(traced)
            it.require(nnef_jax.load(it.file, cache_dir=it.folder / "cache")(*it.inputs))
    assert before == len(traced) > 0


def exported(it: Subject) -> None:
    """Open extents stay open, for jax alone."""
    it.model.export(it.folder / "function.npz", platforms=["cpu"])
    with np.load(it.folder / "function.npz") as file:
        function = jax.export.deserialize(file["function"])
    it.require(function.call(it.model.params, *it.inputs))
    if it.example.closed:
        (x,) = it.inputs
        more = np.concatenate([x, -x, x])
        it.require(function.call(it.model.params, more), it.example.truth(more))


def saved(it: Subject) -> None:
    """As NNEF, and where that lacks something as a document with custom operations."""
    path = it.folder / "plain.nnef.tgz"
    if it.example.lacks:
        with pytest.raises(UnsupportedError, match=it.example.lacks):
            it.closed().save(path)
        assert not path.exists()
    else:
        it.closed().save(path)
        it.require(nnef_jax.load(path)(*it.inputs))
    shapes = it.example.closed
    nnef_jax.convert(it.file, it.folder / "kept.nnef.tgz", keep=True, input_shapes=shapes)
    it.require(nnef_jax.load(it.folder / "kept.nnef.tgz")(*it.inputs))


def edited(it: Subject) -> None:
    """What replaces a tensor is what all that reads it gets; a part goes on from it."""
    inside, model = it.example.inside, it.model
    _, captured = _captured(model, it.inputs, inside)
    assert captured.keys() == {inside}
    doubled, seen = _captured(model, it.inputs, inside, edit={inside: lambda x: 2 * x})
    np.testing.assert_allclose(seen[inside], 2 * captured[inside])
    name = model.outputs[0].name
    tail = model.cut(inputs=[inside], outputs=[name]) if it.name != "controlled" else None
    head = model.cut(outputs=[inside])
    np.testing.assert_allclose(head(*it.inputs), captured[inside], rtol=it.example.rtol)
    if tail is not None:
        it.require(tail(captured[inside]))
        np.testing.assert_allclose(tail(2 * captured[inside]), doubled[0], rtol=it.example.rtol)


def _captured(model: Any, inputs: Any, name: str, **more: Any) -> tuple[tuple[Any, ...], Any]:
    found, seen = model.apply(model.params, *inputs, capture=[name], **more)
    return outputs(found), seen


def shown(it: Subject) -> None:
    """All names of outputs and weights are on the page, in the summary and what `summary` tells."""
    names = {*(x.name for x in it.model.outputs), *it.example.params}
    nnef_jax.view(it.model).save(it.folder / "page.html")
    text = (it.folder / "page.html").read_text()
    told = ok("summary", it.file)
    for name in names:
        assert json.dumps(name)[1:-1] in text
    for x in it.model.outputs:
        assert f"{x.name}: " in told
    assert it.model.outputs[0].name in str(it.model.summary())
    ok("check", it.file)
    ok("view", it.file, "-o", it.folder / "again.html", *it.shapes)


def analysed(it: Subject) -> None:
    inputs, model = it.inputs, it.model
    statistics = nnef_jax.analysis.activation_statistics(model, [inputs])
    wanted = dict(zip((x.name for x in model.outputs), it.example.truth(), strict=True))
    for name in statistics.tensors.keys() & wanted.keys():
        mean = np.nanmean(wanted[name])
        np.testing.assert_allclose(statistics.tensors[name].mean, mean, rtol=1e-2, atol=1e-3)
    given = {x.name: array for x, array in zip(model.inputs, inputs, strict=True)}
    assert nnef_jax.analysis.compare(model, it.closed(), given).first is None
    assert nnef_jax.diff(it.file, model).same
    assert nnef_jax.cost(model, *inputs).flops > 0


def explained(it: Subject) -> None:
    """What a score changes by along an input is a difference of what numpy computes."""
    axis, (x, *others) = it.example.batch_axis, it.inputs
    if axis or it.name == "controlled":  # whose scores are not one for each item of a batch
        return
    score = lambda y: y.sum(tuple(range(1, y.ndim)))  # noqa: E731
    found = nnef_jax.analysis.saliency(it.model, x, *others, target=score)
    along, step = np.random.default_rng(3).normal(size=x.shape), 1e-5
    ends = [it.example.truth(x.astype(np.float64) + t * along)[0] for t in (step, -step)]
    wanted = (ends[0] - ends[1]).sum() / (2 * step)
    rtol = 100 * it.example.rtol
    slopes = np.asarray(found.values, np.float64)
    np.testing.assert_allclose(np.sum(slopes * along), wanted, rtol=rtol, atol=rtol)


def calibrated(it: Subject) -> None:
    """Ranges are those of the tensors; what is saved by them is near, but not the same."""
    model = it.closed()
    if it.name == "lists":  # which are padded with NaN
        with pytest.raises(InputError, match="'items' has values that are not finite"):
            nnef_jax.calibrate(model, [it.inputs])
        return
    text = nnef_jax.calibrate(model, [it.inputs])
    assert text
    if it.example.lacks:
        return
    model.save(it.folder / "levels", quantize=[it.inputs])
    assert (it.folder / "levels" / "graph.quant").read_text() == text
    found = nnef_jax.load(it.folder / "levels")
    it.require(found(*it.inputs), rtol=0.05)
    (wanted,) = it.example.truth()
    assert np.abs(np.asarray(found(*it.inputs)) - wanted).max() > 1e-4


def sharded(it: Subject) -> None:
    mesh = jax.make_mesh((2,), ("data",))
    axis = None if it.name == "lists" else "data"
    parameters = "data" if it.example.params else None
    model = it.model.shard(mesh, batch=axis, params=parameters, batch_axis=it.example.batch_axis)
    it.require(model(*it.inputs))


def stepped(it: Subject) -> None:
    found, state = it.model.step(it.model.init_state(), *it.inputs)
    it.require(found)
    many, _ = it.model.scan(*(np.stack([x, x]) for x in it.inputs), state=state)
    it.require(tuple(y[1] for y in outputs(many)))


def commands(it: Subject) -> None:
    names = [x.name for x in it.model.inputs]
    given, made = it.folder / "in.npz", it.folder / "out.npz"
    np.savez(given, **dict(zip(names, it.inputs, strict=True)))
    ok("run", it.file, given, "-o", made, "--no-cache")
    with np.load(made) as found:
        it.require(tuple(found[x.name] for x in it.model.outputs))
    ok("convert", it.file, it.folder / "by-command.nnef.tgz", "--keep", *it.shapes)
    ok("benchmark", it.file, given, "--rounds", 1, "--seconds", 0.001)
    ok("activation-statistics", it.file, given)
    ok("compare", it.folder / "by-command.nnef.tgz", made, given)
    ok("diff", it.file, it.file)
    code, _, error = call("openvx", "check-profile", it.file, *it.shapes)
    assert (code in (0, 1), error) == (True, "")
    assert "no input 'nothing'" in fails("run", it.file, "nothing=x.npy")


USES: dict[str, Callable[[Subject], None]] = {
    x.__name__: x
    for x in (calls, jit, vmap, grad, params, pickled, cached, exported, saved, edited, shown,
              analysed, explained, calibrated, sharded, stepped, commands)
}  # fmt: skip


# Uses that depend little on the network, and the networks for which they are not slow.
_ALWAYS = {
    "grad": ("transformer", "recurrent", "controlled", "half"),
    "params": ("convolutional", "controlled", "quantised"),
    "pickled": ("convolutional", "controlled", "half"),
    "cached": ("convolutional", "recurrent", "lists"),
    "exported": ("transformer", "controlled", "lists"),
    "edited": ("transformer", "controlled", "quantised", "half"),
    "analysed": ("controlled", "lists"),
    "explained": ("half",),
    "calibrated": ("convolutional", "lists"),
    "sharded": ("convolutional", "recurrent", "lists"),
    "stepped": ("controlled", "recurrent"),
    "commands": ("convolutional",),
}


def _applicable() -> Iterator[Any]:
    for name in NAMES:
        for use in USES:
            lacks_slopes = use in ("grad", "explained") and not example(name).is_real
            if not lacks_slopes and not (use == "edited" and not example(name).inside):
                is_slow = name not in _ALWAYS.get(use, NAMES)
                yield pytest.param(name, use, marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.parametrize(("name", "use"), [*_applicable()])
def test_use(subjects: Callable[[str], Subject], name: str, use: str) -> None:
    USES[use](subjects(name))


def test_boxes_that_suppression_leaves_are_analysed() -> None:
    weights = {"most": np.array([3]), "iou": np.float32([0.5]), "least": np.float32([0.3])}
    made = model(
        [node("NonMaxSuppression", "boxes scores most iou least")],
        [tensor("boxes", (1, 4, 4)), tensor("scores", (1, 1, 4))],
        [tensor("y", None, INT)],
        weights,
    )
    boxes = np.float32([[[0, 0, 2, 2], [0, 0, 2, 1.9], [4, 4, 7, 7], [8, 8, 9, 9]]])
    scores = np.float32([[[0.6, 0.9, 0.1, 0.7]]])
    network = nnef_jax.load(made)
    statistics = nnef_jax.analysis.activation_statistics(network, [(boxes, scores)])
    assert "y" not in statistics.tensors  # whole numbers have none
    same = nnef_jax.analysis.compare(network, network, {"boxes": boxes, "scores": scores})
    assert same.first is None
    np.testing.assert_array_equal(network(boxes, scores), [[0, 0, 1], [0, 0, 3], [-1, -1, -1]])
