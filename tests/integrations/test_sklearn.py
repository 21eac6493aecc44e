"""`DomainClassifier` is an estimator of scikit-learn, and trains as a plain loop does."""

import pickle

import numpy as np
import pytest
import sklearn
import torch
import torch.nn.functional as F
from sklearn.model_selection import LeaveOneGroupOut, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from dspreg.errors import ConfigError, Diverged
from dspreg.integrations.sklearn import DomainClassifier, draw_batches
from dspreg.training.step import train_step

FEW = {"steps": 12, "hidden": (8,), "batch_size": 6, "random_state": 0}


@pytest.fixture(scope="module")
def sites():
    """Two classes of three columns at three sites; the last column is the class at two of them and its opposite at the
    third."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 180)
    groups = np.repeat(["north", "south", "west"], 60)
    X = random.normal(size=(180, 3)) + y[:, None] * [1.5, 0, 0]
    X[:, 2] += 3 * np.where(groups == "west", 1 - y, y)
    return X, np.array(["no", "yes"])[y], groups


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_takes_it_for_an_estimator():
    found = check_estimator(DomainClassifier(steps=30), on_fail=None)
    assert [(each["check_name"], each["exception"]) for each in found if each["status"] == "failed"] == []
    assert sum(each["status"] == "passed" for each in found) > 45


def test_it_is_the_plain_loop(sites):
    """ERM: the mean cross-entropy of the domains' batches, and torch's Adam."""
    X, y, groups = sites
    model = DomainClassifier("ERM", weight_decay=1e-3, **FEW).fit(X, y, groups)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    net = model._setup(seed).net  # as it begins
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-3)
    x, t = torch.tensor(X, dtype=torch.float32), torch.tensor((y == "yes").astype(int))
    rows = [torch.tensor(np.flatnonzero(groups == name)) for name in ("north", "south", "west")]
    losses = []
    for step in range(12):
        batches = draw_batches(x, t, rows, 6, seed, step)
        assert all(set(b.x[:, 0].tolist()) <= set(x[own, 0].tolist()) for b, own in zip(batches, rows, strict=True))
        loss = F.cross_entropy(net(torch.cat([b.x for b in batches])), torch.cat([b.y for b in batches]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(model.losses_, losses, rtol=1e-5)
    np.testing.assert_allclose(model.predict_proba(X), net(x).softmax(1).detach().numpy(), rtol=1e-4, atol=1e-6)


def test_dspreg_with_coefficients_measured_is_the_loop_of_train_step_to_the_bit(sites):
    X, y, groups = sites
    spec = "DSPReg(weight=0.1, refresh_steps=5, measure_batches=1)"
    model = DomainClassifier(spec, **FEW).fit(X, y, groups)
    other = DomainClassifier(spec, **FEW).fit(X, y, groups)
    again = DomainClassifier("DSPReg(weight=0)", **FEW).fit(X, y, groups)
    plain = DomainClassifier("ERM", **FEW).fit(X, y, groups)
    assert model.losses_ == other.losses_ != plain.losses_
    assert again.losses_ == plain.losses_
    x, t = torch.tensor(X, dtype=torch.float32), torch.tensor((y == "yes").astype(int))
    rows = [torch.tensor(np.flatnonzero(groups == name)) for name in model.domains_]
    stack = model._setup(model._seed, x, t, rows)
    for step in range(12):
        log = train_step(stack, draw_batches(x, t, rows, 6, model._seed, step))
        assert float(log["loss"]) == model.losses_[step]
    with torch.no_grad():
        assert (stack.predict(x).double().softmax(1).numpy() == model.predict_proba(X)).all()


@pytest.mark.parametrize("algorithm", ["SWA(start=4)", "GroupDRO+SAM", "CORAL"])
def test_any_method_is_trained_and_predicts_the_same_after_pickling(sites, algorithm):
    X, y, groups = sites
    model = DomainClassifier(algorithm, **{**FEW, "steps": 40}).fit(X, y, groups)
    assert model.score(X, y) > 0.6
    assert set(model.predict(X)) <= {"no", "yes"}
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.predict_proba(X) == model.predict_proba(X)).all()


def test_sites_are_left_out_in_turn_with_routing(sites):
    X, y, groups = sites
    with sklearn.config_context(enable_metadata_routing=True):
        model = DomainClassifier("ERM", **FEW).set_fit_request(groups=True)
        scores = cross_val_score(
            make_pipeline(StandardScaler(), model), X, y, cv=LeaveOneGroupOut(), params={"groups": groups}
        )
    by_hand = []
    for name in ("north", "south", "west"):
        inside = groups != name
        scaler = StandardScaler().fit(X[inside])
        fitted = DomainClassifier("ERM", **FEW).fit(scaler.transform(X[inside]), y[inside], groups[inside])
        by_hand.append(fitted.score(scaler.transform(X[~inside]), y[~inside]))
    assert list(scores) == by_hand


def test_a_method_that_compares_domains_needs_groups(sites):
    X, y, _ = sites
    with pytest.raises(ConfigError, match=r"fit was given no groups"):
        DomainClassifier("DSPReg", **FEW).fit(X, y)


def test_what_is_wrong_is_said(sites):
    X, y, groups = sites
    with pytest.raises(ValueError, match="one domain for each of 180 rows"):
        DomainClassifier(**FEW).fit(X, y, groups[:9])
    with pytest.raises(Diverged, match="scale the columns"):
        DomainClassifier("ERM", **{**FEW, "lr": 1e30}).fit(X * 1e30, y, groups)
