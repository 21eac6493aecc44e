"""One optimiser for parts with options and losses of their own: what moves, what does not, and what is saved."""

import pytest
import torch

from dspreg import load
from dspreg.algorithms import Algorithm
from dspreg.algorithms.registry import find_algorithm
from dspreg.algorithms.stack import descend, give_gradients, regroup
from dspreg.errors import Preempted
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.training import train, train_step
from dspreg.training.serialization import unpack
from dspreg.training.state import State
from helpers import tiny

# Gradients for some.


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)).double()


def test_gradients_are_given_to_these_parts_alone():
    both, x = net(), torch.randn(5, 3, dtype=torch.float64)
    before = torch.ones_like(both[0].weight)
    both[0].weight.grad = before
    both[1].bias.requires_grad_(False)
    give_gradients(both(x).square().sum(), both[1])
    expected = 2 * both(x).T @ both[0](x)
    torch.testing.assert_close(both[1].weight.grad, expected.detach())
    assert both[1].bias.grad is None
    assert both[0].weight.grad is before  # whoever set it may want it
    assert both[0].bias.grad is None


def test_a_part_that_the_loss_does_not_reach_gets_none():
    both, x = net(), torch.randn(5, 3, dtype=torch.float64)
    both[1].weight.grad = torch.ones_like(both[1].weight)
    give_gradients(both[0](x).square().sum() + both[1].bias.sum(), both[1])
    assert both[1].weight.grad is None  # and no old one either
    assert torch.equal(both[1].bias.grad, torch.ones(2, dtype=torch.float64))


# Options for some.


def test_regrouped_parameters_have_options_of_their_own_and_the_rest_keeps_its_own():
    both = net()
    adam = torch.optim.Adam(both.parameters(), lr=0.1, weight_decay=0.3)
    regroup(adam, both[1].parameters(), lr=0.2, betas=(0.5, 0.9))
    first, second = adam.param_groups
    assert list(map(id, first["params"])) == list(map(id, both[0].parameters()))
    assert list(map(id, second["params"])) == list(map(id, both[1].parameters()))
    assert (first["lr"], first["betas"], first["weight_decay"]) == (0.1, (0.9, 0.999), 0.3)
    assert (second["lr"], second["betas"], second["weight_decay"]) == (0.2, (0.5, 0.9), 0.3)  # left open: the run's


def test_options_that_the_optimiser_does_not_know_are_left_out():
    both = net()
    sgd = torch.optim.SGD(both.parameters(), lr=0.1)
    regroup(sgd, both[1].parameters(), lr=0.2, betas=(0.5, 0.9), amsgrad=True)
    assert [g["lr"] for g in sgd.param_groups] == [0.1, 0.2]
    assert not any("betas" in g or "amsgrad" in g for g in sgd.param_groups)
    for p in both.parameters():
        p.grad = torch.ones_like(p)
    before = [p.detach().clone() for p in both.parameters()]
    sgd.step()
    moved = [float((old - p).detach().mean()) for old, p in zip(before, both.parameters(), strict=True)]
    assert moved == pytest.approx([0.1, 0.1, 0.2, 0.2])


def test_several_layers_may_each_regroup():
    three = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))
    sgd = torch.optim.SGD(three.parameters(), lr=0.1)
    regroup(sgd, three[2].parameters(), lr=0.3)
    regroup(sgd, three[1].parameters(), lr=0.2)
    found = {id(p): g["lr"] for g in sgd.param_groups for p in g["params"]}
    assert [found[id(p)] for p in three.parameters()] == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    assert sum(len(g["params"]) for g in sgd.param_groups) == 6


class Tuned(Algorithm):
    """Counts how often it is asked, and what for."""

    def build(self, task):
        network = self.base.build(task)
        self.own, self.asked = torch.nn.Linear(network.featurizer.width, 2), []
        return network

    def configure_optimizer(self, optimizer):
        self.asked.append(optimizer)
        regroup(optimizer, self.own.parameters(), lr=0.5)


def test_every_layer_is_asked_once_when_the_optimiser_is_made():
    stack = ready(Tuned(Tuned()))
    for layer in (stack, stack.base):
        assert layer.asked == [stack.stack.optimizer]
    assert [g["lr"] for g in stack.stack.optimizer.param_groups] == [0.01, 0.5, 0.5]


# A step of some.


class Descending(Tuned):
    """After the step of the base: one of `own`, or of the featurizer, on a loss of its own."""

    part = "own"

    def other(self, out):
        return self.own(out.features).square().mean()

    def update(self, direction, batches):
        log = self.base.update(direction, batches)
        self.between = states(self)
        module = self.own if self.part == "own" else self.net.featurizer
        self.expected = self.stack.evaluate(self.other, batches)
        self.slopes = torch.autograd.grad(self.expected, list(module.parameters()))
        self.returned = descend(self.stack, self.other, module, batches)
        return log


def states(stack):
    return {n: p.detach().clone() for n, p in stack.named_parameters()}


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1)


@pytest.mark.parametrize("part", ["own", "base.network.featurizer"])
@pytest.mark.parametrize("optimizer", [sgd, lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)])
def test_descending_moves_that_part_and_nothing_else_by_a_bit(part, optimizer):
    """Neither momentum nor decay moves the others, though both are in the optimiser."""
    stack = Descending().setup(toy_task(), optimizer).double()
    stack.part = part
    for t in range(3):
        start = states(stack)
        train_step(stack, toy_batches(t))
        end = states(stack)
        for name, before in stack.between.items():
            assert torch.equal(end[name], before) == (not name.startswith(part)), name
            in_network = name.startswith("base.network")
            assert torch.equal(before, start[name]) == (not in_network), name  # the base moved the network alone
        assert all(p.grad is None for p in stack.parameters())
        assert not stack.returned.requires_grad
        assert torch.equal(stack.returned, stack.expected.detach())  # after the base's step, with the same noise


def test_the_step_is_that_of_the_optimiser_with_the_parts_own_options():
    stack = Descending().setup(toy_task(), sgd).double()
    velocity = {}
    for t in range(3):
        train_step(stack, toy_batches(t))
        for (name, p), g in zip(stack.own.named_parameters(), stack.slopes, strict=True):
            before = stack.between[f"own.{name}"]
            pull = g + 0.1 * before
            velocity[name] = 0.9 * velocity[name] + pull if name in velocity else pull
            torch.testing.assert_close(p.detach(), before - 0.5 * velocity[name], rtol=0, atol=1e-12)


class OtherHead(Algorithm):
    """Draws while it builds."""

    def build(self, task):
        network = self.base.build(task)
        network.classifier = torch.nn.Linear(network.featurizer.width, task.num_classes)
        return network


@pytest.mark.parametrize(("spec", "own"), [("DANN", "discriminator"), ("SagNet", "style_head")])
def test_an_adversary_starts_the_same_whatever_else_is_built(spec, own):
    alone, above = (getattr(ready(find_algorithm(spec)(base)), own) for base in (None, OtherHead()))
    assert all(map(torch.equal, alone.parameters(), above.parameters()))


# Saved and resumed.

STACKS = {
    "DANN": "DANN(mlp_width=8, lr_d=0.001, weight_decay_d=0.01, mlp_dropout=0.1, grad_penalty=0.1)",
    "SagNet": "SagNet(weight=1.0)",
    "both": "SagNet+DANN(mlp_width=8, d_steps_per_g_step=2)+DSPReg(weight=0.01, refresh_steps=5, measure_batches=1, "
    "engine='lazy(2)', estimator='signed')",
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


@pytest.fixture(scope="module")
def undisturbed(images, tmp_path_factory):
    endings = {}

    def ending(name):
        if name not in endings:
            out = tmp_path_factory.mktemp("runs") / "run"
            train(settings(images, name), tiny.execution(), out)
            endings[name] = tiny.ending(out)
        return endings[name]

    return ending


def settings(images, name):
    return tiny.settings(images, algorithm=STACKS[name])


def stopped(images, name, out, moment):
    with pytest.raises(Preempted):
        train(settings(images, name), tiny.execution(), out, pause=tiny.stop_at(moment))


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("moments", [(0,), (1, 7, 8)])
def test_stopped_and_gone_on_it_ends_in_the_same_bits(images, undisturbed, tmp_path, name, moments):
    for moment in moments:
        stopped(images, name, tmp_path / "run", moment)
    train(settings(images, name), tiny.execution(), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == undisturbed(name)


def checkpoint(out):
    """The newest one's state, by the one reader there is: tensors beside JSON."""
    newest = max((out / "checkpoints").glob("step-*.safetensors"))
    return unpack(newest.read_bytes(), str(newest))[0]


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_groups_and_what_each_parameter_has_seen_are_saved(images, tmp_path):
    stopped(images, "both", tmp_path / "run", 25)
    saved = checkpoint(tmp_path / "run")
    steps = next(v["steps"] for n, v in saved["algorithm"].items() if n.endswith("_extra_state") and "steps" in v)
    network, discriminator = saved["optimizer"]["param_groups"]
    assert (network["betas"], network["weight_decay"]) == ((0.5, 0.9), 1e-4)
    assert (discriminator["betas"], discriminator["weight_decay"]) == ((0.5, 0.9), 0.0)
    assert len(discriminator["params"]) == 6
    counts = {int(saved["optimizer"]["state"][i]["step"]) for i in discriminator["params"]}
    mine = len([t for t in range(steps) if (t + 1) % 3 < 2])
    assert steps > 3
    assert counts == {mine}
    others = {int(saved["optimizer"]["state"][i]["step"]) for i in network["params"]}
    # the style head at every step; the classifier at the generator's; the featurizer at both
    assert others == {steps, steps - mine, steps + steps - mine}


LOST = {
    "discriminator": lambda s: s["algorithm"].update(
        {n: t * 0.9 for n, t in s["algorithm"].items() if "discriminator" in n and "weight" in n}
    ),
    "its moments": lambda s: [
        s["optimizer"]["state"].pop(i, None) for i in s["optimizer"]["param_groups"][1]["params"]
    ],
    "its learning rate": lambda s: s["optimizer"]["param_groups"][1].update(lr=0.1),
    "its betas": lambda s: s["optimizer"]["param_groups"][1].update(betas=(0.9, 0.999)),
    "its decay": lambda s: s["optimizer"]["param_groups"][1].update(weight_decay=0.5),
}


@pytest.mark.parametrize("part", LOST)
def test_losing_any_of_it_is_seen(images, undisturbed, tmp_path, monkeypatch, part):
    stopped(images, "DANN", tmp_path / "run", 14)
    whole, seen = State.unpack, []

    def broken(self, saved):
        before = repr(saved)
        LOST[part](saved)
        seen.append(repr(saved) != before)
        whole(self, saved)

    monkeypatch.setattr(State, "unpack", broken)
    train(settings(images, "DANN"), tiny.execution(), tmp_path / "run")
    assert seen == [True]
    assert tiny.ending(tmp_path / "run") != undisturbed("DANN")


def test_a_saved_model_has_the_adversaries_and_predicts_without_them(images, tmp_path):
    train(settings(images, "DANN") | {"steps": 2}, tiny.execution(), tmp_path / "run")
    model, _ = load(tmp_path / "run", "last")
    x = torch.randn(2, 3, 24, 24)
    assert torch.equal(model(x), model.algorithm.net(x))
    assert model.algorithm.discriminator[0].out_features == 8
