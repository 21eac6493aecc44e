"""The evidence as it lies in the repository: whole, of one protocol, and reported as it is."""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import dspreg
from dspreg.algorithms import DSPReg
from dspreg.io.atomic_files import sha256_of_file
from dspreg.penalty import Step, parse_engine
from dspreg.reporting.load import read_runs, run_folders
from dspreg.runs.archive import SUFFIX, unpack_store
from dspreg.sensitivity.controls import reverse_ranks
from dspreg.testing import ready, toy_batches, toy_task

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "evidence"
STORES = [path.relative_to(EVIDENCE).as_posix().removesuffix(SUFFIX) for path in sorted(EVIDENCE.rglob(f"*{SUFFIX}"))]
GROWING = {"agreement/emoji", "agreement/store"}  # not all that is planned is run yet


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """All archives, unpacked once."""
    folder = tmp_path_factory.mktemp("evidence")
    for name in STORES:
        unpack_store(EVIDENCE / f"{name}{SUFFIX}", folder / name)
    return folder


def run_script(script, *options):
    """What a script of evidence/ prints."""
    before, out = (sys.argv, list(sys.path)), io.StringIO()
    sys.argv, sys.path[:] = [script, *map(str, options)], [str(EVIDENCE), *sys.path]
    try:
        with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EVIDENCE / script), run_name="__main__")
        assert ended.value.code == 0
    finally:
        sys.argv, sys.path[:] = before
    return out.getvalue()


def test_archives_are_those_of_the_checksums():
    sums = dict(reversed(line.split("  ")) for line in (EVIDENCE / "SHA256SUMS").read_text().splitlines())
    files = {path.relative_to(EVIDENCE).as_posix() for path in EVIDENCE.rglob(f"*{SUFFIX}")}
    assert set(sums) == files
    assert len(files) == 7
    assert {name: sha256_of_file(EVIDENCE / name) for name in sums} == sums


def test_the_protocol_is_as_it_was_frozen():
    """In commit 65c820e, before any variant but ERM was trained."""
    frozen = "cac27906ba40853fdb66bbef4f5ab459edc98da7be50587327cb6b2f10933bf9"
    assert sha256_of_file(EVIDENCE / "pacs/protocol.md") == frozen


def test_the_second_protocol_is_as_it_was_frozen():
    """In commit 2ef37a5, before the first run of its contrasts."""
    frozen = "67c6a18b79b044f77467da0086ff834dea86f7708ad9ac333da047a99e2e852d"
    assert sha256_of_file(EVIDENCE / "agreement/protocol.md") == frozen


@pytest.mark.parametrize("name", STORES)
def test_every_run_is_finished_verified_and_planned(stores, name):
    traces, damaged = read_runs(stores / name)
    assert damaged == []
    folders = run_folders(stores / name)
    assert len(folders) == sum(trace.finished for trace in traces) > 0
    assert len(folders) == len(traces) or name in GROWING
    assert all(folder.result() for folder in folders)


@pytest.mark.parametrize("name", STORES)
def test_all_runs_of_a_store_differ_in_nothing_but_method_target_and_trial(stores, name):
    seen = set()
    for folder in run_folders(stores / name):
        described = folder.description()
        free = {k: v for k, v in described["settings"].items() if k not in ("algorithm", "targets", "trial")}
        seen.add(json.dumps([free, described["environment"], described["weights"]], sort_keys=True))
    assert len(seen) == 1


def test_the_page_has_the_seed_variance_of_erm():
    """Means and standard deviations of README.md, against the script that computes them from the archive."""
    text = (EVIDENCE / "pacs/README.md").read_text()
    selected, late = (
        {
            cells[0]: cells[1:3]
            for line in run_script("erm_variance.py", EVIDENCE / "pacs/store.tar.xz", "--selection", rule).splitlines()
            if line.startswith("│") and len(cells := [each.strip() for each in line.strip("│").split("│")]) == 4
        }
        for rule in ("training", "late")
    )
    assert len(selected) == 4
    for target in selected:
        assert f"| {target} | {' | '.join(selected[target] + late[target])} |" in text


def tables(text):
    """Blocks of lines that begin with a bar."""
    blocks = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def test_all_tables_are_what_the_records_say(stores, tmp_path):
    assert (EVIDENCE / "tables.md").read_text() == run_script("make_tables.py", "--out", tmp_path, "--stores", stores)


@pytest.mark.parametrize(("page", "number"), [("evidence", 2), ("evidence-in-detail", 6)])
def test_every_table_of_the_pages_is_one_of_them(page, number):
    shown = tables((ROOT / f"docs/understand/{page}.md").read_text())
    assert len(shown) == number
    assert [table for table in shown if table not in tables((EVIDENCE / "tables.md").read_text())] == []


@pytest.fixture
def run_archives(monkeypatch, capsys):
    """`archives.py` as a function of its arguments: the exit code, and the message."""
    monkeypatch.syspath_prepend(EVIDENCE)
    from archives import main

    def run(*arguments):
        return main(list(map(str, arguments))), capsys.readouterr().err

    return run


@pytest.fixture
def copy(tmp_path):
    """Archives that a test may change: three times that of the smallest store."""
    folder = tmp_path / "archives"
    lines = []
    for name in STORES:
        path = folder / f"{name}{SUFFIX}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((EVIDENCE / "digits/batch.tar.xz").read_bytes())
        lines.append(f"{sha256_of_file(path)}  {name}{SUFFIX}\n")
    (folder / "SHA256SUMS").write_text("".join(lines))
    return folder


def test_stores_are_opened_worked_in_and_packed_again(run_archives, copy, tmp_path):
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    opened = tmp_path / "opened"
    for action in ("open", "pack"):
        assert run_archives(action, opened, "--archives", copy) == (0, "")
        assert {path: path.read_bytes() for path in before} == before  # nothing new, so nothing changes
    for name, file in (("new", "result.json"), ("begun", "records.jsonl")):  # what has no result is not packed
        (opened / "pacs/store/runs" / name).mkdir()
        (opened / "pacs/store/runs" / name / file).write_text("of a new run")
    assert run_archives("open", opened, "--archives", copy) == (0, "")  # what is there stays
    assert run_archives("pack", opened, "--archives", copy) == (0, "")
    changed = {path.relative_to(copy).as_posix() for path in before if path.read_bytes() != before[path]}
    assert changed == {"pacs/store.tar.xz", "SHA256SUMS"}
    assert run_archives("open", tmp_path / "again", "--archives", copy) == (0, "")
    assert (tmp_path / "again/pacs/store/runs/new/result.json").read_text() == "of a new run"
    assert not (tmp_path / "again/pacs/store/runs/begun").exists()


def test_newer_archives_are_not_overwritten_by_an_older_folder(run_archives, copy, tmp_path):
    assert run_archives("open", tmp_path / "mine", "--archives", copy) == (0, "")
    assert run_archives("open", tmp_path / "theirs", "--archives", copy) == (0, "")
    (tmp_path / "theirs/pacs/store/new.txt").write_text("new")
    assert run_archives("pack", tmp_path / "theirs", "--archives", copy) == (0, "")
    for action in ("open", "pack"):
        code, said = run_archives(action, tmp_path / "mine", "--archives", copy)
        assert code == 2
        assert "was opened from other archives" in said


def test_a_changed_archive_is_not_opened(run_archives, copy, tmp_path):
    with (copy / "pacs/store.tar.xz").open("ab") as file:
        file.write(b"\0")
    code, said = run_archives("open", tmp_path / "opened", "--archives", copy)
    assert code == 4
    assert "its SHA-256 is not the one in SHA256SUMS" in said
    assert not (tmp_path / "opened").exists()


def test_penalty_parts_are_those_of_the_engines(monkeypatch):
    monkeypatch.syspath_prepend(EVIDENCE)
    from patterns import exact_parts, lookahead_parts

    algorithm, batches = ready(DSPReg(weight=0.01), toy_task(dropout=0.0)), toy_batches(0)
    c = algorithm.ones().map(torch.rand_like)
    patterns = {"c": c, "mean": c * 0 + algorithm.ones() * 0.3, "reversed": c.map(reverse_ranks)}
    for engine, parts in {"exact": exact_parts, "lookahead": lookahead_parts}.items():
        found = parts(algorithm, batches, patterns)
        for name, pattern in patterns.items():
            step = Step(
                algorithm.base.gradient, lambda b: algorithm.loss(algorithm(b)), batches, algorithm.net, pattern, 0.01
            )
            g = step.gradient()[1]
            torch.testing.assert_close(found[name], (parse_engine(engine)(step).gradient - g).flat())
            assert found[name].norm() > 1e-4 * g.norm()


def test_readings_are_what_they_are_called(monkeypatch):
    """Filters against a loop, the second moment against torch's Adam, correlations against SciPy, the cut by hand."""
    monkeypatch.syspath_prepend(EVIDENCE)
    from readings import divide, relate_to_importance, second_moment, spread_filters
    from scipy import stats

    algorithm, steps = ready(DSPReg(), toy_task(dropout=0.0)), [toy_batches(i) for i in range(3)]
    domains = {str(b.domain): [(b.x, b.y)] * 2 for b in toy_batches(9)}
    profile = dspreg.measure(algorithm.net, domains, null=False)

    by_filter = spread_filters(profile)
    for name, c in by_filter.items():
        assert c.shape == profile.c[name].shape
        for row, values in enumerate(c):
            s = np.array([float(each[name][row].double().mean()) for each in profile.s.values()])
            assert torch.allclose(
                values.double(), torch.tensor(s.std() / s.mean() if s.any() else 0.0).double(), atol=1e-5
            )

    adam = torch.optim.Adam(algorithm.net.parameters(), lr=0.0)
    for step in steps:
        adam.zero_grad()
        algorithm.loss(algorithm(step)).backward()
        adam.step()
    moments = [adam.state[p]["exp_avg_sq"].flatten() for p in algorithm.net.parameters()]
    found = second_moment(algorithm, steps)
    torch.testing.assert_close(found, torch.cat(moments).double() / (1 - 0.999**3), rtol=1e-4, atol=1e-12)

    moment, part = torch.full((1001,), 4.0).double(), torch.arange(1001.0).double()
    moment[0] = 1e-15  # left out
    scaled = divide(part, moment)
    assert scaled.tolist() == [min(k, 999) / 2 for k in range(1, 1001)]

    c, s = (profile.over_alive(each).double().numpy() for each in (profile.c, profile.mean))
    told = relate_to_importance(profile)
    assert told["spearman"] == pytest.approx(stats.spearmanr(c, s).statistic, abs=1e-6)
    assert told["log"] == pytest.approx(stats.pearsonr(c, np.log(s)).statistic, abs=1e-6)
    assert told["held"] == pytest.approx(s[c > np.sort(c)[int(0.9 * len(c)) - 1]].sum() / s.sum(), abs=1e-9)
    assert 0 < told["between"] < 1
