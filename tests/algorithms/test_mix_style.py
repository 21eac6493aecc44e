"""MixStyle against a loop over images and channels, the networks it works on, and the style it is meant to ignore."""

import copy

import pytest
import timm
import torch
import torchvision
from torch import nn

from dspreg import ConfigError
from dspreg.algorithms import ERM, MixStyle, Task, describe, parse
from dspreg.batches import Batch
from dspreg.networks import Featurizer, TinyCNN, make_backbone
from dspreg.randomness import generator, seed_for, seeded
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.testing import ready, toy_batches
from dspreg.training import train_step
from reference import pictures, plain

ALPHA = 0.4


def mixed(maps, m, other):
    """Image by image and channel by channel; statistics are numbers, not functions of the weights."""
    rows = []
    for i in range(len(maps)):
        channels = []
        for c in range(maps.shape[1]):
            here, there = maps[i, c].detach(), maps[other[i], c].detach()
            mu, sigma = here.mean(), (here.var(unbiased=True) + 1e-6).sqrt()
            mu_2, sigma_2 = there.mean(), (there.var(unbiased=True) + 1e-6).sqrt()
            scale, shift = m[i] * sigma + (1 - m[i]) * sigma_2, m[i] * mu + (1 - m[i]) * mu_2
            channels.append((maps[i, c] - mu) / sigma * scale + shift)
        rows.append(torch.stack(channels))
    return torch.stack(rows)


def draws(t, n, p):
    """The random numbers of step t in their order: whether, how much, with whom. None for a step without."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed_for("toy", t, "noise"))
        if torch.rand(()) >= p:
            return None
        m = torch.distributions.Dirichlet(torch.full((n, 1, 1, 1, 2), ALPHA)).sample()[..., 0].flatten()
        return m.double(), torch.randperm(n).tolist()


@plain.problems
@plain.optimisers
@pytest.mark.parametrize("p", [1.0, 0.5])
def test_steps_are_those_of_the_loop(domains, optimiser, p):
    def step(weights, batches, by_hand, t):
        x, y = torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])
        maps, drawn = pictures.early(weights, x), draws(t, len(x), p)
        if drawn is not None:
            maps = mixed(maps, *drawn)
        by_hand.step(weights, plain.gradient(pictures.mean_risk(pictures.late(weights, maps), y), weights))

    pictures.assert_same_steps(MixStyle(p=p, alpha=ALPHA), step, domains, optimiser)


def test_it_mixes_in_a_share_of_the_steps():
    assert [draws(t, 2, 0.5) is None for t in range(3)] == [False, True, True]  # the test above has both
    x = toy_batches(0, inputs=pictures.IMAGE)[0].x
    for p, share in ((0.0, 0.0), (0.3, 0.3), (1.0, 1.0)):
        net = pictures.ready(MixStyle(p=p), 3).net
        plain_features = net.eval().featurizer(x)
        net.train()
        with seeded("share"):
            changed = [not torch.equal(net.featurizer(x), plain_features) for _ in range(400)]
        assert sum(changed) / 400 == pytest.approx(share, abs=0.06)


def test_prediction_and_measuring_see_plain_features():
    plainly, stack = pictures.ready(ERM(), 3), pictures.ready(MixStyle(p=1.0), 3)
    batch = toy_batches(0, inputs=pictures.IMAGE)[0]
    assert not torch.allclose(stack.train().predict(batch.x), plainly.predict(batch.x))
    with evaluation_mode(stack):
        assert torch.equal(stack.predict(batch.x), plainly.predict(batch.x))
        assert torch.equal(stack.measured(batch)(batch.x), plainly.predict(batch.x))
    assert stack.net.mixing[0].training
    assert stack.net.state_dict().keys() == plainly.net.state_dict().keys()


def test_a_copy_mixes_by_itself():
    net = pictures.ready(MixStyle(p=1.0), 3).net
    twin = copy.deepcopy(net)
    x = toy_batches(0, inputs=pictures.IMAGE)[0].x
    twin.eval()
    net.train()
    with seeded("copies"):
        ours, theirs = net(x), twin(x)
    assert torch.equal(theirs, twin(x))
    assert not torch.allclose(ours, theirs)
    assert twin.load_state_dict(net.state_dict()).missing_keys == []


def test_setting_up_again_mixes_once():
    layer = MixStyle(p=1.0)
    for _ in range(2):
        stack = pictures.ready(layer, 3)
    assert len(stack.net.mixing) == 1
    assert len(stack.net.featurizer.layers[1]._forward_hooks) == 1


# On networks.


def stack_on(make, **options):
    return MixStyle(p=1.0, **options).setup(Task(2, ("a", "b"), 1, make, ("networks",)), torch.optim.Adam)


def images(side=64):
    x = torch.rand(6, 3, side, side, generator=generator("images"))
    return [Batch(x[:3], torch.tensor([0, 1, 0]), 0), Batch(x[3:], torch.tensor([1, 1, 0]), 1)]


EARLY = {
    "resnet18": ["model.layer1", "model.layer2"],
    "tf_efficientnet_lite0": ["model.blocks.1", "model.blocks.2"],
    "convnext_atto": ["model.stages.0", "model.stages.1"],
    "densenet121": ["model.features.denseblock1", "model.features.denseblock2"],
    "small-cnn": ["layers.2", "layers.5"],
}


@pytest.mark.parametrize("name", EARLY)
def test_the_first_two_stages_are_found(name):
    stack = stack_on(make_backbone(name, weights="none", image_size=64).make)
    assert [mixing.place for mixing in stack.net.mixing] == EARLY[name]
    hooked = [n for n, m in stack.net.featurizer.named_modules() if m._forward_hooks]
    assert hooked == EARLY[name]  # and nowhere else
    stack.train()  # which freezes batch norm, and not MixStyle
    x = images()[0].x
    assert not torch.equal(stack.net(x), stack.net(x))
    train_step(stack, images())
    stack.eval()
    assert torch.equal(stack.predict(x), stack.predict(x))


class Torchvision(nn.Module):
    def __init__(self, net):
        super().__init__()
        net.fc = nn.Identity()
        self.width, self.body = 512, net

    def forward(self, x):
        return self.body(x)


def test_torchvisions_resnets():
    stack = stack_on(lambda: Torchvision(torchvision.models.resnet18()))
    assert [mixing.place for mixing in stack.net.mixing] == ["body.layer1", "body.layer2"]
    train_step(stack, images())


def test_places_by_name():
    make = make_backbone("resnet18", weights="none", image_size=64).make
    places = ["model.layer1", "model.layer2", "model.layer3"]  # the authors' for PACS
    stack = stack_on(make, places=places)
    assert [mixing.place for mixing in stack.net.mixing] == places
    assert parse(describe(stack)).places == places
    train_step(stack, images())
    with pytest.raises(ConfigError, match=r"TimmFeaturizer has no module 'layer1'; it has model, model\.conv1"):
        stack_on(make, places=["layer1"])


def test_a_frozen_batch_norm_is_a_place_too():
    """It is in evaluation mode while the network trains, and what is mixed behind it is not."""
    stack = stack_on(make_backbone("resnet18", weights="none", image_size=64).make, places=["model.bn1"]).train()
    assert not stack.net.featurizer.model.bn1.training
    assert not torch.equal(stack.net(images()[0].x), stack.net(images()[0].x))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "levit_128s"])
def test_transformers_have_no_feature_maps(name):
    make = make_backbone(name, weights="none", image_size=224).make
    with pytest.raises(ConfigError, match=r"MixStyle wants feature maps \(B, C, H, W\) of early stages, and TimmFeat"):
        stack_on(make)
    place = "model.blocks.0" if name.startswith("vit") else "model.stages.0"
    with pytest.raises(ConfigError, match=rf"{place} gives \(6, \d+, \d+\)"):
        train_step(stack_on(make, places=[place]), images(224))


def test_channels_at_the_end_are_refused():
    """timm's Swin has maps (B, H, W, C), whose statistics over the last two would be of something else."""
    options = {"img_size": 56, "window_size": 7, "depths": (1, 1, 1, 1)}
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=0, **options)
    model.width = 768
    with pytest.raises(ConfigError, match=r"layers\.0 gives \(6, 14, 14, 96\)"):
        train_step(stack_on(lambda: model), images(56))


def test_vectors_and_single_pixels_have_no_style():
    with pytest.raises(ConfigError, match="TinyMLP has none that are known"):
        ready(MixStyle())
    with pytest.raises(ConfigError, match=r"layers\.4 gives \(6, 8, 1, 1\)"):
        train_step(stack_on(TinyCNN, places=["layers.4"]), images(6))


# What it is for.


class Linear(Featurizer):
    """Maps linear in the image, without padding: else their shape still tells the shade once it is mixed."""

    stages = ("layers.0",)

    def __init__(self):
        super().__init__()
        self.width = 16
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 16), nn.ReLU())

    def forward(self, x):
        return self.layers(x)


def styled(agreement, random, domain=0, n=64):
    """Which half is lighter is the label, under much noise; the shade of the whole agrees with it by chance."""
    y = torch.randint(2, (n,), generator=random)
    halves = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0]) * (0.5 - y.view(-1, 1, 1, 1))
    shade = torch.where(torch.rand(n, generator=random) < agreement, y, 1 - y) * 2.0 - 1
    return Batch(halves + shade.view(-1, 1, 1, 1) + 5 * torch.randn(n, 3, 6, 6, generator=random), y, domain)


def test_it_sees_through_a_style_that_agrees_with_the_label_and_erm_does_not():
    """The shade agrees in 95 % and 85 % of two domains, and in 10 % of the one that is tested on."""
    accuracy = {}
    for algorithm in (ERM(), MixStyle(p=1.0)):
        random = generator("styled")
        stack = algorithm.setup(Task(2, ("a", "b"), 1, Linear), lambda p: torch.optim.Adam(p, lr=0.003))
        for _ in range(300):
            train_step(stack, [styled(0.95, random), styled(0.85, random, 1)])
        test = styled(0.1, random, n=4000)
        with evaluation_mode(stack):
            accuracy[type(algorithm)] = (stack.predict(test.x).argmax(1) == test.y).double().mean().item()
    assert accuracy[ERM] < 0.62
    assert accuracy[MixStyle] > 0.7


def test_defaults_are_the_authors():
    assert (MixStyle().p, MixStyle().alpha, MixStyle().places) == (0.5, 0.1, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"p": 1.5}, "p=1.5; wanted a probability"), ({"alpha": 0.0}, "alpha=0.0; wanted a number > 0")],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ConfigError, match=message):
        MixStyle(**options)
