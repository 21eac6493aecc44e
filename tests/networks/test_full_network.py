"""Networks with their heads, by name: whose head, which weights, and what is refused."""

import sys
import types

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision import models

from dspreg.errors import ConfigError, IntegrityError
from dspreg.networks.full_network import make_full_network

TIMM = "test_resnet"


def saved(path, net):
    save_file({name: t.contiguous() for name, t in net.state_dict().items()}, path)
    return str(path)


@pytest.fixture
def seven(tmp_path):
    """A network of seven outputs, and its file."""
    torch.manual_seed(3)
    net = timm.create_model(TIMM, num_classes=7)
    return net, saved(tmp_path / "seven.safetensors", net)


def equal(a, b, names=None):
    return all(torch.equal(a.state_dict()[n], b.state_dict()[n]) for n in names or a.state_dict())


def test_a_head_that_fits_the_classes_is_taken_from_the_file(seven):
    net, path = seven
    found = make_full_network(TIMM, weights=path, image_size=32, classes=7)
    assert (found.head, found.outputs) == ("own", 7)
    assert equal(found.net, net)
    assert found.weights.source == "file"
    assert len(found.weights.sha256) == 64


def test_a_head_for_other_classes_is_new_and_the_rest_is_the_files(seven):
    net, path = seven
    made = [make_full_network(TIMM, weights=path, image_size=32, classes=3, key=key) for key in (0, 0, 1)]
    body = [n for n in net.state_dict() if not n.startswith("fc.")]
    assert 0 < len(body) < len(net.state_dict())
    for each in made:
        assert (each.head, each.outputs) == ("new", 3)
        assert each.net.fc.weight.shape[0] == 3
        assert equal(each.net, net, body)
    assert torch.equal(made[0].net.fc.weight, made[1].net.fc.weight)  # by the key
    assert not torch.equal(made[0].net.fc.weight, made[2].net.fc.weight)


def test_where_no_labels_are_used_a_file_keeps_its_head(seven):
    net, path = seven
    for classes in (None, 3):
        found = make_full_network(TIMM, weights=path, image_size=32, classes=classes, labels=False)
        assert (found.head, found.outputs) == ("own", 7)
        assert equal(found.net, net)


def test_from_scratch_without_classes_it_has_as_many_outputs_as_it_is_known_for():
    found = make_full_network(TIMM, weights="none", image_size=32, labels=False)
    assert found.outputs == found.net.fc.weight.shape[0] == 1000
    assert make_full_network(TIMM, weights="none", image_size=32, classes=5).net.fc.weight.shape[0] == 5


def test_normalisation_is_the_networks_own(seven):
    found = make_full_network("tf_efficientnet_lite0", weights="none", image_size=32, classes=2)
    assert found.mean == (0.5, 0.5, 0.5)  # by timm's notes on it
    assert make_full_network("torchvision.resnet18", weights="none", classes=2).mean == (0.485, 0.456, 0.406)


def test_making_one_moves_no_global_randomness():
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    make_full_network(TIMM, weights="none", image_size=32, classes=5)
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize(("name", "head"), [("squeezenet1_0", "classifier.1"), ("mobilenet_v3_small", "classifier.3")])
def test_torchvision_with_and_without_its_head(tmp_path, name, head):
    torch.manual_seed(1)
    net = models.get_model(name, num_classes=4)
    path = saved(tmp_path / "w.safetensors", net)
    own = make_full_network(f"torchvision.{name}", weights=path, classes=4)
    assert own.head == "own"
    assert equal(own.net, net)
    new = make_full_network(f"torchvision.{name}", weights=path, classes=6)
    assert (new.head, new.outputs) == ("new", 6)
    assert equal(new.net, net, [n for n in net.state_dict() if not n.startswith(f"{head}.")])
    with torch.no_grad():
        assert new.net.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 6)


def test_a_file_that_fits_neither_way_is_refused(tmp_path, seven):
    other = saved(tmp_path / "other.safetensors", nn.Linear(2, 2))
    for name in (TIMM, "torchvision.resnet18"):
        with pytest.raises(IntegrityError, match="does not hold weights of"):
            make_full_network(name, weights=other, image_size=32, classes=2)


def test_not_a_number_in_a_head_that_fits_is_not_replaced_by_a_new_head(tmp_path, seven):
    net, _ = seven
    with torch.no_grad():
        net.fc.weight[0, 0] = torch.nan
    with pytest.raises(IntegrityError, match="NaN"):
        make_full_network(TIMM, weights=saved(tmp_path / "nan.safetensors", net), image_size=32, classes=7)


@pytest.fixture
def own(monkeypatch):
    module = types.ModuleType("own_networks")
    module.make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    module.three = lambda: 3
    module.needs = lambda classes: nn.Linear(2, classes)
    module.number = 3
    monkeypatch.setitem(sys.modules, "own_networks", module)
    return module


def test_a_network_of_ones_own_with_and_without_a_file(own, tmp_path):
    torch.manual_seed(5)
    net = own.make()
    path = saved(tmp_path / "mine.safetensors", net)
    assert equal(make_full_network("own_networks.make", weights=path, classes=3).net, net)
    fresh = make_full_network("own_networks.make", classes=3)
    assert not equal(fresh.net, net)
    assert fresh.weights.source == "none"
    with pytest.raises(IntegrityError, match=r"does not hold weights of own_networks\.make"):
        make_full_network("own_networks.make", weights=saved(tmp_path / "x.safetensors", nn.Linear(12, 3)), classes=3)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("own_networks.three", r"own_networks.three\(\) returned a int; wanted an nn.Module"),
        ("own_networks.number", "is a int; wanted a function or class"),
        ("own_networks.needs", "called without arguments, raised TypeError"),
        ("own_networks.nothing", "has no attribute 'nothing'"),
        ("no_such_package.make", "no module 'no_such_package'; is its folder on PYTHONPATH"),
        ("resnt50.tv_in1k", "no module 'resnt50'.* Or did you mean timm's 'resnet50'"),
        ("resnt50", "no network is called 'resnt50'. Similar names: resnet50,"),
        ("torchvision.resnt50", "torchvision has no network for images called 'resnt50'. Did you mean 'resnet50'"),
    ],
)
def test_what_is_no_network_is_said(own, name, says):
    with pytest.raises(ConfigError, match=says):
        make_full_network(name, weights="none", image_size=32, classes=3)


def test_torchvisions_own_weights_are_pickles_and_refused():
    with pytest.raises(ConfigError, match=r"as a pickle.*--weights FILE"):
        make_full_network("torchvision.resnet18", classes=3)


def test_small_cnn_wants_classes():
    assert make_full_network("small-cnn", classes=4).net(torch.zeros(1, 3, 28, 28)).shape == (1, 4)
    with pytest.raises(ConfigError, match="no outputs of its own"):
        make_full_network("small-cnn", labels=False)
