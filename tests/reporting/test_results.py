"""Results as data, by public names: runs, rows, contrasts and profiles, of a folder, a store and an archive."""

import statistics
import subprocess
import sys

import pytest

import dspreg
from dspreg.runs.archive import pack_store
from dspreg.runs.store import RunStore
from helpers.runs import DOMAINS, record, single, write_run

SECONDS = {"step_seconds": 0.5, "evaluate_seconds": 2.0}


def records(target, accuracy):
    """Source validation is best at step 100, where the target has this accuracy."""
    made = [single(0, target, 0.1, 0.2), single(100, target, accuracy, 0.9), single(200, target, 0.3, 0.4)]
    return [each | {"seconds": SECONDS, "log": {"loss": 1.5, "DSPReg.ratio": 0.25}} for each in made]


@pytest.fixture
def folder(tmp_path):
    """Two methods, all targets, two trials; DSPReg is 0.10 better in trial 0 and 0.20 in trial 1."""
    for n, target in enumerate(DOMAINS):
        for trial in (0, 1):
            base = 0.4 + 0.1 * n + 0.01 * trial
            for name, better in (("ERM", 0.0), ("DSPReg", 0.1 + 0.1 * trial)):
                path = tmp_path / "runs" / f"{name}-{target}-{trial}"
                write_run(path, records(target, base + better), targets=(target,), trial=trial, algorithm=name)
    return tmp_path / "runs"


def test_a_run_has_its_settings_status_and_whole_records(folder):
    runs = dspreg.load_runs(folder)
    assert len(runs) == 12
    (run,) = [each for each in runs if (each.algorithm, each.targets, each.trial) == ("DSPReg", ("birch",), 1)]
    assert run.finished
    assert run.state.status is dspreg.RunStatus.FINISHED
    assert run.settings["lr"] == run.options["lr"] == 1e-3
    assert [each["step"] for each in run.records] == [0, 100, 200]
    assert run.records[1]["accuracy"]["birch"]["in"] == pytest.approx(0.71)
    assert run.records[1]["log"]["DSPReg.ratio"] == 0.25
    assert run.seconds == 201 * 0.5 + 3 * 2.0
    assert run.folder == str(folder / "DSPReg-birch-1")


def test_rows_have_what_was_selected(folder):
    rows = {row.label: row for row in dspreg.select_rows(dspreg.load_runs(folder))}
    assert list(rows) == ["ERM", "DSPReg"]
    assert rows["ERM"].accuracy("cedar", 1) == pytest.approx(0.61)
    assert rows["ERM"].choices["cedar", 1].step == 100
    assert rows["ERM"].accuracy("cedar", 2) is None
    assert rows["DSPReg"].pair_with(rows["ERM"])["ash"] == [
        pytest.approx((0.5, 0.4)), pytest.approx((0.61, 0.41)),
    ]  # fmt: skip
    late = {row.label: row for row in dspreg.select_rows(dspreg.load_runs(folder), "late")}
    assert late["ERM"].accuracy("cedar", 1) == pytest.approx((0.61 + 0.3) / 2)


def test_a_contrast_is_that_of_the_report(folder):
    rows = {row.label: row for row in dspreg.select_rows(dspreg.load_runs(folder))}
    found = dspreg.contrast(rows["DSPReg"], rows["ERM"])
    assert (found.difference, found.pairs, found.freedom) == (pytest.approx(15), 6, 3)
    spread = statistics.stdev([10, 20])  # within every target; t(0.975, 3) = 3.182446
    assert found.error == pytest.approx(spread / 6**0.5)
    assert (found.low, found.high) == pytest.approx((15 - 3.182446 * found.error, 15 + 3.182446 * found.error))
    assert found.detectable == pytest.approx((3.182446 + 0.978472) * found.error)  # t(0.80, 3) = 0.978472
    assert found.verdict("DSPReg", "ERM") == "DSPReg is better"
    (printed,) = dspreg.report(folder, contrasts=[("DSPReg", "ERM")]).tables[-1].rows
    assert [cell.value for cell in printed.cells[:3]] == [found.difference, found.low, found.high]
    few = dspreg.contrast(rows["DSPReg"], rows["ERM"], targets=["ash", "birch"])
    assert (few.pairs, few.enough_pairs) == (4, False)
    assert few.verdict("DSPReg", "ERM") == "none: fewer than 5 pairs"
    with pytest.raises(dspreg.ConfigError, match="a contrast needs pairs"):
        dspreg.contrast(rows["DSPReg"], rows["ERM"], targets=["oak"])


def test_rows_of_different_data_sets_have_no_contrast(tmp_path):
    for name in ("trees", "shrubs"):
        write_run(tmp_path / name, records("ash", 0.5), dataset=name)
    one, two = dspreg.select_rows(dspreg.load_runs(tmp_path))
    with pytest.raises(dspreg.ConfigError, match="ERM is of shrubs, ERM of trees"):
        dspreg.contrast(one, two)


def test_a_store_has_its_planned_runs_and_its_archive_the_same(tmp_path):
    store = RunStore(tmp_path / "store")
    store.make()
    runs = list(dspreg.leave_one_out({"trees": DOMAINS}, ["ERM"], trials=1, draws=1, only="training"))
    store.plan(runs)
    (done,) = [run for run in runs if run.targets == ("ash",)]
    trained = records("ash", 0.5)
    write_run(store.folder(done).path, trained, trial=done.trial, draw=done.draw, plan=done.to_json())
    (store.folder(runs[1]).path).mkdir()
    (store.folder(runs[1]).path / "run.json").write_text("{}")
    archive = tmp_path / "store.tar.xz"
    pack_store(store.path, archive)
    with pytest.warns(dspreg.Notice, match="left out: .*store/runs/"):
        there = dspreg.load_runs(store.path)
    with pytest.warns(dspreg.Notice, match=r"left out: .*store\.tar\.xz/runs/"):
        packed = dspreg.load_runs(archive)
    statuses = sorted(run.state.status.value for run in there)
    assert statuses == sorted(["finished", "damaged", *["not started"] * (len(runs) - 2)])
    assert [(run.targets, run.state, run.records) for run in packed] == [
        (run.targets, run.state if run.state.status != "damaged" else packed[1].state, run.records) for run in there
    ]
    (run,) = [run for run in packed if run.finished]
    assert run.folder == f"{archive}/runs/{done.id}"
    assert list(run.records) == trained


def test_profiles_of_a_run_are_verified(tmp_path):
    import torch

    profile = dspreg.measure(
        torch.nn.Linear(2, 2), {d: [(torch.rand(4, 2), torch.tensor([0, 1, 0, 1]))] * 2 for d in "ab"}
    )
    path = write_run(tmp_path / "runs/a", [record(0, dict.fromkeys(DOMAINS, (0.5, 0.5)))],
                     profiles={"end": profile.to_bytes()})  # fmt: skip
    (run,) = dspreg.load_runs(tmp_path / "runs")
    assert torch.equal(run.profile().c.flat(), profile.c.flat())
    with pytest.raises(dspreg.ConfigError, match=r"has no profiles/start\.safetensors; wanted a finished run"):
        run.profile("start")
    (path / "profiles/end.safetensors").write_bytes(dspreg.Profile.to_bytes(profile)[:-1])
    with pytest.raises(dspreg.IntegrityError, match="damaged or was changed"):
        run.profile()


def test_a_run_that_is_not_started_has_no_profile():
    run = dspreg.RunResult(dataset="trees", algorithm="ERM", domains=DOMAINS, targets=("ash",))
    with pytest.raises(dspreg.ConfigError, match="has no profile"):
        run.profile()


def test_results_are_read_without_torch(folder):
    program = f"""
import sys, dspreg
rows = dspreg.select_rows(dspreg.load_runs({str(folder)!r}))
print(round(dspreg.contrast(rows[1], rows[0]).difference, 6), 'torch' in sys.modules)"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["15.0", "False"]
