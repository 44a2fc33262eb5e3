"""`nnef-jax formats`: the operators of each format."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from nnef_jax.formats import FORMATS
from tests.cli_support import call, fails, ok


def test_a_table_by_format() -> None:
    out = ok("formats")
    heads = [line for line in out.splitlines() if line.endswith(" operators")]
    assert [head.split(":")[0] for head in heads] == [*FORMATS]
    rows = [line.split() for line in out.splitlines()]
    assert ["Tanh", "all", "tanh"] in rows
    assert ["Mish", "all", "mul,", "softplus,", "tanh"] in rows
    assert "refused: it draws random numbers" in out


def test_one_format() -> None:
    out = ok("formats", "nnef")
    assert out.startswith("nnef: 119 operators\n")
    assert "onnx" not in out
    rows = [line.split()[:3] for line in out.splitlines()]
    assert ["external", "all", "(part"] in rows and ["separable_conv", "all", "(its"] in rows


def test_an_operator_in_any_case_and_format() -> None:
    out = ok("formats", "lEAKYrELU")
    blocks = [block.splitlines() for block in out.split("\n\n")]
    assert [block[0] for block in blocks] == ["LeakyRelu (onnx)"]
    assert blocks[0][1:] == [
        "versions    all",
        "becomes     leaky_relu",
        "attribute   alpha: number = 0.01",
    ]
    assert {x.split(" (")[1] for x in ok("formats", "elu").splitlines() if x.endswith(")")} == {
        f"{name})" for name in FORMATS
    }


def test_an_operator_of_another_domain() -> None:
    assert "FusedMatMul of com.microsoft (onnx)\n" in ok("formats", "FusedMatMul")


def test_json() -> None:
    tables = json.loads(ok("formats", "--json"))
    assert [*tables] == [*FORMATS]
    keys = {
        "name": str, "domain": str, "since": int, "until": int | None, "attributes": list,
        "role": str, "kinds": list, "refusal": str,
    }  # fmt: skip
    of_attributes = {
        "name": str, "type": str, "default": object, "words": list, "is_required": bool,
    }  # fmt: skip
    for entry in (x for table in tables.values() for x in table):
        assert entry.keys() == keys.keys()
        assert all(isinstance(entry[key], type) for key, type in keys.items())
        assert entry["role"] in ("operation", "structure", "definition", "refused")
        for attribute in entry["attributes"]:
            assert attribute.keys() == of_attributes.keys()
            assert all(isinstance(attribute[key], type) for key, type in of_attributes.items())
    assert [*json.loads(ok("formats", "onnx", "--json"))] == ["onnx"]
    (elu,) = json.loads(ok("formats", "leakyrelu", "--json"))["onnx"]
    assert (elu["name"], elu["kinds"]) == ("LeakyRelu", ["leaky_relu"])


def test_a_name_that_nothing_has() -> None:
    err = fails("formats", "LeakyRelo")
    assert err.startswith("error: no format and no operator is called 'LeakyRelo'\n")
    assert "did you mean 'LeakyRelu'" in err
    assert "''" in fails("formats", "")


@pytest.mark.parametrize("args", [["onnx", "openvino"], ["--nonsense"]])
def test_wrong_usage(args: list[str]) -> None:
    code, out, err = call("formats", *args)
    assert (code, out) == (2, "")
    assert "Usage: nnef-jax formats" in err


def test_a_reader_that_leaves_early() -> None:
    line = f"set -o pipefail; {sys.executable} -m nnef_jax formats | head -c 5"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGPIPE, "nnef:", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_an_output_without_room() -> None:
    line = f"{sys.executable} -m nnef_jax formats nnef > /dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: standard output: No space left on device\n"
