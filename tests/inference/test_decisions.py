"""Intervals, operating points, temperatures and flags, each against a plain loop or a formula."""

import csv
import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import beta
from sklearn.metrics import average_precision_score, balanced_accuracy_score, f1_score, roc_auc_score

import dspreg
from dspreg.cli import main
from dspreg.data import Folder
from dspreg.data.loader import DomainSplit
from dspreg.errors import ConfigError, DataError, IntegrityError, Notice
from dspreg.inference.answers import Answers, answers_of
from dspreg.inference.calibrate import fit_temperature
from dspreg.inference.evaluate_run import DomainScores, mean_interval
from dspreg.inference.image_files import image_files
from dspreg.inference.intervals import interval_of, interval_of_share, resampled_figures, weighted_figures
from dspreg.inference.metric_files import by_metadata
from dspreg.inference.metrics import scores_of
from dspreg.inference.operating_points import Demand, operating_points, threshold_for
from dspreg.io.atomic_files import read_json
from dspreg.metrics import METRICS
from dspreg.runs.folder import CALIBRATION, RunFolder
from helpers.small_runs import photos, trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return trained(folder, tmp_path_factory.mktemp("run") / "run")


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def answers(n, classes, seed=0, rows=None, scale=1.0):
    """Labels and log-probabilities that know something about them; of few different rows, so that there are ties."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, n)
    logits = random.normal(size=(n, classes)) * scale
    logits[np.arange(n), labels] += 0.7
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return labels, log_p[random.integers(0, rows, n)] if rows else log_p


def domain(name, labels, log_p, part="all", groups=None, metadata=None):
    role = {"all": "unseen", "out": "source"}[part]
    names = tuple(f"{n}.png" for n in range(len(labels)))
    known = Answers(labels, log_p, names, groups, metadata or {})
    scores = scores_of(torch.from_numpy(log_p), torch.from_numpy(labels))
    return DomainScores(name, part, role, f"print of {name}", scores, known)


# Intervals.


@pytest.mark.parametrize(("n", "classes", "rows"), [(25, 2, None), (40, 4, None), (30, 3, 6)])
def test_weighted_figures_are_scikit_learns_on_the_resample(n, classes, rows):
    labels, log_p = answers(n, classes, seed=n, rows=rows)
    weights = np.random.default_rng(1).multinomial(n, np.full(n, 1 / n), size=6)
    found = weighted_figures(weights, labels, log_p)
    for b, w in enumerate(weights):
        drawn = np.repeat(np.arange(n), w)
        y, q = labels[drawn], log_p[drawn]
        called, p = q.argmax(1), np.exp(q)
        there = [c for c in range(classes) if 0 < (y == c).sum() < len(y)]
        expected = {
            "accuracy": np.mean(called == y),
            "balanced": np.mean([np.mean(called[y == c] == c) for c in sorted(set(y))]),
            "macro-f1": f1_score(y, called, average="macro"),
            "log-loss": -np.mean(q[np.arange(len(y)), y]),
            "auroc": np.mean([roc_auc_score(y == c, np.round(p[:, c], 12)) for c in there]),
            "average-precision": np.mean([average_precision_score(y == c, np.round(p[:, c], 12)) for c in there]),
        }
        assert expected["balanced"] == pytest.approx(balanced_accuracy_score(y, called))
        for name, value in expected.items():
            assert found[name][b] == pytest.approx(value, rel=1e-12), name


def test_all_weights_one_are_the_figures_themselves():
    labels, log_p = answers(60, 3)
    found = weighted_figures(np.ones((1, 60), int), labels, log_p)
    for name, values in found.items():
        assert values[0] == pytest.approx(METRICS[name].of(labels, log_p), rel=1e-12)


def test_the_interval_of_a_share_is_as_wide_as_it_should_be():
    """The standard error of a share of N images is √(p(1 − p)/N); the bootstrap has the same, within its own noise."""
    labels, log_p = answers(400, 3, seed=4)
    share = float(np.mean(log_p.argmax(1) == labels))
    values = resampled_figures(labels, log_p)["accuracy"]
    assert len(values) == 1_000
    assert np.std(values) == pytest.approx(math.sqrt(share * (1 - share) / 400), rel=0.1)
    low, high = interval_of(values)
    assert low < share < high


def test_groups_are_drawn_whole():
    """Each image twenty times over: as twenty images it seems certain, as one group it is what it is."""
    labels, log_p = answers(30, 2, seed=2)
    many, more, groups = np.repeat(labels, 20), np.repeat(log_p, 20, axis=0), np.repeat(np.arange(30), 20)
    alone = np.std(resampled_figures(labels, log_p)["accuracy"])
    grouped = np.std(resampled_figures(many, more, groups.tolist())["accuracy"])
    ignored = np.std(resampled_figures(many, more)["accuracy"])
    assert grouped == pytest.approx(alone, rel=0.1)
    assert ignored == pytest.approx(alone / math.sqrt(20), rel=0.1)


def test_what_is_all_right_may_still_be_wrong():
    """Clopper and Pearson by SciPy; the bootstrap would say 100 to 100."""
    low, high = interval_of_share(1.0, np.ones(1_000), 17)
    assert (low, high) == (pytest.approx(beta.ppf(0.025, 17, 1)), 1.0)
    assert interval_of_share(0.0, np.zeros(1_000), 17) == (0.0, pytest.approx(beta.ppf(0.975, 1, 17)))


def test_one_group_has_no_interval_and_resamples_are_always_the_same():
    labels, log_p = answers(30, 3)
    assert resampled_figures(labels, log_p, ["a"] * 30) == {}
    one, two = (resampled_figures(labels, log_p, key="k")["auroc"] for _ in range(2))
    assert (one == two).all()
    assert (one != resampled_figures(labels, log_p, key="other")["auroc"]).any()


def test_the_interval_of_a_mean_is_narrower_and_of_its_domains_alone():
    every = [domain(f"d{n}", *answers(80, 3, seed=n)) for n in range(4)]
    low, high = mean_interval(every, "accuracy")
    alone = [each.interval("accuracy") for each in every]
    assert low < np.mean([each.scores.accuracy for each in every]) < high
    assert high - low == pytest.approx(np.mean([b - a for a, b in alone]) / 2, rel=0.15)  # √4


def test_an_evaluation_has_them_beside_its_figures(run):
    found = dspreg.evaluate(run)
    each = found.domains[2]
    assert each.figures["accuracy"] == each.scores.accuracy
    assert each.figures["log-loss"] == pytest.approx(each.scores.log_loss, rel=1e-12)
    assert each.figures["balanced"] == pytest.approx(each.scores.class_mean, rel=1e-12)
    low, high = each.interval("accuracy")
    assert low <= each.scores.accuracy <= high
    assert (len(found.unseen), len(found.sources)) == (1, 2)


# What is known of the images.


class Grouped:
    """The images of a folder with groups and metadata, as a data set may say them."""

    def __init__(self, images):
        self.images, self.labels, self.names = images, images.labels, images.names
        self.groups = [f"patient {n // 4}" for n in range(len(images))]
        self.metadata = {
            "scanner": ["A" if n % 3 else "B" for n in range(len(images))],
            "day": list(range(len(images))),  # of too many values to be kinds
        }

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i]


def test_groups_and_metadata_stay_with_their_images(folder):
    images = Grouped(Folder(folder).domain("noon"))
    positions = [30, 2, 7, 35]
    labels, log_p = np.array([images.labels[i] for i in positions]), answers(4, 3)[1]
    found = answers_of(DomainSplit("noon", images, positions, None), labels, log_p)
    assert found.groups == ("patient 7", "patient 0", "patient 1", "patient 8")
    assert found.names == tuple(images.names[i] for i in positions)
    assert found.metadata["scanner"] == ("B", "A", "A", "A")
    assert found.independent == 4


def test_accuracy_by_metadata_is_that_of_a_loop():
    labels, log_p = answers(60, 3)
    metadata = {"scanner": tuple("AB"[n % 3 == 0] for n in range(60)), "day": tuple(range(60))}
    rows = list(by_metadata([domain("x", labels, log_p, metadata=metadata)]))
    assert [row[:4] for row in rows] == [("x", "scanner", "A", 40), ("x", "scanner", "B", 20)]
    for _, _, value, images, share, (low, high) in rows:
        right = [log_p[i].argmax() == labels[i] for i in range(60) if metadata["scanner"][i] == value]
        assert (len(right), share) == (images, pytest.approx(np.mean(right)))
        assert low <= share <= high


# Operating points.


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("text", ["sensitivity=0.9", "specificity=0.8", "precision=0.6", "sensitivity=1"])
def test_thresholds_are_those_of_a_search(seed, text):
    random, demand = np.random.default_rng(seed), Demand.parse(text)
    positive, score = random.random(50) < 0.4, np.round(random.normal(size=50), 1)
    best = None
    for t in sorted(set(score)):
        called = score >= t
        tp, fp = (called & positive).sum(), (called & ~positive).sum()
        shares = {
            "sensitivity": tp / positive.sum(),
            "specificity": 1 - fp / (~positive).sum(),
            "precision": tp / (tp + fp),
        }
        if shares[demand.measure] >= demand.value - 1e-12:
            best = t if best is None or demand.measure == "sensitivity" else best
    assert threshold_for(demand, positive, score) == (math.inf if best is None else best)


def test_the_threshold_comes_from_the_sources_and_is_judged_on_each_domain():
    sources = [domain("a", *answers(60, 2, seed=1), part="out"), domain("b", *answers(40, 2, seed=2), part="out")]
    new = domain("new", *answers(50, 2, seed=3))
    points = operating_points([*sources, new], ("no", "yes"), [Demand("sensitivity", 0.9)])
    last = points[-1]
    assert (last.positive, last.chosen_on, last.own) == ("yes", ("a", "b"), False)
    assert len({p.threshold for p in points}) == 1
    labels = np.concatenate([s.answers.labels for s in sources])
    p = np.concatenate([np.exp(s.answers.log_p[:, 1]) for s in sources])
    assert np.mean(p[labels == 1] >= last.threshold - 1e-12) >= 0.9
    assert np.mean(p[labels == 1] > last.threshold + 1e-9) < 0.9  # the largest that does
    q = np.exp(new.answers.log_p[:, 1]) >= last.threshold - 1e-12
    assert last.sensitivity == np.mean(q[new.answers.labels == 1])
    assert last.specificity == np.mean(~q[new.answers.labels == 0])
    assert last.tp + last.fn + last.tn + last.fp == 50


def test_without_sources_it_says_that_it_was_chosen_on_the_images_it_is_judged_by():
    (point,) = operating_points([domain("new", *answers(50, 3))], ("a", "b", "c"), [Demand("precision", 0.5)], "b")
    assert point.own
    assert point.chosen_on == ("new",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sensitivty=0.9", "Did you mean 'sensitivity'"),
        ("sensitivity", "wanted sensitivity"),
        ("recall=2", "wanted a share above 0 and at most 1"),
        ("precision=much", "wanted a share"),
        ("specificity=0", "wanted a share"),
    ],
)
def test_what_is_no_operating_point_is_refused(text, says):
    with pytest.raises(ConfigError, match=says):
        Demand.parse(text)


def test_the_positive_class_is_named_where_there_are_many(run):
    with pytest.raises(ConfigError, match="name it with --positive CLASS, of 'cat', 'dog', 'owl'"):
        dspreg.evaluate(run, at=["sensitivity=0.9"])
    with pytest.raises(ConfigError, match=r"'dogs' is no class of the model. Did you mean 'dog'"):
        dspreg.evaluate(run, at=["sensitivity=0.9"], positive="dogs")
    found = dspreg.evaluate(run, at=["recall=0.5"], positive="dog")
    assert [p.domain for p in found.points] == ["dawn", "dusk", "noon"]


# Temperature.


@pytest.mark.parametrize("true", [0.4, 1.0, 3.0])
def test_the_temperature_is_the_best_of_a_fine_grid(true):
    """Labels drawn from softmax(z / true): the best temperature is near it, and no other of the grid is better."""
    random, domains = np.random.default_rng(5), []
    for name, n in (("a", 3_000), ("b", 1_000)):
        z = random.normal(size=(n, 3)) * 3
        p = np.exp(z / true) / np.exp(z / true).sum(1, keepdims=True)
        labels = np.array([random.choice(3, p=row) for row in p])
        domains.append(domain(name, labels, z - np.log(np.exp(z).sum(1, keepdims=True)), part="out"))

    def loss(t):
        each = []
        for d in domains:
            z, y = d.answers.log_p / t, d.answers.labels
            each.append(-np.mean(z[np.arange(len(y)), y] - np.log(np.exp(z).sum(1))))
        return np.mean(each)

    found, judged = fit_temperature(domains)
    grid = np.exp(np.linspace(-3, 3, 2_001))
    assert loss(found) <= min(map(loss, grid)) + 1e-12
    assert found == pytest.approx(true, rel=0.1)
    assert judged.log_loss == (pytest.approx(loss(1.0)), pytest.approx(loss(found)))


def test_it_is_the_same_from_answers_that_were_calibrated_before():
    labels, log_p = answers(300, 3, scale=3)
    z = log_p / 2.5
    again = domain("a", labels, z - np.log(np.exp(z).sum(1, keepdims=True)), part="out")
    first, _ = fit_temperature([domain("a", labels, log_p, part="out")])
    second, _ = fit_temperature([again], before=2.5)
    assert second == pytest.approx(first, rel=1e-6)


def test_where_all_are_right_it_stays_one():
    labels = np.arange(3).repeat(5)
    log_p = np.log(np.where(np.eye(3)[labels] == 1, 0.9, 0.05))
    with pytest.warns(Notice, match="it stays 1"):
        assert fit_temperature([domain("a", labels, log_p, part="out")])[0] == 1.0


def test_it_is_kept_in_the_run_and_used_everywhere(copy, folder, tmp_path):
    image = folder / "noon" / "cat" / "0.png"
    plain = dspreg.load(copy)
    before = np.array(dspreg.predict(copy, image)[0].probabilities)
    loss = np.mean([d.scores.log_loss for d in dspreg.evaluate(copy).sources])
    found = dspreg.calibrate(copy)
    t = found.temperature
    assert found.log_loss[0] == pytest.approx(loss)
    after = np.array(dspreg.predict(copy, image)[0].probabilities)
    powers = before ** (1 / t)
    np.testing.assert_allclose(after, powers / powers.sum(), rtol=1e-5)
    evaluated = dspreg.evaluate(copy)
    assert evaluated.temperature == t
    assert np.mean([d.scores.log_loss for d in evaluated.sources]) == pytest.approx(found.log_loss[1], rel=1e-5)
    x = plain.transform(Image.open(image).convert("RGB"))[None]
    with torch.no_grad():
        logits = plain.model(x)
        torch.testing.assert_close(dspreg.load(copy)(x) * t, logits)
        made = dspreg.export(copy, "safetensors", tmp_path / "weights.safetensors")
        program = dspreg.export(copy, "torch.export", tmp_path / "program.pt2")
        torch.testing.assert_close(torch.export.load(program.path).module()(x) * t, logits, rtol=1e-5, atol=1e-6)
    assert made.difference < 1e-6
    assert dspreg.calibrate(copy).temperature == pytest.approx(t, rel=1e-4)  # again, from what is kept
    assert RunFolder(copy).result() is not None  # the run itself is as it was


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda v: v | {"sha256": "0" * 64}, "is damaged"),
        (lambda v: [], "is damaged"),
    ],
)
def test_a_calibration_that_was_changed_is_refused(copy, change, says):
    dspreg.calibrate(copy)
    path = copy / CALIBRATION
    path.write_text(json.dumps(change(read_json(path))))
    with pytest.raises(IntegrityError, match=says):
        dspreg.load(copy)


def test_one_of_another_model_or_out_of_bounds_is_refused(copy):
    from dspreg.runs.calibration_file import write_calibration

    dspreg.calibrate(copy)
    saved = read_json(copy / CALIBRATION)["models"]["selected.safetensors"]
    for change, says in (({"sha256": "1" * 64}, "of another"), ({"temperature": 0.0}, "temperature 0.0; wanted")):
        write_calibration(RunFolder(copy), {"selected.safetensors": saved | change})
        with pytest.raises(IntegrityError, match=says):
            dspreg.load(copy)


# Predict.


def test_a_loaded_model_takes_images_paths_and_batches(run, folder):
    model = dspreg.load(run)
    paths = [folder / "noon" / c / "1.png" for c in ("cat", "dog", "owl")]
    expected = [each.probabilities for each in dspreg.predict(run, paths)]
    pictures = [Image.open(path) for path in paths]
    x = torch.stack([model.transform(each.convert("RGB")) for each in pictures])
    for given in (paths, [str(p) for p in paths], pictures, x):
        found = model.predict(given)
        np.testing.assert_allclose(found.probabilities, expected, rtol=1e-5)
        assert found.labels == tuple(model.classes[np.argmax(row)] for row in expected)
        assert found.flags == ("", "", "")
    for given in (paths[0], str(paths[0]), pictures[0]):
        np.testing.assert_allclose(model.predict(given).probabilities, expected[:1], rtol=1e-5)
    taken, transform = model  # as it always was
    assert taken is model.model
    assert transform is model.transform


def test_flags_say_what_is_unknown_and_what_can_not_be_read(run, folder, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    good = folder / "noon" / "cat" / "1.png"
    found = dspreg.load(run).predict([good, tmp_path / "bad.png"], unknown_below=1.0)
    assert found.flags[0] == "unknown"
    assert found.flags[1].startswith("unreadable: ")
    assert found.labels[1] is None
    assert np.isnan(found.probabilities[1]).all()
    (each,) = dspreg.predict(run, good, unknown_below=1.0)
    assert (each.flag, each.label) == ("unknown", found.labels[0])
    with pytest.raises(DataError, match="a int; wanted a PIL image"):
        dspreg.load(run).predict([3])


def test_patterns_and_lists_of_paths(folder, tmp_path):
    assert image_files([folder / "noon" / "*" / "1.png"]) == [
        folder / "noon" / c / "1.png" for c in ("cat", "dog", "owl")
    ]
    with pytest.raises(DataError, match=r"\*\.gif' does not exist, and as a pattern"):
        image_files([folder / "*.gif"])
    listed = folder / "list.csv"
    listed.write_text("id,path\n1,noon/cat/1.png\n2,noon/dog/2.png\n")
    assert image_files([listed]) == [folder / "noon/cat/1.png", folder / "noon/dog/2.png"]
    listed.write_text("id,where\n1,noon/cat/1.png\n")
    with pytest.raises(DataError, match="'id', 'where'; wanted one that is called path or image or file"):
        image_files([listed])
    listed.write_text("path\nnoon/cat/1.png\n\n,\n")
    with pytest.raises(DataError, match="no path in the column 'path'"):
        image_files([listed])
    listed.unlink()
    odd = tmp_path / "a[1].png"  # a name that looks like a pattern, and is there
    shutil.copy(folder / "noon" / "cat" / "1.png", odd)
    assert image_files([odd]) == [odd]


def test_commands_print_json_csv_and_points(run, folder, tmp_path, capsys):
    pattern = str(folder / "noon" / "*" / "1.png")
    assert main(["predict", str(run), pattern, "--json", "--unknown-below", "1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["flag"] for each in lines] == ["unknown"] * 3
    assert lines[0]["probabilities"].keys() == {"cat", "dog", "owl"}
    assert main(["predict", str(run), pattern, "--csv", "--unknown-below", "1"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["flag"] for row in rows] == ["unknown"] * 3
    assert main(["predict", str(run), pattern, "--unknown-below", "1"]) == 0
    assert "unknown (" in capsys.readouterr().out
    out = tmp_path / "scores"
    arguments = ["evaluate", str(run), "--at", "sensitivity=0.5", "--positive", "dog", "--calibrate", "--out", str(out)]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "dog: sensitivity=0.5" in printed.out
    assert "calibrated: temperature" in printed.err
    assert {p.name for p in out.iterdir()} >= {"predictions.csv", "roc.png", "reliability.png", "scores.json"}
    predicted = list(csv.DictReader((out / "predictions.csv").read_text(encoding="utf-8").splitlines()))
    assert len(predicted) == 7 + 7 + 36
    scores = read_json(out / "scores.json")
    noon = [int(row["right"]) for row in predicted if row["domain"] == "noon"]
    assert np.mean(noon) == scores["domains"]["noon"]["accuracy"]
    assert scores["mean_sources"]["domains"] == 2
    assert scores["operating_points"][0]["positive"] == "dog"
    (run / CALIBRATION).unlink()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["evaluate", "RUN", "--positive", "dog"], 2, "add one, as in --at"),
        (["evaluate", "RUN", "--at", "f1=0.5"], 2, "wanted sensitivity, specificity, precision=SHARE"),
        (["predict", "RUN", "x.png", "--unknown-below", "2"], 2, "wanted a probability from 0 to 1"),
        (["predict", "RUN", "nothing-*.png"], 3, "as a pattern it matches nothing"),
        (["predict", "nowhere", "x.png", "--json"], 2, "holds no run"),
    ],
)
def test_mistakes_are_told(run, capsys, arguments, code, says):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(run.parent)
        try:
            found = main([str(run) if each == "RUN" else each for each in arguments])
        except SystemExit as ended:
            found = ended.code
    assert found == code
    assert says in capsys.readouterr().err
