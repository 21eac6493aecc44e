"""How parameters are used: what is measured quickly, what is not, and that either way the numbers are right."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from dspreg.sensitivity.per_sample.accumulator import Accumulator
from dspreg.sensitivity.per_sample.function_mode import ParameterTaps
from helpers.strategies import net, numbers, slow_ones


def parameter(*shape):
    return nn.Parameter(numbers(*shape))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_attention_either_way_round():
    first = net(lambda s, x: s.a(x, x, x)[0].sum(1).tanh(), a=nn.MultiheadAttention(4, 2, batch_first=True))
    assert slow_ones(first, numbers(5, 6, 4)) == set()

    def positions_first(s, x):
        x = x.transpose(0, 1)
        return s.a(x, x, x)[0].sum(0).tanh()

    for positions in (3, 5, 6):  # as many as there are samples, or as are compared
        assert slow_ones(net(positions_first, a=nn.MultiheadAttention(4, 2)), numbers(5, positions, 4)) == set()


@pytest.mark.parametrize("options", [{"kdim": 3, "vdim": 2}, {"add_bias_kv": True}, {"add_zero_attn": True}])
def test_attention_with_options(options):
    def forward(s, x):
        return s.a(x, x[..., : s.a.kdim], x[..., : s.a.vdim])[0].sum(1).tanh()

    slow = slow_ones(net(forward, a=nn.MultiheadAttention(4, 2, batch_first=True, **options)), numbers(5, 3, 4))
    assert "a.out_proj.weight" not in slow


def test_attention_among_the_words_of_windows():
    def forward(s, x):
        windows = x.reshape(-1, 2, 4)
        return s.a(windows, windows, windows)[0].reshape(len(x), -1).tanh()

    slow_ones(net(forward, a=nn.MultiheadAttention(4, 2, batch_first=True)), numbers(5, 6, 4))


@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_layer(norm_first):
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=norm_first)
    assert slow_ones(net(lambda s, x: s.e(x).sum(1).tanh(), e=layer), numbers(5, 6, 4)) == set()


def test_tokens_and_scales_that_all_samples_share():
    def forward(s, x):
        x = torch.cat([s.token.expand(len(x), -1, -1), x], 1) + s.places
        x = x + s.scale * torch.tanh(s.linear(x)) + torch.tanh(x).mul(s.one)
        x = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * s.root
        return torch.sin(s.shift + x[:, 0])

    parts = {
        "token": parameter(1, 1, 4),
        "places": parameter(1, 6, 4),
        "scale": parameter(4),
        "linear": nn.Linear(4, 4),
    }
    more = {"one": parameter(1), "root": parameter(4), "shift": parameter(4)}
    assert slow_ones(net(forward, **parts, **more), numbers(5, 5, 4)) == set()


def test_windows_moved_into_the_batch():
    def windows(s, x):  # (B, 4, 4, C) → (B·4, 4, C), as in Swin
        b = len(x)
        x = x.view(b, 2, 2, 2, 2, 3).transpose(2, 3).reshape(b * 4, 4, 3)
        return s.norm(torch.tanh(s.linear(x))).reshape(b, -1)[:, :5].sin()

    parts = {"linear": nn.Linear(3, 3), "norm": nn.LayerNorm(3)}
    assert slow_ones(net(windows, **parts), numbers(5, 4, 4, 3)) == set()


def test_views_stacked_after_one_another_are_not_taken_for_windows():
    both = net(lambda s, x: s.linear(torch.cat([x, x.sin()])).tanh().view(2, len(x), -1).sum(0), linear=nn.Linear(4, 3))
    assert slow_ones(both, numbers(5, 4)) == {"linear.weight", "linear.bias"}


@pytest.mark.parametrize("positions", [3, 5, 6])
@pytest.mark.parametrize("samples", [3, 5])
def test_positions_before_samples(samples, positions):
    def forward(s, x):
        h = torch.tanh(s.norm(s.linear(x.transpose(0, 1)) + s.shift))
        return h.sum(0)

    parts = {"linear": nn.Linear(4, 3), "shift": parameter(3), "norm": nn.LayerNorm(3)}
    slow = slow_ones(net(forward, **parts), numbers(samples, positions, 4))
    assert slow == {"linear.weight", "linear.bias", "shift", "norm.weight", "norm.bias"}


def test_samples_that_change_places_inside():
    """Sorted by length, say: the sum over all is right, and a sum over some is not."""
    flipped = net(lambda s, x: torch.tanh(s.linear(x.flip(0))).flip(0), linear=nn.Linear(4, 3))
    assert slow_ones(flipped, numbers(5, 4)) == {"linear.weight", "linear.bias"}


def test_what_is_computed_for_all_samples_at_once():
    def forward(s, x):
        return torch.tanh(x + s.table(torch.arange(3)).sum(0) + s.linear(torch.ones(6, 2, dtype=x.dtype)).sum(0))

    parts = {"table": nn.Embedding(3, 4), "linear": nn.Linear(2, 4)}
    assert slow_ones(net(forward, **parts), numbers(5, 4)) == {"table.weight", "linear.weight", "linear.bias"}


def test_in_place_and_residual():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

        def forward(self, x):
            out = self.norm(F.relu_(self.conv(x)))
            out += x
            return F.relu_(out)

    two = nn.Sequential(Block(), Block(), nn.Flatten(), nn.Linear(48, 2)).double()
    assert slow_ones(two, numbers(5, 3, 4, 4)) == set()


def test_a_frozen_first_layer_and_a_part_of_a_layer():
    layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    layers[0].requires_grad_(False)
    layers[2].weight.requires_grad_(False)
    layers[4].bias.requires_grad_(False)
    assert slow_ones(layers, numbers(5, 4)) == set()


def twice(s, x):
    return s.last(torch.tanh(s.a(torch.tanh(s.a(x)))))


def functional(s, x):
    return s.last(torch.tanh(s.a(x) + s.a.weight.sum()))


def transposed(s, x):
    return s.last(torch.tanh(s.a(x)) @ s.a.weight)


def in_a_list(s, x):
    return s.last(torch.tanh(s.a(x) + sum(x @ w for w in [s.a.weight])))


@pytest.mark.parametrize("forward", [twice, functional, transposed, in_a_list])
def test_a_parameter_that_is_used_again(forward):
    slow = slow_ones(net(forward, a=nn.Linear(4, 4), last=nn.Linear(4, 2)), numbers(5, 4))
    assert slow == ({"a.weight", "a.bias"} if forward is twice else {"a.weight"})


def test_tied_embedding():
    def forward(s, x):
        return F.linear(torch.tanh(s.words(x)).sum(1), s.words.weight, s.bias)

    slow = slow_ones(net(forward, words=nn.Embedding(6, 4), bias=parameter(6)), torch.randint(6, (5, 3)))
    assert slow == {"words.weight"}


@pytest.mark.parametrize(
    ("layer", "slow"),
    [
        (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), {"original0", "original1"}),
        (lambda: nn.GRU(4, 4, batch_first=True), {"ih_l0", "hh_l0"}),
        (lambda: nn.LSTM(4, 4, batch_first=True), {"ih_l0", "hh_l0"}),
        (lambda: nn.PReLU(4), {"weight"}),
    ],
)
def test_layers_without_a_rule(layer, slow):
    def forward(s, x):
        h = s.a(x.transpose(1, 2)).transpose(1, 2) if isinstance(s.a, nn.PReLU) else s.a(x)
        return s.last(torch.tanh(h[0] if isinstance(h, tuple) else h).sum(1))

    found = slow_ones(net(forward, a=layer(), last=nn.Linear(4, 2)), numbers(5, 3, 4))
    assert all(name.startswith("a.") for name in found)
    assert all(any(name.endswith(ending) for name in found) for ending in slow)


def test_transposed_convolution():
    layers = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Tanh(), nn.ConvTranspose2d(4, 2, 3), nn.Tanh(), nn.Flatten()).double()
    assert slow_ones(layers, numbers(4, 3, 3, 3)) == {"2.weight", "2.bias"}


def test_checkpointed_layers():
    def forward(s, x):
        return s.last(checkpoint(lambda x: torch.tanh(s.a(x)), x, use_reentrant=False))

    parts = {"a": nn.Linear(4, 5), "last": nn.Linear(5, 2), "unused": nn.Linear(2, 2)}
    assert {"a.weight", "a.bias"} <= slow_ones(net(forward, **parts), numbers(5, 4))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_unused_and_empty_parameters():
    parts = {"a": nn.Linear(4, 3), "unused": nn.Linear(4, 3), "empty": nn.Linear(4, 0)}
    assert slow_ones(net(lambda s, x: torch.cat([s.a(x), s.empty(x)], 1).tanh(), **parts), numbers(5, 4)) == set()


def test_arguments_by_name():
    def forward(s, x):
        x = F.conv1d(input=x, weight=s.conv.weight, bias=s.conv.bias).flatten(1)
        x = torch.add(input=x.tanh(), other=s.shift)
        return torch.mul(F.linear(input=x, weight=s.linear.weight, bias=s.linear.bias), other=s.scale).sin()

    parts = {"conv": nn.Conv1d(2, 3, 2), "shift": parameter(9), "linear": nn.Linear(9, 3), "scale": parameter(3)}
    assert slow_ones(net(forward, **parts), numbers(5, 2, 4)) == set()


def test_arguments_that_no_rule_knows():
    def forward(s, x):
        return torch.add(x.sin(), s.a, alpha=2) + torch.mul(x, s.b, out=None).sin() + s.c.expand(size=x.shape).sin()

    parts = {"a": parameter(4), "b": parameter(4), "c": parameter(1, 4)}
    assert slow_ones(net(forward, **parts), numbers(5, 4)) == {"a", "b", "c"}


def test_hooks_on_modules():
    layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    layers[2].register_full_backward_hook(lambda module, into, out: (into[0] * 3,))
    layers[0].register_forward_hook(lambda module, args, out: out * 2)
    assert slow_ones(layers, numbers(5, 4)) == set()


def test_a_hook_on_a_parameter_counts():
    layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    layers[0].weight.register_hook(lambda g: g / 2)
    assert slow_ones(layers, numbers(5, 4)) == {"0.weight"}


def test_data_parallel():
    assert slow_ones(nn.DataParallel(nn.Linear(4, 2)).double(), numbers(5, 4)) == set()


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_batches_of_any_size(samples):
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).double()
    assert slow_ones(layers, numbers(samples, 3, 4, 4)) == set()


def test_half_precision():
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten(), nn.Linear(128, 2))
    assert slow_ones(layers.bfloat16(), numbers(5, 3, 6, 6).bfloat16(), tolerance=0.05) == set()


def test_parameters_in_another_shape():
    """As ConvNeXt scales its layers."""

    def forward(s, x):
        x = x * s.a.reshape(1, -1, 1, 1) + s.b.view(3, 1, 1) + x.sin() * s.c[:, None, None]
        x = torch.cat([x.flatten(1), s.d.unsqueeze(0).expand(len(x), -1)], 1)
        return torch.tanh(F.linear(x, s.e.flatten(1)))

    parts = {"a": parameter(3), "b": parameter(3), "c": parameter(3), "d": parameter(2), "e": parameter(2, 14, 1)}
    assert slow_ones(net(forward, **parts), numbers(5, 3, 2, 2)) == set()


def test_numbers_in_another_order_are_not_another_shape():
    def forward(s, x):
        return torch.tanh(x * s.a[0:2] + x * s.b.view(torch.int64).view(torch.float64) + x * s.c[[1, 0]])

    parts = {"a": parameter(2), "b": parameter(2), "c": parameter(2)}
    assert {"a", "c"} <= slow_ones(net(forward, **parts), numbers(5, 2))


def test_a_parameter_in_two_shapes_is_used_twice():
    both = net(lambda s, x: torch.tanh(x * s.a.view(1, 3) + x.cos() * s.a.view(3)), a=parameter(3))
    assert slow_ones(both, numbers(5, 3)) == {"a"}


@pytest.mark.parametrize("forward", [twice, functional, transposed])
def test_one_tap_is_not_enough_for_a_parameter_that_is_used_again(forward):
    """Known without a comparison: what a network does may change from batch to batch."""
    model = net(forward, a=nn.Linear(4, 4), last=nn.Linear(4, 2))
    params = dict(model.named_parameters())
    with ParameterTaps(params, 5, Accumulator(params, 1)) as taps:
        model(numbers(5, 4))
    assert taps.once == {"last.weight", "last.bias"} | ({"a.bias"} if forward is not twice else set())
