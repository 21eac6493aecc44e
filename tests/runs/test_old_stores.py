"""What earlier versions left is read, resumed and finished by this one.

Each archive in tests/runs/stores was made by the revision in its name: a store of two finished runs, a finished run
with its models, and one that was stopped after five of eight steps.
"""

import json
import tarfile
from pathlib import Path

import pytest

import dspreg
from dspreg.algorithms import DSPReg
from dspreg.cli import main
from dspreg.io.atomic_files import canonical_json
from dspreg.runs.folder import identity
from dspreg.runs.status import RunStatus
from dspreg.runs.store import RunStore

ARCHIVES = sorted((Path(__file__).parent / "stores").glob("*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def left(request, tmp_path):
    with tarfile.open(request.param) as tar:
        tar.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    return folder


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_there_is_an_archive():
    assert ARCHIVES


def test_a_store_is_reported_and_has_nothing_left_to_do(left, capsys):
    store = RunStore(left / "store")
    runs = store.planned_runs()
    assert [store.status(run).status for run in runs] == [RunStatus.FINISHED] * 2
    assert main(["status", str(store.path)]) == 0
    (total,) = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("all "))
    assert total == ["all", "2", "2", "0", "0", "0", "0"]
    assert main(["report", str(store.path)]) == 0
    said = capsys.readouterr()
    for method in ("ERM ", "DSPReg(refresh_steps=2, measure_batches=1) "):
        assert any(line.startswith(method) and line.endswith("1/1") for line in said.out.splitlines()), said.out
    assert said.err == ""


def test_numbers_are_those_of_the_records(left):
    for run in dspreg.load_runs(left / "store"):
        folder = Path(run.folder)
        assert run.records == read_lines(folder / "records.jsonl")
        assert run.settings == json.loads((folder / "run.json").read_text())["settings"]
    profiles = [dspreg.Profile.load(path) for path in sorted((left / "store").rglob("profiles/*.safetensors"))]
    assert [profile.c.flat().max() <= 2**0.5 + 1e-6 for profile in profiles] == [True] * 2


def test_a_model_scores_what_its_record_says(left):
    evaluation = dspreg.evaluate(left / "finished")
    recorded = json.loads((left / "finished" / "result.json").read_text())["selected"]["accuracy"]
    for each in evaluation.domains:
        wanted = recorded[each.domain]["in" if each.domain == "print" else "out"]
        assert each.scores.accuracy == pytest.approx(wanted, abs=0.01)  # another CPU may round one image otherwise


@pytest.mark.filterwarnings("ignore:.*earlier version of dspreg:dspreg.Notice")
def test_an_unfinished_run_is_resumed_and_finished(left):
    folder = left / "unfinished"
    before = read_lines(folder / "records.jsonl")
    settings = json.loads((folder / "run.json").read_text())["settings"]
    execution = dspreg.Execution(threads=1, workers=0, profile="never", allow_changed_environment=True)
    result = dspreg.train(settings, execution, folder)
    after = read_lines(folder / "records.jsonl")
    assert after[: len(before)] == before
    assert [record["step"] for record in after] == [0, 2, 4, 6, 7]
    assert result["last"]["step"] == 7
    assert not (folder / "checkpoints").exists()


@pytest.mark.filterwarnings("ignore:.*earlier version of dspreg:dspreg.Notice")
def test_a_run_goes_on_with_the_engine_that_was_the_default_when_it_began(left, monkeypatch):
    """Its spec names no engine. That was `exact`, and is another today."""
    folder, used = left / "unfinished", set()
    settings = json.loads((folder / "run.json").read_text())["settings"]
    assert "DSPReg" in settings["algorithm"]
    assert "engine" not in settings["algorithm"]
    gradient = DSPReg.gradient
    monkeypatch.setattr(DSPReg, "gradient", lambda self, *given: used.add(self.engine) or gradient(self, *given))
    execution = dspreg.Execution(threads=1, workers=0, profile="never", allow_changed_environment=True)
    dspreg.train(settings, execution, folder)
    assert used == {"exact"}
    assert json.loads((folder / "run.json").read_text())["settings"] == settings
    dspreg.train(settings, execution, folder)  # finished: it is verified, and not another training
    new = left / "new"
    dspreg.train(settings, execution, new)
    assert used == {"exact", "finite_difference"}
    written = json.loads((new / "run.json").read_text())
    assert "engine='finite_difference'" in written["settings"]["algorithm"]
    assert "engine" not in written["where"]["algorithm"]


@pytest.mark.filterwarnings("ignore:.*earlier version of dspreg:dspreg.Notice")
def test_runs_of_both_defaults_stand_in_rows_of_their_own(left, capsys):
    """Both were asked for as DSPReg without an engine."""
    (old,) = (run for run in dspreg.load_runs(left / "store") if "DSPReg" in run.algorithm)
    (left / "both").mkdir()
    Path(old.folder).rename(left / "both" / "old")
    settings = {**old.settings, "trial": 1}
    dspreg.train(settings, dspreg.Execution(threads=1, workers=0, profile="never"), left / "both" / "new")
    runs = dspreg.load_runs(left / "both")
    assert {run.algorithm for run in runs} == {settings["algorithm"]}
    assert sorted(run.conditions["engine"] for run in runs) == ["exact", "finite_difference"]
    main(["report", str(left / "both")])
    out = capsys.readouterr().out
    for engine in ("exact", "finite_difference"):
        assert f"engine={engine}" in out


@pytest.mark.parametrize("settings", [[], {}, {"algorithm": 3}, None])
def test_a_run_whose_settings_are_none_is_another_training_and_no_crash(left, settings):
    """With an id that fits, so that nothing else notices."""
    folder = left / "unfinished"
    described = json.loads((folder / "run.json").read_text())
    asked, described["settings"] = described["settings"], settings
    (folder / "run.json").write_text(canonical_json({**described, "id": identity(described)}))
    with pytest.raises(dspreg.DspregError, match=r"another training|run\.json"):
        dspreg.train(asked, dspreg.Execution(threads=1, workers=0), folder)
