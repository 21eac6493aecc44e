"""Which layer is drawn, and what is said of made-up maps."""

import pytest
import torch
from torch import nn

from dspreg.paper.heat_maps import _compare, convolutions, layer_of, profiles_to_draw, render_tables
from dspreg.paper.items import maps
from dspreg.paper.scales import SMOKE
from dspreg.reporting.formats import FORMATS
from helpers.items import store_of


class Crossed(nn.Module):
    """Called in another order than made, one of them twice."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(3, 3, 1) for _ in range(3))

    def forward(self, x):
        return self.a(self.c(self.c(self.b(x))))


def test_convolutions_are_counted_as_they_are_called():
    net = Crossed()
    assert convolutions(net, torch.zeros(1, 3, 4, 4)) == ["b", "c", "c", "a"]
    assert not any(module._forward_hooks for module in net.modules())


def test_the_thirteenth_of_a_resnet_50():
    """conv1; layer1 has 3 + 1, 3, 3 with the shortcut of its first block last: the 13th ends up in layer2's first."""
    name, number = layer_of("resnet50.tv_in1k", 32)
    assert number == 13
    # conv1 is 1; layer1: 0.conv1–3 and shortcut 2–5, 1.conv1–3 6–8, 2.conv1–3 9–11; layer2: 0.conv1 12, 0.conv2 13
    assert name == "featurizer.model.layer2.0.conv2"
    assert layer_of("small-cnn", 28) == ("featurizer.layers.6", 3)


def test_runs_without_profiles_are_said_to_be(tmp_path):
    item = maps(SMOKE)
    store = store_of(tmp_path / "store", item, lambda run: 0.5, lambda run: 3)
    _, made, differences = render_tables(item, store)
    for row in made.rows:
        assert row.cells[0].reason == "was trained without --profile always; take another store"
    assert made.rows[2].cells[-3].text == "3"  # refreshes are known all the same
    assert made.rows[2].cells[-1].text == "0/1"
    assert "after DSP-Reg − after ERM: no trial has both" in differences.notes[-1]
    assert profiles_to_draw(item, store)[0] == {}
    assert all(write(render_tables(item, store)) for write in FORMATS.values())


def measured(null, *excess):
    """c − null of the layer by trial; all parameters are no part of it."""
    return {trial: ([(null + each, null), (9.0, 1.0)], 0.7) for trial, each in enumerate(excess)}


def test_five_trials_may_tell_them_apart_and_four_never():
    """c itself falls here, by 0.2: its floor falls further."""
    before, after = measured(0.5, 0.1, 0.1, 0.1, 0.1, 0.1), measured(0.2, 0.20, 0.21, 0.19, 0.20, 0.20)
    found = _compare({"ERM": after, "before": before}, "ERM", "before")
    assert found.found.difference == pytest.approx(0.1)
    # s = √(0.0002/4) = 0.00707; SE = s/√5 = 0.00316; t(0.975, 4) = 2.776
    assert (found.found.low, found.found.high) == pytest.approx((0.1 - 0.00878, 0.1 + 0.00878), abs=1e-4)
    assert found.verdict == "after ERM is higher"
    del after[4]
    assert _compare({"ERM": after, "before": before}, "ERM", "before").verdict == "none: fewer than 5 pairs"
    dead = {0: ([None, (0.5, 0.4)], None)}  # no domain is sensitive to the layer
    assert _compare({"ERM": after, "before": dead}, "ERM", "before").found is None
