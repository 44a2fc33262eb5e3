"""Names of a network, and of files, reach a terminal escaped, whatever command prints them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nnef_jax.wording.printable import printable
from tests.cli_support import call

# What XML can say of: controls, a line end, marks of direction, separators.
SIGNS = "\n\r\t\x7f\x85\x9b\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069"
EVIL = f"evil{SIGNS}error: forged"
ESCAPED = "".join(f"&#{ord(c)};" for c in SIGNS)
NAME = f"evil{ESCAPED}error: forged"

PORT = '<port id="{}" precision="FP32"{}><dim>2</dim><dim>3</dim></port>'
LAYERS = f"""
<layer id="0" name="x{NAME}" type="Parameter" version="opset1">
<data shape="2,3" element_type="f32"/><output>{PORT.format(0, f' names="{NAME}"')}</output></layer>
<layer id="1" name="y{NAME}" type="KIND" version="opset1">
<input>{PORT.format(0, "")}</input><output>{PORT.format(1, f' names="y{NAME}"')}</output></layer>
<layer id="2" name="z{NAME}" type="Result" version="opset1">
<input>{PORT.format(0, "")}</input></layer>
"""
XML = f"""<?xml version="1.0"?>
<net name="{NAME}" version="11"><layers>{LAYERS}</layers><edges>
<edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
<edge from-layer="1" from-port="1" to-layer="2" to-port="0"/>
</edges></net>
"""

COMMANDS = [
    "summary net.xml",
    "summary net.xml --json",
    "check net.xml",
    "check wrong.xml",
    "convert net.xml",
    "convert net.xml --flat",
    "convert net.xml out",
    "convert wrong.xml out",
    "run net.xml x.npy --no-cache",
    "run net.xml x.npy --no-cache --json",
    "run net.xml x.npy --no-cache --top 1",
    "run net.xml x.npy --no-cache -o out",
    "run net.xml --no-cache",
    "run net.xml none=x.npy --no-cache",
    "run net.xml y.npy --no-cache",
    "batch net.xml y.npy --no-cache -o out",
    "batch net.xml y.npy --no-cache -o out --shape=x=1",
    "compile net.xml --cache-dir cache",
    "export net.xml --platforms cpu -o out",
    "view net.xml --json",
    "weight-statistics net.xml",
    "activation-statistics net.xml x.npy",
    "compare net.xml other.xml x.npy --all",
    "compare net.xml other.xml --json",
    "diff net.xml other.xml",
    "profile net.xml --calls 1",
    "benchmark net.xml --rounds 1 --seconds 0",
    "cost net.xml",
    "openvx check-profile net.xml",
    "openvx run net.xml x.npy --on-unfit float",
    "openvx run net.xml x.npy",
    "openvx stats net.xml --on-unfit float",
]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.xml").write_text(XML.replace("KIND", "ReLU"))
    Path("other.xml").write_text(XML.replace("KIND", "Tanh"))
    Path("wrong.xml").write_text(XML.replace("KIND", NAME))
    np.save("x.npy", np.float32([[1, -2, 3], [4, 5, 6]]))
    np.save("y.npy", np.zeros((2, 4), np.float32))


def assert_harmless(text):
    shown = [line for line in text.split("\n") if not line.isprintable()]
    assert not shown
    assert not [line for line in text.split("\n") if line.startswith("error: forged")]


@pytest.mark.parametrize("command", COMMANDS)
def test_names_are_escaped(command):
    code, out, err = call(*command.split())
    assert_harmless(out)
    assert_harmless(err)
    assert code in (0, 1)
    if "--json" in command:
        json.loads(out)


def test_the_names_do_reach_the_output():
    for command in ("summary net.xml", "check net.xml", "run net.xml x.npy --no-cache"):
        assert r"evil\u000a\u000d\u0009\u007f\u0085\u009b\u061c" in call(*command.split())[1]
    assert json.loads(call("summary", "net.xml", "--json")[1])["name"] == EVIL


@pytest.mark.parametrize(
    "arguments",
    [["none" + EVIL], ["summary", "a", EVIL], ["summary", f"--{EVIL}"], ["summary", EVIL]],
)
def test_arguments_are_escaped(arguments):
    code, out, err = call(*arguments)
    assert code and not out
    assert all(line.isprintable() for line in err.split("\n"))
    assert "\\u009b" in err or "\\x9b" in err  # typer escapes some by itself


def test_what_is_escaped():
    assert printable("é ü 漢 \U0001f600") == "é ü 漢 \U0001f600"
    text = "\x00\x1b\x7f\x9b\ud800\U000e0001"
    assert printable(text) == "\\u0000\\u001b\\u007f\\u009b\\ud800\\udb40\\udc01"
    assert json.loads(f'"{printable(text)}"') == text
