"""The graphs, nodes and functions of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lowering.location import Span
from nnef_jax.flattening.tensor_graph import Constant

_LONGEST_NAME = 200  # the largest number of letters of a name in errors


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A node of a graph or function: an operator that is applied to tensors.

    Args:
        name: the node's name, or "" if it has none.
        operator: the name of the operator.
        domain: the domain of the operator, or "" for the standard's domain.
        inputs: the names of the input tensors. The name "" stands for an input that is left out.
        outputs: the names of the output tensors. The name "" stands for an output that is left out.
        attributes: the values of attributes by name.
        references: the attributes whose values come from attributes of the function around the
            node. Maps the name of the node's attribute to the name of the function's attribute.
        span: the node's line in the listing of nodes, for errors.
        reads: the names of the tensors that are read by the node or by graphs in the node's
            attributes. Tensors that these graphs compute are left out.
        overload: the overload of the function that the node calls.
    """

    name: str
    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    references: Mapping[str, str]
    span: Span
    reads: frozenset[str]
    overload: str = ""

    @property
    def title(self) -> str:
        """Return the description of the node in errors, such as "node 'sum' (Add)"."""
        return titled(self.name, self.operator)


@dataclass(frozen=True, slots=True, eq=False)
class ModelPort:
    """An input or output of a graph.

    Args:
        name: the name of the input or output.
        dtype: the dtype, or "" if the file does not say it.
        shape: the extents. An open extent is given by its name, or by None if it has no name. The
            shape is None if the rank is open.
        is_tensor: whether the value is a tensor. It is False for a sequence or an optional value.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    is_tensor: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class ModelGraph:
    """The graph of a model, or a graph in an attribute of a node.

    `tensors` maps names to the initialisers. `reads` are the names of the tensors that this graph
    reads from the graph around it.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[ModelPort, ...]
    outputs: tuple[ModelPort, ...]
    tensors: Mapping[str, Constant]
    span: Span
    reads: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of a model. The nodes of the function define an operator.

    `inputs` and `outputs` are names of tensors. `defaults` are the defaults of the operator's
    attributes.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    defaults: Mapping[str, Any]
    versions: Mapping[str, int]  # the versions of operator sets, by domain


@dataclass(frozen=True, slots=True, eq=False)
class ModelDocument:
    """A model.

    Args:
        graph: the graph of the model.
        versions: the versions of operator sets, by domain.
        functions: the functions of the model. The keys are (domain, name, overload).
        version: the version of the file format.
    """

    graph: ModelGraph
    versions: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], Function]
    version: int


def titled(name: str, operator: str) -> str:
    """Return the description of a node in errors. A long name is shortened."""
    shown_name = f" '{name[:_LONGEST_NAME]}'" if name else ""
    return f"node{shown_name} ({operator[:_LONGEST_NAME]})"


def graphs_in(value: object) -> Iterator[ModelGraph]:
    """Yield the graphs in the value of an attribute, which may be a graph or a tuple of graphs."""
    items = value if isinstance(value, tuple) else (value,)
    for item in items:
        if isinstance(item, ModelGraph):
            yield item


def all_nodes(document: ModelDocument) -> Iterator[Node]:
    """Yield all nodes of a model, including the nodes of functions and of graphs in nodes."""
    waiting = [*document.graph.nodes]
    for function in document.functions.values():
        waiting += function.nodes
    while waiting:
        node = waiting.pop()
        yield node
        for value in node.attributes.values():
            for graph in graphs_in(value):
                waiting += graph.nodes
