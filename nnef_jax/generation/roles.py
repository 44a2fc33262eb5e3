"""Recognises which inputs and outputs of a language model are tokens, logits, caches and masks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lowering.extents import UNKNOWN
from lowering.graph import Graph, Value, is_float, is_integer
from nnef_jax.errors import InputError
from nnef_jax.wording.similar import listed

_MASKS = ("attention_mask", "mask", "decoder_attention_mask")
_POSITIONS = ("position_ids", "positions", "cache_position", "decoder_position_ids")
_TOKENS = ("input_ids", "tokens", "decoder_input_ids")
_LENGTHS = ("write_indices", "past_length", "past_lengths", "cache_length", "cache_lengths")
_TOTALS = ("nonpad_kv_seqlen", "kv_seqlen", "total_length", "total_lengths")
_ROLES = ("tokens", "logits", "mask", "positions", "length", "total_length", "context")
# These parts of names distinguish the cache before a step from the cache after it.
_SIDES = re.compile(
    r"past_key_values?|present_key_values?|past|present|cache|updated|in|out|new|old"
)


@dataclass(frozen=True)
class Cache:
    """The names of a cache.

    A cache is a tensor of keys or values. A step adds the keys or values of the step's tokens.

    Args:
        before: the name of the input, or of the state, that holds the tensor before a step.
        after: the name of the output, or of the state, that holds the tensor after the step.
        axis: the axis of positions.
    """

    before: str
    after: str
    axis: int


@dataclass(frozen=True)
class Roles:
    """The names of a network's inputs and outputs by their role in a language model.

    Args:
        tokens: the input of token numbers, [batch,tokens].
        logits: the output of logits, [batch,tokens,words]. Some networks return only the logits of
            the last token.
        caches: the caches of keys and values.
        mask: the input that is 1 for each position that is attended to, [batch,positions]; ""
            if there is none.
        positions: the input of the tokens' positions, [batch,tokens] or [tokens]; "" if there
            is none.
        context: inputs that stay the same for all tokens of a text, such as the states of an
            encoder.
        length: the input [batch] that takes the number of positions in use before the step, as for
            ONNX's TensorScatter; "" if there is none.
        total_length: the input [batch] that takes the number of positions in use after the step, as
            for ONNX's Attention; "" if there is none.
    """

    tokens: str
    logits: str
    caches: tuple[Cache, ...]
    mask: str = ""
    positions: str = ""
    context: tuple[str, ...] = ()
    length: str = ""
    total_length: str = ""

    def __str__(self) -> str:
        names = [f"{x.before} -> {x.after}" for x in self.caches]
        shown = [*names[:2], "..."] if len(names) > 2 else names
        rows = {
            "tokens": self.tokens,
            "logits": self.logits,
            f"{len(names)} caches": ", ".join(shown),
            "mask": self.mask,
            "positions": self.positions,
            "length": self.length,
            "total_length": self.total_length,
            "context": ", ".join(self.context),
        }
        return "\n".join(f"{role:13}{name}" for role, name in rows.items() if name)


def recognised(graph: Graph, names: Mapping[str, str | Sequence[str]]) -> Roles:
    """Recognise the roles of a network's inputs and outputs by their names and shapes.

    `names` maps roles, such as "tokens", to the names of inputs and outputs that a user chose.

    The roles may be incomplete, see `require_roles`. Raises TypeError for an unknown role.
    """
    for role in names:
        if role not in _ROLES:
            raise TypeError(f"{role!r} is no role, the roles are {listed(_ROLES)}")
    inputs = {value.name: value for value in graph.inputs}
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    pairs = _pairs(inputs, outputs)
    caches = [
        Cache(before, after, _positions_of(inputs[before])) for before, after in pairs.items()
    ]
    for state in graph.states:
        if UNKNOWN in state.value.type.shape[1:]:
            caches.append(Cache(state.label, state.label, _positions_of(state.value)))

    # The inputs of these roles are optional. For each role there are usual names, and candidates:
    # the inputs that may have the role.
    no_caches = [name for name in inputs if name not in pairs]
    no_floats = [name for name in no_caches if not is_float(inputs[name].type.dtype)]
    by_role: dict[str, str] = {}
    for role, usual_names, candidates in (
        ("mask", _MASKS, no_caches),
        ("positions", _POSITIONS, no_floats),
        ("length", _LENGTHS, no_floats),
        ("total_length", _TOTALS, no_floats),
    ):
        by_role[role] = str(names.get(role, "")) or _first(usual_names, candidates)

    # The tokens are the first candidate if no candidate has a usual name. This holds for the logits
    # too.
    integers = [
        x for x in no_floats if x not in by_role.values() and is_integer(inputs[x].type.dtype)
    ]
    tokens = str(names.get("tokens", "")) or _first((*_TOKENS, *integers), integers)
    results = [name for name in outputs if name not in pairs.values()]
    logits = str(names.get("logits", "")) or _first(("logits", *results), results)

    context = names.get("context")
    if context is None:
        context = [x for x in no_caches if x not in (tokens, *by_role.values())]
    elif isinstance(context, str):
        context = [context]
    return Roles(tokens, logits, tuple(caches), **by_role, context=tuple(context))


def require_roles(roles: Roles, graph: Graph) -> None:
    """Raise InputError unless the inputs and outputs of a network have the roles.

    The tokens, the logits and a cache are required.
    """
    inputs = {value.name: value for value in graph.inputs}
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    states = {state.label: state.value for state in graph.states}
    if not roles.tokens:
        raise InputError(
            f"no input of the network is the tokens: none takes integers, of {listed([*inputs])}",
            hint="a language model takes token numbers; this network seems to be none",
        )
    _require("tokens", roles.tokens, "input", inputs)
    _require("logits", roles.logits, "output", outputs)
    if not roles.caches:
        raise InputError(
            "the network has no cache: no input is continued by an output",
            hint="export it with its keys and values as inputs and outputs (use_cache=True)",
        )
    caches_before = inputs | states
    for cache in roles.caches:
        if cache.before not in caches_before or cache.after not in outputs | states:
            raise InputError(
                f"the network has no cache '{cache.before}' -> '{cache.after}'",
                hint=f"its inputs are {listed([*inputs])}, its outputs {listed([*outputs])}",
            )
        rank = len(caches_before[cache.before].type.shape)
        if not 0 < cache.axis < rank:
            raise InputError(
                f"axis {cache.axis} of the cache '{cache.before}' is not 1 to {rank - 1}"
            )
    optional = {
        "mask": roles.mask,
        "positions": roles.positions,
        "length": roles.length,
        "total_length": roles.total_length,
    }
    for role, name in (*optional.items(), *(("context", x) for x in roles.context)):
        if name:
            _require(role, name, "input", inputs)


def _require(role: str, name: str, kind: str, names: Collection[str]) -> None:
    """Raise InputError unless `name` is one of `names`. `kind` is "input" or "output"."""
    if name not in names:
        message = f"no {kind} of the network is the {role}"
        message += f": there is no '{name}'" if name else ""
        raise InputError(message, hint=f"decoder(..., {role}=NAME), of {listed([*names])}")


def _first(names: Sequence[str], among: Sequence[str]) -> str:
    return next((name for name in names if name in among), "")


def _pairs(inputs: Mapping[str, Value], outputs: Mapping[str, Value]) -> dict[str, str]:
    """Return a dict of the caches. It maps the name of a cache's input to the name of the output.

    The two names are equal except for words such as "past" and "present".
    """
    outputs_by_parts: dict[tuple[str, ...], str] = {}
    for name, value in outputs.items():
        if len(value.type.shape) >= 3:
            outputs_by_parts.setdefault(_parts(name), name)
    pairs: dict[str, str] = {}
    for name, value in inputs.items():
        output = outputs_by_parts.get(_parts(name))
        may_be_cache = is_float(value.type.dtype) and len(value.type.shape) >= 3
        if may_be_cache and output is not None:
            pairs[name] = output
    return pairs


def _parts(name: str) -> tuple[str, ...]:
    """Return the sorted parts of a cache's name, without words such as "past" and "present".

    The parts of past_key_values.0.key, present.0.key, in_cache_key_0 and out_cache_key_0 are
    ("0", "key").
    """
    parts = re.split(r"[^A-Za-z0-9]+", _SIDES.sub(" ", name.lower()))
    return tuple(sorted(filter(None, parts)))


def _positions_of(value: Value) -> int:
    """Return the axis of a cache's positions: the only open axis after the batch.

    Raises InputError if the cache has no open axis after the batch, or several.
    """
    shape = value.type.shape
    axes = [axis for axis in range(1, len(shape)) if shape[axis] is UNKNOWN]
    if len(axes) != 1:
        raise InputError(
            f"'{value.name}' has {len(axes)} open axes after the batch, a cache has one",
            hint="load the network with open lengths: without input_shapes for them",
        )
    return axes[0]
