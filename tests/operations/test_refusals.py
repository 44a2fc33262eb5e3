"""What a rule refuses is an error of nnef_jax, with its place, whichever way its error comes up.

The rule of a kind is replaced by one that raises `InvalidShape`: nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from lowering import (
    Context,
    GraphBuilder,
    InvalidComputation,
    InvalidOperation,
    InvalidShape,
    Registry,
    Rule,
    TensorType,
    trace,
)
from lowering.ops import rules
from nnef_jax import Model, analysis, openvx
from nnef_jax.errors import NnefError, SemanticError, ShapeError
from tests.helpers import COMPOSITIONAL, model_of
from tests.onnx import models, runtime_cases, standard_cases
from tests.op_cases import NNEF, TRACT, document, inputs
from tests.openvino.layers import OPSETS, arithmetic, arrangement, boxes, network, steps, windows
from tests.operation_checks import few

Load = Callable[[], Model]
_MESSAGE, _HINT = "this is refused", "do otherwise"
# Models that are equal share what jax has traced: no other test has documents that end so.
_OWN = "\n# refused\n"


def refuse(*_: Any, **__: Any) -> Any:
    raise InvalidShape(_MESSAGE, _HINT)


@contextmanager
def replaced(kind: str, rule: Rule) -> Iterator[None]:
    """Replace the rule of a kind."""
    registered = rules[kind]
    rules._rules[kind] = rule
    try:
        yield
    finally:
        rules._rules[kind] = registered


def fault(run: Callable[[], Any], family: type[NnefError] = ShapeError) -> str:
    """Return what is wrong with the error that a refusal becomes, '' if nothing is."""
    try:
        run()
    except Exception as error:
        if type(error) is not family:
            return f"{type(error).__name__}: {error}"
        is_located = error.span is not None and error.span.source.name != ""
        is_told = _MESSAGE in error.message and _HINT in error.hint
        return "" if is_located and is_told else f"no place, message or hint: {error}"
    return "no error"


def no_inference(kind: str) -> Rule:
    return replace(rules[kind], infer=refuse, infer_reads=frozenset())


def no_lowering(kind: str) -> Rule:
    return replace(rules[kind], lower=refuse, wants_context=False)


def documents() -> Iterator[tuple[Load, list[np.ndarray]]]:
    """Networks of rows, one an operation, of both dialects."""
    for case in (*few(NNEF, 1), *few(TRACT, 1)):
        yield partial(model_of, document(case) + _OWN), inputs(case)


def layers(folder: Path) -> Iterator[Load]:
    """Networks of OpenVINO, of one layer of each type."""
    types = set[str]()
    for module in (arithmetic, arrangement, boxes, steps, windows):
        for row in module.ROWS:
            if OPSETS in row.versions and row.type not in types:
                types.add(row.type)
                path = folder / row.type
                path.mkdir()
                yield partial(network([row], OPSETS)[0].load, path)


def nodes() -> Iterator[Load]:
    """Networks of ONNX, of one node of each operator; the output of the first one is known."""
    known = models.model([models.node("Constant", "", value_floats=[1.0, 2.0])], [])
    yield partial(nnef_jax.load, known.SerializeToString())
    operators = set[str]()
    for case in (*runtime_cases.CASES, *standard_cases.CASES):
        if case.operator not in operators:
            operators.add(case.operator)
            yield partial(nnef_jax.load, case.model().SerializeToString())


def custom(kind: str) -> Load:
    """A network of a custom operation of a kind, whose rule takes one tensor."""
    name = f"nnef_jax_{kind.replace('.', '__')}"
    text = f"""{COMPOSITIONAL}
fragment {name}( x: tensor<scalar> ) -> ( y: tensor<scalar> );
graph g( x ) -> ( y ) {{ x = external(shape = [2]); y = {name}(x); }}"""
    return partial(model_of, text + _OWN)


def kinds_of(load: Load) -> list[str]:
    return list(dict.fromkeys(operation.kind for operation in load().graph.operations))


@pytest.mark.parametrize("format", ["nnef and tract", "openvino", "onnx"])
def test_readers_say_where_inference_refuses(format: str, tmp_path: Path) -> None:
    networks: Mapping[str, Callable[[], Iterator[Load]]] = {
        "nnef and tract": lambda: (load for load, _ in documents()),
        "openvino": lambda: layers(tmp_path),
        "onnx": nodes,
    }
    faults: dict[str, str] = {}
    for load in networks[format]():
        for kind in kinds_of(load):
            if kind not in faults:
                with replaced(kind, no_inference(kind)):
                    faults[kind] = fault(load)
    assert len(faults) > 60
    assert {kind: message for kind, message in faults.items() if message} == {}


ENTRIES: Mapping[str, Callable[..., Any]] = {
    "call": lambda model, *xs: model(*xs),
    "apply": lambda model, *xs: model.apply({}, *xs),
    "jit": lambda model, *xs: jax.jit(model.apply)({}, *xs),
    "gradients": lambda model, *xs: jax.vjp(partial(model.apply, {}), *xs),
    "scan": lambda model, *xs: model.scan(*(x[None] for x in xs)),
    "cut": lambda model, *xs: model.cut(outputs=model.graph.output_names)(*xs),
    "intermediates": lambda model, *xs: model.intermediates(*xs),
}


def test_every_kind_says_where_it_refuses() -> None:
    """Kinds of rows as they stand there; the others as custom operations, in inference too."""
    faults: dict[str, dict[str, str]] = {}

    def lowered(kind: str, model: Model, xs: list[np.ndarray]) -> None:
        entries = {n: x for n, x in ENTRIES.items() if xs or n != "scan"}
        faults[kind] = {name: fault(partial(run, model, *xs)) for name, run in entries.items()}

    for load, xs in documents():
        model = load()
        for kind in {operation.kind: None for operation in model.graph.operations}:
            if kind not in faults:
                with replaced(kind, no_lowering(kind)):
                    lowered(kind, model, xs)
    assert len(faults) > 150
    for kind in sorted(set(rules) - faults.keys()):
        load, rule = custom(kind), Rule(kind, lambda x: x, refuse, ("x",), wants_context=False)
        with replaced(kind, rule):
            lowered(kind, load(), [np.ones(2, np.float32)])
        with replaced(kind, replace(rule, infer=refuse)):
            faults[kind]["inference"] = fault(load)
    assert faults.keys() == {*rules}
    wrong = {k: {n: x for n, x in entries.items() if x} for k, entries in faults.items()}
    assert {kind: entries for kind, entries in wrong.items() if entries} == {}


NET = """version 1.0;
graph net( x ) -> ( y )
{
    x = external(shape = [0,3,6,6]);
    w = variable(shape = [4,3,3,3], label = 'w');
    c = conv(x, w);
    d = relu(c);
    y = mean_reduce(d, axes = [2, 3]);
}
"""
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(2, 3, 6, 6)).astype(np.float32)
DATA = {"w": _RNG.normal(size=(4, 3, 3, 3)).astype(np.float32)}


def _loss(y: Any) -> Any:
    return jnp.sum(y)


def fixed(model: Model) -> openvx.Lowered:
    return openvx.lower(model, "openvx-16bit")


WAYS: Mapping[str, Callable[[Model, Path], Any]] = {
    "lower": lambda m, _: m.lower(X),
    "prepare": lambda m, _: m.prepare(m.params, X),
    "batcher": lambda m, _: m.batcher()(X),
    "shard": lambda m, _: m.shard(jax.make_mesh((2,), ("data",)), batch="data")(X),
    "vmap": lambda m, _: jax.vmap(m)(X[None]),
    "hessian": lambda m, _: jax.hessian(lambda x: m.apply(m.params, x).sum())(X),
    "edit": lambda m, _: m.apply(m.params, X, edit={"c": lambda c: c}, capture=["y"]),
    "export": lambda m, path: m.export(path / "net.npz"),
    "save": lambda m, path: m.save(path / "net", quantize=[X]),
    "calibrate": lambda m, _: nnef_jax.calibrate(m, [X]),
    "cost": lambda m, _: nnef_jax.cost(m, X),
    "profile": lambda m, _: nnef_jax.profile(m, X, calls=1),
    "benchmark": lambda m, _: nnef_jax.benchmark(m, X, rounds=1, seconds=0.01),
    "compare": lambda m, _: analysis.compare(m, m, X),
    "saliency": lambda m, _: analysis.saliency(m, X),
    "lrp": lambda m, _: analysis.lrp(m, X),
    "deep_lift": lambda m, _: analysis.deep_lift(m, X),
    "guided_backprop": lambda m, _: analysis.guided_backprop(m, X),
    "bounds": lambda m, _: analysis.bounds(m, X, epsilon=0.1),
    "activation_statistics": lambda m, _: analysis.activation_statistics(m, [X]),
    "sensitivity": lambda m, _: analysis.sensitivity(m, X, loss=_loss),
    "openvx call": lambda m, _: fixed(m)(*fixed(m).quantize(X)),
    "openvx apply": lambda m, _: fixed(m).apply(m.params, X),
    "openvx stats": lambda m, _: fixed(m).stats([X]),
}


@pytest.mark.parametrize("facet", [no_inference, no_lowering])
def test_all_that_runs_a_network_says_where_a_rule_refuses(
    facet: Callable[[str], Rule], tmp_path: Path
) -> None:
    """Batches are open: shapes are inferred again for each call, which refuses then."""
    models = {name: model_of(NET + _OWN + f"# {facet.__name__} {name}", data=DATA) for name in WAYS}
    with replaced("relu", facet("relu")):
        faults = {n: fault(partial(run, models[n], tmp_path)) for n, run in WAYS.items()}
    assert {name: message for name, message in faults.items() if message} == {}


@pytest.mark.parametrize("family", [InvalidOperation, InvalidShape])
def test_rules_of_a_user(family: type[InvalidOperation]) -> None:
    def refusing(x: Any) -> Any:
        raise family(_MESSAGE, _HINT)

    wanted = ShapeError if family is InvalidShape else SemanticError
    for infer, lower in ((refusing, lambda x: x), (lambda x: x, refusing)):
        registry = Registry()
        registry.rule("relu", infer)(lower)

        def run(registry: Registry = registry) -> Any:
            return model_of(NET + _OWN, data=DATA, rules=registry).intermediates(X)

        assert fault(run, wanted) == ""


def test_a_state_of_a_part_has_one_shape() -> None:
    """The part alone knows which shape the new value of its state has."""
    text = """version 1.0;
graph sum( x ) -> ( y )
{
    x = external(shape = [0]);
    total = variable(shape = [2], label = 'total');
    a = copy(x);
    z = copy(a);
    s = sum_reduce(total, axes = [0]);
    y = add(s, z);
    next = update(total, z);
}
"""
    model = model_of(text, data={"total": np.zeros(2, np.float32)})
    for each in (model, model.cut(inputs=["a"], outputs=["y"])):
        with pytest.raises(ShapeError, match=r"has shape \[2\], its new value has \[3\]") as caught:
            each(np.ones(3, np.float32))
        assert caught.value.span is not None


def test_the_error_of_lowering_has_that_of_the_rule_as_its_cause() -> None:
    builder = GraphBuilder()
    x = builder.input("x", TensorType((2,), "float32"))
    rule = Rule("mish", lambda x: x, refuse, ("x",), wants_context=False)
    (y,) = builder.operation("mish", {"x": x}, {}, ["y"], rule=rule)
    graph = builder.graph("net", [y], ["y"])
    with pytest.raises(InvalidComputation, match=f"'mish': {_MESSAGE}") as caught:
        trace(graph, Context(), {}, {}, [np.ones(2)])
    assert caught.value.hint == _HINT and caught.value.operation is graph.operations[0]
    assert isinstance(caught.value.__cause__, InvalidShape)
