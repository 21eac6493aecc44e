"""Every kind of layer and option: the squares of a naive loop, and none of its parameters goes the slow way."""

import pytest
import timm.layers
import torch
from torch import nn

from dspreg.sensitivity.per_sample import layer_rules as rules
from helpers.strategies import slow_ones

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def image(samples, channels, *sizes):
    torch.manual_seed(1)
    return torch.randn(samples, channels, *sizes, dtype=torch.float64)


class Flat(nn.Module):
    """Two numbers per sample, by fixed unequal weights, so that no gradient is the same everywhere."""

    def forward(self, x):
        x = torch.tanh(x).flatten(1)
        at = torch.arange(x.shape[1], dtype=x.dtype)
        return torch.stack([(x * (at + 1).cos()).sum(1), (x * (at + 2).sin()).sum(1)], 1)


def all_quick(layer, x, *before):
    torch.manual_seed(0)
    assert slow_ones(nn.Sequential(*before, layer, Flat()).double(), x) == set()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (7, 5), (2, 4, 5), (4, 1, 5)])
def test_linear(shape, bias):
    all_quick(nn.Linear(5, 4, bias=bias), image(5, *shape), nn.Linear(5, 5))


CONVOLUTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "stride": {"stride": 2},
    "unequal": {"kernel_size": (3, 2), "stride": (1, 2), "padding": (2, 1), "dilation": (1, 2)},
    "dilation": {"dilation": 2, "padding": 2},
    "padding": {"padding": 1},
    "far padding": {"padding": 2, "kernel_size": 2},
    "same odd": {"padding": "same"},
    "same even": {"padding": "same", "kernel_size": 4},
    "same dilated": {"padding": "same", "kernel_size": 2, "dilation": 3},
    "valid": {"padding": "valid"},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "groups": {"groups": 2, "padding": 1},
    "groups same": {"groups": 2, "padding": "same", "kernel_size": 2},
    "depthwise": {"groups": 4, "stride": 2, "padding": 1},
    "depthwise, twice as many": {"groups": 4, "out_channels": 8},
    "one by one": {"kernel_size": 1},
    "one by one, stride": {"kernel_size": 1, "stride": 2},
    "one by one, unequal stride": {"kernel_size": 1, "stride": (2, 1)},
    "one by one, padding": {"kernel_size": 1, "padding": 1},
    "one by one, groups": {"kernel_size": 1, "groups": 2},
}


@pytest.mark.parametrize("size", [(3, 4), (9, 8)])  # few positions and many
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv2d(name, size):
    options = {"in_channels": 4, "out_channels": 4, "kernel_size": 3} | CONVOLUTIONS[name]
    all_quick(nn.Conv2d(**options), image(5, 4, *size))


@pytest.mark.parametrize("options", [{"padding": 1}, {"padding": 2, "stride": 2}, {"padding": 2, "dilation": (1, 2)}])
@pytest.mark.parametrize("size", [(2, 2), (1, 2), (3, 1)])
def test_convolutions_that_mostly_see_their_borders(size, options):
    all_quick(nn.Conv2d(3, 4, 3, **options), image(5, 3, *size))


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"groups": 2, "bias": False}])
@pytest.mark.parametrize("length", [5, 30])
def test_conv1d(length, options):
    all_quick(nn.Conv1d(4, 6, 3, **options), image(5, 4, length))


@pytest.mark.parametrize("options", [{}, {"stride": (1, 2, 2), "padding": (1, 0, 1)}, {"groups": 2, "bias": False}])
@pytest.mark.parametrize("size", [(3, 3, 4), (4, 5, 6)])
def test_conv3d(size, options):
    all_quick(nn.Conv3d(2, 4, (2, 3, 3), **options), image(4, 2, *size))


@pytest.mark.parametrize("kernel", [3, 4])
@pytest.mark.parametrize("size", [3, 9, 10])
def test_convolutions_padded_as_in_tensorflow(size, kernel):
    all_quick(timm.layers.Conv2dSame(3, 4, kernel, stride=2), image(5, 3, size, size))


def ways_of_convolution(monkeypatch, layer, x):
    """The names of the functions that did the work on all samples, the comparison aside."""
    used = set()
    for name in ("unfold_convolution", "group_convolution", "PositionPairs"):
        found = getattr(rules, name)
        monkeypatch.setattr(rules, name, lambda *args, of=found, name=name: used.add(name) or of(*args))
    all_quick(layer, x)
    return used


def test_each_convolution_takes_the_path_meant_for_it(monkeypatch):
    with monkeypatch.context() as patch:
        assert ways_of_convolution(patch, nn.Conv2d(3, 4, 3, padding=1), image(4, 3, 2, 2)) == {"PositionPairs"}
    with monkeypatch.context() as patch:
        assert ways_of_convolution(patch, nn.Conv2d(3, 4, 3, padding=1), image(4, 3, 8, 8)) == {"unfold_convolution"}
    with monkeypatch.context() as patch:
        assert ways_of_convolution(patch, nn.Conv2d(4, 4, 3, groups=2), image(4, 4, 8, 8)) == {"group_convolution"}
    with monkeypatch.context() as patch:
        assert ways_of_convolution(patch, nn.Conv2d(4, 4, 1), image(4, 4, 8, 8)) == set()


@pytest.mark.parametrize("channels", [3, 11])  # fewer than columns, and more
@pytest.mark.parametrize("padding", [(0, 0), (1, 2)])
def test_samples_side_by_side_are_those_unfolded(channels, padding):
    """Which of the two a device prefers must not matter."""
    torch.manual_seed(0)
    kernel = rules.Kernel((4, channels, 3, 2), (2, 1), padding, (1, 2), 1)
    x, w = image(5, channels, 7, 6), torch.randn(kernel.shape, dtype=torch.float64)
    g = torch.randn_like(torch.conv2d(x, w, None, *kernel[1:]))
    totals = []
    for way in (rules.unfold_convolution, rules.group_convolution):
        sums = rules.Accumulator({"w": w}, 2)
        sums.set_weights(torch.tensor([[1.0] * 5, [0, 1, 2, 0, 3]], dtype=torch.float64))
        way(sums, "w", x, g, kernel)
        totals.append(sums.totals["w"])
    assert torch.allclose(*totals, rtol=1e-12, atol=0)


def trained(norm):
    """With weights and statistics unlike those of a fresh layer."""
    torch.manual_seed(3)
    for p in norm.parameters():
        nn.init.normal_(p)
    if getattr(norm, "running_mean", None) is not None:
        norm.running_mean.normal_().mul_(1e4)
        norm.running_var.uniform_(0.5, 2)
    return norm


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (lambda: nn.BatchNorm1d(6), (6,)),
        (lambda: nn.BatchNorm1d(6), (6, 5)),
        (lambda: nn.BatchNorm2d(6, eps=0.1), (6, 4, 3)),
        (lambda: nn.BatchNorm3d(6), (6, 2, 2, 3)),
        (lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True), (6, 4, 3)),
        (lambda: nn.LayerNorm(6), (6,)),
        (lambda: nn.LayerNorm(6, eps=0.1), (4, 6)),
        (lambda: nn.LayerNorm((4, 6)), (4, 6)),
        (lambda: nn.LayerNorm((4, 6)), (3, 4, 6)),
        (lambda: nn.LayerNorm(6, bias=False), (2, 3, 6)),
        (lambda: nn.GroupNorm(2, 6, eps=0.1), (6, 4, 3)),
        (lambda: nn.GroupNorm(3, 6), (6,)),
        (lambda: nn.GroupNorm(1, 6), (6, 5)),
    ],
)
def test_normalisations(norm, shape):
    layer = trained(norm())
    x = image(5, *shape)
    if getattr(layer, "running_mean", None) is not None:  # images about as far from 0 as the statistics say
        x += layer.running_mean.reshape(-1, *[1] * (len(shape) - 1))
    torch.manual_seed(0)
    slow = slow_ones(nn.Sequential(layer, Flat()).double(), x, tolerance=1e-8)
    assert slow == ({"0.weight", "0.bias"} if isinstance(layer, nn.InstanceNorm2d) else set())


@pytest.mark.parametrize("padding", [None, 0, -1])
@pytest.mark.parametrize("shape", [(5,), (5, 7), (5, 2, 3)])
def test_embedding_with_tokens_that_come_twice(shape, padding):
    torch.manual_seed(2)
    all_quick(nn.Embedding(4, 3, padding_idx=padding), torch.randint(4, shape))


@pytest.mark.parametrize("options", [{"max_norm": 0.5}, {"scale_grad_by_freq": True}])
def test_embeddings_with_options_of_their_own_go_the_slow_way(options):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Embedding(4, 3, **options), Flat()).double()
    tokens = torch.randint(4, (5, 1))
    with torch.no_grad():
        net(tokens)  # max_norm has shortened them
    assert slow_ones(net, tokens) == {"0.weight"}
