"""Where features are looked at on their way, and that looking leaves no trace."""

import pytest
import torch
from torch import nn

from dspreg.networks import SmallCNN, TinyCNN, TinyMLP, make_backbone
from dspreg.networks.feature_hooks import capture_features, default_places, probe_outputs, require_places


class Own(nn.Module):
    """Neither timm's nor ours: a stem with a pool, two stages, a head."""

    def __init__(self):
        super().__init__()
        self.body = nn.ModuleDict()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.norm = nn.BatchNorm2d(4)
        self.stage = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU())
        self.noise = nn.Dropout2d(0.5)

    def forward(self, x):
        return self.noise(self.stage(self.norm(self.pool(self.stem(x))))).mean((2, 3))


@pytest.mark.parametrize(
    ("featurizer", "places"),
    [
        (TinyMLP(5, 8, dropout=0.5), ("layers.1",)),
        (TinyCNN(3, 8, dropout=0.5), ("layers.1", "layers.3")),
        (SmallCNN(), ("layers.2", "layers.5", "layers.8")),
        (Own(), ("stem", "norm", "stage")),
    ],
)
def test_stages_of_networks_that_do_not_tell(featurizer, places):
    assert default_places(featurizer) == places


@pytest.mark.parametrize(
    ("name", "size", "places"),
    [
        ("resnet18", 64, ["maxpool", "layer1", "layer2", "layer3", "layer4"]),
        ("tf_efficientnet_lite0", 64, [f"blocks.{i}" for i in (0, 1, 2, 4, 6)]),
        ("vit_tiny_patch16_224", 96, ["patch_embed", "blocks.2", "blocks.5", "blocks.8", "blocks.11"]),
        ("test_convnext", 32, [f"stages.{i}" for i in range(4)]),
    ],
)
def test_stages_of_timm(name, size, places):
    featurizer = make_backbone(name, weights="none", image_size=size).make()
    names = tuple(f"model.{place}" for place in places)
    assert default_places(featurizer) == names
    assert list(probe_outputs(featurizer, names)) == list(names)


def test_looking_changes_nothing():
    net = Own()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    modes = [m.training for m in net.modules()]
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    default_places(net)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert [m.training for m in net.modules()] == modes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_every_call_is_heard_and_nothing_after_an_error():
    net = TinyMLP(5)
    with capture_features(net, ["layers.0"]) as heard:
        net(torch.zeros(2, 5))
        net(torch.ones(3, 5))
    assert [len(x) for x in heard.inputs] == [2, 3]
    assert [len(h) for h in heard.features["layers.0"]] == [2, 3]
    with pytest.raises(RuntimeError, match="cannot be multiplied"), capture_features(net, ["layers.0"]):
        net(torch.zeros(2, 4))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_networks_of_a_fixed_size_are_tried_until_one_goes_through():
    fixed = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 28 * 28, 5))
    assert [tuple(t.shape) for t in probe_outputs(fixed, ["0", "2"]).values()] == [(1, 2, 28, 28), (1, 5)]
    none = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(7, 5))
    with pytest.raises(ValueError, match="no square image of 32 to 512 pixels goes through Sequential"):
        probe_outputs(none, ["0"])


def test_places_that_are_none():
    with pytest.raises(ValueError, match=r"X: the featurizer has no place 'layers\.12'"):
        require_places(TinyMLP(5), ["layers.12"], "X")
    with pytest.raises(ValueError, match="X: no places"):
        require_places(TinyMLP(5), [], "X")


def test_a_place_without_a_tensor():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.GRU(5, 5)
            self.last = nn.Linear(5, 5)

        def forward(self, x):
            return self.last(self.recurrent(x)[0])

    with pytest.raises(ValueError, match="at 'recurrent' a tuple comes out"):
        probe_outputs(Both(), ["recurrent"])
