"""DomainDrop against loops over samples and channels, the networks it works on, and the channels it can do without."""

import copy

import pytest
import torch

from dspreg import ConfigError
from dspreg.algorithms import ERM, DomainDrop, Task, parse
from dspreg.batches import Batch
from dspreg.networks import make_backbone
from dspreg.randomness import generator, seeded
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.testing import toy_batches, toy_task
from dspreg.training import train_step
from reference import pictures, plain

REVERSE, WEIGHT, TEMPERATURE, DROP = 0.4, 2.0, 3.0, 0.5
HEADS = [f"domaindrop.{stage}.guess.{kind}" for stage in (0, 1) for kind in ("weight", "bias")]


class Reverse(torch.autograd.Function):
    """The identity, whose gradient is turned round."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return -REVERSE * grad


def scaled(values):
    low, high = min(values), max(values)
    return [(v - low) / (high - low) if high > low else 0.0 for v in values]


def kept(maps, weight, domains, u):
    """1 for the channels that stay, sample by sample."""
    result = torch.ones(maps.shape[:2], dtype=maps.dtype)
    for b, (sample, d) in enumerate(zip(maps.detach(), domains, strict=True)):
        channels, pixels = sample.shape[0], sample[0].numel()
        flat = sample.reshape(channels, -1)
        each = [scaled([float(flat[c, p] * weight[d, c]) for c in range(channels)]) for p in range(pixels)]
        score = scaled([sum(pixel[c] for pixel in each) / pixels for c in range(channels)])
        key = [float(u[b, c]) ** (1 / s) if s > 0 else 0.0 for c, s in enumerate(score)]
        for c in sorted(range(channels), key=lambda c: -key[c])[: int(DROP * channels)]:
            result[b, c] = 0.0
    return result


def copies(batches):
    """Every sample twice in a row, as it enters the network."""
    x = torch.cat([b.x.repeat_interleave(2, 0) for b in batches])
    y = torch.cat([b.y.repeat_interleave(2) for b in batches])
    return x, y, [b.domain for b in batches for _ in range(2 * len(b))]


def kl(p, q):
    return (p * (p / q).log()).mean()


def plain_loss(weights, batches, p):
    """In the order of the random numbers of a step: which stage, whether, and then a number for every channel."""
    x, y, domains = copies(batches)
    active = float(torch.rand(())) < p
    chosen = int(torch.randint(2, ())) if active else None
    told, maps = [], x
    for stage, (stride, k) in enumerate([(1, 0), (2, 2)]):
        maps = torch.tanh(torch.nn.functional.conv2d(maps, weights[k], weights[k + 1], stride=stride, padding=1))
        v, b = weights[6 + 2 * stage], weights[7 + 2 * stage]
        told.append(pictures.mean_risk(Reverse.apply(maps).mean((2, 3)) @ v.T + b, torch.tensor(domains)))
        if stage == chosen:
            mask = kept(maps, v.detach(), domains, torch.rand(maps.shape[:2]))
            maps = maps * (mask * mask.numel() / mask.sum())[:, :, None, None]
    z = maps.mean((2, 3)) @ weights[4].T + weights[5]
    p1, p2 = ((one / TEMPERATURE).softmax(1) for one in (z[::2], z[1::2]))
    return pictures.mean_risk(z, y) + sum(told) / 2 + WEIGHT * (kl(p1, p2) + kl(p2, p1)) / 2


@plain.problems
@plain.optimisers
@pytest.mark.parametrize("p", [1.0, 0.5])
def test_steps_are_those_of_the_loop(domains, optimiser, p):
    def step(weights, batches, by_hand, t):
        with seeded("toy", t, "noise"):
            loss = plain_loss(weights, batches, p)
        by_hand.step(weights, plain.gradient(loss, weights))

    algorithm = DomainDrop(drop=DROP, p=p, reverse=REVERSE, weight=WEIGHT, temperature=TEMPERATURE)
    pictures.assert_same_steps(algorithm, step, domains, optimiser, HEADS)


def test_channels_of_both_stages_are_dropped_within_a_few_steps():
    with seeded("stages"):
        stack = pictures.ready(DomainDrop(p=1.0), 3)
    batches, masks = toy_batches(0, inputs=pictures.IMAGE), []
    for i, stage in enumerate(stack.net.domaindrop):
        stage.keep = lambda x, w, i=i, stage=stage: masks.append(i) or type(stage).keep(stage, x, w)
    for _ in range(8):
        train_step(stack, batches)
    assert len(masks) == 8  # one stage at a time
    assert set(masks) == {0, 1}


def test_as_many_channels_are_dropped_as_asked_for_and_those_of_the_domain_first():
    stage = pictures.ready(DomainDrop(drop=0.5), 2).net.domaindrop[1]
    x = torch.rand(400, 8, 3, 3, generator=generator("maps"), dtype=torch.float64) + 1
    weight = torch.linspace(0.1, 1, 8, dtype=torch.float64).expand(400, 8)  # the last channel tells most
    with seeded("drops"):
        mask = stage.keep(x, weight)[:, :, 0, 0]
    assert torch.equal((mask == 0).sum(1), torch.full((400,), 4))
    assert mask.max().item() == pytest.approx(2.0)  # half are gone
    assert mask.mean().item() == pytest.approx(1.0)
    dropped = (mask == 0).double().mean(0)
    assert dropped[0] == 0  # a score of 0 is never dropped
    assert dropped[-1] > dropped[3] > dropped[1]


def test_equal_channels_drop_nothing_but_give_numbers():
    stage = pictures.ready(DomainDrop(drop=0.5), 2).net.domaindrop[1]
    mask = stage.keep(torch.zeros(3, 8, 2, 2).double(), torch.ones(3, 8).double())
    assert torch.equal(mask, torch.ones_like(mask))


def test_a_reversed_gradient_is_that_of_the_autograd_function():
    pooled = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    ours = pooled.detach() - REVERSE * (pooled - pooled.detach())
    assert torch.equal(ours, pooled)
    g, other = (torch.autograd.grad(each.square().sum(), pooled)[0] for each in (ours, Reverse.apply(pooled)))
    torch.testing.assert_close(g, other, rtol=0, atol=1e-15)


def test_prediction_and_measuring_see_plain_features():
    plainly, stack = pictures.ready(ERM(), 3), pictures.ready(DomainDrop(p=1.0), 3)
    batch = toy_batches(0, inputs=pictures.IMAGE)[0]
    for mode in (stack.eval, stack.train):
        mode()
        assert torch.equal(stack.predict(batch.x), plainly.predict(batch.x))
    with evaluation_mode(stack):
        assert torch.equal(stack.measured(batch)(batch.x), plainly.predict(batch.x))
    twin = copy.deepcopy(stack.net)
    assert torch.equal(twin(batch.x), plainly.predict(batch.x))


def test_an_error_leaves_nothing_behind():
    stack = pictures.ready(DomainDrop(), 3)
    bad = toy_batches(0, inputs=pictures.IMAGE)
    with pytest.raises(RuntimeError):
        train_step(stack, [Batch(b.x[:, :2], b.y, b.domain) for b in bad])
    assert all(stage.domains is None and not stage.losses for stage in stack.net.domaindrop)
    assert not any(layer._forward_pre_hooks for layer in stack.layers())


def test_the_domain_is_that_of_the_samples_that_enter_the_network():
    """Mixup below puts the domains in another order: what it hands on is what counts."""
    stack = pictures.ready(parse("Mixup+DomainDrop"), 3)
    seen = []
    stage = stack.net.domaindrop[0]
    forward = type(stage).forward
    stage.forward = lambda m, given, x: seen.append(stage.domains.tolist()) or forward(stage, m, given, x)
    batches = toy_batches(0, inputs=pictures.IMAGE, sizes=(4, 4, 4))
    stack.stack.steps = 1
    with seeded("toy", 1, "noise"):
        if torch.rand(()) < 0.8:
            torch.randint(2, ())
        circle = torch.randperm(3).tolist()
    train_step(stack, batches)
    assert circle != [0, 1, 2]
    assert seen[0] == [d for d in circle for _ in range(8)]


def test_the_two_copies_of_a_sample_are_in_different_halves():
    """So that IRM, which compares even and odd samples, does not compare an image with itself."""
    stack = pictures.ready(DomainDrop(p=0.0), 3)
    batches = toy_batches(0, inputs=pictures.IMAGE, sizes=(4, 5, 6))
    out = stack(batches)
    assert out.sizes == (8, 10, 12)
    for b, labels in zip(batches, out.by_domain(out.labels), strict=True):
        assert torch.equal(labels, torch.cat([b.y, b.y]))
    assert stack.inconsistency(out).item() == pytest.approx(0.0, abs=1e-16)  # nothing was dropped


# On networks.


STAGES = {
    "resnet18": [f"model.layer{i}" for i in (1, 2, 3, 4)],
    "tf_efficientnet_lite0": ["model.blocks.1", "model.blocks.2", "model.blocks.4", "model.blocks.6"],
    "convnext_atto": [f"model.stages.{i}" for i in range(4)],
    "small-cnn": ["layers.2", "layers.5", "layers.8"],
}


def stack_on(name, algorithm):
    make = make_backbone(name, weights="none", image_size=64).make
    return algorithm.setup(Task(2, ("a", "b"), 1, make, ("networks",)), torch.optim.Adam)


@pytest.mark.parametrize("name", STAGES)
def test_the_stages_are_found(name):
    stack = stack_on(name, DomainDrop(p=1.0))
    hooked = [n for n, m in stack.net.featurizer.named_modules() if m._forward_hooks]
    assert hooked == STAGES[name]
    x = torch.rand(6, 3, 64, 64, generator=generator("images"))
    before = [p.detach().clone() for p in stack.net.domaindrop.parameters()]
    log = train_step(stack, [Batch(x[:3], torch.tensor([0, 1, 0]), 0), Batch(x[3:], torch.tensor([1, 1, 0]), 1)])
    assert torch.isfinite(log["DomainDrop.domain_loss"])
    assert all(not torch.equal(a, b) for a, b in zip(before, stack.net.domaindrop.parameters(), strict=True))


def test_tokens_and_unknown_places_are_refused_by_name():
    with pytest.raises(
        ConfigError, match=r"DomainDrop wants feature maps \(B, C, H, W\), and .* gives \(1, .*\); name other places"
    ):
        stack_on("vit_tiny_patch16_224", DomainDrop())
    with pytest.raises(ConfigError, match=r"DomainDrop: the featurizer has no place 'layers\.99'"):
        pictures.ready(DomainDrop(places=["layers.99"]), 3)
    with pytest.raises(ConfigError, match="DomainDrop stands twice in this stack"):
        pictures.ready(parse("DomainDrop+DomainDrop"), 3)
    with pytest.raises(ConfigError, match="DomainDrop wants feature maps"):
        DomainDrop().setup(toy_task(), torch.optim.Adam)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": 1.0}, r"DomainDrop: drop=1\.0; wanted a share from 0 to below 1"),
        ({"p": 1.5}, r"DomainDrop: p=1\.5; wanted a probability, from 0 to 1"),
        ({"reverse": -1.0}, r"DomainDrop: reverse=-1\.0; wanted a finite number ≥ 0"),
        ({"weight": float("inf")}, "DomainDrop: weight=inf; wanted a finite number ≥ 0"),
        ({"temperature": 0.0}, r"DomainDrop: temperature=0\.0; wanted a finite number > 0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        DomainDrop(**options)


# What it is for.


def test_it_still_tells_the_class_with_a_channel_missing():
    """Any one of the four channels of the first stage; the others scaled up."""
    missing = {}
    for algorithm in (ERM(), DomainDrop()):
        stack = pictures.ready(algorithm, 3)
        for t in range(200):
            train_step(stack, toy_batches(t, 3, (16, 16, 16), inputs=pictures.IMAGE))
        fresh, weights = toy_batches(10_000, 3, (200, 200, 200), inputs=pictures.IMAGE), pictures.weights_of(stack)
        x, y = torch.cat([b.x for b in fresh]), torch.cat([b.y for b in fresh])
        maps, right = pictures.early(weights, x), []
        for c in range(4):
            others = torch.tensor([float(k != c) for k in range(4)]).double()[:, None, None] * 4 / 3
            right.append((pictures.late(weights, maps * others).argmax(1) == y).double().mean().item())
        assert (pictures.late(weights, maps).argmax(1) == y).double().mean() > 0.85
        missing[type(algorithm)] = sum(right) / 4
    assert missing[DomainDrop] > missing[ERM] + 0.15
