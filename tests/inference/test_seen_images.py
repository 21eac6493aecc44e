"""Images that a run was trained on are known by what is in them, whatever data set they come through."""

import csv
import shutil

import numpy as np
import pytest
import torch

import dspreg
from dspreg import Notice
from dspreg.data import DomainDataset, Folder
from dspreg.data.decode import decode_image
from dspreg.data.fingerprint import hash_pixels
from dspreg.errors import IntegrityError
from dspreg.inference import seen_images
from dspreg.inference.evaluate_run import evaluate_run
from dspreg.inference.metric_files import as_json
from dspreg.io.atomic_files import sha256_of_file
from dspreg.protocol.description import RunDescription
from dspreg.runs.folder import RunFolder
from dspreg.runs.trained_images import NAME, TrainedImages, read_trained_images
from dspreg.training.parts import split_domain
from helpers.small_runs import photos, trained

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return trained(folder, tmp_path_factory.mktemp("run") / "run")


def files_trained_on(run, folder):
    """File by file: the "in" split of each source."""
    described = RunDescription.from_json(RunFolder(run).description())
    found = []
    for position, name in enumerate(("dawn", "dusk")):
        images = Folder(folder).domain(name)
        found += [images.files[i] for i in split_domain(images, described.config, position)[0]]
    return found


def test_a_run_keeps_the_hashes_of_what_it_was_trained_on_and_of_nothing_else(run, folder):
    kept = read_trained_images(RunFolder(run))
    expected = {bytes.fromhex(sha256_of_file(file))[:8] for file in files_trained_on(run, folder)}
    assert (kept.hashed, kept.known) == ("files", expected)
    assert len(expected) == 58  # of 72 in two sources
    assert NAME in RunFolder(run).result()["files"]
    target = Folder(folder).domain("noon")
    assert not any(target.hash(i) in kept for i in range(len(target)))


def mixed(run, folder, place, own=10):
    """Some trained images under new names in new domains, some held out, some of the target."""
    used = files_trained_on(run, folder)
    rest = [file for file in sorted(folder.rglob("*.png")) if file not in used]
    for i, file in enumerate([*used[:own], *rest[:6], *rest[-4:]]):
        new = place / ("here" if i % 2 else "there") / file.parent.name / f"renamed-{i}.png"
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, new)
    return place


def by_hand(run, files):
    model, transform = dspreg.load(run)
    with torch.no_grad():
        said = [model.classes[int(model(transform(decode_image(f))[None]).argmax())] for f in files]
    return np.mean([a == f.parent.name for a, f in zip(said, files, strict=True)])


def test_images_of_other_names_in_other_domains_are_known_and_scored_without(run, folder, tmp_path):
    place = mixed(run, folder, tmp_path / "mixed")
    used = {sha256_of_file(file) for file in files_trained_on(run, folder)}
    with pytest.warns(Notice, match=r"the run was trained on 5 of the 10 images of 'here' that are evaluated"):
        found = evaluate_run(run, dataset=f"folder:{place}")
    for each in found.domains:
        files = sorted((place / each.domain).rglob("*.png"))
        others = [file for file in files if sha256_of_file(file) not in used]
        assert (each.role, each.trained_on, each.scores.images) == ("partly trained on", 5, 10)
        assert each.scores.accuracy == by_hand(run, files)
        assert each.without.scores.images == len(others) == 5
        assert each.without.scores.accuracy == by_hand(run, others)
    assert found.unseen == ()
    told = as_json(found)["domains"]["here"]
    assert (told["trained_on"], told["without_trained_on"]["images"]) == (5, 5)


def test_the_same_through_a_table(run, folder, tmp_path):
    place = mixed(run, folder, tmp_path / "mixed")
    with (tmp_path / "list.csv").open("w", newline="") as file:
        rows = [[p, p.parent.name, "new"] for p in sorted(place.rglob("*.png"))]
        csv.writer(file).writerows([["path", "label", "domain"], *rows])
    (new,) = evaluate_run(run, dataset=f"index:{tmp_path / 'list.csv'}").domains
    assert (new.trained_on, new.scores.images, new.without.scores.images) == (10, 20, 10)


class Loose(DomainDataset):
    """Of one's own: PIL images that no file is known of."""

    name, domains, classes, place = "loose", ("all",), ("cat", "dog", "owl"), None

    def domain(self, name):
        files = sorted(self.place.rglob("*.png"))
        return [(decode_image(file), self.classes.index(file.parent.name)) for file in files]


def test_the_same_through_a_class_of_ones_own_by_pixels(run, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Loose, "place", mixed(run, folder, tmp_path / "mixed"))
    (found,) = evaluate_run(run, dataset=f"{__name__}.Loose").domains
    assert (found.trained_on, found.without.scores.images) == (10, 10)


def test_runs_that_kept_no_list_find_out_from_their_own_data_or_say_that_they_can_not(folder, tmp_path, monkeypatch):
    own = tmp_path / "photos"
    shutil.copytree(folder, own)
    run = trained(own, tmp_path / "run")
    place = mixed(run, own, tmp_path / "mixed")
    monkeypatch.setattr(seen_images, "read_trained_images", lambda _: None)  # as of earlier versions
    assert [d.trained_on for d in evaluate_run(run, dataset=f"folder:{place}").domains] == [5, 5]
    own.rename(tmp_path / "elsewhere")
    with pytest.warns(Notice, match="it is not known which images of 'here' the run was trained on"):
        found = evaluate_run(run, dataset=f"folder:{place}")
    assert [(d.trained_on, d.without) for d in found.domains] == [(None, None)] * 2


def test_a_data_set_of_trained_images_alone_has_no_score_for_new_ones(run, folder, tmp_path, capsys):
    from dspreg.cli import main

    for i, file in enumerate(files_trained_on(run, folder)[::7]):
        new = tmp_path / "seen" / "d" / file.parent.name / f"{i}.png"
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, new)
    command = ["evaluate", str(run), "--dataset", f"folder:{tmp_path / 'seen'}", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert "d: the run was trained on all 9 images; this is no estimate for new ones" in capsys.readouterr().out


def test_the_command_shows_both_numbers(run, folder, tmp_path, capsys):
    from dspreg.cli import main

    place = mixed(run, folder, tmp_path / "mixed")
    assert main(["evaluate", str(run), "--dataset", f"folder:{place}", "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert text.count("not trained on") >= 2
    assert "here: the run was trained on 5 of the 10 images, told by their contents" in text


def test_images_that_a_table_sets_apart_are_what_is_scored_of_a_source(folder, tmp_path):
    with (tmp_path / "list.csv").open("w", newline="") as file:
        names = sorted(folder.rglob("*.png"))
        rows = [[p, p.parent.name, p.parent.parent.name, "test" if i % 4 == 0 else ""] for i, p in enumerate(names)]
        csv.writer(file).writerows([["path", "label", "domain", "split"], *rows])
    run = trained(folder, tmp_path / "run", dataset=f"index:{tmp_path / 'list.csv'}")
    found = evaluate_run(run)
    assert [(d.domain, d.part, d.scores.images, d.trained_on) for d in found.domains] == [
        ("dawn", "out", 5, 0), ("dawn", "test", 9, 0), ("dusk", "out", 5, 0), ("dusk", "test", 9, 0),
        ("noon", "all", 36, 0),
    ]  # fmt: skip
    recorded = RunFolder(run).result()["selected"]["accuracy"]
    assert [d.scores.accuracy for d in found.domains if d.part == "test"] == [
        recorded[d]["test"] for d in ("dawn", "dusk")
    ]
    assert as_json(found)["test"]["dusk"]["images"] == 9
    # with other parts it is not known by the table any more what was held out, but by the images
    text = (tmp_path / "list.csv").read_text().replace(",test", ",train")
    (tmp_path / "list.csv").write_text(text)
    dawn, dusk, noon = evaluate_run(run).domains
    assert [(d.part, d.role) for d in (dawn, dusk, noon)] == [*[("all", "changed source")] * 2, ("all", "unseen")]
    assert [(d.trained_on, d.without.scores.images) for d in (dawn, dusk)] == [(22, 14)] * 2
    assert noon.trained_on == 0


def test_the_file_says_what_it_is():
    made = TrainedImages.of("pixels", ["ab" * 32, "00" * 32, "ab" * 32])
    data = made.to_bytes()
    assert data == b"dspreg.images/1 pixels\n" + bytes(8) + b"\xab" * 8
    assert TrainedImages.from_bytes(data, "x") == made
    assert "ab" * 32 in made
    assert "cd" * 32 not in made
    for bad in (data[:-1], b"dspreg.images/2 pixels\n", b"dspreg.images/1 words\n", b""):
        with pytest.raises(IntegrityError, match=r"wanted dspreg\.images/1"):
            TrainedImages.from_bytes(bad, "x")


def test_pixels_are_the_same_however_they_are_saved(tmp_path):
    from helpers.images import picture

    picture(3, (20, 10)).save(tmp_path / "a.png")
    picture(3, (20, 10)).save(tmp_path / "b.bmp")
    picture(3, (10, 20)).save(tmp_path / "c.png")
    a, b, c = (hash_pixels(decode_image(tmp_path / name)) for name in ("a.png", "b.bmp", "c.png"))
    assert a == b != c
