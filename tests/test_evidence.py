"""The evidence as it lies in the repository: whole, of one protocol, and told as it is."""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

from dspreg.algorithms import DSPReg
from dspreg.penalty import Step, parse_engine
from dspreg.report.reading import read, run_folders
from dspreg.testing import ready, toy_batches, toy_task

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "evidence"
STORES = sorted(path.parent for path in EVIDENCE.glob("*/*/store.json"))


def printed(script, *options):
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


@pytest.mark.parametrize("store", STORES, ids=lambda path: "/".join(path.parts[-2:]))
def test_every_run_is_finished_verified_and_planned(store):
    traces, damaged = read(store)
    assert damaged == []
    folders = run_folders(store)
    assert len(folders) == sum(trace.finished for trace in traces) > 0
    assert all(folder.result() for folder in folders)


@pytest.mark.parametrize("store", STORES, ids=lambda path: "/".join(path.parts[-2:]))
def test_all_runs_of_a_store_differ_in_nothing_but_method_target_and_trial(store):
    seen = set()
    for folder in run_folders(store):
        described = folder.description()
        free = {k: v for k, v in described["settings"].items() if k not in ("algorithm", "targets", "trial")}
        seen.add(json.dumps([free, described["environment"], described["weights"]], sort_keys=True))
    assert len(seen) == 1


def test_the_ruler_is_told_as_it_is():
    """Means and standard deviations of README.md, against the script that computes them."""
    text = (EVIDENCE / "pacs/README.md").read_text()
    selected, late = (
        {
            cells[0]: cells[1:3]
            for line in printed("ruler.py", EVIDENCE / "pacs/store", "--selection", rule).splitlines()
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


def test_all_tables_are_what_the_records_say(tmp_path):
    assert (EVIDENCE / "tables.md").read_text() == printed("shown.py", "--out", tmp_path)


def test_every_table_of_the_page_is_one_of_them():
    told = tables((ROOT / "docs/understand/evidence.md").read_text())
    assert len(told) > 2
    assert [table for table in told if table not in tables((EVIDENCE / "tables.md").read_text())] == []


def test_penalty_parts_are_those_of_the_engines(monkeypatch):
    monkeypatch.syspath_prepend(EVIDENCE)
    from patterns import backwards, exact_parts, lookahead_parts

    algorithm, batches = ready(DSPReg(weight=0.01), toy_task(dropout=0.0)), toy_batches(0)
    c = algorithm.ones().map(torch.rand_like)
    patterns = {"c": c, "mean": c * 0 + algorithm.ones() * 0.3, "reversed": c.map(backwards)}
    for engine, parts in {"exact": exact_parts, "lookahead": lookahead_parts}.items():
        found = parts(algorithm, batches, patterns)
        for name, pattern in patterns.items():
            step = Step(
                algorithm.base.gradient, lambda b: algorithm.loss(algorithm(b)), batches, algorithm.net, pattern, 0.01
            )
            g = step.gradient()[1]
            torch.testing.assert_close(found[name], (parse_engine(engine)(step).gradient - g).flat())
            assert found[name].norm() > 1e-4 * g.norm()


def test_reversed_c_has_the_largest_value_where_the_smallest_was(monkeypatch):
    monkeypatch.syspath_prepend(EVIDENCE)
    from patterns import backwards

    found = backwards(torch.tensor([[0.5, 0.1], [0.9, 0.2]]))
    torch.testing.assert_close(found, torch.tensor([[0.2, 0.9], [0.1, 0.5]]))
