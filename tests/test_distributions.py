"""Random search draws what DomainBed draws. The numbers were produced by DomainBed itself."""

import numpy as np
import pytest

import dspreg.algorithms as index
from dspreg.algorithms import (
    CORAL,
    GSAM,
    IRM,
    MLDG,
    MMD,
    RSC,
    SAGM,
    SAM,
    Fish,
    Fishr,
    GroupDRO,
    Mixup,
    VREx,
)
from dspreg.algorithms.base import options_of
from dspreg.algorithms.registry import algorithms
from dspreg.distributions import Choice, LogUniform, Uniform
from dspreg.domainbed.seeds import seed_hash

FIRST, SECOND = 785910682, 1442673865

LR = LogUniform(-5, -3.5, key="lr")
WEIGHT_DECAY = LogUniform(-6, -2, key="weight_decay")
BATCH_SIZE = LogUniform(3, 5.5, key="batch_size", integer=True, base=2)
DROPOUT = Choice(0.0, 0.1, 0.5, key="resnet_dropout")


def test_seeds_of_the_first_draw():
    assert seed_hash(1, 0) == FIRST
    assert seed_hash(1, 1) == SECOND


@pytest.mark.parametrize(
    ("seed", "prior", "expected"),
    [
        (FIRST, LR, 2.7028930742148706e-05),
        (FIRST, WEIGHT_DECAY, 0.00044832883881609976),
        (FIRST, BATCH_SIZE, 39),
        (FIRST, LogUniform(3, 9, key="batch_size", integer=True, base=2), 372),
        (FIRST, LogUniform(3, 5, key="batch_size", integer=True, base=2), 28),
        (FIRST, DROPOUT, 0.5),
        (FIRST, LogUniform(-4.5, -2.5, key="lr"), 0.00011906162909279594),
        (FIRST, LogUniform(-1, 5, key="irm_lambda"), 65030.52212762795),
        (FIRST, LogUniform(0, 4, key="irm_penalty_anneal_iters", integer=True), 2),
        (FIRST, LogUniform(-1, 1, key="mmd_gamma"), 1.4227570299330277),
        (FIRST, CORAL.space["weight"], 1.4227570299330277),
        (SECOND, LR, 2.2352558725944602e-05),
        (SECOND, WEIGHT_DECAY, 1.9967320578799288e-06),
        (SECOND, BATCH_SIZE, 8),
        (SECOND, DROPOUT, 0.5),
    ],
)
def test_draws_are_domainbeds(seed, prior, expected):
    drawn = prior.draw(seed, "not used")
    assert drawn == expected
    assert type(drawn) is type(expected)  # numpy's own types would not survive a JSON file


@pytest.mark.parametrize(
    ("prior", "key", "domainbed"),
    [
        (Mixup.space["alpha"], "mixup_alpha", lambda r: 10 ** r.uniform(-1, 1)),
        (GroupDRO.space["eta"], "groupdro_eta", lambda r: 10 ** r.uniform(-3, -1)),
        (Fish.space["meta_lr"], "meta_lr", lambda r: r.choice([0.05, 0.1, 0.5])),
        (CORAL.space["weight"], "mmd_gamma", lambda r: 10 ** r.uniform(-1, 1)),
        (MMD.space["weight"], "mmd_gamma", lambda r: 10 ** r.uniform(-1, 1)),
        (IRM.space["weight"], "irm_lambda", lambda r: 10 ** r.uniform(-1, 5)),
        (IRM.space["warmup"], "irm_penalty_anneal_iters", lambda r: int(10 ** r.uniform(0, 4))),
        (VREx.space["weight"], "vrex_lambda", lambda r: 10 ** r.uniform(-1, 5)),
        (VREx.space["warmup"], "vrex_penalty_anneal_iters", lambda r: int(10 ** r.uniform(0, 4))),
        (Fishr.space["weight"], "lambda", lambda r: 10 ** r.uniform(1, 4)),
        (Fishr.space["warmup"], "penalty_anneal_iters", lambda r: int(r.uniform(0, 5000))),
        (Fishr.space["ema"], "ema", lambda r: r.uniform(0.90, 0.99)),
        (MLDG.space["beta"], "mldg_beta", lambda r: 10 ** r.uniform(-1, 1)),
        (MLDG.space["n_meta_test"], "n_meta_test", lambda r: r.choice([1, 2])),
        (RSC.space["f_drop"], "rsc_f_drop_factor", lambda r: r.uniform(0, 0.5)),
        (RSC.space["b_drop"], "rsc_b_drop_factor", lambda r: r.uniform(0, 0.5)),
    ],
)
def test_spaces_of_our_classes_are_domainbeds(prior, key, domainbed):
    for draw in range(1, 20):
        seed = seed_hash(draw, 2)
        assert prior.draw(seed, "not used") == domainbed(np.random.RandomState(seed_hash(seed, key)))


def test_an_option_domainbed_does_not_know_has_a_key_of_its_own():
    prior = SAM.space["rho"]
    assert prior.key is None
    expected = np.random.RandomState(seed_hash(FIRST, "SAM.rho")).choice([0.01, 0.02, 0.05, 0.1])
    assert prior.draw(FIRST, "SAM.rho") == expected
    draws = [[prior.draw(seed_hash(n, 0), name) for n in range(30)] for name in ("SAM.rho", "Other.rho")]
    assert draws[0] != draws[1]


@pytest.mark.parametrize("method", [SAM, GSAM, SAGM])
def test_methods_domainbed_does_not_have_claim_no_key_of_its(method):
    assert [prior.key for prior in method.space.values()] == [None] * len(method.space)


def test_options_do_not_move_each_other():
    two = {"lr": LR, "weight_decay": WEIGHT_DECAY}
    three = {"new": Uniform(0, 1, key="new"), **two}
    drawn = {name: prior.draw(FIRST, name) for name, prior in three.items()}
    assert {name: drawn[name] for name in two} == {name: prior.draw(FIRST, name) for name, prior in two.items()}


def test_drawing_does_not_touch_numpys_global_generator():
    before = np.random.get_state()[1].tolist()
    LR.draw(FIRST, "lr")
    assert np.random.get_state()[1].tolist() == before


def test_uniform():
    draws = [Uniform(-2, 5, key=str(n)).draw(FIRST, "") for n in range(400)]
    assert -2 <= min(draws) < -1.9
    assert 4.9 < max(draws) <= 5
    whole = [Uniform(0.5, 3.9, key=str(n), integer=True).draw(FIRST, "") for n in range(100)]
    assert set(whole) == {0, 1, 2, 3}  # truncated, not rounded
    assert {type(n) for n in whole} == {int}


def test_log_uniform_is_uniform_in_the_exponent():
    draws = [LogUniform(-4, -1, key=str(n)).draw(FIRST, "") for n in range(600)]
    assert 1e-4 <= min(draws) < max(draws) <= 1e-1
    for decade in (1e-4, 1e-3, 1e-2):
        assert 160 < sum(decade <= d < 10 * decade for d in draws) < 240


def test_choice_returns_the_values_themselves():
    drawn = [Choice("tanh", "relu", key=str(n)).draw(FIRST, "") for n in range(50)]
    assert set(drawn) == {"tanh", "relu"}
    assert {type(value) for value in drawn} == {str}
    assert Choice(1, 2, key="a") == Choice(1, 2, key="a") != Choice(1, 3, key="a")


@pytest.mark.parametrize("name", ["Algorithm", *algorithms()])
def test_spaces_name_options_that_exist(name):
    cls = getattr(index, name)
    assert set(cls.space) <= set(options_of(cls))
    for option, prior in cls.space.items():
        cls(**{option: prior.draw(FIRST, f"{name}.{option}")})
