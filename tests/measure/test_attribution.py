"""Which operations an instruction computes, and how long it ran."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nnef_jax.measure.instructions import Run, program_of, recorded, times

TEXT = """HloModule jit_net, is_scheduled=true, entry_computation_layout={(f32[2]{0})->f32[2]{0}}

%fused (p.0: f32[2]) -> f32[2] {
  %p.0 = f32[2]{0} parameter(0)
  %mul.1 = f32[2]{0} multiply(%p.0, %p.0), metadata={op_name="jit(net)/scaled/mul" stack_frame_id=1}
  ROOT %add.1 = f32[2]{0} add(%mul.1, %p.0), metadata={op_name="jit(net)/while/body/sum//add"}
}

%body (state.1: (s32[], f32[2])) -> (s32[], f32[2]) {
  %state.1 = (s32[], f32[2]{0}) parameter(0)
  %tanh.3 = f32[2]{0} tanh(%state.1), metadata={op_name="jit(net)/loop/inner/tanh"}
  ROOT %tuple.1 = (s32[], f32[2]{0}) tuple(%state.1, %tanh.3)
}

%condition (state.2: (s32[], f32[2])) -> pred[] {
  %state.2 = (s32[], f32[2]{0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

ENTRY %main.2 (x.1: f32[2], /*index=1*/y.1: f32[2]) -> f32[2] {
  %x.1 = f32[2]{0} parameter(0), metadata={op_name="inputs[0]"}
  %fusion.1 = f32[2]{0} fusion(%x.1), calls=%fused, metadata={op_name="jit(net)/sum/add"}
  %while.7 = (s32[], f32[2]{0}) while(%fusion.1), condition=%condition, body=%body
  %neg.1 = f32[2]{0} negate(%x.1), metadata={op_name="jit(net)/transpose(jvp(scaled))/neg"}
  %copy.1 = f32[2]{0} copy(%x.1), metadata={op_name="jit(net)/copy"}
  ROOT %call.1 = f32[2]{0} call(%neg.1), to_apply=%fused, metadata={op_name="jit(sum)/x/call"}
}
"""


def test_operations_of_instructions():
    program = program_of(TEXT, ["scaled", "sum", "loop", "net", "copy"])
    found = program.operations
    assert program.module == "jit_net"
    assert found["fusion.1"] == {"scaled", "sum"}
    assert found["while.7"] == found["tanh.3"] == {"loop"}
    assert found["neg.1"] == {"scaled"}
    assert found["copy.1"] == frozenset()  # the last part is the primitive's name, not a scope
    assert found["call.1"] == {"scaled", "sum"}
    assert found["x.1"] == frozenset()
    assert program.control == {"while.7", "call.1"}
    assert program.loops == 1


def test_names_may_hold_anything():
    line = '  %%x.%d = f32[2]{0} negate(%%y), metadata={op_name="%s" stack_frame_id=1}'
    paths = ["jit(n)//block.0/conv/mul", "jit(n)/transpose(jvp(a/b))/mul", "jit(n)/jvp(m)/dot"]
    paths += ["jit(n)/block.0/mul", "jit(n)/a/c/mul"]
    text = "HloModule n\n\nENTRY %m (y: f32[2]) -> f32[2] {\n"
    text += "\n".join(line % (i, path) for i, path in enumerate(paths))
    found = program_of(text, ["/block.0/conv", "a/b", "jvp(m)", "block.0", "c"]).operations
    wanted = ["/block.0/conv", "a/b", "jvp(m)", "block.0", "c"]
    assert [found[f"x.{i}"] for i in range(5)] == [{name} for name in wanted]


def test_a_text_of_something_else_has_no_operations():
    program = program_of("nothing of the kind\n", ["a"])
    assert (program.module, program.operations, program.loops) == ("", {}, 0)


def run(name, start, end):
    return Run(name, start * 1e9, end * 1e9)


def test_what_runs_at_a_time_shares_the_time():
    call = run("call", 0, 10)
    runs = [run("a", 1, 5), run("b", 3, 7), run("c", 8, 20), run("before", -2, 0)]
    assert times(runs, call, ()) == pytest.approx({"a": 3, "b": 3, "c": 2})


def test_a_loop_has_what_is_left_by_what_is_in_it():
    runs = [run("while", 0, 9), run("inner", 1, 3), run("while.in", 3, 8), run("inner", 4, 7)]
    found = times(runs, run("call", 0, 10), {"while", "while.in"})
    assert found == pytest.approx({"while": 2, "inner": 5, "while.in": 2})


def event(name, start, duration, **stats):
    return SimpleNamespace(name=name, start_ns=start, duration_ns=duration, stats=stats.items())


def test_what_ends_on_another_thread_lasts_until_then():
    names = {"hlo_module": "jit_net"}
    first = [
        event("call", 100, 50),
        event("dot.1", 105, 5, hlo_op="dot.1", _p=7, **names),
        event("add.1", 112, 8, hlo_op="add.1", _p=8, **names),
        event("add.1", 112, 8, hlo_op="add.1", _p=8, hlo_module="jit_other"),
        event("call", 10, 20),
    ]
    second = [event("end: dot.1", 140, 3, _c=7), event("end: add.1", 118, 1, _c=8)]
    lines = [SimpleNamespace(events=first), SimpleNamespace(events=second)]
    calls, runs = recorded(
        SimpleNamespace(planes=[SimpleNamespace(lines=lines)]), "jit_net", "call"
    )
    assert calls == [Run("call", 10, 30), Run("call", 100, 150)]
    assert runs == [Run("dot.1", 105, 140), Run("add.1", 112, 120)]
