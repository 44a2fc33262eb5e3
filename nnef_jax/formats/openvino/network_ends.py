"""Finds the inputs, outputs and variables of a network, with their names and declared shapes.

A ReadValue layer declares a variable, which is a state that lasts from call to call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, is_known
from lowering.location import Span
from nnef_jax.errors import SemanticError
from nnef_jax.formats.openvino.document import (
    BOUNDS,
    OPEN_RANK,
    Net,
    NetLayer,
    Port,
    PortRef,
    extents,
)

INPUTS = ("input", "parameter")  # types of layers that are inputs
_T = TypeVar("_T")
# `_NamedInput` is the name of an input, with the layer and the port that declare the input.
# `_NamedOutput` is the name of an output, with the port that computes the output.
_NamedInput = tuple[str, tuple[NetLayer, Port]]
_NamedOutput = tuple[str, PortRef]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a network, which is a state that lasts from call to call.

    `starts_from_inputs` tells whether the initial value is computed from inputs. Extents of `shape`
    that may change are UNKNOWN.
    """

    shape: Shape
    starts_from_inputs: bool
    span: Span

    @property
    def depends_on_call(self) -> bool:
        """Tell whether the initial value or the shape of the variable is unknown before a call."""
        return self.starts_from_inputs or not is_known(self.shape)


@dataclass(frozen=True, slots=True)
class Ends:
    """The inputs, the outputs and the variables of a network.

    Names of inputs and outputs are mapped to their ports, and labels are mapped to variables.
    """

    inputs: Mapping[str, tuple[NetLayer, Port]]
    outputs: Mapping[str, PortRef]
    variables: Mapping[str, Variable]

    def synonyms(self, net: Net) -> dict[str, str]:
        """Return a dict from alternative names of inputs and outputs to the names in the graph."""
        synonyms: dict[str, str] = {}
        for name, (layer, port) in self.inputs.items():
            for synonym in (layer.name, *port.names):
                synonyms[synonym] = name
        names_by_port: dict[PortRef, tuple[str, ...]] = {}
        for layer in net.layers:
            for port in layer.outputs:
                names_by_port[layer.id, port.id] = port.names
        for name, port_reference in self.outputs.items():
            for synonym in names_by_port[port_reference]:
                synonyms.setdefault(synonym, name)
        taken = self.inputs.keys() | self.outputs.keys()
        return {synonym: name for synonym, name in synonyms.items() if synonym not in taken}


def ends_of(net: Net) -> Ends:
    """Return the inputs, outputs and variables of a network, in the order of the document."""
    inputs: list[_NamedInput] = []
    outputs: list[_NamedOutput] = []
    for layer in sorted(net.layers, key=lambda layer: layer.span.offset):
        inputs += _inputs_at(layer, net)
        outputs += _outputs_at(layer, net)
    return Ends(_by_name(inputs), _by_name(outputs), variables_of(net))


def _inputs_at(layer: NetLayer, net: Net) -> list[_NamedInput]:
    """Return the inputs of the network that a layer declares or reads.

    Before version 10, an input port without an edge is an input of the network.
    """
    if layer.kind in INPUTS and layer.outputs:
        name, port = layer.named(layer.outputs)[0]  # the first output
        if port.names and not net.is_legacy:
            name = port.names[0]
        return [(name, (layer, port))]
    if not net.is_legacy:
        return []
    inputs: list[_NamedInput] = []
    for name, port in layer.named(layer.inputs):
        if (layer.id, port.id) not in net.sources:
            inputs.append((name, (layer, port)))
    return inputs


def _outputs_at(layer: NetLayer, net: Net) -> list[_NamedOutput]:
    """Return the outputs of the network that a layer declares or computes.

    Since version 10, a Result declares an output. Before version 10, an output port without an edge
    is an output of the network.
    """
    if not net.is_legacy:
        return [_output_of(layer, net)] if layer.kind == "result" else []
    outputs: list[_NamedOutput] = []
    for name, port in layer.named(layer.outputs):
        if (layer.id, port.id) not in net.read:
            outputs.append((name, (layer.id, port.id)))
    return outputs


def _output_of(result: NetLayer, net: Net) -> _NamedOutput:
    """Return the name of the output that a Result declares, and the port that computes the output.

    Raises SemanticError if the Result has no input.
    """
    source = net.sources.get((result.id, result.inputs[0].id)) if result.inputs else None
    if source is None:
        message = f"layer '{result.name}' (Result) has no input"
        raise SemanticError(message, span=result.span)
    layer_id, port_id = source
    producer = net.by_id[layer_id]
    ports: dict[int, Port] = {}  # maps ids to the ports of the producer
    default_names: dict[int, str] = {}  # maps ids of these ports to default names
    for default_name, port in producer.named(producer.outputs):
        ports[port.id] = port
        default_names[port.id] = default_name
    declared_names = ports[port_id].names or result.inputs[0].names
    name = declared_names[0] if declared_names else default_names[port_id]
    return name, source


def _by_name(items: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Return pairs (name, item) as a dictionary.

    If a name occurs again, the later items get the names `name_1`, `name_2` and so on.
    """
    table: dict[str, _T] = {}
    repeated = Counter[str]()
    for name, item in items:
        unique = name
        while unique in table:
            repeated[name] += 1
            unique = f"{name}_{repeated[name]}"
        table[unique] = item
    return table


def declared_shape(layer: NetLayer, port: Port) -> list[int | None] | None:
    """Return the shape that the file declares for an input, or None if the rank is open.

    In the shape, open extents are None.
    """
    text = layer.attributes.get("shape")
    if layer.kind != "parameter" or text is None:
        return [None if extent < 0 else extent for extent in port.shape]
    if text.strip() == OPEN_RANK:
        return None
    return extents(text)


def require_bounds(shape: Sequence[int | None], layer: NetLayer) -> None:
    """Raise InvalidShape if an extent of `shape` is outside the bounds that `layer` declares.

    Bounds have the forms `1..8`, `2..` and `..8`.
    """
    texts = layer.attributes.get("shape", "").split(",")
    # If the user's shape does not have the declared rank, it is refused later.
    for axis, (extent, text) in enumerate(zip(shape, texts, strict=False)):
        bounds = BOUNDS.fullmatch(text.strip())
        if bounds and extent is not None:
            low, high = bounds.groups()  # "" stands for no bound
            is_below = extent < int(low or 0)
            is_above = high != "" and extent > int(high)
            if is_below or is_above:
                raise InvalidShape(f"axis {axis} has {extent} items, it must have {text.strip()}")


def label_of(layer: NetLayer) -> str:
    """Return the label of the variable that a layer reads or writes."""
    return layer.attributes.get("variable_id", layer.name)


def variables_of(net: Net) -> Mapping[str, Variable]:
    """Return a dict from labels to the variables of a network.

    A variable is left out if no layer writes it and its initial value depends on inputs. A
    ReadValue of such a variable returns the initial value.
    """
    variables: dict[str, Variable] = {}
    written_labels = {label_of(layer) for layer in net.layers if layer.kind == "assign"}
    dependent_ids = _ids_dependent_on_inputs(net)
    for layer in net.layers:
        reads_variable = layer.kind == "readvalue" and len(layer.outputs) > 0
        if not reads_variable:
            continue
        label = label_of(layer)
        depends_on_inputs = layer.id in dependent_ids
        is_written = label in written_labels
        if depends_on_inputs and not is_written:
            continue
        shape = _variable_shape(layer)
        if not is_written:
            # The state keeps its initial shape, in which an open extent is 0.
            shape = tuple(0 if extent is UNKNOWN else extent for extent in shape)
        variables.setdefault(label, Variable(shape, depends_on_inputs, layer.span))
    return variables


def _ids_dependent_on_inputs(net: Net) -> set[int]:
    """Return the ids of the Parameter layers, and of all layers that depend on a Parameter."""
    dependent_ids = set[int]()
    for layer in net.layers:  # a layer comes after the layers that it reads
        source_ids: list[int] = []
        for port in layer.inputs:
            source = net.sources.get((layer.id, port.id))
            if source is not None:
                source_id, _ = source
                source_ids.append(source_id)
        if layer.kind == "parameter" or not dependent_ids.isdisjoint(source_ids):
            dependent_ids.add(layer.id)
    return dependent_ids


def _variable_shape(layer: NetLayer) -> Shape:
    """Return the shape that a ReadValue layer declares for its variable.

    In operation set 3, a ReadValue declares the shape at its output port.
    """
    text = layer.attributes.get("variable_shape")
    if text is None:
        declared = layer.outputs[0].shape or ()
        return tuple(UNKNOWN if extent < 0 else extent for extent in declared)
    try:
        return tuple(UNKNOWN if extent is None else extent for extent in extents(text))
    except InvalidOperation as error:
        raise SemanticError(f"{layer}: {error.message}", span=layer.span, hint=error.hint) from None
