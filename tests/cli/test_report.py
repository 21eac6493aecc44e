"""`dspreg report`: what it prints, where, and the exit code it leaves."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest

from dspreg.cli import main
from dspreg.domainbed.collect_results import collect_results
from helpers.runs import DOMAINS, single, trace, write_jobs, write_run

VALUES = {"ERM": 0.5, "DSPReg": 0.6}


@pytest.fixture
def runs(tmp_path):
    for algorithm, base in VALUES.items():
        for target in DOMAINS:
            for trial in (0, 1):
                made = [single(0, target, base + 0.02 * trial + 0.01 * (target == "ash"), 0.5)]
                path = tmp_path / "runs" / f"{algorithm}-{target}-{trial}"
                write_run(path, made, algorithm=algorithm, targets=(target,), trial=trial)
    return tmp_path / "runs"


def said(capsys, *arguments):
    code = main(["report", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_table(capsys, runs):
    code, out, err = said(capsys, runs)
    assert (code, err) == (0, "")
    assert out.startswith(
        "trees: accuracy on each domain held out, in %; training-domain validation\n"
        "\n"
        "               ash       birch       cedar  mean       worst  runs\n"
        "ERM     52.0 ± 0.7  51.0 ± 0.7  51.0 ± 0.7  51.3  51.0 birch   6/6\n"
        "DSPReg  62.0 ± 0.7  61.0 ± 0.7  61.0 ± 0.7  61.3  61.0 birch   6/6\n"
    )


def test_a_contrast_comes_last(capsys, runs):
    _, out, _ = said(capsys, runs, "--contrast", "DSPReg", "ERM")
    table = out.split("\n\n")
    assert "DSPReg − ERM, in percentage points" in out
    assert "trees  +10.0 ± 0.0      +10.0  +10.0         10.00      6  DSPReg is better" in out
    assert table[-1].startswith("paired by trial")


def test_a_contrast_takes_a_spec_as_sweeps_write_it(capsys, tmp_path):
    for algorithm, base in {"ERM": 0.5, "DSPReg(refresh_steps=10)": 0.6}.items():
        for target in DOMAINS:
            made = [single(0, target, base, 0.5)]
            write_run(tmp_path / f"{algorithm}-{target}", made, algorithm=algorithm, targets=(target,), trial=0)
    code, out, _ = said(capsys, tmp_path, "--contrast", "DSPReg(weight=0.001, refresh_steps=10)", "ERM")
    assert code == 0
    assert "DSPReg(refresh_steps=10) − ERM, in percentage points" in out


def test_contrasts_stand_in_the_order_they_were_asked_for(capsys, runs):
    _, out, _ = said(capsys, runs, "--contrast", "ERM", "DSPReg", "--contrast", "DSPReg", "ERM", "--format", "json")
    tables = json.loads(out)["tables"]
    assert [t["title"].split(",")[0] for t in tables[-2:]] == ["ERM − DSPReg", "DSPReg − ERM"]


@pytest.mark.parametrize("form", ["markdown", "latex", "csv", "json"])
def test_formats(capsys, runs, form):
    code, out, err = said(capsys, runs, "--format", form)
    assert (code, err) == (0, "")
    if form == "json":
        assert [table["name"] for table in json.loads(out)["tables"]] == ["trees", "Averages"]
    elif form == "csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        found = [r["value"] for r in rows if (r["table"], r["row"], r["column"]) == ("trees", "DSPReg", "ash")]
        assert [float(v) for v in found] == pytest.approx([62.0])
    else:
        assert {"markdown": "| ERM | 52.0 ± 0.7 |", "latex": "ERM & 52.0 $\\pm$ 0.7 &"}[form] in out


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "csv", "json", "html"])
def test_a_file_has_what_would_be_printed(capsys, runs, tmp_path, form):
    _, printed, _ = said(capsys, runs, "--format", form)
    path = tmp_path / "report"
    path.write_text("an older one", encoding="utf-8")
    assert said(capsys, runs, "--format", form, "--out", path) == (0, f"written to {path}\n", "")
    assert path.read_bytes() == printed.encode()
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_a_file_that_cannot_be_written_is_an_error(capsys, runs, tmp_path):
    code, out, err = said(capsys, runs, "--out", tmp_path / "nowhere/report.txt")
    assert (code, out) == (2, "")
    assert "there is no folder" in err
    assert not (tmp_path / "nowhere").exists()


def test_the_oracle_only_on_request_and_marked(capsys, runs):
    assert "ORACLE" not in said(capsys, runs)[1]
    assert "ORACLE: selected on the target itself" in said(capsys, runs, "--selection", "oracle")[1]


def test_leave_one_out_says_what_is_missing(capsys, runs):
    out = said(capsys, runs, "--selection", "leave-one-out")[1]
    assert "[1] no finished pair runs of ash with birch, cedar" in out


def test_a_damaged_run_is_said_and_left_out(capsys, runs):
    (runs / "ERM-ash-0/records.jsonl").write_bytes(b"{}\n")
    code, out, err = said(capsys, runs)
    assert code == 0
    assert err.startswith("notice: left out: ")
    assert "ERM-ash-0" in err
    assert " 53.0 (1/2) " in out
    assert "left out: " in out
    for folder in runs.iterdir():
        (folder / "records.jsonl").write_bytes(b"{}\n")
    code, out, err = said(capsys, runs)
    assert (code, out) == (2, "")
    assert "all 12 runs" in err


def test_domainbeds_folders(capsys, tmp_path):
    jobs = [trace(single(0, d, 0.5, 0.5, out=0.5), dataset="Debug28", targets=(d,)) for d in DOMAINS]
    write_jobs(tmp_path / "sweep", jobs)
    before = sorted(tmp_path.rglob("*"))
    assert said(capsys, "--domainbed", tmp_path / "sweep") == (0, collect_results(tmp_path / "sweep"), "")
    latex = collect_results(tmp_path / "sweep", latex=True)
    assert said(capsys, "--domainbed", tmp_path / "sweep", "--format", "latex") == (0, latex, "")
    assert sorted(tmp_path.rglob("*")) == before


def test_writing_domainbeds_folders(capsys, runs, tmp_path):
    code, out, err = said(capsys, runs, "--write-domainbed", tmp_path / "sweep")
    assert (code, out) == (0, f"12 runs written to {tmp_path / 'sweep'}\n")
    assert "does not know trees" in err
    assert len(list((tmp_path / "sweep").glob("*/results.jsonl"))) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a folder of runs"),
        (["RUNS", "--domainbed", "RUNS"], "and not both"),
        (["--domainbed", "RUNS", "--format", "csv"], "with --format text or latex"),
        (["--domainbed", "RUNS", "--selection", "oracle"], "and no more"),
        (["nowhere"], "is no folder"),
        (["RUNS", "--write-domainbed", "DIR", "--out", "FILE"], "writes folders"),
        (["RUNS", "--write-domainbed", "DIR", "--contrast", "ERM", "IRM"], "--contrast is for a report"),
        (["RUNS", "--write-domainbed", "DIR", "--selection", "oracle"], "--selection is for a report"),
        (["RUNS", "--write-domainbed", "DIR", "--format", "json"], "--format is for a report"),
        (["RUNS", "--data-dir", "photos"], "--data-dir is for --write-domainbed"),
        (["RUNS", "--contrast", "ERM", "IRM"], "no runs of 'IRM'"),
        (["RUNS", "--out", "new/report.html"], "there is no folder new; make it first"),
        (["RUNS", "--out", "."], "--out . is a folder"),
    ],
)
def test_wrong_calls(capsys, monkeypatch, runs, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = said(capsys, *(str(runs) if a == "RUNS" else a for a in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == [runs]  # a refused call writes nothing


def test_a_terminal_without_the_letters_has_their_numbers(runs):
    """Latin-1 has no square root; the command ended as a bug."""
    latin = os.environ | {"PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "dspreg.cli", "report", str(runs)]
    done = subprocess.run(command, capture_output=True, env=latin)
    assert done.returncode == 0, done.stderr
    assert b"\\u221ak" in done.stdout


@pytest.mark.parametrize("form", ["csv", "html"])
def test_a_report_needs_no_torch(runs, form):
    program = (
        f"import sys\nfrom dspreg.cli import main\nassert main(['report', {str(runs)!r}, '--format', {form!r}]) == 0\n"
        "print([m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
