"""The documentation: generated pages are up to date, messages suffice, claims have tests."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import URLError

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax import cli
from nnef_jax.formats.syntax.standard import standard
from tests.operations import test_numerics
from tests.wrong_documents import SECTIONS, WRONG_DOCUMENTS, WrongDocument, message

DOCS = Path(__file__).resolve().parents[2] / "docs"


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = script(DOCS / "generate.py")


@pytest.mark.parametrize("name", generate.GENERATED)
def test_generated_page_is_up_to_date(name: str) -> None:
    text: Callable[[], str] = generate.GENERATED[name]
    written = (DOCS / name).read_text(encoding="utf-8")
    assert written == text(), f"docs/{name} is not up to date: run python docs/generate.py"


def test_check_fails_for_a_stale_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "docs/errors.md is not up to date" in capsys.readouterr().out
    assert not list((tmp_path / "docs").iterdir())
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "docs" / "errors.md").write_text("stale", encoding="utf-8")
    assert generate.main(["--check"]) == 1


def test_every_operation_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` ", (DOCS / "operations.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(standard())


def test_there_are_twenty_wrong_documents() -> None:
    assert len(WRONG_DOCUMENTS) == len({document.name for document in WRONG_DOCUMENTS}) == 20


@pytest.mark.parametrize("document", WRONG_DOCUMENTS, ids=lambda document: document.name)
def test_message_is_enough_to_mend_the_document(document: WrongDocument) -> None:
    told = message(document)
    assert [words for words in document.words if words not in told] == []
    assert re.match(r"net/graph\.nnef:\d+:\d+: ", told)
    assert len(told.splitlines()) <= 15


@pytest.mark.parametrize(
    "document", SECTIONS["Shapes, inside fragments"], ids=lambda document: document.name
)
def test_shape_errors_show_the_chain_of_calls(document: WrongDocument) -> None:
    called = len(
        re.findall(r"in fragment '\w+', called at net/graph\.nnef:\d+:\d+", message(document))
    )
    assert called == document.text.count("fragment ")


def test_a_right_document_is_no_wrong_one() -> None:
    right = WRONG_DOCUMENTS[0].text.replace("relu(x)", "relu(x);")
    with pytest.raises(ValueError, match="nothing is wrong with 'right'"):
        message(WrongDocument("right", "", right, []))


def test_every_numerical_claim_has_a_test() -> None:
    text = (DOCS / "numerics.md").read_text(encoding="utf-8")
    claims = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
    named = [re.findall(r"`(test_\w+)`", claim.split("\n\n")[0]) for claim in claims]
    assert all(named), "a claim names no test"
    tests = {name for name in vars(test_numerics) if name.startswith("test_")}
    pages = {name for names in named for name in names}
    assert tests == pages


def blocks(page: str) -> list[str]:
    text = (DOCS.parent / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(code: str, names: dict[str, object]) -> None:
    exec(compile(code, "block", "exec"), names)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks like the root of the repository, to which blocks may write."""
    for name in ("examples", "tests"):
        (tmp_path / name).symlink_to(DOCS.parent / name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("code", blocks("README.md"), ids=lambda code: code.splitlines()[-1][:30])
def test_each_block_of_the_readme_runs_as_it_stands(code: str) -> None:
    run(code, {})
    run(code, {})  # where the first time left its files


@pytest.mark.usefixtures("root")
def test_an_operation_of_ones_own_takes_twenty_lines_and_has_all_that_others_have() -> None:
    (code,) = blocks("docs/extending.md")
    lines = [line for line in code.splitlines() if line and "import " not in line]
    assert len(lines) <= 20
    names: dict[str, Any] = {}
    run(code, names)
    model, rules = names["model"], names["rules"]

    def mish(x: Any) -> Any:
        return x * jnp.tanh(jnp.log1p(jnp.exp(2 * x)))

    xs = jnp.linspace(-2, 2, 24).reshape(4, 2, 3)
    slope = jax.grad(lambda x: model.apply({}, x).sum())
    wanted = jax.grad(lambda x: mish(x).sum())
    np.testing.assert_allclose(names["gradient"], wanted(names["x"]), rtol=1e-5)
    for function, plain in ((lambda x: model.apply({}, x), mish), (slope, wanted)):
        for found in (jax.jit(jax.vmap(function))(xs), jnp.stack([function(x) for x in xs])):
            np.testing.assert_allclose(found, jax.vmap(plain)(xs), rtol=1e-5, atol=1e-6)
    model.save("saved.nnef.tgz")
    np.testing.assert_array_equal(nnef_jax.load("saved.nnef.tgz", rules=rules)(xs[0]), model(xs[0]))
    with pytest.raises(nnef_jax.UnsupportedError, match="no rule for operation 'mish'"):
        nnef_jax.load("saved.nnef.tgz")


@pytest.mark.usefixtures("root")
def test_blocks_about_pytorch_run_one_after_the_other() -> None:
    names: dict[str, object] = {}
    for code in blocks("docs/pytorch.md"):
        if "import nnef_jax, torch" not in code:
            run(code, names)
    assert names.keys() >= {"masks", "tuned", "pooled", "logits", "texts", "block"}


@pytest.mark.usefixtures("root")
def test_the_first_block_about_pytorch_runs_where_the_exporter_is() -> None:
    pytest.importorskip("torch_to_nnef")
    try:
        run(blocks("docs/pytorch.md")[0], {})
    except URLError:
        pytest.skip("the exporter cannot fetch tract")


@pytest.mark.usefixtures("root")
def test_blocks_about_export_run_one_after_the_other() -> None:
    names: dict[str, Any] = {}
    for code in blocks("docs/export.md"):
        run(code, names)
    assert names["probabilities"].shape == (64, 10)
    assert names["y"].shape == (1, 2, 8)


@pytest.mark.usefixtures("root")
def test_results_of_a_dataset_are_read_as_the_page_says() -> None:
    text = (DOCS / "batch.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^nnef-jax (batch examples/.*)$", text, re.MULTILINE)
    assert cli.main([*command.split(), "--no-cache"]) == 0
    names: dict[str, Any] = {}
    (code,) = blocks("docs/batch.md")
    run(code, names)
    assert len(names["items"]) == 10
    assert names["probabilities"].shape == (10,) and names["probabilities"].argmax() == 7


@pytest.mark.usefixtures("root")
def test_recipes_for_looking_inside_are_short_and_do_what_they_say() -> None:
    names: list[dict[str, Any]] = []
    for code in blocks("docs/inside.md"):
        lines = [line for line in code.splitlines() if line and "import " not in line]
        assert len(lines) <= 25
        names.append({})
        run(code, names[-1])
    cam, patching, freezing, quantised = names
    heat = np.asarray(cam["heat"])
    assert heat.shape == (8, 8) and heat.min() == 0 < heat.max()
    np.testing.assert_allclose(cam["many"][1], heat, rtol=1e-4, atol=1e-6)
    assert patching["wanted"].argmax() == 1
    assert np.ptp(patching["effect"]) > 1
    model, corrupt, inside = (patching[name] for name in ("model", "corrupt", "inside"))
    np.testing.assert_allclose(model(corrupt, edit=inside), patching["wanted"], rtol=1e-4)
    for trained in (freezing, quantised):
        assert trained["losses"][-1] < 0.7 * trained["losses"][0]
    saved, plain = nnef_jax.load("tuned.nnef.tgz").params, freezing["model"].params
    changed = {label for label in plain if not np.array_equal(saved[label], plain[label])}
    assert changed == {"linear_filter", "linear_bias"}
    again = nnef_jax.load("trained.nnef.tgz").cut(outputs=["logits"])(quantised["scans"])
    assert again.argmax(1).tolist() == list(range(10))


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    "library", ["optax", "orbax.checkpoint", "equinox", "flax.nnx", "flax.linen"]
)
def test_recipes_for_training_run_where_the_library_is(library: str) -> None:
    pytest.importorskip(library)
    (code,) = (
        x
        for x in blocks("docs/training.md")
        if re.search(rf"{library}|{library.replace('.', ' import ')}", x)
    )
    names: dict[str, Any] = {}
    with jax.numpy_dtype_promotion("standard"):  # which optax needs
        run(code, names)
    if library == "optax":
        assert names["losses"][-1] < names["losses"][0]
        saved, plain = (
            nnef_jax.load(x).params for x in ("tuned.nnef.tgz", "examples/digits/model")
        )
        assert all(not np.array_equal(saved[label], x) for label, x in plain.items())
    elif library == "orbax.checkpoint":
        model, x = names["model"], np.ones((2, 2, 12), np.float32)
        wanted = model.apply({k: 2 * v for k, v in names["arrays"]["params"].items()}, x)
        np.testing.assert_allclose(model(x), wanted, rtol=1e-5)
    else:
        assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(names["slope"]))


def test_every_page_with_python_is_run() -> None:
    pages = {path.name for path in DOCS.glob("*.md") if blocks(f"docs/{path.name}")}
    # test_sharding runs devices.md, by a program that has eight of them.
    assert pages == {
        "batch.md",
        "devices.md",
        "export.md",
        "extending.md",
        "inside.md",
        "pytorch.md",
        "training.md",
    }


def test_each_promise_of_security_names_a_test_that_is_there() -> None:
    text = (DOCS / "security.md").read_text(encoding="utf-8")
    tests = Path(__file__).resolve().parents[1]
    named = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", text)
    assert len(named) >= 10
    for file, function in named:
        assert f"def {function}(" in (tests / file).read_text(encoding="utf-8"), function
    for module in re.findall(r"`python -m tests\.(\w+)`", text):
        assert (tests / f"{module}.py").is_file()
