"""Scores against loops over images, and what an evaluation may count."""

import csv
import json
import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

import dspreg
from dspreg.data import Folder
from dspreg.data.annotations import Annotations
from dspreg.data.splits import split_grouped, split_stratified
from dspreg.errors import ConfigError, DataError
from dspreg.inference import evaluate_run as assessment
from dspreg.inference.adapt_bn import adapted, batch_norms
from dspreg.inference.confusion import draw
from dspreg.inference.evaluate_run import DomainScores, RunEvaluation, evaluate_run
from dspreg.inference.metric_files import save
from dspreg.inference.metrics import Scores, scores_of
from dspreg.inference.seen_images import split_source
from dspreg.io.atomic_files import read_json
from dspreg.protocol.description import RunDescription
from dspreg.runs.folder import RunFolder
from helpers.small_runs import bits, photos, trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return trained(folder, tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def bn_run(folder, tmp_path_factory):
    return trained(folder, tmp_path_factory.mktemp("run") / "bn", model="test_resnet", image_size=32, frozen_bn=True)


# The numbers.


def naive(logits, labels):
    """Every score, one image at a time, in Python's own numbers."""
    n, right, loss, bins, classes = len(labels), 0, 0.0, {}, {}
    for row, y in zip(logits.tolist(), labels.tolist(), strict=True):
        total = sum(math.exp(v - max(row)) for v in row)
        p = [math.exp(v - max(row)) / total for v in row]
        hit = p.index(max(p)) == y
        right += hit
        loss -= math.log(p[y])
        b = next(b for b in range(15) if b / 15 < max(p) <= (b + 1) / 15)
        bins.setdefault(b, []).append((hit, max(p)))
        classes.setdefault(y, []).append(hit)
    ece = sum(len(v) / n * abs(sum(h for h, _ in v) / len(v) - sum(c for _, c in v) / len(v)) for v in bins.values())
    return right / n, np.mean([np.mean(v) for v in classes.values()]), ece, loss / n


@pytest.mark.parametrize(("n", "classes", "scale"), [(1, 2, 1), (40, 3, 0.3), (500, 7, 2), (200, 5, 12)])
def test_scores_are_those_of_a_loop(n, classes, scale):
    g = torch.Generator().manual_seed(n)
    logits = (torch.randn(n, classes, generator=g) * scale).double()
    labels = torch.randint(classes, (n,), generator=g)
    s = scores_of(logits, labels)
    np.testing.assert_allclose([s.accuracy, s.class_mean, s.calibration_error, s.log_loss], naive(logits, labels))
    pieces = Scores.none(classes)
    for part in range(0, n, 17):
        pieces = pieces.adding(logits[part : part + 17], labels[part : part + 17])
    assert (pieces.confusion == s.confusion).all()
    np.testing.assert_allclose(pieces.bins, s.bins)
    np.testing.assert_allclose(pieces.log_loss, s.log_loss)


def test_a_model_that_is_sure_and_right_has_no_error():
    s = scores_of(torch.eye(3) * 1e4, torch.arange(3))
    assert (s.accuracy, s.calibration_error, s.log_loss) == (1, 0, 0)


def test_a_model_that_is_sure_and_wrong_has_all_of_it():
    s = scores_of(torch.eye(3).roll(1, 0) * 1e3, torch.arange(3))
    assert (s.accuracy, s.calibration_error, s.log_loss) == (0, 1, 1e3)


def test_confusion_by_hand():
    logits = torch.tensor([[2.0, 1, 0], [0, 2, 0], [3, 0, 0], [0, 0, 1]])
    s = scores_of(logits, torch.tensor([0, 0, 0, 2]))
    assert s.confusion.tolist() == [[2, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert s.by_class == {0: (3, 2 / 3), 2: (1, 1.0)}
    assert s.class_mean == pytest.approx(5 / 6)  # the class without images does not count


def test_outputs_that_are_not_numbers_are_refused():
    with pytest.raises(DataError, match="outputs for 1 images are not finite"):
        scores_of(torch.tensor([[0.0, 1], [float("nan"), 0]]), torch.tensor([0, 1]))


# What is scored.


def by_hand(run, folder, domain, positions=None):
    """Share recognised, image by image, through `dspreg.load` alone."""
    model, transform = dspreg.load(run)
    images = Folder(folder).domain(domain)
    at = range(len(images)) if positions is None else positions
    with torch.no_grad():
        return np.mean([int(model(transform(images[i][0])[None]).argmax()) == images[i][1] for i in at])


def held_out(position, trial=0):
    """Of 36 images, 12 of each class."""
    return split_grouped([c for c in range(3) for _ in range(12)], Annotations(), trial, position)[1]


def test_sources_are_scored_on_held_out_images_and_targets_whole(run, folder):
    found = evaluate_run(run)
    assert found.dataset == "photos"
    assert [(d.domain, d.part, d.role, d.scores.images) for d in found.domains] == [
        ("dawn", "out", "source", 7),
        ("dusk", "out", "source", 7),
        ("noon", "all", "unseen", 36),
    ]
    for position, each in enumerate(found.domains):
        out = held_out(position) if each.part == "out" else None
        assert each.scores.accuracy == by_hand(run, folder, each.domain, out)


def test_held_out_accuracy_is_that_of_training(run):
    recorded = RunFolder(run).result()["selected"]["accuracy"]
    for each in evaluate_run(run).domains[:2]:
        assert each.scores.accuracy == recorded[each.domain]["out"]


def test_stratified_runs_are_cut_as_they_were(folder, tmp_path):
    run = trained(folder, tmp_path / "run", split="stratified", steps=1, trial=3)
    described = RunDescription.from_json(RunFolder(run).description())
    held = split_source(described, Folder(folder).domain("dusk"), "dusk")[1]
    assert held == split_stratified([c for c in range(3) for _ in range(12)], 3, 1)[1]


def test_a_source_is_known_by_its_images_wherever_they_lie(run, folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "dusk").symlink_to(folder / "dusk")
    (tmp_path / "elsewhere" / "aaa").symlink_to(folder / "noon")  # before it, so that its position is another
    found = evaluate_run(run, dataset=f"folder:{tmp_path / 'elsewhere'}")
    assert [(d.domain, d.part) for d in found.domains] == [("aaa", "all"), ("dusk", "out")]
    assert found.domains[1].scores.accuracy == by_hand(run, folder, "dusk", held_out(1))


def test_a_source_with_other_images_is_told_of(run, tmp_path):
    other = photos(tmp_path / "other", domains=("dawn",), seed=5)
    found = evaluate_run(run, dataset=f"folder:{other}")
    assert (found.domains[0].part, found.domains[0].role) == ("all", "changed source")
    assert (found.domains[0].trained_on, found.domains[0].without) == (0, None)


def test_classes_are_matched_by_name(run, tmp_path):
    fewer = photos(tmp_path / "fewer", domains=("night",), classes=("dog", "owl"), seed=11)
    found = evaluate_run(run, dataset=f"folder:{fewer}")
    assert found.classes == ("cat", "dog", "owl")
    assert found.domains[0].scores.confusion.sum(1).tolist() == [0, 12, 12]
    images, (model, transform) = Folder(fewer).domain("night"), dspreg.load(run)
    with torch.no_grad():
        said = [model.classes[int(model(transform(image)[None]).argmax())] for image, _ in images]
    assert found.domains[0].scores.accuracy == np.mean(
        [a == ("dog", "owl")[y] for a, (_, y) in zip(said, images, strict=True)]
    )


def test_strange_classes_are_named(run, tmp_path):
    strange = photos(tmp_path / "strange", domains=("night",), classes=("dog", "yak"))
    with pytest.raises(DataError, match=r"model does not know: 'yak'. It knows 'cat', 'dog', 'owl'"):
        evaluate_run(run, dataset=f"folder:{strange}")


def test_only_some_domains(run):
    assert [d.domain for d in evaluate_run(run, domains=["noon"]).domains] == ["noon"]
    with pytest.raises(ConfigError, match="Unknown domain 'moon'"):
        evaluate_run(run, domains=["moon"])


def test_a_data_set_that_moved(folder, tmp_path):
    copy = photos(tmp_path / "copy")
    run = trained(copy, tmp_path / "run", steps=1)
    copy.rename(tmp_path / "moved")
    with pytest.raises(DataError, match=r"That is the run's own data set. If it moved, say --dataset"):
        evaluate_run(run)
    assert len(evaluate_run(run, dataset=f"folder:{tmp_path / 'moved'}").domains) == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_image_is_named_without_a_traceback(run, tmp_path, workers):
    night = photos(tmp_path / "data", domains=("night",), each=2)
    (night / "night" / "cat" / "0.png").write_text("<html>")
    with pytest.raises(DataError, match=r"^\S*0.png is not a usable image: an HTML page") as error:
        evaluate_run(run, dataset=f"folder:{night}", workers=workers)
    assert "Traceback" not in str(error.value)


def test_evaluating_leaves_run_and_model_as_they_were(bn_run, monkeypatch):
    files = {p: p.read_bytes() for p in bn_run.rglob("*") if p.is_file()}
    kept = []
    monkeypatch.setattr(assessment, "load", lambda *at, **how: kept.append(dspreg.load(*at, **how)) or kept[-1])
    fresh, random = bits(dspreg.load(bn_run)[0]), torch.get_rng_state()
    evaluate_run(bn_run)
    evaluate_run(bn_run, adapt="bn")
    assert [bits(model) for model, _ in kept] == [fresh, fresh]
    assert torch.equal(torch.get_rng_state(), random)
    assert {p: p.read_bytes() for p in bn_run.rglob("*") if p.is_file()} == files


# Adapted batch norm.


def test_adapted_statistics_by_hand(bn_run, folder):
    """The first batch norm sees the convolution of the plain images: its statistics can be had with numpy."""
    model, transform = dspreg.load(bn_run)
    before = bits(model)
    images = Folder(folder).domain("noon")
    part = assessment.DomainSplit("noon", images, range(36), transform)
    first = batch_norms(model)[0]
    seen = []
    hook = first.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().double().numpy()))
    with adapted(model, part, size=10):  # four batches of nine
        mean, variance = first.running_mean.numpy().copy(), first.running_var.numpy().copy()
        assert not any(norm.training for norm in batch_norms(model))
    hook.remove()
    assert [len(batch) for batch in seen] == [9, 9, 9, 9]
    axes = (0, 2, 3)
    np.testing.assert_allclose(mean, np.mean([b.mean(axes) for b in seen], axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(variance, np.mean([b.var(axes, ddof=1) for b in seen], axis=0), rtol=1e-4)
    everything = np.concatenate(seen)
    np.testing.assert_allclose(mean, everything.mean(axes), rtol=1e-4, atol=1e-6)  # each image once, all alike
    # and the inputs are those of the plain images: the convolution of their sum
    conv = next(m for m in model.modules() if isinstance(m, torch.nn.Conv2d))
    with torch.no_grad():
        x = torch.stack([transform(Image.open(f).convert("RGB")) for f in images.files])
        np.testing.assert_allclose(conv(x).double().numpy().mean(axes), everything.mean(axes), rtol=1e-3, atol=1e-5)
    assert bits(model) == before


def test_adapting_changes_scores_and_nothing_else(bn_run):
    plain, changed = evaluate_run(bn_run), evaluate_run(bn_run, adapt="bn")
    assert [d.part for d in plain.domains] == [d.part for d in changed.domains]
    assert all(a.scores.log_loss != b.scores.log_loss for a, b in zip(plain.domains, changed.domains, strict=True))
    again = evaluate_run(bn_run, adapt="bn", domains=["noon"])
    assert again.domains[0].scores.log_loss == changed.domains[2].scores.log_loss


def test_a_network_without_batch_norm_has_nothing_to_adapt(run):
    with pytest.raises(ConfigError, match="no batch norm"):
        evaluate_run(run, adapt="bn")


def test_a_failure_while_adapting_gives_everything_back(bn_run, folder):
    model, transform = dspreg.load(bn_run)
    before = bits(model)
    images = Folder(folder).domain("noon")
    images.files[20] = images.files[0].with_name("gone.png")
    part = assessment.DomainSplit("noon", images, range(36), transform)
    with pytest.raises(DataError, match=r"gone.png"), adapted(model, part, size=4):
        pass
    assert bits(model) == before


# Files.


def read_csv(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_files_hold_the_numbers(run, tmp_path):
    found = evaluate_run(run)
    save(found, tmp_path / "a" / "b")
    written = read_json(tmp_path / "a" / "b" / "scores.json")
    noon = written["domains"]["noon"]
    assert noon["accuracy"] == found.domains[2].scores.accuracy
    assert noon["fingerprint"] == RunFolder(run).description()["data"]["fingerprints"]["noon"]
    assert written["mean"]["accuracy"] == pytest.approx(np.mean([d.scores.accuracy for d in found.domains]))
    assert written["mean_unseen"]["accuracy"] == noon["accuracy"]
    assert written["worst"]["accuracy"] == min(d.scores.accuracy for d in found.domains)
    assert json.dumps(written)
    rows = read_csv(tmp_path / "a" / "b" / "per_class.csv")
    assert sum(int(row["images"]) for row in rows) == 50
    cells = read_csv(tmp_path / "a" / "b" / "confusion.csv")
    right = sum(int(c["images"]) for c in cells if c["true"] == c["predicted"] and c["domain"] == "noon")
    assert right / 36 == noon["accuracy"]
    assert (tmp_path / "a" / "b" / "confusion.png").read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in (tmp_path / "a" / "b").iterdir() if p.name.startswith(".")] == []


def made_up(classes, domains=2):
    """An assessment with some images everywhere but in the second class of the first domain."""
    g = torch.Generator().manual_seed(0)
    judged = []
    for d in range(domains):
        y = torch.randint(classes, (400,), generator=g)
        y[y == 1] = 1 if d else 0
        scores = scores_of(torch.randn(400, classes, generator=g), y)
        judged.append(DomainScores(f"domain {d}", "all", "unseen", "", scores))
    names = ("$a_{$", "=1+1", "\x1b[31m", "漢", "x" * 80, *map(str, range(400)))[:classes]
    return RunEvaluation("id", "selected", 0, "made up", names, "none", False, tuple(judged))


@pytest.mark.parametrize(("classes", "domains"), [(2, 1), (5, 4), (16, 2)])
def test_pictures_have_one_panel_per_domain_and_no_labels_upon_another(classes, domains):
    figure = draw(made_up(classes, domains))
    panels = [axes for axes in figure.axes if axes.get_visible() and axes.get_title()]
    assert len(panels) == domains
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # of 漢, which the font has not
        canvas.draw()
    renderer = canvas.get_renderer()
    for axes in panels:
        for labels in (axes.get_yticklabels(), axes.get_xticklabels()):
            boxes = [label.get_window_extent(renderer) for label in labels]
            assert not any(a.overlaps(b) for a, b in pairwise(boxes))
    tight = [axes.get_tightbbox(renderer) for axes in panels]
    assert not any(a.overlaps(b) for i, a in enumerate(tight) for b in tight[i + 1 :])


def test_hostile_names_do_no_harm_in_files(tmp_path):
    save(made_up(5), tmp_path)
    text = (tmp_path / "per_class.csv").read_text(encoding="utf-8")
    assert "'=1+1" in text
    assert "\x1b" not in text
    assert read_json(tmp_path / "scores.json")["domains"]["domain 1"]["classes"]["=1+1"]["images"] > 0
