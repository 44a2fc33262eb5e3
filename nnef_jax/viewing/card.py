"""Shows a network in a notebook as a card whose groups unfold, without a script."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any

from lowering.extents import show
from nnef_jax.reading.network import Network
from nnef_jax.viewing.data import page_data

_ROWS = 200  # the largest number of operations and groups in a card
_PORTS = 100  # the largest number of inputs, of states and of outputs in a card
_Node = Mapping[str, Any]

# The card uses the notebook's colours, which may be light or dark.
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

    The card has up to 200 rows, and counts the rows that are left out. `nnef_jax.view` shows all
    operations.
    """
    data = page_data(network)
    nodes: list[_Node] = data["nodes"]
    members: dict[int, list[int]] = {}
    for index, node in enumerate(nodes[1:], 1):
        members.setdefault(node["parent"], []).append(index)
    total_work = max(1, nodes[0]["multiply_adds"])
    rows_left = _ROWS

    def rows(group: int) -> Iterator[str]:
        nonlocal rows_left
        candidates = [i for i in members.get(group, ()) if _is_row(nodes[i])]
        visible = candidates[:rows_left]
        rows_left -= len(visible)
        for index in visible:
            row = _row(nodes[index], total_work)
            if nodes[index]["type"] == "operation":
                yield f'<div class="leaf">{row}</div>'
            else:
                yield f"<details><summary>{row}</summary>{''.join(rows(index))}</details>"
        omitted = len(candidates) - len(visible)
        if omitted:
            yield f'<div class="leaf"><small>and {omitted:,} more</small></div>'

    totals = data["totals"]
    numbers = ("operations", "parameters", "multiply_adds")
    counts = ", ".join(f"{totals[name]:,} {name.replace('_', '-')}" for name in numbers)
    lines = [f"<b>{_escaped(data['name'])}</b> <small>{_escaped(data['dialect'])}</small>", counts]
    for type in ("input", "state", "output"):
        ports = [node for node in nodes if _is_port(nodes, node, type)]
        if ports:
            lines.append(_escaped(_ports_line(data, type, ports)))
    head = "".join(f"<p>{line}</p>" for line in lines)
    names = "".join(map(_number, ("parameters", "multiply-adds")))
    head += f'<div class="leaf"><span class="row"><span></span>{names}</span></div>'
    return f'<div class="nnef-card"><style>{_STYLE}</style>{head}{"".join(rows(0))}</div>'


def _ports_line(data: _Node, type: str, ports: list[_Node]) -> str:
    """Return the names and types of the inputs, states or outputs of a network, at most `_PORTS`.

    `type` is "input", "state" or "output", and `ports` are the nodes of this type.
    """
    names = ", ".join(_name_and_type(data, node) for node in ports[:_PORTS])
    line = f"{type}s: {names}"
    if len(ports) > _PORTS:
        line += f" and {len(ports) - _PORTS:,} more"
    return line


def _row(node: _Node, total_work: int) -> str:
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
    return _number(f"{number:,}" if number else "")


def _number(text: str) -> str:
    return f'<span class="number">{text}</span>'


def _is_port(nodes: list[_Node], node: _Node, type: str) -> bool:
    """Tell whether a node is an input, state or output of the network, and not of a body in it."""
    return node["type"] == type and nodes[node["parent"]].get("by") in ("root", "ports")


def _is_row(node: _Node) -> bool:
    return node["type"] in ("group", "operation") and node.get("by") != "ports"


def _name_and_type(data: _Node, node: _Node) -> str:
    if node["reads"]:
        _, number = node["reads"][0]
    else:
        number = node["writes"][0]
    tensor = data["tensors"][number]
    shape = "" if tensor["shape"] is None else show(tensor["shape"])
    return f"{node['name']} {tensor['dtype']}{shape}"


def _escaped(text: str) -> str:
    characters = [c if c.isprintable() else " " for c in text]
    return html.escape("".join(characters))
