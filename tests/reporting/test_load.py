"""Run folders as traces: what enters, and what is named and left out."""

import pytest

from dspreg.errors import ConfigError, IntegrityError
from dspreg.io.atomic_files import write
from dspreg.reporting.load import read_runs
from dspreg.runs.folder import RunFolder
from helpers.runs import outcome, seal, single, write_run

RECORDS = [single(0, "ash", 0.25, 0.5), single(300, "ash", 0.75, 0.6)]


def test_a_finished_run(tmp_path):
    write_run(tmp_path / "a", RECORDS, algorithm="IRM(weight=3.7)", asked="IRM", trial=2, draw=1, lr=0.5)
    (found,), damaged = read_runs(tmp_path)
    assert damaged == []
    assert (found.dataset, found.algorithm, found.targets, found.trial, found.draw) == ("trees", "IRM", ("ash",), 2, 1)
    assert found.finished
    assert [r["accuracy"]["ash"]["in"] for r in found.records] == [0.25, 0.75]
    assert found.protocol == "domainbed"
    assert found.options["lr"] == 0.5
    assert (found.conditions["threads"], found.conditions["torch"], found.conditions["steps"]) == ("1", "2.10.0", 301)
    assert not {"trial", "lr", "algorithm", "evaluate"} & set(found.conditions)


def test_a_folder_of_runs_a_store_and_one_run(tmp_path):
    write_run(tmp_path / "store/runs/one", RECORDS)
    write_run(tmp_path / "store/runs/two", RECORDS, trial=1)
    (tmp_path / "store/notes").mkdir()
    for path in ("store", "store/runs"):
        assert [run.trial for run in read_runs(tmp_path / path)[0]] == [0, 1]
    assert [run.trial for run in read_runs(tmp_path / "store/runs/two")[0]] == [1]
    for path in ("", "nowhere", "store/notes"):
        with pytest.raises(ConfigError, match=r"holds no runs|is no folder"):
            read_runs(tmp_path / path)


def test_unfinished_and_failed_runs_have_their_state_and_no_records(tmp_path):
    write_run(tmp_path / "a", RECORDS, finish=False)
    write_run(tmp_path / "b", [], finish=False, trial=1)
    write_run(tmp_path / "c", RECORDS, failure="step 3: the loss is not finite", trial=2)
    found = read_runs(tmp_path)[0]
    assert [run.why for run in found] == [
        "stopped at step 300 of 301",
        "stopped before its first record",
        "failed: step 3: the loss is not finite",
    ]
    assert not any(run.finished or run.records for run in found)


@pytest.mark.parametrize("file", ["records.jsonl", "run.json", "result.json"])
def test_a_damaged_run_is_named_and_left_out(tmp_path, file):
    write_run(tmp_path / "a", RECORDS)
    write_run(tmp_path / "b", RECORDS, trial=1)
    path = tmp_path / "b" / file
    write(path, path.read_bytes().replace(b"0", b"1", 1))
    found, damaged = read_runs(tmp_path)
    assert [run.trial for run in found] == [0]
    assert len(damaged) == 1
    assert str(tmp_path / "b") in damaged[0]


def test_a_run_with_other_contents_is_named_too(tmp_path):
    write_run(tmp_path / "a", RECORDS)
    folder = RunFolder(tmp_path / "b")
    (tmp_path / "b").mkdir()
    folder.agree({"settings": {}, "data": None})
    found, damaged = read_runs(tmp_path)
    assert len(found) == 1
    assert f"{tmp_path}/b/run.json: data is None; wanted an object" in damaged[0]


def test_weights_must_be_there_but_are_not_read(tmp_path):
    write_run(tmp_path / "a", RECORDS, finish=False)
    model, folder = tmp_path / "a/last.safetensors", RunFolder(tmp_path / "a")
    model.write_bytes(b"weights")
    seal(folder, outcome(folder))
    model.write_bytes(b"damaged")
    assert read_runs(tmp_path)[0][0].finished
    with pytest.raises(IntegrityError):
        folder.result()
    model.unlink()
    assert "is missing" in read_runs(tmp_path)[1][0]


def test_a_run_that_went_on_elsewhere_is_of_neither_environment(tmp_path):
    write_run(
        tmp_path / "a",
        RECORDS,
        environments=[{"torch": "2.11.0", "threads": 1, "device": "cpu", "precision": "float32"}],
    )
    (found,), _ = read_runs(tmp_path)
    assert found.conditions["torch"] == "2.10.0 then 2.11.0"
    assert found.conditions["threads"] == "1"
    assert found.conditions["layout"] == "channels-first"  # of runs from before there was a choice
    assert found.conditions["batch_norm"] == "not folded"
