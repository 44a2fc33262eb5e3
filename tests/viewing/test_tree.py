"""Which groups a network is folded into: modules, calls, repetitions, ranges."""

from __future__ import annotations

import re

import nnef_jax
from lowering.graph import Graph, Operation
from nnef_jax.viewing.operation_tree import MOST, Group, tree_of
from tests.helpers import COMPOSITIONAL
from tests.text_support import flat
from tests.viewing.networks import gpt


def leaves(member: Group | Operation) -> list[Operation]:
    if isinstance(member, Operation):
        return [member]
    return [leaf for inner in member.members for leaf in leaves(inner)]


def groups(group: Group) -> list[Group]:
    inner = [x for member in group.members if isinstance(member, Group) for x in groups(member)]
    return [group, *inner]


def outline(group: Group) -> list[str]:
    return [x.label if isinstance(x, Group) else x.name for x in group.members]


def checked(graph: Graph) -> Group:
    """The tree of a graph: each operation once, after what it reads; no group too large."""
    root = tree_of(graph)
    made = {*graph.inputs, *(p.value for p in graph.parameters)}
    order = leaves(root)
    assert sorted(map(id, order)) == sorted(map(id, graph.operations))
    for operation in order:
        assert made.issuperset(operation.reads())
        made.update(operation.writes())
    assert all(len(group.members) <= MOST for group in groups(root) if group.by != "operation")
    return root


def test_modules_are_found_by_labels() -> None:
    root = checked(flat(gpt(3)))
    blocks, head = root.members
    assert isinstance(blocks, Group) and isinstance(head, Group)
    assert (blocks.label, blocks.by, blocks.repeats) == ("blocks", "module", 3)
    assert outline(blocks) == ["0", "1", "2"]
    assert (head.by, head.module) == ("operation", "head")
    (block, *_) = blocks.members
    assert isinstance(block, Group)
    # The sums after attention and the last product are of the block, by what is alive around them.
    kinds = [x.label if isinstance(x, Group) and x.by == "module" else "" for x in block.members]
    assert [kind for kind in kinds if kind] == ["attention", "mlp"]
    assert leaves(block)[-1].kind == "add" and len(leaves(block)) == 34


def test_modules_of_exports_are_found() -> None:
    root = checked(nnef_jax.load("tests/torch_networks/resnet.nnef.tgz").graph)
    assert outline(root)[-3:] == ["x", "flatten0", "logits"]
    layer1, layer2 = [x for x in root.members if isinstance(x, Group) and x.by == "module"]
    assert (layer1.label, layer2.label) == ("layer1", "layer2")
    assert [x.kind for x in leaves(layer1)] == [
        "conv", "batch_normalization", "relu", "conv", "batch_normalization", "add", "relu"
    ]  # fmt: skip
    assert "shortcut" in outline(layer2)
    for name in ("bert", "gpt", "vit"):
        root = checked(nnef_jax.load(f"tests/torch_networks/{name}.nnef.tgz").graph)
        blocks = [x for x in root.members if isinstance(x, Group) and x.label == "blocks"]
        assert [outline(x) for x in blocks] == [["0", "1"]]


def test_underscores_separate_modules_of_large_networks() -> None:
    text = re.sub(r"label = '([^']+)'", lambda m: m[0].replace(".", "_"), gpt(3))
    root = checked(flat(text))
    assert outline(root)[0] == "blocks" and "blocks_0_mlp_up_weight" in text
    blocks = root.members[0]
    assert isinstance(blocks, Group) and outline(blocks) == ["0", "1", "2"]


def test_many_blocks_are_cut_into_ranges() -> None:
    root = checked(flat(gpt(70)))
    blocks = root.members[0]
    assert isinstance(blocks, Group) and (blocks.label, blocks.repeats) == ("blocks", 70)
    assert outline(blocks) == ["0 … 34", "35 … 69"]


def test_repetitions_are_found_without_names() -> None:
    layers = 40
    root = checked(flat(gpt(layers, labels=False)))
    (repetition, *_) = [x for x in root.members if isinstance(x, Group) and x.by == "repetition"]
    assert repetition.repeats in (layers - 1, layers)
    first, second = (leaves(x) for x in repetition.members[:2])
    assert [x.kind for x in first] == [x.kind for x in second] and len(first) == 34
    # A repetition begins where the fewest tensors are alive: with one, the sum before it.
    inside = {value for x in second for value in x.writes()}
    parameters = {*flat_parameters(second)}
    read = {v for x in second for v in x.reads() if v not in inside and v not in parameters}
    assert len(read) == 1


def flat_parameters(operations: list[Operation]) -> list[object]:
    """What operations read that nothing computes from the input: variables, by their shapes."""
    return [
        v
        for x in operations
        for v in x.reads()
        if v.type.shape[0] != 1 or v.type.shape == (1, 1, 32)
    ]


def test_a_row_without_structure_is_cut_into_ranges() -> None:
    kinds = ["relu", "exp", "neg", "abs", "sqrt"]
    # Numbers of squares: no stretch of 1 in 10 comes twice.
    names = [kinds[(i * i // 7 + i // 11 + i * i * i // 101) % 5] for i in range(4000)]
    lines = [f"v{i + 1} = {name}(v{i});" for i, name in enumerate(names)]
    text = "version 1.0;\ngraph g(v0) -> (v4000)\n{\nv0 = external<scalar>(shape = [2]);\n"
    root = checked(flat(text + "\n".join(lines) + "\n}\n"))
    assert 2 <= len(root.members) <= MOST
    assert all(isinstance(x, Group) and x.by == "range" for x in root.members)


def test_calls_of_fragments_are_groups() -> None:
    text = f"""{COMPOSITIONAL}
fragment half(x: tensor<scalar>) -> (y: tensor<scalar>) {{ y = x / 2.0; }}
fragment block(x: tensor<scalar>) -> (y: tensor<scalar>) {{ z = relu(x); y = half(z) + x; }}
graph g(x) -> (y) {{ x = external<scalar>(shape = [2]); a = block(x); y = block(a); }}
"""
    root = checked(flat(text))
    assert outline(root) == ["block", "block"]
    (first, second) = root.members
    assert isinstance(first, Group) and isinstance(second, Group)
    assert first.by == "call" and [x.kind for x in leaves(first)] == ["relu", "div", "add"]
    assert first.signature == second.signature


def test_what_is_hostile_is_folded_too() -> None:
    label = "a/" * 3000 + "w"
    lines = [f"w{i} = variable<scalar>(shape = [2], label = '{label}{i}/x');" for i in range(4)]
    lines += [f"y{i + 1} = mul(y{i}, w{i});" for i in range(4)]
    text = "version 1.0;\ngraph g(y0) -> (y4)\n{\ny0 = external<scalar>(shape = [2]);\n"
    checked(flat(text + "\n".join(lines) + "\n}\n"))
    # Many operations prepare one parameter, or depend on no input at all.
    chain = [f"v{i + 1} = relu(v{i});" for i in range(3000)]
    first = "v0 = variable<scalar>(shape = [2], label = 'v');\n"
    text = "version 1.0;\ngraph g(x) -> (y)\n{\nx = external<scalar>(shape = [2]);\n" + first
    checked(flat(text + "\n".join(chain) + "\ny = add(x, v3000);\n}\n"))
    called = "".join(
        f"fragment f{i}(x: tensor<scalar>) -> (y: tensor<scalar>) {{ z = {inner}; y = relu(z); }}\n"
        for i, inner in enumerate(["exp(x)", *(f"f{i}(x)" for i in range(300))])
    )
    checked(
        flat(
            f"{COMPOSITIONAL}{called}graph g(x) -> (y)\n"
            "{ x = external<scalar>(shape = [2]); y = f300(x); }\n"
        )
    )


def test_what_prepares_parameters_goes_with_their_reader() -> None:
    text = """version 1.0;
graph g(x) -> (y)
{
    x = external<scalar>(shape = [2, 3]);
    w = variable<scalar>(shape = [3], label = 'w');
    e = exp(w);
    a = relu(x);
    u = unsqueeze(e, axes = [0]);
    y = mul(a, u);
}
"""
    root = checked(flat(text))
    assert outline(root) == ["a", "y"]
    assert [x.name for x in leaves(root.members[1])] == ["e", "u", "y"]
