"""The table of operators of each format: no kind that documents give is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import onnx
import onnx.defs
import pytest

import nnef_jax
from lowering.ops import rules
from nnef_jax.errors import NnefError
from nnef_jax.flattening.operators.registry import NEWEST, Operator, Operators
from nnef_jax.flattening.operators.table import AttributeEntry, OperatorEntry
from nnef_jax.flattening.site import Site
from nnef_jax.formats import FORMATS, operators_of
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.openvino.layer_site import LayerSite
from tests.onnx import node_suite, runtime_cases, standard_cases
from tests.openvino import rare_layers
from tests.openvino.layers import LEGACY, OPSETS, network
from tests.openvino.test_layers import MODULES
from tests.openvino.test_rare_layers import written

# Methods that align operands, or put a constant into the graph: their operations are not named.
_UNNAMED = ("aligned", "item", "tensor", "_emit")
Key = tuple[str, str, int]  # domain, name and first version


@cache
def table(format: str) -> list[OperatorEntry]:
    return list(operators_of(format))


class Recorder:
    """Records the kinds that each operator adds while documents are read."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.kinds: dict[Key, set[str]] = {}
        self._running: list[set[str]] = []
        get = Operators.get

        def found(
            operators: Operators, name: str, version: int = NEWEST, domain: str = ""
        ) -> Operator | None:
            operator = get(operators, name, version, domain)
            return operator and replace(operator, run=self._recorded(operator))

        patch.setattr(Operators, "get", found)
        for name in ("emit", "insert"):
            patch.setattr(Site, name, self._noting(getattr(Site, name)))
        for owner in (Site, NodeSite, LayerSite):
            for name in _UNNAMED:
                if name in vars(owner):
                    patch.setattr(owner, name, self._hidden(getattr(owner, name)))

    def _recorded(self, operator: Operator) -> Callable[[Any], Any]:
        key = operator.domain, operator.name, operator.since
        return self._within(self.kinds.setdefault(key, set()), operator.run)

    def _hidden(self, method: Callable[..., Any]) -> Callable[..., Any]:
        return self._within(set(), method)

    def _within(self, kinds: set[str], function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            self._running.append(kinds)
            try:
                return function(*arguments, **named)
            finally:
                self._running.pop()

        return run

    def _noting(self, add: Callable[..., Any]) -> Callable[..., Any]:
        def noted(site: Any, kind: str, *arguments: Any, **attributes: Any) -> Any:
            if self._running:
                self._running[-1].add(kind)
            return add(site, kind, *arguments, **attributes)

        return noted


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    for name in FORMATS:
        table(name)  # the code of which is not that of the recorder
    return Recorder(monkeypatch)


def entries(format: str) -> dict[Key, OperatorEntry]:
    return {(x.domain, x.name, x.since): x for x in table(format)}


def lacking(format: str, recorded: dict[Key, set[str]]) -> dict[Key, set[str]]:
    """Return the kinds that documents gave and the table does not name."""
    by_key = entries(format)
    missing = {key: kinds.difference(by_key[key].kinds) for key, kinds in recorded.items()}
    return {key: kinds for key, kinds in missing.items() if kinds}


def test_no_kind_of_a_layer_is_missing(recorder: Recorder, tmp_path: Path) -> None:
    for version in (LEGACY, OPSETS):
        for module in MODULES:
            rows = [row for row in module.ROWS if version in row.versions]
            network(rows, version)[0].load(tmp_path)
    for uses, version in ((rare_layers.OLD, LEGACY), (rare_layers.USES, OPSETS)):
        written(uses, version)[0].load(tmp_path)
    assert lacking("openvino", recorder.kinds) == {}
    assert sum(map(bool, recorder.kinds.values())) > 200  # of 240 layers


def test_no_kind_of_a_node_is_missing(recorder: Recorder) -> None:
    for case in (*standard_cases.CASES, *runtime_cases.CASES):
        nnef_jax.load(case.model())
    assert lacking("onnx", recorder.kinds) == {}
    assert sum(map(bool, recorder.kinds.values())) > 60


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of ONNX, which makes the cases
def test_no_kind_of_a_node_of_the_suite_is_missing(recorder: Recorder, tmp_path: Path) -> None:
    for case in node_suite.cases():
        path = tmp_path / "node.onnx"
        path.write_bytes(case.model.SerializeToString())
        names = [x.name for x in case.model.graph.input]
        with suppress(NnefError):
            arrays = node_suite.arrays(case.data_sets[0][0])
            node_suite.loaded(path, dict(zip(names, arrays, strict=False)))
    assert lacking("onnx", recorder.kinds) == {}
    assert sum(map(bool, recorder.kinds.values())) > 150


def test_a_kind_that_is_missing_is_noticed(recorder: Recorder, tmp_path: Path) -> None:
    (row,) = [row for row in MODULES[0].ROWS if row.type == "Floor" and OPSETS in row.versions]
    network([row], OPSETS)[0].load(tmp_path)
    floor = "", "Floor", 1
    assert recorder.kinds == {floor: {"floor"}}
    assert lacking("openvino", {floor: {"floor", "ceil"}}) == {floor: {"ceil"}}


@pytest.mark.parametrize("format", FORMATS)
def test_kinds_are_those_of_rules(format: str) -> None:
    for entry in table(format):
        assert {*entry.kinds} <= {*rules}, entry.name
        assert bool(entry.refusal) == (entry.role == "refused"), entry.name
        assert entry.role == "operation" or not entry.kinds, entry.name
        assert entry.until is None or entry.since <= entry.until, entry.name


@pytest.mark.parametrize("format", FORMATS)
def test_versions_of_an_operator_follow_each_other(format: str) -> None:
    last: dict[tuple[str, str], int | None] = {}
    for entry in table(format):
        key = entry.domain, entry.name.lower()
        if key in last:
            before = last[key]
            assert before is not None and before < entry.since, entry.name
        last[key] = entry.until


def kinds(format: str, name: str, version: int = 1, domain: str = "") -> Iterator[str]:
    for entry in table(format):
        ends = entry.since, NEWEST if entry.until is None else entry.until
        if (entry.domain, entry.name) == (domain, name) and ends[0] <= version <= ends[1]:
            yield from entry.kinds


@pytest.mark.parametrize(
    ("format", "name", "version", "all_kinds"),
    [
        ("nnef", "relu", 1, {"relu"}),  # of the same name
        ("onnx", "Gather", 13, {"gather"}),  # a row
        ("onnx", "BitShift", 13, {"shift_left", "shift_right"}),  # by a condition
        ("onnx", "MatMul", 13, {"matmul", "squeeze", "unsqueeze"}),  # by `step_or_last`
        ("onnx", "ArgMax", 13, {"argmax_reduce", "cast", "copy", "squeeze"}),  # of a closure
        ("onnx", "Einsum", 13, {"einsum"}),
        ("openvino", "Mish", 11, {"mul", "softplus", "tanh"}),  # a lambda in a table
        ("openvino", "Gelu", 11, {"add", "erf", "gelu", "mul", "tanh"}),  # by branches, and a text
    ],
)
def test_kinds_are_read_from_code(
    format: str, name: str, version: int, all_kinds: set[str]
) -> None:
    assert {*kinds(format, name, version)} == all_kinds


def named(format: str, operator: str, attribute: str) -> AttributeEntry:
    (found,) = [
        x for y in table(format) if y.name == operator for x in y.attributes if x.name == attribute
    ]
    return found


def test_attributes_have_types_and_defaults() -> None:
    assert named("onnx", "Elu", "alpha") == AttributeEntry("alpha", "number", 1.0)
    assert named("openvino", "GatherElements", "axis") == AttributeEntry(
        "axis", "axis", is_required=True
    )
    mode = named("openvino", "GridSample", "mode")
    assert (mode.type, mode.words) == ("word", ("bilinear", "nearest", "bicubic"))
    assert named("nnef", "softmax", "axes") == AttributeEntry("axes", "integer[]", [1])
    assert named("nnef", "conv", "groups") == AttributeEntry("groups", "integer", 1)


# Attributes of ONNX's schemas that change no result here: of version 1 about memory; of Dropout,
# which drops nothing; of Range, whose sums are wide; of TopK, which always sorts; of outputs and
# items that nothing asks for; of Gemm, which always broadcasts; of trees, about speed.
IGNORED = {
    "consumed_inputs", "seed", "ratio", "stash_type", "sorted", "output_sequence", "dtype", "type",
    "broadcast", "multi_class", "nodes_hitrates", "nodes_hitrates_as_tensor",
}  # fmt: skip
# Those that meanings read by a name that they make, or refuse.
MADE = {
    "LabelEncoder", "Constant", "Imputer", "Scan", "TreeEnsembleClassifier", "TreeEnsembleRegressor"
}  # fmt: skip
REFUSED = {"pool_strings", "classlabels_strings", "cats_strings"}
OTHERWISE = {
    "Clip": {"max", "min"}, "FlexAttention": {"score_mod", "prob_mod"}, "GRU": {"activations"},
    "LSTM": {"activations"}, "RNN": {"activations"},
}  # fmt: skip


def test_the_table_has_the_attributes_of_the_standard() -> None:
    lacking: dict[str, set[str]] = {}
    schemas = sorted(onnx.defs.get_all_schemas_with_history(), key=lambda x: x.since_version)
    for entry in table("onnx"):
        last = NEWEST if entry.until is None else entry.until
        versions = [x for x in schemas if (x.domain, x.name) == (entry.domain, entry.name)]
        for schema, later in zip_longest(versions, versions[1:]):
            until = later.since_version - 1 if later else NEWEST
            if entry.role != "refused" and schema.since_version <= last and entry.since <= until:
                names = {*schema.attributes} - {x.name for x in entry.attributes}
                lacking.setdefault(entry.name, set()).update(names - IGNORED - REFUSED)
    lacking = {name: lacking[name] - OTHERWISE.get(name, set()) for name in lacking}
    assert {name for name, lost in lacking.items() if lost} == MADE


@pytest.mark.parametrize("format", FORMATS)
def test_attributes_are_plain(format: str) -> None:
    for entry in table(format):
        for attribute in entry.attributes:
            where = f"{entry.name}.{attribute.name}"
            assert all(type(word) is str for word in attribute.words), where
            assert len({*attribute.words}) == len(attribute.words), where
            json.dumps(attribute.default)


def test_attributes_are_read_from_code() -> None:
    kernel = named("onnx", "SVMRegressor", "kernel_type")
    assert (kernel.type, kernel.words) == ("word", ("LINEAR", "POLY", "RBF", "SIGMOID"))
    assert named("onnx", "Conv", "strides") == AttributeEntry("strides", "integers")
    (norm,) = {
        x for y in table("onnx") if y.name == "BatchNormalization" for x in y.attributes
        if x.name == "momentum" and x.default is not None
    }  # fmt: skip
    assert norm.default == 0.9
