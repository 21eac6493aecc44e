"""ERM++ against two textbook optimisers and a mean written out, and batch norm against a second network."""

import copy

import pytest
import torch
from torch import nn

from dspreg.algorithms import ERMPlusPlus, Task, parse
from dspreg.algorithms.registry import StackSpec
from dspreg.errors import ConfigError
from dspreg.testing import check_algorithm, toy_batches
from dspreg.training import train_step
from dspreg.vectors import theta
from reference import plain

LINEAR, START, STEPS, LINEAR_LR = 2, 4, 8, 0.02


@plain.problems
@plain.optimisers
def test_steps_are_those_of_two_optimisers_and_the_mean_that_of_the_sum(domains, optimiser):
    _, make, _ = plain.OPTIMISERS[optimiser]
    stack = plain.ready(ERMPlusPlus(linear_steps=LINEAR, linear_lr=LINEAR_LR, start=START), domains, optimiser)
    weights, seen = plain.weights_of(stack), []
    start = plain.weights_of(stack)
    of_head, of_all = make(lr=LINEAR_LR), make()
    for t in range(STEPS):
        batches = toy_batches(t, domains, plain.SIZES)
        train_step(stack, batches)
        grads = plain.gradient(plain.pooled(weights, batches), weights)
        if t <= LINEAR:  # DomainBed's counter is compared before it is raised: one step more than its name says
            of_head.step(weights[2:], grads[2:])
            assert all(torch.equal(w, s) for w, s in zip(plain.weights_of(stack)[:2], start[:2], strict=True))
        else:
            of_all.step(weights, grads)
        seen.append([w.detach().clone() for w in weights])
        plain.compare("ERMPlusPlus", optimiser, plain.weights_of(stack), weights)
        if t >= START:
            mean = [sum(each) / len(each) for each in zip(*seen[START:], strict=True)]
            names = ["featurizer.layers.0.weight", "featurizer.layers.0.bias", "classifier.weight", "classifier.bias"]
            for name, value in zip(names, mean, strict=True):
                torch.testing.assert_close(stack.mean[name], value, rtol=0, atol=1e-12)
        else:
            assert not stack.mean
    assert all((a - b).abs().max() > 1e-3 for a, b in zip(plain.weights_of(stack), start, strict=True))


class WithNorm(nn.Module):
    """Features with a batch norm that trains."""

    width = 6

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh())

    def forward(self, x):
        return self.layers(x)


def test_running_statistics_are_those_of_a_second_network_that_is_averaged_and_shown_the_batch():
    """As DomainBed has them: all of the state is averaged, then the average sees the step's batch in training mode."""
    task = Task(3, ("a", "b", "c"), 2, WithNorm, ("norm",))
    stack = (
        ERMPlusPlus(linear_steps=1, linear_lr=0.1, start=3).setup(task, lambda p: torch.optim.SGD(p, lr=0.1)).double()
    )
    second, count = copy.deepcopy(stack.net), 0
    x = toy_batches(99)[1].x
    for t in range(9):
        batches = toy_batches(t)
        train_step(stack, batches)
        count += t >= 4
        for (name, mine), (_, now) in zip(second.state_dict().items(), stack.net.state_dict().items(), strict=True):
            if "num_batches" not in name:
                mine.copy_((count * mine + now) / (1 + count) if count else now)
        second.train()(torch.cat([b.x for b in batches]))
        ours = stack.eval().predict(x)
        torch.testing.assert_close(ours, second.eval()(x), rtol=0, atol=1e-12)
        stack.train()
        assert not torch.allclose(ours, stack.net(x), atol=1e-3)


def test_options_of_the_network_are_those_of_the_classifier():
    """DANN gives Adam other betas; the classifier, in a group of its own, has them too."""
    stack = plain.ready(parse("DANN(mlp_width=8)+ERMPlusPlus(linear_steps=1, linear_lr=0.5, start=1)"), 3)
    groups = stack.stack.optimizer.param_groups
    head = next(g for g in groups if any(p is stack.net.classifier.weight for p in g["params"]))
    for t in range(4):
        train_step(stack, toy_batches(t))
        assert head["lr"] == (0.5 if t <= 1 else 0.05)
        assert head["betas"] == groups[0]["betas"] == (0.5, 0.9)


@pytest.mark.parametrize(
    "spec",
    [
        "ERMPlusPlus(linear_steps=0, start=1)",
        "ERMPlusPlus(linear_steps=1, start=2)+DSPReg(measure_batches=1)",
        "SAGM+ERMPlusPlus(linear_steps=0, start=0)",
        "Fish+ERMPlusPlus(linear_steps=0, start=1)",
        "ERMPlusPlus(linear_steps=1, start=0)+Fish",
    ],
)
@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_it_keeps_the_laws(spec):
    assert check_algorithm(spec) is None


def test_after_the_warm_up_the_classifiers_moments_start_anew():
    stack = plain.ready(ERMPlusPlus(linear_steps=1, start=0), 3)
    for t in range(4):
        train_step(stack, toy_batches(t))
    assert {int(state["step"]) for state in stack.stack.optimizer.state.values()} == {2}
    assert len(stack.stack.optimizer.state) == len(theta(stack.net))


@pytest.mark.parametrize(
    "wrong", ["ERMPlusPlus(linear_steps=-1)", "ERMPlusPlus(start=-1)", "ERMPlusPlus(linear_lr=0.0)"]
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ConfigError, match="wanted a number"):
        parse(wrong)


def test_in_short_runs_both_counts_are_shorter():
    assert str(StackSpec.parse("ERMPlusPlus").resolve(steps=500)[0]) == "ERMPlusPlus(linear_steps=50, start=60)"
    assert str(StackSpec.parse("ERMPlusPlus").resolve(steps=5_001)[0]) == "ERMPlusPlus"
