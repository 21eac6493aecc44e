"""c of a running mean of s, against a loop over measurements in numpy."""

import numpy as np
import pytest
import torch
from torch import nn

import dspreg
from dspreg import ConfigError, DSPReg, ParamVector
from dspreg.sensitivity.running import RunningSensitivity
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.training.step import train_step


def naive_c(measurements, memory, eps=0.0):
    """c of s averaged with weights m^age, each measurement divided by its sum; ε in units of the last s."""
    weights = np.array([memory**age for age in range(len(measurements))][::-1])
    sizes = [sum(s.sum() for s in each.values()) for each in measurements]
    domains = list(measurements[0])
    mean = {
        d: sum(w * each[d] / size for w, each, size in zip(weights, measurements, sizes, strict=True)) / weights.sum()
        for d in domains
    }
    rows = np.stack([mean[d] * sizes[-1] for d in domains])
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(rows.std(0) / (rows.mean(0) + eps))


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_c_is_that_of_the_weighted_mean(memory, eps):
    rng = np.random.default_rng(0)
    running, given = RunningSensitivity(memory), []
    for scale in (1.0, 1e-6, 1e-3, 10.0):  # s falls with the loss
        given.append({d: rng.exponential(size=7) * scale for d in ("a", "b", "c")})
        given[-1]["a"][0] = given[-1]["b"][0] = given[-1]["c"][0] = 0.0
        running.add({d: ParamVector({"w": torch.tensor(s)}) for d, s in given[-1].items()})
        expected = naive_c(given, memory, eps)
        np.testing.assert_allclose(running.c(eps)["w"].numpy(), expected, rtol=1e-10)
        assert eps or expected.max() > 0.1
    if memory == 0:
        np.testing.assert_allclose(running.c(eps)["w"].numpy(), naive_c(given[-1:], 0.0, eps), rtol=1e-10)


def test_the_noise_of_few_samples_falls():
    """Three equal domains: c is noise alone, and a memory of 0.75 averages about seven measurements."""
    rng = np.random.default_rng(0)
    running, single = RunningSensitivity(0.75), RunningSensitivity(0.0)
    for _ in range(20):
        s = {d: ParamVector({"w": torch.tensor(rng.exponential(size=(10, 2000)).mean(0))}) for d in "abc"}
        running.add(s)
        single.add(s)
    ratio = float(running.c()["w"].mean() / single.c()["w"].mean())
    assert ratio == pytest.approx((0.25 / 1.75) ** 0.5, rel=0.05)


@pytest.mark.parametrize("memory", [1.0, -0.1, "much", True, float("nan")])
def test_what_is_no_share_is_refused(memory):
    with pytest.raises(ConfigError, match=r"refresh_memory=.*wanted a number from 0 \(no memory\) to below 1"):
        DSPReg(refresh_memory=memory)
    with pytest.raises(ConfigError, match="refresh_memory="):
        dspreg.Penalty(nn.Linear(2, 2), refresh_memory=memory)


def test_other_domains_or_parameters_are_refused():
    running = RunningSensitivity(0.5)
    one = ParamVector({"w": torch.ones(3)})
    running.add({"a": one, "b": one})
    with pytest.raises(ConfigError, match="memory of domains a, b and now a, c were measured"):
        running.add({"a": one, "c": one})
    with pytest.raises(ConfigError, match="or other parameters"):
        running.add({"a": ParamVector({"w": torch.ones(4)}), "b": one})


# In DSP-Reg.


def train(stack, first, last):
    for t in range(first, last):
        train_step(stack, toy_batches(t))


def remembering(memory=0.75):
    return ready(DSPReg(weight=1e-3, refresh_steps=2, measure_batches=2, refresh_memory=memory))


def test_dsp_reg_remembers_s_of_earlier_refreshes():
    stack, given = remembering(), []
    for t in range(0, 8, 2):
        train(stack, t, t + 2)  # a refresh is before step t + 2
        samples = {d: [(b.x, b.y) for b in bs] for d, bs in toy_task().samples(t + 2, 2).items()}
        s = dspreg.measure(stack.net, samples, null=False).s
        given.append({d: vector.flat().double().numpy() for d, vector in s.items()})
    train(stack, 8, 9)
    np.testing.assert_allclose(stack.c.flat().numpy(), naive_c(given, 0.75), rtol=1e-6, atol=1e-8)
    assert not np.allclose(stack.c.flat().numpy(), naive_c(given[-1:], 0.0), rtol=1e-2)


def test_a_resumed_training_has_the_same_bits():
    whole, first, second = remembering(), remembering(), remembering()
    train(whole, 0, 9)
    train(first, 0, 5)
    second.load_state_dict(first.state_dict())
    second.stack.optimizer.load_state_dict(first.stack.optimizer.state_dict())
    train(second, 5, 9)
    assert torch.equal(second.c.flat(), whole.c.flat())
    assert all(torch.equal(a, b) for a, b in zip(second.net.parameters(), whole.net.parameters(), strict=True))
    forgetful = remembering()
    forgetful.load_state_dict(first.state_dict())
    forgetful._running = RunningSensitivity(0.75)
    forgetful.stack.optimizer.load_state_dict(first.stack.optimizer.state_dict())
    train(forgetful, 5, 9)
    assert not torch.equal(forgetful.c.flat(), whole.c.flat())


def test_without_memory_nothing_is_kept_and_nothing_more_is_saved():
    stack = ready(DSPReg(weight=1e-3, refresh_steps=2, measure_batches=1))
    train(stack, 0, 5)
    assert not stack._running.s
    assert set(stack.get_extra_state()) == set(ready(DSPReg()).get_extra_state())
    assert "running" not in stack.get_extra_state()
    assert "running" in remembering().get_extra_state()


def test_it_does_nothing_where_c_is_measured_once_or_never():
    for coefficients in ("static", "ones"):
        with pytest.raises(ConfigError, match=r"refresh_memory=0\.5 does nothing"):
            DSPReg(coefficients=coefficients, refresh_memory=0.5)


# In `Penalty`.


def test_penalty_remembers_saves_and_counts_seconds():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    penalty, given = dspreg.Penalty(net, refresh_memory=0.5), []

    def loaders():
        pairs = {d: (torch.randn(8, 4).double() * (1 + i), torch.randint(3, (8,))) for i, d in enumerate("ab")}
        return {d: [pair, pair] for d, pair in pairs.items()}

    assert penalty.refresh_seconds == penalty.backward_seconds == 0
    for _ in range(3):
        profile = penalty.refresh(loaders(), null=False)
        given.append({d: vector.flat().numpy() for d, vector in profile.s.items()})
    np.testing.assert_allclose(penalty.coefficients.flat().numpy(), naive_c(given, 0.5), rtol=1e-10)
    assert penalty.refresh_seconds > 0
    penalty.backward(lambda: net(torch.ones(2, 4).double()).square().sum())
    assert penalty.backward_seconds > 0

    other = dspreg.Penalty(net, refresh_memory=0.5)
    other.load_state_dict(penalty.state_dict())
    more = loaders()
    penalty.refresh(more, null=False)
    other.refresh(more, null=False)
    assert torch.equal(other.coefficients.flat(), penalty.coefficients.flat())
    with pytest.raises(ConfigError, match="of a penalty without refresh_memory"):
        other.load_state_dict(dspreg.Penalty(net).state_dict())
