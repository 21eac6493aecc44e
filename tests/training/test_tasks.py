"""Training on tensors of any shape, for classes, several labels and numbers, with a network of one's own."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import dspreg
from dspreg import ConfigError, DataError, DomainDataset, IntegrityError, Notice
from dspreg.data import fingerprint
from dspreg.data.sampling import draw_training_batch
from dspreg.data.splits import split
from dspreg.errors import Preempted
from dspreg.networks.own import describe_weights
from dspreg.randomness import seeded
from dspreg.reporting.load import read_runs
from dspreg.testing import check_dataset
from helpers import tiny_networks
from helpers.tiny import ending, stop_at

NAMES, DOMAINS = ("mean", "spread", "start"), ("site A", "site B", "site C")
ENCODER = "helpers.tiny_networks.Encoder"
SETTINGS = {"targets": ("site C",), "model": ENCODER, "steps": 6, "evaluate_every": 3, "batch_size": 8, "lr": 1e-2}


def series(kind, domain, count=30):
    """Series and their labels: three numbers, whether each is above its mean, or which is the largest."""
    random = torch.Generator().manual_seed(DOMAINS.index(domain))
    x = torch.randn(count, 2, 24, generator=random) * (1 + 0.3 * DOMAINS.index(domain))
    numbers = torch.stack([x[:, 0].mean(1), x[:, 1].std(1), x[:, 0, :12].mean(1)], 1)
    y = {"regression": numbers, "multilabel": (numbers > numbers.mean(0)).float(), "classes": numbers.argmax(1)}
    return x, y[kind]


def joined(kind, count=30):
    domains = {name: TensorDataset(*series(kind, name, count)) for name in DOMAINS}
    return dspreg.join_domains("series", domains, NAMES, kind=kind)


def how(**changes):
    return dspreg.Execution(**{"threads": 1, "workers": 0, "profile": "never", **changes})


def train(kind, out, *, execution=None, data=None, pause=lambda: None, **changes):
    settings = {**SETTINGS, "algorithm": "ERM", **changes}
    return dspreg.train(settings, execution or how(), out, data=data or joined(kind), pause=pause)


def plain_training(kind):
    """The same steps with nothing but torch, the keys of batches and the seeds of weights."""
    key = ("series", ("site C",), 0, 0)
    with seeded(*key, "backbone"):
        features = tiny_networks.Encoder()
    with seeded(*key, "classifier"):
        net = nn.Sequential(features, nn.Linear(8, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = {
        "classes": nn.CrossEntropyLoss(),
        "multilabel": nn.BCEWithLogitsLoss(),
        "regression": nn.MSELoss(),
    }
    for t in range(6):
        parts = []
        for position, domain in enumerate(DOMAINS[:2]):
            x, y = series(kind, domain)
            inside = split(30, 0, position)[0]
            chosen = [inside[i] for i in draw_training_batch(len(inside), 8, *key, t, domain)]
            parts.append((x[chosen], y[chosen]))
        x, y = (torch.cat(each) for each in zip(*parts, strict=True))
        optimizer.zero_grad()
        losses[kind](net(x), y).backward()
        optimizer.step()
    return net


@pytest.mark.parametrize("kind", ["classes", "multilabel", "regression"])
def test_a_run_is_a_plain_training_and_its_figures_are_scikit_learns(kind, tmp_path):
    result = train(kind, tmp_path / "run")
    model, as_tensor = dspreg.load(tmp_path / "run", "last", trust=("helpers.tiny_networks",))
    assert (model.kind, model.classes) == (kind, NAMES)
    plain = plain_training(kind)
    x, y = series(kind, "site C")
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain(x), rtol=1e-5, atol=1e-6)
    inside = split(30, 0, 2)[0]
    with torch.no_grad():
        outputs = model(torch.stack([as_tensor(x[i].numpy()) for i in inside])).double()
    y = y[inside]
    expected = {
        "classes": lambda: {"accuracy": metrics.accuracy_score(y, outputs.argmax(1))},
        "multilabel": lambda: {
            "mean_average_precision": metrics.average_precision_score(y, outputs),
            "label_accuracy": 1 - metrics.hamming_loss(y, outputs > 0),
            "exact_match": metrics.accuracy_score(y, outputs > 0),
        },
        "regression": lambda: {
            "r2": metrics.r2_score(y, outputs),
            "mse": metrics.mean_squared_error(y, outputs),
            "mae": metrics.mean_absolute_error(y, outputs),
        },
    }[kind]()
    found = {name: result["last"][name]["site C"]["in"] for name in expected}
    assert found == pytest.approx(expected, abs=1e-6)
    described = json.loads((tmp_path / "run/run.json").read_text())
    assert described["data"].get("kind") == (None if kind == "classes" else kind)
    (run,), damaged = read_runs(tmp_path / "run")
    assert (run.finished, run.kind, damaged) == (True, kind, [])
    title = dspreg.report(tmp_path / "run").tables[0].title
    words = {"classes": "accuracy", "multilabel": "mean average precision", "regression": "R²"}
    assert title.startswith(f"series: {words[kind]} on each domain held out")


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_the_step_with_the_best_figure_is_selected(kind, tmp_path):
    result = train(kind, tmp_path / "run", steps=12, evaluate_every=2)
    records = [json.loads(line) for line in (tmp_path / "run/records.jsonl").read_text().splitlines()]
    figure = {"multilabel": "mean_average_precision", "regression": "r2"}[kind]
    for record in records:
        mean = sum(record[figure][name]["out"] for name in DOMAINS[:2]) / 2
        assert record["validation"] == pytest.approx(mean, abs=1e-12)
    best = max(records, key=lambda record: record["validation"])
    assert result["selected"]["step"] == best["step"]
    assert result["selected"][figure] == best[figure]


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_a_run_that_was_stopped_ends_in_the_same_bits(kind, tmp_path):
    options = {"algorithm": "DSPReg(measure_batches=2, refresh_steps=2, weight=0.1)+SWAD(n_converge=1)", "dropout": 0.2}
    every = how(save_every=2, profile="always")
    train(kind, tmp_path / "whole", execution=every, data=joined(kind, 80), **options)
    with pytest.raises(Preempted):
        train(kind, tmp_path / "stopped", execution=every, data=joined(kind, 80), pause=stop_at(275), **options)
    assert any((tmp_path / "stopped/checkpoints").iterdir())  # it was within the training
    assert not (tmp_path / "stopped/result.json").exists()
    train(kind, tmp_path / "stopped", execution=every, data=joined(kind, 80), **options)
    assert ending(tmp_path / "stopped") == ending(tmp_path / "whole")


def test_processes_that_read_change_no_bit(tmp_path):
    train("regression", tmp_path / "none")
    train("regression", tmp_path / "two", execution=how(workers=2))
    assert ending(tmp_path / "none") == ending(tmp_path / "two")


@pytest.mark.parametrize(("name", "shape"), [("Volumes", (1, 5, 6, 7)), ("Tokens", (9,))])
def test_inputs_of_any_shape(name, shape, tmp_path):
    def samples(seed):
        random = torch.Generator().manual_seed(seed)
        x = torch.randint(11, (20, *shape), generator=random) if name == "Tokens" else torch.randn(20, *shape)
        return [(x[i], i % 2) for i in range(20)]  # a list is a map-style data set as well

    data = dspreg.join_domains("any", {d: samples(i) for i, d in enumerate(DOMAINS)}, ["odd", "even"])
    train("classes", tmp_path / "run", data=data, model=f"helpers.tiny_networks.{name}", algorithm="CORAL")
    model, as_tensor = dspreg.load(tmp_path / "run", trust=("helpers",))
    assert model(as_tensor(samples(0)[0][0])[None]).shape == (1, 2)
    with pytest.raises(DataError, match="wanted torch"):
        as_tensor(torch.zeros(3))


def test_a_network_with_its_own_head(tmp_path):
    train("regression", tmp_path / "run", model="helpers.tiny_networks.with_head", algorithm="VREx(warmup=1)")
    model, _ = dspreg.load(tmp_path / "run", trust=("helpers.tiny_networks",))
    assert isinstance(model.algorithm.net.classifier[2], nn.Linear)
    with pytest.raises(ConfigError, match="Fishr takes gradients of a linear classifier"):
        train("regression", tmp_path / "fishr", model="helpers.tiny_networks.with_head", algorithm="Fishr(warmup=1)")


def test_a_network_of_ones_own_on_images(tmp_path):
    class Squares(DomainDataset):
        name, domains, classes, small = "squares", ("a", "b", "c"), ("dark", "light"), True

        def domain(self, name):
            from PIL import Image

            return [(Image.new("RGB", (8, 8), (40 + 150 * (i % 2),) * 3), i % 2) for i in range(10)]

    options = {"targets": ("c",), "model": "helpers.tiny_images.Pooled", "image_size": 8}
    result = train("classes", tmp_path / "run", data=Squares(), **options)
    assert result["last"]["accuracy"]["c"]["in"] in {k / 8 for k in range(9)}
    assert dspreg.predict  # its images are PIL's, so that every command is for it


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("with_two_outputs", r"returns \(2, 2\) for 2 inputs; wanted \(2, 3\), one output for each of mean"),
        ("without_width", "`width` is None; wanted the number of its features"),
        ("not_a_network", "returned a Tensor; wanted an nn.Module"),
        ("fails", "raised OSError: no such file"),
        ("Volumes", r"takes no inputs of shape \(2, 2, 24\)"),
        ("nothing", "can't be imported"),
    ],
)
def test_a_network_that_does_not_fit_is_told_before_there_is_a_run(model, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        train("classes", tmp_path / "run", model=f"helpers.tiny_networks.{model}")
    assert not (tmp_path / "run/run.json").exists()


def broken(change):
    """A data set of numbers with one sample changed."""
    x, y = series("regression", "site B")
    samples = [(a, b) for a, b in zip(x, y, strict=True)]
    samples[3] = change(*samples[3])
    domains = {"site A": TensorDataset(*series("regression", "site A")), "site B": samples}
    domains["site C"] = TensorDataset(*series("regression", "site C"))
    return dspreg.join_domains("series", domains, NAMES, kind="regression")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, y: (x[:, :5], y), r"sample 3 of 'site B': an input is torch.float32 of shape \(2, 5\)"),
        (lambda x, y: (x.long(), y), "sample 3 of 'site B': an input is torch.int64"),
        (lambda x, y: (x * float("nan"), y), "sample 3 of 'site B': an input has numbers that are not finite"),
        (lambda x, y: (x, y * float("inf")), "sample 3 of 'site B': a label is not finite"),
        (lambda x, y: (x, y[:2]), r"a label has the shape \(2,\); wanted one number for each of `classes`: \(3,\)"),
        (lambda x, y: x, "sample 3 of 'site B': a sample is a Tensor of 2; wanted a pair"),
    ],
)
def test_a_sample_that_does_not_fit_is_told_before_there_is_a_run(change, said, tmp_path):
    with pytest.raises(DataError, match=said):
        train("regression", tmp_path / "run", data=broken(change))
    assert not (tmp_path / "run/run.json").exists()


def test_parts_without_a_figure_are_told_before_there_is_a_run(tmp_path):
    domains = {name: TensorDataset(*series("regression", name)) for name in DOMAINS[:2]}
    x, y = series("regression", "site C")
    domains["site C"] = TensorDataset(x, torch.zeros_like(y))
    data = dspreg.join_domains("series", domains, NAMES, kind="regression")
    with pytest.raises(DataError, match="the split 'in' of the domain 'site C' of series can't be scored: all samples"):
        train("regression", tmp_path / "run", data=data)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": None}, "series is of tensors, for which there is no usual network: give model="),
        ({"augment": "domainbed"}, "augment is for images"),
        ({"image_size": 64}, "image_size is for images"),
        ({"split": "stratified"}, "--split stratified is about classes"),
        ({"split": "grouped"}, "--split grouped is about classes"),
        ({"select_by": "balanced"}, "--select-by is about classes"),
        ({"train": "head"}, "--train is for timm's networks"),
        ({"weights": "none"}, "--weights none is for networks with pretrained weights"),
        ({"algorithm": "RSC"}, "RSC needs classes, and this task is of the kind 'regression'"),
    ],
)
def test_options_that_do_not_fit_are_told(options, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        train("regression", tmp_path / "run", **options)


@pytest.mark.parametrize(
    ("domains", "options", "said"),
    [
        ({"a": [1]}, {}, "at least two domains"),
        ({"a": [(torch.zeros(2), 0)], "b": []}, {}, "the domain 'b' is empty"),
        ({"a": [(torch.zeros(2), 0)], "b": iter(())}, {}, "wanted a map-style data set"),
        ({"a": [torch.zeros(2)], "b": [1]}, {}, "wanted a pair"),
        ({"a": [1], "b": [1]}, {"kind": "ranking"}, "kind='ranking'"),
        ({"a": [1], "b": [1]}, {"classes": ["x", "x"]}, "different names"),
    ],
)
def test_domains_that_do_not_join_are_told(domains, options, said):
    with pytest.raises((ConfigError, DataError), match=said):
        dspreg.join_domains("mine", domains, **{"classes": ["x", "y"], **options})


def test_a_stored_network_is_imported_only_from_what_is_trusted(tmp_path):
    train("classes", tmp_path / "run")
    for trust in ((), ("helpers.tiny",), ("tiny_networks",)):
        with pytest.raises(IntegrityError, match=r"built\.model is 'helpers\.tiny_networks\.Encoder': code"):
            dspreg.load(tmp_path / "run", trust=trust)


def test_a_network_that_was_changed_under_its_name_is_another_run(tmp_path, monkeypatch):
    whole, untrained = describe_weights(ENCODER, "default")
    assert (whole.source, untrained) == ("own", False)
    assert describe_weights(ENCODER, "default")[0] == whole  # whatever it draws at random
    train("classes", tmp_path / "run")
    monkeypatch.setattr(tiny_networks, "Encoder", tiny_networks.Steeper)
    assert describe_weights(ENCODER, "default")[0] != whole
    with pytest.raises(ConfigError, match="weights"):
        train("classes", tmp_path / "run")


def test_other_numbers_are_another_fingerprint():
    data = joined("regression")
    first = fingerprint(data.domain("site A"))
    assert fingerprint(joined("regression").domain("site A")) == first
    x, y = series("regression", "site A")
    for changed in ((x + 1e-6, y), (x, y + 1e-6), (x.reshape(30, 1, 48), y)):
        assert fingerprint(TensorDataset(*changed)) != first


def test_statistics_that_freezing_would_keep_as_created_are_told(tmp_path):
    with pytest.warns(Notice, match="running statistics .* it does not normalise"):
        train("classes", tmp_path / "run", model="helpers.tiny_images.Normed", frozen_bn=True)


class Drawing(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.randn(3), i % 2


def test_the_laws_of_data_sets_hold_for_tensors():
    check_dataset(joined("regression"))
    check_dataset(joined("classes"))
    with pytest.raises(dspreg.testing.LawBroken, match="has other inputs when read again"):
        check_dataset(dspreg.join_domains("drawing", {"a": Drawing(), "b": Drawing()}, ["x", "y"]))


def test_what_is_for_images_of_classes_says_so(tmp_path):
    train("regression", tmp_path / "run")
    for command, said in (
        (lambda: dspreg.evaluate(tmp_path / "run", trust=("helpers",)), "evaluate is for classes"),
        (lambda: dspreg.predict(tmp_path / "run", tmp_path, trust=("helpers",)), r"takes tensors of shape \(2, 24\)"),
        (lambda: dspreg.export(tmp_path / "run", "torch.export", trust=("helpers",)), "export is for images"),
        (lambda: dspreg.average_runs([tmp_path / "run"], tmp_path / "soup", trust=("helpers",)), "average"),
        (lambda: dspreg.verify_dataset(joined("regression")), "images of classes are verified"),
    ):
        with pytest.raises(ConfigError, match=said):
            command()


def test_the_target_has_no_say(tmp_path):
    """Other numbers in the target move no bit of what is trained."""
    train("regression", tmp_path / "one")
    domains = {name: TensorDataset(*series("regression", name)) for name in DOMAINS[:2]}
    x, y = series("regression", "site C")
    domains["site C"] = TensorDataset(x * 100 - 3, y.flip(0))
    other = dspreg.join_domains("series", domains, NAMES, kind="regression")
    train("regression", tmp_path / "other", data=other)
    one, two = (ending(tmp_path / name)["files"] for name in ("one", "other"))
    assert {name: one[name] for name in one if name.endswith("safetensors")} == {
        name: two[name] for name in two if name.endswith("safetensors")
    }


def test_a_loss_of_one_number_is_not_broadcast(tmp_path):
    """Scalars as labels, and a network with one output."""
    domains = {name: [(x, float(y[0])) for x, y in zip(*series("regression", name), strict=True)] for name in DOMAINS}
    data = dspreg.join_domains("series", domains, ["mean"], kind="regression")
    train("regression", tmp_path / "run", data=data, algorithm="ERM")
    model, _ = dspreg.load(tmp_path / "run", "last", trust=("helpers",))
    net = copy.deepcopy(model)
    x, y = series("regression", "site C")
    inside = split(30, 0, 2)[0]
    with torch.no_grad():
        expected = float(F.mse_loss(net(x[inside])[:, 0].double(), y[inside, 0].double()))
    records = [json.loads(line) for line in (tmp_path / "run/records.jsonl").read_text().splitlines()]
    assert records[-1]["mse"]["site C"]["in"] == pytest.approx(expected, rel=1e-6)
