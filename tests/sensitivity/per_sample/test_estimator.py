"""Which way a network's parameters go, and that no verdict is relied on that was not earned."""

import copy
import gc
import weakref

import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import dspreg
from dspreg.sensitivity.estimators import estimate_by_loop, readings
from dspreg.sensitivity.null import deal_samples
from dspreg.sensitivity.per_sample import estimator as persample
from dspreg.sensitivity.per_sample import strategy as found_ways
from dspreg.sensitivity.per_sample.accumulator import Accumulator
from dspreg.sensitivity.samples import Samples
from helpers import problems
from helpers.strategies import net, numbers, quick, slow_ones, weights
from reference.sensitivity import largest_difference


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class PositionsFirst(nn.Linear):
    def forward(self, x):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


def last_of(first, activation=torch.tanh):
    return net(lambda s, x: s.last(activation(s.first(x)).sum(1)), first=first, last=nn.Linear(4, 2))


def some_dead(*shape):
    """Samples of which the first three are behind a ReLU of positive weights."""
    x = numbers(*shape).abs()
    x[:3] *= -1
    return x


def positive(layer):
    nn.init.uniform_(layer.weight, 0.1, 1)
    nn.init.zeros_(layer.bias)
    return layer


@pytest.mark.parametrize("few", [1, 2])
def test_a_small_batch_proves_nothing_for_a_large_one(few):
    model = last_of(PositionsFirst(4, 4))
    slow_ones(model, numbers(few, 8, 4))
    assert slow_ones(model, numbers(4, 8, 4)) == {"first.weight", "first.bias"}


def test_zero_gradients_prove_nothing():
    model = last_of(positive(PositionsFirst(4, 4)), torch.relu)
    assert {"first.weight", "first.bias"} <= slow_ones(model, some_dead(6, 6, 4))
    plain = last_of(positive(nn.Linear(4, 4)), torch.relu)
    for x in (some_dead(6, 6, 4), numbers(6, 6, 4)):
        slow_ones(plain, x)
    assert slow_ones(plain, numbers(6, 6, 4)) == set()  # proved by the second batch


def test_a_head_of_zeros_proves_nothing():
    """As networks start that are to be refined; their sensitivities are measured again as they learn."""
    model, plain = last_of(PositionsFirst(4, 4)), last_of(nn.Linear(4, 4))
    for each in (model, plain):
        nn.init.zeros_(each.last.weight)
        assert slow_ones(each, numbers(6, 6, 4)) == set()
        nn.init.normal_(each.last.weight)
        slow_ones(each, numbers(6, 6, 4))
    assert slow_ones(model, numbers(6, 6, 4)) == {"first.weight", "first.bias"}
    assert slow_ones(plain, numbers(6, 6, 4)) == set()


def test_no_bit_depends_on_what_was_measured_before():
    """A resumed training has forgotten what it found out about its network, and goes on with the same bits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))
    domains = {d: [(torch.randn(8, 3, 8, 8), torch.randint(3, (8,)))] * 2 for d in "ab"}
    nn.init.zeros_(model[3].weight)
    assert not dspreg.measure(model, domains).c["0.weight"].any()
    nn.init.normal_(model[3].weight)
    fresh = copy.deepcopy(model)
    assert torch.equal(dspreg.measure(model, domains).c.flat(), dspreg.measure(fresh, domains).c.flat())


def test_sums_of_earlier_batches_stay_where_a_parameter_turns_out_to_move():
    model = last_of(positive(PositionsFirst(4, 4)), torch.relu).eval()
    params, batches = dict(model.named_parameters()), [some_dead(3, 6, 4), some_dead(6, 6, 4), some_dead(6, 6, 4)]
    ours, exact = Accumulator(params, 3), Accumulator(params, 3)
    for x in batches:
        for sums in (ours, exact):
            sums.set_weights(weights(len(x)))
        persample.estimate_per_sample(readings(model, "output"), params, Samples(x), ours, net=model)
        estimate_by_loop(readings(model, "output"), params, Samples(x), exact)
    for row in range(3):
        assert largest_difference(ours.mean(row, 1), exact.mean(row, 1)) < 1e-10


def test_an_exchanged_module_is_looked_at_again():
    model = last_of(nn.Linear(4, 4))
    assert slow_ones(model, numbers(6, 6, 4)) == set()
    model.first = PositionsFirst(4, 4).double()
    assert slow_ones(model, numbers(6, 6, 4)) == {"first.weight", "first.bias"}
    model.first = nn.Linear(4, 4).double().requires_grad_(False)
    assert slow_ones(model, numbers(6, 6, 4)) == set()


@pytest.mark.parametrize("dead", [True, False])
def test_a_function_with_its_own_backward(dead):
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return nn.functional.linear(x, w)

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g @ w, g.T @ x

    forward = lambda s, x: s.last(torch.relu(Own.apply(x, s.first.weight)))  # noqa: E731
    model = net(forward, first=positive(nn.Linear(4, 5)), last=nn.Linear(5, 2))
    assert "first.weight" in slow_ones(model, some_dead(6, 4) if dead else numbers(6, 4))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("dead", [True, False])
def test_a_scripted_part(dead):
    script = torch.jit.script(nn.Sequential(positive(nn.Linear(4, 5)), nn.ReLU()).double())
    model = net(lambda s, x: s.last(s.script(x)), script=script, last=nn.Linear(5, 2))
    assert {"script.0.weight", "script.0.bias"} <= slow_ones(model, some_dead(6, 4) if dead else numbers(6, 4))


def test_torch_func_is_compared_too():
    """It exchanges parameters in their modules, and would miss a part of this one's gradient."""

    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4, dtype=torch.float64)
            self.used = [self.layer.weight]

        def forward(self, x):
            return torch.tanh(self.layer(x) + x @ self.used[0])

    with pytest.warns(dspreg.Notice, match=r"layer\.weight \(its numbers differ"):
        dspreg.measure(Partly(), {d: [(numbers(5, 4), torch.zeros(5))] * 2 for d in "ab"}, of="output", null=False)
    assert slow_ones(Partly(), numbers(5, 4)) == {"layer.weight"}


def test_a_loss_of_zero_is_no_reason_to_be_slow(monkeypatch):
    """The ways are compared on the outputs: near 0 the gradients of a loss are rounding, and prove nothing."""
    sent = set()
    monkeypatch.setattr(persample, "estimate_rest", lambda reading, rest, *_, **__: sent.update(rest))
    batch = numbers(6, 6), torch.tensor([0.0, 0, 0, 1, 1, 1])
    options = {"loss": lambda out, y: out.square().sum(1) * y, "null": False}
    dspreg.measure(problems.model("mlp"), {"a": [batch] * 2, "b": [batch] * 2}, **options)
    assert sent == set()


def test_nothing_is_kept_of_a_network():
    model = last_of(nn.Linear(4, 4))
    slow_ones(model, numbers(5, 6, 4))
    _, known = found_ways._known._known[model]
    assert len(known) == 1
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_part_of_a_network_has_the_same_numbers():
    model, domains = problems.model("cnn"), problems.domains("cnn", size=4)
    whole = dspreg.measure(model, domains)
    for only in ("0.weight", "4.*", ["9.bias", "1.*"]):
        part = dspreg.measure(model, domains, only=only)
        for name in part.c:
            assert torch.allclose(part.null[name], whole.null[name], rtol=1e-9)
            for d in domains:
                assert torch.allclose(part.s[d][name], whole.s[d][name], rtol=1e-9, atol=0)


@pytest.mark.parametrize("of", ["loss", "output", "fisher"])
@pytest.mark.parametrize("name", ["cnn", "transformer", "keywords"])
def test_all_of_a_profile_is_the_loops(name, of):
    ours, theirs = (
        dspreg.measure(problems.model(name), problems.domains(name, size=4), of=of, estimator=e)
        for e in ("persample", "loop")
    )
    assert largest_difference(ours.mean, theirs.mean) < 1e-10
    for name, mean in theirs.mean.items():
        moves = mean > 1e-20 * mean.max()  # a bias of attention's keys moves nothing, and its c is that of rounding
        for what in ("c", "null", "c_debiased"):
            assert torch.allclose(getattr(ours, what)[name][moves], getattr(theirs, what)[name][moves], atol=1e-6)


@pytest.mark.parametrize("looped", [1, 10**9])  # products one sample at a time, and several
def test_a_vit_against_squares_by_torch_func(monkeypatch, looped):
    """17 positions, too many to expand in pairs; s of every domain, and null from the same squares dealt by hand."""
    monkeypatch.setattr("dspreg.sensitivity.per_sample.accumulator.LOOPED", looped)
    vit = small("vit_tiny_patch16_224", img_size=64, depth=2, embed_dim=24, num_heads=2).double().eval()
    x, y = torch.randn(18, 3, 64, 64, dtype=torch.float64), torch.arange(18) % 2
    batches = {d: list(zip(a.split(3), b.split(3), strict=True)) for d, a, b in zip("abc", x.split(6), y.split(6))}  # noqa: B905
    profile = dspreg.measure(vit, batches)

    def loss(params, x, y):
        return nn.functional.cross_entropy(torch.func.functional_call(vit, params, (x[None],)), y[None])

    params = {name: p.detach() for name, p in vit.named_parameters()}
    with sdpa_kernel(SDPBackend.MATH):  # vmap does not support fused attention
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, x, y)
    dealt = torch.stack(deal_samples([6, 6, 6], "measure", 0))
    for name, g in each.items():
        s, pseudo = g.square().unflatten(0, (3, 6)).mean(1), g.square()[dealt].mean(1)
        near = 1e-9 * s.amax()
        for mine, theirs in zip(profile.s.values(), s, strict=True):
            assert torch.allclose(mine[name], theirs, rtol=1e-8, atol=near)
        moves = s.mean(0) > 1e-6 * s.amax()
        for mine, theirs in ((profile.c[name], s), (profile.null[name], pseudo)):
            c = theirs.std(0, correction=0) / theirs.mean(0)
            assert torch.allclose(mine[moves], c[moves], rtol=1e-6, atol=1e-9)


def small(name, **options):
    return timm.create_model(name, pretrained=False, num_classes=2, **options)


ARCHITECTURES = {
    "resnet18": lambda: torchvision.models.resnet18(num_classes=2),
    "tf_efficientnet_lite0": lambda: small("tf_efficientnet_lite0"),
    "vit_tiny": lambda: small("vit_tiny_patch16_224", img_size=32, depth=2),
    "deit": lambda: small("deit_tiny_distilled_patch16_224", img_size=32, depth=2),
    "convnext_atto": lambda: small("convnext_atto", depths=(1, 1, 1, 1)),
    "swin": lambda: small(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, depths=(2, 2), num_heads=(2, 4), embed_dim=16
    ),
    "regnet": lambda: small("regnetx_002"),
    "mobilenetv3": lambda: small("mobilenetv3_small_050"),
}
SLOW = {  # what no rule knows yet
    "swin": "relative_position_bias_table",
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_go_the_quick_way(name):
    model = problems.pretrained_like(ARCHITECTURES[name]()).double()
    x = numbers(4, 3, 32, 32)
    if name in ("resnet18", "regnet", "mobilenetv3", "tf_efficientnet_lite0"):
        _, slow = quick(model, x)  # their numbers are compared where the estimators are
    else:
        slow = slow_ones(model, x)
    assert {n for n in slow if not n.endswith(SLOW.get(name, "-"))} == set()
    assert bool(slow) == (name in SLOW)
