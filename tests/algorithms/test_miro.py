"""MIRO against its formula on plain tensors, what it does to the oracle, and what a pretrained network knew."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from dspreg.algorithms import ERM, MIRO, Algorithm, parse
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Outputs
from dspreg.networks import TinyMLP, make_backbone
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.training import train_step
from reference import oracle, plain


@plain.problems
@plain.optimisers
@pytest.mark.parametrize("kind", ["vectors", "images"])
def test_steps_are_those_of_the_formula(kind, domains, optimiser):
    def start(stack, weights):
        old = [w.detach().clone() for w in weights]
        bs = oracle.spreads([8] if kind == "vectors" else [4, 8])

        def step(batches, t):
            x, y = torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])
            here, f = oracle.maps(weights, x)
            loss = oracle.cross_entropy(oracle.classified(weights, f), y)
            loss = loss + 2.0 * oracle.distance(here, oracle.maps(old, x)[0], bs)
            return torch.autograd.grad(loss, [*weights, *bs])

        return bs, step

    oracle.assert_same_steps(MIRO(weight=2.0, lr_mult=3.0), start, kind, domains, optimiser, plain.SIZES)


def coloured(n, domain, agreement, random):
    """A label with noise in a quarter, an input that tells it without the noise, and one that agrees by chance."""
    clean = torch.randint(2, (n,), generator=random)
    y = torch.where(torch.rand(n, generator=random) < 0.25, 1 - clean, clean)
    colour = torch.where(torch.rand(n, generator=random) < agreement, y, 1 - y)
    x = torch.zeros(n, 5, dtype=torch.float64)
    x[:, 0], x[:, 1] = 2 * clean - 1, 2 * colour - 1
    return Batch(x, y, domain)


def colour_blind():
    """A network whose pretraining has taught it to look at the first input alone."""
    features = TinyMLP(5, 8)
    with torch.no_grad():
        features.layers[0].weight[:, 1:] = 0
    return features


def test_what_the_pretrained_network_knew_is_kept_and_erm_forgets_it():
    """Colour agrees with the label in 95 % and 85 % of two domains, and in 10 % of the one that is tested on."""
    accuracy, moved = {}, {}
    for algorithm in (ERM(), MIRO(weight=1.0)):
        random = torch.Generator().manual_seed(0)
        test = coloured(4000, 0, 0.1, random)
        stack = ready(algorithm, Task(2, ("a", "b"), 2, colour_blind, ("coloured",)))
        before = stack.net.featurizer(test.x).detach()
        for _ in range(400):
            train_step(stack, [coloured(128, 0, 0.95, random), coloured(128, 1, 0.85, random)])
        accuracy[type(algorithm)] = (stack.predict(test.x).argmax(1) == test.y).double().mean().item()
        moved[type(algorithm)] = (stack.net.featurizer(test.x) - before).square().mean().item()
    assert accuracy[ERM] < 0.5
    assert accuracy[MIRO] > 0.7  # 0.75 is the best there is without colour
    assert moved[MIRO] < 1e-3 * moved[ERM]


# The oracle.


def by_name(stack):
    return {type(layer).__name__: layer for layer in stack.layers()}


def test_it_stays_as_it_was_in_evaluation_mode_and_out_of_what_is_trained_and_saved():
    stack = ready(MIRO())
    (known,) = stack._oracle
    before = deepcopy(known.state_dict())
    for t in range(3):
        stack.train()
        train_step(stack, toy_batches(t))
    assert not known.training
    assert not any(p.requires_grad for p in known.parameters())
    assert all(torch.equal(t, before[name]) for name, t in known.state_dict().items())
    assert before["layers.0.weight"].dtype == torch.float64  # it follows the network
    ids = {id(p) for p in known.parameters()}
    assert not any(id(p) in ids for p in stack.parameters())
    network = {f"base.network.{name}" for name in toy_network()} | {"base.network.miro.variances.0"}
    assert {n for n, t in stack.state_dict().items() if torch.is_tensor(t)} == network


def toy_network():
    return ready(ERM()).net.state_dict()


@pytest.mark.parametrize("spec", ["MIRO", "Mixup+MIRO", "MIRO+Mixup"])
def test_it_sees_the_images_that_the_network_sees_and_dropout_does_not_count(spec):
    """At the start the features are the oracle's, mixed images or not: R = ½ log v."""
    for inputs, places in ((5, 1), ((3, 6, 6), 2)):
        stack = ready(parse(spec), toy_task(inputs=inputs, dropout=0.5))
        log = train_step(stack, toy_batches(0, inputs=inputs))
        assert log["MIRO.distance"].item() == pytest.approx(places * torch.tensor(0.1).log().item() / 2, rel=1e-6)


class Noisy(Algorithm):
    """Noise on features while training, by a hook."""

    def build(self, task):
        net = self.base.build(task)
        net.noise = nn.Dropout(0.5)  # in the network, so that its mode is the network's
        net.featurizer.layers[1].register_forward_hook(
            lambda _, __, out: net.noise(out) if net.noise.training else None
        )
        return net


@pytest.mark.parametrize("make", [lambda: Noisy(MIRO()), lambda: MIRO(Noisy())])
def test_it_has_no_part_in_what_layers_do_to_features(make):
    stack = ready(make(), toy_task(dropout=0.0))
    x = toy_batches(0)[0].x
    known = by_name(stack)["MIRO"]._oracle[0](x)
    torch.testing.assert_close(known, stack.eval().net.featurizer(x), rtol=0, atol=0)
    assert train_step(stack.train(), toy_batches(0))["MIRO.distance"] > 0.1  # the network's features are seen with it


def test_no_hook_stays_on_the_network():
    stack = ready(MIRO())
    train_step(stack, toy_batches(0))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in [*stack.modules(), *stack._oracle[0].modules()])


def test_a_copy_takes_the_same_steps():
    stack = ready(MIRO(weight=1.0))
    train_step(stack, toy_batches(0))
    copied = deepcopy(stack)
    for each in (stack, copied):
        train_step(each, toy_batches(1))
    assert torch.equal(copied.net.classifier.weight, stack.net.classifier.weight)
    assert copied._oracle[0] is not stack._oracle[0]


def test_variances_learn_faster_and_have_no_sensitivity():
    stack = ready(parse("MIRO(lr_mult=3)+DSPReg(refresh_steps=1)"))
    assert [group["lr"] for group in stack.stack.optimizer.param_groups] == [0.01, 0.03]
    for t in range(2):
        train_step(stack, toy_batches(t))
    c = by_name(stack)["DSPReg"].c
    assert c["miro.variances.0"].count_nonzero() == 0
    assert c["featurizer.layers.0.weight"].count_nonzero() > 0


def test_a_network_that_is_called_domain_by_domain_is_heard_whole():
    class Apart(ERM):
        def forward(self, batches):
            features = torch.cat([self.net.featurizer(b.x) for b in batches])
            return Outputs.of(batches, features, self.net.classifier(features))

    distances = []
    for bottom in (ERM(), Apart()):
        stack = ready(MIRO(bottom), toy_task(dropout=0.0))
        with torch.no_grad():
            stack.net.featurizer.layers[0].weight.mul_(2)
        distances.append(train_step(stack, toy_batches(0, 3, plain.SIZES))["MIRO.distance"].item())
    assert distances[0] == pytest.approx(distances[1], rel=1e-12)


# Networks and options.


@pytest.mark.parametrize(
    ("name", "size", "shapes"),
    [
        ("test_resnet", 32, [(1, c, 1, 1) for c in (32, 32, 48, 192, 96)]),
        ("tf_efficientnet_lite0", 64, [(1, c, 1, 1) for c in (16, 24, 40, 112, 320)]),
        ("vit_tiny_patch16_224", 32, [(1, 1, 192)] * 5),
        ("test_vit", 160, [(1, 1, 1, 64)] + [(1, 1, 64)] * 4),  # channels last at the patches
        ("small-cnn", 28, [(1, c, 1, 1) for c in (16, 32, 64)]),
    ],
)
def test_one_variance_per_channel_of_real_networks(name, size, shapes):
    backbone = make_backbone(name, weights="none", image_size=size)
    stack = MIRO().setup(Task(3, ("a", "b"), 2, backbone.make), lambda p: torch.optim.SGD(p, lr=1e-3))
    assert [tuple(p.shape) for p in stack.parts.parameters()] == shapes
    random = torch.Generator().manual_seed(0)
    for _ in range(2):
        x = torch.randn(2, 2, 3, size, size, generator=random)
        log = train_step(stack, [Batch(x[d], torch.tensor([0, 2]), d) for d in range(2)])
        assert log["loss"].isfinite()


def test_places_by_name():
    assert len(ready(MIRO(places="layers.2"), toy_task(inputs=(3, 6, 6))).parts["variances"]) == 1
    stack = ready(MIRO(places=("layers.0", "layers.3")), toy_task(inputs=(3, 6, 6)))
    assert [p.numel() for p in stack.parts["variances"]] == [4, 8]
    with pytest.raises(ValueError, match=r"MIRO: the featurizer has no place 'layers.x'\. Did you mean 'layers"):
        ready(MIRO(places=("layers.x",)))
    with pytest.raises(ValueError, match="MIRO: no places; wanted at least one"):
        ready(MIRO(places=()))

    class Idle(TinyMLP):
        def __init__(self):
            super().__init__(5)
            self.spare = nn.Linear(5, 5)

    with pytest.raises(ValueError, match="MIRO: nothing passes through spare"):
        ready(MIRO(places=("layers.1", "spare")), Task(3, ("a",), 2, Idle))


def test_twice_in_a_stack():
    with pytest.raises(ValueError, match="MIRO stands twice in this stack"):
        ready(MIRO(MIRO()))


@pytest.mark.parametrize("options", [{"weight": -1.0}, {"lr_mult": 0.0}, {"weight": float("nan")}])
def test_options_out_of_range(options):
    with pytest.raises(ValueError, match=r"MIRO: .*wanted a finite number"):
        MIRO(**options)
