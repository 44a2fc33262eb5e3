"""`nnef-jax view`: the file that it makes, its options, its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import nnef_jax
from tests.cli_support import fails, linear_scores, ok


@pytest.fixture
def scores(tmp_path):
    return linear_scores(tmp_path / "scores")


def test_view_makes_one_file(scores, tmp_path):
    path = tmp_path / "net.html"
    assert ok("view", scores, "-o", path) == f"saved {path}\n"
    assert "scores" in path.read_text(encoding="utf-8")
    assert "net.html" in fails("view", scores, "-o", path)
    ok("view", scores, "-o", path, "--overwrite")


def test_view_prints_what_it_shows(scores):
    data = json.loads(ok("view", scores, "--json"))
    assert data["totals"]["parameters"] == 15 and data["totals"]["multiply_adds"] == 12
    assert [p["label"] for p in data["parameters"]] == ["dense/filter", "bias"]
    shown = json.loads(ok("view", scores, "--json", "--shape", "x=7,4"))
    assert shown["totals"]["multiply_adds"] == 7 * 12


@pytest.mark.parametrize("source", ["scores", "scores/graph.nnef", "scores.nnef.tgz"])
def test_view_makes_a_page_named_after_the_network(scores, tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    nnef_jax.load(scores).save(tmp_path / "scores.nnef.tgz")
    ok("view", source, "--json")
    assert not Path("scores.html").exists()
    assert ok("view", source) == "saved scores.html\n"
    before = Path("scores.html").read_bytes()
    assert before.startswith(b"<!doctype html>")
    Path("scores.html").write_text("mine")
    assert "scores.html" in fails("view", source)
    assert Path("scores.html").read_text() == "mine"
    ok("view", source, "--overwrite")
    assert Path("scores.html").read_bytes() == before


def test_view_colours_by_files(scores, tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text('{"operations": [{"name": "y", "seconds": 0.5}]}')
    data = json.loads(ok("view", scores, "--json", "--profile", profile))
    assert data["coloured_by"] == ["seconds"] and data["nodes"][0]["seconds"] == 0.5
    compare = tmp_path / "compare.json"
    compare.write_text('{"tensors": {"y": {"b": "z", "snr": 40.0, "reason": "values"}}}')
    data = json.loads(ok("view", scores, "--json", "--compare", compare))
    assert data["coloured_by"] == ["error"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "the profile has not the form"),
        ('{"operations": [{"name": "z", "seconds": 1}]}', "names no operation of 'scores'"),
    ],
)
def test_view_refuses_what_is_no_profile(scores, tmp_path, text, message):
    path = tmp_path / "profile.json"
    path.write_text(text)
    assert message in fails("view", scores, "--json", "--profile", path)
    assert "missing.json" in fails("view", scores, "--json", "--profile", tmp_path / "missing.json")
