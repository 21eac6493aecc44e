"""Optimisers and schedules: closed forms, plain loops of torch, and the same bits after being stopped."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dspreg.algorithms import parse
from dspreg.config.train_config import OPTIMIZERS, TrainConfig
from dspreg.errors import ConfigError, Preempted
from dspreg.networks import make_backbone
from dspreg.testing import toy_batches, toy_task
from dspreg.training import train, train_step
from dspreg.training.adam import Adam  # torch's to the bit
from dspreg.training.optimizers import decayed_layers, learning_rates, make_optimizer
from helpers import tiny

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")
CONFIG = TrainConfig(dataset="digits", model="test_vit", steps=20, lr=0.03, weight_decay=0.0)


def stack_with(spec="ERM", **options):
    config = replace(CONFIG, **options)
    stack = parse(spec)
    stack.setup(toy_task(dropout=0.0), lambda params: make_optimizer(params, stack.net, config, "cpu"))
    if rates := learning_rates(config):
        stack.stack.follow(rates)
    return stack.double()


@pytest.mark.parametrize("warmup", [0, 1, 6])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_learning_rates_are_their_closed_forms(schedule, warmup):
    rates = learning_rates(replace(CONFIG, schedule=schedule, warmup=warmup))
    shape = {
        "constant": lambda share: 1.0,
        "cosine": lambda share: (1 + math.cos(math.pi * share)) / 2,
        "linear": lambda share: 1 - share,
    }[schedule]
    if rates is None:
        assert (schedule, warmup) == ("constant", 0)
        return
    for t in [3, 19, 0, *range(20)]:  # a function of the step, in whatever order it is asked
        wanted = (t + 1) / (warmup + 1) if t < warmup else shape((t - warmup) / (20 - warmup))
        assert rates(t) == pytest.approx(wanted, abs=1e-12)


def test_the_default_is_adam_as_it_always_was():
    stack = stack_with()
    optimizer = stack.stack.optimizer
    assert type(optimizer) is Adam
    (group,) = optimizer.param_groups
    plain = torch.optim.Adam([nn.Parameter(torch.zeros(()))], lr=0.03, weight_decay=0.0)
    assert {k: v for k, v in group.items() if k != "params"} == {
        k: v for k, v in plain.param_groups[0].items() if k != "params"
    }


PLAIN = {
    "adamw": lambda p, wd: torch.optim.AdamW(p, lr=0.03, weight_decay=wd),
    "sgd": lambda p, wd: torch.optim.SGD(p, lr=0.03, momentum=0.9, nesterov=True, weight_decay=wd),
    "momentum": lambda p, wd: torch.optim.SGD(p, lr=0.03, momentum=0.9, weight_decay=wd),
}


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", PLAIN)
def test_steps_are_those_of_a_plain_loop_with_torchs_optimiser_and_its_schedule(name, decay):
    stack = stack_with(optimizer=name, weight_decay=decay, schedule="cosine", warmup=2)
    net = parse("ERM").setup(toy_task(dropout=0.0), torch.optim.Adam).double().net
    optimizer = PLAIN[name](net.parameters(), decay)
    factors = [(t + 1) / 3 if t < 2 else (1 + math.cos(math.pi * (t - 2) / 18)) / 2 for t in range(20)]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factors.__getitem__)
    for t in range(8):
        batches = toy_batches(t)
        train_step(stack, batches)
        x, y = torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        schedule.step()
    for (name, ours), theirs in zip(stack.net.named_parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12, msg=name)


def test_all_steps_that_an_optimiser_takes_within_one_step_have_its_rate():
    stack = stack_with("Fish", schedule="linear", optimizer="sgd")
    seen, optimizer = [], stack.stack.optimizer
    before = optimizer.step
    optimizer.step = lambda: (seen.append((stack.t, optimizer.param_groups[0]["lr"])), before())[1]
    for t in range(3):
        train_step(stack, toy_batches(t))
    assert seen == [(t, pytest.approx(0.03 * (1 - t / 20))) for t in range(3) for _ in range(3)]


def test_rates_of_layers_that_have_their_own_follow_the_schedule():
    stack = stack_with("DANN(mlp_width=8, lr_d=0.5)", schedule="linear")
    for t in range(5):
        train_step(stack, toy_batches(t))
    network, own = stack.stack.optimizer.param_groups
    assert network["lr"] == pytest.approx(0.03 * (1 - 4 / 20))
    assert own["lr"] == pytest.approx(0.5 * (1 - 4 / 20))


def test_a_classifier_that_is_trained_first_has_its_own_rate_and_then_follows():
    stack = stack_with("LPFT(probe_steps=2, probe_lr=0.7)", schedule="linear")
    rates = []
    for t in range(4):
        train_step(stack, toy_batches(t))
        rates.append(stack.stack.optimizer.param_groups[1]["lr"])
    assert rates == pytest.approx([0.7, 0.7, 0.03 * 0.9, 0.03 * 0.85])


# Layer decay.


def of_vit(**options):
    """A stack on test_vit: its parameters' rates and decays by name."""
    config = replace(CONFIG, **options)
    stack, backbone = parse("ERM"), make_backbone("test_vit", weights="none", image_size=32)
    task = replace(toy_task(), backbone=backbone.make)
    stack.setup(task, lambda params: make_optimizer(params, stack.net, config, "cpu"))
    names = {id(p): name for name, p in stack.net.named_parameters()}
    groups = stack.stack.optimizer.param_groups
    return {names[id(p)]: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}, stack


def test_layer_decay_is_a_power_of_the_distance_from_the_end():
    found, stack = of_vit(optimizer="adamw", layer_decay=0.5, weight_decay=0.1)
    assert found.keys() == dict(stack.net.named_parameters()).keys()
    for name, (rate, decay) in found.items():
        block = re.search(r"blocks\.(\d)", name)
        last = name.startswith("classifier") or ".norm." in name
        depth = 6 if last else int(block[1]) + 1 if block else 0  # the six blocks are layers 1 … 6, the stem is 0
        assert rate == pytest.approx(0.03 * 0.5 ** (6 - depth)), name
        backbone_vector = name.startswith("featurizer") and stack.net.get_parameter(name).ndim == 1
        without = backbone_vector or name.endswith(("pos_embed", "cls_token"))
        assert decay == (0.0 if without else 0.1), name


def test_adam_can_have_layer_decay_too_and_the_first_group_is_the_run_s():
    found, stack = of_vit(layer_decay=0.5)
    assert type(stack.stack.optimizer) is Adam
    assert stack.stack.optimizer.param_groups[0]["lr"] == 0.03
    assert found["classifier.bias"] == (0.03, 0.0)


def test_layer_decay_wants_a_network_of_timm():
    net, config = SimpleNamespace(featurizer=make_backbone("small-cnn").make()), replace(CONFIG, model="small-cnn")
    with pytest.raises(ConfigError, match="small-cnn has no groups of layers that timm knows"):
        decayed_layers(net, replace(config, layer_decay=0.5))


def test_the_inner_step_of_mldg_has_the_rate_of_each_layer():
    config = replace(CONFIG, layer_decay=0.5, weight_decay=0.0)
    stack, backbone = parse("MLDG"), make_backbone("test_vit", weights="none", image_size=32)
    stack.setup(replace(toy_task(), backbone=backbone.make), lambda p: make_optimizer(p, stack.net, config, "cpu"))
    from dspreg.vectors import theta

    step = stack.first_step(theta(stack.net).map(torch.ones_like))
    assert float(step["classifier.bias"][0]) == pytest.approx(-0.03)
    assert float(step["featurizer.model.blocks.4.mlp.fc1.bias"][0]) == pytest.approx(-0.03 * 0.5)
    assert float(step["featurizer.model.patch_embed.proj.bias"][0]) == pytest.approx(-0.03 * 0.5**6)


# Whole runs.


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_that_is_stopped_ends_in_the_same_bits(images, tmp_path, name):
    options = {"optimizer": name, "schedule": "cosine", "warmup": 3, "layer_decay": 0.8, "algorithm": "DANN"}
    settings = tiny.settings(images, steps=8, **options)
    train(settings, tiny.execution(), tmp_path / "once")
    for moment in (1, 5):
        with pytest.raises(Preempted):
            train(settings, tiny.execution(), tmp_path / "stopped", pause=tiny.stop_at(moment))
    train(settings, tiny.execution(), tmp_path / "stopped")
    assert tiny.ending(tmp_path / "stopped") == tiny.ending(tmp_path / "once")


def test_another_optimiser_is_another_run(images, tmp_path):
    train(tiny.settings(images, steps=2), tiny.execution(), tmp_path / "run")
    with pytest.raises(ConfigError, match="optimizer"):
        train(tiny.settings(images, steps=2, optimizer="adamw"), tiny.execution(), tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"warmup": 14}, "warmup=14 of 14 steps; wanted fewer"),
        ({"train": "head", "layer_decay": 0.5}, "--train head trains none of them"),
        ({"train": "head", "frozen_bn": False}, "running statistics of frozen layers would move"),
        ({"train": "last:9", "frozen_bn": True}, "test_resnet has 4 blocks"),
        (
            {"train": "head", "algorithm": "LPFT", "frozen_bn": True},
            "LPFT trains the featurizer, and all of it is frozen",
        ),
        ({"train": "lora", "frozen_bn": True}, "test_resnet has no linear layer"),
        ({"train": "lora(modules='*nothing*')", "frozen_bn": True}, "no linear layer or convolution like '\\*nothing"),
        ({"features": "token"}, "test_resnet has no tokens, but maps that it pools"),
        ({"features": "embedding"}, "test_resnet has no image embedding"),
        ({"head": "none.safetensors"}, "there is no file none.safetensors"),
        ({"optimizer": "adamm"}, "wanted one of adam, adamw"),
    ],
)
def test_what_makes_no_sense_is_refused_before_there_is_a_run(images, tmp_path, options, said):
    with pytest.raises(ConfigError, match=said):
        train(tiny.settings(images, **{"algorithm": "ERM", **options}), tiny.execution(), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
