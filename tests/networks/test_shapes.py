"""Networks without numbers have the shapes of those with them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import dspreg
from dspreg.networks import make_backbone
from dspreg.networks.shapes import shapes_alone
from dspreg.networks.timm_models import create_with_head, stated_width, width_of

NAMES = ("test_resnet", "test_vit", "test_efficientnet", "test_convnext", "mobilenetv3_small_050")


def shapes(net):
    return {name: (tuple(t.shape), t.dtype) for name, t in net.state_dict().items()}


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_has_its_shape_and_is_nowhere(name):
    with shapes_alone():
        hollow = create_with_head(name, 160, 0)[0]
    assert all(t.is_meta for t in hollow.state_dict().values())
    assert shapes(hollow) == shapes(create_with_head(name, 160, 0)[0])


def test_outside_of_it_tensors_are_filled_as_ever():
    with shapes_alone():
        nn.Linear(3, 3)
    torch.manual_seed(0)
    mine = nn.init.kaiming_normal_(torch.empty(4, 4))
    torch.manual_seed(0)
    assert torch.equal(mine, nn.init.kaiming_normal_(torch.empty(4, 4)))
    assert mine.std() > 0


def test_a_tensor_with_numbers_is_filled_within_it():
    real = torch.zeros(100, device="cpu")
    with shapes_alone():
        nn.init.normal_(tensor=real)
        real.uniform_(1, 2)
    assert (real >= 1).all()


@pytest.mark.parametrize("name", NAMES)
def test_timm_states_the_width_that_a_forward_pass_finds(name):
    net = create_with_head(name, 160, 0)[0]
    assert stated_width(net) == width_of(net, name, 160)


@pytest.mark.parametrize("said", [None, 7])
def test_a_width_that_timm_does_not_confirm_is_found_by_a_forward_pass(said):
    assert make_backbone("test_resnet", weights="none", image_size=64, width=said).make().width == 96


def test_a_width_that_timm_confirms_needs_none(monkeypatch):
    monkeypatch.setattr("dspreg.networks.pretrained.width_of", lambda *_: pytest.fail("a forward pass"))
    assert make_backbone("test_resnet", weights="none", image_size=64, width=96).make().width == 96


def test_no_compiler_is_imported():
    code = (
        "import sys\n"
        "from dspreg.networks.shapes import shapes_alone\n"
        "from dspreg.networks.timm_models import create_with_head\n"
        "with shapes_alone():\n"
        "    for name in ('test_resnet', 'test_vit', 'test_efficientnet'): create_with_head(name, 160, 0)[0]\n"
        "print('torch._dynamo' in sys.modules)"
    )
    environment = {"PYTHONPATH": str(Path(dspreg.__file__).parents[1])}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert ended.stdout.strip() == "False"
