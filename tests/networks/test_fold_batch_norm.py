"""Frozen batch norm within the convolution before it, against batch norm by itself, in float64."""

import copy
import warnings
from contextlib import nullcontext

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from dspreg.algorithms.registry import algorithms, parse
from dspreg.errors import Notice
from dspreg.networks import Featurizer
from dspreg.networks.batch_norm import freeze_statistics
from dspreg.networks.fold_batch_norm import fold_batch_norm
from dspreg.testing.toy import IMAGE, toy_batches, toy_task
from dspreg.training.step import train_step
from helpers.stacking import ACTING


def with_statistics(net):
    """In float64, its batch norm frozen at statistics that are not 0 and 1."""
    net.double()
    for seed, module in enumerate(net.modules()):
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            noise = torch.rand(4, module.num_features, generator=torch.Generator().manual_seed(seed)).double()
            module.running_mean.copy_(noise[0] - 0.5)
            module.running_var.copy_(noise[1] + 0.5)
            with torch.no_grad():
                module.weight.copy_(noise[2] + 0.5)
                module.bias.copy_(noise[3] - 0.5)
    freeze_statistics(net)
    return net


class Calls(TorchDispatchMode):
    """Counts how often batch norm is computed by itself."""

    def __init__(self):
        super().__init__()
        self.batch_norms = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.batch_norms += func._schema.name in (
            "aten::native_batch_norm",
            "aten::_native_batch_norm_legit_no_training",
        )
        return func(*args, **(kwargs or {}))


def passed(net, x, fold):
    """Output, gradient of every parameter and of x, and how often batch norm was computed by itself."""
    x = x.clone().requires_grad_()
    calls = Calls()
    with calls, fold_batch_norm() if fold else nullcontext():
        out = net(x)
    loss = (out * torch.arange(1, out.numel() + 1).cos().view_as(out)).sum()
    found = torch.autograd.grad(loss, [*net.parameters(), x])
    return out.detach(), dict(zip([*dict(net.named_parameters()), "x"], found, strict=True)), calls.batch_norms


def assert_close(ours, theirs, tolerance=1e-10):
    for name, there in theirs.items():
        assert (ours[name] - there).norm() <= tolerance * max(1e-3, float(there.norm())), name


NETWORKS = {
    "conv, norm": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)),
    "without bias, stride": lambda: nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8)),
    "depthwise": lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3, padding="same"), nn.BatchNorm2d(6), nn.ReLU(True)),
    "reflected, dilated": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect", dilation=(2, 1)), nn.BatchNorm2d(4)
    ),
    "one dimension": lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 5, 3, stride=(2,)), nn.BatchNorm1d(5)),
    "three dimensions": lambda: nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Conv3d(3, 4, (1, 3, 3)), nn.BatchNorm3d(4)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients_are_those_of_batch_norm(name):
    torch.manual_seed(0)
    net = with_statistics(NETWORKS[name]())
    x = torch.randn(4, 3, 12, 12, dtype=torch.float64)
    plain, slopes, alone = passed(net, x, fold=False)
    folded, found, left = passed(net, x, fold=True)
    assert (alone, left) == (1, 0)
    assert torch.allclose(folded, plain, rtol=1e-12, atol=1e-12)
    assert_close(found, slopes)


@pytest.mark.parametrize("name", ["test_resnet", "tf_efficientnet_lite0", "mobilenetv3_small_050", "test_vit"])
def test_networks_of_timm(name):
    torch.manual_seed(0)
    net = with_statistics(timm.create_model(name, num_classes=3)).train()
    freeze_statistics(net)
    x = torch.randn(2, 3, 160, 160, dtype=torch.float64)
    plain, slopes, alone = passed(net, x, fold=False)
    folded, found, left = passed(net, x, fold=True)
    assert left < alone or alone == 0
    assert torch.allclose(folded, plain, rtol=1e-9, atol=1e-9)
    assert_close(found, slopes, 1e-8)


def test_names_state_and_modules_stay():
    net = with_statistics(NETWORKS["conv, norm"]())
    before = copy.deepcopy(net.state_dict())
    with fold_batch_norm():
        net(torch.randn(2, 3, 8, 8).double())
    assert list(before) == list(net.state_dict())
    assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())
    assert not any(m._forward_hooks or "forward" in vars(m) for m in net.modules())


def test_nothing_is_folded_where_batch_norm_trains():
    net = with_statistics(NETWORKS["conv, norm"]()).train()
    twin, x = copy.deepcopy(net), torch.randn(4, 3, 8, 8).double()
    with fold_batch_norm():
        found = net(x)
    assert torch.equal(found, twin(x))
    assert torch.equal(net[1].running_mean, twin[1].running_mean)


def test_a_large_weight_for_few_activations_is_not_folded():
    net = with_statistics(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64)))
    x = torch.randn(1, 3, 3, 3).double()
    assert passed(net, x, fold=True)[2] == 1
    assert passed(net, torch.randn(4, 3, 12, 12).double(), fold=True)[2] == 0


class Skip(nn.Module):
    """What goes into batch norm also goes past it: `before` or after batch norm has read it."""

    def __init__(self, before):
        super().__init__()
        self.conv, self.norm, self.before = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), before

    def forward(self, x):
        y = self.conv(x)
        early = y.sin() if self.before else None
        z = self.norm(y)
        return z + (early if self.before else y.sin())


@pytest.mark.parametrize("before", [True, False])
def test_who_else_reads_a_convolution_gets_the_convolution(before):
    net = with_statistics(Skip(before))
    x = torch.randn(4, 3, 9, 9).double()
    plain, slopes, _ = passed(net, x, fold=False)
    folded, found, _ = passed(net, x, fold=True)
    assert torch.allclose(folded, plain, rtol=1e-12, atol=1e-12)
    assert_close(found, slopes)


def test_a_hook_gets_the_convolution_also_when_it_looks_later():
    net = with_statistics(NETWORKS["conv, norm"]())
    kept, x = [], torch.randn(4, 3, 9, 9).double()
    wanted = net[0](x).detach()
    net[0].register_forward_hook(lambda *given: kept.append(given[2]))
    with fold_batch_norm():
        net(x)
    with torch.no_grad():
        net[0].weight.zero_()
    assert torch.equal(kept[0] + 0, wanted)


def test_a_hook_may_replace_the_convolution():
    net = with_statistics(NETWORKS["conv, norm"]())
    x = torch.randn(4, 3, 9, 9).double()
    net[0].register_forward_hook(lambda *given: given[2] * 2)
    wanted = net(x)
    with fold_batch_norm():
        assert torch.allclose(net(x), wanted, rtol=1e-12)


def test_what_changes_a_convolution_in_place_is_not_lost():
    conv, norm, x = nn.Conv2d(3, 4, 3).double(), nn.BatchNorm2d(4).double().eval(), torch.randn(2, 3, 8, 8).double()
    with fold_batch_norm():
        y = conv(x)
        y.relu_()
        found = norm(y)
    assert torch.equal(found, norm(conv(x).relu()))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, slope):
        return 2 * slope


class Between(nn.Module):
    """Between convolution and batch norm there is something else."""

    def __init__(self, between):
        super().__init__()
        self.conv, self.norm, self.between = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), between

    def forward(self, x):
        return self.norm(self.between(self.conv(x)))


def test_a_function_with_a_derivative_of_its_own_gets_the_convolution_and_its_gradient():
    net = with_statistics(Between(lambda y: Doubled.apply(y)))
    x = torch.randn(4, 3, 9, 9).double()
    plain, slopes, _ = passed(net, x, fold=False)
    folded, found, _ = passed(net, x, fold=True)
    assert torch.equal(folded, plain)
    assert_close(found, slopes)
    assert "_apply" not in getattr(torch.autograd.Function.apply, "__qualname__", "")


def test_a_function_that_was_bound_before_loses_no_gradient_in_silence():
    net = with_statistics(Between(Doubled.apply))
    with fold_batch_norm():
        out = net(torch.randn(4, 3, 9, 9).double())
    with pytest.raises(RuntimeError, match="invalid gradient"):
        out.sum().backward()


def test_modules_with_backward_hooks():
    net = with_statistics(NETWORKS["conv, norm"]())
    seen = []
    net[0].register_full_backward_hook(lambda module, given, slope: seen.append(slope[0].shape))
    x = torch.randn(4, 3, 9, 9).double()
    _, slopes, _ = passed(net, x, fold=False)
    _, found, _ = passed(net, x, fold=True)
    assert_close(found, slopes)
    assert len(seen) == 2
    assert seen[0] == seen[1]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_checkpointed_is_computed_again_as_it_was(reentrant):
    net, x = with_statistics(NETWORKS["conv, norm"]()), torch.randn(4, 3, 9, 9).double().requires_grad_()
    wanted = torch.autograd.grad(net(x).square().sum(), x)[0]
    with fold_batch_norm():
        out = checkpoint(net, x, use_reentrant=reentrant)
    out.square().sum().backward()
    assert torch.allclose(x.grad, wanted, rtol=1e-9, atol=1e-12)


def test_a_network_may_end_in_a_convolution():
    conv, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
    with fold_batch_norm():
        y = conv(x)
        again = conv(F.pad(x, (1, 1, 1, 1)))[:, :3]
    assert y.shape == (2, 4, 6, 6)
    assert torch.equal(torch.cat([y, y]), torch.cat([conv(x)] * 2))
    assert again.shape == (2, 3, 8, 8)
    y.sum().backward()
    assert conv.weight.grad is not None


def test_without_gradients_there_is_no_graph():
    net = with_statistics(NETWORKS["conv, norm"]())
    x = torch.randn(4, 3, 9, 9).double()
    with fold_batch_norm(), torch.no_grad():
        out = net(x)
    assert not out.requires_grad
    with fold_batch_norm():
        with torch.no_grad():
            fixed = net[0](x)
        out = net[1](fixed)  # of which only scale and shift are trained
    found = torch.autograd.grad(out.square().sum(), [*net.parameters()], allow_unused=True)
    assert [g is None for g in found] == [True, True, False, False]


def test_under_autocast_nothing_changes():
    net = with_statistics(NETWORKS["conv, norm"]()).float()
    x = torch.randn(4, 3, 9, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = net(x)
        with fold_batch_norm():
            assert torch.equal(net(x), wanted)


def test_gradients_of_gradients():
    net = with_statistics(NETWORKS["depthwise"]())
    x = torch.randn(4, 3, 8, 8).double()

    def curved(fold):
        with fold_batch_norm() if fold else nullcontext():
            loss = net(x).sin().square().sum()
        g = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        found = torch.autograd.grad(sum(t.square().sum() for t in g), list(net.parameters()))
        return dict(zip(dict(net.named_parameters()), found, strict=True))

    assert_close(curved(True), curved(False))


class Normed(Featurizer):
    """Convolutions with frozen batch norm, one of them depthwise."""

    stages = ("layers.2",)

    def __init__(self):
        super().__init__()
        self.width = 8
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
            nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.BatchNorm2d(6), nn.ReLU(),
            nn.Conv2d(6, 8, 1), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)

    def train(self, mode=True):
        super().train(mode)
        freeze_statistics(self)
        return self


def after_steps(spec, fold, steps=3):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        task = toy_task(inputs=IMAGE)
        object.__setattr__(task, "backbone", lambda: with_statistics(Normed()).train())
        stack = parse(spec).setup(task, lambda params: torch.optim.Adam(params, lr=1e-3)).double()
        stack.stack.folds_batch_norm = fold
        calls = Calls()
        for t in range(steps):
            with calls:
                train_step(stack, toy_batches(t, inputs=IMAGE))
    return {name: p.detach() for name, p in stack.named_parameters()}, calls.batch_norms


ENGINES = ("exact", "finite_difference", "finite_difference(part=0.5)", "gauss_newton", "lookahead", "momentum")
SPECS = [ACTING.get(name, name) for name in algorithms()]
SPECS += [f"DSPReg(engine={engine!r}, measure_batches=2)" for engine in ENGINES]
SPECS += ["MixStyle+MIRO+SAGM", "CORAL+DSPReg(measure_batches=2)", "SAM+EMA(decay=0.5)"]
# where rounding is divided by something small: a difference of gradients by its radius
LOOSE = {spec: 1e-5 for spec in SPECS if "finite_difference" in spec or "DSPReg(measure_batches=2)" in spec}


@pytest.mark.parametrize("spec", SPECS)
def test_every_method_takes_the_same_steps(spec):
    plain, alone = after_steps(spec, fold=False)
    folded, left = after_steps(spec, fold=True)
    assert left < alone
    assert_close(folded, plain, LOOSE.get(spec, 1e-7))
