"""GMDG against its formula on plain tensors, and the covariances it is meant to bring together."""

import pytest
import torch

from dspreg.algorithms import ERM, GMDG, Fish, Task, parse
from dspreg.algorithms.gmdg import explained_covariance
from dspreg.errors import ConfigError
from dspreg.networks import TinyMLP
from dspreg.randomness import seeded
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.testing.toy import IMAGE
from dspreg.training import train_step
from reference import oracle, plain

OPTIONS = {"weight": 0.5, "shift": 2.0, "d_shift": 0.7, "lr_mult": 3.0}


def centred(a):
    a = a / ((a * a).sum().sqrt() + 1e-12)
    return a - a.mean(0)


def explained(f, u):
    """mean(S²), S = C_fu C_uu⁺ C_uf, as it is written down."""
    f, u, n = centred(f), centred(u), len(f)
    s = (f.T @ u / n) @ torch.linalg.pinv(u.T @ u / n) @ (u.T @ f / n)
    return (s * s).mean()


@pytest.mark.parametrize(("samples", "width"), [(12, 5), (5, 12)])
def test_what_labels_explain_where_their_covariance_has_no_inverse(samples, width):
    """Samples of one label have one embedding here: of rank two for three labels."""
    random = torch.Generator().manual_seed(0)
    f = torch.randn(samples, width, generator=random, dtype=torch.float64)
    u = torch.randn(3, width, generator=random, dtype=torch.float64)[torch.arange(samples) % 3]
    torch.testing.assert_close(explained_covariance(f, u), explained(f, u), rtol=1e-9, atol=0)


def masks(n, widths, t):
    """What dropout multiplies with, in the order in which it is drawn in step t; the network itself draws none."""
    with seeded("toy", t, "noise"):
        return [torch.empty(n, w, dtype=torch.float64).bernoulli_(0.8) / 0.8 for w in widths]


@plain.problems
@plain.optimisers
@pytest.mark.parametrize("kind", ["vectors", "images"])
def test_steps_are_those_of_the_formula(kind, domains, optimiser):
    def start(stack, weights):
        old = [w.detach().clone() for w in weights]
        bs = oracle.spreads([8] if kind == "vectors" else [4, 8])
        ds = oracle.spreads([16] * domains)
        ms = [p.detach().clone().requires_grad_() for p in stack.parts["labels"].parameters()]

        def embedded(y, t):
            """Labels as numbers in all columns through three layers."""
            u = torch.stack([torch.full((8,), float(label)).double() for label in y])
            for i, mask in enumerate(masks(len(y), (4, 8, 8), t)):
                u = (u @ ms[2 * i].T + ms[2 * i + 1]) * mask
                u = u.clamp(min=0) if i < 2 else u
            return u

        def step(batches, t):
            x, y = torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])
            here, f = oracle.maps(weights, x)
            loss = oracle.cross_entropy(oracle.classified(weights, f), y)
            total = loss + OPTIONS["weight"] * oracle.distance(here, oracle.maps(old, x)[0], bs)

            u = embedded(y, t)
            names = oracle.cross_entropy(oracle.classified([w.detach() for w in weights], u), y)
            u = u.detach()

            a = explained(f, u)
            q, q_a = (torch.autograd.grad(value, f, retain_graph=True)[0].max().item() for value in (loss, a))
            total = total + OPTIONS["shift"] * q / q_a * a

            pairs = [torch.cat([f[6 * d : 6 * d + 6], u[6 * d : 6 * d + 6]], 1) for d in range(domains)]
            centre = sum(pairs) / domains
            v = sum(oracle.spread(b) for b in ds) / domains
            apart = sum(((centre - z.detach()) ** 2 / v + v.log()).mean() for z in pairs) / domains / 2
            total = total + OPTIONS["d_shift"] * apart

            grads = torch.autograd.grad(total, [*weights, *bs, *ds])
            return [*grads, *torch.autograd.grad(names, ms)]

        return [*bs, *ds, *ms], step

    oracle.assert_same_steps(GMDG(**OPTIONS), start, kind, domains, optimiser, (6,) * 5)


def wide():
    """Sixteen features: with eight, four units of the label network are too few not to be dead by chance."""
    return Task(3, ("a", "b", "c"), 2, lambda: TinyMLP(5, 16), ("toy",))


def test_without_its_two_terms_it_is_miro():
    ends = []
    for spec in ("MIRO(weight=0.5, lr_mult=3)", "GMDG(weight=0.5, shift=0, d_shift=0, lr_mult=3)"):
        stack = ready(parse(spec))
        for t in range(3):
            train_step(stack, toy_batches(t))
        ends.append(stack.net.featurizer.layers[0].weight)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-14)


def test_covariances_with_the_label_differ_less_between_domains_than_under_erm():
    """Those of normalised features, by a factor; those relative to their size and the gaps between the domains' means
    of a class relative to the features' variance, by a fifth."""
    apart, relative, gaps, accuracy = {}, {}, {}, {}
    for algorithm in (ERM(), GMDG(weight=0.0, shift=0.1, lr_mult=1.0)):
        stack, kind = ready(algorithm, wide()), type(algorithm)
        for t in range(300):
            train_step(stack, toy_batches(t, 3, (32, 32, 32)))
        fresh = toy_batches(10_000, 3, (1000, 1000, 1000))
        f = torch.cat([stack.net.featurizer(b.x).detach() for b in fresh])
        y = torch.nn.functional.one_hot(torch.cat([b.y for b in fresh])).double()
        joint = torch.cat([f / f.square().mean().sqrt(), y], 1)
        each = torch.stack([torch.cov(z.T)[:16] for z in joint.chunk(3)])  # of features with themselves and the label
        apart[kind] = (each - each.mean(0)).square().mean().item()
        relative[kind] = apart[kind] / each.mean(0).square().mean().item()
        of_class = torch.stack(
            [torch.stack([z[b.y == c].mean(0) for c in range(3)]) for z, b in zip(f.chunk(3), fresh, strict=True)]
        )
        gaps[kind] = ((of_class - of_class.mean(0)).square().mean((0, 1)) / f.var(0)).mean().item()
        accuracy[kind] = sum((stack.predict(b.x).argmax(1) == b.y).double().mean().item() for b in fresh) / 3
    assert apart[GMDG] < apart[ERM] / 4
    assert relative[GMDG] < relative[ERM] * 0.8
    assert gaps[GMDG] < gaps[ERM] * 0.8
    assert accuracy[GMDG] > accuracy[ERM] - 0.01


def test_features_learn_nothing_from_their_distance_to_the_mean_over_domains():
    """Σ_d (z̄ − z_d) = 0: as in the authors' code, d_shift is felt by the variances alone."""
    ends = []
    for d_shift in (0.0, 50.0):
        stack = ready(GMDG(d_shift=d_shift), optimizer=lambda p: torch.optim.SGD(p, lr=0.01))
        before = stack.parts["domains"][1].detach().clone()
        for t in range(3):
            train_step(stack, toy_batches(t))
        ends.append(stack.net.featurizer.layers[0].weight)
        assert torch.equal(stack.parts["domains"][1], before) == (d_shift == 0)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-14)


def test_one_domain_has_nothing_to_compare():
    stack = ready(GMDG())
    before = [b.detach().clone() for b in stack.parts["domains"]]
    log = train_step(stack, toy_batches(0)[:1])
    assert "GMDG.apart" not in log
    assert all(torch.equal(b, old) for b, old in zip(stack.parts["domains"], before, strict=True))
    assert log["loss"].isfinite()


def test_a_single_sample_has_no_covariance():
    log = train_step(ready(GMDG()), toy_batches(0, 1, (1,)))
    assert log["loss"].isfinite()
    assert log["GMDG.explained"].item() == 0


def test_variances_of_domains_that_are_there():
    stack = ready(GMDG())
    before = [b.detach().clone() for b in stack.parts["domains"]]
    train_step(stack, toy_batches(0)[1:])
    same = [torch.equal(b, old) for b, old in zip(stack.parts["domains"], before, strict=True)]
    assert same == [True, False, False]


def test_the_label_network_learns_to_be_classified():
    stack = ready(GMDG(lr_mult=1.0), wide())
    losses = [train_step(stack, toy_batches(t, 3, (32, 32, 32)))["GMDG.labels"].item() for t in range(150)]
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])


def test_mixed_labels_are_mixed_numbers():
    stack = ready(parse("Mixup(alpha=1)+GMDG"))
    assert train_step(stack, toy_batches(0))["loss"].isfinite()
    stack = ready(GMDG())
    seen = []
    stack.parts["labels"][0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    soft = [b.__class__(b.x, torch.tensor([[0.5, 0.0, 0.5]] * 6).double(), b.domain) for b in toy_batches(0)]
    train_step(stack, soft)
    assert torch.equal(seen[0], torch.ones(18, 8, dtype=torch.float64))  # halfway between 0 and 2


def test_unequal_batches():
    with pytest.raises(ValueError, match=r"wanted equal batches, not \(4, 7, 3\)"):
        train_step(ready(GMDG()), toy_batches(0, 3, plain.SIZES))
    assert train_step(ready(Fish(GMDG())), toy_batches(0, 3, plain.SIZES))["loss"].isfinite()  # one domain at a time


@pytest.mark.parametrize("option", ["weight", "shift", "d_shift"])
def test_options_out_of_range(option):
    with pytest.raises(ValueError, match=rf"GMDG: {option}=-1; wanted a finite number ≥ 0"):
        GMDG(**{option: -1})
    with pytest.raises(ValueError, match="GMDG: lr_mult=0; wanted a finite number > 0"):
        GMDG(lr_mult=0)


@pytest.mark.parametrize("spec", ["RandConv+GMDG", "GMDG+RandConv", "DomainDrop+GMDG", "GMDG+DomainDrop"])
def test_layers_that_hand_on_other_features_than_the_loss_has_are_refused(spec):
    with pytest.raises(ConfigError, match=r"GMDG differentiates by the features .* Leave one of them out"):
        ready(parse(spec), toy_task(inputs=IMAGE))
