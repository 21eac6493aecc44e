"""`dspreg measure`: what it prints, what it leaves, and the exit code."""

import json
import subprocess
import sys

import pytest
import torch

import dspreg
from dspreg.cli import main
from helpers.images import tree
from helpers.small_runs import photos, trained

OWN = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
def number():
    return 3
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def folder(place):
    return photos(place / "photos", each=16)


@pytest.fixture
def here(place, monkeypatch):
    """The current folder, with a network of one's own, that is on no path."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(place))])
    (place / "nets_for_measure.py").write_text(OWN, encoding="utf-8")
    return place


def measure(*arguments, code=0):
    assert main(["measure", *map(str, arguments)]) == code


SMALL = ("--model", "small-cnn", "--weights", "none", "--image-size", "16", "--batch", "12")


def test_tables_and_files(here, folder, capsys):
    left = [here / "new" / "p.safetensors", here / "new" / "page.html"]
    measure(*SMALL, "--dataset", f"folder:{folder}", "--out", left[0], "--figures", "pics", "--html", left[1])
    printed = capsys.readouterr()
    assert printed.err == "device: cpu\n"  # no bar: there is no terminal
    lines = printed.out.splitlines()
    assert lines[0] == "small-cnn, its head of 3 outputs new and random, on photos at 16 pixels"
    assert lines[1] == "images: dawn 48 of 48, dusk 48 of 48, noon 48 of 48; drawn by seed 0"
    table = [line.split() for line in lines if line.startswith(("featurizer", "classifier"))]
    profile = dspreg.Profile.load(left[0])
    expected = dict(profile.by_layer().set_index("layer").iterrows())
    assert {row[0] for row in table} == set(expected)
    for layer, kind, size, c, null, share, _, *mark in table:
        row = expected[layer]
        assert (kind, size) == (row["kind"], f"{row['parameters']:,}")
        assert [c, null, share] == [
            f"{row['c median']:.2f}",
            f"{row['null median']:.2f}",
            f"{100 * row['insensitive']:.0f}",
        ]
        assert bool(mark) == (row["c median"] < 1.2 * row["null median"])
    assert [float(row[3]) for row in table] == sorted((float(row[3]) for row in table), reverse=True)
    assert f"reliability {profile.reliability:.2f}" in printed.out
    for name in ("layers.png", "histogram.png", "map.png"):
        assert (here / "pics" / name).read_bytes().startswith(b"\x89PNG")
    page = left[1].read_text()
    assert page.count("data:image/png;base64,") == 3
    assert f"{profile.reliability:.2f}" in page
    assert str(here) not in page


def test_json_is_strict_and_has_the_same_numbers(here, folder, capsys):
    measure(*SMALL, "--dataset", f"folder:{folder}", "--json", "--out", "j.safetensors")
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    profile = dspreg.Profile.load("j.safetensors")
    assert found["reliability"] == profile.reliability
    assert found["c_mean"] == pytest.approx(float(profile.over_alive(profile.c).double().mean()))
    assert found["settings"]["about"]["model"] == "small-cnn"
    assert found["settings"]["domains"] == profile.settings["domains"]


def test_a_held_out_domain(here, folder, capsys):
    left = here / "held"
    with_files = ("--out", left / "n.json", "--figures", left, "--html", left / "page.html")
    measure(*SMALL, "--dataset", f"folder:{folder}", "--held-out", "noon", *with_files)
    printed = capsys.readouterr()
    assert printed.err == "device: cpu\n"
    lines = printed.out.splitlines()
    assert "images of dawn: 24, and 24 others held out, of 48" in lines
    assert "images of noon: 24 and 24 others, of 48" in lines
    assert "24 images of each part instead of 512: all have as many as the smallest" in lines
    found = json.loads((left / "n.json").read_text(), parse_constant=pytest.fail)
    assert found["sources"] == ["dawn", "dusk"]
    assert found["verdict"] in lines
    rows = [line.split() for line in lines if line.startswith("s̄ ")]
    for row, suffix in zip(rows, ("", "_less_level"), strict=True):
        each = [found["correlations"]["mean"][f"{o}{suffix}"]["all"]["value"] for o in ("unseen", "sources", "excess")]
        assert row[1:4] == [f"{round(value, 2) + 0.0:+.2f}" for value in each]
    assert (left / "held-out.png").read_bytes().startswith(b"\x89PNG")
    page = (left / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert "Does c know noon?" in page
    assert str(here) not in page + json.dumps(found)
    measure(*SMALL, "--dataset", f"folder:{folder}", "--held-out", "noon", "--json")
    assert json.loads(capsys.readouterr().out) == found


def test_a_run_and_its_target(here, folder, capsys):
    run = trained(folder, here / "for-held-out", steps=2)
    measure("--model", run, "--held-out", "noon", "--batch", "4", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["about"]["domains"] == {
        "dawn": {"part": "in", "images": [39, 9]},  # the splits of the run
        "dusk": {"part": "in", "images": [39, 9]},
        "noon": {"part": "all", "images": [24, 24]},
    }
    assert found["images"] == 8
    measure("--model", run, "--held-out", "dawn", code=2)
    said = capsys.readouterr().err
    assert "the run was trained on 'dawn', so it is not unseen; it did not see: noon" in said


def test_few_images_are_called_few(here, folder, capsys):
    with_one = ("--dataset", f"folder:{folder}", "--images", "4")
    measure(*SMALL, *with_one)
    printed = capsys.readouterr()
    assert "notice: only one batch" in printed.err
    assert "reliability is unknown" in printed.out
    measure(*SMALL, *with_one, "--no-null")
    assert "no null was measured" in capsys.readouterr().out


def test_a_network_in_the_current_folder_and_images_without_classes(here, capsys):
    flat = tree(here / "flat", [f"{d}/{i}.png" for d in ("a", "b") for i in range(6)])
    own = ("--model", "nets_for_measure.make", "--image-size", "16", "--dataset", f"folder:{flat}", "--batch", "3")
    measure(*own, "--of", "output", "--only", "3.*", "--eps", "0.001")
    out = capsys.readouterr().out
    assert "of output" in out
    assert "all 1 layers" in out
    measure(*own, code=3)
    assert "Use --of output" in capsys.readouterr().err
    assert str(here) not in sys.path


def test_a_run_is_measured_as_it_was_trained_and_compared(here, folder, capsys):
    run = trained(folder, here / "run", steps=2)
    measure("--model", run, "--out", "after.safetensors", "--batch", "8")
    assert "dawn 39 of 39 trained on, dusk 39 of 39 trained on" in capsys.readouterr().out
    measure("--model", run, "--out", "again.safetensors", "--batch", "8", "--seed", "3", "--images", "20")
    capsys.readouterr()
    measure("--compare", "after.safetensors", "again.safetensors", "--figures", "two", "--html", "two/page.html")
    out = capsys.readouterr().out
    before, after = (dspreg.Profile.load(f"{name}.safetensors") for name in ("after", "again"))
    assert f"rank correlation of c before and after: {before.compare(after).agreement:.2f}" in out
    assert "dawn 39 and 20" in out
    assert {p.name for p in (here / "two").iterdir()} == {"layers.png", "map.png", "page.html"}
    assert (here / "two" / "page.html").read_text().count("data:image/png;base64,") == 2
    measure("--compare", "after.safetensors", "again.safetensors", "--json")
    assert (
        json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["agreement"] == before.compare(after).agreement
    )


@pytest.fixture(scope="module")
def files(place, folder):
    """A profile, one of another network, and what is none."""
    for name, width in (("one", 5), ("other", 6)):
        net = torch.nn.Linear(4, width)
        data = {d: [(torch.randn(4, 4), torch.randint(5, (4,))) for _ in range(2)] for d in "ab"}
        dspreg.measure(net, data).save(place / f"{name}.safetensors")
    (place / "cut.safetensors").write_bytes((place / "one.safetensors").read_bytes()[:-9])
    (place / "text.safetensors").write_text("hello")
    return place


ON = ("--dataset", "FOLDER")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "give --model NAME|RUN to measure, or --compare"),
        (("--model", "small-cnn", "--compare", "a", "b"), 2, "give --model NAME|RUN to measure, or --compare"),
        (("--model", "small-cnn"), 2, "on which images? Add --dataset"),
        (("--model", "resnt50", "--weights", "none", *ON), 2, "Similar names: resnet50,"),
        (("--model", "runs/nowhere", *ON), 2, "there is no folder runs/nowhere"),
        (("--model", "photos"), 2, "photos holds no run"),
        (("--model", "nets_for_measure.number", *ON), 2, "returned a int; wanted an nn.Module"),
        (("--model", "nets_for_measure.gone", *ON), 2, "has no attribute 'gone'"),
        (("--model", "small-cnn", *ON, "--domain", "noon"), 2, "two or more are wanted; chosen: noon"),
        (("--model", "small-cnn", *ON, "--domain", "noon", "nix"), 2, "Unknown domain 'nix'"),
        (("--model", "small-cnn", "--dataset", "folder:nowhere"), 3, "nowhere does not exist"),
        (("--model", "small-cnn", *ON, "--weights", "gone.safetensors"), 2, "there is no file gone.safetensors"),
        (("--model", "test_resnet", *ON, "--weights", "text.safetensors"), 4, "damaged or not a safetensors file"),
        (("--model", "test_resnet", *ON, "--weights", "one.safetensors"), 4, "does not hold weights of test_resnet"),
        (("--model", "test_resnet.r160_in1k", *ON, "--weights", "hub"), 6, "the hub cannot be reached"),
        (("--model", "small-cnn", *ON, "--layer", "clasifier"), 2, "Did you mean 'classifier'?"),
        (("--model", "small-cnn", *ON, "--only", "nothing*"), 2, "nothing*"),
        (("--model", "small-cnn", *ON, "--draws", "3"), 2, "draws=3 are sign draws of estimator='signed'"),
        (("--model", "small-cnn", *ON, "--out", "photos"), 2, "--out photos is a folder"),
        (("--model", "small-cnn", *ON, "--out", "text.safetensors/p.safetensors"), 6, "can't be written"),
        (("--model", "small-cnn", *ON, "--device", "tpu"), 2, "device='tpu'"),
        (("--model", "small-cnn", *ON, "--held-out", "nix"), 2, "Unknown domain 'nix'"),
        (("--model", "small-cnn", *ON, "--held-out", "noon", "--domain", "noon", "dawn"), 2, "is among --domain"),
        (("--model", "small-cnn", *ON, "--held-out", "noon", "--domain", "dawn"), 2, "two or more are wanted"),
        (("--model", "small-cnn", *ON, "--held-out", "noon", "--layer", "classifier"), 2, "which --held-out does not"),
        (("--compare", "one.safetensors", "one.safetensors", "--held-out", "noon"), 2, "leave out --held-out"),
        (("--compare", "one.safetensors", "gone.safetensors"), 2, "there is no file gone.safetensors"),
        (("--compare", "one.safetensors", "cut.safetensors"), 4, "cut.safetensors is damaged or was changed"),
        (("--compare", "text.safetensors", "one.safetensors"), 4, "text.safetensors is damaged or not a profile"),
        (("--compare", "one.safetensors", "other.safetensors"), 2, "weight is [5, 4] before and [6, 4] after"),
        (("--compare", "one.safetensors", "one.safetensors", "--figures", "f", "--layer", "x"), 2, "layer='x'"),
        (("--compare", "one.safetensors", "one.safetensors", "--out", "p.safetensors"), 2, "measures nothing"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(here, files, folder, capsys, arguments, code, says):
    measure(*(f"folder:{folder}" if each == "FOLDER" else each for each in arguments), code=code)
    printed = capsys.readouterr()
    assert says in printed.err
    assert len(printed.err.removeprefix("device: cpu\n").strip().splitlines()) == 1
    assert printed.out == ""


@pytest.mark.parametrize(
    "wrong", [("--images", "0"), ("--eps", "-1"), ("--eps", "nan"), ("--of", "both"), ("--imges", "3")]
)
def test_usage(capsys, wrong):
    with pytest.raises(SystemExit) as stop:
        measure("--model", "small-cnn", *wrong)
    assert stop.value.code == 2
    assert "usage: dspreg measure" in capsys.readouterr().err


def test_an_unwritable_place_is_said_before_anything_is_measured(here, files, monkeypatch, capsys):
    monkeypatch.setattr("dspreg.inference.profile_run.profile_network", pytest.fail)
    measure(*SMALL, "--dataset", "digits", "--figures", "one.safetensors", code=6)
    assert "can't be written" in capsys.readouterr().err


def test_a_damaged_run_is_not_measured(folder, tmp_path, capsys):
    run = trained(folder, tmp_path / "run", steps=1)
    data = bytearray((run / "selected.safetensors").read_bytes())
    data[-1] ^= 1
    (run / "selected.safetensors").write_bytes(data)
    measure("--model", run, code=4)
    assert "is damaged or was changed" in capsys.readouterr().err


def test_names_from_files_can_t_move_the_terminal_or_the_page(here, capsys):
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("<b>\x1b[31m$x$", torch.nn.Linear(4, 5))

        def forward(self, x):
            return next(self.children())(x)

    data = {d: [(torch.randn(4, 4), torch.randint(5, (4,))) for _ in range(2)] for d in ("a\x1b[2J", "b")}
    for name in ("x", "y"):
        dspreg.measure(Odd(), data).save(here / f"{name}.safetensors")
    measure("--compare", "x.safetensors", "y.safetensors", "--html", "odd.html", "--figures", "odd")
    assert "\x1b" not in capsys.readouterr().out
    assert "<b>" not in (here / "odd.html").read_text()


def test_help_has_examples_and_needs_no_torch():
    program = (
        "import sys\nfrom dspreg.cli import main\ntry:\n    main(['measure', '--help'])\nexcept SystemExit:\n"
        "    print([m for m in ('torch', 'pandas', 'matplotlib', 'rich') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout.splitlines()[-1] == "[]", said.stderr
    assert "examples:\n  dspreg measure --model" in said.stdout


def test_mean_and_std_of_a_network_of_ones_own(here, folder):
    common = ("--dataset", f"folder:{folder}", "--image-size", "16", "--no-null")
    measure("--model", "nets_for_measure.make", *common, "--mean", 0, 0, 0, "--std", 1, 1, 1, "--out", "plain")
    measure("--model", "nets_for_measure.make", *common, "--mean", 0, 0, 0, "--std", 2, 2, 2, "--out", "halved")
    plain, halved = (dspreg.Profile.load(name) for name in ("plain", "halved"))
    assert plain.settings["about"]["std"] == [1, 1, 1]
    assert halved.settings["about"]["std"] == [2, 2, 2]
    assert not torch.equal(plain.c.flat(), halved.c.flat())
    measure("--model", "nets_for_measure.make", *common, "--std", 0, 1, 1, code=2)
