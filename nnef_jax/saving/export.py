"""Writes a network as a file that jax loads without this package: StableHLO, and arrays.

If `params="beside"`, the file is a function serialised by `jax.export`. If `params="inside"`, it is
a .npz file (a zip archive without compression), which has that function as the member "function",
and the arrays as the members "params/LABEL.npy" and "state/LABEL.npy". In both cases the arrays are
arguments of the function. If they were constants of the StableHLO, they would be stored again for
each derivative, and the compiler would fold them after each load.
"""

from __future__ import annotations

import importlib.util
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from lowering.extents import UNKNOWN, is_symbolic, show
from lowering.graph import Value
from nnef_jax.calls.arguments import require_values
from nnef_jax.errors import InputError, NnefError, UnsupportedError, extra_missing, first_line
from nnef_jax.execution.definition import Arrays
from nnef_jax.execution.execution import Execution
from nnef_jax.options import names_of, require, require_choice, require_flags, require_path, shown
from nnef_jax.storage import files
from nnef_jax.storage.numpyfile import write_npz
from nnef_jax.wording.similar import did_you_mean

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
ENTRIES = ("apply", "step", "scan")
# In the text of a symbolic extent, jax reads these names as functions. No symbol may have one.
_FUNCTIONS = ("floordiv", "max", "min", "mod")
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def export(
    execution: Execution,
    path: str | os.PathLike[str],
    entry: str,
    platforms: Sequence[str],
    batch: str | None,
    constraints: Sequence[str],
    vjp_order: int,
    params: str,
    overwrite: bool,
) -> None:
    """Write a file with a function that runs a network. `Model.export` explains the arguments."""
    require_path("path", path)
    require_choice("entry", entry, ENTRIES)
    require_choice("params", params, ("inside", "beside"))
    require("vjp_order", vjp_order, int, "0, 1 or 2")
    require_flags(overwrite=overwrite)
    if vjp_order not in (0, 1, 2):
        raise InputError(f"vjp_order must be 0, 1 or 2, it is {vjp_order}")
    platforms = _checked_platforms(platforms)
    target = os.fsdecode(path)
    _, ending = os.path.splitext(target)
    if params == "inside" and ending not in ("", ".npz"):
        raise InputError(
            f"{target!r:.80}: with params='inside' the file is a .npz",
            hint="params='beside' writes a file for jax.export.deserialize",
        )
    files.check_target(target, overwrite=overwrite)
    # The arrays that are stored in the file if `params` is "inside".
    trees = {"params": execution.arrays.parameters()}
    if entry != "apply":
        trees["state"] = execution.arrays.initial_state()
    require_values("export", trees)
    input_types, open_states = _input_types(execution, entry, batch, constraints)
    types: dict[str, Any] = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), trees)
    if entry != "apply":
        types["state"] |= open_states
    argument_types = [*types.values(), *input_types]  # the parameters, the state and the inputs
    function = _function(execution, entry)
    serialised = _serialised(function, platforms, argument_types, vjp_order)
    with files.replacing(target, overwrite=overwrite) as file:
        if params == "beside":
            file.write(serialised)
            return
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(zipfile.ZipInfo("function"), serialised)
            for tree, arrays in trees.items():
                write_npz(archive, {f"{tree}/{label}": x for label, x in arrays.items()})


def _function(execution: Execution, entry: str) -> Callable[..., Any]:
    """Return a function that runs the network: "apply", "step" or "scan".

    The function takes the parameters, then the state for "step" and "scan", and then the inputs.
    """
    execution = execution.without_mesh()

    def apply(params: Arrays, *inputs: jax.Array) -> Any:
        """Run one cycle from the initial state. Return the outputs."""
        no_state: Arrays = {}
        return _as_tuple(execution.run(execution.outputs, no_state, inputs, params))

    def step_or_scan(params: Arrays, state: Arrays, *inputs: jax.Array) -> Any:
        """Run one cycle or several cycles from a state. Return the outputs and the next state."""
        entry_to_run = execution.scan if entry == "scan" else execution.step
        outputs, next_state = execution.run(entry_to_run, state, inputs, params)
        return _as_tuple(outputs), next_state

    function = apply if entry == "apply" else step_or_scan
    function.__name__ = entry  # jax.export stores the name of the function in the file.
    return function


def _without_paths() -> AbstractContextManager[object]:
    """Return a context in which lowered programs contain no paths of source files.

    The names of operations stay in the programs. The context affects the current thread only.
    `jax.config.update` would affect all threads.
    """
    # The setting is in a private module of jax, because jax has no public name for it.
    config: Any = importlib.import_module("jax._src.config")
    return config.traceback_in_locations_limit(0)


def _as_tuple(outputs: object) -> object:
    """Return several outputs as a plain tuple, and a single output unchanged.

    The type of a namedtuple exists only in this process, so it cannot be exported.
    """
    return tuple(outputs) if isinstance(outputs, tuple) else outputs  # pyright: ignore[reportUnknownArgumentType]


def _serialised(
    function: Callable[..., object],
    platforms: Sequence[str],
    types: Sequence[object],
    vjp_order: int,
) -> bytes:
    """Export a function by jax, for arguments of the types `types`, and serialise it.

    Raises UnsupportedError if jax cannot export the function.
    """
    if importlib.util.find_spec("flatbuffers") is None:
        # jax.export serialises by flatbuffers, which jax does not install.
        raise extra_missing("exporting needs flatbuffers", "export")
    try:
        with _without_paths():
            exported = jax.export.export(jax.jit(function), platforms=platforms)(*types)
            return bytes(exported.serialize(vjp_order=vjp_order))
    except NnefError:
        raise
    except Exception as error:
        # jax raises errors of many classes for shapes and for lowering.
        hints = ["a callback in a rule of your own cannot be exported"]
        if len(platforms) > 1:
            hints.insert(0, "export for one of the platforms")
        if vjp_order:
            hints.insert(0, "export with vjp_order=0")
        extents = chain.from_iterable(x.shape for x in jax.tree.leaves(types))
        if any(map(is_symbolic, extents)):
            hints = [
                "close open extents by load(..., input_shapes=...)",
                "constrain them, as in constraints=['x_2 >= 8', 'x_2 == z_2']",
            ]
        shapes = ", ".join(show(x.shape) for x in types if isinstance(x, jax.ShapeDtypeStruct))
        raise UnsupportedError(
            f"jax cannot export the network for inputs {shapes} on {', '.join(platforms)}: "
            f"{first_line(error)}",
            hint="; or ".join(hints),
        ) from error


def _checked_platforms(platforms: Sequence[str]) -> tuple[str, ...]:
    """Return the names of platforms without repetitions, after checking them.

    Raises TypeError if they are not a list of names, and InputError for an unknown name.
    """
    names = tuple(dict.fromkeys(names_of("platforms", platforms, "names of platforms")))
    if not names:
        raise InputError("platforms is empty", hint=f"take some of {', '.join(PLATFORMS)}")
    for name in names:
        if name not in PLATFORMS:
            hint = did_you_mean(name, PLATFORMS)
            if name.lower() == "gpu":
                hint = "a GPU is 'cuda' or 'rocm'"
            message = f"platforms has '{name}', it may have {', '.join(PLATFORMS)}"
            raise InputError(message, hint=hint)
    return names


def _input_types(
    execution: Execution, entry: str, batch: str | None, constraints: Sequence[str]
) -> tuple[list[jax.ShapeDtypeStruct], dict[str, jax.ShapeDtypeStruct]]:
    """Return the types of inputs and of open states, with a symbol for each open extent.

    If the document names an extent, the symbol has this name. The symbol of a first axis without a
    name is `batch`, unless `batch` is None. Any other symbol consists of the name of the input, or
    the label of the state, and the number of the axis, as in 'x_2'.

    Raises TypeError or InputError for wrong arguments.
    """
    network = execution.network
    is_scan = entry == "scan"
    texts = names_of("constraints", constraints, "texts such as 'b >= 2'")
    _require_batch_name(batch)
    symbols = _Symbols(_scope(texts))
    named_shapes = network.frontend.symbolic_shapes(symbols.symbol)

    def extent_of(name: str, axis: int, declared: int) -> Any:
        """Return the declared extent of an axis, or the symbol for an open extent."""
        if declared is not UNKNOWN:
            return declared
        if name in named_shapes:
            named_extent = named_shapes[name][axis]
            if is_symbolic(named_extent):
                return named_extent
        if axis == 0 and batch:
            return symbols.symbol(batch)
        return symbols.symbol(f"{name}_{axis}", origin="axis")

    def type_of(name: str, value: Value, *, has_time_axis: bool = False) -> jax.ShapeDtypeStruct:
        """Return the type of an input, or of a state."""
        shape = [extent_of(name, axis, extent) for axis, extent in enumerate(value.type.shape)]
        if has_time_axis:
            shape.insert(0, symbols.symbol("time", origin="cycles"))
        return jax.ShapeDtypeStruct(shape, jnp.dtype(value.type.dtype))

    input_types: list[jax.ShapeDtypeStruct] = []
    for value in network.graph.inputs:
        input_types.append(type_of(value.name, value, has_time_axis=is_scan))
    open_states: dict[str, jax.ShapeDtypeStruct] = {}
    if entry != "apply":
        for state in network.graph.states:
            if state.label in network.open_states:
                open_states[state.label] = type_of(state.label, state.value)
    if is_scan and not input_types:
        message = "a network without inputs has no time axis"
        raise InputError(message, hint="export its step")
    _require_symbols(texts, symbols.names)
    return input_types, open_states


def _require_batch_name(batch: str | None) -> None:
    """Raise TypeError or InputError unless `batch` can be the name of a symbol, or is None."""
    if batch is None:
        return
    require("batch", batch, str, "a name or None")
    is_name = _NAME.fullmatch(batch) and batch not in _FUNCTIONS
    if not is_name:
        raise InputError(f"batch must be a name such as 'b', it is {shown(batch)}")


def _require_symbols(constraints: Sequence[str], symbol_names: Sequence[str]) -> None:
    """Raise InputError if a constraint contains a name that no open extent has."""
    for name in _NAME.findall(" ".join(constraints)):
        if name not in symbol_names and name not in _FUNCTIONS:
            shown_names = ", ".join(symbol_names) or "none"
            raise InputError(
                f"constraints name '{name}', the open extents are {shown_names}",
                hint=did_you_mean(name, symbol_names),
            )


class _Symbols:
    """The symbols of `jax.export` for open extents. Each has a different name."""

    def __init__(self, scope: jax.export.SymbolicScope) -> None:
        self.names: list[str] = []
        self._scope = scope
        self._symbols: dict[tuple[str, str], Any] = {}

    def symbol(self, text: str, origin: str = "name") -> Any:
        """Return the symbol for a text. The name of the symbol is similar to the text.

        There is one symbol for each pair of a text and an origin. `origin` is "name" for names in
        the document, "axis" for texts that are made for an axis, and "cycles" for the cycles of a
        scan.
        """
        key = origin, text
        if key not in self._symbols:
            # A name may have letters, digits and "_", but no digit at its start. "a.b" becomes
            # "a_b", and "2x" becomes "_2x".
            name = re.sub(r"^(?=[0-9])|[^A-Za-z_0-9]", "_", text)
            while name in self.names or name in _FUNCTIONS:
                name += "_"
            self.names.append(name)
            (self._symbols[key],) = jax.export.symbolic_shape(name, scope=self._scope)
        return self._symbols[key]


def _scope(constraints: Sequence[str]) -> jax.export.SymbolicScope:
    """Return a scope of symbols with the given constraints.

    Raises InputError for a constraint that jax does not understand.
    """
    try:
        return jax.export.SymbolicScope(constraints)
    except Exception as error:
        # jax's parser of constraints raises errors of many classes.
        message = f"constraints {shown(', '.join(constraints))} are wrong: {first_line(error)}"
        raise InputError(message, hint="write them as in 'b >= 2', 'x_2 == 2*z_2'") from None
