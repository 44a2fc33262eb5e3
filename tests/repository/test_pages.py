"""README.md and docs/: every block runs as it stands, and does what the page says."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from urllib.error import URLError

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax import analysis
from nnef_jax.formats.onnx import operators
from nnef_jax.formats.openvino import layers
from tests.pages import LANGUAGES, PAGES, ROOT, Block, blocks, session, unpasteable
from tests.quickly import optimised

ELSEWHERE = {
    "docs/devices.md",  # test_sharding runs it, by a program that has eight devices
    "docs/language_model_recipes.md",  # tests/generation/test_recipes.py runs it with exporters
}
COMPUTES = "proven = analysis.bounds("  # for minutes where nothing is optimised
LONG_LINES = (  # tests/cli has shorter ones
    "nnef-jax batch examples/digits/model examples/digits/scans --out shards",
    "nnef-jax benchmark",
    "nnef-jax compare examples/digits/model examples/digits/model",
    "nnef-jax openvx run",
    "nnef-jax openvx stats",
    "nnef-jax profile",
)
LONG = (
    "analysis",
    "diagnosis",
    "interventions",
    "migrating",
    "openvino",
    "openvx",
    "pytorch",
    "tutorial",
)
WITH_CODE = [page for page in PAGES if page not in ELSEWHERE and blocks(page)]
OPTIONAL = {(block.page, block.needs): block for page in WITH_CODE for block in blocks(page)}
STEPS = "range(20)"
RECIPES = [block for block in blocks("docs/training.md", "python") if STEPS in block.code]
Names = list[dict[str, Any]]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Something like the root of the repository, to write to, and jax with its own settings."""
    for path in ROOT.iterdir():
        if not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    for registry in (layers.OPERATORS, operators.OPERATORS):  # to which pages add
        registry.get("")  # imports its families
        copied = {key: [*versions] for key, versions in registry._by_name.items()}
        monkeypatch.setattr(registry, "_by_name", copied)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def test_every_fence_is_known() -> None:
    found = {str(block): block.language for page in PAGES for block in blocks(page)}
    assert {where: x for where, x in found.items() if x not in LANGUAGES} == {}
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    assert sum(text.count("\n```") for text in texts) == 2 * len(found)
    asked = sum(text.count("<!-- needs:") for text in texts)
    assert asked == sum(bool(block.needs) for page in PAGES for block in blocks(page))


def test_a_page_on_how_to_do_something_begins_with_an_example() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"\w+\.md", site.split("- How-to:")[1].split("- Examples:")[0])
    assert len(listed) > 10
    for page in [f"docs/{name}" for name in listed] + ["README.md"]:
        first, *_ = blocks(page)
        assert first.line <= 12, page


def test_blocks_can_be_pasted_into_any_repl() -> None:
    found = [block for page in PAGES for block in blocks(page, "python")]
    told = {str(block): unpasteable(block.code) for block in found}
    assert {where: why for where, why in told.items() if why} == {}


@pytest.mark.parametrize(
    ("code", "pasteable"),
    [
        ("def f():\n    return 1\n\nf()\n", True),
        ("x = [\n\n    1]\nclass C:\n    pass", True),
        ("def f():\n    return 1\nf()\n", False),
        ("def f():\n    x = 1\n\n    return x\n", False),
        ("x = (\n", False),
    ],
)
def test_what_a_repl_takes(code: str, pasteable: bool) -> None:
    assert (unpasteable(code) is None) == pasteable


WRITES = re.compile(
    r"\.export\(|\.save\(\S|nnef_jax\.convert\(.*,|nnef-jax .* (-o|--output) "
    r"|nnef-jax convert \S+ [^-]|--trace"
)


def test_what_a_page_writes_replaces_what_another_wrote() -> None:
    """A reader goes from page to page in one folder, and back."""
    found = {
        line: str(block)
        for page in PAGES
        for block in blocks(page)
        if block.language in ("python", "sh")
        for line in block.code.splitlines()
        if WRITES.search(line) and "overwrite" not in line
    }
    others = ("checkpointer.save(", "torch.onnx.export(")
    assert {x: where for x, where in found.items() if not any(y in x for y in others)} == {}


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    "page",
    [pytest.param(x, marks=pytest.mark.slow) if Path(x).stem in LONG else x for x in WITH_CODE],
)
def test_page(page: str) -> None:
    def within(block: Block) -> AbstractContextManager[None]:
        return optimised() if COMPUTES in block.code else nullcontext()

    done = session(page, without=LONG_LINES, within=within)
    names = [after for block, after in done if block.language == "python"]
    CHECKS.get(page, lambda names: None)(names)


@pytest.mark.filterwarnings("default")  # those of other libraries
@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    "block", [x for x in OPTIONAL.values() if x.needs], ids=lambda x: f"{x.page}-{x.needs[0]}"
)
def test_page_where_what_it_needs_is_there(block: Block) -> None:
    for module in block.needs:
        pytest.importorskip(module)
    try:
        names = [after for _, after in session(block.page, block.needs)]
    except URLError:
        pytest.skip("the exporter cannot fetch tract")
    except ConnectionRefusedError:  # tests/serving does what the page does
        pytest.skip("no server runs")
    WITH_MODULE.get(block.needs[0], lambda names: None)(names[-1])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of other libraries
@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("block", RECIPES, ids=lambda x: (x.needs or ("optax",))[0])
def test_a_recipe_trains_for_long(block: Block) -> None:
    """Losses stay finite and fall, and the mean and the variance of the norm stay as they were."""
    for module in block.needs:
        pytest.importorskip(module)
    before, names = nnef_jax.load("docs/tutorial/digits.nnef.tgz").params, dict[str, Any]()
    exec(block.code.replace(STEPS, "range(300)"), names)
    assert len(names["losses"]) == 300 and np.isfinite(names["losses"]).all()
    assert names["losses"][-1] < names["losses"][0]
    after = nnef_jax.load("tuned.nnef.tgz").params
    same = {label for label, x in after.items() if np.array_equal(x, before[label])}
    assert same == {x for x in after if "running" in x} and len(same) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    "page",
    [
        page
        for page in WITH_CODE
        if any(x in b.code for x in ("python ", *LONG_LINES) for b in blocks(page, "sh"))
    ],
)
def test_page_with_its_programs_and_long_lines(page: str) -> None:
    list(session(page, programs=True))


# What pages say of what they compute


def analysis_page(names: Names) -> None:
    """Bounds of a network of some size are never passed, by attacks either."""
    model, x, found = (names[-1][name] for name in ("model", "images", "proven"))
    options: Any = {"epsilon": 4, "bounds": (0, 255)}
    attack = analysis.pgd(model, x, key=jax.random.key(0), **options)
    assert found.output == "logits" and 0 < found.certified.sum() < len(x)
    assert not (found.certified & attack.found).any()
    assert (np.asarray(found.margin) <= attack.margin).all()
    assert str(found).startswith("crown bounds of logits for image")
    formats = [nnef_jax.load(f"examples/digits/{name}") for name in ("model", "ir")]
    one, other = (analysis.bounds(net, x[:1], method="interval", **options) for net in formats)
    assert one.output == other.output == "logits"
    np.testing.assert_allclose(one.lower, other.lower, rtol=1e-4, atol=1e-3)
    random, ends = np.random.default_rng(0), [np.asarray(found.lower), np.asarray(found.upper)]
    for change in (random.uniform(-4, 4, (5_000, *x.shape)), random.choice([-4, 4], x.shape)):
        points = np.float32(x + change).clip(0, 255).reshape(-1, 1, 8, 8)
        y = np.asarray(model(points)).reshape(-1, *ends[0].shape)
        assert (y >= ends[0]).all() and (y <= ends[1]).all()


def batch(names: Names) -> None:
    assert len(names[0]["items"]) == 10
    assert names[0]["probabilities"].shape == (10,) and names[0]["probabilities"].argmax() == 7


def diagnosis(names: Names) -> None:
    _, parted, recorded, activations, gradients, sensitivity, jacobian, hessian = names
    found = parted["found"]
    assert (found.first.a, found.first.reason, found.origins) == ("conv2", "values", ("conv2",))
    assert recorded["found"].tensors.keys() == {"conv1", "pool", "logits"}
    relu = activations["found"].tensors["relu1"]
    assert relu.dead == (1,) and round(relu.effective_rank, 1) == 8.5
    assert gradients["found"].tensors["conv1_filter"].rms > 0
    found = sensitivity["found"]
    costs = {n: dict(zip(found.names, x, strict=True)) for n, x in found.increases.items()}
    four = costs["weights 4 bits"]
    assert max(four, key=lambda name: np.nan_to_num(four[name])) == "logits"
    assert np.max(np.abs([costs[n][x] for n in ("bfloat16", "float16") for x in found.names])) < (
        0.01 * found.loss
    )
    assert jacobian["found"].values.shape == (10, 8) and jacobian["found"].residuals.max() < 1e-6
    assert hessian["sharpest"].residuals.max() < 1e-2 * hessian["sharpest"].values[0]
    assert 0 < hessian["trace"].error < hessian["trace"].value


def export(names: Names) -> None:
    assert names[3]["probabilities"].shape == (64, 10)
    assert names[4]["y"].shape == (1, 2, 8)


def extending(names: Names) -> None:
    block, *_ = blocks("docs/extending.md", "python")
    lines = [line for line in block.code.splitlines() if line and "import " not in line]
    assert len(lines) <= 20
    before, after = names[1]["before"], names[1]["after"]
    assert "logistic" in str(before) and "logistic" not in str(after) and "tanh" in str(after)
    np.testing.assert_allclose(after(names[0]["x"])[0], before(names[0]["x"])[0], rtol=1e-5)
    model, rules = names[0]["model"], names[0]["rules"]

    def mish(x: Any) -> Any:
        return x * jnp.tanh(jnp.log1p(jnp.exp(2 * x)))

    xs = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 2, 3)
    slope = jax.grad(lambda x: model.apply({}, x).sum())
    wanted = jax.jit(jax.grad(lambda x: mish(x).sum()))
    np.testing.assert_allclose(names[0]["gradient"], wanted(names[0]["x"]), rtol=1e-5)
    for function, plain in ((lambda x: model.apply({}, x), mish), (slope, wanted)):
        for found in (jax.jit(jax.vmap(function))(xs), [jax.jit(function)(x) for x in xs]):
            np.testing.assert_allclose(found, jax.jit(jax.vmap(plain))(xs), rtol=1e-5, atol=1e-6)
    model.save("saved.nnef.tgz")
    np.testing.assert_array_equal(nnef_jax.load("saved.nnef.tgz", rules=rules)(xs[0]), model(xs[0]))
    with pytest.raises(nnef_jax.UnsupportedError, match="no rule for operation 'mish'"):
        nnef_jax.load("saved.nnef.tgz")
    softened = np.sqrt(1 + 0.5)
    wanted = np.full((2, 3), np.log1p(np.exp(softened - 4)) - 0.1 * softened)
    np.testing.assert_allclose(names[-1]["activated"], wanted, rtol=1e-6)
    x, swoosh = names[-1]["x"], nnef_jax.load(names[-1]["proto"])
    np.testing.assert_allclose(swoosh(x), np.log1p(np.exp(x - 4)) - 0.1 * x, rtol=1e-5)


def inside(names: Names) -> None:
    for block in blocks("docs/interventions.md", "python"):
        lines = [line for line in block.code.splitlines() if line and "import " not in line]
        assert len(lines) <= 25
    _, cam, patching, freezing, quantised = names
    heat = np.asarray(cam["heat"])
    assert heat.shape == (8, 8) and heat.min() == 0 < heat.max()
    np.testing.assert_allclose(cam["many"][1], heat, rtol=1e-4, atol=1e-6)
    assert patching["wanted"].argmax() == 1
    assert np.ptp(patching["effect"]) > 1
    model, corrupt, tensors = (patching[name] for name in ("model", "corrupt", "inside"))
    np.testing.assert_allclose(model(corrupt, edit=tensors), patching["wanted"], rtol=1e-4)
    for trained in (freezing, quantised):
        assert trained["losses"][-1] < 0.7 * trained["losses"][0]
    saved, plain = nnef_jax.load("tuned.nnef.tgz").params, freezing["model"].params
    changed = {label for label in plain if not np.array_equal(saved[label], plain[label])}
    assert changed == {"linear_filter", "linear_bias"}
    again = nnef_jax.load("trained.nnef.tgz").cut(outputs=["logits"])(quantised["scans"])
    assert again.argmax(1).tolist() == list(range(10))


def pytorch(names: Names) -> None:
    assert names[-1].keys() >= {"masks", "tuned", "pooled", "logits", "block"}
    assert names[-1]["stacks"].shape == (5, 2, 2, 16, 16)
    assert names[-1]["slopes"]["last.weight"].shape == (2, 8, 1, 1)
    assert names[-1]["keys"].shape == (2, 1, 4, 5, 8)
    assert names[-1]["texts"].shape == (3, 12)


def training(names: Names) -> None:
    assert names[1]["mine"] == dict.fromkeys(names[1]["model"].params, True)
    model, tuned, gradient = (names[2][x] for x in ("model", "tuned", "gradient"))
    np.testing.assert_array_equal(tuned.params["linear_filter"], model.params["linear_filter"])
    assert np.any(gradient["b"]) and not np.any(gradient["a"])  # before the first step
    falls(names[3])


def tutorial(names: Names) -> None:
    first, tuned = names[-1]["model"], names[-1]["tuned"]
    accuracy, unseen = names[-1]["accuracy"], names[-1]["unseen"]
    assert accuracy(first, unseen) > 0.95 and accuracy(first, 1 - unseen) < 0.05
    assert accuracy(tuned, unseen) > 0.95 and accuracy(tuned, 1 - unseen) > 0.9


CHECKS: dict[str, Callable[[Names], None]] = {
    "docs/analysis.md": analysis_page,
    "docs/batch.md": batch,
    "docs/diagnosis.md": diagnosis,
    "docs/export.md": export,
    "docs/extending.md": extending,
    "docs/interventions.md": inside,
    "docs/pytorch.md": pytorch,
    "docs/training.md": training,
    "docs/tutorial.md": tutorial,
}


def doubled(names: dict[str, Any]) -> None:
    model, x = names["model"], np.ones((2, 2, 12), np.float32)
    wanted = model.apply({k: 2 * v for k, v in names["arrays"]["params"].items()}, x)
    np.testing.assert_allclose(model(x), wanted, rtol=1e-5)


def falls(names: dict[str, Any]) -> None:
    assert names["losses"][-1] < names["losses"][0]


def has_slope(names: dict[str, Any]) -> None:
    assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(names["slope"]))


WITH_MODULE: dict[str, Callable[[dict[str, Any]], None]] = {
    "orbax.checkpoint": doubled,
    "equinox": falls,
    "flax.nnx": falls,
    "flax.linen": has_slope,
}


def test_modules_that_pages_need_are_modules() -> None:
    """A misspelt one would be skipped for ever."""
    known = {"torch", "torch_to_nnef", "onnx", "onnxruntime", "tract", "openvino", "ai_edge_litert"}
    known |= {"onnxscript", "silero_vad", "sklearn", "captum", "IPython", "libtpu"}
    known |= {"orbax", "equinox", "flax", "ray", "starlette", "tokenizers", "tritonclient"}
    asked = {module.split(".")[0] for _, needs in OPTIONAL for module in needs}
    assert {x for x in asked if x not in known and importlib.util.find_spec(x) is None} == set()
