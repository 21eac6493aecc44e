"""Finished sweeps of DomainBed's as stores: the same numbers, by our tables."""

import json

import pytest

import dspreg
from dspreg.cli import main
from dspreg.data.benchmarks import PACS
from dspreg.domainbed.import_sweep import import_sweep
from dspreg.errors import ConfigError, IntegrityError

STEPS = (0, 300, 600)


def accuracy(algorithm, target, trial, step, env, which):
    """Some number from 0 to 1 that is another one for every cell."""
    return (hash((algorithm, target, trial, step, env, which)) % 1000) / 1000


def write_job(sweep, algorithm, target, trial, *, done=True, draw=0, dataset="PACS", **hparams):
    folder = sweep / f"{algorithm}-{target}-{trial}-{draw}-{dataset}"
    folder.mkdir(parents=True)
    args = {"dataset": dataset, "algorithm": algorithm, "test_envs": [target], "trial_seed": trial}
    args |= {"hparams_seed": draw, "holdout_fraction": 0.2, "steps": None, "checkpoint_freq": None}
    lines = []
    for step in STEPS:
        line = {"step": step, "epoch": 0.1, "step_time": 0.25, "mem_gb": 1.0, "loss": 1.5, "args": args}
        line["hparams"] = {"lr": 5e-5, "batch_size": 32, "weight_decay": 0.0, "resnet18": True, **hparams}
        for env in range(4):
            for which in ("in", "out"):
                line[f"env{env}_{which}_acc"] = accuracy(algorithm, target, trial, step, env, which)
        lines.append(json.dumps(line))
    (folder / "results.jsonl").write_text("\n".join(lines) + "\n")
    if done:
        (folder / "done").write_text("done")
    return folder


@pytest.fixture
def sweep(tmp_path):
    for algorithm in ("ERM", "CORAL"):
        for target in range(4):
            for trial in range(3):
                write_job(tmp_path / "sweep", algorithm, target, trial)
    return tmp_path / "sweep"


def expected(algorithm):
    """By hand: training-domain validation, averaged over trials, per target."""
    found = {}
    for target in range(4):
        chosen = []
        for trial in range(3):
            sources = [env for env in range(4) if env != target]
            value = {s: sum(accuracy(algorithm, target, trial, s, e, "out") for e in sources) for s in STEPS}
            best = max(STEPS, key=lambda step: value[step])
            chosen.append(accuracy(algorithm, target, trial, best, target, "in"))
        found[PACS.domains[target]] = 100 * sum(chosen) / 3
    return found


def test_the_report_has_the_numbers_of_the_jobs(sweep, tmp_path):
    found = import_sweep(sweep, tmp_path / "store")
    assert len(found.runs) == 24
    assert found.left_out == {}
    rows = {row["algorithm"]: row for row in table_of(tmp_path / "store")}
    for name in ("ERM", "CORAL"):
        row = rows[f"DomainBed(name='{name}')"]
        for domain, value in expected(name).items():
            assert row[domain] == pytest.approx(value, abs=0.051)


def table_of(store):
    """The rows of the first table of the report, as numbers."""
    runs = dspreg.load_runs(store)
    names = sorted({run.algorithm for run in runs})
    rows = []
    for name in names:
        row = {"algorithm": name}
        for domain in PACS.domains:
            mine = [run for run in runs if run.algorithm == name and run.targets == (domain,)]
            best = [max(run.records, key=lambda r: r["validation"])["accuracy"][domain]["in"] for run in mine]
            row[domain] = 100 * sum(best) / len(best)
        rows.append(row)
    return rows


def test_the_command_and_the_report(sweep, tmp_path, capsys):
    write_job(sweep, "MMD", 0, 0, done=False)
    store = tmp_path / "store"
    assert main(["import", str(sweep), "--store", str(store)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("24 runs in ")
    assert "left out: MMD-0-0-0-PACS: not finished" in said.err
    assert main(["report", str(store)]) == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if "name='CORAL'" in line)
    for value in expected("CORAL").values():
        assert f"{value:.1f}" in row


def test_again_it_changes_nothing(sweep, tmp_path):
    import_sweep(sweep, tmp_path / "store")
    before = {p: p.read_bytes() for p in (tmp_path / "store").rglob("*") if p.is_file() and p.suffix == ".json"}
    import_sweep(sweep, tmp_path / "store")
    assert before
    assert all(path.read_bytes() == data for path, data in before.items())


def test_a_run_has_what_domainbed_wrote(tmp_path):
    write_job(tmp_path / "sweep", "SD", 3, 1, draw=2, sd_reg=0.5, freeze_bn=False)
    import_sweep(tmp_path / "sweep", tmp_path / "store")
    (run,) = dspreg.load_runs(tmp_path / "store")
    assert (run.targets, run.trial, run.draw, run.settings["model"]) == (("sketch",), 1, 2, "resnet18.tv_in1k")
    assert run.settings["frozen_bn"] is False
    assert [record["step"] for record in run.records] == list(STEPS)
    described = json.loads(next((tmp_path / "store" / "runs").rglob("run.json")).read_text())
    assert json.loads(described["where"]["hparams"])["sd_reg"] == 0.5
    assert set(described["data"]["fingerprints"].values()) == {"not known: imported from DomainBed"}


def test_what_can_not_be_imported(tmp_path):
    with pytest.raises(ConfigError, match="can't be listed"):
        import_sweep(tmp_path / "nowhere", tmp_path / "store")
    write_job(tmp_path / "sweep", "ERM", 0, 0, dataset="SVIRO")
    with pytest.raises(ConfigError, match="'SVIRO' is none of dspreg's"):
        import_sweep(tmp_path / "sweep", tmp_path / "store")
    folder = write_job(tmp_path / "torn", "ERM", 0, 0)
    with (folder / "results.jsonl").open("a") as file:
        file.write('{"step":')
    with pytest.raises(IntegrityError, match="ends in the middle of a line"):
        import_sweep(tmp_path / "torn", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_what_was_trained_with_images_of_the_target_is_left_out(tmp_path):
    """Domain adaptation has no place in a table of domain generalisation."""
    write_job(tmp_path / "sweep", "ERM", 0, 0)
    adapted = write_job(tmp_path / "sweep", "CORAL", 0, 0) / "results.jsonl"
    lines = [json.loads(line) for line in adapted.read_text().splitlines()]
    for line in lines:
        line["args"] |= {"task": "domain_adaptation", "uda_holdout_fraction": 0.5}
    adapted.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = import_sweep(tmp_path / "sweep", tmp_path / "store")
    assert [run.algorithm for run in found.runs] == ["DomainBed(name='ERM')"]
    assert "domain_adaptation" in found.left_out[adapted.parent.name]


def test_an_imported_run_has_no_model(sweep, tmp_path, capsys):
    import_sweep(sweep, tmp_path / "store")
    folder = next((tmp_path / "store" / "runs").iterdir())
    assert main(["predict", str(folder), "x.jpg"]) in (2, 3)
    assert capsys.readouterr().err
