"""Reports the layer of OpenVX that computes each operation of a network, or why none does."""

from __future__ import annotations

from dataclasses import dataclass

from lowering.extents import UNKNOWN, Shape, is_known, show
from lowering.graph import Graph, Operation
from nnef_jax.analysis.argument_checks import require_model
from nnef_jax.errors import InputError, UnsupportedError, raise_all
from nnef_jax.model import Model
from nnef_jax.openvx.plan import Plan, PlanStep, plan_of
from nnef_jax.openvx.profiles import SEMANTICS, profile_of
from nnef_jax.options import require_choice
from nnef_jax.results import Result, Table, table_of
from nnef_jax.workings import network_of


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """The layer of OpenVX that computes an operation, or the reason why there is none.

    Args:
        name: the name of the first result.
        kind: the kind of the operation.
        layer: the name of the node, such as "vxConvolutionLayer", or "2 x vxConvolutionLayer" for
            two nodes. It is "view" for an operation without arithmetic. It is "vx_tensor" for a
            result that depends only on parameters. It is "in NAME" for an operation that is folded
            into the weights of another operation. It is "" if there is no layer.
        fits: whether there is a layer.
        reason: why there is no layer.
    """

    name: str
    kind: str
    layer: str
    fits: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ProfileReport(Result):
    """The result of `check_profile`: a `NodeReport` for each operation, in order."""

    profile: str
    dtype: str
    nodes: tuple[NodeReport, ...]

    @property
    def fits(self) -> bool:
        """Tell whether layers of OpenVX compute all operations."""
        return all(node.fits for node in self.nodes)

    def to_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return super().to_dict() | {"fits": self.fits}

    def table(self) -> Table:
        """Return a table with a line for each operation."""
        rows = [[node.name, node.kind, node.layer, node.reason] for node in self.nodes]
        unfit_count = sum(not node.fits for node in self.nodes)
        verdict = "all operations fit"
        if unfit_count:
            verdict = f"{unfit_count} of {len(rows)} operations do not fit"
        title = f"{self.profile} ({self.dtype}): {verdict}"
        return table_of(title, ["tensor", "operation", "OpenVX", "does not fit because"], rows)


def check_profile(
    model: Model, profile: str, *, dtype: str | None = None, semantics: str = "spec"
) -> ProfileReport:
    """Report the layer of OpenVX that computes each operation of a network, or why none does.

    The first axis of an input may be open, and is the batch. `to_dict()` is `{"profile", "dtype",
    "fits", "nodes": [{"name", "kind", "layer", "fits", "reason"}]}`.

    Args:
        model: a model of any format.
        profile: "openvx-8bit" or "openvx-16bit" (the extension, 1.6).
        dtype: "uint8" for the 8-bit profile without signs.
        semantics: "spec" for the text, or "khronos" for the published C code. Padding takes part in
            a maximum according to the text, but not in the C code.

    Raises UnsupportedError for a network with state, InputError for open shapes, and TypeError or
    ValueError for wrong arguments.

    >>> print(nnef_jax.openvx.check_profile(model, "openvx-16bit"))
    """
    require_model(model)
    require_choice("semantics", semantics, SEMANTICS)
    fixed_point = profile_of(profile, dtype)
    graph = network_of(model).specialise(declared_shapes(model))
    plan = plan_of(graph, fixed_point, semantics)
    steps = {step.operation: step for step in plan.steps}
    nodes = tuple([_report(x, steps.get(x), plan) for x in plan.graph.operations])
    return ProfileReport(profile=fixed_point.name, dtype=fixed_point.dtype, nodes=nodes)


def _report(operation: Operation, step: PlanStep | None, plan: Plan) -> NodeReport:
    """Return the report of an operation.

    `step` is the step of the plan that begins with the operation, or None if there is none.
    """
    reason = ""
    if operation in plan.folded:
        layer = f"in {plan.folded[operation].operation.name}"
    elif step is None:  # the operation depends only on parameters
        layer = "vx_tensor"
    else:
        layer = step.layer.name if step.layer else ""
        reason = step.reason
    return NodeReport(
        name=operation.name, kind=operation.kind, layer=layer, fits=bool(layer), reason=reason
    )


def _require_no_states(graph: Graph) -> None:
    """Raise UnsupportedError for a graph with state."""
    errors: list[UnsupportedError] = []
    for state in graph.states:
        message = f"'{state.label}' is state, but graphs of OpenVX keep no state between runs"
        hint = "model.cut(inputs=..., outputs=...) returns the part without it"
        errors.append(UnsupportedError(message, span=state.span, hint=hint))
    raise_all(errors)


def declared_shapes(model: Model) -> list[Shape]:
    """Return the declared shapes of inputs, with 1 for an open first axis, which is the batch.

    Raises UnsupportedError for a network with state, and InputError for other open extents.
    """
    graph = model.graph
    _require_no_states(graph)
    network = network_of(model)
    spans = network.frontend.spans()
    shapes: list[Shape] = []
    errors: list[InputError] = []
    for value in graph.inputs:
        name = value.name
        shape = value.type.shape
        has_open_batch = len(shape) > 0 and shape[0] is UNKNOWN
        if has_open_batch:
            shape = (1, *shape[1:])
        shapes.append(shape)
        if not is_known(shape):
            text = show(shape, network.extent_names.get(name, ()))
            message = f"the shape of input '{name}' is open: {text}"
            hint = f"give it by load(..., input_shapes={{{name!r}: ...}})"
            error = InputError(
                f"{message}, but tensors of OpenVX have known extents",
                span=spans.get(name),
                hint=hint,
            )
            errors.append(error)
    raise_all(errors)
    return shapes
