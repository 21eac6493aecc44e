"""`dspreg estimate` on real trainings: the answer, kills, bad input, the page."""

import html
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

import dspreg
from dspreg import ConfigError, DataError, Execution
from dspreg.cli import main
from dspreg.errors import Preempted
from dspreg.inference.evaluate_run import evaluate_run
from dspreg.sites.estimate import MODEL, PAGE, STORE, estimate
from dspreg.sites.plan import FILE
from helpers import tiny

FIXED = {
    "methods": ("SWA", "Agreement+SWA"), "model": "small-cnn", "image_size": 12, "steps": 8, "trials": 1,
    "budget": "9 days", "options": {"batch_size": 4},
}  # fmt: skip
SHORT = {**FIXED, "steps": 2, "options": {"batch_size": 2}}
HOW = Execution(threads=1, workers=0, device="cpu", cache="none", layout="channels-first", fold_bn="never")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


@pytest.fixture(scope="module")
def inbox(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inbox")
    random = np.random.default_rng(5)
    for n in range(6):
        Image.fromarray(random.integers(0, 255, (20, 20, 3)).astype(np.uint8)).save(folder / f"{n}.png")
    return folder


@pytest.fixture(scope="module")
def answer(images, inbox, tmp_path_factory):
    out, said = tmp_path_factory.mktemp("answers") / "result", []
    found = estimate(
        f"folder:{images}", out, **FIXED, check=True, new=f"folder:{inbox}", execution=HOW, say=said.append
    )
    return out, found, said


def test_it_ends_in_a_sentence_a_model_and_an_ordinary_store(answer, images):
    out, found, said = answer
    assert re.match(r"On a site it has never seen, expect about \d+ % \(nine times out of ten between \d+ and \d+\)\. "
                    r"Worst of your sites: \w+, \d+ %\.", found.sentence())  # fmt: skip
    assert "8 trainings with a site held out, 6 with two sites held out, 1 on all sites" in " ".join(said)
    assert re.search(r"--check: every two sites held out together, by .*: about \d", " ".join(said))
    runs = dspreg.load_runs(out / STORE)
    assert sum(len(run.targets) == 1 for run in runs) == 8
    assert sum(len(run.targets) == 2 for run in runs) == 6
    assert all(run.finished for run in runs)
    model, _ = dspreg.load(out / MODEL, which="last")
    assert model.classes == tiny.CLASSES
    card = (out / MODEL / "README.md").read_text()
    assert "On a site it has never seen" in card
    assert found.sentence().split(".")[0] in card


def test_the_accuracy_of_a_site_is_that_of_evaluate_on_all_its_images(answer, images):
    out, found, _ = answer
    run = next(r for r in found.plan.held_out_runs() if r.algorithm == found.chosen.spec and r.targets == ("cedar",))
    scores = evaluate_run(
        out / STORE / "runs" / run.id, dataset=f"folder:{images}", which="last", domains=["cedar"], device="cpu"
    )
    (cedar,) = scores.domains
    assert (cedar.role, cedar.scores.images) == ("unseen", 33)
    ours = next(each for each in found.chosen.sites if each.site == "cedar")
    assert ours.accuracy == cedar.scores.accuracy
    assert found.predictions["cedar"].accuracy == cedar.scores.accuracy


def test_killed_anywhere_it_goes_on_to_the_same_page(answer, images, inbox, tmp_path):
    out, _, _ = answer
    shutil.copy(out / FILE, tmp_path / "plan.json")
    killed = tmp_path / "killed"
    killed.mkdir()
    shutil.copy(out / FILE, killed / FILE)  # the same times, which a probe would measure anew
    stops = 0
    for moment in (40, 150, 60, 90, 300):
        try:
            estimate(
                f"folder:{images}", killed, check=True, new=f"folder:{inbox}", execution=HOW, pause=tiny.stop_at(moment)
            )
        except Preempted:
            stops += 1
    estimate(f"folder:{images}", killed, check=True, new=f"folder:{inbox}", execution=HOW)
    assert stops >= 4
    assert (killed / PAGE).read_bytes() == (out / PAGE).read_bytes()
    assert (killed / MODEL / "last.safetensors").read_bytes() == (out / MODEL / "last.safetensors").read_bytes()
    assert (killed / MODEL / "README.md").read_bytes() == (out / MODEL / "README.md").read_bytes()


def test_the_page_is_whole_by_itself(answer, inbox):
    out, found, _ = answer
    page = (out / PAGE).read_text(encoding="utf-8")
    assert page.count("<script") == 0
    assert str(out.parent) not in page
    assert str(inbox.parent) not in page
    assert f"({inbox.name}, 6 images)" in page
    assert not re.search(r"""(src|href)="(?!data:image/(jpeg|png);base64,|#)""", page)
    assert "default-src 'none'; img-src data:; style-src 'sha256-" in html.unescape(page)
    assert " style=" not in page  # the policy would block it
    assert page.index("On a site it has never seen") < page.index("<table")
    assert "What was done" in page
    assert 'class="chance"' in page
    assert page.count("data:image/jpeg") > 8
    for each in found.checked:
        assert f"{100 * each.interval(0.9).low:.0f} – " in page


def test_what_is_odd_is_kept_on_the_page_in_the_card_and_in_the_answer(answer):
    out, found, said = answer
    results = (json.loads(path.read_text()) for path in (out / STORE / "runs").glob("*/result.json"))
    odd = {each for result in results for each in result.get("remarks", []) if "trained out" in each}
    assert odd  # eight steps are too few
    page = html.unescape((out / PAGE).read_text(encoding="utf-8"))
    card = (out / MODEL / "README.md").read_text()
    gathered = [each for each in found.remarks if "may not be trained out" in each]
    assert gathered
    for each in gathered:
        assert each.partition("): ")[2] in odd
        assert each in page
    chosen = [each for each in gathered if f"of {found.chosen.name} (" in each]
    assert [each.partition(":")[0].partition(" (")[0] in card for each in chosen] == [True] * len(chosen)
    few = [each for each in said if "few images" in each]
    assert few == [each for each in found.remarks if "few images" in each]


def test_without_images_and_without_a_check_there_are_none(answer, images, capsys):
    out, _, _ = answer
    before = (out / PAGE).read_bytes()
    found = estimate(f"folder:{images}", out, execution=HOW, images=False)
    page = (out / PAGE).read_text(encoding="utf-8")
    assert "<img" not in page
    assert found.checked is None
    assert "--check" in page
    (out / PAGE).write_bytes(before)


def test_names_from_folders_are_text(tmp_path):
    root = tiny.make_images(tmp_path / "woods", per_class=4)
    bad = "<b>x&\"'"
    (root / "ash").rename(root / bad)
    for path in root.glob("*/cat"):
        path.rename(path.with_name("<i>cat"))
    estimate(f"folder:{root}", tmp_path / "out", **{**SHORT, "methods": ("SWA",)}, execution=HOW)
    page = (tmp_path / "out" / PAGE).read_text(encoding="utf-8")
    assert "<b>x" not in page
    assert "<i>cat" not in page
    assert "&lt;b&gt;x&amp;" in page


@pytest.mark.parametrize("sites", [2, 3])
def test_few_sites_say_so(sites, tmp_path):
    root = tiny.make_images(tmp_path / "woods", per_class=4)
    for name in tiny.DOMAINS[sites:]:
        shutil.rmtree(root / name)
    found = estimate(f"folder:{root}", tmp_path / "out", **{**SHORT, "methods": ()}, check=True, execution=HOW)
    assert "say very little" in found.how_little()
    if sites == 2:
        assert [each.spec for each in found.methods] == ["SWA"]  # Agreement has one site to compare with none
        assert found.checked is None
        assert "of two sites none is left" in found.record()
    else:
        assert "one time in 4" in found.how_little()


# What can't be answered is told before anything is there.


def refused(dataset, tmp_path, kind, match, **more):
    out = tmp_path / "refused"
    with pytest.raises(kind, match=match):
        estimate(dataset, out, **{**FIXED, **more}, execution=HOW)
    assert not out.exists()


def test_one_site_one_class_and_bad_images_are_refused(tmp_path):
    root = tiny.make_images(tmp_path / "woods", per_class=4)
    (root / "ash" / "cat" / "00.png").write_bytes(b"no image")
    refused(f"folder:{root}", tmp_path, DataError, "00.png")
    for name in ("cat", "dog"):
        shutil.rmtree(root / "ash" / name)
    refused(f"folder:{root}", tmp_path, DataError, "all images of the site 'ash' .*'fox'")
    for name in ("ash", "birch", "cedar"):
        shutil.rmtree(root / name)
    refused(f"folder:{root}", tmp_path, DataError, "has one site, 'elm'.*--target none")


def test_a_budget_without_room_a_method_that_is_none_and_an_inbox_that_is_empty(images, inbox, tmp_path):
    data = f"folder:{images}"
    refused(data, tmp_path, ConfigError, "has no room for the least", methods=("SWA",), budget="0.1s")
    refused(data, tmp_path, ConfigError, "NoSuch", methods=("NoSuch",))
    (tmp_path / "empty").mkdir()
    refused(data, tmp_path, DataError, "there is no image below", new=f"folder:{tmp_path / 'empty'}")
    refused(data, tmp_path, DataError, "does not exist", new=f"folder:{tmp_path / 'nowhere'}")
    refused(data, tmp_path, ConfigError, "Write folder:", new=str(inbox))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"no image")
    refused(data, tmp_path, DataError, "a.png can't be read", new=f"folder:{tmp_path / 'broken'}")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"holdout": 0.0}, "holdout=0: methods are compared on held-out images"),
        ({"steps": 7}, "steps: give --steps"),
        ({"trial": 1}, "trial: give --trials"),
        ({"patience": 3}, "patience.*takes all its steps"),
        ({"no_such": 1}, "unknown option 'no_such'"),
        ({"lr": -1.0}, "lr"),
        ({"batch_size": "4"}, "batch_size"),
    ],
)
def test_settings_that_are_its_own_are_refused_before_an_image_is_read(options, says, tmp_path):
    refused("folder:nowhere", tmp_path, ConfigError, says, options=options)


def test_the_answer_does_not_go_among_the_images(images):
    with pytest.raises(ConfigError, match="lies inside the data set"):
        estimate(f"folder:{images}", images / "result", **FIXED, execution=HOW)
    assert not (images / "result").exists()


def test_two_sites_are_too_few_for_a_method_that_compares_them(tmp_path):
    root = tiny.make_images(tmp_path / "woods", per_class=4)
    for name in tiny.DOMAINS[2:]:
        shutil.rmtree(root / name)
    refused(f"folder:{root}", tmp_path, ConfigError, "compares sites with each other")


def test_the_folder_of_other_images_is_left_alone(answer, tmp_path):
    out, _, _ = answer
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    other = tiny.make_images(tmp_path / "woods", seed=1)
    with pytest.raises(ConfigError, match="other images at ash, birch, cedar"):
        estimate(f"folder:{other}", out, execution=HOW)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


# As it is typed.


def test_typed_it_prints_the_plan_and_the_answer(images, tmp_path, capsys):
    line = ["estimate", f"folder:{images}", "--out", str(tmp_path / "out"), "--methods", "SWA", "--model", "small-cnn",
            "--image-size", "12", "--steps", "4", "--trials", "1", "--budget", "9h", "--set", "batch_size=4",
            "--jobs", "0",
            "--threads", "1", "--device", "cpu"]  # fmt: skip
    assert main([*line, "--dry-run"]) == 0
    assert not (tmp_path / "out").exists()
    assert "4 trainings with a site held out, 1 on all sites: about" in capsys.readouterr().out
    assert main(line) == 0
    printed = capsys.readouterr().out
    assert "On a site it has never seen, expect about" in printed
    assert "sources' held-out images" in printed
    assert f"page: {tmp_path / 'out' / PAGE}" in printed
    assert "  ash held out, SWA, trial 0: done\n" in printed


@pytest.mark.parametrize(
    ("more", "says", "code"),
    [
        (["--budget", "soon"], "wanted a time such as 2h", 2),
        (["--methods", "auto", "SWA"], "auto chooses by itself", 2),
        (["--set", "steps=3"], "give --steps", 2),
        (["--set", "targets=ash"], "every site is held out in turn", 2),
        (["--set", "holdout=0"], "the final model sees all images anyway", 2),
        (["--set", "init=runs/old"], "may have seen the sites", 2),
        (["--set", "train=mask:c.json"], "may have seen the sites", 2),
        (["--set", "algorithm=ERM"], "give --methods", 2),
        (["--set", "device=cpu"], "unknown option", 2),
        (["--trials", "0"], "--trials", 2),
        (["--methods", "NoSuch"], "NoSuch", 2),
    ],
)
def test_typing_errors_are_told(images, tmp_path, capsys, more, says, code):
    assert main(["estimate", f"folder:{images}", "--out", str(tmp_path / "out"), "--device", "cpu", *more]) == code
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_not_there_is_told(tmp_path, capsys):
    assert main(["estimate", f"folder:{tmp_path / 'nowhere'}", "--out", str(tmp_path / "out")]) == 3
    assert "does not exist" in capsys.readouterr().err
    assert main(["estimate", f"folder:{tmp_path}"]) == 2
    assert "Add --out DIR" in capsys.readouterr().err
