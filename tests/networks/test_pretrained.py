"""Backbones by name: what comes out of them, what they want to be fed, and what is said of a wrong name."""

import subprocess
import sys

import pytest
import timm
import torch
from torch import nn

from dspreg.algorithms import ERM, Task
from dspreg.errors import ConfigError
from dspreg.networks import SmallCNN, Weights, make_backbone
from dspreg.randomness import seeded

FAMILIES = {
    "resnet18": (512, 64),
    "tf_efficientnet_lite0": (1280, 64),
    "mobilenetv3_small_050": (1024, 64),  # timm's num_features is 288
    "vit_tiny_patch16_224": (192, 64),
    "convnext_atto": (320, 64),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_features_are_those_of_timm(name):
    width, size = FAMILIES[name]
    backbone = make_backbone(name, weights="none", image_size=size)
    ours = backbone.make().eval()
    sized = {"img_size": size} if name.startswith("vit") else {}
    theirs = timm.create_model(name, num_classes=0, **sized)
    theirs.load_state_dict(ours.model.state_dict())
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        features = ours(x)
        assert torch.equal(features, theirs.eval()(x))
    assert features.shape == (2, width)
    assert ours.width == width
    assert backbone.weights == Weights("none", "none", None)


def test_activations_whose_gradient_needs_their_input_do_not_overwrite_it():
    """Autograd would copy it first. ReLU, whose gradient needs its output alone, stays as it is."""
    net = make_backbone("tf_efficientnet_lite0", weights="none", image_size=32).make()
    found = [m.inplace for m in net.modules() if isinstance(m, nn.ReLU6)]
    assert found
    assert not any(found)
    resnet = make_backbone("resnet18", weights="none", image_size=32).make()
    assert all(m.inplace for m in resnet.modules() if isinstance(m, nn.ReLU))


def test_normalisation_is_the_networks_own():
    plain = make_backbone("resnet18", weights="none", image_size=32)
    assert plain.mean == (0.485, 0.456, 0.406)
    assert plain.std == (0.229, 0.224, 0.225)
    lite = make_backbone("tf_efficientnet_lite0", weights="none", image_size=32)
    assert lite.mean == lite.std == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("name", ["small-cnn", "test_resnet", "test_vit"])
def test_from_scratch_the_seed_decides(name):
    backbone = make_backbone(name, weights="none", image_size=32)

    def built(*key):
        with seeded(*key):
            return backbone.make().state_dict()

    one, same, other = built(1), built(1), built(2)
    assert all(torch.equal(one[n], same[n]) for n in one)
    assert any(not torch.equal(one[n], other[n]) for n in one)


def test_looking_at_a_backbone_draws_no_random_numbers():
    before = torch.get_rng_state()
    make_backbone("test_resnet", weights="none", image_size=32)
    assert torch.equal(torch.get_rng_state(), before)


def test_erm_builds_on_it():
    backbone = make_backbone("test_convnext", weights="none", image_size=32, dropout=0.1)
    task = Task(num_classes=3, domains=("a", "b"), steps_per_epoch=1, backbone=backbone.make)
    stack = ERM().setup(task, lambda params: torch.optim.SGD(params, lr=0.1))
    assert stack.predict(torch.zeros(2, 3, 32, 32)).shape == (2, 3)


def test_dropout_is_after_the_pooling():
    features = make_backbone("test_resnet", weights="none", image_size=32, dropout=0.25).make()
    assert features.dropout.p == 0.25
    with torch.no_grad():
        x = torch.ones(64, 3, 32, 32)
        kept = features.eval()(x)
        dropped = features.train()(x)
    through = dropped != 0
    torch.testing.assert_close(dropped[through], kept[through] / 0.75)
    assert 0.6 < through[kept != 0].float().mean() < 0.9
    assert make_backbone("small-cnn", dropout=0.25).make().layers[-1].p == 0.25


def test_small_cnn_has_no_weights_to_start_from():
    backbone = make_backbone("small-cnn", image_size=28)
    assert isinstance(backbone.make(), SmallCNN)
    assert backbone.mean == backbone.std == (0.5, 0.5, 0.5)
    assert backbone.weights == Weights("none", "none", None)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("resnet50x", {}, "no network is called 'resnet50x'. Similar names: resnet50"),
        ("ResNet-18", {}, "Similar names: resnet18"),
        ("smallcnn", {}, "small-cnn"),
        ("timm/resnet18", {}, "no network is called 'timm/resnet18'"),
        ("hf-hub:timm/resnet18", {}, "no network is called"),
        ("", {}, "no network is called ''"),
        ("resnet18.imagenet", {}, "resnet18 has no tag 'imagenet'; its tags: a1_in1k, .*tv_in1k"),
        ("resnet18.", {}, "resnet18 has no tag ''"),
        ("resnet18", {"dropout": 1.0}, "0 ≤ dropout < 1, not 1.0"),
        ("resnet18", {"dropout": float("nan")}, "not nan"),
        ("resnet18", {"image_size": 0}, "image_size is a number of pixels"),
        ("convnext_atto", {"image_size": 8}, "images of 8 pixels are too small for convnext_atto, whose default is"),
        ("vit_tiny_patch16_224", {"image_size": 8}, "8 pixels are too small for vit_tiny_patch16_224"),
        ("resnet18", {"weights": "imagenet"}, "no file imagenet.*a timm tag is part of the name"),
    ],
)
def test_what_cannot_be_is_said(name, options, says):
    with pytest.raises(ConfigError, match=says):
        make_backbone(name, **{"weights": "none"} | options)


class Unpooled(nn.Conv2d):
    def __init__(self, pretrained=False, **kwargs):
        super().__init__(3, 4, 3)


def registered(monkeypatch, name, entry):
    """A network of somebody's own in timm's list, for one test."""
    from timm.models import _registry

    monkeypatch.setitem(_registry._model_entrypoints, name, entry)
    monkeypatch.setattr(timm, "list_models", lambda: [name])


def test_a_network_that_does_not_pool_is_refused(monkeypatch):
    registered(monkeypatch, "unpooled", Unpooled)
    with pytest.raises(ConfigError, match=r"unpooled returned shape \(2, 4, 30, 30\) for two images"):
        make_backbone("unpooled", weights="none", image_size=32)


def test_a_network_without_published_weights_says_so(monkeypatch):
    registered(monkeypatch, "unpooled", Unpooled)
    with pytest.raises(ConfigError, match=r"no weights for unpooled on the hub\. Start from scratch"):
        make_backbone("unpooled", image_size=32)


def test_timm_waits_until_it_is_needed():
    program = "import sys, dspreg.networks; print([m for m in ('timm', 'huggingface_hub') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
