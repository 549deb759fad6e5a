# SPDX-License-Identifier: Apache-2.0
"""python -m fa3: what each command prints, writes and returns."""

import json

import pytest

pytest.importorskip("fa3", reason="the Python package is not built")
pytest.importorskip("ml_dtypes", reason="ml_dtypes gives numpy its bfloat16")

from fa3.__main__ import main
from fa3.commands import doctor, verify


def test_doctor_tries_every_engine(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "libfa3.so" in said
    assert "reference    works, largest error" in said


def test_doctor_speaks_json_and_fails_when_an_engine_does(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "TOLERANCE", 0.0)
    assert main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["engines"]["standard"].startswith("FAILED")


def test_doctor_survives_a_probe_that_does_not(capsys, monkeypatch):
    monkeypatch.setitem(doctor.PROBES, "torch", lambda: 1 / 0)
    assert main(["doctor"]) == 0
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_verify_passes_on_the_cpu(capsys):
    assert main(["verify", "--dtype", "bfloat16"]) == 0
    said = capsys.readouterr().out
    cases = len(verify.SHAPES) * len(verify.OPTIONS)
    assert said.splitlines()[-1] == f"{cases} passed, 0 failed, 0 skipped"


def test_verify_sees_a_wrong_result(capsys, monkeypatch):
    right = verify.both_passes

    def wrong(arrays, options, engine):
        results = right(arrays, options, engine)
        if engine == "auto":
            results["dk"] = results["dk"] * 1.01
        return results

    monkeypatch.setattr(verify, "both_passes", wrong)
    monkeypatch.setattr(verify, "SHAPES", {"odd": verify.SHAPES["odd"]})
    assert main(["verify", "--dtype", "float32"]) == 1
    assert "FAILED   dk" in capsys.readouterr().out


def test_bench_writes_lines_that_plot_draws(capsys, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    results = tmp_path / "results.jsonl"
    sizes = "--seqlen 32,64 --head-dim 16,32 --tokens 64 --hidden 64 --pass fwd,bwd"
    assert main(["bench", *sizes.split(), "--rounds", "2", "--json", str(results)]) == 0
    records = [json.loads(line) for line in results.read_text().splitlines()]
    assert {r["engine"] for r in records} == {"fa3", "sdpa flash cpu", "sdpa math"}
    assert len(records) == 3 * 2 * 2 * 2 * 2
    one = next(r for r in records if r["pass"] == "bwd" and r["causal"])
    assert one["tflops"] == pytest.approx(
        5
        * one["batch"]
        * one["heads"]
        * one["seqlen_q"] ** 2
        * one["head_dim"]
        / one["median_ms"]
        / 1e9
    )
    assert main(["plot", str(results), "--out", str(tmp_path)]) == 0
    drawn = capsys.readouterr().out
    for direction in ("fwd", "bwd"):
        figure = tmp_path / f"attention_{direction}_fp32.svg"
        assert str(figure) in drawn
        assert figure.read_text().count("<svg") == 1


def test_plot_without_results_says_so(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert main(["plot", str(empty)]) == 2
    assert "expected at least one result" in capsys.readouterr().out
