"""What imports what: one direction, nothing heavy on import, honest public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import nnef_jax

ROOT = Path(__file__).resolve().parents[2]


def imported(path: Path) -> set[str]:
    """The top-level packages that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize(
    "path", sorted((ROOT / "lowering").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_lowering_knows_neither_formats_nor_parsers(path: Path) -> None:
    assert not imported(path) & {"nnef_jax", "lark", "rich", "typer", "tests"}


@pytest.mark.parametrize("name", ["graph", "extents", "location", "errors", "registry", "builder"])
def test_the_graph_knows_no_jax(name: str) -> None:
    assert "jax" not in imported(ROOT / "lowering" / f"{name}.py")


@pytest.mark.parametrize("statement", ["import nnef_jax", "from nnef_jax import NnefError, Limits"])
def test_import_is_light(statement: str) -> None:
    code = f"import sys; {statement}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"jax", "jaxlib", "lark", "numpy", "rich", "typer"} & set(loaded.stdout.split())


def test_import_leaves_jax_as_it_is() -> None:
    code = (
        "import jax; before = dict(jax.config.values); import nnef_jax; nnef_jax.load;"
        "assert dict(jax.config.values) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_resolve_and_are_all_there_is() -> None:
    for name in nnef_jax.__all__:
        assert getattr(nnef_jax, name) is not None
    assert dir(nnef_jax) == sorted(nnef_jax.__all__) == sorted({*nnef_jax._HOMES, "__version__"})
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        nnef_jax.lode  # noqa: B018


def test_a_type_checker_sees_the_names_where_they_are_found() -> None:
    tree = ast.parse(Path(nnef_jax.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    for name in ("annotations", "import_module"):
        del seen[name]
    assert seen == nnef_jax._HOMES


def test_errors_are_one_tree() -> None:
    for name in nnef_jax.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(nnef_jax, name), nnef_jax.NnefError)
    assert issubclass(nnef_jax.NnefError, ValueError)


def test_package_data_is_there() -> None:
    formats = files("nnef_jax.formats")
    for path in ("nnef/grammar.lark", "nnef/provisional.nnef", "syntax/stdlib.nnef"):
        assert formats.joinpath(path).is_file()


@pytest.mark.parametrize("name", sorted(nnef_jax._HOMES))
def test_no_module_hides_a_public_name(name: str) -> None:
    """Importing a module makes it an attribute of the package, over a function of that name."""
    assert not (ROOT / "nnef_jax" / f"{name}.py").exists()
