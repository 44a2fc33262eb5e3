"""Ensembles of decision trees: tables of nodes and leaves for the kind `tree_ensemble`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import differ
from nnef_jax.flattening.operators.attributes import attribute, integer, integers
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.estimators import (
    DOMAIN,
    TRANSFORM,
    TRANSFORMS,
    best,
    classes,
    is_above,
    labelled,
    parameter,
    rows,
    transformed,
)  # fmt: skip
from nnef_jax.formats.onnx.operators.registry import operator

_COMPARISONS = {
    "BRANCH_EQ": 1, "BRANCH_NEQ": 2, "BRANCH_LT": 3, "BRANCH_GT": 4, "BRANCH_LEQ": 5,
    "BRANCH_GTE": 6, "LEAF": 0,
}  # fmt: skip
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")  # modes 0 to 5 of TreeEnsemble; 6 is MEMBER
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_NAN = 256  # is added to the code of a comparison that holds for NaN
_NODE = 10  # steps of the meter
_NO_MEMBERS = Constant(np.zeros(0, np.float32), "float32")
_TRACKS = integers("nodes_missing_value_tracks_true", ())


def _numbers(site: NodeSite, name: str) -> NDArray[Any]:
    """Return the numbers of an attribute, which may be a tensor `*_as_tensor`."""
    tensor = site.node.attributes.get(f"{name}_as_tensor")
    return np.array(site.numbers(name, ())) if tensor is None else tensor.array.reshape(-1)


def _bits(x: ArrayLike) -> NDArray[np.int32]:
    return np.asarray(x, np.float32).view(np.int32)


def _scores(
    site: NodeSite, roots: Sequence[int], nodes: NDArray[np.int32], leaves: NDArray[np.int32],
    count: int, aggregate: str = "SUM",
) -> Any:  # fmt: skip
    """Return the scores [samples,count] of rows.

    `roots` are rows of `nodes` [nodes,5] = (feature, true, false, threshold, comparison), or
    (begin, end, 0, 0, 0) for a leaf, with its range of `leaves` [leaves,2] = (class, weight).
    """
    x = rows(site)
    features = nodes[nodes[:, 4] != 0, 0]
    if features.size and differ(min(site.shape(x)[1], features.max() + 1), features.max() + 1):
        raise InvalidShape(f"it reads feature {features.max()} of {site.shape(x)[1]}")
    if features.min(initial=0) < 0 or not 0 <= min(roots) <= max(roots) < len(nodes):
        raise InvalidOperation("it has features below 0, or roots that are no nodes")
    if len(leaves) and not 0 <= leaves[:, 0].min() <= leaves[:, 0].max() < count:
        raise InvalidOperation(f"its leaves name classes beyond {count}")
    tables = {"trees": np.asarray(roots), "nodes": nodes, "leaves": leaves}
    operands = {name: parameter(site, name, table, "int32") for name, table in tables.items()}
    is_mean = aggregate == "AVERAGE"  # over trees
    scores = site.insert(
        "tree_ensemble", {"input": x, **operands}, classes=count,
        aggregate="SUM" if is_mean else aggregate,
    )  # fmt: skip
    scores = site.cast(scores, site.computed("float32"))
    return site.step.div(scores, float(len(roots))) if is_mean else scores


@dataclass(frozen=True, slots=True)
class _Trees:
    """Trees whose nodes are named by the numbers of tree and node."""

    # An item for each node.
    trees: Sequence[int]
    numbers: Sequence[int]
    modes: Sequence[str]
    features: Sequence[int]
    true: Sequence[int]
    false: Sequence[int]
    tracks: Sequence[int]
    # An item for each vote: node `voting` of tree `voters` votes for class `voted`.
    voters: Sequence[int]
    voting: Sequence[int]
    voted: Sequence[int]


def _attributes(votes: str) -> dict[str, Any]:
    return {
        "trees": integers("nodes_treeids"),
        "numbers": integers("nodes_nodeids"),
        "modes": attribute("nodes_modes", "attribute", tuple, None),
        "features": integers("nodes_featureids"),
        "true": integers("nodes_truenodeids"),
        "false": integers("nodes_falsenodeids"),
        "tracks": _TRACKS,
        "voters": integers(f"{votes}_treeids"),
        "voting": integers(f"{votes}_nodeids"),
        "voted": integers(f"{votes}_ids"),
    }


def _ensemble(
    site: NodeSite, ensemble: _Trees, count: int, weights: NDArray[Any], aggregate: str = "SUM"
) -> Any:
    """Return the scores [samples,count] of rows. `weights` has an item for each vote."""
    trees = ensemble.trees
    site.spend(_NODE * len(trees))
    if unknown := {*ensemble.modes} - {*_COMPARISONS}:
        raise InvalidOperation(f"there is no mode {sorted(unknown)[0]!r}")
    place = {node: i for i, node in enumerate(zip(trees, ensemble.numbers, strict=True))}
    if len(place) != len(trees):
        raise InvalidOperation("a node of a tree is there twice")
    voters = zip(ensemble.voters, ensemble.voting, strict=True)
    owners = np.array([place[node] for node in voters], np.int64)
    order = np.argsort(owners, kind="stable")
    leaves = np.stack([np.asarray(ensemble.voted, np.int32), _bits(weights)], 1)[order]
    edges = np.searchsorted(owners[order], np.arange(len(trees) + 1))
    nodes = np.zeros((len(trees), 5), np.int32)
    thresholds, tracks = _bits(_numbers(site, "nodes_values")), ensemble.tracks or (0,) * len(trees)
    for i, (tree, mode) in enumerate(zip(trees, ensemble.modes, strict=True)):
        if code := _COMPARISONS[mode]:
            below = place[tree, ensemble.true[i]], place[tree, ensemble.false[i]]
            holds = bool(tracks[i]) or mode == "BRANCH_NEQ"
            nodes[i] = ensemble.features[i], *below, thresholds[i], code + _NAN * holds
        else:
            nodes[i, :2] = edges[i], edges[i + 1]
    roots = list({tree: i for i, tree in reversed(list(enumerate(trees)))}.values())
    return _scores(site, roots, nodes, leaves, count, aggregate)


def _based(site: NodeSite, scores: Tensor, count: int) -> Any:
    base = _numbers(site, "base_values")
    if base.size not in (0, count):
        raise InvalidShape(f"'base_values' must have {count} items, it has {base.size}")
    return site.step.add(scores, parameter(site, "base", base)) if base.size else scores


@operator("TreeEnsembleRegressor", domain=DOMAIN, **_attributes("target"))
def _regressor(
    site: NodeSite, *, count: int = integer("n_targets"), transform: str = TRANSFORM, **trees: Any
) -> Any:
    aggregate = site.choice("aggregate_function", *_AGGREGATES, default="SUM")
    weights = _numbers(site, "target_weights")
    scores = _ensemble(site, _Trees(**trees), count, weights, aggregate)
    return transformed(site, _based(site, scores, count), transform)


@operator("TreeEnsembleClassifier", domain=DOMAIN, **_attributes("class"))
def _classifier(
    site: NodeSite,
    *,
    names: Sequence[int] = integers("classlabels_int64s", ()),
    transform: str = TRANSFORM,
    voted: Sequence[int],
    **trees: Any,
) -> Any:
    """Return the label with the highest score, and the scores.

    If all votes are for one of two classes, a single score decides: the second class wins if the
    score is above 0.5, or above 0 if a weight is negative. Votes for the first class count for the
    second, as in ONNX Runtime.
    """
    labels, weights = classes(site, names), _numbers(site, "class_weights")
    if len(labels) < 2:
        raise InvalidOperation("it must have two labels or more")
    count = 1 if len(labels) == 2 and {*voted} == {0} else len(labels)
    scores = _ensemble(site, _Trees(voted=voted, **trees), len(labels), weights)
    scores = _based(site, scores, count)
    if len(labels) != 2 or len({*voted}) != 1:
        return labelled(site, labels, best(site, scores)), transformed(site, scores, transform)
    first = voted[0]
    score = site.part(scores, 1, first, first + 1)
    is_probable = bool((weights >= 0).all())
    label = labelled(site, labels, is_above(site, score, 0.5 if is_probable else 0.0))
    if first == 1:
        return label, transformed(site, scores, transform)
    if transform == "PROBIT":
        raise InvalidOperation("'PROBIT' needs votes for each of its classes")
    if transform == "LOGISTIC":
        score, is_probable = site.step.sigmoid(score), True
    other = site.step.sub(1.0, score) if is_probable else site.step.neg(score)
    return label, site.step.concat([other, score], axis=1)


def _tensor(name: str, default: Constant | None = None) -> Any:
    return attribute(name, "attribute", Constant, default)


@dataclass(frozen=True, slots=True)
class _Tables:
    """Trees whose nodes and leaves are named by their indices."""

    # An item for each node.
    modes: Constant
    splits: Constant
    features: Sequence[int]
    tracks: Sequence[int]
    true: Sequence[int]
    true_leafs: Sequence[int]
    false: Sequence[int]
    false_leafs: Sequence[int]
    # An item for each leaf.
    voted: Sequence[int]
    weights: Constant
    # Sets of numbers, each ended by NaN.
    members: Constant

    def below(self, name: str, indices: Sequence[int], leafs: Sequence[int]) -> list[int]:
        """Return the rows of children in a table of all nodes, then all leaves."""
        limits = self.modes.array.size, len(self.voted)
        if any(not 0 <= i < limits[bool(f)] for i, f in zip(indices, leafs, strict=True)):
            raise InvalidOperation(f"'nodes_{name}nodeids' names what is not there")
        return [i + limits[0] * bool(f) for i, f in zip(indices, leafs, strict=True)]


@operator(
    "TreeEnsemble",
    domain=DOMAIN,
    modes=_tensor("nodes_modes"),
    splits=_tensor("nodes_splits"),
    features=integers("nodes_featureids"),
    tracks=_TRACKS,
    true=integers("nodes_truenodeids"),
    true_leafs=integers("nodes_trueleafs"),
    false=integers("nodes_falsenodeids"),
    false_leafs=integers("nodes_falseleafs"),
    voted=integers("leaf_targetids"),
    weights=_tensor("leaf_weights"),
    members=_tensor("membership_values", _NO_MEMBERS),
)
def _tree_ensemble(
    site: NodeSite,
    *,
    roots: Sequence[int] = integers("tree_roots"),
    targets: int = integer("n_targets"),
    aggregate: int = integer("aggregate_function", 1),
    transform: int = integer("post_transform", 0),
    **tables: Any,
) -> Any:
    """Return the scores [samples,targets] of rows."""
    ensemble = _Tables(**tables)
    count, features = ensemble.modes.array.size, ensemble.features
    site.spend(_NODE * count)
    sets, tracks = _sets(ensemble.members), ensemble.tracks or (0,) * count
    true = ensemble.below("true", ensemble.true, ensemble.true_leafs)
    false = ensemble.below("false", ensemble.false, ensemble.false_leafs)
    thresholds = _bits(ensemble.splits.array.reshape(-1))
    table = [[0] * 5 for _ in range(count)]
    table += [[i, i + 1, 0, 0, 0] for i in range(len(ensemble.voted))]
    for i, mode in enumerate(ensemble.modes.array.reshape(-1).tolist()):
        nan = _NAN * (bool(tracks[i]) or mode == _MODES.index("NEQ"))
        if mode < len(_MODES):
            code = _COMPARISONS[f"BRANCH_{_MODES[mode]}"] + nan
            table[i] = [features[i], true[i], false[i], int(thresholds[i]), code]
            continue
        if mode > len(_MODES) or not sets:
            raise InvalidOperation(f"node {i} has the mode {mode}, or no set of members")
        # A node for each member. An item that differs from one is compared with the next.
        bits = _bits(sets.pop(0)).tolist()
        at = [i, *range(len(table), len(table) + len(bits) - 1)]
        table += [[0] * 5 for _ in at[1:]]
        for here, item, other in zip(at, bits, [*at[1:], false[i]], strict=True):
            table[here] = [features[i], true[i], other, item, _COMPARISONS["BRANCH_EQ"] + nan]
    weights = _bits(ensemble.weights.array.reshape(-1))
    leaves = np.stack([np.asarray(ensemble.voted, np.int32), weights], 1)
    nodes, function = np.array(table, np.int32).reshape(-1, 5), "aggregate_function"
    scores = _scores(site, roots, nodes, leaves, targets, _named(function, aggregate, _AGGREGATES))
    scores = transformed(site, scores, _named("post_transform", transform, TRANSFORMS))
    return site.cast(scores, site.dtype_of())


def _named(name: str, number: int, names: Sequence[str]) -> str:
    if not 0 <= number < len(names):
        raise InvalidOperation(f"'{name}' must be below {len(names)}, it is {number}")
    return names[number]


def _sets(members: Constant) -> list[list[float]]:
    """Return the sets of members. Each ends with NaN."""
    sets: list[list[float]] = [[]]
    for item in members.array.reshape(-1).tolist():
        if item == item:
            sets[-1].append(item)
        else:
            sets.append([])
    return [x for x in sets if x]
