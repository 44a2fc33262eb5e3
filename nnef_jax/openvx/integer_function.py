"""Turns a network into one function of raw integers, in the arithmetic of a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from numpy.typing import ArrayLike

from lowering import Context
from lowering.extents import Shape
from lowering.graph import is_float
from nnef_jax.analysis.argument_checks import require_model
from nnef_jax.calls.arguments import Input, Params, bind_inputs
from nnef_jax.errors import InputError, UnsupportedError, at_operation, raise_all
from nnef_jax.model import Model
from nnef_jax.openvx.plan import PlanStep, plan_of
from nnef_jax.openvx.plan_evaluation import (
    Evaluation,
    Prepared,
    Values,
    overflow_mask,
    real,
    weights_name,
)
from nnef_jax.openvx.profile import ProfileReport, check_profile, declared_shapes
from nnef_jax.openvx.profiles import Choices, FixedPointProfile, profile_of
from nnef_jax.openvx.tensor import Tensor, checked_position
from nnef_jax.openvx.vx_errors import wrong_format
from nnef_jax.wording.similar import did_you_mean
from nnef_jax.workings import bind, checked_params, network_of, packed

if TYPE_CHECKING:
    from nnef_jax.openvx.error_statistics import Stats


class Lowered:
    """A network in the fixed-point arithmetic of a profile, as `lower` returns it.

    A call takes and returns raw integers as `Tensor`s. Inputs are passed by position or by name.
    Several outputs are a NamedTuple with the graph's names. The call is jitted, and `jax.vmap` can
    map it.
    """

    def __init__(self, model: Model, choices: Choices) -> None:
        self.model = model
        self.choices = choices
        self._evaluations: dict[tuple[Shape, ...], Evaluation] = {}
        # Prepared weights. A key has a pair for each step: the names of the step and of its layer.
        self._weights: dict[tuple[object, ...], Prepared] = {}
        self._raw = jax.jit(self._run_raw)
        self._real = jax.jit(self._run_real)
        self._applied = jax.jit(self._run_applied)
        self._inside = jax.jit(self._run_inside)
        declared = self.evaluation(declared_shapes(model))
        if choices.on_unfit == "error":
            raise_all(declared.plan.unfit)
        self._require_known_positions(declared)

    def __reduce__(self) -> tuple[Any, ...]:
        return Lowered, (self.model, self.choices)

    def __repr__(self) -> str:
        choices = self.choices
        policies = f"{choices.overflow_policy}, {choices.rounding_policy}, {choices.semantics}"
        network = f"{self.model.graph.name} {choices.profile.name}"
        return f"<nnef_jax.openvx.Lowered {network}: {policies}>"

    @property
    def report(self) -> ProfileReport:
        """Return the report of `check_profile`, which names the layer of each operation."""
        profile = self.choices.profile
        return check_profile(
            self.model, profile.name, dtype=profile.dtype, semantics=self.choices.semantics
        )

    @property
    def steps(self) -> Sequence[PlanStep]:
        """Return the steps that compute the network for the declared shapes, in order."""
        return self.evaluation(declared_shapes(self.model)).plan.needed

    @cached_property
    def clipped(self) -> dict[str, int]:
        """Return a dict that maps the name of an operand to its number of clipped weights.

        Such weights are outside the range of the fixed-point type. A name consists of the names of
        a layer and an operand, such as "conv1.filter". Operands without such weights are left out.
        """
        evaluation = self.evaluation(declared_shapes(self.model))
        weights = self.real_weights(evaluation)
        names: list[str] = []
        for step, _ in evaluation.tensor_steps:
            names += [weights_name(step, operand_name) for operand_name in weights[step.name]]
        if not names:
            return {}
        counts = jax.jit(evaluation.clipped)(weights)
        # jit has sorted the keys of `counts`. `names` are in the order of the network.
        return {name: int(counts[name]) for name in names if counts[name]}

    def __call__(self, *args: Tensor | ArrayLike, **kwargs: Tensor | ArrayLike) -> Any:
        """Run the network on tensors of raw integers.

        A tensor must have the type of the profile. Its fixed-point position must be that of the
        profile, unless the argument `positions` of `lower` has another position for the input.
        Raises TypeError for other objects, VxError for other types and positions, and InputError
        for other shapes.
        """
        inputs = _bind_tensors(self.model, args, kwargs)
        shapes = [tuple(x.shape) for x in inputs]
        evaluation = self.evaluation(shapes)
        for value, x in zip(evaluation.plan.graph.inputs, inputs, strict=True):
            if isinstance(x, Tensor):
                position = evaluation.positions[value]
                _require_format(value.name, x, self.choices.profile, position)
        return self._raw(self._prepared_weights(shapes), inputs)

    def float(self, *args: ArrayLike, **kwargs: ArrayLike) -> Any:
        """Run the network in fixed point on floating-point inputs.

        Inputs are rounded to fixed point, and outputs are converted to floating point.
        """
        inputs = bind(self.model, args, kwargs)
        weights = self._prepared_weights([x.shape for x in inputs])
        return self._real(weights, inputs)

    def apply(self, params: Params, *args: ArrayLike, **kwargs: ArrayLike) -> Any:
        """Run the network as a pure function of parameters and inputs in floating point.

        The values are those of `float`, with one exception: folded weights, tables, softmax, and
        operations without a layer of OpenVX are computed in floating point and then rounded. These
        values may differ by one unit, since the two functions are compiled separately.

        Derivatives pass straight through rounding: they are derivatives of the floating-point
        network at the values in fixed point, and 0 where a number is cut off (straight-through
        estimation, arXiv:1308.3432). In this way parameters can be trained for the profile:

        >>> gradient = jax.grad(lambda params: loss(fixed.apply(params, x)))(model.params)

        Args:
            params: arrays by label, as in `model.params`.
            args: inputs in the order of the graph.
            kwargs: inputs by name.
        """
        params = checked_params(self.model, params)
        inputs = bind(self.model, args, kwargs)
        return self._applied(params, [jnp.asarray(x) for x in inputs])

    def intermediates(self, *args: ArrayLike, **kwargs: ArrayLike) -> dict[str, Tensor | Array]:
        """Return all tensors inside the network as a dict by name, for floating-point inputs.

        A `Tensor` is in fixed point. If no layer of OpenVX computes an operation, the result of the
        operation is a floating-point array instead.
        """
        inputs = bind(self.model, args, kwargs)
        tensors, _ = self.inside(*inputs)
        return tensors

    def inside(
        self, *inputs: Array, instead: Mapping[str, Array] | None = None
    ) -> tuple[dict[str, Tensor | Array], dict[str, Array]]:
        """Return two dicts with names as keys: the tensors inside the network, and masks.

        A mask tells which items of a tensor overflow. Only tensors that can overflow have a mask.
        `instead` maps names of tensors to floating-point arrays. Operations that read such a tensor
        get the array instead.
        """
        weights = self._prepared_weights([x.shape for x in inputs])
        return self._inside(weights, list(inputs), dict(instead or {}))

    def entering(self, *inputs: Array) -> tuple[dict[str, Tensor | Array], dict[str, Array]]:
        """Return two dicts with names as keys: the inputs in fixed point, and masks.

        A mask tells which items of an input overflow.
        """
        evaluation = self.evaluation([x.shape for x in inputs])
        names = [value.name for value in evaluation.plan.graph.inputs]
        reals = dict(zip(names, inputs, strict=True))
        tensors = dict(zip(names, evaluation.inputs(inputs), strict=True))
        masks: dict[str, Array] = {}
        for name, x in tensors.items():
            if isinstance(x, Tensor):
                masks[name] = overflow_mask(reals[name], x)
        return tensors, masks

    def stats(
        self, *inputs: Input, rtol: float = 0.1, atol: float = 0.0, isolate: bool = False
    ) -> Stats:
        """Compare the fixed-point tensors of the network with its floating-point tensors.

        The inputs are floating-point arrays for a single call, or for a set of calls. In a set each
        input has an additional first axis, over which `jax.vmap` maps both networks. All tensors
        are held in memory.

        Each tensor has these figures. `low` and `high` are the extremes. `beyond` is the share of
        items that were cut off or wrapped, or NaN if neither can happen. `absolute` is the largest
        error. `snr` is 10 log10(sum of squares / sum of squared errors). `reason` is why the tensor
        differs, as in `analysis.compare`, and "" if all items are within tolerance. If `isolate`,
        `own_snr` is the SNR of a layer whose operands have the values of the floating-point
        network.

        `to_dict()` is `{"tensors": {name: {"name", "layer", "shape", "position", "low", "high",
        "beyond", "absolute", "snr", "reason", "own_snr"}}, "clipped": {name: count}, "samples",
        "first": name or None}`.

        Args:
            inputs: the inputs in order, or one dict by name.
            rtol, atol: the tolerances. An item differs if its error exceeds `atol + rtol *
                max(|item|, rms of the tensor)`, where rms is the root mean square.
            isolate: whether each layer is also run on the tensors of the floating-point network.

        >>> print(fixed.stats(images))
        """
        from nnef_jax.openvx.error_statistics import statistics

        return statistics(self, inputs, rtol=rtol, atol=atol, isolate=isolate)

    def quantize(self, *args: ArrayLike, **kwargs: ArrayLike) -> tuple[Tensor, ...]:
        """Convert floating-point inputs of a call to fixed point."""
        inputs = bind(self.model, args, kwargs)
        return tuple(self.evaluation([x.shape for x in inputs]).inputs(inputs))

    # The functions that are jitted

    def _run_raw(self, weights: Prepared, inputs: list[Tensor | Array]) -> Any:
        """Return the outputs in fixed point, for inputs in fixed point; see `__call__`."""
        evaluation = self.evaluation([x.shape for x in inputs])
        values, _ = evaluation.run(weights, inputs)
        return self._packed(evaluation, values)

    def _run_real(self, weights: Prepared, inputs: list[Array]) -> Any:
        """Return the outputs in floating point; see `float`."""
        evaluation = self.evaluation([x.shape for x in inputs])
        values, _ = evaluation.run(weights, evaluation.inputs(inputs))
        return jax.tree.map(real, self._packed(evaluation, values), is_leaf=_is_tensor)

    def _run_applied(self, params: Params, inputs: list[Array]) -> Any:
        """Return the outputs in floating point, with derivatives; see `apply`."""
        evaluation = self.evaluation([x.shape for x in inputs])
        weights = evaluation.real_weights(params)
        fixed_weights = evaluation.prepared(weights, static=False)
        fixed_inputs = evaluation.inputs(jax.lax.stop_gradient(inputs))
        exact, _ = evaluation.run(fixed_weights, fixed_inputs)
        values = evaluation.straight_through(exact, weights, inputs)
        outputs = [values[value] for value in evaluation.plan.graph.outputs]
        return packed(self.model, outputs)

    def _run_inside(
        self, weights: Prepared, inputs: list[Array], instead: Mapping[str, Array]
    ) -> tuple[dict[str, Tensor | Array], dict[str, Array]]:
        """Return the tensors inside the network, and masks of overflow; see `inside`."""
        evaluation = self.evaluation([x.shape for x in inputs])
        graph = evaluation.plan.graph
        replaced = {graph.values[name]: x for name, x in instead.items()}
        values, masks = evaluation.run(weights, evaluation.inputs(inputs), replaced)
        by_name = {value.name: x for value, x in values.items() if value not in graph.inputs}
        return by_name, {value.name: mask for value, mask in masks.items()}

    def _packed(self, evaluation: Evaluation, values: Values) -> Any:
        """Return the outputs as a call returns them, in fixed point. They are among `values`."""
        outputs = [
            evaluation.fixed(value, values[value]) for value in evaluation.plan.graph.outputs
        ]
        return packed(self.model, outputs)

    def _prepared_weights(self, shapes: Sequence[Shape]) -> Prepared:
        """Return the weights, prepared for inputs of the shapes `shapes`.

        The result is cached, and shared by all `shapes` for which the steps have the same layers.
        """
        evaluation = self.evaluation(shapes)
        names: list[tuple[str, str]] = []
        for step in evaluation.plan.needed:
            names.append((step.name, step.layer.name if step.layer else ""))
        key = tuple(names)
        if key in self._weights:
            return self._weights[key]
        are_traced = any(isinstance(x, Tracer) for x in self.model.params.values())
        if are_traced:
            # The weights are valid only in this trace, so they are not cached.
            return evaluation.prepared(self.real_weights(evaluation), static=False)
        # The weights are computed now, even if a call is being traced.
        with jax.ensure_compile_time_eval():
            weights = self.real_weights(evaluation)
            self._weights[key] = evaluation.prepared(weights, static=True)
        return self._weights[key]

    def real_weights(self, evaluation: Evaluation) -> dict[str, dict[str, Array]]:
        """Return the weights of all steps as dicts: `result[step name][operand name]`.
        Weights are the operands that depend only on parameters and constants. They are in floating
        point.
        """
        return evaluation.real_weights(self.model.params)

    def evaluation(self, shapes: Sequence[Shape]) -> Evaluation:
        """Return the network's plan and fixed-point positions for inputs of these shapes."""
        key = tuple(map(tuple, shapes))
        if key not in self._evaluations:
            choices = self.choices
            graph = network_of(self.model).specialise(key)
            plan = plan_of(graph, choices.profile, choices.semantics)
            if choices.on_unfit == "error":
                raise_all(plan.unfit)
            refusal = partial(at_operation, family=UnsupportedError)
            context = Context(jax.lax.Precision.HIGHEST, straight_through=True, refusal=refusal)
            positions = plan.positions(choices)
            self._evaluations[key] = Evaluation(plan, choices, context, positions)
        return self._evaluations[key]

    def _require_known_positions(self, evaluation: Evaluation) -> None:
        """Raise an error for a wrong entry of the argument `positions`.

        Raises VxError for a position out of range, and InputError for a name that no tensor has.
        """
        if not self.choices.positions:
            return
        weights = self.real_weights(evaluation)
        names = {value.name for value in evaluation.positions}
        for step in evaluation.plan.needed:
            names |= {weights_name(step, name) for name in weights[step.name]}
        for name, position in self.choices.positions:
            checked_position(position)
            if name not in names:
                hint = did_you_mean(name, names)
                raise InputError(f"positions: there is no tensor '{name}'", hint=hint)


def lower(
    model: Model,
    profile: str = "openvx-16bit",
    *,
    overflow_policy: Literal["saturate", "wrap"] = "saturate",
    rounding_policy: Literal["to_zero", "nearest_even"] = "nearest_even",
    semantics: Literal["spec", "khronos"] = "spec",
    on_unfit: Literal["error", "float"] = "error",
    dtype: str | None = None,
    positions: Mapping[str, int] | None = None,
    strict: bool = True,
) -> Lowered:
    """Return a network as a function in the fixed-point arithmetic of a profile, bit by bit.

    Batch normalisation, and factors and offsets for each channel, are folded into the weights of
    the layer before them. Then weights are rounded once, to nearest even, and saturated
    (`Lowered.clipped` counts the weights that were cut off). Each group of a convolution is a layer
    on a view of the group's channels. A function that is no activation of OpenVX becomes a table,
    with a result for each number of the type.

    Args:
        model: a model of any format, without state. An open first axis of an input is the batch.
        profile: "openvx-16bit" (int16, Q7.8) or "openvx-8bit" (int8).
        overflow_policy: "saturate" or "wrap", for results outside the type.
        rounding_policy: "to_zero" or "nearest_even", for results of `mul`, and of layers that sum
            products.
        semantics: "spec" follows the equations in the text of OpenVX. "khronos" follows the
            published C code with its quirks (see docs/openvx.md).
        on_unfit: what happens to operations that no layer of the profile computes. "float" computes
            them in floating point, and "error" raises an error for them.
        dtype: "uint8" for the 8-bit profile without signs.
        positions: maps names of tensors, and of weights such as "conv1.filter" (layer and operand),
            to fixed-point positions. The default is the position of the profile.
            `search_positions` computes such a dict.
        strict: False allows positions other than the profile's. OpenVX itself does not.

    Raises an UnsupportedError that lists all operations that no layer of the profile computes. Also
    raises UnsupportedError for a network with state, InputError for open shapes and unknown names,
    and TypeError or ValueError for wrong arguments.

    >>> fixed = nnef_jax.openvx.lower(model, "openvx-16bit", overflow_policy="wrap")
    >>> integers = fixed(nnef_jax.openvx.Tensor.quantize(image))
    """
    require_model(model)
    choices = Choices.of(
        profile_of(profile, dtype),
        overflow_policy,
        rounding_policy,
        semantics,
        on_unfit,
        strict,
        positions,
    )
    return Lowered(model, choices)


def _is_tensor(x: object) -> bool:
    return isinstance(x, Tensor)


def _bind_tensors(
    model: Model, args: tuple[Tensor | ArrayLike, ...], kwargs: Mapping[str, Tensor | ArrayLike]
) -> list[Any]:
    """Return the inputs of a call in the order of the graph, after checking them.

    A floating-point input must be passed as a `Tensor`, otherwise TypeError is raised. An integer
    input is passed as an array. Raises InputError for wrong names and shapes.
    """
    dtypes = {value.name: value.type.dtype for value in model.graph.inputs}
    # `args` may be shorter than `dtypes`, since the last inputs may be passed by name. If `args` is
    # longer, `bind_inputs` below raises the error.
    positional = dict(zip(dtypes, args, strict=False))
    inputs = positional | dict(kwargs)
    for name, x in inputs.items():
        if is_float(dtypes.get(name, "float32")) and not isinstance(x, Tensor):
            hint = "Tensor.quantize makes a Tensor, .float(...) takes real numbers"
            raise TypeError(f"'{name}' must be a Tensor, not {type(x).__name__}: {hint}")

    def spec(name: str, x: Tensor | ArrayLike) -> ArrayLike | jax.ShapeDtypeStruct:
        """Return a tensor's shape together with the dtype that the graph's input `name` has."""
        if not isinstance(x, Tensor):
            return x
        return jax.ShapeDtypeStruct(x.shape, dtypes.get(name, "float32"))

    specs = [spec(name, x) for name, x in positional.items()]
    named_specs = {name: spec(name, x) for name, x in kwargs.items()}
    surplus = args[len(dtypes) :]
    bind_inputs(network_of(model), (*specs, *surplus), named_specs, abstract=True)
    return [inputs[name] for name in dtypes]


def _require_format(name: str, x: Tensor, profile: FixedPointProfile, position: int) -> None:
    """Raise VxError unless an input has the type of the profile and the position `position`."""
    if str(x.dtype) != profile.dtype:
        wrong_format(f"input '{name}' has the type {x.dtype}, {profile.name} takes {profile.dtype}")
    actual = x.fixed_point_position
    if actual != position:
        wrong_format(f"input '{name}' has the fixed_point_position {actual}, it must be {position}")
