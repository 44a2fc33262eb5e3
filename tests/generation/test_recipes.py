"""docs/language_model_recipes.md: each recipe runs, and agrees with PyTorch.

An exporter may need versions of packages that another one does not take. Each recipe runs where its
exporter is installed: `pip install torch "transformers<5" "torch_to_nnef[llm-tract]" optimum-onnx
onnxruntime-genai onnx_ir`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import ROOT, blocks, session

PAGE = "docs/language_model_recipes.md"
EXPORTERS = ("torch_to_nnef_llm", "optimum", "onnxruntime_genai")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of other libraries
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_recipe(exporter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ("torch", "transformers", exporter)
    for module in (*needs, "tokenizers"):
        pytest.importorskip(module)
    for path in ROOT.iterdir():
        if not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = [block for block, _ in session(PAGE, needs, programs=True)]
    assert sum(exporter in block.needs for block in done) >= 2


def test_each_recipe_compares_with_torch() -> None:
    """Each section runs an exporter, and checks what nnef_jax computes."""
    pages = blocks(PAGE)
    asked = {name for block in pages for name in block.needs}
    assert asked == {"torch", "transformers", *EXPORTERS}
    checks = [block for block in pages if "assert" in block.code]
    exports = [block for block in pages if block.language == "sh" and "pip" not in block.code]
    assert len(checks) == len(exports) == 5
