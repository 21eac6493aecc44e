"""`dspreg sweep` as it is typed."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from dspreg.cli import main
from dspreg.runs.run import Run
from dspreg.runs.store import RunStore
from helpers.runs import seal
from helpers.small_runs import photos

SMALL = ["model=small-cnn", "weights=none", "image_size=28", "steps=2", "batch_size=4", "lr=1e-3", "augment=no"]
SMALL = [word for text in SMALL for word in ("--set", text)]
HOW = ["--threads", "1", "--profile", "never", "--workers", "0", "--check-images", "never", "--jobs", "0"]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("images") / "photos")


def typed(images, store, *more, algorithms=("ERM", "CORAL")):
    what = ["--dataset", f"folder:{images}", "--algorithms", *algorithms, "--trials", "1", "--draws", "1"]
    return ["sweep", *what, "--only", "training", *SMALL, *HOW, "--store", str(store), *map(str, more)]


def row(text, *start):
    """The first row whose first cells are these."""
    rows = [re.split(r" {2,}", line) for line in text.splitlines()]
    return next(cells for cells in rows if cells[: len(start)] == [*start])


def test_a_sweep_from_flags_and_its_plan(images, tmp_path, capsys):
    store = tmp_path / "store"
    assert main(typed(images, store, "--dry-run")) == 0
    said = capsys.readouterr().out
    assert row(said, "photos", "ERM") == ["photos", "ERM", "3", "0", "0"]
    assert row(said, "all") == ["all", "6", "0", "0"]
    assert "hours: unknown until" in said
    assert "gigabytes: unknown until photos is read" in said
    assert not store.exists()

    assert main(typed(images, store, algorithms=["ERM"])) == 0
    said = capsys.readouterr().out.splitlines()
    assert [re.sub(r"[\d.]+ %", "x", line) for line in said] == [
        "[1/3] ERM on photos → dawn, trial 0, draw 0: unseen dawn x",
        "[2/3] ERM on photos → dusk, trial 0, draw 0: unseen dusk x",
        "[3/3] ERM on photos → noon, trial 0, draw 0: unseen noon x",
        f"3 of 3 runs finished in {store}",
    ]
    assert main(typed(images, store, "--dry-run")) == 0
    said = capsys.readouterr().out
    assert row(said, "photos", "ERM") == ["photos", "ERM", "3", "3", "0", "0", "0"]
    assert row(said, "photos", "CORAL") == ["photos", "CORAL", "3", "0", "0"]  # nothing measured, nothing said
    assert row(said, "all") == ["all", "6", "3", "0"]
    assert main(typed(images, store, algorithms=["ERM"])) == 0
    assert capsys.readouterr().out.count(", as before") == 3
    planned = RunStore(store).planned_runs()
    assert [run.targets for run in planned] == [("dawn",), ("dusk",), ("noon",)]


def test_hours_and_gigabytes_are_those_of_finished_runs(images, tmp_path, capsys):
    store = RunStore(tmp_path / "store")
    assert main(typed(images, store.path, "--targets", "dawn", algorithms=["ERM"])) == 0
    (run,) = store.planned_runs()
    records = store.folder(run) / "records.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    for line, step, evaluate in zip(lines, (1000.0, 3000.0), (500.0, 2700.0), strict=True):
        line["seconds"] |= {"step_seconds": step, "evaluate_seconds": evaluate}
    records.write_text("".join(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n" for line in lines))
    result = json.loads((store.folder(run) / "result.json").read_text())
    outcome = {k: v for k, v in result.items() if k not in ("files", "sha256")}
    seal(store.folder(run), outcome)
    capsys.readouterr()
    assert main(typed(images, store.path, "--dry-run", algorithms=["ERM"])) == 0
    size = sum(p.stat().st_size for p in store.folder(run).path.rglob("*") if p.is_file())
    # 1000 + 500 + 3000 + 2700 = 7200 seconds are two hours, and two runs are left
    assert row(capsys.readouterr().out, "photos")[2:] == ["3", "1", "0", "4", f"{2 * size / 1e9:.2g}"]


def test_in_several_processes(images, tmp_path, capsys):
    store = tmp_path / "store"
    assert main(typed(images, store, "--jobs", "2", algorithms=["ERM"])) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line[:6] for line in said[:3]] == ["[1/3] ", "[2/3] ", "[3/3] "]
    assert {line.split(" → ")[1].split(",")[0] for line in said[:3]} == {"dawn", "dusk", "noon"}
    assert said[3:] == [f"3 of 3 runs finished in {store}"]
    assert main(typed(images, store, algorithms=["ERM"])) == 0
    assert capsys.readouterr().out.count(", as before") == 3


@pytest.mark.parametrize("flag", ["--jobs", "--attempts"])
@pytest.mark.parametrize("value", ["-1", "many", "1.5"])
def test_numbers_that_are_none(images, tmp_path, capsys, flag, value):
    assert main(typed(images, tmp_path / "store", f"{flag}={value}")) == 2
    assert f"{flag} {value!r}; wanted a whole number at least" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_known_data_sets_need_no_data(tmp_path, capsys):
    assert main(["sweep", "--dataset", "PACS", "DomainNet", "--algorithms", "ERM", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert row(said, "PACS")[2] == "600"
    assert row(said, "DomainNet")[2] == "1,260"
    # ResNet-50 without its own head: 23,508,032 parameters, 53,120 statistics and 53 counters; and 2,049 per class
    network = 4 * (23_508_032 + 53_120) + 8 * 53
    both = 600 * (network + 4 * 2_049 * 7) + 1_260 * (network + 4 * 2_049 * 345)
    assert f"{2 * both / 1e9:.2f} of models at the end (--keep best)" in said
    assert main(["sweep", "--dataset", "PACS", "--algorithms", "ERM", "--keep", "none", "--dry-run"]) == 0
    assert " 0.00 of models at the end" in capsys.readouterr().out


def test_a_sweep_file_is_the_same_sweep_and_flags_win(images, tmp_path, capsys):
    (tmp_path / "sweep.yaml").write_text(
        f"datasets: 'folder:{images}'\nalgorithms: [ERM, CORAL]\ntrials: 9\ndraws: 1\nonly: training\n"
        "settings: {model: small-cnn, weights: none, image_size: 28, steps: 2, batch_size: 4, lr: 1e-3, augment: no}\n"
        "execution: {threads: 1, profile: never, workers: 0, check_images: never, keep: none}\n"
    )
    store = RunStore(tmp_path / "store")
    assert main(["sweep", str(tmp_path / "sweep.yaml"), "--trials", "1", "--store", str(store.path)]) == 0
    assert not list(store.path.rglob("*.safetensors"))  # keep: none
    first = bytes_of(store)
    assert main(typed(images, store.path)) == 0
    assert capsys.readouterr().out.count(", as before") == 6
    assert bytes_of(store) == first


def bytes_of(store):
    return {p: p.read_bytes() for p in store.path.glob("runs/*/*") if p.is_file()}


def test_some_failed_is_exit_code_5(images, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "methods_of_a_test.py").write_text(
        "from dspreg import Algorithm\n\nclass Broken(Algorithm):\n    def loss(self, out):\n        return 1 / 0\n"
    )
    algorithms = ["methods_of_a_test.Broken", "ERM"]
    assert main(typed(images, "store", "--targets", "dawn", algorithms=algorithms)) == 5
    said = capsys.readouterr().out
    broken = "methods_of_a_test.Broken on photos → dawn, trial 0, draw 0: failed: ZeroDivisionError: division by zero"
    assert f"[0/2] {broken}; attempt 1 of 3, tried again later\n[1/2] ERM on photos → dawn" in said
    assert f"[2/2] {broken}\n1 of 2 runs finished" in said
    assert "1 of 2 runs finished" in said
    bad = Run(dataset=f"folder:{images}", targets=("dawn",), algorithm=algorithms[0], options=options())
    assert f"  {bad.id}  methods_of_a_test.Broken on photos" in said
    assert said.endswith("dspreg retry store gives 1 of them their attempts again\n")
    assert main(typed(images, "store", "--targets", "dawn", "--dry-run", algorithms=algorithms)) == 0
    assert row(capsys.readouterr().out, "photos", algorithms[0])[2:5] == ["1", "0", "1"]


def test_cancelled_is_not_failed(images, tmp_path, capsys):
    store = RunStore(tmp_path / "store")
    assert main(typed(images, store.path, "--targets", "dawn", algorithms=["ERM"])) == 0
    (run,) = store.planned_runs()
    shutil.rmtree(store.folder(run).path)
    store.cancel(run)
    assert main(typed(images, store.path, "--targets", "dawn", algorithms=["ERM"])) == 0
    assert "cancelled: " in capsys.readouterr().out
    assert main(["status", str(store.path), "--once"]) == 0


def test_a_sweep_whose_reader_is_gone_goes_on(images, tmp_path):
    """`dspreg sweep … | head`: the runs are for the store, and the exit code is theirs."""
    command = [sys.executable, "-m", "dspreg.cli", *typed(images, tmp_path / "store", algorithms=["ERM"])]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "device: cpu\n")
    store = RunStore(tmp_path / "store")
    assert [store.status(run).status for run in store.planned_runs()] == ["finished"] * 3


def options():
    return {"model": "small-cnn", "weights": "none", "image_size": 28, "steps": 2, "batch_size": 4, "lr": 1e-3,
            "augment": False}  # fmt: skip


def test_a_damaged_run_is_told_and_not_trained_over(images, tmp_path, capsys):
    store = RunStore(tmp_path / "store")
    assert main(typed(images, store.path, "--targets", "dawn", algorithms=["ERM"])) == 0
    (run,) = store.planned_runs()
    with (store.folder(run) / "last.safetensors").open("r+b") as file:
        file.seek(500)
        file.write(b"\0\1\2\3")
    first = bytes_of(store)
    assert main(typed(images, store.path, "--targets", "dawn", algorithms=["ERM"])) == 5
    assert "damaged: " in capsys.readouterr().out
    assert bytes_of(store) == first


def test_a_recipe(images, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from dspreg.protocol.leave_one_out import leave_one_out\n\n"
        "def runs():\n    return leave_one_out({'digits': ('handwritten', 'outline', 'print', 'sign')}, ['ERM'])\n"
    )
    assert main(["sweep", str(tmp_path / "mine.py"), "--dry-run"]) == 0
    assert row(capsys.readouterr().out, "digits")[2] == "600"
    assert main(["sweep", str(tmp_path / "mine.py"), "--trials", "3", "--dry-run"]) == 2
    assert "a recipe defines what is trained; leave out trials" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--dataset", "PACS", "--algorithms", "ERN"], "unknown algorithm 'ERN'. Did you mean 'ERM'?"),
        (["--dataset", "PACS", "--algorithms", "ERM(x=1)"], "no option 'x'"),
        (["--dataset", "PAX", "--algorithms", "ERM"], "unknown data set 'PAX'"),
        (["--dataset", "PACS", "--algorithms", "ERM", "--targets", "skech"], "Did you mean 'sketch'?"),
        (["--dataset", "PACS", "--algorithms", "ERM", "--trials", "0"], "--trials: trials='0'"),
        (["--dataset", "PACS", "--algorithms", "ERM", "--only", "oracle"], "--only: only='oracle'"),
        (["--dataset", "PACS", "--algorithms", "ERM", "--set", "trial=1"], "write trials: at the top"),
        (["--dataset", "PACS", "--algorithms", "ERM"], "Add --store DIR"),
        (["--dataset", "digits", "--algorithms", "ERM", "--store", "new", "--device", "abacus"], "device='abacus'"),
        (["--dataset", "PACS"], "a sweep needs algorithms"),
        ([], "a sweep needs datasets"),
        (["gone.yaml"], "can't be read"),
        (["gone.py"], "there is no file gone.py"),
    ],
)
def test_what_is_refused_before_anything_is_run(more, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *more]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


MILLION = ["--dataset", "digits", "--algorithms", "ERM", "DSPReg", "--only", "training", "--draws", "1",
           "--trials", "125000"]  # fmt: skip


def test_a_million_runs_are_not_started_unasked(tmp_path, capsys, monkeypatch):
    """By a slip of the finger: they are counted, none is made, and the message has the way out."""
    monkeypatch.setattr(Run, "__post_init__", lambda self: pytest.fail("a run was made"))
    assert main(["sweep", *MILLION, "--store", str(tmp_path / "store")]) == 2
    said = capsys.readouterr().err
    assert "these are 1,000,000 runs, and at most 10,000 are started unasked" in said
    assert "--dry-run" in said
    assert "--max-runs 1000000" in said
    assert not list(tmp_path.iterdir())


def test_a_million_runs_are_shown_at_once(images, tmp_path, capsys, monkeypatch):
    """Few are made, to look for finished ones among them."""
    made, usual = [], Run.__post_init__
    monkeypatch.setattr(Run, "__post_init__", lambda self: made.append(1) or usual(self))
    assert main(["sweep", *MILLION, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert row(said, "digits")[2] == "500,000"
    assert row(said, "all")[1] == "1,000,000"
    assert "in all 1,000,000" in said
    assert "GB" in said
    assert "to start them: --max-runs 1000000" in said
    assert len(made) == 2


def test_a_large_plan_knows_what_finished_runs_took(images, tmp_path, capsys):
    assert main(typed(images, tmp_path / "store", algorithms=["ERM"])) == 0
    capsys.readouterr()
    assert main([*typed(images, tmp_path / "store", algorithms=["ERM"]), "--max-runs", "2", "--dry-run"]) == 0
    large = capsys.readouterr().out
    assert main([*typed(images, tmp_path / "store", algorithms=["ERM"]), "--dry-run"]) == 0
    assert large.splitlines()[:2] == capsys.readouterr().out.splitlines()[:2]  # all three were looked at
    assert "as the 3 finished took" in large
    assert "to start them: --max-runs 3" in large


def test_with_the_word_more_are_started(images, tmp_path, capsys):
    few = [*typed(images, tmp_path / "store", algorithms=["ERM"]), "--max-runs"]
    assert main([*few, "2"]) == 2
    assert "these are 3 runs, and at most 2" in capsys.readouterr().err
    assert main([*few, "3"]) == 0


def test_a_recipe_without_an_end(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from itertools import count\nfrom dspreg.runs.run import Run\n\n"
        "def runs():\n    for n in count():\n"
        "        yield Run(dataset='digits', targets=('print',), algorithm='ERM', trial=n)\n"
    )
    assert main(["sweep", str(tmp_path / "mine.py"), "--dry-run", "--max-runs", "50"]) == 2
    assert "returned more than 50 runs. If they are meant, add --max-runs N" in capsys.readouterr().err


def test_a_folder_of_something_else_is_left_alone(images, tmp_path, capsys):
    (tmp_path / "letters").write_text("dear")
    assert main(typed(images, tmp_path, algorithms=["ERM"])) == 2
    assert "is not empty and no store of runs (letters, …)" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["letters"]


def test_help_has_examples_that_parse(capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    said = capsys.readouterr().out
    assert "dspreg sweep pacs.yaml --store runs/pacs --dry-run" in said
    assert "several sweeps on one store share the work" in said
