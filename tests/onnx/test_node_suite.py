"""ONNX's own node tests: what is right, and what is refused, with its reason in refused.txt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import jax
import pytest

from lowering.graph import Graph
from nnef_jax.errors import NnefError
from nnef_jax.formats.base import Written
from nnef_jax.reading.network import Network
from nnef_jax.saving import archives
from tests.onnx.node_suite import (
    Load,
    arrays,
    cases,
    has_float8,
    kept,
    loaded,
    read_back,
    run,
    saved,
)
from tests.quickly import optimised

_LISTED = Path(__file__).with_name("refused.txt").read_text(encoding="utf-8").splitlines()
REFUSED = dict(line.split(maxsplit=1) for line in _LISTED)
_GROUP = 40


def results(chosen: Sequence[Any], folder: Path, load: Load) -> dict[str, str]:
    """Return what came of each case; none is wrong."""
    found: dict[str, str] = {}
    # Without `xla_cpu_use_fusion_emitters`, which only tests switch off, XLA casts to float8
    # wrongly.
    for is_narrow, compiled in ((False, nullcontext()), (True, optimised())):
        part = [case for case in chosen if has_float8(case) is is_narrow]
        with compiled, jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            for i in range(0, len(part), _GROUP):
                found |= run(part[i : i + _GROUP], folder, load)
    wrong = {x: why for x, why in found.items() if why and not why.startswith("refused")}
    assert wrong == {}
    assert len(found) == len({case.name for case in chosen})
    return found


def require_as_listed(chosen: Sequence[Any], folder: Path) -> None:
    found = results(chosen, folder, loaded)
    refused = {name for name, why in found.items() if why}
    assert refused == {name for name in found if name in REFUSED}


@pytest.mark.filterwarnings("ignore")  # of ONNX, which makes the cases
def test_a_tenth_of_the_suite_is_right_or_listed(tmp_path: Path) -> None:
    """Those of the expanded form of an operator have operators that other cases are for."""
    every = [x for x in cases() if "_expanded" not in x.name]
    require_as_listed(random.Random(7).sample(every, len(every) // 10), tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@optimised()
def test_the_suite_is_right_or_listed(tmp_path: Path) -> None:
    every = cases()
    assert REFUSED.keys() <= {case.name for case in every}
    require_as_listed(every, tmp_path)


def count_right(chosen: Sequence[Any], folder: Path, load: Load) -> int:
    return list(results(chosen, folder, load).values()).count("")


@pytest.mark.filterwarnings("ignore")
def test_a_tenth_of_the_suite_is_read_back_as_it_is_saved(tmp_path: Path) -> None:
    every = cases()
    assert count_right(random.Random(8).sample(every, len(every) // 10), tmp_path, saved) > 60


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("load", "least"), [(saved, 700), (kept, 1600)])
def test_the_suite_is_read_back_as_it_is_saved(tmp_path: Path, load: Load, least: int) -> None:
    assert count_right(cases(), tmp_path, load) >= least


@pytest.mark.filterwarnings("ignore")
def test_what_saving_does_not_read_to_check_it_is_read_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread: list[Network] = []

    def checked(network: Network, written: Written) -> None:
        unread.extend([network] * written.loads_same_graph)

    monkeypatch.setattr(archives, "require_readable", checked)
    every = cases()
    for number, case in enumerate(random.Random(9).sample(every, len(every) // 10)):
        path, found = tmp_path / f"{number}.onnx", len(unread)
        path.write_bytes(case.model.SerializeToString())
        names = [x.name for x in case.model.graph.input]
        given = dict(zip(names, arrays(case.data_sets[0][0]), strict=False))
        with suppress(NnefError):
            loaded(path, given).model.save(tmp_path / f"{number}")
        if len(unread) > found:
            again = read_back(f"{tmp_path}/{number}")
            assert described(again.graph) == described(unread[-1].graph), case.name
    assert len(unread) > 40


def described(graph: Graph) -> Any:
    """Return the types of inputs and outputs, and operations but for constants of the writer."""
    steps = [(x.kind, [v.type for v in x.writes()]) for x in graph.operations]
    types = [[v.type for v in values] for values in (graph.inputs, graph.outputs)]
    return types, [step for step in steps if step[0] not in ("copy", "rcp", "log")]


def test_there_are_few_reasons() -> None:
    assert len(set(REFUSED.values())) <= 15 and sorted(_LISTED) == _LISTED
