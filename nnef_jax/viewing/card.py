"""Shows a network in a notebook as a card with groups that unfold. The card needs no script."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any

from lowering.extents import show
from nnef_jax.reading.network import Network
from nnef_jax.viewing.data import page_data

_ROWS = 200  # A card shows at most this many operations and groups.
_MOST_PORTS = 100  # A card shows at most this many inputs, states and outputs each.
_Node = Mapping[str, Any]

# The style sets few colours. The card therefore takes the colours of the notebook, which may be
# light or dark.
_STYLE = """
.nnef-card { font: 13px/1.6 system-ui, sans-serif; max-width: 720px; padding: 10px 14px;
  border: 1px solid rgb(128 128 128 / 30%); border-radius: 10px; }
.nnef-card small { opacity: .65; }
.nnef-card p { margin: 0 0 4px; }
.nnef-card details > *:not(summary) { margin-left: 18px; }
.nnef-card summary { cursor: pointer; }
.nnef-card .leaf { padding-left: 15px; }
.nnef-card .leaf .row { width: calc(100% - 4px); }
.nnef-card .row { display: inline-grid; grid-template-columns: 1fr 90px 90px 64px; gap: 0 12px;
  width: calc(100% - 18px); align-items: center; vertical-align: top; }
.nnef-card .row > * { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.nnef-card .number { text-align: right; font-variant-numeric: tabular-nums; opacity: .75; }
.nnef-card i { height: 4px; border-radius: 2px; background: #5b84f0; }
"""


def card(network: Network) -> str:
    """Return a network as HTML: inputs, outputs, and operations in groups that unfold.

    The card has at most 200 rows. If rows are left out, it tells how many. `nnef_jax.view` shows
    all operations.
    """
    data = page_data(network)
    nodes: list[_Node] = data["nodes"]
    title = f"<b>{_escaped(data['name'])}</b> <small>{_escaped(data['dialect'])}</small>"
    counts: list[str] = []
    for name in ("operations", "parameters", "multiply_adds"):
        total = data["totals"][name]
        unit = name.replace("_", "-")
        counts.append(f"{total:,} {unit}")
    lines = [title, ", ".join(counts)]
    for type in ("input", "state", "output"):
        ports = [node for node in nodes if _is_port(nodes, node, type)]
        if ports:
            lines.append(_escaped(_ports_line(data, type, ports)))
    head = "".join(f"<p>{line}</p>" for line in lines)
    column_names = _number("parameters") + _number("multiply-adds")
    columns = f'<div class="leaf"><span class="row"><span></span>{column_names}</span></div>'
    root = 0  # The first node is the group of all operations.
    rows = "".join(_Rows(nodes).of_group(root))
    return f'<div class="nnef-card"><style>{_STYLE}</style>{head}{columns}{rows}</div>'


class _Rows:
    """The rows of a card, of which at most `_ROWS` are shown."""

    def __init__(self, nodes: list[_Node]) -> None:
        self._nodes = nodes
        root = nodes[0]
        self._total_work = max(1, root["multiply_adds"])
        self._remaining = _ROWS
        # The keys are indices of groups. The values are the indices of a group's members.
        self._members: dict[int, list[int]] = {}
        for index, node in enumerate(nodes[1:], start=1):
            self._members.setdefault(node["parent"], []).append(index)

    def of_group(self, group: int) -> Iterator[str]:
        """Yield the rows of a group as HTML.

        The group's members have rows, and so have the members of groups inside the group.
        """
        members = self._members.get(group, ())
        candidates = [index for index in members if _is_row(self._nodes[index])]
        visible = candidates[: self._remaining]
        # The rows of all visible members are subtracted first. If a visible member is a group, the
        # members of this group get the rows that remain.
        self._remaining -= len(visible)
        for index in visible:
            node = self._nodes[index]
            row = _row(node, self._total_work)
            if node["type"] == "operation":
                yield f'<div class="leaf">{row}</div>'
            else:
                inner_rows = "".join(self.of_group(index))
                yield f"<details><summary>{row}</summary>{inner_rows}</details>"
        omitted = len(candidates) - len(visible)
        if omitted:
            yield f'<div class="leaf"><small>and {omitted:,} more</small></div>'


def _ports_line(data: _Node, type: str, ports: list[_Node]) -> str:
    """Return a line with the names and types of a network's inputs, states or outputs.

    `type` is "input", "state" or "output", and `ports` are the nodes of this type. The line has at
    most `_MOST_PORTS` names.
    """
    names = ", ".join([_name_and_type(data, node) for node in ports[:_MOST_PORTS]])
    line = f"{type}s: {names}"
    if len(ports) > _MOST_PORTS:
        line += f" and {len(ports) - _MOST_PORTS:,} more"
    return line


def _row(node: _Node, total_work: int) -> str:
    """Return the row of an operation or a group as HTML.

    A bar shows the node's share of the work: its multiply-adds divided by `total_work`, which is
    the number of multiply-adds of the network.
    """
    repeats = f" <small>&times;{node['repeats']}</small>" if "repeats" in node else ""
    name = node.get("module") or node.get("label") or node["name"]
    kind = node.get("kind") or f"{node['operations']:,} operations"
    work = node["multiply_adds"]
    cells = [
        f"<span>{_escaped(name)}{repeats} <small>{_escaped(kind)}</small></span>",
        _count(node["parameters"]),
        _count(work),
        f'<i style="width: {100 * work / total_work:.1f}%"></i>',
    ]
    return f'<span class="row">{"".join(cells)}</span>'


def _count(number: int) -> str:
    """Return a cell with a number, as HTML. The cell is empty for 0."""
    text = f"{number:,}" if number else ""
    return _number(text)


def _number(text: str) -> str:
    """Return a cell with the text of a number, as HTML. The text is right-aligned."""
    return f'<span class="number">{text}</span>'


def _is_port(nodes: list[_Node], node: _Node, type: str) -> bool:
    """Tell whether a node is an input, state or output of the network itself.

    `type` is "input", "state" or "output". The result is False for inputs and outputs of the body
    of a loop.
    """
    if node["type"] != type:
        return False
    parent = nodes[node["parent"]]
    return parent.get("by") in ("root", "ports")


def _is_row(node: _Node) -> bool:
    """Tell whether a node is shown as a row: an operation, or a group of operations."""
    return node["type"] in ("group", "operation") and node.get("by") != "ports"


def _name_and_type(data: _Node, node: _Node) -> str:
    """Return the name and the type of an input, state or output."""
    # An output reads its tensor, and an input or a state writes it.
    if node["reads"]:
        _, tensor_index = node["reads"][0]
    else:
        tensor_index = node["writes"][0]
    tensor = data["tensors"][tensor_index]
    shape = "" if tensor["shape"] is None else show(tensor["shape"])
    return f"{node['name']} {tensor['dtype']}{shape}"


def _escaped(text: str) -> str:
    """Escape a text for HTML. Characters that are not printable become spaces."""
    characters = [character if character.isprintable() else " " for character in text]
    return html.escape("".join(characters))
