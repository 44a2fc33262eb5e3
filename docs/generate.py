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
from tests import torch_networks  # noqa: E402
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

The {count} operations of NNEF 1.0, what each is here, and what is tested of it. Nobody typed the
tables: `python docs/generate.py` takes them from `tests/op_cases` ({cases} rows, each a use of an
operation) and from which rows `tests/operations/test_operations.py` compares. "yes" is
at least one row, "-" is where the question does not arise.

- **kind**: a primitive, or a compound operation that the standard defines by others.
- **run by**: a rule of its own, its definition (expanded to the operations in it), or the graph's
  own structure: inputs, parameters and state.
- **cases**: rows of the table: shapes, attributes, border modes, numbers of dimensions.
- **value**: equal to a slow interpreter in 64 bits, which is written from the standard alone.
- **expansion**: the rule equal to the definition. Primitives have none; an operation that is run
  by its definition has no rule to compare.
- **jit**: compiled equal to operation by operation.
- **vmap**: a batch equal to a loop.
- **gradient**: forward and reverse mode equal to central differences of the interpreter in 64
  bits; or why there is no gradient to compare.
- **bfloat16**: within what eight bits of precision allow. Compared where there is a gradient,
  that is, where a small change of the input is a small change of the result; not for `pow`, which
  magnifies it.
- **OpenVX**: what every OpenVX that imports networks must run of the operation (its feature set
  vx_khr_nnef_import); here nothing is left out ([openvx.md](openvx.md)).

Values, batches and gradients are those of runs that edit each tensor and change nothing; what they
capture is equal to the outputs bit by bit, and gradients pass through it.

"yes" is said of the rows that can be compared: a maximum of equal values, say, has no central
difference.

`external`, `variable` and `update` are tested with the networks around them, in
`tests/execution/test_model.py` and `tests/execution/test_recurrent.py`, `constant` in
`tests/operations/test_numerics.py`.
"""

_TRACT = """\
# Operations of tract's registries

What torch_to_nnef and tract write beside the operations of NNEF 1.0
([operations.md](operations.md)), registry by registry, and those of NNEF that tract reads in
another way (`tract_nnef`). Written by `python docs/generate.py` from the declarations in
`nnef_jax/formats/tract` and from `tests/op_cases/tract` ({cases} rows, each a use of an operation).
Where tract reads an operation as NNEF does, rows of NNEF's table count too.

- **kind**: the kinds that it becomes in the graph, a part of the graph's structure (inputs,
  variables, types, shapes, state), its definition, or refused, with the reason.
- **cases**: rows of the table.
- **value**: equal to a slow interpreter in 64 bits, written from the description of the operation.
- **jit**, **vmap**: compiled equal to operation by operation; a batch equal to a loop.
- **gradient**: forward and reverse mode equal to central differences of the interpreter; or why
  there is none to compare.
- **float16**: within 1 % of the exact result.

Batches and gradients are those of runs that edit each tensor and change nothing, and capture what
they return.

What is structure is tested by the documents of `tests/formats/test_tract_*.py`.
"""

_ERRORS = """\
# Error messages

Twenty documents as one may write them, and what `nnef_jax.load` says. A message gives the place,
what was found there, what is expected, the fragments it was reached through, and a hint how to
mend it. Errors that do not depend on each other are reported at once, by `nnef-jax check` too.

The documents are in `tests/wrong_documents.py`; a test holds each message to its place and to the
words that it takes to mend the document. Tensor files are left out where nothing depends on them.
This page is written by `python docs/generate.py`, which loads the documents.
"""


_OPENVINO = """\
# OpenVINO's layers

The layers that are read, by their types. Nobody typed the table: `python docs/generate.py` takes it
from what `nnef-jax formats openvino` shows, and from the tests. A layer that is not in it is an
error that names all such layers of a network, with their lines.

- **versions**: those of documents. The operation sets have versions 10 and 11.
- **becomes**: the kinds of operations of the graph that it may become, a part of the graph's
  structure, or refused, with the reason. Operations that only broadcast operands, or hold a
  constant, are left out.
- **shown by**: the line in `tests/openvino` of a test of its results, against formulas in numpy.

"""


_ONNX = """\
# ONNX's operators

The operators that have a meaning here, by domain. Nobody typed the tables: `python
docs/generate.py` takes them from what `nnef-jax formats onnx` shows. An operator that has no row
runs by the function that the standard defines it by, as `Celu` and `Shrink` do. Without such a
function it is an error that names all such nodes of a network.

- **versions**: those of the operator set.
- **becomes**: the kinds of operations of the graph that it may become, or refused, with the reason.
  Operations that only broadcast operands, or hold a constant, are left out.
- **attributes**: those that the registry names. Code may read more, as `pads` of `Conv`.
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
