"""Functions for ensembles of decision trees. An ensemble becomes an operation `tree_ensemble`.

The operands of this operation are tables of nodes and leaves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    best_class,
    classes,
    feature_rows,
    is_above,
    labelled,
    parameter,
    transformed,
)  # fmt: skip
from nnef_jax.formats.onnx.operators.registry import operator

# Maps the mode of a node to the code of the node's comparison in the table of nodes.
_COMPARISONS = {
    "BRANCH_EQ": 1, "BRANCH_NEQ": 2, "BRANCH_LT": 3, "BRANCH_GT": 4, "BRANCH_LEQ": 5,
    "BRANCH_GTE": 6, "LEAF": 0,
}  # fmt: skip
# The modes 0 to 5 of the operator TreeEnsemble. Its mode 6 is MEMBER, which tests whether an item
# is in a set.
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
# This number is added to the code of a comparison if the comparison is true for NaN.
_TRUE_FOR_NAN = 256
_STEPS_OF_NODE = 10  # steps of the meter for each node
_NO_MEMBERS = Constant(np.zeros(0, np.float32), "float32")
_TRACKS = integers("nodes_missing_value_tracks_true", ())


def _numbers(site: NodeSite, name: str) -> NDArray[Any]:
    """Return the numbers of the attribute `name`, or of the tensor in `{name}_as_tensor`."""
    tensor = site.node.attributes.get(f"{name}_as_tensor")
    if tensor is not None:
        return tensor.array.reshape(-1)
    return np.array(site.numbers(name, ()))


def _float_bits(numbers: ArrayLike) -> NDArray[np.int32]:
    """Convert numbers to float32, and return their bits as integers."""
    return np.asarray(numbers, np.float32).view(np.int32)


def _scores(
    site: NodeSite, roots: Sequence[int], nodes: NDArray[np.int32], leaves: NDArray[np.int32],
    count: int, aggregate: str = "SUM",
) -> Any:  # fmt: skip
    """Compute the scores of rows. The result has shape (samples, count).

    Args:
        site: the node.
        roots: the indices of the roots in `nodes`.
        nodes: a table of shape (nodes, 5). The row of a branch is (feature, index if true, index if
            false, threshold, comparison). The row of a leaf is (begin, end, 0, 0, 0), and the votes
            of the leaf are `leaves[begin:end]`.
        leaves: a table of shape (votes, 2). The row of a vote is (class, weight).
        count: the number of classes.
        aggregate: how the weights of all trees are combined; one of `_AGGREGATES`.
    """
    x = feature_rows(site)
    _, feature_count = site.shape(x)
    _check_tables(roots, nodes, leaves, feature_count, count)
    operands = {
        "input": x,
        "trees": parameter(site, "trees", np.asarray(roots), "int32"),
        "nodes": parameter(site, "nodes", nodes, "int32"),
        "leaves": parameter(site, "leaves", leaves, "int32"),
    }
    # An average is computed as a sum, which is then divided by the number of trees.
    is_average = aggregate == "AVERAGE"
    combination = "SUM" if is_average else aggregate
    scores = site.insert("tree_ensemble", operands, classes=count, aggregate=combination)
    scores = site.cast(scores, site.computation_dtype("float32"))
    return site.step.div(scores, float(len(roots))) if is_average else scores


def _check_tables(
    roots: Sequence[int],
    nodes: NDArray[np.int32],
    leaves: NDArray[np.int32],
    feature_count: int,
    class_count: int,
) -> None:
    """Check the tables of `_scores`.

    Raises InvalidShape if a node reads a feature that samples do not have. Raises InvalidOperation
    if a feature is negative, if a root is no node, or if the class of a vote does not exist.
    """
    is_branch = nodes[:, 4] != 0
    features = nodes[is_branch, 0]
    least_count = features.max(initial=-1) + 1  # the number of features that are needed
    # `differ` returns False if the number of features is open.
    if differ(min(feature_count, least_count), least_count):
        raise InvalidShape(
            f"it reads feature {features.max()}, the input has only {feature_count} features"
        )
    has_wrong_root = min(roots) < 0 or max(roots) >= len(nodes)
    has_negative_feature = features.min(initial=0) < 0
    if has_wrong_root or has_negative_feature:
        raise InvalidOperation("a feature is below 0, or a root is not the index of a node")
    voted_classes = leaves[:, 0]
    if voted_classes.min(initial=0) < 0 or voted_classes.max(initial=-1) >= class_count:
        raise InvalidOperation(f"the classes of its leaves must be 0 to {class_count - 1}")


@dataclass(frozen=True, slots=True)
class _Trees:
    """Trees whose nodes have two numbers: the tree's number, and the node's number in the tree."""

    # These sequences have an item for each node. The items of `true` and `false` are the numbers of
    # the children, which are nodes of the same tree. `tracks` tells whether NaN leads to `true`.
    trees: Sequence[int]
    numbers: Sequence[int]
    modes: Sequence[str]
    features: Sequence[int]
    true: Sequence[int]
    false: Sequence[int]
    tracks: Sequence[int]
    # These sequences have an item for each vote: node `vote_nodes` of tree `vote_trees` votes for
    # class `vote_classes`.
    vote_trees: Sequence[int]
    vote_nodes: Sequence[int]
    vote_classes: Sequence[int]


def _attributes(votes: str) -> dict[str, Any]:
    """Return the declarations of the attributes that become fields of `_Trees`.

    `votes` is the first word of the names of some attributes: "target" or "class".
    """
    return {
        "trees": integers("nodes_treeids"),
        "numbers": integers("nodes_nodeids"),
        "modes": attribute("nodes_modes", "attribute", tuple, None),
        "features": integers("nodes_featureids"),
        "true": integers("nodes_truenodeids"),
        "false": integers("nodes_falsenodeids"),
        "tracks": _TRACKS,
        "vote_trees": integers(f"{votes}_treeids"),
        "vote_nodes": integers(f"{votes}_nodeids"),
        "vote_classes": integers(f"{votes}_ids"),
    }


def _ensemble(
    site: NodeSite, ensemble: _Trees, count: int, weights: NDArray[Any], aggregate: str = "SUM"
) -> Any:
    """Compute the scores of rows by trees; the scores have shape (samples, count).

    `count` is the number of classes. `weights` has an item for each vote of `ensemble`. `aggregate`
    is one of `_AGGREGATES`, and says how the weights of all trees are combined.
    """
    trees = ensemble.trees  # the number of the tree of each node
    site.spend(_STEPS_OF_NODE * len(trees))
    unknown_modes = sorted({*ensemble.modes} - {*_COMPARISONS})
    if unknown_modes:
        raise InvalidOperation(f"there is no mode {unknown_modes[0]!r}")
    index_by_node = _index_by_node(ensemble)
    leaves, starts = _leaf_table(ensemble, index_by_node, weights)
    nodes = np.zeros((len(trees), 5), np.int32)
    thresholds = _float_bits(_numbers(site, "nodes_values"))
    tracks = ensemble.tracks or [0] * len(trees)
    for i, (tree, mode) in enumerate(zip(trees, ensemble.modes, strict=True)):
        if mode == "LEAF":
            nodes[i, :2] = starts[i], starts[i + 1]
            continue
        is_true_for_nan = tracks[i] != 0 or mode == "BRANCH_NEQ"
        code = _COMPARISONS[mode]
        if is_true_for_nan:
            code += _TRUE_FOR_NAN
        true_index = index_by_node[tree, ensemble.true[i]]
        false_index = index_by_node[tree, ensemble.false[i]]
        nodes[i] = ensemble.features[i], true_index, false_index, thresholds[i], code
    return _scores(site, _roots(trees), nodes, leaves, count, aggregate)


def _index_by_node(ensemble: _Trees) -> dict[tuple[int, int], int]:
    """Return a dict from the numbers (tree, node) of each node to the node's index.

    Raises InvalidOperation if two nodes of a tree have the same number.
    """
    index_by_node: dict[tuple[int, int], int] = {}
    for i, node in enumerate(zip(ensemble.trees, ensemble.numbers, strict=True)):
        index_by_node[node] = i
    if len(index_by_node) != len(ensemble.trees):
        raise InvalidOperation("a tree has two nodes with the same number")
    return index_by_node


def _roots(trees: Sequence[int]) -> list[int]:
    """Return the index of the root of each tree. The root is the tree's first node.

    `trees` has the number of the tree of each node.
    """
    # The loop comes to the root of a tree last, so the index of the root replaces the indices of
    # all other nodes of the tree.
    root_by_tree: dict[int, int] = {}
    for i in reversed(range(len(trees))):
        root_by_tree[trees[i]] = i
    return list(root_by_tree.values())


def _leaf_table(
    ensemble: _Trees, index_by_node: Mapping[tuple[int, int], int], weights: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the table of votes that `_scores` takes, and the start of each node's votes.

    The votes are sorted by their nodes. Node i has the votes `starts[i] : starts[i + 1]`, where
    `starts` is the second result. `index_by_node` maps the numbers (tree, node) of a node to the
    node's index. `weights` has an item for each vote.
    """
    voters = zip(ensemble.vote_trees, ensemble.vote_nodes, strict=True)
    voter_indices = np.array([index_by_node[node] for node in voters], np.int64)
    order = np.argsort(voter_indices, kind="stable")
    vote_classes = np.asarray(ensemble.vote_classes, np.int32)
    votes = np.stack([vote_classes, _float_bits(weights)], axis=1)
    node_count = len(ensemble.trees)
    starts = np.searchsorted(voter_indices[order], np.arange(node_count + 1))
    return votes[order], starts


def _with_base_values(site: NodeSite, scores: Tensor, count: int) -> Any:
    """Add the attribute `base_values` to scores, if the node has this attribute.

    The attribute must have `count` items.
    """
    base = _numbers(site, "base_values")
    if base.size == 0:
        return scores
    if base.size != count:
        raise InvalidShape(f"'base_values' must have {count} items, it has {base.size}")
    return site.step.add(scores, parameter(site, "base", base))


@operator("TreeEnsembleRegressor", domain=DOMAIN, **_attributes("target"))
def _regressor(
    site: NodeSite, *, count: int = integer("n_targets"), transform: str = TRANSFORM, **trees: Any
) -> Any:
    """Compute `count` scores for each row by trees, and apply `transform` to the scores."""
    aggregate = site.choice("aggregate_function", *_AGGREGATES, default="SUM")
    weights = _numbers(site, "target_weights")
    scores = _ensemble(site, _Trees(**trees), count, weights, aggregate)
    return transformed(site, _with_base_values(site, scores, count), transform)


@operator("TreeEnsembleClassifier", domain=DOMAIN, **_attributes("class"))
def _classifier(
    site: NodeSite,
    *,
    names: Sequence[int] = integers("classlabels_int64s", ()),
    transform: str = TRANSFORM,
    vote_classes: Sequence[int],
    **trees: Any,
) -> Any:
    """Return the label with the highest score, and the scores.

    If there are two classes, all votes may be for one class. Like ONNX Runtime, this function then
    counts all votes as votes for the second class. The second class wins if its score is above a
    threshold. The threshold is 0 if a weight is negative, otherwise 0.5.
    """
    labels = classes(site, names)
    weights = _numbers(site, "class_weights")
    if len(labels) < 2:
        raise InvalidOperation("it must have two labels or more")
    voted_classes = {*vote_classes}
    is_binary = len(labels) == 2
    votes_only_for_0 = is_binary and voted_classes == {0}
    base_count = 1 if votes_only_for_0 else len(labels)
    ensemble = _Trees(vote_classes=vote_classes, **trees)
    scores = _ensemble(site, ensemble, len(labels), weights)
    scores = _with_base_values(site, scores, base_count)
    has_single_score = is_binary and len(voted_classes) == 1
    if not has_single_score:
        label = labelled(site, labels, best_class(site, scores))
        return label, transformed(site, scores, transform)
    voted_class = vote_classes[0]
    score = site.part(scores, axis=1, first=voted_class, last=voted_class + 1)
    is_probability = bool((weights >= 0).all())
    threshold = 0.5 if is_probability else 0.0
    label = labelled(site, labels, is_above(site, score, threshold))
    if voted_class == 1:
        return label, transformed(site, scores, transform)
    # The votes are for the first class, but their sum is used as the score of the second class. The
    # score of the first class is computed from the score of the second class.
    if transform == "PROBIT":
        raise InvalidOperation("'PROBIT' needs votes for each of its classes")
    if transform == "LOGISTIC":
        score = site.step.sigmoid(score)
        is_probability = True
    complement = site.step.sub(1.0, score) if is_probability else site.step.neg(score)
    return label, site.step.concat([complement, score], axis=1)


def _tensor(name: str, default: Constant | None = None) -> Any:
    """Declare an attribute that is a tensor, and that is required if the default is None."""
    return attribute(name, "attribute", Constant, default)


@dataclass(frozen=True, slots=True)
class _Tables:
    """Trees in which nodes and leaves are identified by their indices."""

    # These fields have an item for each node.
    modes: Constant
    splits: Constant
    features: Sequence[int]
    tracks: Sequence[int]
    true: Sequence[int]
    true_leafs: Sequence[int]
    false: Sequence[int]
    false_leafs: Sequence[int]
    # These fields have an item for each leaf.
    vote_classes: Sequence[int]
    weights: Constant
    # The members of all sets, one set after the other. Each set ends with NaN.
    members: Constant

    def children(self, name: str, indices: Sequence[int], leafs: Sequence[int]) -> list[int]:
        """Return the indices of children in a table that has all nodes, then all leaves.

        `indices` has an index for each child, and `leafs` tells whether it is the index of a leaf
        or of a node. `name` is "true" or "false", for errors.
        """
        node_count = self.modes.array.size
        leaf_count = len(self.vote_classes)
        children: list[int] = []
        for index, is_leaf in zip(indices, leafs, strict=True):
            count = leaf_count if is_leaf else node_count
            if index < 0 or index >= count:
                raise InvalidOperation(f"'nodes_{name}nodeids' has an index without a node or leaf")
            children.append(node_count + index if is_leaf else index)
        return children


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
    vote_classes=integers("leaf_targetids"),
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
    """Compute the scores of rows by trees. The result has shape (samples, targets).

    `roots` are the indices of the trees' roots. `aggregate` and `transform` are indices in
    `_AGGREGATES` and `TRANSFORMS`. `tables` has the fields of `_Tables`.
    """
    ensemble = _Tables(**tables)
    site.spend(_STEPS_OF_NODE * ensemble.modes.array.size)
    nodes = _node_table(ensemble)
    weights = _float_bits(ensemble.weights.array.reshape(-1))
    vote_classes = np.asarray(ensemble.vote_classes, np.int32)
    leaves = np.stack([vote_classes, weights], axis=1)
    aggregate_name = _named("aggregate_function", aggregate, _AGGREGATES)
    scores = _scores(site, roots, nodes, leaves, targets, aggregate_name)
    transform_name = _named("post_transform", transform, TRANSFORMS)
    scores = transformed(site, scores, transform_name)
    return site.cast(scores, site.dtype_of())


def _node_table(ensemble: _Tables) -> NDArray[np.int32]:
    """Return the table of nodes that `_scores` takes.

    The table has the nodes of the ensemble, then the leaves of the ensemble, then additional nodes
    for members of sets. Leaf i has a single vote, which is row i of the table of votes.
    """
    count = ensemble.modes.array.size
    sets = _sets(ensemble.members)
    tracks = ensemble.tracks or [0] * count
    true_indices = ensemble.children("true", ensemble.true, ensemble.true_leafs)
    false_indices = ensemble.children("false", ensemble.false, ensemble.false_leafs)
    thresholds = _float_bits(ensemble.splits.array.reshape(-1)).tolist()
    table = [[0] * 5 for _ in range(count)]  # The loop below fills in the rows of nodes.
    table += [[i, i + 1, 0, 0, 0] for i in range(len(ensemble.vote_classes))]
    for i, mode in enumerate(ensemble.modes.array.reshape(-1).tolist()):
        feature = ensemble.features[i]
        true_index = true_indices[i]
        false_index = false_indices[i]
        is_true_for_nan = tracks[i] != 0 or mode == _MODES.index("NEQ")
        nan_code = _TRUE_FOR_NAN if is_true_for_nan else 0
        if mode < len(_MODES):
            code = _COMPARISONS[f"BRANCH_{_MODES[mode]}"] + nan_code
            table[i] = [feature, true_index, false_index, thresholds[i], code]
            continue
        if mode > len(_MODES) or not sets:
            raise InvalidOperation(f"node {i} has the unknown mode {mode}, or no set of members")
        # The mode is MEMBER. The test becomes a chain of nodes, one for each member. An item that
        # differs from a member goes on to the node of the next member.
        members = _float_bits(sets.pop(0)).tolist()
        code = _COMPARISONS["BRANCH_EQ"] + nan_code
        further_nodes = range(len(table), len(table) + len(members) - 1)
        chain = [i, *further_nodes]
        next_nodes = [*further_nodes, false_index]
        table += [[0] * 5 for _ in further_nodes]
        for node, member, next_node in zip(chain, members, next_nodes, strict=True):
            table[node] = [feature, true_index, next_node, member, code]
    return np.array(table, np.int32).reshape(-1, 5)


def _named(attribute_name: str, number: int, names: Sequence[str]) -> str:
    """Return `names[number]`, where `number` is the value of the attribute `attribute_name`."""
    if number < 0 or number >= len(names):
        raise InvalidOperation(f"'{attribute_name}' must be below {len(names)}, it is {number}")
    return names[number]


def _sets(members: Constant) -> list[list[float]]:
    """Split numbers into sets of members. In `members`, each set ends with NaN.

    Empty sets are left out. For example, 1, 2, NaN, 3, NaN are the sets [1, 2] and [3].
    """
    sets: list[list[float]] = [[]]
    for item in members.array.reshape(-1).tolist():
        if math.isnan(item):
            sets.append([])
        else:
            sets[-1].append(item)
    return [members_of_set for members_of_set in sets if members_of_set]
