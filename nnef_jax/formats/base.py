"""The interface of a format: the package that stands for one, and its view of a network.

A network is read in one way, whatever its format: the first format that recognises an archive
`read`s it into a checked `Frontend`. This is flattened for shapes of its inputs, hands over the
data that are stored, and says what is written when the network is saved or converted.
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
Progress = Callable[[int, int], None]  # of how many variables are read, of how many
Shapes = Mapping[str, Sequence[int | None]]  # of inputs by name; None is an extent that is open
Arrays = Mapping[str, NDArray[Any]]  # of variables by label
# Takes a part of a graph; returns it, and its inputs by the values whose places they take.
Cut = Callable[[Graph], tuple[Graph, Mapping[Value, Value]]]

# Hints where an extent is open, or is symbolic.
GIVE_SHAPES = "give the shapes of the inputs by load(..., input_shapes=...)"
EXPORT_KNOWN = "export it for known shapes"

NO_RULES = Registry()  # of one's own


class ExtentNeeded(Exception):
    """The structure of the graph depends on an extent that the document leaves open."""


@dataclass(frozen=True, slots=True)
class Options:
    """Says how to flatten: which operations stay whole, what the document's tensors become."""

    rules: Registry = NO_RULES  # a user's own, by the document's names
    format: str = "auto"  # its name, or "auto" for the one that recognises the document
    expand: Expand = "auto"
    real: str = "float32"
    input_shapes: Shapes = field(default_factory=dict[str, Sequence[int | None]])
    extents: Mapping[str, int] = field(default_factory=dict[str, int])  # by the names of open ones
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])  # of inputs
    meter: Meter = field(default_factory=Meter)  # of the load
    rounds: bool = True  # tensors that the document quantises, once they are computed
    progress: Progress | None = None  # is told before each variable that is read
    # Shapes of inputs in which jax.export keeps extents symbolic; these are open in `input_shapes`.
    symbolic_shapes: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    open_extent: int = UNKNOWN  # what an extent that the document leaves open is taken for
    # Shapes of the state before a cycle, by label, for variables whose shape changes.
    state_shapes: Mapping[str, Shape] = field(default_factory=dict[str, Shape])
    outline: bool = False  # whether it is shown, with operators that are not supported
    starts: bool = False  # whether it is a first cycle, for variables whose start is computed
    # Labels of the parameters, once these are read; other weights are constants. None before.
    labels: frozenset[str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Nothing is read any more, and `progress` may be a function that cannot be pickled.
        copied = replace(self, progress=None)
        return type(self), tuple(getattr(copied, field.name) for field in fields(self))

    def unfixed(self, names: Iterable[str]) -> list[str]:
        """Return the names of inputs without those whose values are fixed."""
        return [name for name in names if name not in self.values]

    def value(self, name: str, shape: Sequence[Any] | None, dtype: str) -> NDArray[Any]:
        """Return the value of an input that is fixed, in the dtype that it is declared with.

        Raises InvalidShape or InvalidOperation for one that does not fit the declared shape, of
        which extents that are no numbers are open, or the dtype.
        """
        array, wanted = self.values[name], np.dtype(dtype)
        declared = array.shape if shape is None else shape
        pairs = zip(declared, array.shape, strict=False)
        differ = any(isinstance(n, int) and n is not UNKNOWN and n != m for n, m in pairs)
        if len(declared) != array.ndim or differ:
            extents = ",".join("?" if n is None else str(n) for n in declared)
            found = show(array.shape)
            raise InvalidShape(f"its value has the shape {found}, declared is [{extents}]")
        if wanted.kind in "iub" and array.dtype.kind not in "iub":
            raise InvalidOperation(f"its value is {array.dtype.name}, it holds {wanted.name}")
        return rounding.saturated(array, wanted)

    def shape(self, name: str, declared: Sequence[int | str | None]) -> Shape:
        """Return the shape of an input: the one asked for, else the one declared.

        An extent that is declared by a name may be given by it.
        """
        shape = self.input_shapes.get(name, declared)
        extents = (self.extents.get(n) if isinstance(n, str) else n for n in shape)
        return tuple([self.open_extent if extent is None else extent for extent in extents])


class Format(Protocol):
    """A format, which is a package: it imports what it reads with when it reads."""

    # The members that hold a network's graph: one of them is at the top of its container.
    GRAPHS: Sequence[str]
    # Patterns of the first bytes of a file that is a network by itself, by what member it is then.
    ALONE: Mapping[str, bytes]
    # Whether all weights are one file beside that, which `load(weights=)` may name elsewhere.
    HAS_WEIGHTS_BESIDE: bool

    def recognises(self, archive: Archive) -> bool:
        """Tell whether a network that has one of `GRAPHS` is of this format."""
        ...

    def read(self, archive: Archive, options: Options) -> Frontend:
        """Return the checked document; NnefError for all that is wrong with it."""
        ...


class Frontend(ABC):
    """A checked document that can be flattened. Its archive is open while a network is read."""

    dialect: str  # what it is written in, as `nnef-jax summary` shows it
    inputs: Sequence[str]  # their names, in order
    outputs: Sequence[str]
    extensions: Sequence[str] = ()  # what it says that it needs beyond its format
    symbols: Sequence[str] = ()  # names of open extents
    synonyms: Mapping[str, str] = {}  # other names of inputs and outputs, each with the one above
    quantizes: bool = False  # whether tensors are rounded once they are computed
    integer: str = "int32"  # the dtype of literals that are whole numbers
    is_saved_flat: bool = False  # as all is that is no text in NNEF's language

    def describe_as(self, other: Frontend) -> None:
        """Say of this what is said of another front end, of the same document."""
        self.dialect, self.extensions = other.dialect, other.extensions
        self.quantizes, self.integer = other.quantizes, other.integer

    @abstractmethod
    def flatten(self, options: Options) -> Graph:
        """Return the flat graph for the shapes in `options.input_shapes`, else the document's.

        Raises NnefError; ExtentNeeded where its structure depends on an open extent.
        """

    @abstractmethod
    def stored(self, graph: Graph) -> Stored:
        """Return the data of the graph's variables; NnefError names all that are missing or wrong.

        The arrays have the dtypes of the graph, and are memory-mapped where possible.
        """

    def declared_shapes(self, options: Options) -> Shapes:
        """Return the shapes of the inputs as the document has them, in any order.

        Inputs whose shape depends on that of another are left out. It is asked for after
        ExtentNeeded alone.
        """
        return {}

    def state_shapes(self) -> Shapes:
        """Return the shapes of variables, by label, that differ from cycle to cycle.

        Variables whose shape stays are left out.
        """
        return {}

    def symbolic_shapes(self, symbol: Callable[[str], Any]) -> Mapping[str, Sequence[Any]]:
        """Return the shapes of inputs in symbols of the document, as far as it has names for them.

        `symbol` makes an extent of a name that arithmetic keeps open; others are integers, UNKNOWN.
        """
        return {}

    def extent_names(self) -> Mapping[str, Sequence[str]]:
        """Return the names of extents of inputs and outputs, "" for one without a name."""
        return {}

    def closing(self, function: str = "load") -> str:
        """Return the call of a function that sets open extents, by name where they have names."""
        extents = ", ".join(f"{name!r}: ..." for name in self.symbols)
        return f"{function}(..., input_shapes={f'{{{extents}}}' if extents else '...'})"

    def content(self) -> Iterable[object]:
        """Return everything but options that graphs depend on: texts, bytes or hashable objects.

        What tells the same is the same network; by default only a document itself is.
        """
        return [self]

    def spans(self) -> Mapping[str, Span]:
        """Return where the document assigns each of its names."""
        return {}

    def identifiers(self, graph: Graph) -> Mapping[str, str]:
        """Return the names of tensors of its graph, by what a saved graph.quant calls them."""
        return {name: name for name in self.spans() if name in graph.values}

    def unsavable(self) -> Sequence[NnefError]:
        """Return errors for what the whole network has that a flat document cannot say."""
        return ()

    def members(self, arrays: Mapping[str, Any], quantization: str | None) -> Written:
        """Return the archive of the document with other data for its variables, by label.

        `quantization` is the text of a graph.quant, None keeps the document's own.
        """
        raise UnsupportedError(f"a network of {self.dialect} cannot be saved")

    def flat_members(
        self,
        graph: Graph,
        options: Options,
        cut: Cut,
        arrays: Mapping[str, Any],
        quantization: str | None,
    ) -> Written:
        """Return the archive of a part of the document, flat, with rounding as operations.

        `graph` is the graph of the whole document for `options`, with which it was read. Raises
        UnsupportedError, naming all that the format cannot say.
        """
        raise UnsupportedError(f"a part of a network of {self.dialect} cannot be saved")

    def converted(self, graph: Graph, data: Arrays | None, *, flat: bool, keep: bool) -> Written:
        """Return the archive of the document as its format is written today, the graph first.

        The document is as it is, or flat. `graph` and `data` are those that it was read into; data
        are left out where there are none. With `keep` a format that is written as NNEF is written
        with custom operations for what that has not; otherwise there is UnsupportedError, naming
        all that the format cannot say.
        """
        raise UnsupportedError(f"a network of {self.dialect} cannot be converted")


@dataclass(frozen=True, slots=True)
class Written:
    """An archive to be written: its members by name, the graph first."""

    members: Mapping[str, Member]
    # Whether `load` is known to make the same graph of it. Otherwise it is read to be checked.
    reads_alike: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """The data of variables by label, and what is to be flattened from now on.

    That is another front end where the data decide what is rounded when the network runs.
    """

    data: dict[str, NDArray[Any]]
    frontend: Frontend
