"""Weights of samples in the loss: what ERM minimises, by a plain loop, and which methods go along or refuse."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import dspreg.algorithms as index
from dspreg import Notice
from dspreg.algorithms import Algorithm, parse
from dspreg.algorithms.compatibility import require_weightable
from dspreg.algorithms.registry import algorithms
from dspreg.batches import Outputs
from dspreg.errors import ConfigError
from dspreg.testing.toy import IMAGE, INPUTS, ready, toy_batches, toy_task
from dspreg.training.step import train_step

IMAGES = {"ARM", "DomainDrop", "JiGen", "MixStyle", "RandConv"}
REFUSE = {"Mixup", "Fishr", "GMDG"}
# Regularisers that look at labels without taking a loss of them: they go by classes, and weigh no sample.
BY_CLASS = {"CAD", "CondCAD", "RSC"}


def weighted(batches, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [replace(b, weights=3 * torch.rand(len(b), generator=random)) for b in batches]


def test_the_loss_of_erm_is_that_of_a_plain_loop():
    algorithm = ready(parse("ERM"), toy_task(dropout=0.0))
    batches = weighted(toy_batches(0, sizes=(6, 3, 4)))
    total, number = 0.0, 0
    for batch in batches:
        for x, y, w in zip(batch.x, batch.y, batch.weights, strict=True):
            z = algorithm.net(x[None])[0].detach()
            total += float(w) * float(z.exp().sum().log() - z[y])
            number += 1
    assert algorithm.loss(algorithm(batches)).item() == pytest.approx(total / number, rel=1e-6)


def test_whole_weights_are_copies():
    """Of a batch as large: a sample of weight 2 beside one of weight 0 is there twice."""
    algorithm = ready(parse("ERM"), toy_task(dropout=0.0))
    batches = toy_batches(0, sizes=(4, 4, 4))
    given = [replace(b, weights=torch.tensor([2.0, 0.0, 1.0, 1.0])) for b in batches]
    copies = [replace(b, x=b.x[[0, 0, 2, 3]], y=b.y[[0, 0, 2, 3]]) for b in batches]
    found, expected = (algorithm.loss(algorithm(each)).item() for each in (given, copies))
    assert found == pytest.approx(expected, rel=1e-9)


def test_ones_change_no_bit():
    def stepped(batches):
        algorithm = ready(parse("VREx+DSPReg"), toy_task())
        train_step(algorithm, batches)
        return torch.cat([p.detach().flatten() for p in algorithm.net.parameters()])

    batches = toy_batches(0)
    assert torch.equal(stepped(batches), stepped([replace(b, weights=torch.ones(len(b))) for b in batches]))


def test_a_batch_without_weights_beside_one_with_counts_as_ones():
    batches = toy_batches(0, sizes=(2, 3, 2), soft=True)
    some = [batches[0], replace(batches[1], weights=torch.tensor([2.0, 0.5, 1.0])), batches[2]]
    out = Outputs.of(some, torch.zeros(7, 2), torch.zeros(7, 3))
    assert out.sample_weights.tolist() == [1, 1, 2, 0.5, 1, 1, 1]
    assert Outputs.of(batches, torch.zeros(7, 2), torch.zeros(7, 3)).sample_weights is None


def parameters_after(spec, batches, images):
    algorithm = ready(parse(spec) if isinstance(spec, str) else spec(), toy_task(inputs=IMAGE if images else INPUTS))
    for t in range(3):
        train_step(algorithm, batches(t))
    return torch.cat([p.detach().flatten() for p in algorithm.net.parameters()])


SPECS = [
    *(name for name in algorithms() if name not in REFUSE | BY_CLASS and name != "DomainBed"),
    "IRM(warmup=0)", "CORAL+DSPReg(engine='exact', weight=0.1)", "DSPReg(engine='gauss_newton', weight=0.1)",
    "DSPReg(engine='exact(part=0.5)', weight=0.1)", "DSPReg(engine='gauss_newton(part=0.5)', weight=0.1)",
    "GroupDRO+DSPReg(engine='lazy(2, exact)', weight=0.1)", "SAM+VREx",
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
def test_the_label_of_a_sample_of_weight_0_is_seen_by_no_method(spec):
    """And that of another one is, so that the weights are what hides it."""
    images = spec in IMAGES
    shape = {"inputs": IMAGE} if images else {}

    def batches(t, place, weights=True):
        made = toy_batches(t, sizes=(6, 6, 6), **shape)
        y = made[1].y.clone()
        y[place] = (y[place] + 1) % 3
        made[1] = replace(made[1], y=y) if place is not None else made[1]
        hidden = torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0, 1.0])
        return [replace(b, weights=hidden) if weights else b for b in made]

    def after(place):
        return parameters_after(spec, lambda t: batches(t, place), images)

    def untouched(t):
        return [replace(b, weights=torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0, 1.0])) for b in toy_batches(t, **shape)]

    plain = parameters_after(spec, untouched, images)
    assert torch.equal(plain, after(2))
    assert not torch.equal(plain, after(1))


@pytest.mark.parametrize("name", sorted(REFUSE))
def test_methods_that_can_not_weigh_samples_refuse_by_name(name):
    layers = list(getattr(index, name)().layers())
    with pytest.raises(
        ConfigError, match=rf"images can't be weighted in the loss under {name}, which .*--balance sampl"
    ):
        require_weightable(layers)


def test_every_method_goes_along_or_refuses():
    for name in algorithms():
        layers = list(getattr(index, name)().layers())
        if name not in REFUSE and not any(layer.compatibility.owns_step for layer in layers):
            require_weightable(layers)


class OwnLoss(Algorithm):
    def loss(self, out):
        return F.cross_entropy(out.logits, out.labels)


class OwnGradient(Algorithm):
    def gradient(self, objective, batches):
        return self.base.gradient(objective, batches)


def test_a_layer_of_ones_own_with_a_loss_is_warned_of():
    with pytest.warns(Notice, match=r"OwnLoss changes loss: images are weighted in what comes from out\.risks\(\)"):
        require_weightable(OwnLoss().layers())
    require_weightable(OwnGradient().layers())
