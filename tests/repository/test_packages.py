"""What imports what: one direction, nothing heavy on import, honest public names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import lowering
import nnef_jax
from nnef_jax import formats

ROOT = Path(__file__).resolve().parents[2]


@cache
def imports(path: Path, *, run: bool = False) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a module, anywhere in it: all, or those that are run."""
    found: list[ast.Import | ast.ImportFrom] = []
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif not (run and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            pending += [x for x in ast.iter_child_nodes(node) if not isinstance(x, ast.expr)]
    return found


def imported(path: Path) -> set[str]:
    """The top-level packages that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in imports(path):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        else:
            found.add((node.module or "").split(".")[0])
    return found


def test_lowering_knows_neither_formats_nor_parsers() -> None:
    beyond = {"nnef_jax", "lark", "rich", "typer", "tests"}
    found = {path: imported(path) & beyond for path in (ROOT / "lowering").rglob("*.py")}
    assert len(found) > 100
    assert {path: x for path, x in found.items() if x} == {}


def test_the_graph_knows_no_jax() -> None:
    names = ("graph", "extents", "location", "errors", "registry", "builder")
    found = {name: imported(ROOT / "lowering" / f"{name}.py") for name in names}
    assert {name for name, modules in found.items() if "jax" in modules} == set()


def test_three_modules_use_what_jax_may_change() -> None:
    found: set[str] = set()
    for name, path in modules_of_both().items():
        for node in imports(path):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            if any(f"{x}.".startswith("jax.extend.") for x in names):
                found.add(name)
    family = {"jaxprs", "jaxpr_evaluation", "primitives"}
    assert found == {f"lowering.{name}" for name in family}


def modules_of_both() -> dict[str, Path]:
    """The modules of both packages by name."""
    paths = [
        path for package in ("nnef_jax", "lowering") for path in (ROOT / package).rglob("*.py")
    ]
    names = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in paths}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def dependencies() -> dict[str, set[str]]:
    """What each module imports, anywhere in it; a package does not depend on what is in it.

    A name that a package has of a module is had from that module.
    """
    modules, found = modules_of_both(), dict[str, set[str]]()
    homes = {
        f"{package}.{alias.asname or alias.name}": node.module or ""
        for package, path in modules.items()
        if path.name == "__init__.py"
        for node in imports(path)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for module, path in modules.items():
        wanted: set[str] = set()
        for node in imports(path, run=True):
            if isinstance(node, ast.Import):
                wanted.update(alias.name for alias in node.names)
            elif node.module:
                wanted.update(f"{node.module}.{alias.name}" for alias in node.names)
                wanted.add(node.module)
        wanted |= {homes[name] for name in wanted & homes.keys()}
        inside = f"{module}." if path.name == "__init__.py" else f"{module}:"
        found[module] = {
            x for x in wanted & modules.keys() if x != module and not x.startswith(inside)
        }
    return found


def circles(graph: dict[str, set[str]]) -> list[str]:
    """The modules that lead to themselves."""

    def leads_back(module: str) -> bool:
        reached, pending = set[str](), [module]
        while pending:
            new = graph[pending.pop()] - reached
            reached |= new
            pending += new
        return module in reached

    return sorted(filter(leads_back, graph))


def crossings(graph: dict[str, set[str]]) -> list[str]:
    """Imports of a format by another one, or by what formats share."""

    def format_of(module: str) -> str:
        parts = module.split(".")
        return parts[2] if parts[:2] == ["nnef_jax", "formats"] and len(parts) > 2 else ""

    shared = ("", "base", "syntax")
    return sorted(
        f"{module} imports {other}"
        for module, imports in graph.items()
        for other in imports
        if format_of(module) and format_of(other) not in (*shared, format_of(module))
    )


def test_modules_are_in_layers() -> None:
    graph = dependencies()
    assert len(graph) > 150
    assert circles(graph) == []
    assert crossings(graph) == []


def test_layers_are_told() -> None:
    graph = dependencies()
    # By `from nnef_jax import Model`.
    assert "nnef_jax.model" in graph["nnef_jax.analysis.layer_tensors"]
    graph["nnef_jax.errors"].add("nnef_jax.model")
    assert {"nnef_jax.errors", "nnef_jax.model", "nnef_jax.reading.network"} <= {*circles(graph)}
    graph["nnef_jax.formats.tract.frontend"].add("nnef_jax.formats.nnef.parser")
    graph["nnef_jax.formats.syntax.tree"].add("nnef_jax.formats.nnef.parser")
    assert len(crossings(graph)) == 2


def test_one_list_names_the_formats() -> None:
    named = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "nnef_jax").rglob("*.py")
        for format in formats.FORMATS
        if f"formats.{format}" in path.read_text() and f"formats/{format}/" not in str(path)
    ]
    assert {*named} == {"nnef_jax/formats/__init__.py"}


def test_import_is_light() -> None:
    code = "import sys, nnef_jax; from nnef_jax import NnefError, Limits; print(*sys.modules)"
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


# What changes jax or the environment for all threads of a process, user's ones too.
_CHANGES = (
    r"config\.(update|_set|set_global|parse_flags_with_absl)\(|\.set_global\("
    r"|setattr\((jax\.)?config|config\.jax_\w+ = "
    r"|environ(\[[^]]*\] (=|\|=)|\.(update|setdefault|pop|popitem|clear)\()|del os\.environ"
    r"|\b(putenv|unsetenv)\("
)


def changes(source: str) -> list[str]:
    """The statements of a source, without texts and comments, that change what others have."""
    if not re.search("config|environ|set_global|putenv|unsetenv", source):
        return []  # a part of every change
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return [line for line in ast.unparse(tree).splitlines() if re.search(_CHANGES, line)]


@pytest.mark.parametrize(
    "source",
    [
        "jax.config.update('jax_enable_x64', True)",
        "config.update(setting, 0)",
        "setattr(jax.config, name, 1)",
        "jax.config.jax_enable_x64 = True",
        "os.environ['XLA_FLAGS'] = flags",
        "os.environ.setdefault('XLA_FLAGS', flags)",
        "del os.environ['XLA_FLAGS']",
        "os.putenv('XLA_FLAGS', flags)",
    ],
)
def test_changes_are_told(source: str) -> None:
    assert changes(f"def f(flags):\n    {source}")
    assert not changes(f"def f(flags):\n    return jax.config.jax_enable_x64, {source!r}")


def test_nothing_changes_jax_or_the_environment() -> None:
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules_of_both().items()}
    found = {name: changes(text) for name, text in texts.items()}
    # `nnef-jax cost --topology` chooses jax's platform for its own process.
    assert [x.strip() for x in found.pop("nnef_jax.cli.measure")] == [
        "os.environ.setdefault('', '')"
    ]
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_public_names_resolve_and_are_all_there_is() -> None:
    for name in nnef_jax.__all__:
        assert getattr(nnef_jax, name) is not None
    assert dir(nnef_jax) == sorted(nnef_jax.__all__) == sorted({*nnef_jax._HOMES, "__version__"})
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        nnef_jax.lode  # noqa: B018


@pytest.mark.parametrize("package", [nnef_jax, lowering])
def test_a_type_checker_sees_the_names_where_they_are_found(package: Any) -> None:
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    ours = {"annotations", "imported", "uncollected"}
    assert {name: home for name, home in seen.items() if name not in ours} == package._HOMES


def test_errors_are_one_tree() -> None:
    for name in nnef_jax.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(nnef_jax, name), nnef_jax.NnefError)
    assert issubclass(nnef_jax.NnefError, ValueError)


def test_package_data_is_there() -> None:
    formats = files("nnef_jax.formats")
    for path in ("syntax/grammar.lark", "nnef/provisional.nnef", "syntax/stdlib.nnef"):
        assert formats.joinpath(path).is_file()
    assets = files("nnef_jax.viewing").joinpath("assets")
    for path in ("page.html", "style.css", "app.js", "dagre.min.js", "dagre.LICENSE"):
        assert assets.joinpath(path).is_file()


def test_no_module_hides_a_public_name() -> None:
    """Importing a module makes it an attribute of the package, over a function of that name."""
    assert [x for x in nnef_jax._HOMES if (ROOT / "nnef_jax" / f"{x}.py").exists()] == []
