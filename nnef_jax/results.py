"""The base class of results of measurements and analyses, with its tables and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from html import escape
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import jax
import numpy as np
from numpy.typing import NDArray

from lowering.extents import show
from nnef_jax.errors import extra_missing
from nnef_jax.wording.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table
else:
    # matplotlib and rich are imported when a result is shown.
    Axes = Any
    Table = Any

_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_R = TypeVar("_R", bound="Result")


def static(default: object = ...) -> Any:
    """Declare a static field of a class that `result` decorates.

    jax makes a static field part of the tree structure, so its value must be hashable. If no
    default is passed, the field has no default.
    """
    metadata = {"static": True}
    has_no_default = default is ...  # None may be a default
    if has_no_default:
        return field(metadata=metadata)
    return field(metadata=metadata, default=default)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(static,)
)
def result(cls: type[_R]) -> type[_R]:
    """Turn a class into a frozen dataclass and into a pytree of its non-static fields.

    Functions that return such results can be jitted and mapped. `jax.vmap` adds a first axis to the
    arrays of a result.
    """
    frozen = dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
    return jax.tree_util.register_dataclass(frozen)


class Result:
    """The result of a measurement or an analysis; each function returns a subclass.

    - Fields are read-only attributes. Measured arrays are fields, such as `values`; the result
      itself is no array.
    - `str` and `print` give a table, and a notebook shows the same table. `table()` returns it as a
      table of `rich`, with options in some classes.
    - `to_dict()` returns values that JSON can hold.
    - `plot(ax=None)`, in classes with a picture, draws on axes of matplotlib and returns them.
    - Results can be pickled and copied.
    - The result of a pure function of arrays is a pytree: the function can be jitted and mapped.
      `jax.vmap` adds a first axis to all arrays. A table cannot show this axis. Take the result at
      one index before printing: `print(jax.tree.map(lambda x: x[0], results))`.
    """

    def to_dict(self) -> dict[str, object]:
        """Return the fields as values that JSON can hold.

        Arrays become lists, and NaN becomes the string "NaN".
        """
        return {field.name: plain(getattr(self, field.name)) for field in _fields(self)}

    def table(self) -> Table:
        """Return the result as a table of the package `rich`."""
        raise NotImplementedError

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        return text_of(self.table())

    def _repr_html_(self) -> str:
        return html_of(self.table())

    def __repr__(self) -> str:
        shown = [f"{field.name}={_short(getattr(self, field.name))}" for field in _fields(self)]
        return f"{type(self).__name__}({', '.join(shown)})"


def table_of(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return a table from rows of cells.

    Columns of numbers are right-aligned, and None is an empty cell.

    Args:
        title: the line above the table.
        columns: the heads of the columns.
        rows: cells in the order of the columns. A cell is a text, a number, or an object that is
            shown by `str`.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows_of_cells = [list(map(_without_numpy, row)) for row in rows]
    table = Table(title=Text(printable(title)), title_justify="left", box=box.SIMPLE_HEAD)
    for index, head in enumerate(columns):
        cells_of_column = [row[index] for row in rows_of_cells]
        filled_cells = [cell for cell in cells_of_column if cell is not None]
        are_numbers = all(isinstance(cell, int | float) for cell in filled_cells)
        justify = "right" if filled_cells and are_numbers else "left"
        table.add_column(Text(head), justify=justify, no_wrap=True)
    for row in rows_of_cells:
        table.add_row(*[Text(printable(number(cell))) for cell in row])
    return table


def _without_numpy(cell: Any) -> Any:
    """Convert an array of one number to a number of Python. Other cells are returned unchanged."""
    return cell.item() if hasattr(cell, "item") else cell


def text_of(table: Table) -> str:
    """Return a table as text, or only its title if the table has no rows."""
    from rich.console import Console

    # The title is printed separately, because rich would wrap a title that is wider than the table.
    title = str(table.title)
    table.title = None
    if not table.row_count:
        return title
    console = Console(file=StringIO(), width=1000)
    console.print(table)
    assert isinstance(console.file, StringIO)
    lines = [title, *console.file.getvalue().rstrip().splitlines()]
    return "\n".join(line.rstrip() for line in lines)


def html_of(table: Table) -> str:
    """Return a table as HTML, with a scroll bar if the page is narrower than the table."""

    def row(tag: str, cells: Iterable[object]) -> str:
        """Return a row of a table. `tag` is the tag of the cells: "th" in the head, or "td"."""
        texts: list[str] = []
        for column, cell in zip(table.columns, cells, strict=True):
            style = f'style="text-align: {column.justify}"'
            texts.append(f"<{tag} {style}>{escape(str(cell))}</{tag}>")
        return f"<tr>{''.join(texts)}</tr>"

    head = ""
    if table.show_header:
        head = row("th", [column.header for column in table.columns])
    cells_by_column = [column.cells for column in table.columns]
    rows = [row("td", cells) for cells in zip(*cells_by_column, strict=True)]
    body = ""
    if rows:
        sections = f"<thead>{head}</thead><tbody>{''.join(rows)}</tbody>"
        body = f'<table style="white-space: pre">{sections}</table>'
    title = f'<p style="overflow-wrap: anywhere">{escape(str(table.title))}</p>'
    return f'<div style="overflow-x: auto">{title}{body}</div>'


def number(value: object) -> str:
    """Return the text of a table cell; a float is shown with five significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def plain(value: Any) -> Any:
    """Convert a value for JSON: arrays become lists, and NaN and infinities become strings."""
    if isinstance(value, Result):
        return value.to_dict()
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in _fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _plain_array(np.asarray(value))
    if isinstance(value, float):
        return value if np.isfinite(value) else _NOT_FINITE[str(value)]
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def _plain_array(array: NDArray[Any]) -> Any:
    """Convert an array for JSON, item by item only if it has objects, NaN or infinities."""
    if array.dtype == object:
        return plain(array.tolist())
    is_integer_or_bool = array.dtype.kind in "biu"
    if not is_integer_or_bool:
        array = array.astype(np.float64)
    if np.isfinite(array).all():
        return array.tolist()
    return plain(array.tolist())


def axes(ax: Axes | None = None, size: tuple[float, float] = (6.4, 4.8)) -> Axes:
    """Return the axes of matplotlib to draw on: `ax`, or the axes of a new figure.

    `size` is the width and height of a new figure in inches. The right and top spines are hidden.
    Raises UnsupportedError if matplotlib is missing.
    """
    target: Any = ax
    if ax is None:
        _figure, target = plotting("pyplot").subplots(figsize=size, layout="constrained")
    target.spines[["top", "right"]].set_visible(False)
    return target


def plotting(module: str) -> Any:
    """Import and return a module of matplotlib. Raise UnsupportedError if matplotlib is missing."""
    try:
        import_module("matplotlib")
        return import_module(f"matplotlib.{module}")
    except ImportError:
        raise extra_missing("a picture needs matplotlib", "plot") from None


def literally(name: str) -> str:
    """Escape the dollar signs in a name, since matplotlib uses them to delimit formulas."""
    return printable(name).replace("$", r"\$")


def _fields(value: Any) -> tuple[Any, ...]:
    """Return the fields of a dataclass. A type checker does not know that `Result` is one."""
    return fields(value)


def _short(value: Any) -> str:
    """Return the type of an array as text, or the first 80 characters of another value's repr."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{show(value.shape)}"
    return f"{value!r:.80}"
