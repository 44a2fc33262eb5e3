"""The function `calibrate`, which computes a graph.quant from the ranges of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowering.graph import Graph, Value
from nnef_jax.calls.arguments import Sample, arguments_of, over_samples
from nnef_jax.errors import InputError
from nnef_jax.execution.probe import Probe
from nnef_jax.execution.runnable import Runnable
from nnef_jax.options import names_of, require, require_choice, require_flags, require_samples
from nnef_jax.reading.network import Network
from nnef_jax.workings import call_with_probe, network_of, stored

Algorithm = Literal["min_max_linear_quantize", "zero_point_linear_quantize"]
_MOST_BITS = 16  # A code has at most this many bits.
# Operands with these names are weights. By default, parameters other than weights are not
# quantised: biases and statistics would lose too much precision with only a few bits.
_WEIGHT_OPERANDS = {"filter", "plane_filter", "point_filter", "A", "B"}

Array = NDArray[Any]
_Range = tuple[Array, Array]


def calibrate(
    model: Runnable,
    samples: Iterable[Sample],
    *,
    bits: int = 8,
    signed: bool = False,
    symmetric: bool = False,
    algorithm: Algorithm = "min_max_linear_quantize",
    per_channel: bool = False,
    percentile: float | None = None,
    names: Sequence[str] | None = None,
) -> str:
    """Return the text of a graph.quant, from the ranges of a network's tensors over sample inputs.

    Args:
        model: a `nnef_jax.Model` that computes in floating point. A network with a graph.quant must
            be loaded with `load(..., quantization="ignore")`. A recurrent network runs a single
            cycle from its initial state.
        samples: for each call an array, a tuple of arrays, or a dict of arrays by input name.
        bits: the number of bits of a code, from 2 to 16.
        signed: whether codes are signed.
        symmetric: whether codes reach as far below zero as above zero.
        algorithm: the algorithm by which codes are computed. "zero_point_linear_quantize" widens
            ranges to include zero, and makes zero exact.
        per_channel: whether a weight has a separate range for each index along axis 0, instead of a
            single range.
        percentile: a number above 50 and at most 100, such as 99.9. In each sample the range of an
            activation then extends from the 0.1th to the 99.9th percentile, so that outliers do not
            widen the steps between levels. None takes the minimum and the maximum.
        names: the tensors to quantise. By default they are the inputs, all computed tensors, and
            the variables that are a filter or a factor of a matrix product. If a network is saved
            as a flat document, as ONNX networks are, the text has the names in the flat document.

    Raises InputError if there is no sample, if a sample does not fit the inputs, or if a range is
    not finite. Raises TypeError or ValueError for wrong options.

    >>> text = nnef_jax.calibrate(model, [images], algorithm="zero_point_linear_quantize")
    >>> nnef_jax.write_archive("quantised", document, model.params, quantization=text)
    """
    require("model", model, Runnable, "a nnef_jax.Model")
    require_samples("samples", samples)
    require_choice("algorithm", algorithm, get_args(Algorithm))
    require("bits", bits, int, "an integer")
    require_flags(signed=signed, symmetric=symmetric, per_channel=per_channel)
    require("percentile", percentile, int | float | None, "a number, or None")
    if names is not None:
        names = names_of("names", names, "identifiers of tensors")
    if not 2 <= bits <= _MOST_BITS:
        raise ValueError(f"bits must be at least 2 and at most {_MOST_BITS}, it is {bits}")
    if symmetric and not signed:
        raise ValueError("symmetric codes are signed: give signed=True too")
    if percentile is not None and not 50 < percentile <= 100:
        raise ValueError(f"percentile must be above 50 and at most 100, it is {percentile}")
    network = network_of(model)
    # `identifiers` maps names of tensors to the identifiers that a graph.quant has for them.
    identifiers: dict[str, str] = {}
    for identifier, name in network.frontend.identifiers(network.graph).items():
        identifiers[name] = identifier
    # The ranges of activations are computed from runs of the network. The ranges of weights are
    # computed from the stored arrays.
    activations, weights = _tensors_to_quantise(network, [*identifiers], names)
    ranges = _ranges_of_runs(model, samples, activations, percentile)
    arrays = stored(model)
    for name, label in weights.items():
        ranges[name] = _range_of_weight(arrays[label], per_channel=per_channel)
    # Each tensor gets a line. A graph.quant has "true" and "false" instead of "True" and "False".
    codes = f"bits = {bits}, signed = {signed}, symmetric = {symmetric}".lower()
    lines: list[str] = []
    for name, (least, greatest) in ranges.items():
        are_finite = np.isfinite(least).all() and np.isfinite(greatest).all()
        if not are_finite:
            raise InputError(f"tensor '{name}' has values that are not finite")
        low, high = _widened_if_empty(least, greatest)
        if algorithm == "min_max_linear_quantize":
            arguments = _min_max(low, high, symmetric=symmetric)
        else:
            arguments = _zero_point(low, high, bits, signed=signed, symmetric=symmetric)
        lines.append(f'"{identifiers[name]}": {algorithm}({arguments}, {codes});\n')
    return "".join(lines)


def _tensors_to_quantise(
    network: Network, quantisable: Sequence[str], names: Sequence[str] | None
) -> tuple[list[str], dict[str, str]]:
    """Return a list of names of the activations to quantise, and a dict for the weights.

    The dict maps names of weights to their labels.

    `quantisable` are the names of all tensors that a graph.quant may contain. `names` are the
    names that the user chose, or None for the default.
    """
    if network.frontend.quantizes:
        message = "the network is quantised already: its ranges would be ranges of rounded values"
        raise InputError(message, hint="load it with quantization='ignore'")
    values = network.graph.values
    tensors = {name: values[name] for name in quantisable}
    labels = {parameter.value: parameter.label for parameter in network.graph.parameters}
    if names is None:
        names = _default_names(network.graph, tensors)
    unknown = [name for name in names if name not in tensors]
    if unknown:
        raise InputError(f"the graph has no tensor {', '.join(map(repr, unknown))}")
    not_real = [name for name in names if not _is_real(tensors[name])]
    if not_real:
        raise InputError(f"tensor {', '.join(map(repr, not_real))} does not hold real numbers")
    activations: list[str] = []
    weights: dict[str, str] = {}
    for name in names:
        label = labels.get(tensors[name])
        if label is None:
            activations.append(name)
        else:
            weights[name] = label
    return activations, weights


def _is_real(value: Value) -> bool:
    """Tell whether a tensor holds floating-point numbers."""
    return jnp.issubdtype(jnp.dtype(value.type.dtype), jnp.floating)


def _default_names(graph: Graph, tensors: Mapping[str, Value]) -> list[str]:
    """Return the names of the tensors that are quantised by default.

    They are all floating-point tensors except two kinds: constants, and variables that are not the
    weights of a convolution or a matrix product.
    """
    weights: set[Value] = set()
    for operation in graph.operations:
        for name, operand in operation.operands:
            if name in _WEIGHT_OPERANDS and isinstance(operand, Value):
                weights.add(operand)
    variables = {variable.value for variable in (*graph.parameters, *graph.states)}
    left_out = variables - weights
    for operation in graph.operations:
        if operation.kind == "constant":
            left_out.update(operation.writes())
    names: dict[Value, str] = {}
    for name, value in tensors.items():
        if _is_real(value) and value not in left_out:
            # A tensor may have several names. The first name is used.
            names.setdefault(value, name)
    return list(names.values())


def _range_of_weight(weight: ArrayLike, *, per_channel: bool) -> _Range:
    """Return the least and the greatest number of a weight.

    If `per_channel` is true, the range is computed for each index along axis 0.
    """
    array = np.asarray(weight, np.float32)
    first_reduced_axis = 1 if per_channel else 0
    axes = tuple(range(first_reduced_axis, array.ndim))
    # The results have the shape [channels] or [].
    return array.min(axes), array.max(axes)


def _ranges_of_runs(
    model: Runnable, samples: Iterable[Any], names: list[str], percentile: float | None
) -> dict[str, _Range]:
    """Return the range of each tensor over all samples: its least and its greatest number.

    With a `percentile` such as 99.9, the range of a tensor in one sample goes from the percentile
    0.1 to the percentile 99.9.
    """
    # If only weights are quantised, the model need not run.
    if not names:
        return {}

    @jax.jit
    def extremes_of(arrays: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Return the ends of the range of each array in one sample."""
        extremes: dict[str, Any] = {}
        for name, array in arrays.items():
            numbers = array.astype(jnp.float32)
            if percentile is None:
                extremes[name] = numbers.min(), numbers.max()
            else:
                percentiles = jnp.array([100 - percentile, percentile], jnp.float32)
                extremes[name] = tuple(jnp.percentile(numbers, percentiles))
        return extremes

    ranges: dict[str, _Range] = {}
    probe = Probe(capture=tuple(names), results=False)

    def tensors_of_call(inputs: tuple[Any, ...]) -> Mapping[str, jax.Array]:
        args, kwargs = arguments_of(inputs)
        return call_with_probe(model, args, kwargs, probe)

    for tensors in over_samples("sample", samples, tensors_of_call):
        extremes = jax.device_get(extremes_of(tensors))
        for name, (low, high) in extremes.items():
            # In the first sample there is no earlier range.
            earlier_low, earlier_high = ranges.get(name, (low, high))
            ranges[name] = np.minimum(earlier_low, low), np.maximum(earlier_high, high)
    if not ranges:
        raise InputError("calibration needs at least one sample")
    # A jitted function sorts the keys of the dict that it returns. The result has the order of
    # `names`.
    return {name: ranges[name] for name in names}


def _widened_if_empty(low: Array, high: Array) -> _Range:
    """Widen ranges whose ends are equal.

    The range [2, 2] becomes [0, 2], the range [-2, -2] becomes [-2, 0], and [0, 0] becomes [0, 1].
    """
    is_empty = low == high
    widened_low = np.where(is_empty & (low > 0), 0, low)
    widened_high = np.where(is_empty & (high < 0), 0, high)
    return widened_low, np.where(is_empty & (high == 0), 1, widened_high)


def _min_max(low: Array, high: Array, symmetric: bool) -> str:
    """Return the ends of a range as arguments in NNEF's syntax: "min = -1.0, max = 2.0".

    If `symmetric` is true, the range is widened until it reaches as far below 0 as above 0.
    """
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    return f"min = {_number_text(low)}, max = {_number_text(high)}"


def _zero_point(low: Array, high: Array, bits: int, signed: bool, symmetric: bool) -> str:
    """Return the zero point and the scale of a range as arguments in NNEF's syntax.

    First the range is widened to include 0. If `symmetric` is true, it is widened further, until it
    reaches as far below 0 as above 0. The code of a number x is round(x / scale) + zero_point. The
    low end of the range gets the lowest code, and the high end gets the highest code.
    """
    # Unsigned codes of 8 bits are 0 to 255. Signed codes are -128 to 127, and signed symmetric
    # codes are -127 to 127.
    if signed:
        highest_code = 2 ** (bits - 1) - 1
        lowest_code = -highest_code if symmetric else -highest_code - 1
    else:
        highest_code = 2**bits - 1
        lowest_code = 0
    low = np.minimum(low, 0).astype(np.float64)
    high = np.maximum(high, 0).astype(np.float64)
    if symmetric:
        high = np.maximum(-low, high)
        low = -high
    steps = highest_code - lowest_code
    # A division by the scale 0 must not occur, so the scale is at least the least normal float32.
    scale = np.maximum((high - low) / steps, np.finfo(np.float32).tiny)
    zero_point = np.clip(np.rint(lowest_code - low / scale), lowest_code, highest_code)
    zero_point_text = _number_text(zero_point.astype(np.int64))
    return f"zero_point = {zero_point_text}, scale = {_number_text(scale)}"


def _number_text(numbers: Array) -> str:
    """Write a number or an array in NNEF's syntax.

    In this syntax, floating-point numbers have a decimal point: 1e-05 becomes 1.0e-05.
    """
    if numbers.ndim:
        return f"[{', '.join(map(_number_text, numbers))}]"
    if numbers.dtype.kind == "i":
        return str(int(numbers))
    mantissa, letter_e, exponent = str(np.float32(numbers)).partition("e")
    if "." not in mantissa:
        mantissa = f"{mantissa}.0"
    return mantissa + letter_e + exponent
