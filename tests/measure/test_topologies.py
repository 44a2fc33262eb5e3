"""Devices that are not attached: their names, and the work in the text of a compiled program."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import export
from onnx import TensorProto, helper

import nnef_jax
from nnef_jax import InputError, UnsupportedError
from nnef_jax.measure import device_costs, refusals, topologies, unattached
from nnef_jax.measure.device_costs import DeviceCost, DeviceRow, estimated_seconds
from nnef_jax.measure.hlo import HloText
from nnef_jax.measure.topologies import Topology, topology_of
from nnef_jax.measure.unattached import Compiled, LoweredFunction, Refused

DIGITS = "examples/digits/model"

NAMES: dict[str, tuple[tuple[int, ...], int]] = {
    "v5e:1": ((1, 1), 1),
    "v5e:1x2": ((1, 2), 2),
    "v5e:4x4": ((4, 4), 16),
    "v4:2x2x1": ((2, 2, 1), 8),
    "v5p:2x2x1": ((2, 2, 1), 4),
    "tpu7x:2x2x1": ((2, 2, 1), 8),
    "v5p:2x4x3": ((2, 4, 3), 24),
    "h100": ((1, 1), 1),
    "h100:8": ((1, 8), 8),
    "a100:2x8": ((2, 8), 16),
}


@pytest.mark.parametrize(("name", "shape", "devices"), [(n, *x) for n, x in NAMES.items()])
def test_names(name: str, shape: tuple[int, ...], devices: int) -> None:
    topology = topology_of(name)
    assert (topology.shape, topology.devices) == (shape, devices)


WRONG = {
    "v9:1": "there is no device 'v9'",
    "v5:2x2": "there is no device 'v5'.*\n.*v5e",
    "v5e:3": "does not give chips along 2 axes.*v5e:1, v5e:1x2, v5e:2x2",
    "v5e:0x2": "does not give chips along 2 axes",
    "v4:2x2": "does not give chips along 3 axes.*v4:1, v4:1x2x1, v4:2x2x1",
    "v5e:": "does not give chips along 2 axes",
    "h100:2x2x2": "does not give hosts x GPUs of each",
    "h100:x": "does not give hosts x GPUs of each.*h100:1, h100:8, h100:2x8",
    "v5e:1x3": "'v5e' has no layout 1x3: along each axis .*v5e:1x2, v5e:1x4; a mesh may use fewer",
    "v6e:3x8": "'v6e' has no layout 3x8.*v6e:2x8, v6e:4x8",
    "v4:1x3x5": "has no layout 1x3x5: along each of the first two .*v4:1x2x5, v4:1x4x5",
    "": "there is no device ''",
}


@pytest.mark.parametrize(("name", "message"), WRONG.items())
def test_wrong_names(name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        topology_of(name)
    with pytest.raises(InputError, match=f"(?s){message}"):
        nnef_jax.cost(nnef_jax.load(DIGITS), topology=name)


def test_wrong_arguments() -> None:
    model = nnef_jax.load(DIGITS, input_shapes={"image": [4, 1, 8, 8]})
    cost: Any = nnef_jax.cost
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"topology": 3}, TypeError, "topology must be a name"),
        ({"mesh": {"data": 2}}, ValueError, "mesh needs a topology"),
        ({"topology": "v5e:1", "platform": "tpu"}, ValueError, "exclude each other"),
        ({"topology": "v5e:1", "mesh": {"data": 2}}, InputError, "the mesh has 2 devices, 'v5e:1'"),
        ({"topology": "v5e:2x2", "mesh": {"data": 0}}, TypeError, "positive numbers of devices"),
        ({"topology": "v5e:2x2", "mesh": [2]}, TypeError, "mesh must be numbers of devices"),
        ({"topology": "v5e:4x4", "mesh": {"data": 16}}, InputError, "batch of 4, .* 16 equal"),
        ({"topology": "v5e:2x2", "mesh": {"a": 4}, "batch": "b"}, InputError, "batch names 'b'"),
    ]
    for keywords, error, message in wrong:
        with pytest.raises(error, match=message):
            cost(model, **keywords)
    with pytest.raises(TypeError, match=r"model must be a nnef_jax\.Model or a function"):
        cost(3, topology="v5e:1")
    with pytest.raises(InputError, match="mesh is for a model"):
        cost(lambda x: x, 1.0, topology="v5e:2x2", mesh={"data": 4})
    with pytest.raises(TypeError, match="by position"):
        cost(lambda x: x, topology="v5e:1", x=1.0)


def test_a_compiler_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> None:
        raise AssertionError("a process starts")

    monkeypatch.setattr(topologies, "find_spec", lambda _: None)
    monkeypatch.setattr(unattached.subprocess, "run", nothing)
    model = nnef_jax.load(DIGITS, input_shapes={"image": [4, 1, 8, 8]}, parameters="shapes")
    for name, hint in {"v5e:1": r"jax\[tpu\]", "h100": r"nnef_jax\[devices\]"}.items():
        with pytest.raises(InputError, match=f"(?s)is not installed.*{hint}"):
            nnef_jax.cost(model, topology=name)
    monkeypatch.setattr(topologies.host, "machine", lambda: "arm64")
    with pytest.raises(InputError, match=r"which has no .* arm64"):
        nnef_jax.cost(model, topology="v5e:1")


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ('INVALID_ARGUMENT: Topology layout "v5e:1x2" is not', "no layout 'v5e:1x2'.*fewer"),
        ("ImportError: libtpu.so", "does not start: ImportError: libtpu.*pip install -U"),
    ],
)
def test_a_compiler_that_does_not_start(
    monkeypatch: pytest.MonkeyPatch, reason: str, message: str
) -> None:
    """Only an installation that is broken is installed again."""
    ended = subprocess.CompletedProcess([], 1, "", f"Traceback\n{reason}\n")
    monkeypatch.setattr(Topology, "require_compiler", lambda _: None)
    monkeypatch.setattr(unattached.subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(InputError, match=f"(?s){message}") as caught:
        nnef_jax.cost(jax.nn.relu, jax.ShapeDtypeStruct((2,), "float32"), topology="v5e:1x2")
    assert ("pip install" in str(caught.value)) == ("ImportError" in reason)


REFUSED = """version 1.0;
graph net(x) -> (z)
{
    x = external(shape = [2, 3]);
    y = relu(x);
    z = softmax(y);
}
"""


def test_a_refused_operation_is_named_by_its_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A compiler that refuses what has an exponential, and so the whole network."""
    compiled = Compiled("", 0, 0, 0, 0, 0, {})

    def compile_for(_: object, programs: Sequence[LoweredFunction], __: object = None) -> Any:
        texts = [export.deserialize(bytearray(x.serialized)).mlir_module() for x in programs]
        return [Refused("no exp") if "exponential" in text else compiled for text in texts]

    monkeypatch.setattr(Topology, "require_compiler", lambda _: None)
    monkeypatch.setattr(device_costs, "compile_for", compile_for)
    monkeypatch.setattr(refusals, "compile_for", compile_for)
    (tmp_path / "graph.nnef").write_text(REFUSED)
    message = r"(?s)graph\.nnef:6:\d+: the compiler for 'v5e:1' refuses 'softmax': no exp"
    with pytest.raises(UnsupportedError, match=message):
        nnef_jax.cost(nnef_jax.load(tmp_path), topology="v5e:1")
    with pytest.raises(UnsupportedError, match=r"^the compiler for 'v5e:1' refuses: no exp"):
        nnef_jax.cost(jax.nn.softmax, jax.ShapeDtypeStruct((2,), "float32"), topology="v5e:1")


def test_an_operation_with_2_bits_is_named_by_its_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Topology, "require_compiler", lambda _: None)
    node = helper.make_node("Cast", ["x"], ["y"], name="to2", to=TensorProto.UINT2)
    values = [("x", TensorProto.FLOAT), ("y", TensorProto.UINT2)]
    x, y = [helper.make_tensor_value_info(name, dtype, [4]) for name, dtype in values]
    graph = helper.make_graph([node], "net", [x], [y])
    opsets = [helper.make_opsetid("", 25)]
    model = helper.make_model(graph, opset_imports=opsets)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedError, match=r"(?s)2 bits cannot be compiled.*Cast 'to2'"):
        nnef_jax.cost(nnef_jax.load(tmp_path / "net.onnx"), topology="v5e:1")


# A program as libtpu writes it, shortened: a loop of 17 trips with a product that is summed over 4
# devices, a gather between pairs of devices that takes two steps, and a loop of unknown length.
PROGRAM = """HloModule jit_f, is_scheduled=true

%body (p: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %dot.1 = f32[8,16]{1,0:T(8,128)} fusion(%p), kind=kOutput, calls=%fused, metadata={op_name="jit(f)/a/dot"}, backend_config={"window_config":{"estimated_cycles":"100"}}
  ROOT %all-reduce.2 = f32[8,16]{1,0} all-reduce(%dot.1), channel_id=1, replica_groups=mesh['x'=2,'y'=4] {'y'}, to_apply=%add
}

%condition (p: (s32[], f32[8,16])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(17)
  ROOT %lt.1 = pred[]{:T(512)} compare(%i, %constant.1), direction=LT
}

%until (p: (f32[])) -> pred[] {
  ROOT %le.1 = pred[] compare(%x, %y), direction=LE
}

%step (p: (f32[])) -> (f32[]) {
  ROOT %mul.1 = f32[] multiply(%x, %y), backend_config={"window_config":{"estimated_cycles":"7"}}
}

ENTRY %main (x: f32[8,16]) -> bf16[16,16] {
  %while.1 = (s32[], f32[8,16]{1,0}) while(%t), condition=%condition, body=%body
  %while.2 = (f32[]) while(%u), condition=%until, body=%step
  %lu.1 = (f32[8,8]{1,0}, s32[8]{0}) custom-call(%a), custom_call_target="LuDecompositionBlock"
  %free.1 = f32[8,8]{1,0} custom-call(%a), custom_call_target="ConcatBitcast"
  %all-gather-start.1 = (bf16[8,16]{1,0}, bf16[16,16]{1,0}) all-gather-start(%b), channel_id=3, replica_groups=[4,2]<=[8], dimensions={0}
  %all-gather-done.1 = bf16[16,16]{1,0} all-gather-done(%all-gather-start.1)
  %all-gather.2 = bf16[16,16]{1,0} all-gather(%b), channel_id=3, replica_groups=[4,2]<=[8], dimensions={0}
  ROOT %add.1 = bf16[16,16]{1,0:T(8,128)(2,1)} add(%c, %d), backend_config={"window_config":{"estimated_cycles":"300"}}
}
"""  # noqa: E501


def test_work_in_a_program() -> None:
    text = HloText(PROGRAM)
    assert text.cycles == {"dot.1": 1700, "mul.1": 7, "add.1": 300}
    assert text.loops_of_unknown_length == 1
    assert text.trips_factor == 2007 / 407
    assert text.custom_calls == {"LuDecompositionBlock": 1}
    gather, reduce = text.collectives
    assert (gather.kind, gather.count, gather.bytes, gather.group) == ("all-gather", 1, 512, 2)
    assert gather.exchanged == 256
    assert (reduce.kind, reduce.count, reduce.bytes, reduce.group) == ("all-reduce", 17, 8704, 4)
    assert reduce.exchanged == 8704 * 2 * 3 / 4


def test_unknown_times_do_not_count() -> None:
    text = HloText(PROGRAM)
    factor = 2007 / 407
    assert estimated_seconds({"optimal_seconds": 0.25}, text) == 0.25 * factor
    assert estimated_seconds({"optimal_seconds": -1.75}, text) == 0.25 * factor
    assert estimated_seconds({"flops": 1.0}, text) is None
    assert estimated_seconds({}, text) is None


# One kernel of the operations of a network that PyTorch's ONNX exporter writes, and one of others.
KERNELS = """HloModule jit_net, is_scheduled=true

%fused (p: f32[2,4]) -> f32[2,3] {
  %dot.1 = f32[2,3]{1,0} dot(%p, %w), metadata={op_name="jit(net)/fc/Gemm_output_0/dot"}
  ROOT %maximum.1 = f32[2,3]{1,0} maximum(%dot.1, %zero), metadata={op_name="jit(net)/fc/Relu_output_0/max"}
}

ENTRY %main (x: f32[2,4]) -> f32[2,3] {
  %copy.1 = f32[2,4]{1,0} copy(%x), backend_config={"window_config":{"estimated_cycles":"100"}}
  ROOT %fusion.1 = f32[2,3]{1,0} fusion(%copy.1), kind=kLoop, calls=%fused, backend_config={"window_config":{"estimated_cycles":"300"}}
}
"""  # noqa: E501


def compiled_for(
    monkeypatch: pytest.MonkeyPatch, folder: Path, topology: str, analysis: dict[str, float]
) -> DeviceCost:
    """Return the cost of a network with a product and a ReLU, by a compiler that writes KERNELS."""
    compiled = Compiled(KERNELS, 2 << 30, 1 << 30, 0, 3 << 30, 7 << 20, analysis)
    monkeypatch.setattr(Topology, "require_compiler", lambda _: None)
    monkeypatch.setattr(device_costs, "compile_for", lambda *_: [compiled])
    nodes = [
        helper.make_node("Gemm", ["x", "fc.weight"], ["/fc/Gemm_output_0"], transB=1),
        helper.make_node("Relu", ["/fc/Gemm_output_0"], ["/fc/Relu_output_0"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    y = helper.make_tensor_value_info("/fc/Relu_output_0", TensorProto.FLOAT, [2, 3])
    weight = helper.make_tensor("fc.weight", TensorProto.FLOAT, [3, 4], np.ones(12))
    graph = helper.make_graph(nodes, "net", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    return nnef_jax.cost(nnef_jax.load(folder / "net.onnx"), topology=topology)


def cells(cost: DeviceCost) -> dict[str, list[str]]:
    """Return the second and the third cell of each row by the first cell."""
    columns = [[str(cell).strip() for cell in column.cells] for column in cost.table().columns]
    return {name: row for name, *row in zip(*columns, strict=True)}


def test_a_table_says_what_its_figures_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    analysis = {"optimal_seconds": 4e-6, "flops": 48.0, "bytes accessed": 1e6}
    cost = compiled_for(monkeypatch, tmp_path, "v5e:1", analysis)
    names = ("/fc/Gemm_output_0", "/fc/Relu_output_0")
    fused, copied = cost.rows
    assert fused == DeviceRow(names, pytest.approx(3e-6), ("matmul", "relu"), "fc")
    assert copied == DeviceRow((), pytest.approx(1e-6))
    rows = cells(cost)
    assert rows["fits"] == ["yes", "6 GiB (arguments, results, temporaries) of 15.75 GiB"]
    assert rows["time by matrix units"][1].endswith("peak of 197 Tflop/s")
    assert rows["time by memory"][1] == "bytes at the published bandwidth of 819 GB/s"
    assert rows["time by the compiler"] == ["4 us", ""]
    assert list(rows)[-3:] == ["slowest kernels", ", ".join(names), "other kernels"]
    assert rows[", ".join(names)] == ["3 us", "matmul, relu in fc"]


def test_a_table_says_what_the_compiler_for_gpus_leaves_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = cells(compiled_for(monkeypatch, tmp_path, "h100", {}))
    assert rows["fits"][1].endswith("of 79.11 GiB; by size: the compiler does not check")
    assert rows["bytes accessed"][1] == rows["flops"][1] == "before fusion"
    assert rows["time by memory"][1].startswith("bytes before fusion, at the published")
    assert rows["time by the compiler"] == ["", "not reported for GPUs"]


def test_a_table_names_three_operations_of_a_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cost = compiled_for(monkeypatch, tmp_path, "h100", {})
    rows = tuple(DeviceRow(tuple("abcde"[:n]), 1e-6, ("conv",)) for n in (3, 4))
    assert list(cells(replace(cost, rows=rows)))[-2:] == ["a, b, c", "a, b, c and 1 more"]


def test_the_page_has_the_figures_of_the_devices() -> None:
    page = Path("docs/planning.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \| .* \| (.*) GiB \| (.*) GB/s \| (.*) \|$", page, re.M)
    for names, memory, bandwidth, peaks in rows:
        for name in re.findall(r"`(.+?)`", names):
            chip = topology_of(name).chip
            assert f"{chip.memory / 2**30:.4g}" == memory, name
            assert f"{chip.bandwidth / 1e9:.4g}" == bandwidth.replace(",", ""), name
            written = {*re.findall(r"([\d.]+) (?:TF32|bfloat16)", peaks)}
            assert {f"{peak / 1e12:.4g}" for peak in chip.peaks.values()} == written, name
    documented = {x.split(":")[0] for names, *_ in rows for x in re.findall(r"`(.+?)`", names)}
    assert documented == set(topologies.CHIPS)
