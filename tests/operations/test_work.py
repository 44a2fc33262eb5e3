"""Multiply-adds by the rules, against counts by hand; and no rule that multiplies is without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import pytest
from jax.extend import core

import nnef_jax
from lowering.graph import Graph, TensorType
from lowering.ops import rules
from lowering.registry import Registry
from lowering.tracing import Context, trace
from lowering.work import multiply_adds, total
from tests.helpers import model_of
from tests.op_cases import NNEF, TRACT, OpCase, document, inputs
from tests.operation_checks import read_graph
from tests.tract_text import HEADER, graph

PRODUCTS = {"dot_general", "conv_general_dilated"}


def counted(model: nnef_jax.Model) -> int:
    count = total(model.graph)
    assert f"{count:,} multiply-adds" in str(model.summary())
    return count


def standard(call: str, **shapes: str) -> nnef_jax.Model:
    types = {"rois": "scalar", "batch_index": "integer"}
    lines = "".join(
        f"{n} = external<{types.get(n, 'scalar')}>(shape = {s}); " for n, s in shapes.items()
    )
    head = "version 1.0; extension KHR_enable_fragment_definitions;"
    return model_of(f"{head} graph g({', '.join(shapes)}) -> (y) {{ {lines}y = {call}; }}")


@pytest.mark.parametrize(
    ("call", "shapes", "count"),
    [
        ("matmul(a, b)", {"a": "[]", "b": "[]"}, 1),
        ("matmul(a, b)", {"a": "[3]", "b": "[]"}, 3),  # a column times a number
        ("matmul(a, b, transposeB = true)", {"a": "[3]", "b": "[4]"}, 12),
        ("matmul(a, b, transposeA = true)", {"a": "[3]", "b": "[3]"}, 3),
        ("matmul(a, b)", {"a": "[2,3]", "b": "[3,4]"}, 2 * 4 * 3),
        ("matmul(a, b, transposeA = true)", {"a": "[5,3,2]", "b": "[1,3,4]"}, 5 * 2 * 4 * 3),
        ("matmul(a, b)", {"a": "[2,0]", "b": "[3,4]"}, 2 * 4 * 3),
        ("linear(a, b)", {"a": "[2,3]", "b": "[4,3]"}, 2 * 4 * 3),
        ("linear(a, b)", {"a": "[]", "b": "[]"}, 1),
        ("linear(a, b)", {"a": "[6]", "b": "[]"}, 6),
        ("linear(a, b)", {"a": "[0,3]", "b": "[4,3]"}, 4 * 3),  # for one item of an open batch
        # 6 channels of 5 x 7 places, from 2 of the 4 channels in windows of 3 x 2
        (
            "conv(x, w, groups = 2)",
            {"x": "[3,4,5,7]", "w": "[6,2,3,2]"},
            (3 * 6 * 5 * 7) * (2 * 3 * 2),
        ),
        ("conv(x, w, stride = [2])", {"x": "[1,4,9]", "w": "[4,4,3]"}, (4 * 5) * (4 * 3)),
        ("conv(x, w, groups = 0)", {"x": "[1,4,9]", "w": "[8,1,3]"}, (8 * 9) * 3),
        (
            "separable_conv(x, p, w)",
            {"x": "[1,4,9]", "p": "[4,1,3]", "w": "[5,4,1]"},
            (4 * 9) * 3 + (5 * 9) * 4,
        ),
        # each of the 4 x 5 x 7 items goes to 2 channels, in windows of 3 x 2
        (
            "deconv(x, w, groups = 2)",
            {"x": "[3,4,5,7]", "w": "[4,2,3,2]"},
            (3 * 4 * 5 * 7) * (2 * 3 * 2),
        ),
        ("deconv(x, w, stride = [2])", {"x": "[1,4,9]", "w": "[4,5,3]"}, (4 * 9) * (5 * 3)),
        # 4 columns become 8, of two taps each, then 5 rows become 15
        (
            "multilinear_upsample(x, factor = [1, 2])",
            {"x": "[1,1,5,4]"},
            2 * (5 * 8),
        ),
        (
            "multilinear_upsample(x, factor = [3, 2])",
            {"x": "[1,2,5,4]"},
            2 * (2 * 15 * 4) + 2 * (2 * 15 * 8),
        ),
        (
            "roi_resample(x, rois, batch_index, output_size = [3, 2])",
            {"x": "[1,5,8,8]", "rois": "[7,4]", "batch_index": "[7]"},
            4 * (7 * 5 * 3 * 2),
        ),
        ("relu(mul(x, x))", {"x": "[2,3]"}, 0),
        ("box(x, size = [1,1,3], normalize = true)", {"x": "[2,3,4]"}, 0),
    ],
)
def test_the_standard(call: str, shapes: dict[str, str], count: int) -> None:
    assert counted(standard(call, **shapes)) == count


_CONV = "border = 'constant', padding = [(0,0)], stride = [1], dilation = [1]"
_Q = "a0 = 0, a_scale = 0.5, b0 = 0, b_scale = 0.5, c0 = 0, c_scale = 0.5"
_GRU = {"x": "[2,5,3] f32", "w": "[12,3] f32", "r": "[12,4] f32", "h": "[2,1,4] f32"}
_MOE = {"x": "[6,4] f32", "g": "[3,4] f32", "w1": "[3,4,8] f32", "w2": "[3,8,4] f32"}
_MOE_CALL = "tract_moe_ffn(x, g, w1, w2, k = 2, activation = 'silu', gate = 'raw'"


@pytest.mark.parametrize(
    ("call", "shapes", "count"),
    [
        ("y = linear(a, b);", {"a": "[5,2,3] f32", "b": "[1,4,3] f32"}, 5 * 2 * 4 * 3),
        ("y = matmul(a, b);", {"a": "[5,2,3] f32", "b": "[3,4] f32"}, 5 * 2 * 4 * 3),
        (
            "y = tract_core_matmul(a, b, axes = [0,1,1,0,0,1]);",
            {"a": "[2,3] f32", "b": "[4,3] f32"},
            2 * 4 * 3,
        ),
        (f"y = conv(x, w, {_CONV});", {"x": "[2,4,9] f32", "w": "[5,4,3] f32"}, 2 * 5 * 7 * 4 * 3),
        (
            f"y = conv(x, w, {_CONV}, groups = 0);",
            {"x": "[2,4,9] f32", "w": "[4,1,3] f32"},
            2 * 4 * 7 * 3,
        ),
        # the filter begins with the output channels, 6: 3 for each of the groups
        (
            f"y = deconv(x, w, {_CONV}, groups = 2);",
            {"x": "[2,4,9] f32", "w": "[6,2,3] f32"},
            (2 * 4 * 9) * (3 * 3),
        ),
        (
            "y = tract_core_einsum([a, b], expr = 'bij,bkj->bik', acc = 'f32');",
            {"a": "[2,3,4] f32", "b": "[2,5,4] f32"},
            2 * 3 * 5 * 4,
        ),
        ("y = tract_core_einsum([a], expr = 'ij->i', acc = 'f32');", {"a": "[2,3] f32"}, 0),
        (  # `a` is summed first
            "y = tract_core_einsum([a, b], expr = 'aij,jk->ik', acc = 'f32');",
            {"a": "[7,3,4] f32", "b": "[4,5] f32"},
            3 * 5 * 4,
        ),
        (  # an extent of 1 is left out before it meets another
            "y = tract_core_einsum([a, b], expr = 'ij,jk->ik', acc = 'f32');",
            {"a": "[3,1] f32", "b": "[4,5] f32"},
            3 * 5,
        ),
        (  # (a b) c would take 9 * 2 * 9 + 9 * 9 * 2 products
            "y = tract_core_einsum([a, b, c], expr = 'ij,jk,kl->il', acc = 'f32');",
            {"a": "[9,2] f32", "b": "[2,9] f32", "c": "[9,2] f32"},
            2 * 9 * 2 + 9 * 2 * 2,
        ),
        (
            f"y = tract_core_einsum_q([a, b], expr = 'mk,kn->mn', acc = 'i32', output = 'i8', "
            f"bias = 0, {_Q});",
            {"a": "[2,3] i8", "b": "[3,4] i8"},
            2 * 4 * 3,
        ),
        (
            f"y = tract_core_qmatmul(a, b, 0, axes = [0,1,0,1,0,1], {_Q}, output_type = 'i8');",
            {"a": "[2,3] i8", "b": "[3,4] i8"},
            2 * 4 * 3,
        ),
        (
            f"y = tract_core_qconv(x, w, 0, 1, [1], [1], [(0,0)], 'constant', {_Q}, 'i8');",
            {"x": "[2,4,9] i8", "w": "[5,4,3] i8"},
            (2 * 5 * 7) * (4 * 3),
        ),
        (  # 8 heads of queries; scores of 16 items, then values of 6; what is masked too
            "y = tract_transformers_sdpa(q, k, v, datum_type = 'f32', acc_datum_type = 'f32', "
            "is_causal = true);",
            {"q": "[2,8,5,16] f32", "k": "[2,4,7,16] f32", "v": "[2,4,7,6] f32"},
            2 * 8 * 5 * 7 * (16 + 6),
        ),
        # the logits and both products, of all three experts
        (f"y = {_MOE_CALL});", _MOE, 6 * (4 * 3 + 3 * (4 * 8 + 8 * 4))),
        (
            f"y = {_MOE_CALL}, w3 = w3, w2_bias = b);",
            _MOE | {"w3": "[3,4,8] f32", "b": "[3,4] f32"},
            6 * (4 * 3 + 3 * (4 * 8 + 4 * 8 + 8 * 4) + 3 * 4),
        ),
        (
            "(y, z) = tract_core_gru_seq(x, w, r, initial_h = h, hidden = 4, chunk = 1);",
            _GRU,
            2 * 5 * 12 * (3 + 4),
        ),
        (
            "(y, z) = tract_core_gru_seq(x, w, r, initial_h = h, hidden = 4, chunk = 1, "
            "projected = true);",
            _GRU | {"x": "[2,5,12] f32"},
            2 * 5 * 12 * 4,
        ),
        (  # what follows the products is element by element
            "(y, z) = tract_core_lstm_epilogue(x, c, hidden = 4);",
            {"x": "[2,16] f32", "c": "[2,4] f32"},
            0,
        ),
        (
            "(y, z) = tract_transformers_causal_conv1d_update(x, w, s);",
            {"x": "[2,5] f32", "w": "[10,4] f32", "s": "[10,4] f32"},
            (2 * 5) * 4,
        ),
        (  # two reads and an outer product of 8 x 8 for each of 2 x 3 x 6 heads
            "(y, z) = tract_transformers_gdn_recurrent(q, k, v, d, b, s);",
            {"q": "[2,3,2,8] f32", "k": "[2,3,2,8] f32", "v": "[2,3,6,8] f32"}
            | {"d": "[2,3,6] f32", "b": "[2,3,6] f32", "s": "[2,6,8,8] f32"},
            (2 * 3 * 6) * 3 * (8 * 8),
        ),
        # rows first, of two taps, then columns; of four taps where it is cubic
        (
            "y = tract_core_resize(x, sizes = [1,2,6,3], interpolator = 'linear');",
            {"x": "[1,2,4,5] f32"},
            2 * (2 * 6 * 5) + 2 * (2 * 6 * 3),
        ),
        (
            "y = tract_core_resize(x, sizes = [1,2,6,5], interpolator = 'cubic');",
            {"x": "[1,2,4,5] f32"},
            4 * (2 * 6 * 5),
        ),
        (
            "y = tract_core_resize(x, sizes = [1,2,6,5], interpolator = 'nearest');",
            {"x": "[1,2,4,5] f32"},
            0,
        ),
        (  # a kernel twice as wide
            "y = tract_onnx_resize(x, scales = [1.0, 0.5], interpolator = 'linear', "
            "antialias = true);",
            {"x": "[3,8] f32"},
            4 * (3 * 4),
        ),
        (
            "y = tract_core_grid_sample(x, g, mode = 'bilinear');",
            {"x": "[1,3,8,8] f32", "g": "[1,4,5,2] f32"},
            4 * (3 * 4 * 5),
        ),
        ("y = relu(x);", {"x": "[2,3] f32"}, 0),
    ],
)
def test_the_dialect(call: str, shapes: dict[str, str], count: int) -> None:
    registries = ("tract_core", "tract_onnx", "tract_transformers")
    head = "".join(f"extension tract_registry {name};\n" for name in registries)
    results = "y, z" if call.startswith("(") else "y"
    text = graph(call, header=f"version 1.0;\n{head}", results=results, **shapes)
    assert counted(model_of(text)) == count


def test_a_scan_counts_its_body_once_for_each_chunk() -> None:
    body = "fragment body( a: T, w: T ) -> ( b: T ) { b = matmul(a, w); }\n"
    call = (
        "y = tract_core_scan(body = 'body', scan = [('a', x, 0, 2)], full = [('w', w)],"
        " state = [], output = [('b', 'full', 0, 1)], skip = SKIP);"
    )
    shapes = {"x": "[6,3] f32", "w": "[3,4] f32"}
    for skip, turns in ((0, 3), (1, 2), (5, 0)):
        text = graph(call.replace("SKIP", str(skip)), body, header=HEADER, **shapes)
        assert counted(model_of(text)) == turns * (2 * 3 * 4)


def test_a_rule_of_ones_own_counts_what_it_says() -> None:
    registry = Registry()

    def work(x: TensorType, times: int) -> int:
        return times * x.shape[0]

    def infer(x: TensorType, times: int) -> TensorType:
        return x

    registry.rule("own", infer, work=work)(lambda x, times: x)
    text = """version 1.0; extension KHR_enable_fragment_definitions;
    fragment own( x: tensor<scalar>, times: integer ) -> ( y: tensor<scalar> );
    graph g(x) -> (y) { x = external(shape = [5]); y = own(x, times = 3); }"""
    assert counted(model_of(text, rules=registry)) == 15
    with pytest.raises(TypeError, match="work takes"):
        registry.rule("other", infer, work=lambda y: 0)(lambda x, times: x)


def primitives(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in core.jaxprs_in_params(equation.params):
            yield from primitives(inner)


def ends(table: Sequence[OpCase]) -> list[OpCase]:
    """The first and the last row of each operation."""
    first = {case.operation: case for case in reversed(table)}
    last = {case.operation: case for case in table}
    return [*first.values(), *(x for x in last.values() if x is not first[x.operation])]


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(ends(NNEF), id="standard"),
        pytest.param(ends(TRACT), id="tract"),
        pytest.param([*NNEF, *TRACT], id="all", marks=pytest.mark.slow),
    ],
)
def test_no_rule_that_multiplies_is_without_work(table: Sequence[OpCase]) -> None:
    """Of each row that counts nothing the traced function has no product."""
    counts = set[bool]()
    for case in table:
        network = read_graph(document(case))
        if any(rules[operation.kind].work for operation in network.operations):
            counts.add(True)
            continue
        counts.add(False)
        found = products(network, case)
        assert not found, f"{case.operation} has no `work`, {case.name} is computed by {found}"
    assert counts == {True, False}


def products(network: Graph, case: OpCase) -> set[str]:
    def run(*xs: Any) -> list[Any]:
        found = trace(network, Context(), {}, {}, xs)
        return [found[output] for output in network.outputs]

    return PRODUCTS & set(primitives(jax.make_jaxpr(run)(*inputs(case)).jaxpr))


def test_products_are_found() -> None:
    (case,) = (c for c in TRACT if c.name == "gru_seq")
    network = read_graph(document(case))
    assert products(network, case) == {"dot_general"}  # in the body of a loop
    (operation,) = network.operations
    assert multiply_adds(operation) > 0
