"""Applies operations of a document, either on the host or in the graph with implicit casts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import volume
from lowering.graph import Rule, Value
from nnef_jax.flattening import host_operations
from nnef_jax.flattening import hostvalues as h
from nnef_jax.flattening.emission import ByName
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.declared_tensors import result_count
from nnef_jax.formats.syntax.types import ArrayOf
from nnef_jax.formats.tract import declarations
from nnef_jax.formats.tract.attributes import attribute, is_attribute
from nnef_jax.formats.tract.call_site import CallSite, TractOperand
from nnef_jax.formats.tract.dtypes import DATUM_PARAMETERS, common_dtypes, default_dtype, dtype_of
from nnef_jax.formats.tract.operations import words
from nnef_jax.formats.tract.operators import OPERATORS
from nnef_jax.limits import RESULT_STEPS

# Operations that have a bias. The function `_bias` converts the bias to real numbers.
_BIASED = ("conv", "deconv", "linear")
# Operations whose result has the same quantisation scale as their operand.
_KEEPS_SCALE = frozenset(
    {
        "copy", "reshape", "transpose", "squeeze", "unsqueeze", "slice", "pad", "max_pool", "relu",
        "tract_core_cast",
    }
)  # fmt: skip
# The steps of the meter for an operation. Each item of a result that the host computes takes one
# more step.
_APPLICATION_STEPS = 40
_LEFT_OUT = s.Literal(0, False)  # the default that the declaration has for optional operands


class Results(tuple[Any, ...]):
    """The results of an operation that has several results."""

    @classmethod
    def of(cls, values: Sequence[Any]) -> Any:
        """Wrap the results of an operation. A single result is returned by itself."""
        return values[0] if len(values) == 1 else cls(values)


def apply(site: CallSite, kind: str, /, *names: str, **arguments: object) -> Any:
    """Apply the declared operation `kind` to arguments, and return its result.

    If all operands are constant, the host computes the operation. Otherwise the operation is added
    to the graph. `names` are the names of the results.
    """
    return applied(site, kind, arguments, names)


def applied(
    site: CallSite, kind: str, arguments: ByName, names: Sequence[str], rule: Rule | None = None
) -> Any:
    """Apply the declared operation `kind` to arguments, and return its result.

    If all operands are constant, the host computes the operation. Otherwise the operation is added
    to the graph. `names` are the names of the results. `rule` is the user's rule for the operation,
    if there is one.
    """
    site.graph.meter.spend(_APPLICATION_STEPS)
    declared = declarations.declarations()[kind]
    item_types = declarations.operands(kind)  # maps operands to their item types
    operands: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    for parameter in declared.parameters:
        name = parameter.name
        if name in item_types:
            operands[name] = _operand(site, arguments[name], parameter)
        else:
            attributes[name] = _attribute(site, arguments[name], parameter)
    # If an operand is not constant, this call raises NotFolded, and the operation is added below.
    try:
        return _folded(site, kind, operands, attributes)
    except h.NotFolded:
        pass
    if kind in _BIASED:
        operands["bias"] = _bias(site, **operands)
    unified = _unified(site, declared.name, item_types, operands)
    site.graph.meter.spend(RESULT_STEPS * result_count(kind, unified, attributes))
    if rule is None:
        results = _added(site, kind, unified, attributes, names)
    else:
        results = site.add(kind, unified, attributes, names, rule=rule)
    first_operand = next(iter(operands.values()), None)
    scales = site.graph.scales
    if kind in _KEEPS_SCALE and isinstance(first_operand, Value) and first_operand in scales:
        scales[results[0]] = scales[first_operand]
    result = Results.of(results)
    return Results(result) if isinstance(result, list) else result


def apply_fragment(site: CallSite, kind: str, rule: Rule) -> Any:
    """Apply a user's rule for a fragment of the document; return the result.

    Arguments that contain tensors are operands. All other arguments are attributes.
    """
    operands: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    for name, x in site.arguments.items():
        if _holds_tensors([x]):
            operands[name] = x
        else:
            attributes[name] = _without_arrays(x)
    return Results.of(site.add(kind, operands, attributes, site.names, rule=rule))


def tensor(site: CallSite, value: object, dtype: str = "", *names: str) -> Value:
    """Return a value as a tensor of a dtype. If `dtype` is '', the tensor keeps its dtype."""
    if _holds_tensors(value):
        value = apply(site, "stack", *names, values=value, axis=0)
    if isinstance(value, Value):
        return site.cast(value, dtype) if dtype else value
    return site.constant(value, dtype, *names)


def _attribute(site: CallSite, value: object, parameter: s.FormalParameter) -> Any:
    """Convert the argument for a parameter to an attribute of the parameter's type.

    Raises InvalidOperation, whose message names the parameter, if this is impossible.
    """
    is_type = parameter.name in DATUM_PARAMETERS
    if is_attribute(value, parameter.type) and not is_type:
        return value
    graph = site.graph
    try:
        converted = attribute(graph.known(value), parameter.type)
        # An optional datum type may be "", which has no dtype.
        if is_type and (converted or parameter.default is None):
            converted = dtype_of(converted, graph.defaults.real)
        graph.require_known(converted)
        return converted
    except InvalidOperation as error:
        message = f"'{parameter.name}': {error.message}"
        raise type(error)(message, error.hint) from None


def _operand(site: CallSite, value: object, parameter: s.FormalParameter) -> Any:
    """Return the argument for a parameter as a tensor or host value, or as a list of these.

    If the argument of an optional parameter is left out, return False.
    """
    if value is False and parameter.default == _LEFT_OUT:
        return False
    if not isinstance(parameter.type, ArrayOf):
        return _one_operand(site, value, parameter.name)
    items = cast(list[Any], value if isinstance(value, list | tuple) else [value])
    return [_one_operand(site, item, f"{parameter.name}[{i}]") for i, item in enumerate(items)]


def _one_operand(site: CallSite, value: object, name: str) -> Value | h.Host:
    """Return an operand as a tensor or host value. `name` is the name of the operand in errors."""
    if isinstance(value, Value):
        return value
    if _holds_tensors(value):
        return apply(site, "stack", values=value, axis=0)
    try:
        return h.host(value)
    except InvalidOperation as error:
        raise InvalidOperation(f"'{name}': {error.message}") from None


def _folded(site: CallSite, kind: str, operands: ByName, attributes: ByName) -> Any:
    """Compute an operation on the host, and return its result.

    Raises NotFolded if an operand is not a constant.
    """
    # A small parameter of the graph may hold a shape. The array of the parameter is read if any
    # operand is a constant.
    if any(map(_is_known, operands.values())):
        operands = {name: site.graph.known(x, only_shapes=True) for name, x in operands.items()}
    if not all(map(_is_known, operands.values())):
        raise h.NotFolded
    operator = OPERATORS.get(kind)
    if operator is None:
        result = host_operations.evaluate(kind, operands.values(), attributes)
    else:
        inner = _operation_site(site, kind, operands, attributes, names=(), folds=True)
        try:
            result = operator.run(inner)
        except InvalidOperation:
            # The error is raised again when the operation is added to the graph.
            raise h.NotFolded from None
    host_operations.require_few(h.weight(result))
    site.graph.meter.spend(h.weight(result))
    return Results(result) if isinstance(result, list) else result


def _operation_site(
    site: CallSite, kind: str, operands: ByName, attributes: ByName, names: Sequence[str], *,
    folds: bool = False,
) -> CallSite:  # fmt: skip
    """Return the site of an operation that the call of `site` applies."""
    return CallSite(
        site.evaluator,
        site.node,
        site.frame,
        names,
        arguments={**operands, **attributes},
        operation=kind,
        operands=[*operands.values()],
        words=words(kind),
        folds=folds,
    )


def _bias(
    site: CallSite, input: TractOperand, filter: TractOperand, bias: TractOperand
) -> TractOperand:
    """Return the bias of a convolution or product, converted to real numbers if it is quantised.

    A bias of integers beside a quantised input and a quantised filter is quantised too, without an
    entry in graph.quant. The scale of such a bias is the product of the input's scale and the
    filter's scale. Any other bias is returned unchanged.
    """
    scales = site.graph.scales
    if not isinstance(bias, Value) or not bias.type.dtype.startswith("int"):
        return bias
    if not isinstance(input, Value) or not isinstance(filter, Value):
        return bias  # constant operands are not quantised
    if input not in scales or filter not in scales:
        return bias
    scale = scales[input] * scales[filter]
    has_channels = scale.ndim > 0
    if has_channels and scale.size == volume(bias.type.shape):
        scale = scale.reshape(bias.type.shape)
    units = site.cast(bias, site.graph.defaults.real)
    return apply(site, "mul", f"{bias.name}_real", x=units, y=scale)


def _unified(
    site: CallSite, kind: str, item_types: Mapping[str, str | None], operands: ByName
) -> dict[str, Any]:
    """Return a dict from names to operands that are cast to their common dtypes.

    `item_types` maps the name of an operand to its declared item type. All operands with the same
    item type get the same dtype.
    """
    graph = site.graph
    dtypes = common_dtypes(kind, item_types, operands, graph.defaults)

    def unify(x: Any, item_type: str | None) -> Any:
        if isinstance(x, list):
            return [unify(part, item_type) for part in cast(list[Any], x)]
        if x is False:  # the operand is left out
            return x
        dtype = dtypes.get(item_type or "")
        if isinstance(x, Value):
            return site.cast(x, dtype) if dtype else x
        if item_type == "integer":
            x = h.integer_array(h.integers(x), x.shape)
            graph.require_known(x.ravel().tolist())
        dtype = dtype or default_dtype(x, graph.defaults, item_type)
        if x.ndim == 0 and h.is_plain(x.ravel()):  # a single constant number
            return graph.literal(x, dtype)
        return site.constant(x, dtype)

    return {name: unify(operand, item_types[name]) for name, operand in operands.items()}


def _added(
    site: CallSite, kind: str, operands: ByName, attributes: ByName, names: Sequence[str]
) -> tuple[Any, ...]:
    """Add an operation of the dialect to the graph, and return a tuple of its results."""
    operator = OPERATORS.get(kind)
    if operator is None:
        results = site.add(kind, operands, attributes, names)
    else:
        inner = _operation_site(site, kind, operands, attributes, names)
        try:
            tensors = operator.run(inner)
        except InvalidOperation as error:
            raise inner.invalid(error, kind, operands) from None
        results = cast(tuple[Any, ...], tensors if isinstance(tensors, tuple) else (tensors,))
    # `calls` maps the first result to the document's operation, for flat texts in the dialect.
    first = results[0]
    if first and isinstance(first, list):  # a result that is an array of tensors
        first = cast(list[Any], first)[0]
    if isinstance(first, Value):
        site.graph.calls[first] = kind, operands, attributes
    return results


def _is_known(operand: object) -> bool:
    """Tell whether an operand is a host value, or a list of host values."""
    if isinstance(operand, list):
        return all(map(_is_known, cast(list[Any], operand)))
    return isinstance(operand, np.ndarray)


def _without_arrays(value: object) -> Any:
    """Convert lists to tuples, and arrays to Python numbers or lists, also within lists."""
    if isinstance(value, list | tuple):
        return tuple(map(_without_arrays, cast(list[Any], value)))
    return value.tolist() if isinstance(value, np.ndarray) else value


def _holds_tensors(value: object) -> bool:
    """Tell whether a value is a list that contains a tensor, also within nested lists."""
    if not isinstance(value, list):
        return False
    items = cast(list[Any], value)
    return any(isinstance(item, Value) or _holds_tensors(item) for item in items)
