"""How two documents differ, where that is known."""

from __future__ import annotations

import json

import numpy as np
import pytest

import nnef_jax
from tests.helpers import archive, model_of

NET = """version 1.0;
graph net(x) -> (y) {
    x = external<scalar>(shape = [1,3,8,8]);
    f = variable<scalar>(shape = [4,3,3,3], label = 'filter');
    b = variable<scalar>(shape = [1,4], label = 'bias');
    c = conv(x, f, b, padding = [(1,1),(1,1)]);
    r = relu(c);
    p = max_pool(r, size = [1,1,2,2], stride = [1,1,2,2]);
    y = softmax(p);
}
"""
DATA = {
    "filter": np.arange(108, dtype=np.float32).reshape(4, 3, 3, 3),
    "bias": np.ones((1, 4), np.float32),
}


def model(text=NET, **data):
    return model_of(text, data=DATA | data)


def changes(a, b):
    return [(x.change, x.part, x.name) for x in nnef_jax.diff(a, b).changes]


@pytest.fixture(scope="module")
def net():
    return model()


def test_the_same(net):
    found = nnef_jax.diff(net, model())
    assert found.same and not found.changes
    assert (found.operations, found.weights) == ((4, 4), (2, 2))
    assert str(found) == "nothing differs, of 4 operations and 2 arrays"


def test_one_weight(net):
    other = DATA["filter"].copy()
    other[1, 2, 0, 0] += 5
    (change,) = nnef_jax.diff(net, model(filter=other)).changes
    assert (change.part, change.change, change.name) == ("weights", "changed", "filter")
    assert change.details[0] == "1 of 108 numbers, by 5 at most"
    assert change.distance == pytest.approx(5 / np.linalg.norm(DATA["filter"]))


def test_parameters_that_were_trained(net):
    params = net.params
    params["bias"] = params["bias"] + 1
    assert changes(net, net.with_params(params)) == [("changed", "weights", "bias")]


def test_nan_is_nan(net):
    other = DATA["bias"].copy()
    other[0, 0] = np.nan
    assert changes(model(bias=other), model(bias=other)) == []
    assert changes(net, model(bias=other)) == [("changed", "weights", "bias")]
    assert changes(net, model(bias=-0.0 * other + np.nan)) == [("changed", "weights", "bias")]


def test_nan_hides_no_other_difference(net):
    other = DATA["filter"].copy()
    other[0, 0, 0] = np.nan, 2, 2  # they were 0, 1, 2
    (change,) = nnef_jax.diff(net, model(filter=other)).changes
    assert change.details[0] == "2 of 108 numbers, by inf at most"
    assert change.distance == np.inf
    changed = other.copy()
    changed[0, 0, 0, 1] = 5  # where both have a NaN
    (change,) = nnef_jax.diff(model(filter=other), model(filter=changed)).changes
    assert change.details[0] == "1 of 108 numbers, by 3 at most"
    assert change.distance == pytest.approx(3 / np.sqrt(np.nansum(np.square(other))))


def test_an_attribute_and_what_follows(net):
    other = model(NET.replace("stride = [1,1,2,2]", "stride = [1,1,4,4]"))
    found = nnef_jax.diff(net, other).changes
    assert [(x.part, x.name) for x in found] == [
        ("output", "y"),
        ("operation", "p"),
        ("operation", "y"),
    ]
    assert found[1].details == (
        "stride: [1, 1, 2, 2] -> [1, 1, 4, 4]",
        "float32[1,4,4,4] -> float32[1,4,2,2]",
    )
    assert found[2].details == ("float32[1,4,4,4] -> float32[1,4,2,2]",)


def test_another_kind(net):
    (change,) = nnef_jax.diff(net, model(NET.replace("relu(c)", "elu(c)"))).changes
    assert (change.name, change.kind, change.details[0]) == ("r", "relu", "relu -> elu")


def test_an_operation_more(net):
    text = NET.replace("r = relu(c);", "t = tanh(c);\n    r = relu(t);")
    found = nnef_jax.diff(net, model(text)).changes
    assert [(x.change, x.name, x.details) for x in found] == [
        ("changed", "r", ("x: c -> t",)),
        ("added", "t", ("of c",)),
    ]
    assert changes(model(text), net) == [
        ("removed", "operation", "t"),
        ("changed", "operation", "r"),
    ]


def test_operands_that_were_swapped():
    text = "version 1.0;\ngraph g(a, b) -> (y) { a = external<scalar>(shape = [2]); " \
        "b = external<scalar>(shape = [2]); y = sub(a, b); }"  # fmt: skip
    (change,) = nnef_jax.diff(model_of(text), model_of(text.replace("a, b);", "b, a);"))).changes
    assert change.details == ("x: a -> b", "y: b -> a")


def test_the_order_of_outputs():
    text = "version 1.0;\ngraph g(x) -> (y, z) { x = external<scalar>(shape = [2]); " \
        "y = relu(x); z = exp(x); }"  # fmt: skip
    (change,) = nnef_jax.diff(model_of(text), model_of(text.replace("(y, z)", "(z, y)"))).changes
    assert (change.part, change.details) == ("output", ("order: y, z -> z, y",))


def test_many_weights():
    """More than are looked at at a time."""
    text = "version 1.0;\ngraph g(x) -> (y) { x = external<scalar>(shape = [2000000]); " \
        "w = variable<scalar>(shape = [2000000], label = 'w'); y = add(x, w); }"  # fmt: skip
    w = np.ones(2000000, np.float32)
    other = w.copy()
    other[[0, 1999999]] = 3, np.nan  # the NaN differs by no number
    (change,) = nnef_jax.diff(
        model_of(text, data={"w": w}), model_of(text, data={"w": other})
    ).changes
    assert change.details[0] == "2 of 2,000,000 numbers, by inf at most"


def test_names_that_were_made_anew(net):
    text = NET
    for old, new in (("c", "v1"), ("r", "v2"), ("p", "v3")):
        text = text.replace(f"{old} =", f"{new} =").replace(f"({old})", f"({new})")
        text = text.replace(f"({old},", f"({new},")
    found = nnef_jax.diff(net, model(text)).changes
    assert [(x.change, x.name, x.renamed) for x in found] == [
        ("renamed", "c", "v1"),
        ("renamed", "r", "v2"),
        ("renamed", "p", "v3"),
    ]


def test_numbers_that_moved_on():
    """Where an exporter numbers tensors, one more in front shifts all names."""

    def numbered(kinds):
        lines = [f"v{i + 1} = {kind}(v{i});" for i, kind in enumerate(kinds)]
        return model_of(
            f"version 1.0;\ngraph g(v0) -> (v{len(kinds)}) {{ v0 = external<scalar>(shape = [4]);"
            f" {' '.join(lines)} }}"
        )

    kinds = ["relu", "tanh", "relu", "sigmoid", "relu", "tanh", "abs"]
    found = nnef_jax.diff(numbered(kinds), numbered(["exp", *kinds])).changes
    operations = [x for x in found if x.part == "operation"]
    assert [(x.change, x.name) for x in operations if x.change != "renamed"] == [
        ("changed", "v1"),  # which reads what is new
        ("added", "v1"),
    ]
    assert len([x for x in operations if x.change == "renamed"]) == len(kinds) - 1


def test_inputs_outputs_and_labels(net):
    text = NET.replace("'filter'", "'kernel'").replace("graph net(x) -> (y)", "graph net(x) -> (c)")
    other = model_of(text, data={"kernel": DATA["filter"], "bias": DATA["bias"]})
    found = nnef_jax.diff(net, other).changes
    assert [(x.change, x.part, x.name, x.renamed) for x in found] == [
        ("changed", "output", "y", "c"),
        ("renamed", "weights", "filter", "kernel"),
    ]
    assert found[0].details == ("float32[1,4,4,4] -> float32[1,4,8,8]",)


def test_a_network_and_its_conversion(tmp_path):
    """In tract's dialect a network is the same: kinds have one meaning."""
    source = "tests/torch_networks/lstm.nnef.tgz"
    found = nnef_jax.diff(source, source)
    assert found.same and found.operations[0] > 10
    nnef_jax.load("examples/digits/model").save(tmp_path / "saved.tgz")
    assert nnef_jax.diff("examples/digits/model", tmp_path / "saved.tgz").same


def test_states():
    text = """version 1.0;
graph sum(x) -> (y) {
    x = external<scalar>(shape = [2]);
    total = variable<scalar>(shape = [2], label = 'total');
    y = add(total, x);
    next = update(total, y);
}
"""
    data = {"total": np.zeros(2, np.float32)}
    a, b = (model_of(t, data=data) for t in (text, text.replace("total, y", "total, x")))
    (change,) = nnef_jax.diff(a, b).changes
    assert (change.part, change.name, change.details) == ("state", "total", ("updated by y -> x",))


def test_json(net):
    found = nnef_jax.diff(net, model(bias=0 * DATA["bias"]))
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["same"] is False
    assert data["operations"] == [4, 4]
    (change,) = data["changes"]
    assert (change["name"], change["distance"]) == ("bias", 1.0)


def test_what_cannot_be_read(net):
    with pytest.raises(FileNotFoundError):
        nnef_jax.diff(net, "none.nnef.tgz")
    with pytest.raises(nnef_jax.NnefError):
        nnef_jax.diff(archive(graph="version 1.0;"), net)
