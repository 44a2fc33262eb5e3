"""Builds flat graphs of tensors, traces them in jax, and lowers them to XLA.

A graph is built one operation at a time. `rules` has a rule for each kind of operation, such as
"matmul". `list(rules)` returns the kinds, `rules[kind].parameters` has the names of a kind's
operands and attributes, and `help(rules[kind].lower)` describes these operands and attributes. A
rule infers the types of results, and raises `InvalidOperation` for wrong operands. This error does
not tell where the operation is in the document. The caller of `GraphBuilder.operation` knows the
`Span`, catches the error, and shows both.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from lowering import UNKNOWN, Context, GraphBuilder, InvalidOperation, Source, Span
    >>> from lowering import TensorType, network, rules, trace
    >>> rules["matmul"].parameters
    ('A', 'B', 'transposeA', 'transposeB')
    >>> span = Span(Source("net.toy", "h = matmul x w"), offset=4, length=6)
    >>> builder = GraphBuilder()
    >>> x = builder.input("x", TensorType((UNKNOWN, 3), "float32"))
    >>> w = builder.variable("w", "weights", TensorType((4, 3), "float32"), None)
    >>> turns = {"transposeA": False, "transposeB": True}
    >>> (h,) = builder.operation("matmul", {"A": x, "B": w}, turns, ["h"], span)
    >>> (y,) = builder.operation("relu", {"x": h}, {}, ["y"])
    >>> try:
    ...     builder.operation("softmax", {"x": y}, {"axes": (2,)}, ["z"], span)
    ... except InvalidOperation as error:
    ...     print(f"{span}: {error}; {error.hint}")
    net.toy:1:5: 'axes' must lie in [0,2), it has 2; axes count from 0, the last one is 1
    >>> graph = builder.graph("net", [y], ["y"])

`trace` evaluates the graph under jax. It takes parameters and states by label, and inputs in order.
`network` turns a function that calls `trace` into a function that is one primitive. jax can
differentiate, batch and shard this function, and chooses its kernels when it lowers the primitive
for a platform.

    >>> def function(parameters, x):
    ...     return trace(graph, Context(), parameters, {}, [x])[y]
    >>> parameters, x = {"weights": jnp.ones((4, 3))}, jnp.ones((2, 3))
    >>> jax.jit(network(function))(parameters, x).shape
    (2, 4)
    >>> jax.grad(lambda parameters: network(function)(parameters, x).sum())(parameters)["weights"]
    Array([[2., 2., 2.],
           ...

If the parameters stay the same between calls, use `lower`. It returns two parts: the preparation,
which is computed once, and the call. Both parts take lists of arrays. In the example `leaves` has
the arrays of all arguments: first the parameters, then the inputs.

    >>> from lowering import differentiable, lower, prepared, target_of, traced
    >>> program, leaves, tree = traced(function, parameters, x)
    >>> arrays, inputs = leaves[: program.parameters], leaves[program.parameters :]
    >>> parts = lower(differentiable(program), target_of("cpu"))
    >>> call = jax.jit(parts.call, compiler_options=parts.options(True))
    >>> jax.tree.unflatten(tree, call(prepared(parts, arrays), inputs)).shape
    (2, 4)

To lower a program, types are sufficient: each array may be a `jax.ShapeDtypeStruct`. No device of
the target has to be attached.

    >>> parts = lower(differentiable(program), target_of("tpu"))
    >>> types = jax.eval_shape(parts.prepare, arrays)
    >>> lowered = jax.jit(parts.call).trace(types, inputs).lower(lowering_platforms=("tpu",))

`Divided` divides parameters over a mesh, for tensor parallelism; `help(Divided)` has an example.

Each name is imported when it is first used, so that `import lowering` itself does not load jax.
"""

from __future__ import annotations

from lowering.lazy import imported

# The constant of `typing` with this name. Importing `typing` would take most of the time of
# importing this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lowering.batches import NotSeparableError as NotSeparableError
    from lowering.batches import batch_axes as batch_axes
    from lowering.builder import GraphBuilder as GraphBuilder
    from lowering.contexts import holding as holding
    from lowering.emit import network as network
    from lowering.emit import preparation as preparation
    from lowering.errors import InvalidComputation as InvalidComputation
    from lowering.errors import InvalidOperation as InvalidOperation
    from lowering.errors import InvalidShape as InvalidShape
    from lowering.extents import UNKNOWN as UNKNOWN
    from lowering.fallback import About as About
    from lowering.fallback import named as named
    from lowering.fallback import or_else as or_else
    from lowering.graph import Graph as Graph
    from lowering.graph import Operation as Operation
    from lowering.graph import Rule as Rule
    from lowering.graph import TensorType as TensorType
    from lowering.graph import Value as Value
    from lowering.host import ALIGNMENT as ALIGNMENT
    from lowering.host import aligned as aligned
    from lowering.host import processor as processor
    from lowering.kernels import broadcast as broadcast
    from lowering.kernels import correlation as correlation
    from lowering.kernels import resampling as resampling
    from lowering.kernels import rounding as rounding
    from lowering.kernels import windows as windows
    from lowering.kernels.correlation import Slide as Slide
    from lowering.kernels.precision import widened as widened
    from lowering.location import Source as Source
    from lowering.location import Span as Span
    from lowering.machine import DEFAULT as DEFAULT
    from lowering.machine import Costs as Costs
    from lowering.machine import MachineProfile as MachineProfile
    from lowering.machine import held_profile as held_profile
    from lowering.ops import rules as rules
    from lowering.ops.elementwise import straight_through as straight_through
    from lowering.ops.signal import signal_axis as signal_axis
    from lowering.padding import NotPaddableError as NotPaddableError
    from lowering.padding import PaddedArray as PaddedArray
    from lowering.padding import PaddedFunction as PaddedFunction
    from lowering.parallel import Along as Along
    from lowering.parallel import Divided as Divided
    from lowering.parallel import Division as Division
    from lowering.parallel import divisions as divisions
    from lowering.pipeline import differentiable as differentiable
    from lowering.pipeline import lower as lower
    from lowering.pipeline import name_of as name_of
    from lowering.pipeline import traced as traced
    from lowering.pipeline import watched as watched
    from lowering.prepare import Preparing as Preparing
    from lowering.prepare import Split as Split
    from lowering.prepare import prepared as prepared
    from lowering.prepare import unprepared as unprepared
    from lowering.program import Program as Program
    from lowering.program_printing import described as described
    from lowering.recipe import Recipe as Recipe
    from lowering.registry import Registry as Registry
    from lowering.symbol_values import Dimensions as Dimensions
    from lowering.symbol_values import SymbolValues as SymbolValues
    from lowering.targets import mesh_target as mesh_target
    from lowering.targets import target_of as target_of
    from lowering.targets.portable import DIFFERENTIABLE as DIFFERENTIABLE
    from lowering.targets.target import Target as Target
    from lowering.tracing import Context as Context
    from lowering.tracing import apply_rule as apply_rule
    from lowering.tracing import compute as compute
    from lowering.tracing import trace as trace
    from lowering.work import is_mostly_bfloat16 as is_mostly_bfloat16
    from lowering.work import multiply_adds as multiply_adds
    from lowering.work import total as total

_HOMES = {
    "ALIGNMENT": "lowering.host",
    "About": "lowering.fallback",
    "Along": "lowering.parallel",
    "Context": "lowering.tracing",
    "Costs": "lowering.machine",
    "DEFAULT": "lowering.machine",
    "DIFFERENTIABLE": "lowering.targets.portable",
    "Divided": "lowering.parallel",
    "Dimensions": "lowering.symbol_values",
    "Division": "lowering.parallel",
    "Graph": "lowering.graph",
    "GraphBuilder": "lowering.builder",
    "InvalidComputation": "lowering.errors",
    "InvalidOperation": "lowering.errors",
    "InvalidShape": "lowering.errors",
    "MachineProfile": "lowering.machine",
    "NotPaddableError": "lowering.padding",
    "NotSeparableError": "lowering.batches",
    "Operation": "lowering.graph",
    "PaddedArray": "lowering.padding",
    "PaddedFunction": "lowering.padding",
    "Preparing": "lowering.prepare",
    "Program": "lowering.program",
    "Recipe": "lowering.recipe",
    "Registry": "lowering.registry",
    "Rule": "lowering.graph",
    "Slide": "lowering.kernels.correlation",
    "Source": "lowering.location",
    "Span": "lowering.location",
    "Split": "lowering.prepare",
    "SymbolValues": "lowering.symbol_values",
    "Target": "lowering.targets.target",
    "TensorType": "lowering.graph",
    "UNKNOWN": "lowering.extents",
    "Value": "lowering.graph",
    "aligned": "lowering.host",
    "apply_rule": "lowering.tracing",
    "batch_axes": "lowering.batches",
    "broadcast": "lowering.kernels",
    "compute": "lowering.tracing",
    "correlation": "lowering.kernels",
    "described": "lowering.program_printing",
    "differentiable": "lowering.pipeline",
    "divisions": "lowering.parallel",
    "held_profile": "lowering.machine",
    "holding": "lowering.contexts",
    "is_mostly_bfloat16": "lowering.work",
    "lower": "lowering.pipeline",
    "mesh_target": "lowering.targets",
    "multiply_adds": "lowering.work",
    "name_of": "lowering.pipeline",
    "named": "lowering.fallback",
    "network": "lowering.emit",
    "or_else": "lowering.fallback",
    "preparation": "lowering.emit",
    "prepared": "lowering.prepare",
    "processor": "lowering.host",
    "resampling": "lowering.kernels",
    "rounding": "lowering.kernels",
    "rules": "lowering.ops",
    "signal_axis": "lowering.ops.signal",
    "straight_through": "lowering.ops.elementwise",
    "target_of": "lowering.targets",
    "total": "lowering.work",
    "trace": "lowering.tracing",
    "traced": "lowering.pipeline",
    "unprepared": "lowering.prepare",
    "watched": "lowering.pipeline",
    "widened": "lowering.kernels.precision",
    "windows": "lowering.kernels",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    return imported(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
