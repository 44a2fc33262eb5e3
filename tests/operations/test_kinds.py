"""Kinds: one registry, one meaning, and no way to one but a format's table."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import lowering
import nnef_jax
from lowering.ops import FAMILIES, Families, rules
from lowering.registry import Registry
from nnef_jax.flattening.operators.registry import OperatorRow
from nnef_jax.formats.syntax.standard import GENERIC_RESULT, standard
from nnef_jax.formats.tract.declarations import declarations
from nnef_jax.formats.tract.operations import words
from nnef_jax.formats.tract.operators import OPERATORS
from tests.helpers import model_of
from tests.op_cases import NNEF, TRACT
from tests.openvino.test_kinds import CASES as openvino_cases
from tests.operation_checks import tract_kind
from tests.printed import print_graph
from tests.tract_text import graph

X = np.array([[-2.0, 0.5, 3.0]], np.float32)
KINDS = [kind for kind in rules if "." not in kind]
NEW = [kind for kind in KINDS if kind not in standard()]  # which a document may define


def ten_times(*kinds: str) -> Registry:
    registry = Registry()
    for kind in kinds:
        registry.rule(kind, lambda x: x)(lambda x: 10 * x)
    return registry


def test_the_table_of_families_is_what_they_register() -> None:
    for family, kinds in FAMILIES.items():
        import_module(f"lowering.ops.{family}")
        registered = [
            kind
            for kind, rule in rules._rules.items()
            if rule.lower.__module__ == f"lowering.ops.{family}"
        ]
        assert sorted(registered) == sorted(kinds)
    kinds = {kind for kinds in FAMILIES.values() for kind in kinds}
    assert kinds == {kind for kind in rules if "." not in kind}


def test_kinds_of_one_format_are_found_before_the_format_is_imported() -> None:
    """A model of NNEF may have them, as custom operations; another process unpickles it."""
    parameters = (
        "input: tensor<scalar>, state: tensor<scalar>, axis: integer, alpha: scalar, "
        "skip: integer, scaling_factor: scalar"
    )
    text = f"""version 1.0; extension KHR_enable_fragment_definitions;
fragment nnef_jax_tract__exp_mean_norm({parameters}) -> ( y: tensor<scalar> );
graph g(x, s) -> (y)
{{
    x = external(shape = [1,3]);
    s = external(shape = [1]);
    y = nnef_jax_tract__exp_mean_norm(
        x, s, axis = 1, alpha = 0.5, skip = 0, scaling_factor = 2.0);
}}"""
    script = """import pickle, sys
import numpy as np
model = pickle.load(sys.stdin.buffer)
assert "nnef_jax.formats.tract" not in sys.modules
print(model(np.array([[4, 8, 0]], np.float32), np.zeros(1, np.float32)))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps(model_of(text)),
        capture_output=True,
        check=True,
    )
    # The averages are 2, 5 and 2.5.
    assert ran.stdout.split() == [b"[[", b"1.", b"1.5", b"-1.25]]"]


def test_a_family_is_imported_when_one_of_its_kinds_is_met() -> None:
    families = Families({"roi": ("avg_roi_pool",)}, "lowering.ops")
    assert "avg_roi_pool" in families and families.get("conv") is None
    with pytest.raises(KeyError):
        families["conv"]


def test_a_kind_is_registered_once() -> None:
    assert rules.get("relu")
    with pytest.raises(ValueError, match=r"operation 'relu' already has a rule"):
        rules.rule("relu", lambda x: x)(lambda x: x)


def test_kinds_of_the_standard_have_its_parameters() -> None:
    for kind, fragment in standard().items():
        if kind in rules:
            declared = {p.name for p in fragment.parameters}
            declared |= {"dtype"} if kind in GENERIC_RESULT else set()
            further = {*rules[kind].parameters} - declared
            assert declared <= {*rules[kind].parameters}, kind
            assert rules[kind].defaults.keys() >= further, kind
    assert rules["round"].parameters == ("x", "ties")


def test_defaults_are_those_of_both_facets() -> None:
    with pytest.raises(TypeError, match="different defaults"):
        Registry().rule("own", lambda x, n=1: x)(lambda x, n=2: x)


def test_rows_of_tract_are_kinds_with_these_parameters() -> None:
    """Functions are held by the rows of tests/op_cases/tract."""
    for operator in OPERATORS:
        row = operator.meaning
        if isinstance(row, OperatorRow):
            rule, given = rules[row.kind], row.attributes.keys() | words(operator.name)
            declared = {p.name for p in declarations()[operator.name].parameters}
            assert given <= set(rule.parameters), operator.name
            assert set(rule.parameters) - rule.defaults.keys() <= given | declared, operator.name


def own_fragments(names: list[str], head: str, external: str, parameter: str) -> str:
    result = f"y{parameter[1:]}"
    lines = [f"fragment {k}( {parameter} ) -> ( {result} ) {{ y = x + 1.0; }}" for k in names]
    calls = "".join(f"y{i} = {kind}(x); " for i, kind in enumerate(names))
    results = ", ".join(f"y{i}" for i in range(len(names)))
    body = f"graph g( x ) -> ( {results} ) {{ x = {external}; {calls} }}"
    return "\n".join([head, *lines, body])


@pytest.mark.parametrize(
    ("names", "head", "external", "parameter"),
    [
        (
            NEW,
            "version 1.0; extension KHR_enable_fragment_definitions; "
            "extension KHR_enable_operator_expressions;",
            "external(shape = [1,3])",
            "x: tensor<scalar>",
        ),
        (
            KINDS,
            "version 1.0; extension tract_registry tract_core;",
            "tract_core_external(shape = [1,3], datum_type = 'f32')",
            "x: tensor<scalar>",
        ),
    ],
    ids=["standard", "tract"],
)
def test_a_fragment_of_the_document_with_the_name_of_a_kind_keeps_its_body(
    names: list[str], head: str, external: str, parameter: str
) -> None:
    assert {"einsum", "range", "attention", "topk"} <= set(NEW)
    text = own_fragments(names, head, external, parameter)
    model = model_of(text)
    assert [operation.kind for operation in model.graph.operations] == ["add"] * len(names)
    # A rule of the user's for the same name goes first.
    ruled = model_of(text, rules=ten_times(*names))
    assert [operation.kind for operation in ruled.graph.operations] == names
    np.testing.assert_array_equal(ruled(X)[0], 10 * X)


def test_a_fragment_of_a_provisional_document_with_a_name_of_1_0_final() -> None:
    text = """version 1.0
    fragment gelu( x: tensor ) -> ( y: tensor ) { y = x + 1.0 }
    graph g( x ) -> ( y ) { x = external(shape = [1,3]) y = gelu(x) }"""
    assert [operation.kind for operation in model_of(text).graph.operations] == ["add"]
    np.testing.assert_array_equal(model_of(text, rules=ten_times("gelu"))(X), 10 * X)


def test_a_rule_of_ones_own_is_for_the_name_in_the_document_alone() -> None:
    """Neither for the kind that another operation is, nor for what a reader puts in."""
    text = graph("a = tract_core_silu(x);\ny = silu(a);\nz = -y;", results="a, y, z", x="[1,3] f32")
    a, y, z = model_of(text, rules=ten_times("silu", "neg"))(X)
    np.testing.assert_allclose(a, X / (1 + np.exp(-X)), rtol=1e-6)
    np.testing.assert_allclose(y, 10 * a)
    np.testing.assert_allclose(z, 10 * y)
    text = graph(
        "y = deconv(x, w, 0.0);\nz = tract_core_cast(y, to = 'i32');",
        results="y, z",
        x="[1,2,4] f32",
        w="[3,2,2] f32",
    )
    inputs = jnp.ones((1, 2, 4)), jnp.ones((3, 2, 2))
    want = model_of(text)(*inputs)
    got = model_of(text, rules=ten_times("transpose", "cast", "reshape"))(*inputs)
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_a_reader_puts_in_is_none_of_the_document() -> None:
    text = graph(
        'i"y.filter" = w + 1.0;\ny = deconv(x, i"y.filter", b, groups = 2);',
        x="[1,4,5] f32",
        w="[6,2,2] f32",
        b="[6] f32",
    )
    model = model_of(text)
    kinds = [operation.kind for operation in model.graph.operations]
    assert kinds == ["add", "reshape", "reshape", "transpose", "reshape", "deconv"]
    names = [value.name for operation in model.graph.operations for value in operation.writes()]
    assert len(set(names)) == len(names)
    arrays = [
        np.random.default_rng(0).normal(size=s).astype("f4") for s in ((1, 4, 5), (6, 2, 2), (6,))
    ]
    seen: dict[str, Any] = model.intermediates(*arrays)
    assert set(seen) == {"x", "w", "b", "y.filter", "y"}
    np.testing.assert_array_equal(seen["y.filter"], arrays[1] + 1)


def test_no_consumer_of_a_graph_asks_where_it_comes_from() -> None:
    """Only `nnef-jax summary` and `check`, and the page of a graph, name the dialect.

    The option --dialect, of a group `reading`, is what a user asks for.
    """
    root = Path(nnef_jax.__file__).parent
    allowed = {
        root / "measure" / "summary.py",
        root / "cli" / "description.py",
        root / "cli" / "commands.py",
        root / "viewing" / "data.py",
    }
    asking = {
        path
        for folder in (root, Path(lowering.__file__).parent)
        for path in folder.rglob("*.py")
        if "formats" not in path.parts
        and re.search(r"(?<!reading)(?<!self)\.dialect\b", path.read_text(encoding="utf-8"))
    }
    assert asking <= allowed and asking


def test_what_the_standard_does_not_have_of_a_kind_is_not_written_in_it() -> None:
    text = graph("y = round(x);\nz = clamp(y, 0.0, 1.0);\nw = tract_core_silu(z);", results="w")
    with pytest.raises(nnef_jax.UnsupportedError) as caught:
        print_graph(model_of(text).graph)
    assert [error.message for error in caught.value.errors] == [
        "'ties' 'away' of 'round' is not NNEF",
        "'inclusive' True of 'clamp' is not NNEF",
    ]


def test_every_kind_is_used_by_a_row_of_the_tables() -> None:
    """Others are tested by documents around them: structure, complex numbers, lists and so on."""
    used = {case.operation for case in NNEF}
    used |= {tract_kind(case.operation) for case in TRACT}
    used |= {case.kind for case in openvino_cases}
    assert set(rules) - used == {
        "branch", "constant", "counted", "filled", "loop", "range", "scan", "tract.pulse_mask",
        "complex_to_pairs", "pairwise_coupling",
    }, "a row in tests/op_cases, tests/op_cases/tract or tests/openvino/test_kinds.py"  # fmt: skip
