"""DANN against two players written out sample by sample, and the domain it is meant to hide."""

import numpy as np
import pytest
import torch

from dspreg.algorithms import DANN, ERM, parse
from dspreg.batches import Batch
from dspreg.domainbed.seeds import seed_hash
from dspreg.randomness import seeded
from dspreg.testing import toy_batches, toy_task
from dspreg.training import train_step
from reference import plain

OPTIONS = {"weight": 0.7, "mlp_width": 6, "weight_decay_d": 0.2, "lr_d": 0.03}
SPEC = f"DANN({', '.join(f'{name}={value}' for name, value in OPTIONS.items())})"
TURNS = {1: "GDGDGD", 2: "DGDDGD", 3: "DDGDDD"}  # whose step it is: the generator's or the discriminator's


def discriminator_of(stack):
    """Weights and biases in turn: copies that take a gradient."""
    dann = next(layer for layer in stack.layers() if isinstance(layer, DANN))
    return [p.detach().clone().requires_grad_() for p in dann.discriminator.parameters()]


def guess(disc, f, dropout=0.0):
    """Linear, dropout, max(0, ·), and so on."""
    for w, b in zip(disc[:-2:2], disc[1:-2:2], strict=True):
        f = torch.nn.functional.dropout(f @ w.T + b, dropout).clamp(min=0)
    return f @ disc[-2].T + disc[-1]


def domain_loss(weights, disc, batches, slope=0.0, dropout=0.0):
    """Cross-entropy of the domain, and how steep it is in the features of each sample."""
    f = torch.cat([plain.features(weights, b.x) for b in batches])
    z = guess(disc, f, dropout)
    domains = [b.domain for b in batches for _ in range(len(b))]
    risks = [z[i].exp().sum().log() - z[i, d] for i, d in enumerate(domains)]
    steep = 0.0
    for i, risk in enumerate(risks) if slope else ():
        steep = steep + (torch.autograd.grad(risk, f, create_graph=True)[0][i] ** 2).sum()
    return (sum(risks) + slope * steep) / len(risks)


class ByHand:
    """One optimiser with weight decay, for any number of weights."""

    def __init__(self, kind, count, lr, decay=0.0):
        self.decay = decay
        self.inner = plain.SGD(lr) if kind == "sgd" else plain.Adam(lr, betas=(0.5, 0.9))
        self.inner.m, self.inner.v = [0.0] * count, [0.0] * count

    def step(self, weights, loss):
        grads = plain.gradient(loss, weights)
        self.inner.step(weights, [g + self.decay * w.detach() for g, w in zip(grads, weights, strict=True)])


def assert_same_game(stack, domains, optimiser, turns, penalty=lambda loss, weights: loss, **how):
    """Both players move as by hand, in these turns; the one whose turn it is not does not move by a bit."""
    weights, disc = plain.weights_of(stack), discriminator_of(stack)
    lr = {"sgd": 0.1, "adam": 0.05}[optimiser]
    by_hand = ByHand(optimiser, len(weights), lr), ByHand(optimiser, len(disc), 0.03, 0.2)
    for t, turn in enumerate(turns):
        before, batches = (plain.weights_of(stack), discriminator_of(stack)), toy_batches(t, domains, plain.SIZES)
        log = train_step(stack, batches)
        with seeded("toy", t, "noise"):
            adversary = domain_loss(weights, disc, batches, **how)
        assert log["DANN.domain_loss"].item() == pytest.approx(adversary.item(), rel=1e-9)
        if turn == "G":
            loss = plain.pooled(weights, batches) - 0.7 * adversary
            by_hand[0].step(weights, penalty(loss, weights))
        else:
            loss = adversary
            by_hand[1].step(disc, adversary)
        assert log["loss"].item() == pytest.approx(loss.item(), rel=1e-9)
        after = plain.weights_of(stack), discriminator_of(stack)
        same = [all(map(torch.equal, before[player], after[player])) for player in (0, 1)]
        assert same == [turn == "D", turn == "G"]
    plain.compare("DANN", optimiser, [*after[0], *after[1]], [*weights, *disc])


@plain.problems
@plain.optimisers
@pytest.mark.parametrize("k", TURNS)
def test_steps_are_those_of_two_players_by_hand(domains, optimiser, k):
    stack = plain.ready(DANN(**OPTIONS, d_steps_per_g_step=k), domains, optimiser)
    assert_same_game(stack, domains, optimiser, TURNS[k])


@plain.optimisers
def test_the_slope_of_the_guess_counts_for_both(optimiser):
    stack = plain.ready(DANN(**OPTIONS, grad_penalty=1.5, mlp_depth=4), 3, optimiser)
    assert_same_game(stack, 3, optimiser, TURNS[1], slope=1.5)


@plain.optimisers
def test_dropout_of_the_discriminator_is_part_of_the_game(optimiser):
    stack = plain.ready(DANN(**OPTIONS, mlp_dropout=0.5), 3, optimiser)
    assert_same_game(stack, 3, optimiser, TURNS[1], dropout=0.5)


@pytest.mark.parametrize("spec", ["DANN+DSPReg", "DSPReg+DANN"])
@plain.optimisers
def test_dspreg_penalises_the_generators_gradient_in_its_steps(optimiser, spec):
    """Also below DANN: the objective is the whole stack's."""
    spec = spec.replace("DANN", SPEC).replace("DSPReg", "DSPReg(weight=0.05, coefficients='ones', engine='exact')")
    stack = plain.ready(parse(spec), 3, optimiser)

    def penalty(loss, weights):
        return loss + 0.05 * sum((g**2).sum() for g in torch.autograd.grad(loss, weights, create_graph=True))

    assert_same_game(stack, 3, optimiser, TURNS[1], penalty=penalty)


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_dspreg_refreshes_in_any_step_and_lazy_engines_count_the_generators():
    stack = plain.ready(parse("DANN+DSPReg(engine='lazy(2)', weight=0.1, refresh_steps=3)"), 3)
    alone = plain.ready(DANN(), 3)
    differs = []
    for t in range(4):
        train_step(stack, toy_batches(t, 3, plain.SIZES))
        train_step(alone, toy_batches(t, 3, plain.SIZES))
        differs.append(not all(map(torch.equal, plain.weights_of(stack), plain.weights_of(alone))))
    assert differs == [False, False, True, True]  # steps 0 and 2 are the generator's: the second of them is penalised
    assert stack.refreshed_at == 3  # the discriminator's


@plain.optimisers
@pytest.mark.parametrize("spec", ["DANN+Fish", "Fish+DANN"])
def test_with_fish_the_discriminator_goes_through_the_domains_and_the_network_stays(spec, optimiser):
    stack = plain.ready(parse(spec.replace("DANN", SPEC)), 3, optimiser)
    train_step(stack, toy_batches(0, 3, plain.SIZES))
    weights, disc = plain.weights_of(stack), discriminator_of(stack)
    by_hand = ByHand(optimiser, len(disc), 0.03, 0.2)
    batches = toy_batches(1, 3, plain.SIZES)
    train_step(stack, batches)
    for batch in batches:
        by_hand.step(disc, domain_loss(weights, disc, [batch]))
    assert all(map(torch.equal, plain.weights_of(stack), weights))
    for ours, theirs in zip(discriminator_of(stack), disc, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    ],
)
def test_neither_decay_nor_momentum_moves_whose_turn_it_is_not(optimizer):
    stack = DANN(mlp_width=6).setup(toy_task(), optimizer).double()
    for t in range(6):
        before = plain.weights_of(stack), discriminator_of(stack)
        train_step(stack, toy_batches(t))
        after = plain.weights_of(stack), discriminator_of(stack)
        resting = t % 2 == 0  # the discriminator
        assert all(map(torch.equal, before[resting], after[resting]))
        assert not any(map(torch.equal, before[not resting], after[not resting]))


def test_domains_are_those_of_the_task_whatever_comes_first():
    stack = plain.ready(DANN(mlp_width=6), 3, "sgd")
    weights, disc = plain.weights_of(stack), discriminator_of(stack)
    batches = toy_batches(0, 3, plain.SIZES)[:0:-1]  # the third, then the second
    expected = domain_loss(weights, disc, batches).item()
    assert train_step(stack, batches)["DANN.domain_loss"].item() == pytest.approx(expected, rel=1e-12)


def test_a_single_domain_has_nothing_to_hide():
    dann, erm = plain.ready(DANN(), 1, "sgd"), plain.ready(ERM(), 1, "sgd")
    for stack in (dann, erm):
        train_step(stack, toy_batches(0, 1))
    for a, b in zip(plain.weights_of(dann), plain.weights_of(erm), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-15)


def test_options_of_the_optimiser():
    stack = DANN(beta1=0.3, weight_decay_d=0.2).setup(toy_task(), lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.1))
    network, own = stack.stack.optimizer.param_groups
    assert [(g["lr"], g["weight_decay"], g["betas"]) for g in (network, own)] == [
        (0.05, 0.1, (0.3, 0.9)),
        (0.05, 0.2, (0.3, 0.9)),
    ]
    assert {id(p) for p in network["params"]} == {id(p) for p in stack.net.parameters()}
    assert {id(p) for p in own["params"]} == {id(p) for p in stack.discriminator.parameters()}
    groups = DANN(lr_d=0.01).setup(toy_task(), lambda p: torch.optim.SGD(p, 0.05)).stack.optimizer.param_groups
    assert [(g["lr"], "betas" in g) for g in groups] == [(0.05, False), (0.01, False)]


def test_the_network_starts_where_that_of_erm_does():
    dann, erm = plain.ready(DANN(), 3), plain.ready(ERM(), 3)
    assert all(map(torch.equal, plain.weights_of(dann), plain.weights_of(erm)))
    shapes = [tuple(p.shape) for p in dann.discriminator.parameters()]
    assert shapes == [(256, 8), (256,), (256, 256), (256,), (3, 256), (3,)]


def told(n, domain, random):
    """One input tells the class, another the domain."""
    y = torch.randint(2, (n,), generator=random)
    x = 0.5 * torch.randn(n, 5, generator=random, dtype=torch.float64)
    x[:, 0] += 2 * y - 1
    x[:, 1] += 2 * domain - 1
    return Batch(x, y, domain)


def probed(f, target):
    """How often a linear guess, fitted to every other sample, is right about the rest."""
    f = torch.cat([(f - f.mean(0)) / f.std(0), torch.ones(len(f), 1, dtype=f.dtype)], 1)
    fitted = torch.linalg.lstsq(f[::2], 2 * target[::2, None].double() - 1).solution
    return ((f[1::2] @ fitted)[:, 0].gt(0) == target[1::2].bool()).double().mean().item()


@pytest.mark.parametrize(
    ("spec", "least", "most"),
    [("ERM", 0.9, 1.0), ("DANN(weight=0)", 0.9, 1.0), ("DANN(grad_penalty=1.0, mlp_width=64)", 0.5, 0.65)],
)
def test_a_fresh_probe_no_longer_finds_the_domain(spec, least, most):
    """With a gradient penalty: without, the two go round in circles, and what the probe finds varies with the step."""
    random = torch.Generator().manual_seed(0)
    stack = parse(spec).setup(toy_task(2, classes=2, dropout=0.0), lambda p: torch.optim.Adam(p, lr=0.005)).double()
    for _ in range(800):
        train_step(stack, [told(64, d, random) for d in (0, 1)])
    weights, fresh = plain.weights_of(stack), [told(2000, d, random) for d in (0, 1)]
    f = torch.cat([plain.features(weights, b.x).detach() for b in fresh])
    found = probed(f, torch.tensor([0] * 2000 + [1] * 2000))
    assert sum((plain.logits(weights, b.x).argmax(1) == b.y).double().mean() for b in fresh) / 2 > 0.95
    assert least < found < most


DOMAINBED = {  # its own registry, in its own words
    "lambda": ("weight", lambda r: 10 ** r.uniform(-2, 2)),
    "weight_decay_d": ("weight_decay_d", lambda r: 10 ** r.uniform(-6, -2)),
    "d_steps_per_g_step": ("d_steps_per_g_step", lambda r: int(2 ** r.uniform(0, 3))),
    "grad_penalty": ("grad_penalty", lambda r: 10 ** r.uniform(-2, 1)),
    "beta1": ("beta1", lambda r: r.choice([0.0, 0.5])),
    "mlp_width": ("mlp_width", lambda r: int(2 ** r.uniform(6, 10))),
    "mlp_depth": ("mlp_depth", lambda r: int(r.choice([3, 4, 5]))),
    "mlp_dropout": ("mlp_dropout", lambda r: r.choice([0.0, 0.1, 0.5])),
    "lr_d": ("lr_d", lambda r: 10 ** r.uniform(-5, -3.5)),
}


def test_draws_are_domainbeds():
    assert {option for option, _ in DOMAINBED.values()} == set(DANN.space)
    for key, (option, drawn) in DOMAINBED.items():
        for seed in range(10):
            expected = drawn(np.random.RandomState(seed_hash(seed, key)))
            assert DANN.space[option].draw(seed, "not used") == expected
            DANN(**{option: DANN.space[option].draw(seed, "not used")})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -1.0}, "weight=-1.0; wanted at least 0"),
        ({"weight": float("inf")}, "weight=inf"),
        ({"grad_penalty": -1.0}, "grad_penalty=-1.0"),
        ({"weight_decay_d": float("nan")}, "weight_decay_d=nan"),
        ({"beta1": 1.0}, "beta1=1.0; wanted a number from 0 to below 1"),
        ({"mlp_dropout": 1.0}, "mlp_dropout=1.0"),
        ({"mlp_width": 0}, "mlp_width=0; wanted at least 1"),
        ({"mlp_depth": 1}, "mlp_depth=1; wanted at least 2"),
        ({"d_steps_per_g_step": 0}, "d_steps_per_g_step=0; wanted at least 1"),
        ({"lr_d": 0.0}, r"lr_d=0\.0; wanted a finite number > 0, or None for the run's"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        DANN(**options)
