"""Flattens the nodes of a model. A node is flattened after all nodes whose results it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.graph import Graph as FlatGraph
from lowering.graph import Value
from nnef_jax.errors import SemanticError, UnsupportedError, raise_all
from nnef_jax.flattening.emission import locating_errors
from nnef_jax.flattening.operators.registry import Operator
from nnef_jax.flattening.outline import add_untyped, has_untyped, unknown
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.base import Options
from nnef_jax.formats.onnx.document import Function, ModelDocument, ModelGraph, ModelPort, Node
from nnef_jax.formats.onnx.node_site import NodeGraph, NodeSite
from nnef_jax.formats.onnx.operators import OPERATORS
from nnef_jax.formats.onnx.operators.schemas import (
    defined,
    is_defined,
    require_declared,
    specialised,
)
from nnef_jax.limits import CALL_STEPS, LETTERS_PER_STEP, within_memory

_STEPS_OF_NODE = 30  # steps of the meter for each node
_DEEPEST = 100  # the deepest nesting of functions and graphs
# An operand of a node. None stands for an input that is left out, or for an empty optional value. A
# list stands for a sequence of tensors.
NodeOperand = Tensor | list[Any] | None
# Hints for operators that are not supported. The keys are domains of operators.
_HINTS = {
    "com.microsoft.nchwc": "onnxruntime made it for one processor: load the model that it read, or "
    "have it write one with graph_optimization_level ORT_ENABLE_EXTENDED",
}


def flatten(document: ModelDocument, options: Options, data: dict[str, NDArray[Any]]) -> FlatGraph:
    """Flatten a model into a graph, and add the data of parameters to `data`.

    `data` maps the label of a parameter to an array. Raises NnefError if the model cannot be
    flattened.
    """
    with within_memory("the flat graph"):
        graph = NodeGraph(options, data)
        top = document.graph
        input_names = [port.name for port in top.inputs]
        # The names of the document are reserved, so that inserted tensors get different names.
        graph.builder.reserve(input_names)
        for node in top.nodes:
            graph.builder.reserve(_named_outputs(node))
        flattener = NodeFlattener(document, graph, document.versions)
        tensors: dict[str, NodeOperand] = dict(top.tensors)
        for port in top.inputs:
            tensors[port.name] = flattener.input(port, top)
        output_names = [port.name for port in top.outputs]
        flattener.flatten_nodes(top.nodes, tensors, output_names)
        outputs = [flattener.output(port, tensors, top) for port in top.outputs]
        constant_names = [name for name, value in tensors.items() if isinstance(value, Constant)]
        reads_and_outputs = [(node.reads, _named_outputs(node)) for node in top.nodes]
        graph.note_folded(constant_names, reads_and_outputs)
        return graph.builder.graph(top.name, outputs, output_names, options.unfixed(input_names))


@dataclass(frozen=True, slots=True, eq=False)
class NodeFlattener:
    """Flattens nodes into a graph.

    Args:
        document: the model.
        graph: the graph that operations are added to.
        versions: the versions of operator sets, by domain.
        prefix: the text before the names of tensors. It is "" for nodes of the model's graph.
        depth: the number of functions and graphs around the nodes.
        attributes: the attributes of the function that the nodes are in, or None if they are in
            no function.
    """

    document: ModelDocument
    graph: NodeGraph
    versions: Mapping[str, int]
    prefix: str = ""
    depth: int = 0
    attributes: Mapping[str, Any] | None = None

    def input(self, port: ModelPort, top: ModelGraph) -> Tensor:
        """Add an input of the model to the graph, and return the input's tensor.

        `port` describes the input, and `top` is the model's graph. If the file does not say the
        dtype, the input has the dtype of its value in `options.values`, or float32 if it has no
        such value.
        """
        with locating_errors(f"input '{port.name}'", top.span):
            has_strings = port.dtype == "string"
            if has_strings or not port.is_tensor:
                kind = "strings" if has_strings else "a sequence or an optional"
                raise InvalidOperation(f"it is {kind}, of which there are no arrays in JAX")
            dtype = port.dtype
            if not dtype:
                fixed_value = self.graph.options.values.get(port.name)
                dtype = "float32" if fixed_value is None else fixed_value.dtype.name
            return self.graph.input(port.name, port.shape, dtype, dtype, top.span)

    def output(self, port: ModelPort, tensors: Mapping[str, NodeOperand], top: ModelGraph) -> Value:
        """Return the output of the model that `port` describes, as a tensor of the graph.

        `top` is the model's graph, and `tensors` maps names to all tensors of this graph.
        """
        value = tensors.get(port.name)
        if isinstance(value, list):
            message = f"output '{port.name}' is a sequence: cut the network before it"
            raise UnsupportedError(message, span=top.span)
        if value is None:
            raise SemanticError(f"nothing gives output '{port.name}'", span=top.span)
        with locating_errors(f"output '{port.name}'", top.span):
            if isinstance(value, Constant):
                return self.graph.tensor(value, port.name, top.span)
            return self.graph.as_output(value, port.name, top.span)

    def flatten_nodes(
        self, nodes: Sequence[Node], tensors: dict[str, NodeOperand], outputs: Sequence[str]
    ) -> None:
        """Flatten the nodes on which `outputs` depend.

        At first, `tensors` maps names to the inputs and initialisers. The method adds the results
        of the nodes.
        """
        name_count = sum(len(node.reads) + len(node.outputs) for node in nodes)
        self.graph.meter.spend(name_count, "the network")
        needed = list(_needed(nodes, outputs))
        prefix_steps = len(needed) * len(self.prefix) // LETTERS_PER_STEP
        self.graph.meter.spend(_STEPS_OF_NODE * len(needed) + prefix_steps, "the network")
        is_for_show = self.graph.options.outline and self.depth == 0
        if is_for_show:
            flatten = self._flattened_for_show
        else:
            raise_all([self._unsupported(node) for node in needed if not self._is_known(node)])
            flatten = self._flattened
        for node in needed:
            operands = _operands(node, tensors)
            results = flatten(self._with_references_resolved(node), operands, tensors)
            # The lengths may differ: a node may leave out its last outputs, and the function that
            # flattens the node may leave out its last results.
            for name, value in zip(node.outputs, results, strict=False):
                if name:
                    tensors[name] = value
                    self._add_alias(value, name)

    def _unsupported(self, node: Node) -> UnsupportedError:
        """Return the error for a node whose operator is not supported."""
        domain = f"domain '{node.domain}'" if node.domain else "ONNX"
        version = self._version(node)
        message = (
            f"{node.title}: '{node.operator}' of {domain}, version {version}, is not supported"
        )
        return UnsupportedError(message, span=node.span, hint=_HINTS.get(node.domain, ""))

    def _flattened_for_show(
        self, node: Node, operands: list[NodeOperand], tensors: Mapping[str, NodeOperand]
    ) -> Sequence[NodeOperand]:
        """Flatten a node and return the node's results, for a model that is shown but never run.

        The results are tensors without a type if the operator is not supported, or if the node
        reads a tensor without a type.
        """
        reads_untyped = has_untyped(tensors.get(name) for name in node.reads)
        if reads_untyped:
            kind = node.operator
        else:
            try:
                if self._is_known(node):
                    return self._flattened(node, operands, tensors)
            except UnsupportedError:
                pass  # A graph or a function of the node has a node that is not supported.
            kind = unknown(node.operator)
        names = _named_outputs(node)
        results = add_untyped(self.graph, kind, operands, names, node.span)
        result_by_name = dict(zip(names, results, strict=True))
        return [result_by_name.get(name) for name in node.outputs]

    def _operator_key(self, node: Node) -> tuple[str, str, int]:
        """Return the domain, name and version of a node's operator."""
        return node.domain, node.operator, self._version(node)

    def _version(self, node: Node) -> int:
        """Return the version of the operator set that a node's operator belongs to."""
        return self.versions.get(node.domain, 1)

    def _operator(self, node: Node) -> Operator | None:
        """Return the registered operator of a node.

        Return None if a function of the model defines the operator, or if the operator is not
        registered.
        """
        if self._calls_function_of_model(node):
            return None
        domain, name, version = self._operator_key(node)
        return OPERATORS.get(name, version, domain)

    def _calls_function_of_model(self, node: Node) -> bool:
        """Tell whether a function of the model defines the operator of a node."""
        return _function_key(node) in self.document.functions

    def _is_known(self, node: Node) -> bool:
        """Tell whether the operator of a node is registered, or defined by a function."""
        if self._calls_function_of_model(node) or self._operator(node) is not None:
            return True
        return is_defined(*self._operator_key(node))

    def _function(self, node: Node, operands: Sequence[NodeOperand]) -> Function:
        """Return the function, of the model or of the standard, that defines a node's operator."""
        function = self.document.functions.get(_function_key(node))
        if function is None:
            function = defined(*self._operator_key(node))
        if function is None:
            function = specialised(node, self._version(node), operands)
        return function

    def _with_references_resolved(self, node: Node) -> Node:
        """Return a copy of a node in which the references of attributes are replaced by values.

        A node's attribute may refer to an attribute of the function around the node. The node's
        attribute then gets the value of the function's attribute.
        """
        if not node.references:
            return node
        values_of_function = self.attributes or {}
        attributes = dict(node.attributes)
        for name, name_in_function in node.references.items():
            if name_in_function in values_of_function:
                attributes[name] = values_of_function[name_in_function]
        return replace(node, attributes=attributes, references={})

    def _add_alias(self, value: NodeOperand, name: str) -> None:
        """Make `name`, the name of a result in the document, an alias of the tensor `value`.

        Nothing is done if a tensor of the graph already has this name.
        """
        if not isinstance(value, Value):
            return
        builder = self.graph.builder
        full_name = self.prefix + name
        has_name = value.name == full_name
        if not has_name and not builder.is_taken(full_name):
            builder.aliases.setdefault(full_name, value)

    def _flattened(
        self, node: Node, operands: list[NodeOperand], tensors: Mapping[str, NodeOperand]
    ) -> Sequence[NodeOperand]:
        """Flatten a node, and return the node's results.

        `tensors` maps names to the tensors that graphs in the node may read.
        """
        operator = self._operator(node)

        def refusal() -> InvalidOperation | None:
            return self.graph.refusal_of_operator(dict(zip(node.inputs, operands, strict=True)))

        with locating_errors(node.title, node.span, refusal=refusal):
            version = self._version(node)
            if not self._calls_function_of_model(node):
                require_declared(node, version)
            if operator is None:
                return self._called(node, self._function(node, operands), operands)

            def flatten_subgraph(
                graph: ModelGraph, inner: NodeGraph, inputs: Mapping[str, NodeOperand]
            ) -> list[NodeOperand]:
                return self.flatten_subgraph(node, graph, inner, tensors, inputs)

            site = NodeSite(node, version, self.graph, operands, flatten_subgraph, self.prefix)
            results = operator.run(site)
            return results if isinstance(results, tuple) else (results,)

    def _inside(self, node: Node, nesting: str, **changes: Any) -> Self:
        """Return a flattener for a function that a node calls, or for a graph in a node.

        `changes` are new values for fields other than `prefix` and `depth`. Raises InvalidOperation
        if the nesting is too deep. The message of the error begins with `nesting`, such as "graphs
        are nested".
        """
        if self.depth >= _DEEPEST:
            raise InvalidOperation(f"{nesting} without end")
        names = _named_outputs(node)
        name = names[0] if names else node.operator
        prefix = f"{self.prefix}{name}."
        return replace(self, prefix=prefix, depth=self.depth + 1, **changes)

    def _called(
        self, node: Node, function: Function, operands: list[NodeOperand]
    ) -> list[NodeOperand]:
        """Flatten the nodes of a function that a node calls; return the function's outputs."""
        # In a merged dict, the last mapping has priority. Therefore versions of the function
        # replace versions of the model, and attributes of the node replace defaults.
        inner = self._inside(
            node, "functions call each other",
            versions={**self.versions, **function.versions},
            attributes={**function.defaults, **node.attributes},
        )  # fmt: skip
        input_count = len(function.inputs)
        surplus_operands = operands[input_count:]
        if any(operand is not None for operand in surplus_operands):
            raise InvalidOperation(f"it has {len(operands)} inputs, the function has {input_count}")
        steps = CALL_STEPS + len(function.nodes) + len(inner.versions)
        self.graph.meter.spend(steps, node.title, node.span)
        tensors: dict[str, NodeOperand] = dict.fromkeys(function.inputs)
        # The lengths may differ, since the node may leave out the last inputs of the function.
        tensors.update(zip(function.inputs, operands, strict=False))
        inner.flatten_nodes(function.nodes, tensors, function.outputs)
        return [tensors.get(name) for name in function.outputs]

    def flatten_subgraph(
        self,
        node: Node,
        graph: ModelGraph,
        inner: NodeGraph,
        outer_tensors: Mapping[str, NodeOperand],
        inputs: Mapping[str, NodeOperand],
    ) -> list[NodeOperand]:
        """Flatten a graph in an attribute of a node into `inner`, and return the graph's outputs.

        `outer_tensors` maps names to tensors of the graph around the node. `inputs` maps names to
        inputs of `graph`. Computed outer tensors that `graph` reads become inputs of `inner`,
        unless `inner` is the outer graph itself.
        """
        tensors: dict[str, NodeOperand] = {}
        for name in sorted(graph.reads):
            if name in outer_tensors:
                tensors[name] = _operand_inside(inner, self.graph, outer_tensors[name])
        tensors.update(graph.tensors)
        tensors.update(inputs)
        output_names = [port.name for port in graph.outputs]
        flattener = self._inside(node, "graphs are nested", graph=inner)
        flattener.flatten_nodes(graph.nodes, tensors, output_names)
        missing = [name for name in output_names if tensors.get(name) is None]
        if missing:
            raise InvalidOperation(f"nothing gives output '{missing[0]}' of its graph")
        return [tensors[name] for name in output_names]


def _operands(node: Node, tensors: Mapping[str, NodeOperand]) -> list[NodeOperand]:
    """Return the operands of a node. `tensors` maps names to all tensors that the node may read.

    Raises SemanticError if a tensor is missing.
    """
    operands: list[NodeOperand] = []
    for name in node.inputs:
        if name == "":  # the node leaves this input out
            operands.append(None)
            continue
        if name not in tensors:
            message = f"{node.title} reads '{name}', which nothing before it gives"
            raise SemanticError(message, span=node.span)
        operands.append(tensors[name])
    return operands


def _named_outputs(node: Node) -> list[str]:
    """Return the names of a node's outputs, except for outputs that are left out."""
    return [name for name in node.outputs if name]


def _function_key(node: Node) -> tuple[str, str, str]:
    """Return the key of the function that a node may call: (domain, name, overload)."""
    return node.domain, node.operator, node.overload


def _operand_inside(inner: NodeGraph, outer: NodeGraph, operand: NodeOperand) -> Any:
    """Return an operand of the graph `outer` as an operand in the graph `inner`.

    If `inner` is the body of a loop or branch, a computed tensor becomes an input of the body.
    Constants are returned unchanged. If `inner` is `outer`, all operands are returned unchanged.
    """
    if isinstance(operand, list):
        return [_operand_inside(inner, outer, item) for item in operand]
    if isinstance(operand, Value) and inner is not outer:
        return inner.input_for(operand)
    return operand


def _needed(nodes: Sequence[Node], outputs: Sequence[str]) -> Iterable[Node]:
    """Return the nodes on which `outputs` depend, each node after the nodes whose results it reads.

    If possible, the nodes are in the order of the file. In a file of onnxruntime's converters, a
    node may come before a node whose result it reads.
    """
    producer_by_name: dict[str, Node] = {}
    for node in nodes:
        for name in _named_outputs(node):
            producer_by_name[name] = node
    needed: set[Node] = set()
    names_to_visit = list(outputs)
    while names_to_visit:
        producer = producer_by_name.get(names_to_visit.pop())
        if producer is not None and producer not in needed:
            needed.add(producer)
            names_to_visit += producer.reads
    needed_in_order = [node for node in nodes if node in needed]
    return _after_producers(needed_in_order, producer_by_name)


def _after_producers(nodes: Iterable[Node], producer_by_name: Mapping[str, Node]) -> Iterable[Node]:
    """Sort nodes so that each node comes after all nodes whose results it reads.

    `producer_by_name` maps the name of a result to the node that computes it.
    """
    visited: set[Node] = set()
    ordered: dict[Node, None] = {}  # the result, in the order in which nodes are inserted
    for start in nodes:
        # A depth-first search. The nodes on the stack wait for the nodes above them.
        stack = [start]
        while stack:
            node = stack[-1]
            visited.add(node)
            unvisited: list[Node] = []
            if node not in ordered:
                producers = [producer_by_name.get(name) for name in node.reads]
                unvisited = [x for x in producers if x is not None and x not in visited]
            if unvisited:
                stack += unvisited
            else:
                stack.pop()
                ordered[node] = None
    return ordered
