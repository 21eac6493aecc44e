"""`--columns` and `--group` of every command that takes a data set, and what they leave in a run."""

import csv

import pytest

from dspreg.cli import main
from dspreg.runs.folder import RunFolder
from helpers.images import put

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")
SMALL = ["--algorithm", "ERM", "--model", "small-cnn", "--weights", "none", "--image-size", "28", "--steps", "2",
         "--batch-size", "4", "--augment", "no", "--workers", "0", "--device", "cpu", "--cache", "none"]  # fmt: skip


@pytest.fixture
def sites(tmp_path, monkeypatch):
    """Three sites, four patients each, three images of each."""
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    rows = []
    for s, site in enumerate("abc"):
        for patient in range(4):
            for i in range(3):
                label, name = ("ill", "well")[patient % 2], f"p{patient}-{i}.png"
                path = put(tmp_path / "sites" / site / label / name, seed=100 * s + 10 * patient + i)
                rows.append([path.relative_to(tmp_path), label, site, f"{site}{patient}", 1 + i])
    with (tmp_path / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["file", "class", "site", "patient", "weight"], *rows])
    return tmp_path


COLUMNS = "path=file,label=class,domain=site,group=patient"


@pytest.mark.parametrize(
    ("dataset", "more", "recorded"),
    [
        ("index:{}/list.csv", ["--columns", COLUMNS], "?path=file&label=class&domain=site&group=patient"),
        ("folder:{}/sites", ["--group", r"\w/\w+/p\d-"], "?group=%5Cw%2F%5Cw%2B%2Fp%5Cd-"),
    ],
)
def test_a_run_remembers_what_was_said_of_its_data(sites, dataset, more, recorded, capsys):
    data, run = dataset.format(sites), sites / "run"
    command = ["train", "--dataset", data, *more, "--target", "c", "--out", str(run), *SMALL]
    assert main(command) == 0
    described = RunFolder(run).description()
    assert described["where"]["dataset"] == data + recorded
    assert described["settings"]["split"] == "grouped"
    assert set(described["data"]["annotations"]) == {"a", "b", "c"}
    assert {name: sizes["out"] for name, sizes in described["data"]["sizes"].items()} == {"a": 3, "b": 3, "c": 3}
    before = (run / "run.json").read_bytes()
    assert main(command) == 0  # it is the same run
    assert (run / "run.json").read_bytes() == before
    capsys.readouterr()
    assert main(["evaluate", str(run)]) == 0  # on its own data, by what run.json says
    text = capsys.readouterr().out
    assert "not trained on" not in text
    assert [line.split()[:3] for line in text.splitlines() if line.startswith(("a ", "b "))] == [
        ["a", "out", "3"], ["b", "out", "3"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--dataset", "PACS", "--group", "x"], "--group is for folder:PATH; of 'PACS'"),
        (["--dataset", "index:x.csv", "--group", "x"], "name a column: --columns group=NAME"),
        (["--dataset", "folder:x", "--columns", "path=a"], "--columns is for index:FILE.csv"),
        (["--dataset", "folder:x", "--group", "("], "is no regular expression"),
        (["--dataset", "index:x.csv", "--columns", "file"], "wanted OURS=YOURS"),
        (["--group", "x"], "--columns and --group go with a data set"),
    ],
)
def test_what_does_not_go_together_is_refused(sites, more, said, capsys):
    assert main(["train", *more, "--target", "c", "--out", str(sites / "run"), *SMALL]) == 2
    assert said in capsys.readouterr().err
    assert not (sites / "run").exists()


def test_a_sweep_takes_them_too(sites, capsys):
    command = ["sweep", "--dataset", f"index:{sites / 'list.csv'}", "--columns", COLUMNS, "--algorithms", "ERM",
               "--dry-run", "--store", str(sites / "store")]  # fmt: skip
    assert main(command) == 0
    assert "list" in capsys.readouterr().out
