"""Questions about a network: a score of an output as a function of one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from numpy.typing import ArrayLike

from lowering.extents import show
from lowering.graph import Graph, Value, is_float
from nnef_jax.analysis.argument_checks import array_from, broadcast, require_model
from nnef_jax.analysis.captum_names import KEYWORDS
from nnef_jax.analysis.differentiability import require_derivative
from nnef_jax.analysis.logits import name_of_logits
from nnef_jax.calls.arguments import Params, Sample, arguments_of
from nnef_jax.errors import InputError
from nnef_jax.execution.probe import Edits, hint_for
from nnef_jax.model import Model
from nnef_jax.options import numpy_of, require, require_keywords, shown
from nnef_jax.workings import bind, graph_for

# A target is a class, an array of classes [batch], or a function of the outputs. None stands for
# the class with the highest score.
Target = ArrayLike | Callable[..., ArrayLike] | None


class TensorOptions(TypedDict, total=False):
    """The keyword arguments `wrt` and `params` of `saliency`."""

    wrt: str | None
    params: Params | None


class QuestionOptions(TensorOptions, total=False):
    """The keyword arguments `target`, `output`, `wrt` and `params` of `saliency`."""

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
        classes: the class of each item, int32 [batch]. It is None before `with_classes` chooses the
            classes, and always None if there is a `score_function`.
        wrt: the name of an input, or of a tensor inside the network.
        output: the name of the output or tensor with the scores; "" for all outputs.
        score_function: a function from outputs to scores [batch]; None if classes determine them.
    """

    model: Model
    inputs: tuple[Any, ...]
    classes: Array | None
    wrt: str = field(metadata={"static": True})
    output: str = field(metadata={"static": True})
    score_function: Callable[[Any], Any] | None = field(metadata={"static": True})

    def value(self) -> Array:
        """Return the tensor `wrt`, computed from the inputs."""
        if self.input_position is not None:
            return jnp.asarray(self.inputs[self.input_position])
        _, captured = self.model(*self.inputs, capture=[self.wrt])
        return captured[self.wrt]

    def value_at_baseline(self, baseline: ArrayLike) -> Array:
        """Return the tensor `wrt`, computed from a baseline instead of the inputs.

        The baseline replaces the floating-point inputs from which the tensor `wrt` is computed. If
        `wrt` is an input, or depends only on integer inputs, the baseline replaces the tensor
        itself.
        """
        if self.input_position is not None:
            return _filled(self.wrt, baseline, self.value())
        needed = self.graph.dependencies([self.graph.values[self.wrt]])
        depends_on_floats = False
        inputs = list(self.inputs)
        for index, value in enumerate(self.graph.inputs):
            if value in needed and is_float(value.type.dtype):
                depends_on_floats = True
                inputs[index] = _filled(value.name, baseline, inputs[index])
        if depends_on_floats:
            return replace(self, inputs=tuple(inputs)).value()
        return _filled(self.wrt, baseline, self.value())

    def run(self, x: Array, edit: Edits | None = None, capture: Sequence[str] = ()) -> Any:
        """Run the network with `x` as the tensor `wrt`; return its output and captured tensors.

        The output is the tensor `output`, or all outputs if `output` is "". The captured tensors
        are a dict from names to arrays.

        Args:
            x: the array that replaces the tensor `wrt`.
            edit: maps names of tensors to functions. A tensor is replaced by the result of its
                function.
            capture: the names of the captured tensors.
        """
        inputs = list(self.inputs)
        edits = dict(edit or {})
        if self.input_position is None:
            # `x` replaces the tensor `wrt`. An edit of `wrt` is therefore a function of `x`.
            edit_of_wrt: Any = edits.get(self.wrt)
            edits[self.wrt] = x if edit_of_wrt is None else edit_of_wrt(x)
        else:
            inputs[self.input_position] = x
        names = self.model.graph.output_names
        has_output_inside = self.output != "" and self.output not in names
        if has_output_inside:
            capture = [*capture, self.output]
        outputs, captured = self.model(*inputs, edit=edits, capture=capture)
        if has_output_inside:
            outputs = captured[self.output]
        elif self.output and len(names) > 1:
            outputs = outputs[names.index(self.output)]
        return outputs, captured

    def class_scores(self, outputs: Any) -> Array:
        """Return the scores of all classes, [batch, class].

        A score is a mean of the outputs over all axes after the first two.
        """
        array = jnp.asarray(outputs)
        if array.ndim == 1:
            return array[:, None]
        further_axes = tuple(range(2, array.ndim))
        return array.mean(axis=further_axes)

    def scores(self, outputs: Any) -> Array:
        """Return the score of each item, [batch], from the outputs of the network.

        Raises InputError if the target is a function that does not return such scores.
        """
        if self.score_function is None:
            assert self.classes is not None
            class_scores = self.class_scores(outputs)
            class_indices = self.classes[:, None]
            return jnp.take_along_axis(class_scores, class_indices, axis=1)[:, 0]
        scores = array_from("target", self.score_function(outputs))
        batch = self.batch
        is_real = jnp.issubdtype(scores.dtype, jnp.floating)
        if scores.shape != (batch,) or not is_real:
            message = f"target returns {scores.dtype}{show(scores.shape)}"
            hint = f"return a real score for each item of '{self.wrt}': [{batch}]"
            raise InputError(message, hint=hint)
        return scores

    def scores_at(self, x: Array) -> Array:
        """Return the score of each item, [batch], if `x` replaces the tensor `wrt`."""
        outputs, _ = self.run(x)
        return self.scores(outputs)

    def gradient(self, x: Array) -> tuple[Array, Array]:
        """Return the score of each item, [batch], and the gradient of the scores at `x`.

        Raises InputError if rounding makes the gradient 0.
        """
        self.require_derivative()

        def sum_and_scores(x: Array) -> tuple[Array, Array]:
            scores = self.scores_at(x)
            return scores.sum(), scores

        gradient, scores = jax.grad(sum_and_scores, has_aux=True)(x)
        return scores, gradient

    def layer_gradient(self, x: Array, layer: str) -> LayerGradient:
        """Return the scores, the tensor of a layer, and the scores' gradient at this tensor."""
        type = self.graph.values[layer].type
        self.require_derivative(layer)

        # jax differentiates with respect to arguments of a function, and the tensor is no argument.
        # Therefore an argument `added`, an array of zeros, is added to the tensor. The derivative
        # with respect to `added` is the derivative with respect to the tensor.
        def sum_and_tensors(added: Array) -> tuple[Array, tuple[Array, Array]]:
            edits: Edits = {layer: lambda tensor: tensor + added}
            outputs, captured = self.run(x, edits, [layer])
            scores = self.scores(outputs)
            return scores.sum(), (scores, captured[layer])

        zero = jnp.zeros([int(extent) for extent in type.shape], type.dtype)
        gradient, (scores, values) = jax.grad(sum_and_tensors, has_aux=True)(zero)
        return LayerGradient(scores, values, gradient)

    def require_derivative(self, name: str | None = None) -> None:
        """Raise InputError if rounding sets all derivatives of the scores at a tensor to 0.

        `name` is the name of the tensor, by default `wrt`.
        """
        graph = self.graph
        source = graph.values[name or self.wrt]
        scored = graph.outputs
        if self.output:
            value_by_name = graph.values | dict(zip(graph.output_names, graph.outputs, strict=True))
            scored = [value_by_name[self.output]]
        require_derivative(self.model, graph, [source], scored)

    def with_classes(self, x: Array) -> Question:
        """Return the question with classes.

        A question without classes gets the classes with the highest scores at `x`.
        """
        if self.classes is not None or self.score_function is not None:
            return self
        outputs, _captured = self.run(x)
        classes_of_items = self.class_scores(outputs).argmax(1)
        return replace(self, classes=classes_of_items.astype(jnp.int32))

    @property
    def graph(self) -> Graph:
        """Return the graph of the network for the shapes of the inputs."""
        return graph_for(self.model, self.inputs)

    @property
    def input_position(self) -> int | None:
        """Return the position of `wrt` among the inputs, or None if it is no input."""
        names = [value.name for value in self.model.graph.inputs]
        return names.index(self.wrt) if self.wrt in names else None

    @property
    def class_count(self) -> int:
        """Return the number of classes of the output."""
        graph = self.graph
        output_by_name = dict(zip(graph.output_names, graph.outputs, strict=True))
        if self.output in output_by_name:
            return _classes_of(output_by_name[self.output])
        return _classes_of(graph.values[self.output])

    @property
    def batch(self) -> int:
        """Return the number of items of the tensor `wrt`."""
        return _batch_of(self.graph.values[self.wrt])


def ask(
    function: str, model: Model, inputs: Sequence[Sample], options: Mapping[str, Any]
) -> Question:
    """Check the arguments of an analysis, and return its question.

    `options` are `QuestionOptions`. `function` is the name of the analysis, for errors. Raises
    TypeError for arguments of wrong types. Raises InputError for names that the graph lacks,
    classes that the output lacks, and tensors without a derivative.
    """
    require_keywords(function, options, QuestionOptions.__annotations__, KEYWORDS)
    target = options.get("target")
    output = options.get("output")
    wrt = options.get("wrt")
    params = options.get("params")
    require_model(model)
    if params is not None:
        model = model.with_params(params)
    arrays = tuple(bound(model, inputs))
    graph = graph_for(model, arrays)
    source = _first_real(graph) if wrt is None else tensor_named(graph, "wrt", wrt)
    _require_real(graph, "wrt", source)
    output_by_name = dict(zip(graph.output_names, graph.outputs, strict=True))
    if output is None:
        output = _default_output(graph, target)
    scored = output_by_name.get(output)
    if scored is None and output:
        scored = tensor_named(graph, "output", output)
    if callable(target):
        return Question(
            model, arrays, classes=None, wrt=source.name, output=output, score_function=target
        )
    if scored is None:
        message = f"the network has outputs {', '.join(output_by_name)}"
        raise InputError(message, hint="name one by output=, or give a function of all as target")
    _require_real(graph, "output", scored)
    batch = _batch_of(source)
    if _batch_of(scored) != batch:
        message = f"'{output}' is {scored.type}, '{source.name}' is {source.type}"
        hint = "the first axis of both is the batch; a function as target may return [batch] scores"
        raise InputError(message, hint=hint)
    classes = _classes(target, batch, _classes_of(scored), output)
    return Question(
        model, arrays, classes=classes, wrt=source.name, output=output, score_function=None
    )


def _default_output(graph: Graph, target: Target) -> str:
    """Return the name of the tensor with the scores, if the user names none.

    The tensor is the only output. If this output is the softmax or sigmoid of logits, the tensor is
    the logits instead. If there are several outputs, the name is "", which stands for all outputs.
    Only a function can then compute scores.
    """
    names = dict.fromkeys(graph.output_names)
    if len(names) != 1:
        return ""
    (output,) = names
    if callable(target):
        return output
    # The warning should point to the user's call of an analysis, such as `saliency`. This call is 5
    # levels up.
    return name_of_logits(graph, output, stacklevel=5)


def bound(model: Model, inputs: Sequence[Sample]) -> list[Any]:
    """Return the inputs of a call in graph order.

    `inputs` are the inputs in graph order, or one dict from names to inputs. Raises InputError if
    the user wrote an option among the inputs, such as a target without `target=`.
    """
    args, kwargs = arguments_of(inputs)
    # No input is a string, and a call has at most as many inputs as the model. If the user wrote a
    # string, or an integer too many, it is probably an option without its name, such as a target.
    texts = [argument for argument in args if isinstance(argument, str)]
    surplus = args[len(model.inputs) :]
    surplus_integers = [argument for argument in surplus if isinstance(argument, int)]
    options = [*texts, *surplus_integers]
    if options:
        hint = "options have names, such as target=3, wrt='conv1' and layer='conv1'"
        raise InputError(f"{options[0]!r} is among the inputs of the call", hint=hint)
    return bind(model, args, kwargs)


def tensor_named(graph: Graph, argument: str, name: str) -> Value:
    """Return the input or the computed tensor that has a name.

    Raises InputError if there is no tensor of this name, or if the tensor is a parameter or a
    state. `argument` is the argument in which the user wrote the name, for errors.
    """
    require(argument, name, str, "a name of a tensor")
    tensor = graph.values.get(name)
    if tensor is None:
        message = f"{argument}: the graph has no tensor '{name}'"
        raise InputError(message, hint=hint_for(name, graph, graph.values))
    variables = (*graph.parameters, *graph.states)
    is_variable = any(tensor is variable.value for variable in variables)
    if is_variable:
        message = f"{argument}: '{name}' is a variable, the same for all items of a batch"
        raise InputError(message, hint="name an input or the result of an operation")
    return tensor


def _filled(name: str, baseline: ArrayLike, x: Array) -> Array:
    """Broadcast a baseline to the shape and dtype of the tensor `x`, which is named `name`."""
    return broadcast("baseline", jnp.asarray(baseline, x.dtype), name, x.shape)


def _first_real(graph: Graph) -> Value:
    """Return the first floating-point input. Raises InputError if there is none."""
    for value in graph.inputs:
        if is_float(value.type.dtype):
            return value
    if not graph.inputs:
        raise InputError("a network without inputs has nothing to explain")
    names = ", ".join(f"'{value.name}' of {value.type.dtype}" for value in graph.inputs)
    raise InputError(f"no input is real: {names}", hint=_hint_inside(graph))


def _require_real(graph: Graph, argument: str, value: Value) -> None:
    """Raise InputError for a tensor that is not floating-point, or has no axes.

    `argument` is the argument that names the tensor, "wrt" or "output".
    """
    if not is_float(value.type.dtype):
        message = f"{argument}: '{value.name}' is of {value.type.dtype}, which has no derivative"
        hint = _hint_inside(graph) if argument == "wrt" else "name another by output="
        raise InputError(message, hint=hint)
    if not value.type.shape:
        raise InputError(f"{argument}: '{value.name}' has no axes, the first would be the batch")


def _hint_inside(graph: Graph) -> str:
    """Return a hint for `wrt`, with the name of a floating-point tensor inside the network.

    The tensor is the first result of a lookup of embeddings, or else the first such tensor.
    """
    varying = set(graph.inputs)
    # Maps kinds of operations to names. The name is that of the first tensor that an operation of
    # this kind computes.
    first_by_kind: dict[str, str] = {}
    for operation in graph.operations:
        if varying.isdisjoint(operation.reads()):
            continue
        varying.update(operation.writes())
        for value in operation.writes():
            has_name = graph.values.get(value.name) is value
            if has_name and is_float(value.type.dtype):
                first_by_kind.setdefault(operation.kind, value.name)
    if not first_by_kind:
        return "no tensor inside is real either"
    first_kind = next(iter(first_by_kind))
    # Operations of the kind "gather" look up embeddings.
    kind = "gather" if "gather" in first_by_kind else first_kind
    name = first_by_kind[kind]
    return f"explain a tensor inside: wrt='{name}'"


def _batch_of(value: Value) -> int:
    return int(value.type.shape[0])


def _classes_of(value: Value) -> int:
    shape = value.type.shape
    return int(shape[1]) if len(shape) > 1 else 1


def _classes(target: object, batch: int, count: int, output: str) -> Array | None:
    """Return the class of each item, int32 [batch], or None if `target` is None.

    `count` is the number of classes of `output`. Raises InputError unless `target` is one class or
    an array of `batch` classes, and all classes are from 0 to `count` - 1.
    """
    if target is None:
        return None
    message = f"target must be a class, one for each item, or a function; it is {shown(target)}"
    classes = target if isinstance(target, jax.Array) else numpy_of(target, InputError, message)
    is_integer = classes.dtype.kind in "iu"
    has_right_shape = classes.shape in ((), (batch,))
    if not is_integer or not has_right_shape:
        type = f"{classes.dtype}{show(classes.shape)}" if classes.shape else shown(target)
        message = f"target must be an integer, integers [{batch}] or a function; it is {type}"
        hint = "a function of the outputs returns any score: target=lambda y: y[:, 3, 1]"
        raise InputError(message, hint=hint)
    if not isinstance(classes, Tracer):
        numbers = np.ravel(np.asarray(classes))
        wrong = [int(number) for number in numbers if number < 0 or number >= count]
        if wrong:
            message = f"target {wrong[0]} is no class of '{output}', which has {count}"
            raise InputError(message, hint=f"classes are 0 to {count - 1}")
    return jnp.broadcast_to(jnp.asarray(classes).astype(jnp.int32), (batch,))
