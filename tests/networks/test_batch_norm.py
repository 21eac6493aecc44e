"""Batch norm that keeps its statistics and trains its scale and shift."""

import pytest
import timm
import torch
from timm.layers import BatchNormAct2d
from torch import nn

from dspreg.networks import Network, make_backbone
from dspreg.networks.batch_norm import freeze_statistics
from dspreg.networks.pretrained import TimmFeaturizer


def one_block():
    """Convolution, batch norm with statistics as after some training, pooling."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with torch.no_grad():
        net[1].running_mean.normal_()
        net[1].running_var.uniform_(0.5, 2)
        net[1].weight.uniform_(0.5, 2)
        net[1].bias.normal_()
    return net.double()


def by_hand(tensors, x):
    """The same block from the definition of batch norm, with its statistics as constants."""
    weight, bias, mean, var, scale, shift = tensors
    z = torch.conv2d(x, weight, bias)
    z = (z - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt() * scale[:, None, None] + shift[:, None, None]
    return z.clamp(min=0).mean((2, 3))


def test_a_step_is_that_of_a_network_with_constant_statistics():
    block = one_block()
    conv, norm = block[0], block[1]
    plain = [t.detach().clone() for t in (conv.weight, conv.bias, norm.running_mean, norm.running_var)]
    plain += [norm.weight.detach().clone(), norm.bias.detach().clone()]
    trained = [plain[i].requires_grad_() for i in (0, 1, 4, 5)]

    ours = TimmFeaturizer(block, width=4, frozen_bn=True)
    x = torch.randn(6, 3, 8, 8, dtype=torch.double)
    for net, params in ((ours, list(ours.parameters())), (lambda x: by_hand(plain, x), trained)):
        optimizer = torch.optim.SGD(params, lr=0.1)
        for _ in range(3):
            if isinstance(net, nn.Module):
                net.train()
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()

    for mine, theirs in zip(ours.parameters(), trained, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert torch.equal(norm.running_mean, plain[2])
    assert torch.equal(norm.running_var, plain[3])


def trained_a_step(frozen_bn):
    torch.manual_seed(0)
    features = make_backbone("test_resnet", weights="none", image_size=32, frozen_bn=frozen_bn).make()
    net = Network(features, nn.Linear(features.width, 2))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net.eval()
    net.train()
    net(torch.randn(4, 3, 32, 32)).square().sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    return net, {name for name, tensor in net.state_dict().items() if not torch.equal(tensor, before[name])}


def test_training_moves_scale_and_shift_and_no_statistic():
    net, moved = trained_a_step(frozen_bn=True)
    norms = [name for name, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert not any("running" in name or "tracked" in name for name in moved)
    last = [n for n in norms if f"{n}.weight" in moved and f"{n}.bias" in moved]
    assert len(last) > len(norms) / 2  # scales that start at zero stop the gradient of what lies before them
    assert all(p.requires_grad for p in net.parameters())


def test_without_freezing_the_statistics_move():
    net, moved = trained_a_step(frozen_bn=False)
    assert {n for n, _ in net.named_buffers()} <= moved


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, BatchNormAct2d])
def test_every_kind_of_batch_norm_is_meant(norm):
    net = nn.Sequential(nn.Dropout(), nn.Sequential(norm(4)))
    net.train()
    freeze_statistics(net)
    assert net.training
    assert net[0].training
    assert not net[1][0].training


def test_the_rest_of_the_network_trains_and_evaluates_as_told():
    features = TimmFeaturizer(timm.create_model("test_efficientnet", num_classes=0), width=256, dropout=0.5)
    assert features.training
    assert features.dropout.training
    assert not any(m.training for m in features.modules() if isinstance(m, BatchNormAct2d))
    assert features.eval() is features
    assert not any(m.training for m in features.modules())
    assert features.train(True) is features
    assert features.dropout.training
