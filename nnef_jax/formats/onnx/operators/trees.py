"""Ensembles of trees: the tables of nodes and leaves that the kind `tree_ensemble` reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import differ
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.estimators import (
    DOMAIN,
    TRANSFORMS,
    best,
    classes,
    is_above,
    labelled,
    parameter,
    rows,
    transform_of,
    transformed,
)  # fmt: skip
from nnef_jax.formats.onnx.operators.registry import operator

_COMPARISONS = {
    "BRANCH_EQ": 1, "BRANCH_NEQ": 2, "BRANCH_LT": 3, "BRANCH_GT": 4, "BRANCH_LEQ": 5,
    "BRANCH_GTE": 6, "LEAF": 0,
}  # fmt: skip
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")  # by number, since version 5; then MEMBER
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_NAN = 256  # of a comparison that holds for NaN
_NODE = 10  # steps


def _numbers(site: NodeSite, name: str) -> NDArray[Any]:
    """Return numbers, which may be a tensor."""
    tensor = site.node.attributes.get(f"{name}_as_tensor")
    return np.array(site.numbers(name, ())) if tensor is None else tensor.array.reshape(-1)


def _bits(x: Any) -> NDArray[np.int32]:
    return np.asarray(x, np.float32).view(np.int32)


def _scores(
    site: NodeSite, roots: Any, nodes: NDArray[np.int32], leaves: NDArray[np.int32], count: int,
    aggregate: str = "SUM",
) -> Any:  # fmt: skip
    """Return the score of each class for each row."""
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


def _ensemble(site: NodeSite, votes: str, count: int, aggregate: str = "SUM") -> Any:
    """Return scores of trees whose nodes have numbers of their own; votes follow each other."""
    trees, numbers = site.ints("nodes_treeids"), site.ints("nodes_nodeids")
    modes = site.attribute("nodes_modes", tuple, None)
    site.spend(_NODE * len(trees))
    if unknown := {*modes} - {*_COMPARISONS}:
        raise InvalidOperation(f"there is no mode {sorted(unknown)[0]!r}")
    place = {node: i for i, node in enumerate(zip(trees, numbers, strict=True))}
    if len(place) != len(trees):
        raise InvalidOperation("a node of a tree is there twice")
    named = [site.ints(f"{votes}_{name}") for name in ("treeids", "nodeids", "ids")]
    weights = _numbers(site, f"{votes}_weights")
    owners = np.array([place[node] for node in zip(named[0], named[1], strict=True)], np.int64)
    order = np.argsort(owners, kind="stable")
    leaves = np.stack([np.asarray(named[2], np.int32), _bits(weights)], 1)[order]
    edges = np.searchsorted(owners[order], np.arange(len(trees) + 1))
    features, splits = site.ints("nodes_featureids"), _numbers(site, "nodes_values")
    true, false = site.ints("nodes_truenodeids"), site.ints("nodes_falsenodeids")
    tracks = site.ints("nodes_missing_value_tracks_true", ()) or (0,) * len(trees)
    nodes = np.zeros((len(trees), 5), np.int32)
    thresholds = _bits(splits)
    for i, (tree, mode) in enumerate(zip(trees, modes, strict=True)):
        if code := _COMPARISONS[mode]:
            below = place[tree, true[i]], place[tree, false[i]]
            holds = bool(tracks[i]) or mode == "BRANCH_NEQ"
            nodes[i] = features[i], *below, thresholds[i], code + _NAN * holds
        else:
            nodes[i, :2] = edges[i], edges[i + 1]
    roots = list({tree: i for i, tree in reversed(list(enumerate(trees)))}.values())
    return _scores(site, roots, nodes, leaves, count, aggregate)


def _based(site: NodeSite, scores: Any, count: int) -> Any:
    base = _numbers(site, "base_values")
    if base.size not in (0, count):
        raise InvalidShape(f"'base_values' must have {count} items, it has {base.size}")
    return site.step.add(scores, parameter(site, "base", base)) if base.size else scores


@operator("TreeEnsembleRegressor", domain=DOMAIN)
def _regressor(site: NodeSite) -> Any:
    aggregate = site.choice("aggregate_function", *_AGGREGATES, default="SUM")
    count = site.int("n_targets")
    return transformed(site, _based(site, _ensemble(site, "target", count, aggregate), count))


@operator("TreeEnsembleClassifier", domain=DOMAIN)
def _classifier(site: NodeSite) -> Any:
    """Return the label with the highest score, and scores.

    Where trees vote for one class of two, the second wins above a half if no weight is below 0,
    else above 0. Votes for the first are then taken for the second, as in ONNX Runtime.
    """
    labels = classes(site, "classlabels_int64s")
    if len(labels) < 2:
        raise InvalidOperation("it must have two labels or more")
    voted = {*site.ints("class_ids")}
    count = 1 if len(labels) == 2 and voted == {0} else len(labels)
    scores = _based(site, _ensemble(site, "class", len(labels)), count)
    if len(labels) != 2 or len(voted) != 1:
        return labelled(site, labels, best(site, scores)), transformed(site, scores)
    (first,) = voted
    score = site.part(scores, 1, first, first + 1)
    is_probable = bool((_numbers(site, "class_weights") >= 0).all())
    label = labelled(site, labels, is_above(site, score, 0.5 if is_probable else 0.0))
    if first == 1:
        return label, transformed(site, scores)
    transform = transform_of(site)
    if transform == "PROBIT":
        raise InvalidOperation("'PROBIT' needs votes for each of its classes")
    if transform == "LOGISTIC":
        score, is_probable = site.step.sigmoid(score), True
    rest = site.step.sub(1.0, score) if is_probable else site.step.neg(score)
    return label, site.step.concat([rest, score], axis=1)


@operator("TreeEnsemble", domain=DOMAIN)
def _tree_ensemble(site: NodeSite) -> Any:
    """Return scores of trees whose nodes and leaves have places of their own."""

    def tensor(name: str) -> NDArray[Any]:
        return site.node.attributes[name].array.reshape(-1)

    modes, splits, features = tensor("nodes_modes"), tensor("nodes_splits"), "nodes_featureids"
    features, count = site.ints(features), len(modes)
    site.spend(_NODE * count)
    tracks = site.ints("nodes_missing_value_tracks_true", ()) or (0,) * count
    targets, weights = site.ints("leaf_targetids"), tensor("leaf_weights")
    members = _sets(site)

    def below(name: str) -> list[int]:
        """Return rows: of nodes first, then of leaves."""
        places, leafs = site.ints(f"nodes_{name}nodeids"), site.ints(f"nodes_{name}leafs")
        limits = (count, len(targets))
        if any(not 0 <= p < limits[bool(f)] for p, f in zip(places, leafs, strict=True)):
            raise InvalidOperation(f"'nodes_{name}nodeids' names what is not there")
        return [p + count * bool(f) for p, f in zip(places, leafs, strict=True)]

    true, false, thresholds = below("true"), below("false"), _bits(splits)
    table = [[0] * 5 for _ in range(count)]
    table += [[i, i + 1, 0, 0, 0] for i in range(len(targets))]
    for i, mode in enumerate(modes.tolist()):
        nan = _NAN * (bool(tracks[i]) or mode == _MODES.index("NEQ"))
        if mode < len(_MODES):
            code = _COMPARISONS[f"BRANCH_{_MODES[mode]}"] + nan
            table[i] = [features[i], true[i], false[i], int(thresholds[i]), code]
            continue
        if mode > len(_MODES) or not members:
            raise InvalidOperation(f"node {i} has the mode {mode}, or no set of members")
        # A node for each member: what is not the first is compared with the next.
        bits = _bits(members.pop(0)).tolist()
        at = [i, *range(len(table), len(table) + len(bits) - 1)]
        table += [[0] * 5 for _ in at[1:]]
        for here, item, other in zip(at, bits, [*at[1:], false[i]], strict=True):
            table[here] = [features[i], true[i], other, item, _COMPARISONS["BRANCH_EQ"] + nan]
    leaves = np.stack([np.asarray(targets, np.int32), _bits(weights)], 1)
    aggregate = _named(site, "aggregate_function", _AGGREGATES, 1)
    nodes = np.array(table, np.int32).reshape(-1, 5)
    scores = _scores(site, site.ints("tree_roots"), nodes, leaves, site.int("n_targets"), aggregate)
    scores = transformed(site, scores, _named(site, "post_transform", TRANSFORMS, 0))
    return site.cast(scores, site.dtype_of())


def _named(site: NodeSite, name: str, names: Sequence[str], default: int) -> str:
    number = site.int(name, default)
    if not 0 <= number < len(names):
        raise InvalidOperation(f"'{name}' must be below {len(names)}, it is {number}")
    return names[number]


def _sets(site: NodeSite) -> list[list[float]]:
    """Return sets of members, which NaN ends."""
    given = site.node.attributes.get("membership_values")
    found: list[list[float]] = [[]]
    for item in [] if given is None else given.array.reshape(-1).tolist():
        if item == item:
            found[-1].append(item)
        else:
            found.append([])
    return [x for x in found if x]
