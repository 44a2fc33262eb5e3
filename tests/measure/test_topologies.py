"""Devices that are not attached: their names, and the work in the text of a compiled program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import pytest
from jax import export
from onnx import TensorProto, helper

import nnef_jax
from nnef_jax import InputError, UnsupportedError
from nnef_jax.measure import device_costs, refusals, topologies, unattached
from nnef_jax.measure.device_costs import estimated_seconds
from nnef_jax.measure.hlo import HloText
from nnef_jax.measure.topologies import Topology, topology_of
from nnef_jax.measure.unattached import Compiled, LoweredFunction, Refused

DIGITS = "examples/digits/model"

NAMES: dict[str, tuple[tuple[int, ...], int]] = {
    "v5e:1": ((1, 1), 1),
    "v5e:4x4": ((4, 4), 16),
    "v4:2x2x1": ((2, 2, 1), 8),
    "v5p:2x2x1": ((2, 2, 1), 4),
    "tpu7x:2x2x1": ((2, 2, 1), 8),
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
    "v5e:3": "has no chips along 2 axes",
    "v5e:0x2": "has no chips along 2 axes",
    "v4:2x2": "has no chips along 3 axes",
    "v5e:": "has no chips along 2 axes",
    "h100:2x2x2": "has no hosts x GPUs of each",
    "h100:x": "has no hosts x GPUs of each",
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
