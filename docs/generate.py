"""Writes the pages of docs/ that are made from the tables that the tests run on.

python docs/generate.py            write them
python docs/generate.py --measure  and the table of docs/pytorch.md, which takes a minute
python docs/generate.py --check    write nothing; exit status 1 where one is not up to date
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from lowering.ops import rules  # noqa: E402
from nnef_jax.cli.formats import versions  # noqa: E402
from nnef_jax.flattening.operators.table import OperatorEntry  # noqa: E402
from nnef_jax.formats import operators_of  # noqa: E402
from nnef_jax.formats.syntax.standard import standard  # noqa: E402
from nnef_jax.formats.tract import declarations  # noqa: E402
from nnef_jax.formats.tract.operations import has_meaning  # noqa: E402
from nnef_jax.openvx.kernel_import import FEATURE_SET  # noqa: E402
from tests import list_kinds, torch_networks  # noqa: E402
from tests.formats import test_tract_operations  # noqa: E402
from tests.op_cases import NNEF, TRACT, OpCase  # noqa: E402
from tests.openvino.coverage import shown  # noqa: E402
from tests.openvino.layers import LEGACY, OPSETS  # noqa: E402
from tests.operation_checks import (  # noqa: E402
    few,
    is_batched,
    is_differentiated,
    is_narrowed,
    tract_kind,
)
from tests.operations import test_operations  # noqa: E402
from tests.wrong_documents import SECTIONS, WrongDocument, message  # noqa: E402

_OPERATIONS = """\
# Operations

This page lists the {count} operations of NNEF 1.0, and the tests of each. `python
docs/generate.py` writes the tables from `tests/op_cases` ({cases} rows, each a use of an operation)
and from the comparisons of `tests/operations/test_operations.py`. "yes" means at least one row. "-"
means that the test does not apply.

- **kind**: a primitive, or a compound operation that the standard defines by other operations.
- **run by**: a rule of its own, its definition (expanded to the operations in it), or the structure
  of the graph: inputs, parameters and state.
- **cases**: rows of the table: shapes, attributes, border modes, numbers of dimensions.
- **value**: the result equals that of a slow interpreter in 64 bits, which is written from the
  standard alone.
- **expansion**: the rule equals the definition. Primitives have no definition, and operations that
  are run by their definition have no rule.
- **jit**: the compiled operation equals the operation run by itself.
- **vmap**: a batch equals a loop.
- **gradient**: forward and reverse mode equal central differences of the interpreter in 64 bits;
  or the reason why there is no gradient to compare.
- **bfloat16**: the result is within eight bits of precision. It is compared if there is a gradient,
  so that a small change of the input causes a small change of the result. `pow` is not compared,
  since it magnifies the change.
- **OpenVX**: the part of the operation that every OpenVX with import of networks must run (its
  feature set vx_khr_nnef_import). Here nothing is left out ([openvx.md](openvx.md)).

Values, batches and gradients are compared in runs with an edit of each tensor that returns the
tensor unchanged. The captured tensors equal the outputs bit by bit, and gradients pass through the
edits.

A cell has "yes" if all test rows of the kind that can be compared passed. Some rows cannot be
compared: for example, a maximum of equal values has no central difference.

`external`, `variable` and `update` are tested with the networks around them, in
`tests/execution/test_model.py` and `tests/execution/test_recurrent.py`, `constant` in
`tests/operations/test_numerics.py`.
"""

_TRACT = """\
# Operations of tract's registries

This page lists the operations that torch_to_nnef and tract write besides those of NNEF 1.0
([operations.md](operations.md)), by registry. `tract_nnef` has the operations of NNEF that tract
reads differently. `python docs/generate.py` writes the page from the declarations in
`nnef_jax/formats/tract` and from `tests/op_cases/tract` ({cases} rows, each a use of an operation).
If tract reads an operation as NNEF does, rows of NNEF's table count too.

- **kind**: the kinds that the operation becomes in the graph, a part of the graph's structure
  (inputs, variables, types, shapes, state), its definition, or refused, with the reason.
- **cases**: rows of the table.
- **value**: the result equals that of a slow interpreter in 64 bits, which is written from the
  description of the operation.
- **jit**, **vmap**: the compiled operation equals the operation run by itself; a batch equals a
  loop.
- **gradient**: forward and reverse mode equal central differences of the interpreter; or the reason
  why there is no gradient to compare.
- **float16**: within 1 % of the exact result.

Batches and gradients are compared in runs with an edit of each tensor that returns it unchanged,
and capture the results.

Operations that are structure are tested by the documents of `tests/formats/test_tract_*.py`.
"""

_ERRORS = """\
# Error messages

This page shows twenty wrong documents, and the messages of `nnef_jax.load` for them. A message has
the place of the error, what the document has there, what is expected there, and a hint for the
correction. If the place is in a fragment, the message also has the calls of fragments that lead to
this place. Errors that do not depend on each other are reported together, by `load` and by
`nnef-jax check`.

The documents are in `tests/wrong_documents.py`. A test checks that each message has the right
place, and the words that are needed to correct the document. A document has tensor files only if
the error depends on these files. `python docs/generate.py` loads the documents and writes this
page.
"""


_OPENVINO = """\
# OpenVINO's layers

This page lists the layers of OpenVINO that are read, by type. `python docs/generate.py` writes the
table from the output of `nnef-jax formats openvino` and from the tests. If a network has layers
that are not in the table, one error names them all, with their lines.

- **versions**: versions of documents. The operation sets have versions 10 and 11.
- **becomes**: the kinds of operations that the layer may become in the graph, a part of the graph's
  structure, or refused, with the reason. Operations that only broadcast operands or hold a constant
  are left out.
- **shown by**: the line in `tests/openvino` of a test that compares results with formulas in numpy.

"""


_ONNX = """\
# ONNX's operators

This page lists the operators of ONNX that have a meaning here, by domain. `python
docs/generate.py` writes the tables from the output of `nnef-jax formats onnx`. If the standard
defines an operator by a function, such as `Celu` or `Shrink`, the operator needs no row: the
function is run. If a network has other operators without a row, one error names all their nodes.

- **versions**: versions of the operator set.
- **becomes**: the kinds of operations that the operator may become in the graph, or refused, with
  the reason. Operations that only broadcast operands or hold a constant are left out.
- **attributes**: attributes that the registry names. Code may read more, as `pads` of `Conv`.
  `nnef-jax formats OPERATOR` shows types and defaults.

"""


def operations() -> str:
    """The text of docs/operations.md."""
    parts = [_OPERATIONS.format(count=len(standard()), cases=len(NNEF))]
    for family, names in _families():
        header = ("operation", "kind", "run by", "cases", *_TESTS, "gradient", "bfloat16", "OpenVX")
        parts.append(f"## {family}\n\n{_table([header, *map(_row, names)])}")
    return "\n".join(parts)


def tract_operations() -> str:
    """The text of docs/tract_operations.md."""
    parts = [_TRACT.format(cases=len(TRACT))]
    for name in declarations.REGISTRIES:
        header = ("operation", "kind", "cases", *_TRACT_TESTS, "gradient", "float16")
        rows = [_tract_row(operation) for operation in declarations.registry(name)]
        rows += [_refused(o, why) for o, why in declarations.REFUSED.items() if _is_in(o, name)]
        parts.append(f"## {name}\n\n{_table([header, *rows])}")
    aliases = "\n".join(f"- `{a}` is `{b}`" for a, b in declarations.ALIASES.items())
    return "\n".join([*parts, "## Other names\n", aliases, ""])


def errors() -> str:
    """The text of docs/errors.md."""
    parts = [_ERRORS]
    for section, documents in SECTIONS.items():
        parts.append(f"## {section}\n")
        parts += map(_wrong, documents)
    return "\n".join(parts)


def pytorch() -> str:
    """The text of docs/pytorch.md: what is written there, with the table measured anew."""
    page = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
    begin, end = "<!-- table: tests/torch_networks -->\n", "<!-- end of table -->"
    before, rest = page.split(begin)
    return f"{before}{begin}\n{_table(torch_networks.rows())}\n{end}{rest.split(end)[1]}"


def _families() -> Iterator[tuple[str, list[str]]]:
    """The headings of stdlib.nnef with the operations below them."""
    text = files("nnef_jax.formats.syntax").joinpath("stdlib.nnef").read_text(encoding="utf-8")
    for section in text.split("\n\n\n# ")[1:]:
        heading, body = section.split("\n", 1)
        yield heading, re.findall(r"^fragment (\w+)", body, re.MULTILINE)


def _counted(cases: Iterable[OpCase]) -> Counter[str]:
    return Counter(case.operation for case in cases)


def _tests(cases: Sequence[OpCase]) -> dict[str, Counter[str]]:
    """How many rows of each operation a test compares, slow tests counted."""
    batched = _counted(filter(is_batched, cases))
    return {"value": _counted(cases), "jit": _counted(few(cases, 1)), "vmap": batched}


_NNEF_ENTRIES = {x.name: x for x in operators_of("nnef")}
_ALL = _counted(NNEF)
_TESTS = {"expansion": _counted(test_operations.COMPOUND), **_tests(NNEF)}
_GRADIENT = _counted(filter(is_differentiated, NNEF))
_BFLOAT16 = _counted(filter(is_narrowed, NNEF))


def _row(name: str) -> tuple[str, ...]:
    kind = "compound" if standard()[name].body is not None else "primitive"
    role = _NNEF_ENTRIES[name].role
    run_by = "rule" if role == "operation" else role
    columns = ["yes" if counter[name] else "-" for counter in _TESTS.values()]
    return (
        f"`{name}`",
        kind,
        run_by,
        str(_ALL[name]) if _ALL[name] else "-",
        *columns,
        "yes" if _GRADIENT[name] else _why_not(name),
        "yes" if _BFLOAT16[name] else "-" if not _ALL[name] else "no",
        FEATURE_SET.get(name, "-"),
    )


def _why_not(name: str) -> str:
    rule = rules.get(name)
    if rule is not None and rule.not_differentiable:
        return f"no: {rule.not_differentiable}"
    reasons = {case.not_differentiable: None for case in NNEF if case.operation == name}
    return f"no: {', '.join(reasons)}" if reasons else "-"


_TRACT_ENTRIES = {x.name: x for x in operators_of("tract")}
_TRACT_CASES = [*TRACT, *test_tract_operations.ALIKE]
_TRACT_ALL = _counted(_TRACT_CASES)
_TRACT_TESTS = _tests(_TRACT_CASES)
_TRACT_GRADIENT = _counted(filter(is_differentiated, _TRACT_CASES))
_FLOAT16 = _counted(filter(is_narrowed, _TRACT_CASES))


def _tract_row(name: str) -> tuple[str, ...]:
    entry = _TRACT_ENTRIES[name]
    if not _TRACT_ALL[name]:
        return (f"`{name}`", _becomes(entry), *["-"] * 6)
    reason = rules[tract_kind(name)].not_differentiable if has_meaning(name) else ""
    reasons = {c.not_differentiable for c in _TRACT_CASES if c.operation == name} - {""}
    why_not = f"no: {reason or ', '.join(sorted(reasons))}"
    return (
        f"`{name}`",
        _becomes(entry),
        str(_TRACT_ALL[name]),
        *("yes" if counter[name] else "-" for counter in _TRACT_TESTS.values()),
        "yes" if _TRACT_GRADIENT[name] else why_not,
        "yes" if _FLOAT16[name] else "-",
    )


def _becomes(entry: OperatorEntry) -> str:
    """Return the kinds of an operator, or what else becomes of it."""
    if entry.role == "refused":
        return f"refused: {entry.refusal}"
    kinds = [f"`{kind}`" for kind in entry.kinds]
    return entry.role if entry.role != "operation" else ", ".join(kinds) or "-"


def _refused(name: str, why: str) -> tuple[str, ...]:
    return (f"`{name}`", f"refused: {why.split(':')[0]}", *["-"] * 6)


def _is_in(name: str, registry: str) -> bool:
    return declarations.registry_of(name) == registry


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        + " |\n"
        for row in rows
    ]
    return "".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|\n", *lines[1:]])


def _wrong(document: WrongDocument) -> str:
    title = document.name.replace("_", " ").capitalize()
    lines = [f"### {title}\n", f"{document.mistake}\n", f"```\n{document.text}```\n"]
    for label, shape in document.tensors.items():
        extents = ",".join(map(str, shape))
        lines.append(f"Beside it is `{label}.dat`, a tensor of shape [{extents}].\n")
    if document.call:
        lines.append(f"It is called by `{document.call}`.\n")
    return "\n".join([*lines, f"```\n{message(document)}\n```\n"])


def openvino_layers() -> str:
    """The layers of OpenVINO that are read, with the tests that show them."""
    rows = [(f"`{x.name}`", versions(x), _becomes(x), _shown(x)) for x in operators_of("openvino")]
    return _OPENVINO + _table([("layer", "versions", "becomes", "shown by"), *rows])


def _shown(entry: OperatorEntry) -> str:
    """Return the place of a test in any version of an entry."""
    is_new = entry.until is None
    version = OPSETS if is_new and entry.since > LEGACY else LEGACY
    place = shown(entry.name, version) or (shown(entry.name, OPSETS) if is_new else "")
    return f"`{place.removeprefix('tests/openvino/')}`" if place else "-"


def onnx_operators() -> str:
    """The operators of ONNX, a table for each domain."""
    parts = [_ONNX]
    for domain, entries in groupby(operators_of("onnx"), lambda x: x.domain):
        rows = [(f"`{x.name}`", versions(x), _becomes(x), _attributes(x)) for x in entries]
        heads = ("operator", "versions", "becomes", "attributes")
        parts.append(f"## {domain or 'The standard'}\n\n{_table([heads, *rows])}\n")
    return "".join(parts).removesuffix("\n")


def _attributes(entry: OperatorEntry) -> str:
    return ", ".join(f"`{x.name}`" for x in entry.attributes) or "-"


GENERATED: dict[str, Callable[[], str]] = {
    "operations.md": operations,
    "tract_operations.md": tract_operations,
    "errors.md": errors,
    "openvino_layers.md": openvino_layers,
    "onnx_operators.md": onnx_operators,
    "list_kinds.md": lambda: list_kinds.page(_table),
}
# Not compared: tests/execution/test_torch_networks.py holds the package to what the table says.
MEASURED: dict[str, Callable[[], str]] = {"pytorch.md": pytorch}


def main(arguments: Sequence[str]) -> int:
    """Write the documents, or say which are out of date; the exit status."""
    stale = 0
    check = "--check" in arguments
    for name, text in (GENERATED | (MEASURED if "--measure" in arguments else {})).items():
        path = ROOT / "docs" / name
        written = path.read_text(encoding="utf-8") if path.exists() else ""
        if written == text():
            continue
        if check:
            print(f"docs/{name} is not up to date: run python docs/generate.py")
            stale = 1
        else:
            path.write_text(text(), encoding="utf-8")
            print(f"docs/{name} written")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
