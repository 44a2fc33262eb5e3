"""The interface of a format: `Format` for its package, and `Frontend` for a checked document.

All formats are read in the same way. An archive is read by the first format that recognises it. The
function `read` of the format returns a checked `Frontend`. A front end flattens its document for
given shapes of the inputs. The front end also returns the stored data, and makes the archive that
is written when the network is saved or converted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from lowering import Registry, rounding
from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, show
from lowering.graph import Graph, Value
from lowering.location import Span
from nnef_jax.errors import NnefError, UnsupportedError
from nnef_jax.limits import Meter
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.writer import Member

Expand = Literal["auto", "all"]
# A function that is called with two numbers: the number of variables that were read so far, and the
# number of all variables.
Progress = Callable[[int, int], None]
# Maps names of inputs to shapes. An open extent is None.
Shapes = Mapping[str, Sequence[int | None]]
# Maps labels of variables to the arrays of their data.
Arrays = Mapping[str, NDArray[Any]]
# A function that cuts a part out of a graph. It returns the part, and a mapping from values of the
# entire graph to the inputs of the part that replace these values.
Cut = Callable[[Graph], tuple[Graph, Mapping[Value, Value]]]

# Hints in errors: the first for an open extent, the second for a symbolic extent.
GIVE_SHAPES = "give the shapes of the inputs by load(..., input_shapes=...)"
EXPORT_KNOWN = "export it for known shapes"

NO_RULES = Registry()


class ExtentNeeded(Exception):
    """The structure of the graph depends on an extent that the document leaves open."""


class ExtentImplied(ExtentNeeded):
    """An operation allows only one value for an extent that the document leaves open.

    Args:
        input: the name of the input that has the extent.
        axis: the axis of the input.
        extent: the value.
    """

    def __init__(self, input: str, axis: int, extent: int) -> None:
        super().__init__(f"axis {axis} of input '{input}' must have the extent {extent}")
        self.input = input
        self.axis = axis
        self.extent = extent


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a load, such as the shapes of inputs and the dtype of real numbers.

    The keys of a mapping are names of inputs, unless a comment says otherwise.
    """

    # The user's rules. The keys are the names that operations have in the document.
    rules: Registry = NO_RULES
    # The name of a format, or "auto" for the format that recognises the document.
    format: str = "auto"
    expand: Expand = "auto"
    real: str = "float32"
    input_shapes: Shapes = field(default_factory=dict[str, Sequence[int | None]])
    # Maps the document's names of extents to the extents that the user chose.
    extents: Mapping[str, int] = field(default_factory=dict[str, int])
    # The values of inputs that the user fixes. Such inputs are not inputs of the graph.
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    meter: Meter = field(default_factory=Meter)  # counts the steps and bytes of the load
    rounds: bool = True  # whether tensors that the document quantises are rounded
    progress: Progress | None = None  # is called before each variable is read
    # The shapes of inputs, with symbolic extents of jax.export. Where this mapping has a symbolic
    # extent, `input_shapes` has an open extent.
    symbolic_shapes: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    open_extent: int = UNKNOWN  # replaces each extent that the document leaves open
    # Maps the label of a state to the state's shape before a cycle. A state of constant shape may
    # be left out.
    state_shapes: Mapping[str, Shape] = field(default_factory=dict[str, Shape])
    # Whether the network is only shown, not run. Such a network may have unsupported operators.
    outline: bool = False
    # Whether the graph is for the first run, in which the network may compute initial states.
    starts: bool = False
    # The labels of the parameters. Weights with any other label are constants. Before the
    # parameters are read, this is None.
    labels: frozenset[str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the class and the arguments by which pickle makes a copy.

        The copy has no `progress`, since pickle cannot store every function. A pickled network
        already has its variables, so it does not call `progress`.
        """
        picklable = replace(self, progress=None)
        arguments = [getattr(picklable, option.name) for option in fields(self)]
        return type(self), tuple(arguments)

    def unfixed(self, names: Iterable[str]) -> list[str]:
        """Return `names` (names of inputs) without the inputs whose values the user fixes."""
        return [name for name in names if name not in self.values]

    def value(self, name: str, shape: Sequence[Any] | None, dtype: str) -> NDArray[Any]:
        """Return the value of a fixed input, converted to the input's declared dtype.

        `shape` is the declared shape. An open extent is UNKNOWN, None or a name. If the shape is
        None, any shape is allowed. Raises InvalidShape if the value has another shape, and
        InvalidOperation if an integer or logical input has a real value.
        """
        array = self.values[name]
        declared_shape = array.shape if shape is None else shape
        if not _fits(array.shape, declared_shape):
            extents = ["?" if extent is None else str(extent) for extent in declared_shape]
            shown_shape = ",".join(extents)
            message = f"its value has the shape {show(array.shape)}, it must have [{shown_shape}]"
            raise InvalidShape(message)
        declared_dtype = np.dtype(dtype)
        # In numpy, "i" and "u" are the kinds of integers, and "b" is the kind of bool.
        needs_integers = declared_dtype.kind in "iub"
        has_integers = array.dtype.kind in "iub"
        if needs_integers and not has_integers:
            message = f"its value is {array.dtype.name}, it must be {declared_dtype.name}"
            raise InvalidOperation(message)
        return rounding.saturated(array, declared_dtype)

    def shape(self, name: str, declared: Sequence[int | str | None]) -> Shape:
        """Return the shape of an input: the shape that the user chose, or else the declared shape.

        The name of an extent, such as "N", is replaced by `extents["N"]`. An open extent is
        replaced by `open_extent`. An extent is open if it is None or a name without an entry in
        `extents`.
        """
        extents: list[int] = []
        for extent_or_name in self.input_shapes.get(name, declared):
            if isinstance(extent_or_name, str):
                extent = self.extents.get(extent_or_name)
            else:
                extent = extent_or_name
            extents.append(self.open_extent if extent is None else extent)
        return tuple(extents)


def _fits(shape: Shape, declared: Sequence[Any]) -> bool:
    """Tell whether a shape fits a declared shape. An open declared extent fits any extent.

    An open extent is UNKNOWN, or is not an integer.
    """
    if len(shape) != len(declared):
        return False
    for extent, declared_extent in zip(shape, declared, strict=True):
        is_open = declared_extent is UNKNOWN or not isinstance(declared_extent, int)
        if not is_open and extent != declared_extent:
            return False
    return True


class Format(Protocol):
    """The interface of a package that reads a format.

    The package has a module that reads documents. This module is imported only when a document is
    read.
    """

    # Patterns of the graph's file name, such as "*.xml". An archive has one such file, which is not
    # in a folder.
    GRAPHS: Sequence[str]
    # For networks in a single file. The file is read like an archive with one member. The key is
    # the name of this member, and the value is a regular expression that matches the first bytes
    # of the file.
    ALONE: Mapping[str, bytes]
    # Whether all weights are in one file beside the graph. If so, `load(weights=)` may name the
    # file of the weights.
    HAS_WEIGHTS_BESIDE: bool

    def recognises(self, archive: Archive) -> bool:
        """Tell whether an archive is of this format.

        The name of the archive's graph matches a pattern in `GRAPHS` of some format, which need not
        be this one.
        """
        ...

    def read(self, archive: Archive, options: Options) -> Frontend:
        """Read the document of an archive and check it.

        Raises an NnefError that contains all errors of the document.
        """
        ...


class Frontend(ABC):
    """A checked document that can be flattened.

    The archive of the document stays open while the network is read.
    """

    dialect: str  # the format and version, as `nnef-jax summary` shows them
    inputs: Sequence[str]  # names, in order
    outputs: Sequence[str]  # names, in order
    extensions: Sequence[str] = ()  # extensions of the format that the document requires
    symbols: Sequence[str] = ()  # names of open extents
    # Maps alternative names of inputs and outputs to the names in `inputs` and `outputs`.
    synonyms: Mapping[str, str] = {}
    quantizes: bool = False  # whether computed tensors are rounded
    integer: str = "int32"  # the dtype of integer literals
    is_saved_flat: bool = False  # true for documents that are not written in NNEF's language

    def describe_as(self, other: Frontend) -> None:
        """Copy `dialect`, `extensions`, `quantizes` and `integer` from the front end `other`."""
        self.dialect = other.dialect
        self.extensions = other.extensions
        self.quantizes = other.quantizes
        self.integer = other.integer

    @abstractmethod
    def flatten(self, options: Options) -> Graph:
        """Return the flat graph of the document for the shapes of inputs in `options.input_shapes`.

        An input that is not in `options.input_shapes` has the shape that the document declares.

        Raises NnefError if the document cannot be flattened. Raises ExtentNeeded if the structure
        of the graph depends on an open extent.
        """

    @abstractmethod
    def stored(self, graph: Graph) -> Stored:
        """Return the data of the graph's variables, in the dtypes of the graph.

        Arrays are memory-mapped if possible. If data are missing or wrong, raises an NnefError that
        names all variables with such data.
        """

    def declared_shapes(self, options: Options) -> Shapes:
        """Return the shapes that the document declares for its inputs, in any order of the inputs.

        An input is left out if its shape depends on the shape of another input. This method is only
        called after `flatten` raised ExtentNeeded.
        """
        return {}

    def state_shapes(self) -> Shapes:
        """Return a dict from labels to shapes of states. States of constant shape are left out."""
        return {}

    def output_shapes(self) -> Shapes:
        """Return a dict from names of outputs to the shapes that the document declares for them.

        Outputs without a declared shape are left out. A graph may have less precise shapes.
        """
        return {}

    def symbolic_shapes(self, symbol: Callable[[str], Any]) -> Mapping[str, Sequence[Any]]:
        """Return a dict from names of inputs to shapes, with symbolic extents for named extents.

        `symbol` makes the symbolic extent for a name of the document. An extent without a name is
        an integer, or UNKNOWN if it is open.
        """
        return {}

    def extent_names(self) -> Mapping[str, Sequence[str]]:
        """Return a dict from names of inputs and outputs to the names of their extents.

        An extent without a name has the name "".
        """
        return {}

    def call_with_extents(self, function: str = "load") -> str:
        """Return the text of a Python call that sets the open extents, for hints of errors.

        An example is "load(..., input_shapes={'N': ...})". `function` is the called function.
        """
        extents = ", ".join(f"{name!r}: ..." for name in self.symbols)
        shapes = f"{{{extents}}}" if extents else "..."
        return f"{function}(..., input_shapes={shapes})"

    def content(self) -> Iterable[object]:
        """Return texts, bytes and hashable objects that together determine the network's graphs.

        Two front ends with equal content and equal options make equal graphs. By default, the
        content of a front end is equal only to itself.
        """
        return [self]

    def spans(self) -> Mapping[str, Span]:
        """Map each name to the span (file, line and column) of its assignment in the document."""
        return {}

    def identifiers(self, graph: Graph) -> Mapping[str, str]:
        """Map the identifiers of tensors in a saved graph.quant to the tensors' names in the graph.

        By default, the identifier of a tensor is its name in the document.
        """
        return {name: name for name in self.spans() if name in graph.values}

    def unsavable(self) -> Sequence[NnefError]:
        """Return an error for each part of the network that a flat document cannot express."""
        return ()

    def members(self, arrays: Arrays, quantization: str | None) -> Written:
        """Return the archive of the document, with new data for the variables.

        `arrays` maps the label of a variable to its data. `quantization` is the text of a new
        graph.quant. If `quantization` is None, the graph.quant of the document is kept.
        """
        raise UnsupportedError(f"a network of {self.dialect} cannot be saved")

    def flat_members(
        self,
        graph: Graph,
        options: Options,
        cut: Cut,
        arrays: Arrays,
        quantization: str | None,
    ) -> Written:
        """Return a part of the graph as an archive with a flat document.

        In the flat document, rounding of quantised tensors is an operation. Raises an
        UnsupportedError that names everything the format cannot express.

        Args:
            graph: the graph of the entire document, flattened with `options`.
            options: the options of the load.
            cut: cuts the part out of a graph.
            arrays: maps labels of variables to data.
            quantization: the text of graph.quant, or None if there is none.
        """
        raise UnsupportedError(f"a part of a network of {self.dialect} cannot be saved")

    def converted(self, graph: Graph, data: Arrays | None, *, flat: bool, keep: bool) -> Written:
        """Return the archive of the document in the newest version of its format.

        The graph is the first member of the archive. Raises an UnsupportedError that names
        everything NNEF cannot express.

        Args:
            graph: the document's graph.
            data: maps labels of variables to data. If None, the archive has no data.
            flat: whether the archive has a flat document.
            keep: for formats that are written as NNEF, whether operations that NNEF lacks become
                custom operations.
        """
        raise UnsupportedError(f"a network of {self.dialect} cannot be converted")


@dataclass(frozen=True, slots=True)
class Written:
    """An archive to be written.

    `members` maps names to members. The first member is the graph.
    """

    members: Mapping[str, Member]
    # Whether `load` is certain to make an equal graph from this archive. If not, the archive is
    # read again after it is written, and the graphs are compared.
    loads_same_graph: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """The data of a network's variables, and the front end that flattens the network.

    `data` maps labels of variables to arrays. Usually `frontend` is the front end that read the
    data. If the data decide which tensors are rounded in a run, `frontend` is a changed copy.
    """

    data: dict[str, NDArray[Any]]
    frontend: Frontend
