"""What is asked about a network: which score of which output, and which tensor explains it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from numpy.typing import ArrayLike

from lowering.extents import Shape, show
from lowering.graph import Graph, Operation, Value, is_float
from lowering.ops import FAMILIES
from nnef_jax.analysis.captum_names import KEYWORDS
from nnef_jax.calls.arguments import Params, arguments_of, is_key
from nnef_jax.errors import InputError
from nnef_jax.execution.probe import Edits, hint_for
from nnef_jax.model import Model
from nnef_jax.options import numpy_of, require, require_keywords, shown
from nnef_jax.workings import bind, graph_for, rounds_straight_through

# A class, a class for each item, or a function of outputs; the class with the best score.
Target = ArrayLike | Callable[..., ArrayLike] | None
_SATURATES = ("softmax", "log_softmax", "sigmoid")
_QUANTIZES = tuple(kind for kind in FAMILIES["quantize"] if kind.endswith("_quantize"))
_ROUNDS = (*_QUANTIZES, "round")
_PASSES = ("copy", "log", "reshape", "squeeze", "unsqueeze", *_QUANTIZES)


class TensorOptions(TypedDict, total=False):
    """Keywords of `saliency` that say what explains, and on which parameters."""

    wrt: str | None
    params: Params | None


class QuestionOptions(TensorOptions, total=False):
    """Keywords of `saliency` that say what is explained, and by what."""

    target: Target
    output: str | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Question:
    """A score for each item of a batch, as a function of one tensor; a pytree.

    Args:
        model: the network, on the parameters that it is asked about.
        inputs: all of them, in order.
        classes: the class of each item; None if it is not known yet, or the score has none.
        wrt: the name of the tensor that explains: an input, or a tensor inside.
        output: the name of the output or tensor that scores are of; "" for all outputs.
        score: a function of outputs, if it is not the entry of a class.
    """

    model: Model
    inputs: tuple[Any, ...]
    classes: Array | None
    wrt: str = field(metadata={"static": True})
    output: str = field(metadata={"static": True})
    score: Callable[[Any], Any] | None = field(metadata={"static": True})

    def value(self) -> Array:
        """Return the tensor that explains, as it is at the inputs."""
        if self.position is not None:
            return jnp.asarray(self.inputs[self.position])
        return self.model(*self.inputs, capture=[self.wrt])[1][self.wrt]

    def start(self, baseline: Any) -> Array:
        """Return the tensor at a baseline of the real inputs that it is computed from.

        Without any, of an input or of what follows from ids, it is the tensor's own baseline.
        """
        x, value, inputs = self.value(), self.graph.values[self.wrt], list(self.inputs)
        needed = self.graph.dependencies([value])
        found = [v in needed and is_float(v.type.dtype) for v in self.graph.inputs]
        if self.position is not None or not any(found):
            return _filled(self.wrt, baseline, x)
        for i, v in enumerate(self.graph.inputs):
            inputs[i] = _filled(v.name, baseline, inputs[i]) if found[i] else inputs[i]
        return replace(self, inputs=tuple(inputs)).value()

    def run(self, x: Array, edit: Edits | None = None, capture: Sequence[str] = ()) -> Any:
        """Return outputs and captured tensors for another value of the tensor that explains."""
        inputs, edits = list(self.inputs), dict(edit or {})
        if self.position is None:
            change: Any = edits.get(self.wrt, lambda x: x)
            edits[self.wrt] = change(x)
        else:
            inputs[self.position] = x
        names = self.model.graph.output_names
        inside = self.output != "" and self.output not in names
        wanted = [*capture, self.output] if inside else capture
        outputs, found = self.model(*inputs, edit=edits, capture=wanted)
        if inside:
            outputs = found[self.output]
        elif self.output and len(names) > 1:
            outputs = outputs[names.index(self.output)]
        return outputs, found

    def entries(self, outputs: Any) -> Array:
        """Return the scores of all classes, [batch, class]: means over axes after these."""
        y = jnp.asarray(outputs)
        return y[:, None] if y.ndim == 1 else y.mean(axis=tuple(range(2, y.ndim)))

    def scores(self, outputs: Any) -> Array:
        """Return the score of each item, [batch]."""
        if self.score is None:
            assert self.classes is not None
            return jnp.take_along_axis(self.entries(outputs), self.classes[:, None], 1)[:, 0]
        found, batch = array_from("target", self.score(outputs)), self.batch
        if found.shape != (batch,) or not jnp.issubdtype(found.dtype, jnp.floating):
            message = f"target returns {found.dtype}{show(found.shape)}"
            hint = f"return a real score for each item of '{self.wrt}': [{batch}]"
            raise InputError(message, hint=hint)
        return found

    def at(self, x: Array) -> Array:
        """Return the score of each item for another value of the tensor that explains."""
        return self.scores(self.run(x)[0])

    def gradient(self, x: Array) -> tuple[Array, Array]:
        """Return the score of each item, and its gradient at a value of the tensor."""
        self.require_derivative()

        def total(x: Array) -> tuple[Array, Array]:
            scores = self.at(x)
            return scores.sum(), scores

        gradient, scores = jax.grad(total, has_aux=True)(x)
        return scores, gradient

    def layer_gradient(self, x: Array, layer: str) -> tuple[Array, Array, Array]:
        """Return the score of each item, a layer, and the gradient of the score at it."""
        type = self.graph.values[layer].type
        self.require_derivative(layer)

        def total(added: Array) -> tuple[Array, tuple[Array, Array]]:
            outputs, inside = self.run(x, {layer: lambda v: v + added}, [layer])
            scores = self.scores(outputs)
            return scores.sum(), (scores, inside[layer])

        zero = jnp.zeros([int(n) for n in type.shape], type.dtype)
        gradient, (scores, values) = jax.grad(total, has_aux=True)(zero)
        return scores, values, gradient

    def require_derivative(self, name: str | None = None) -> None:
        """Raise InputError if rounding makes all derivatives by a tensor 0, by default `wrt`."""
        graph = self.graph
        named = graph.values | dict(zip(graph.output_names, graph.outputs, strict=True))
        scored = [named[self.output]] if self.output else graph.outputs
        require_derivative(self.model, graph, [graph.values[name or self.wrt]], scored)

    def settled(self, x: Array) -> Question:
        """Return the question about the classes with the highest scores, if it names none."""
        if self.classes is not None or self.score is not None:
            return self
        best = self.entries(self.run(x)[0]).argmax(1).astype(jnp.int32)
        return replace(self, classes=best)

    @property
    def graph(self) -> Graph:
        """Return the graph for the shapes of the inputs."""
        return graph_for(self.model, self.inputs)

    @property
    def position(self) -> int | None:
        """Return which input the tensor is, None if it is inside."""
        names = [value.name for value in self.model.graph.inputs]
        return names.index(self.wrt) if self.wrt in names else None

    @property
    def count(self) -> int:
        """Return how many classes the output has scores of."""
        graph = self.graph
        names = dict(zip(graph.output_names, graph.outputs, strict=True))
        return _classes_of(names.get(self.output) or graph.values[self.output])

    @property
    def batch(self) -> int:
        """Return how many items there are."""
        return _batch_of(self.graph.values[self.wrt])


def ask(function: str, model: Model, inputs: Sequence[Any], options: Mapping[str, Any]) -> Question:
    """Return the question that arguments of an analysis ask; `options` are `QuestionOptions`.

    Raises TypeError for arguments of wrong types, InputError for names that the graph does not
    have, classes that the output does not have, and what has no derivative.
    """
    require_keywords(function, options, QuestionOptions.__annotations__, KEYWORDS)
    target, output, wrt, params = map(options.get, ("target", "output", "wrt", "params"))
    require_model(model)
    if params is not None:
        model = model.with_params(params)
    arrays = tuple(bound(model, inputs))
    graph = graph_for(model, arrays)
    explains = tensor_named(graph, "wrt", wrt) if wrt is not None else _first_real(graph)
    _require_real(graph, "wrt", explains)
    names = dict(zip(graph.output_names, graph.outputs, strict=True))
    if output is None:
        output = next(iter(names)) if len(names) == 1 else ""
        output = output if callable(target) or not output else _logits(graph, output)
    if output and output not in names:
        names = {output: tensor_named(graph, "output", output)}
    if output == "" and not callable(target):
        message = f"the network has outputs {', '.join(names)}"
        raise InputError(message, hint="name one by output=, or give a function of all as target")
    if callable(target):
        return Question(model, arrays, None, explains.name, output, target)
    scored = names[output]
    _require_real(graph, "output", scored)
    count, batch = _batch_of(scored), _batch_of(explains)
    if count != batch:
        message = f"'{output}' is {scored.type}, '{explains.name}' is {explains.type}"
        hint = "the first axis of both is the batch; a function as target may return [batch] scores"
        raise InputError(message, hint=hint)
    classes = _classes(target, batch, _classes_of(scored), output)
    return Question(model, arrays, classes, explains.name, output, None)


def require_derivative(
    model: Model, graph: Graph, sources: Iterable[Value], results: Iterable[Value]
) -> None:
    """Raise InputError if every path from some tensors to the results is rounded."""
    rounded = () if rounds_straight_through(model) else _ROUNDS
    stop = _stop(graph, sources, results, rounded)
    if stop is not None:
        message = f"all derivatives are 0: '{stop.name}' is rounded, or of integers"
        hint = "occlusion and feature_ablation need none"
        if _stop(graph, sources, results, ()) is None:
            hint = 'load(..., quantization="ste") passes them straight through rounding'
        raise InputError(message, span=stop.span, hint=hint)


def _stop(
    graph: Graph, sources: Iterable[Value], results: Iterable[Value], kinds: Sequence[str]
) -> Operation | None:
    """Return the first operation of some kinds, or of integers, if all paths have one."""
    reached, first = set(sources), None
    for operation in graph.operations:
        if not reached.isdisjoint(operation.reads()):
            real = [v for v in operation.writes() if is_float(v.type.dtype)]
            if real and operation.kind not in kinds:
                reached.update(real)
            else:
                first = first or operation
    return first if reached.isdisjoint(results) else None


def require_derivatives(model: Model, graph: Graph, sources: Iterable[Value]) -> None:
    """Raise InputError if rounding makes the derivatives of all outputs by a source 0."""
    if rounds_straight_through(model):
        return
    paths, unrounded = _differentiable(graph, ()), _differentiable(graph, _ROUNDS)
    for value in sources:
        if value in paths and value not in unrounded:
            require_derivative(model, graph, [value], graph.outputs)


def _differentiable(graph: Graph, kinds: Sequence[str]) -> set[Value]:
    """Return the tensors with a path of real tensors to an output, without some operations."""
    reached = {v for v in graph.outputs if is_float(v.type.dtype)}
    for operation in reversed(graph.operations):
        if operation.kind not in kinds and not reached.isdisjoint(operation.writes()):
            reached.update(v for v in operation.reads() if is_float(v.type.dtype))
    return reached


def bound(model: Model, inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs of a call in graph order, given as such or as one dict by name."""
    args, kwargs = arguments_of(inputs)
    spare = [x for x in args[len(model.inputs) :] if isinstance(x, int)]
    for x in [*(x for x in args if isinstance(x, str)), *spare]:
        hint = "options have names, such as target=3, wrt='conv1' and layer='conv1'"
        raise InputError(f"{x!r} is among the inputs of the call", hint=hint)
    return bind(model, args, kwargs)


def tensor_named(graph: Graph, what: str, name: Any) -> Value:
    """Return the input, or tensor computed inside, of a name that an argument gives."""
    require(what, name, str, "a name of a tensor")
    found = graph.values.get(name)
    if found is None:
        message = f"{what}: the graph has no tensor '{name}'"
        raise InputError(message, hint=hint_for(name, graph, graph.values))
    if any(found is v.value for v in (*graph.parameters, *graph.states)):
        message = f"{what}: '{name}' is a variable, the same for all items of a batch"
        raise InputError(message, hint="name an input or the result of an operation")
    return found


def require_model(model: Any) -> None:
    """Raise TypeError for what is no model."""
    require("model", model, Model, "a nnef_jax.Model")


def require_real(name: str, value: Any, *, least: float | None = 0) -> float:
    """Return a real number; raise TypeError or ValueError unless it is finite and large enough."""
    require(name, value, float | int | np.floating | np.integer, "a number")
    if not np.isfinite(value) or (least is not None and value < least):
        enough = "" if least is None else f"at least {least:g} and "
        raise ValueError(f"{name} must be {enough}finite, it is {value}")
    return float(value)


def require_count(name: str, value: Any) -> int:
    """Return a number of times; raise TypeError or ValueError for none that is positive."""
    require(name, value, int | np.integer, "an integer")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, it is {value}")
    return int(value)


def require_bounds(bounds: Any) -> tuple[float, float]:
    """Return a least and a largest value; raise TypeError or ValueError for what is none."""
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise TypeError(f"bounds must be a pair of numbers, it is {shown(bounds)}")
    low, high = (require_real("a bound", x, least=None) for x in bounds)
    if low >= high:
        raise ValueError(f"bounds must rise, they are {low:g} and {high:g}")
    return low, high


def require_key(key: Any) -> None:
    """Raise TypeError for what is no single key of `jax.random`."""
    if key is None or not is_key(key):
        raise TypeError(f"key must be one of jax.random.key(seed), it is {shown(key)}")


def array_from(name: str, returned: Any) -> Array:
    """Return the result of a caller's function as an array, else raise TypeError."""
    if not isinstance(returned, Array | np.ndarray | np.generic | float | int):
        raise TypeError(f"{name} must return an array, it returns {shown(returned)}")
    return jnp.asarray(returned)


def broadcast(argument: str, array: Any, tensor: str, shape: Shape) -> Array:
    """Return an argument's array in the shape of a tensor. Raises InputError if it does not fit."""
    try:
        return jnp.broadcast_to(array, [int(n) for n in shape])
    except ValueError:
        message = f"{argument} is {show(array.shape)}, '{tensor}' is {show(shape)}"
        raise InputError(message, hint="give a number, or an array that broadcasts") from None


def _filled(name: str, baseline: Any, x: Any) -> Array:
    return broadcast("baseline", jnp.asarray(baseline, x.dtype), name, x.shape)


def _logits(graph: Graph, output: str) -> str:
    """Return the tensor that scores are of: what a softmax or sigmoid at the end reads.

    Warns where an output of one has no such tensor of its shape.
    """
    makers = {value: x for x in graph.operations for value in x.writes()}
    final = value = dict(zip(graph.output_names, graph.outputs, strict=True))[output]
    while (maker := makers.get(value)) is not None and maker.kind in _PASSES:
        value = next(maker.reads())
    read = None if maker is None else _saturated(maker, makers)
    if read is None:
        return output
    wanted = (*final.type.shape, 1, 1)[:2]
    if graph.values.get(read.name) is read and (*read.type.shape, 1, 1)[:2] == wanted:
        return read.name
    message = f"'{output}' is what '{value.name}' saturates to, gradients vanish there"
    warnings.warn(f"{message}: name a tensor before it by output=", stacklevel=4)
    return output


def _saturated(operation: Operation, makers: dict[Value, Operation]) -> Value | None:
    """Return the operand of a softmax or sigmoid, one of single operations too, or None."""
    if operation.kind in _SATURATES:
        return next(operation.reads())
    reads = [*operation.reads()]
    if operation.kind != "div" or len(reads) != 2:
        return None
    above, below = map(makers.get, reads)
    if above is None or below is None or (above.kind, below.kind) != ("exp", "sum_reduce"):
        return None
    exponent = next(above.reads())
    shifted = makers.get(exponent)
    is_shifted = shifted is not None and shifted.kind == "sub"
    found = next(shifted.reads()) if shifted is not None and is_shifted else exponent
    return found if next(below.reads()) is reads[0] else None


def _first_real(graph: Graph) -> Value:
    for value in graph.inputs:
        if is_float(value.type.dtype):
            return value
    if not graph.inputs:
        raise InputError("a network without inputs has nothing to explain")
    names = ", ".join(f"'{value.name}' of {value.type.dtype}" for value in graph.inputs)
    raise InputError(f"no input is real: {names}", hint=_inside(graph))


def _require_real(graph: Graph, what: str, value: Value) -> None:
    if not is_float(value.type.dtype):
        message = f"{what}: '{value.name}' is of {value.type.dtype}, which has no derivative"
        raise InputError(
            message, hint=_inside(graph) if what == "wrt" else "name another by output="
        )
    if not value.type.shape:
        raise InputError(f"{what}: '{value.name}' has no axes, the first would be the batch")


def _inside(graph: Graph) -> str:
    """Return which tensor inside to explain instead: embeddings, or the first one that is real."""
    reached, found = set(graph.inputs), dict[str, str]()
    for operation in graph.operations:
        if not reached.isdisjoint(operation.reads()):
            reached.update(operation.writes())
            for value in operation.writes():
                if is_float(value.type.dtype) and graph.values.get(value.name) is value:
                    found.setdefault(operation.kind, value.name)
    name = found.get("gather") or next(iter(found.values()), "")
    return f"explain a tensor inside: wrt='{name}'" if name else "no tensor inside is real either"


def _batch_of(value: Value) -> int:
    return int(value.type.shape[0])


def _classes_of(value: Value) -> int:
    shape = value.type.shape
    return int(shape[1]) if len(shape) > 1 else 1


def _classes(target: Any, batch: int, count: int, output: str) -> Array | None:
    if target is None:
        return None
    message = f"target must be a class, one for each item, or a function; it is {shown(target)}"
    given = target if isinstance(target, jax.Array) else numpy_of(target, InputError, message)
    if given.dtype.kind not in "iu" or given.shape not in ((), (batch,)):
        found = shown(target) if not given.shape else f"{given.dtype}{show(given.shape)}"
        message = f"target must be an integer, integers [{batch}] or a function; it is {found}"
        hint = "a function of the outputs returns any score: target=lambda y: y[:, 3, 1]"
        raise InputError(message, hint=hint)
    if not isinstance(given, Tracer):
        wrong = [int(x) for x in np.ravel(np.asarray(given)) if not 0 <= x < count]
        if wrong:
            message = f"target {wrong[0]} is no class of '{output}', which has {count}"
            raise InputError(message, hint=f"classes are 0 to {count - 1}")
    return jnp.broadcast_to(jnp.asarray(given).astype(jnp.int32), (batch,))
