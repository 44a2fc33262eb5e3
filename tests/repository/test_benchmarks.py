"""The benchmarks' networks load and run, and their arithmetic is right. No engine is needed."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

import benchmarks.drawn
import nnef_jax
from benchmarks import networks, parsing, passes, report, startup, timing
from benchmarks.__main__ import main
from benchmarks.builders.jax_builder import function_of
from benchmarks.builders.nnef_builder import NnefBuilder
from benchmarks.engines import write_nnef
from benchmarks.inference import Result
from benchmarks.networks import drawn
from benchmarks.networks.convolutional import c3d
from benchmarks.networks.llama import LlamaJaxBuilder, LlamaNnefBuilder, llama
from nnef_jax.reading.read import network_of_text

SMALL: dict[str, tuple[Callable[..., str], tuple[int, ...]]] = {
    "mobilenet_v2": (
        partial(
            networks.mobilenet_v2,
            extent=32,
            stages=((1, 8, 1, 1), (6, 12, 2, 2)),
            last=16,
            classes=5,
        ),
        (2, 5),
    ),
    "resnet18": (
        partial(networks.resnet, blocks=(1, 1), bottleneck=False, extent=32, width=8, classes=5),
        (2, 5),
    ),
    "resnet50": (
        partial(networks.resnet, blocks=(1, 2), bottleneck=True, extent=32, width=8, classes=5),
        (2, 5),
    ),
    "resnext50": (
        partial(
            networks.resnet,
            blocks=(1, 2),
            bottleneck=True,
            extent=32,
            width=8,
            groups=4,
            widening=2,
            classes=5,
        ),
        (2, 5),
    ),
    "efficientnet_b0": (
        partial(
            networks.efficientnet_b0,
            extent=32,
            stages=((1, 8, 1, 1, 3), (6, 12, 2, 2, 5)),
            last=16,
            classes=5,
        ),
        (2, 5),
    ),
    "densenet121": (
        partial(networks.densenet121, extent=32, blocks=(2, 2), growth=4, classes=5),
        (2, 5),
    ),
    "convnext_t": (
        partial(networks.convnext_t, extent=32, width=8, blocks=(1, 2), classes=5),
        (2, 5),
    ),
    "swin_t": (
        partial(
            networks.swin_t,
            extent=32,
            patch=2,
            window=4,
            width=8,
            blocks=(2, 2),
            heads=2,
            classes=5,
        ),
        (2, 5),
    ),
    "gru": (partial(networks.gru, steps=7, inputs=4, hidden=5), (7, 2, 5)),
    "unet": (partial(networks.unet, extent=16, width=4, depth=2), (2, 2, 16, 16)),
    "unet_512": (partial(networks.unet, extent=32, width=4, depth=2), (2, 2, 32, 32)),
    "quartznet": (
        partial(
            networks.quartznet,
            features=4,
            times=20,
            blocks=((6, 3), (8, 5)),
            repeats=2,
            last=(8, 3, 12),
            letters=5,
        ),
        (2, 5, 10),
    ),
    "vit_s": (
        partial(networks.vit_s, extent=32, patch=8, width=24, layers=2, heads=3, classes=5),
        (2, 5),
    ),
    "bert": (partial(networks.bert, tokens=6, width=16, layers=2, heads=4), (2, 6, 16)),
    "lstm": (partial(networks.lstm, steps=7, inputs=4, hidden=5), (7, 2, 5)),
    "mlp": (partial(networks.mlp, layers=100), (2, 8)),
}


@pytest.fixture(autouse=True)
def nothing_is_to_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of files are written: to wait for the disk takes ten times as long as all else."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def test_every_network_has_a_small_form() -> None:
    assert SMALL.keys() == networks.NETWORKS.keys()


OF_DEVICES: dict[str, Any] = {
    "c3d": partial(c3d, frames=4, extent=8, channels=(4, 6), classes=5),
    "llama": partial(llama, tokens=6, width=16, layers=2, heads=4, groups=2, hidden=24),
}


@pytest.mark.parametrize("name", [*SMALL, *OF_DEVICES])
def test_plain_jax_computes_the_same(name: str, tmp_path: Path) -> None:
    describe: Any = OF_DEVICES[name] if name in OF_DEVICES else SMALL[name][0]
    builder = LlamaNnefBuilder()
    builder.write(tmp_path / "network", describe(builder, 2))
    inputs = builder.arguments()
    expected = nnef_jax.load(tmp_path / "network", precision="highest")(**inputs)
    with jax.numpy_rank_promotion("allow"):
        function, parameters, types = function_of(describe, 2, "float32", LlamaJaxBuilder)
        for key, x in inputs.items():
            is_last = types[key].shape != x.shape
            inputs[key] = np.moveaxis(x, 1, -1) if is_last else x
        result = jax.jit(function)(parameters, inputs)
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)


def test_networks_load(tmp_path: Path) -> None:
    for name, (describe, shape) in SMALL.items():
        builder = NnefBuilder()
        builder.write(tmp_path / name, describe(builder, 2))
        model = nnef_jax.load(tmp_path / name, optimize=False)
        assert model.outputs[0].shape == shape, name


@pytest.mark.parametrize(
    "name", [x if x == "resnet18" else pytest.param(x, marks=pytest.mark.slow) for x in SMALL]
)
def test_network_tells_inputs_apart(name: str, tmp_path: Path) -> None:
    describe, shape = SMALL[name]
    builder = NnefBuilder()
    builder.write(tmp_path / "net", describe(builder, 2))
    model = nnef_jax.load(tmp_path / "net")
    inputs = builder.arguments()
    output = np.asarray(model(**inputs))
    assert output.shape == shape
    assert 0.05 < output.std() < 50
    changed = np.asarray(model(**{k: v + np.float32(0.5) for k, v in inputs.items()}))
    assert timing.relative_difference(output, changed) > 1e-3


def test_drawn_networks_load_and_are_the_same_for_all_builders(tmp_path: Path) -> None:
    for name in drawn.names(5, len(drawn.FAMILIES)):
        describe = networks.described(name)
        first, second = NnefBuilder(), NnefBuilder()
        output = describe(first, 3)
        assert first.text(output) == second.text(describe(second, 3))
        first.write(tmp_path / name, output)
        model = nnef_jax.load(tmp_path / name, optimize=False)
        axis = 1 if name.startswith("recurrent") else 0
        assert model.outputs[0].shape[axis] == 3
    assert first.text(output) != (other := NnefBuilder()).text(
        networks.described(drawn.names(6, 10)[-1])(other, 3)
    )
    for wrong in ("dense-5-0", "dense-x-9", "resnet"):
        with pytest.raises(KeyError):
            networks.described(wrong)


def test_ratios_of_drawn_networks_are_told_as_a_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmarks.drawn, "_WORST", 2)
    name = next(n for n in drawn.names(5, 10) if n.startswith("dense"))
    results = [result(name, nnef_jax=r, torch=1.0) for r in (0.5, 1.0, 1.5, 2.0, 8.0)]
    found = benchmarks.drawn.report(results, Console(file=io.StringIO()))
    (row, fastest) = found["ratios"]
    assert row == {
        "batch": 1,
        "to": "torch",
        "networks": 5,
        "mean": pytest.approx(12 ** (1 / 5)),
        "median": 1.5,
        "90th_percentile": 8.0,
        "worst": 8.0,
    }
    assert fastest["to"] == "fastest"
    assert [entry["ratio"] for entry in found["worst"]] == [8.0, 2.0]
    assert all(0 < entry["share"] <= 1 for entry in found["worst"])


def test_passes_are_timed_where_they_change_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(networks.NETWORKS, "mlp", partial(networks.mlp, layers=3, width=400))
    monkeypatch.setattr(timing, "_WAIT", 0.0)
    (found,) = passes.run(["mlp"], [64], rounds=1, only=["turned", "winograd"])
    assert found.title == "mlp, 64"
    assert found.ratios.keys() == {"turned"}
    monkeypatch.setattr(timing, "TOLERANCE", -1.0)
    with pytest.raises(timing.DisagreementError, match="turned"):
        list(passes.run(["mlp"], [64], rounds=1, only=["turned"]))


def test_builders_of_one_seed_draw_the_same_weights() -> None:
    describe = SMALL["resnet18"][0]
    first, second, other = NnefBuilder(1), NnefBuilder(1), NnefBuilder(2)
    texts = [b.text(describe(b, 1)) for b in (first, second, other)]
    assert texts[0] == texts[1] == texts[2]
    weights = [b.arguments()["image"] for b in (first, second, other)]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])


def test_parsed_document_has_the_statements_it_should() -> None:
    network = network_of_text(parsing.document(500))
    assert text_statements(parsing.document(500)) == 501
    assert network.graph.outputs[0].type.shape == (1, 16, 32, 32)


def text_statements(text: str) -> int:
    return text.count(";\n") - 1  # the version


def result(network: str, elsewhere: float = 0.0, **seconds: float) -> Result:
    samples = {name: [value] for name, value in seconds.items()}
    return Result(network, 1, timing.Measurement(samples, elsewhere))


def test_ratios() -> None:
    times = {"nnef_jax": 3.0, "a": 2.0, "b": 6.0}
    assert timing.ratios(times, "nnef_jax") == {"a": 1.5, "b": 0.5, "fastest": 1.5}
    assert timing.ratios({"nnef_jax": 3.0}, "nnef_jax") == {}
    assert timing.geometric_mean([0.5, 2.0]) == pytest.approx(1)
    assert timing.Measurement({"a": [1.0, 9.0, 2.0]}, 0.0).medians == {"a": 2.0}


def test_the_literal_form_is_none_of_the_others() -> None:
    found = result("net", nnef_jax=2.0, literal=0.5, torch=4.0).ratios
    assert found == {"literal": 4.0, "torch": 0.5, "fastest": 0.5}
    assert result("net", torch=1.0).ratios == {}


def test_summary_and_plot(tmp_path: Path) -> None:
    results = [result("x", nnef_jax=1.0, torch=2.0), result("y", nnef_jax=8.0, torch=1.0)]
    results.append(result("disturbed", elsewhere=1.0, nnef_jax=1.0, torch=100.0))
    results.append(result("mlp", nnef_jax=1.0, torch=100.0))
    assert report.summarise(results)["torch"] == {"mean": pytest.approx(2), "worst": 8}
    pytest.importorskip("matplotlib")
    report.plot(results, tmp_path / "ratios.png")
    assert (tmp_path / "ratios.png").stat().st_size > 1000


def test_disagreement_names_the_engine() -> None:
    a = np.array([1.0, -2.0], np.float32)
    near, far = a + np.float32(1e-5), a + np.float32(1e-2)
    assert timing.check_agreement({"one": a, "two": near})["two"] < 1e-4
    with pytest.raises(timing.DisagreementError, match=r"differ from one: three by 0\.005"):
        timing.check_agreement({"one": a, "two": near, "three": far})
    for wrong in (a[:1], a * np.float32(np.nan)):
        assert timing.relative_difference(a, wrong) == math.inf


class Clock:
    """A clock that nothing moves but `sleep`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(timing, "time", found)
    return found


def quiet(monkeypatch: pytest.MonkeyPatch, *busy: float) -> None:
    """The processor time that others seem to use in one round after the other; then none."""
    used = [t for i in range(len(busy)) for t in (sum(busy[:i]), sum(busy[: i + 1]))]
    monkeypatch.setattr(timing, "used_elsewhere", lambda: used.pop(0) if used else sum(busy))


def test_calls_take_turns_and_times_are_theirs(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    calls: list[str] = []

    def slow() -> None:
        calls.append("slow")
        clock.sleep(0.03)

    def fast() -> None:
        calls.append("fast")
        clock.sleep(0.004)

    quiet(monkeypatch)
    measured = timing.measure({"slow": slow, "fast": fast}, 2)
    assert [len(values) for values in measured.samples.values()] == [4, 4]
    assert measured.medians == pytest.approx({"slow": 0.03, "fast": 0.004})
    turns = [name for name, _ in itertools.groupby(calls)]
    assert turns == ["slow", "fast"] * 3  # once to learn how long they take, then two rounds


def test_short_calls_are_repeated(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    quiet(monkeypatch)
    measured = timing.measure({"short": lambda: clock.sleep(1e-5)}, 1)
    calls = clock.slept.count(1e-5)
    # Two to learn how long it takes, calls to warm up, and two samples.
    assert calls == pytest.approx(2 + (timing._WARM + 2 * timing._SAMPLE) / 1e-5, abs=2)
    assert measured.medians["short"] == pytest.approx(1e-5)


def test_disturbed_rounds_are_replaced(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    quiet(monkeypatch, 100.0, 0.0, 100.0)
    measured = timing.measure({"call": lambda: clock.sleep(0.004)}, 2)
    assert clock.slept.count(timing._REST) == 4
    assert clock.slept.count(timing._WAIT) == 2
    assert measured.elsewhere == 0
    quiet(monkeypatch, *[100.0] * 6)
    hopeless = timing.measure({"call": lambda: clock.sleep(0.004)}, 2)
    assert len(hopeless.samples["call"]) == 4
    assert hopeless.elsewhere > timing.QUIET


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole path with the engine that is always there."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # as `main` would leave it
    monkeypatch.setattr(timing, "_WAIT", 0.0)
    arguments = ["--networks", "mlp", "--engines", "nnef_jax", "--batch", "1", "--rounds", "1"]
    assert main([*arguments, "--json", str(tmp_path / "found.json")]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    assert found["inference"][0]["network"] == "mlp"
    assert found["inference"][0]["timed"]["samples"]["nnef_jax"][0] > 0
    assert found["machine"]["versions"].keys() >= {"jax", "nnef_jax"}


@pytest.mark.slow
def test_parts_of_a_start(tmp_path: Path) -> None:
    archive = str(write_nnef("mlp", 1, tmp_path))
    cold, warm = (
        startup.probe(["nnef_jax run", archive, str(tmp_path / "cache")]) for _ in range(2)
    )
    assert set(cold["parts"]) == {"key", "trace", "prepare", "compile", "lower and call"}
    assert set(warm["parts"]) == {"key", "read", "call"}
    assert all({"imported", "loaded", "done"} <= set(found) for found in (cold, warm))


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--networks", "mlp,alexnet"])
    assert "unknown: alexnet" in capsys.readouterr().err
