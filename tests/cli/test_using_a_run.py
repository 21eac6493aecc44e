"""`dspreg predict`, `evaluate` and `export`: what they print, where, and the exit code they leave."""

import csv
import itertools
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dspreg.cli import main
from dspreg.cli.evaluate import folder_name
from helpers.small_runs import photos, trained


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def folder(place):
    return photos(place / "photos", classes=("-1", "cat", "x\x1b[31m"), each=6)


@pytest.fixture(scope="module")
def run(place, folder):
    return trained(folder, place / "run", steps=1)


def test_predict_prints_a_table(run, folder, capsys):
    assert main(["predict", str(run), str(folder / "noon" / "cat")]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].split() == ["image", "class", "probability", "second", "best", "probability"]
    assert len(lines) == 7
    assert lines[1].startswith(str(folder / "noon" / "cat" / "0.png"))
    assert len({line.index("%") for line in lines[1:]}) == 1  # aligned
    assert "\x1b" not in printed.out
    assert printed.err == "device: cpu\n"


def test_predict_csv_is_safe_in_a_spreadsheet(run, folder, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "=1+1.png").write_bytes((folder / "noon" / "cat" / "0.png").read_bytes())
    assert main(["predict", str(run), "=1+1.png", str(folder / "dawn"), "--csv", "--batch", "5"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert list(rows[0]) == ["path", "class", "probability", "p_-1", "p_cat", "p_x\\x1b[31m"]
    assert rows[0]["path"] == "'=1+1.png"
    assert len(rows) == 19
    assert {row["class"] for row in rows} <= {"'-1", "cat", "x\\x1b[31m"}
    for row in rows:
        numbers = [float(row[name]) for name in list(row)[3:]]
        assert sum(numbers) == pytest.approx(1, abs=1e-5)
        assert float(row["probability"]) == max(numbers)


def test_predict_goes_on_after_a_bad_image_and_says_so(run, folder, capsys, tmp_path):
    bad = tmp_path / "bad\x1b[2J.png"
    bad.write_bytes(b"")
    assert main(["predict", str(run), str(bad), str(folder / "noon" / "cat" / "0.png")]) == 3
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert "bad\\x1b[2J.png: the file is empty" in printed.err
    assert "1 of 2 images can't be used" in printed.err
    assert "\x1b" not in printed.err


def test_predict_with_bad_images_alone(run, capsys, tmp_path):
    (tmp_path / "bad.png").touch()
    assert main(["predict", str(run), str(tmp_path)]) == 3
    assert capsys.readouterr().out == ""


def test_evaluate_prints_tables_and_leaves_files(run, capsys):
    assert main(["evaluate", str(run)]) == 0
    out = capsys.readouterr().out
    assert "photos, selected model, of step 0" in out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert rows["dawn"][1:3] == ["out", "3"]
    assert rows["noon"][1:3] == ["all", "18"]
    assert "worst domain: " in out
    assert "only the images held out from training are scored" in out
    assert "\x1b" not in out
    files = {p.name for p in (run / "evaluation-photos").iterdir()}
    tables = {"scores.json", "predictions.csv", "per_class.csv", "confusion.csv"}
    assert files == tables | {"confusion.png", "roc.png", "reliability.png"}
    assert main(["evaluate", str(run), "--json"]) == 0  # the run is sound with files beside its own
    assert json.loads(capsys.readouterr().out)["domains"]["noon"]["images"] == 18


def test_an_evaluation_of_some_domains_leaves_the_others_result(run, capsys):
    assert main(["evaluate", str(run), "--domain", "noon", "dawn", "--which", "last"]) == 0
    assert "evaluation-photos-noon-dawn-last: predictions.csv" in capsys.readouterr().out


def test_every_way_to_evaluate_has_a_folder_of_its_own():
    """Under `--which 120` the selected model's result was overwritten."""
    ways = [("selected", 0), ("last", 299), ("120", 120), ("240", 240)]
    names = [
        folder_name(SimpleNamespace(dataset="photos", which=which, step=step, adapt=adapt), domains)
        for (which, step), adapt, domains in itertools.product(ways, ("none", "bn"), ([], ["noon"]))
    ]
    assert len(set(names)) == 16


def test_evaluate_elsewhere(run, tmp_path, capsys):
    other = photos(tmp_path / "night shift", domains=("night",), classes=("cat",), each=3)
    where = tmp_path / "out"
    assert main(["evaluate", str(run), "--dataset", f"folder:{other}", "--out", str(where), "--which", "last"]) == 0
    assert json.loads((where / "scores.json").read_text())["dataset"] == "night shift"
    assert "mean" not in capsys.readouterr().out.split("accuracy in %")[0].replace("class mean", "")  # one domain


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["evaluate", "RUN", "--adapt", "bn"], 2, "no batch norm"),
        (["evaluate", "RUN", "--domain", "nix"], 2, "Unknown domain 'nix'"),
        (["evaluate", "RUN", "--device", "tpu"], 2, "device='tpu'"),
        (["evaluate", "RUN", "--name", "x"], 2, "--name 'x' goes with --dataset"),
        (["evaluate", "nowhere"], 2, "nowhere holds no run"),
        (["predict", "nowhere", "x.png"], 2, "nowhere holds no run"),
        (["predict", "RUN", "nowhere.png"], 3, "'nowhere.png' does not exist"),
        (["export", "RUN", "--format", "safetensors", "--normalise"], 2, "no program"),
        (["export", "RUN", "--format", "torch.export", "--out", "x.onnx"], 2, "ends in .pt2"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run, capsys, arguments, code, says):
    assert main([str(run) if each == "RUN" else each for each in arguments]) == code
    printed = capsys.readouterr()
    assert says in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_a_damaged_run_is_not_used(folder, tmp_path, capsys):
    run = trained(folder, tmp_path / "run", steps=1)
    data = bytearray((run / "selected.safetensors").read_bytes())
    data[-1] ^= 1
    (run / "selected.safetensors").write_bytes(data)
    for command in (
        ["predict", str(run), str(folder)],
        ["evaluate", str(run)],
        ["export", str(run), "--format", "onnx"],
    ):
        assert main(command) == 4
        assert "is damaged or was changed" in capsys.readouterr().err


def test_export_says_what_it_compared(run, tmp_path, capsys):
    assert main(["export", str(run), "--format", "safetensors", "--out", str(tmp_path / "w.safetensors")]) == 0
    out = capsys.readouterr().out
    assert "batches of 1, 2, 5 images differ by 0.0e+00" in out
    assert 'load_file("w.safetensors")' in out


@pytest.mark.parametrize("command", ["predict", "evaluate", "export"])
def test_help_has_examples_and_needs_no_torch(command):
    program = (
        f"import sys\nfrom dspreg.cli import main\ntry:\n    main(['{command}', '--help'])\nexcept SystemExit:\n"
        "    print([m for m in ('torch', 'pandas', 'matplotlib', 'rich') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout.splitlines()[-1] == "[]", said.stderr
    assert f"examples:\n  dspreg {command} runs/" in said.stdout


ODD = ("\x1b[2Jdawn", "dusk\x07", "no\u202eon", "x\x9bK")


@pytest.fixture(scope="module")
def odd(place):
    """A run whose domains and classes are named to do something to a terminal."""
    folder = photos(place / "odd\x1b[5m", domains=ODD[:3], classes=("cat", "\x1b]0;owned\x07", ODD[3]), each=6)
    return folder, trained(folder, place / "odd-run", steps=1, targets=(ODD[2],))


def test_no_name_from_a_run_reaches_the_terminal_raw(odd, capsys, tmp_path):
    folder, run = odd
    image = str(next((folder / ODD[2]).rglob("*.png")))
    command = ["train", "--dataset", f"folder:{folder}", "--target", ODD[2], "--out", str(tmp_path / "run"), "--steps",
               "1", "--model", "small-cnn", "--batch-size", "4", "--workers", "0", "--algorithm", "ERM"]  # fmt: skip
    commands = [
        ["predict", str(run), image], ["predict", str(run), image, "--csv"], ["evaluate", str(run)],
        ["evaluate", str(run), "--json"], ["evaluate", str(run), "--domain", "other"],
        ["measure", "--model", str(run), "--images", "4", "--batch", "2"],
        ["measure", "--model", str(run), "--images", "4", "--batch", "2", "--json"],
        ["export", str(run), "--format", "safetensors"], ["report", str(run.parent)], command, command,
    ]  # fmt: skip
    for each in commands:
        main(each)
        printed = capsys.readouterr()
        assert printed.out + printed.err
        assert not set("\x1b\x07\x9b\u202e") & set(printed.out + printed.err), each
    card = (tmp_path / "run" / "README.md").read_text()
    assert not set("\x1b\x07\x9b\u202e") & set(card)
    assert r"\\x1b\[2Jdawn" in card  # as text, in markdown
