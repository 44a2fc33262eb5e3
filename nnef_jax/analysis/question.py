"""Questions about a network: a score of an output as a function of one tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from numpy.typing import ArrayLike

from lowering.extents import show
from lowering.graph import Graph, Operation, Value, is_float
from lowering.ops import FAMILIES
from nnef_jax.analysis.argument_checks import array_from, broadcast, require_model
from nnef_jax.analysis.captum_names import KEYWORDS
from nnef_jax.calls.arguments import Params, Sample, arguments_of
from nnef_jax.errors import InputError
from nnef_jax.execution.probe import Edits, hint_for
from nnef_jax.model import Model
from nnef_jax.options import numpy_of, require, require_keywords, shown
from nnef_jax.workings import bind, graph_for, rounds_straight_through

# A class, classes [batch], or a function of the outputs. None is the class with the highest score.
Target = ArrayLike | Callable[..., ArrayLike] | None
_SATURATES = ("softmax", "log_softmax", "sigmoid")
_QUANTIZES = tuple(kind for kind in FAMILIES["quantize"] if kind.endswith("_quantize"))
_ROUNDS = (*_QUANTIZES, "round")
_PASSES = ("copy", "log", "reshape", "squeeze", "unsqueeze", *_QUANTIZES)


class TensorOptions(TypedDict, total=False):
    """The keyword arguments `wrt`, the explaining tensor, and `params` of `saliency`."""

    wrt: str | None
    params: Params | None


class QuestionOptions(TensorOptions, total=False):
    """The keyword arguments `target` and `output` of `saliency`, and `wrt` and `params`."""

    target: Target
    output: str | None


class LayerGradient(NamedTuple):
    """The score of each item, [batch], the tensor of a layer, and the gradient at this tensor."""

    scores: Array
    values: Array
    gradient: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Question:
    """A score for each item of a batch, as a function of the tensor `wrt`. A question is a pytree.

    Args:
        model: the network with its parameters.
        inputs: the inputs of a call, in order.
        classes: the class of each item, int32 [batch]. It is None if `with_classes` has to
            choose the classes, or if `score` is a function.
        wrt: the name of an input, or of a tensor inside.
        output: the name of the output or tensor with the scores; "" for all outputs.
        score: a function from outputs to scores [batch], or None if the scores are those of
            classes.
    """

    model: Model
    inputs: tuple[Any, ...]
    classes: Array | None
    wrt: str = field(metadata={"static": True})
    output: str = field(metadata={"static": True})
    score: Callable[[Any], Any] | None = field(metadata={"static": True})

    def value(self) -> Array:
        """Return the tensor `wrt`, computed from the inputs."""
        if self.position is not None:
            return jnp.asarray(self.inputs[self.position])
        return self.model(*self.inputs, capture=[self.wrt])[1][self.wrt]

    def start(self, baseline: ArrayLike) -> Array:
        """Return the tensor `wrt`, computed from a baseline instead of the inputs.

        The baseline replaces the floating-point inputs from which the tensor `wrt` is computed. If
        `wrt` is an input, or depends only on integer inputs, the baseline replaces the tensor
        itself.
        """
        x = self.value()
        needed = self.graph.dependencies([self.graph.values[self.wrt]])
        is_source = [value in needed and is_float(value.type.dtype) for value in self.graph.inputs]
        if self.position is not None or not any(is_source):
            return _filled(self.wrt, baseline, x)
        inputs = list(self.inputs)
        for i, value in enumerate(self.graph.inputs):
            if is_source[i]:
                inputs[i] = _filled(value.name, baseline, inputs[i])
        return replace(self, inputs=tuple(inputs)).value()

    def run(self, x: Array, edit: Edits | None = None, capture: Sequence[str] = ()) -> Any:
        """Return `output`, or all outputs, and captured tensors by name.

        `x` replaces the tensor `wrt`. `edit` has functions that change tensors, by name, and
        `capture` has the names of the captured tensors.
        """
        inputs = list(self.inputs)
        edits = dict(edit or {})
        if self.position is None:
            # An edit of `wrt` is applied to `x`.
            change: Any = edits.get(self.wrt)
            edits[self.wrt] = x if change is None else change(x)
        else:
            inputs[self.position] = x
        names = self.model.graph.output_names
        is_inside = self.output != "" and self.output not in names
        if is_inside:
            capture = [*capture, self.output]
        outputs, captured = self.model(*inputs, edit=edits, capture=capture)
        if is_inside:
            outputs = captured[self.output]
        elif self.output and len(names) > 1:
            outputs = outputs[names.index(self.output)]
        return outputs, captured

    def entries(self, outputs: Any) -> Array:
        """Return the scores of all classes, [batch, class], as means over all further axes."""
        y = jnp.asarray(outputs)
        return y[:, None] if y.ndim == 1 else y.mean(axis=tuple(range(2, y.ndim)))

    def scores(self, outputs: Any) -> Array:
        """Return the score of each item, [batch]."""
        if self.score is None:
            assert self.classes is not None
            return jnp.take_along_axis(self.entries(outputs), self.classes[:, None], 1)[:, 0]
        scores = array_from("target", self.score(outputs))
        batch = self.batch
        is_real = jnp.issubdtype(scores.dtype, jnp.floating)
        if scores.shape != (batch,) or not is_real:
            message = f"target returns {scores.dtype}{show(scores.shape)}"
            hint = f"return a real score for each item of '{self.wrt}': [{batch}]"
            raise InputError(message, hint=hint)
        return scores

    def scores_at(self, x: Array) -> Array:
        """Return the score of each item, [batch], if `x` replaces the tensor `wrt`."""
        return self.scores(self.run(x)[0])

    def gradient(self, x: Array) -> tuple[Array, Array]:
        """Return the score of each item, [batch], and the gradient of the scores at `x`."""
        self.require_derivative()

        def total(x: Array) -> tuple[Array, Array]:
            scores = self.scores_at(x)
            return scores.sum(), scores

        gradient, scores = jax.grad(total, has_aux=True)(x)
        return scores, gradient

    def layer_gradient(self, x: Array, layer: str) -> LayerGradient:
        """Return the scores, the tensor of a layer, and the scores' gradient at this tensor."""
        type = self.graph.values[layer].type
        self.require_derivative(layer)

        def total(added: Array) -> tuple[Array, tuple[Array, Array]]:
            outputs, captured = self.run(x, {layer: lambda tensor: tensor + added}, [layer])
            scores = self.scores(outputs)
            return scores.sum(), (scores, captured[layer])

        zero = jnp.zeros([int(extent) for extent in type.shape], type.dtype)
        gradient, (scores, values) = jax.grad(total, has_aux=True)(zero)
        return LayerGradient(scores, values, gradient)

    def require_derivative(self, name: str | None = None) -> None:
        """Raise InputError if rounding makes every derivative by a tensor 0.

        The tensor is named `name`, and is `wrt` by default.
        """
        graph = self.graph
        named = graph.values | dict(zip(graph.output_names, graph.outputs, strict=True))
        scored = [named[self.output]] if self.output else graph.outputs
        require_derivative(self.model, graph, [graph.values[name or self.wrt]], scored)

    def with_classes(self, x: Array) -> Question:
        """Return the question with classes.

        A question without classes gets the classes with the highest scores at `x`.
        """
        if self.classes is not None or self.score is not None:
            return self
        best = self.entries(self.run(x)[0]).argmax(1).astype(jnp.int32)
        return replace(self, classes=best)

    @property
    def graph(self) -> Graph:
        """Return the graph of the network for the shapes of the inputs."""
        return graph_for(self.model, self.inputs)

    @property
    def position(self) -> int | None:
        """Return the position of `wrt` among the inputs, or None for a tensor inside."""
        names = [value.name for value in self.model.graph.inputs]
        return names.index(self.wrt) if self.wrt in names else None

    @property
    def count(self) -> int:
        """Return the number of classes of the output."""
        graph = self.graph
        names = dict(zip(graph.output_names, graph.outputs, strict=True))
        return _classes_of(names.get(self.output) or graph.values[self.output])

    @property
    def batch(self) -> int:
        """Return the number of items of the tensor `wrt`."""
        return _batch_of(self.graph.values[self.wrt])


def ask(
    function: str, model: Model, inputs: Sequence[Sample], options: Mapping[str, Any]
) -> Question:
    """Check the arguments of an analysis, and return its question.

    `options` are `QuestionOptions`. `function` is the name of the analysis. Raises TypeError for
    arguments of wrong types. Raises InputError for names that the graph lacks, classes that the
    output lacks, and tensors without a derivative.
    """
    require_keywords(function, options, QuestionOptions.__annotations__, KEYWORDS)
    target, output, wrt, params = map(options.get, ("target", "output", "wrt", "params"))
    require_model(model)
    if params is not None:
        model = model.with_params(params)
    arrays = tuple(bound(model, inputs))
    graph = graph_for(model, arrays)
    source = tensor_named(graph, "wrt", wrt) if wrt is not None else _first_real(graph)
    _require_real(graph, "wrt", source)
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    if output is None:
        output = next(iter(outputs)) if len(outputs) == 1 else ""
        if output and not callable(target):
            output = _logits(graph, output)
    if output and output not in outputs:
        outputs = {output: tensor_named(graph, "output", output)}
    if callable(target):
        return Question(model, arrays, None, source.name, output, target)
    if not output:
        message = f"the network has outputs {', '.join(outputs)}"
        raise InputError(message, hint="name one by output=, or give a function of all as target")
    scored = outputs[output]
    _require_real(graph, "output", scored)
    batch = _batch_of(source)
    if _batch_of(scored) != batch:
        message = f"'{output}' is {scored.type}, '{source.name}' is {source.type}"
        hint = "the first axis of both is the batch; a function as target may return [batch] scores"
        raise InputError(message, hint=hint)
    classes = _classes(target, batch, _classes_of(scored), output)
    return Question(model, arrays, classes, source.name, output, None)


def require_derivative(
    model: Model, graph: Graph, sources: Iterable[Value], results: Iterable[Value]
) -> None:
    """Raise InputError if every path from `sources` to `results` stops derivatives.

    A path stops derivatives if it passes through rounding or integers.
    """
    kinds = () if rounds_straight_through(model) else _ROUNDS
    stop = _stopping_operation(graph, sources, results, kinds)
    if stop is not None:
        reason = "is rounded" if stop.kind in kinds else "is of integers"
        hint = "occlusion and feature_ablation need no derivatives"
        if _stopping_operation(graph, sources, results, ()) is None:
            hint = 'load(..., quantization="ste") passes derivatives straight through rounding'
        message = f"all derivatives are 0: '{stop.name}' {reason}"
        raise InputError(message, span=stop.span, hint=hint)


def _stopping_operation(
    graph: Graph, sources: Iterable[Value], results: Iterable[Value], kinds: Sequence[str]
) -> Operation | None:
    """Return the first operation from `sources` to `results` that stops derivatives.

    An operation stops derivatives if its kind is in `kinds`, or if all its results are integers.
    Return None if a path from `sources` to `results` avoids all of them.
    """
    with_derivative = set(sources)
    first_stop = None
    for operation in graph.operations:
        if with_derivative.isdisjoint(operation.reads()):
            continue
        real_results = [value for value in operation.writes() if is_float(value.type.dtype)]
        if real_results and operation.kind not in kinds:
            with_derivative.update(real_results)
        else:
            first_stop = first_stop or operation
    return first_stop if with_derivative.isdisjoint(results) else None


def require_derivatives(model: Model, graph: Graph, sources: Iterable[Value]) -> None:
    """Raise InputError if rounding makes the derivatives at one of `sources` 0.

    Rounding does so if all paths from the source to outputs pass through it.
    """
    if rounds_straight_through(model):
        return
    connected = _differentiable(graph, ())
    unrounded = _differentiable(graph, _ROUNDS)
    for value in sources:
        if value in connected and value not in unrounded:
            require_derivative(model, graph, [value], graph.outputs)


def _differentiable(graph: Graph, avoided: Sequence[str]) -> set[Value]:
    """Return the tensors that are connected to an output by a path of floating-point tensors.

    Paths through operations of the kinds `avoided` do not count.
    """
    connected = {value for value in graph.outputs if is_float(value.type.dtype)}
    for operation in reversed(graph.operations):
        leads_to_output = not connected.isdisjoint(operation.writes())
        if leads_to_output and operation.kind not in avoided:
            connected.update(value for value in operation.reads() if is_float(value.type.dtype))
    return connected


def bound(model: Model, inputs: Sequence[Sample]) -> list[Any]:
    """Return the inputs of a call in graph order.

    `inputs` are the inputs in graph order, or one dict by name.
    """
    args, kwargs = arguments_of(inputs)
    texts = [x for x in args if isinstance(x, str)]
    surplus_integers = [x for x in args[len(model.inputs) :] if isinstance(x, int)]
    for x in [*texts, *surplus_integers]:
        hint = "options have names, such as target=3, wrt='conv1' and layer='conv1'"
        raise InputError(f"{x!r} is among the inputs of the call", hint=hint)
    return bind(model, args, kwargs)


def tensor_named(graph: Graph, argument: str, name: str) -> Value:
    """Return the input or computed tensor with a name.

    Raises InputError if there is none. `argument` is the name of the caller's argument, for the
    message.
    """
    require(argument, name, str, "a name of a tensor")
    tensor = graph.values.get(name)
    if tensor is None:
        message = f"{argument}: the graph has no tensor '{name}'"
        raise InputError(message, hint=hint_for(name, graph, graph.values))
    if any(tensor is variable.value for variable in (*graph.parameters, *graph.states)):
        message = f"{argument}: '{name}' is a variable, the same for all items of a batch"
        raise InputError(message, hint="name an input or the result of an operation")
    return tensor


def _filled(name: str, baseline: ArrayLike, x: Array) -> Array:
    return broadcast("baseline", jnp.asarray(baseline, x.dtype), name, x.shape)


def _logits(graph: Graph, output: str) -> str:
    """Return the name of the logits if an output is their softmax or sigmoid, else `output`.

    Warns if the output is a softmax or sigmoid, but the graph has no logits with an entry for each
    class of the output.
    """
    makers = {value: x for x in graph.operations for value in x.writes()}
    final = dict(zip(graph.output_names, graph.outputs, strict=True))[output]
    value = final
    maker = makers.get(value)
    while maker is not None and maker.kind in _PASSES:
        value = next(maker.reads())
        maker = makers.get(value)
    logits = None if maker is None else _operand_of_saturation(maker, makers)
    if logits is None:
        return output
    has_same_classes = _batch_and_classes(logits) == _batch_and_classes(final)
    has_name = graph.values.get(logits.name) is logits
    if has_name and has_same_classes:
        return logits.name
    message = f"'{output}' saturates by '{value.name}', its gradients vanish"
    warnings.warn(f"{message}: name a tensor before it by output=", stacklevel=4)
    return output


def _batch_and_classes(value: Value) -> tuple[int, ...]:
    """Return the first two extents of a tensor, the batch and the number of classes.

    An axis that is missing counts as an axis of extent 1.
    """
    return (*value.type.shape, 1, 1)[:2]


def _operand_of_saturation(operation: Operation, makers: dict[Value, Operation]) -> Value | None:
    """Return the operand of a softmax or sigmoid, or None for another operation.

    A softmax may also be the quotient of `exp` and its sum.
    """
    if operation.kind in _SATURATES:
        return next(operation.reads())
    reads = [*operation.reads()]
    if operation.kind != "div" or len(reads) != 2:
        return None
    numerator, denominator = map(makers.get, reads)
    if numerator is None or denominator is None:
        return None
    if numerator.kind != "exp" or denominator.kind != "sum_reduce":
        return None
    exponent = next(numerator.reads())
    difference = makers.get(exponent)
    if difference is not None and difference.kind == "sub":
        # The maximum is subtracted from the logits.
        exponent = next(difference.reads())
    return exponent if next(denominator.reads()) is reads[0] else None


def _first_real(graph: Graph) -> Value:
    for value in graph.inputs:
        if is_float(value.type.dtype):
            return value
    if not graph.inputs:
        raise InputError("a network without inputs has nothing to explain")
    names = ", ".join(f"'{value.name}' of {value.type.dtype}" for value in graph.inputs)
    raise InputError(f"no input is real: {names}", hint=_inside(graph))


def _require_real(graph: Graph, argument: str, value: Value) -> None:
    if not is_float(value.type.dtype):
        message = f"{argument}: '{value.name}' is of {value.type.dtype}, which has no derivative"
        hint = _inside(graph) if argument == "wrt" else "name another by output="
        raise InputError(message, hint=hint)
    if not value.type.shape:
        raise InputError(f"{argument}: '{value.name}' has no axes, the first would be the batch")


def _inside(graph: Graph) -> str:
    """Return a hint that names a tensor inside: embeddings, or the first floating-point tensor."""
    varies = set(graph.inputs)
    by_kind: dict[str, str] = {}
    for operation in graph.operations:
        if varies.isdisjoint(operation.reads()):
            continue
        varies.update(operation.writes())
        for value in operation.writes():
            has_name = graph.values.get(value.name) is value
            if has_name and is_float(value.type.dtype):
                by_kind.setdefault(operation.kind, value.name)
    name = by_kind.get("gather") or next(iter(by_kind.values()), "")
    return f"explain a tensor inside: wrt='{name}'" if name else "no tensor inside is real either"


def _batch_of(value: Value) -> int:
    return int(value.type.shape[0])


def _classes_of(value: Value) -> int:
    shape = value.type.shape
    return int(shape[1]) if len(shape) > 1 else 1


def _classes(target: object, batch: int, count: int, output: str) -> Array | None:
    if target is None:
        return None
    message = f"target must be a class, one for each item, or a function; it is {shown(target)}"
    classes = target if isinstance(target, jax.Array) else numpy_of(target, InputError, message)
    is_integer = classes.dtype.kind in "iu"
    if not is_integer or classes.shape not in ((), (batch,)):
        type = shown(target) if not classes.shape else f"{classes.dtype}{show(classes.shape)}"
        message = f"target must be an integer, integers [{batch}] or a function; it is {type}"
        hint = "a function of the outputs returns any score: target=lambda y: y[:, 3, 1]"
        raise InputError(message, hint=hint)
    if not isinstance(classes, Tracer):
        wrong = [int(x) for x in np.ravel(np.asarray(classes)) if not 0 <= x < count]
        if wrong:
            message = f"target {wrong[0]} is no class of '{output}', which has {count}"
            raise InputError(message, hint=f"classes are 0 to {count - 1}")
    return jnp.broadcast_to(jnp.asarray(classes).astype(jnp.int32), (batch,))
