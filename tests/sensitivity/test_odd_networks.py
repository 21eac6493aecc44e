"""Networks and uses on which measuring once went wrong without a word."""

import subprocess
import sys
from typing import ClassVar

import pytest
import scipy.stats
import torch
from torch import nn

import dspreg
from dspreg.cli import main
from dspreg.sensitivity.per_sample import estimator


class Views(nn.Module):
    """An image and its mirror image, averaged: two rows of every sample, not side by side."""

    def __init__(self):
        super().__init__()
        self.f, self.head = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 3)

    def forward(self, x):
        a, b = self.head(self.f(torch.cat([x, x.flip(-1)]))).chunk(2)
        return (a + b) / 2


class PositionsFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0)
        self.h = nn.Linear(6, 3)

    def forward(self, x):
        return self.h(self.m(x.transpose(0, 1)).mean(0))


class Unpadded(nn.Module):
    """Words that are 0 are left out before the layers, and put back behind them."""

    def __init__(self):
        super().__init__()
        self.e, self.l, self.n = nn.Embedding(9, 6), nn.Linear(6, 6), nn.LayerNorm(6)
        self.h = nn.Linear(6, 3)

    def forward(self, x):
        words = self.n(self.l(self.e(x)[x != 0]).tanh())
        whole = words.new_zeros(*x.shape, 6)
        whole[x != 0] = words
        return self.h(whole.mean(1))


def domains(make, batches=3, size=8):
    g = torch.Generator().manual_seed(3)
    return {
        name: [(make(g, d, b), torch.randint(3, (size,), generator=g)) for b in range(batches)]
        for d, name in enumerate(("a", "b"))
    }


def vectors(g, d, _b):
    return torch.randn(8, 6, generator=g, dtype=torch.float64) + d


def sequences(g, d, _b):
    return torch.randn(8, 8, 6, generator=g, dtype=torch.float64) + d


def sentences(g, d, b):
    """The first batch has no padding. Later ones have, in all as many words as a multiple of the samples."""
    x = torch.randint(1, 9, (8, 6), generator=g)
    if b:
        x[0, 3:] = 0
        x[3, 1:] = 0
        assert (x != 0).sum() % 8 == 0
    return x


@pytest.mark.parametrize(("net", "make"), [(Views, vectors), (PositionsFirst, sequences), (Unpadded, sentences)])
def test_persample_is_the_loop(net, make):
    torch.manual_seed(0)
    model = net().double()
    given = domains(make)
    quick, slow = (dspreg.measure(model, given, estimator=e, null=False) for e in ("persample", "loop"))
    for name in quick.c:
        torch.testing.assert_close(quick.mean[name], slow.mean[name], rtol=1e-6, atol=1e-18, msg=name)


def test_bf16_measures_what_float32_does():
    """A refresh stands inside the trainer's autocast, and the profiles of a run do not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    given = {name: [(x.float(), y) for x, y in each] for name, each in domains(vectors).items()}
    plain = dspreg.measure(model, given)
    with torch.autocast("cpu", torch.bfloat16):
        inside = dspreg.measure(model, given)
    assert all(torch.equal(plain.c[name], inside.c[name]) for name in plain.c)


def test_a_training_in_bf16_refreshes(tmp_path):
    given = {"dataset": "digits", "targets": ("print",), "steps": 2, "batch_size": 4}
    spec = "DSPReg(refresh_steps=1, measure_batches=2)"
    how = dspreg.Execution(threads=1, workers=0, precision="bf16", profile="always", check_images="never")
    dspreg.train(given | {"algorithm": spec}, how, tmp_path / "run")
    assert (tmp_path / "run/refreshes.jsonl").exists()


def test_another_head_is_another_network():
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)).double()
    dspreg.measure(net, domains(vectors))
    net[1] = nn.Linear(6, 7).double()
    given = {name: [(x, torch.full((8,), 6)) for x, _ in each] for name, each in domains(vectors).items()}
    assert dspreg.measure(net, given).c["1.weight"].shape == (7, 6)
    net[0] = nn.BatchNorm1d(6, track_running_stats=False).double()
    with pytest.raises(dspreg.DataError, match="Batch norm without running statistics"):
        dspreg.measure(net, given)


def test_profiles_are_compared_by_name_whatever_the_order():
    class Net(nn.Module):
        def __init__(self, order):
            super().__init__()
            torch.manual_seed(0)
            made = {"one": nn.Linear(6, 4), "two": nn.Linear(4, 3)}
            for name in order:
                setattr(self, name, made[name])

        def forward(self, x):
            return self.two(self.one(x).tanh())

    before, after = (
        dspreg.measure(Net(order).double(), domains(vectors)) for order in (("one", "two"), ("two", "one"))
    )
    found = before.compare(after)
    assert found.agreement == pytest.approx(1.0)
    assert found.by_layer()["c mean change"].abs().max() < 1e-12


def test_a_parameter_that_is_trained_later_has_not_moved_before():
    net = nn.Linear(3, 2)
    seen = dspreg.RunningVariance(net)
    for frozen in (True, True, False, False):
        net.weight.requires_grad_(not frozen)
        seen.update()
    assert all(float(v.abs().max()) == 0 for v in seen.vector().values())


def test_a_tiny_variance_cancels_in_c():
    torch.manual_seed(0)
    net = nn.Linear(6, 3).double()
    usual, tiny = (dspreg.measure(net, domains(vectors), variance=v) for v in (1.0, 1e-50))
    torch.testing.assert_close(tiny.c["weight"], usual.c["weight"])
    assert (tiny.mean["weight"] > 0).all()


def test_reliability_of_parameters_that_one_half_never_moves():
    """Every feature is on in one batch alone: c of one half is then 0, and not that of what rounding left."""
    torch.manual_seed(0)
    net = nn.Linear(24, 3)
    given, apart = {}, {}
    for d in range(3):
        x = torch.zeros(4, 8, 24)
        for b in range(4):
            x[b, :, 6 * b : 6 * b + 6] = torch.rand(8, 6) * (1 + d) + 0.1
        y = torch.randint(3, (4, 8))
        given[str(d)] = list(zip(x, y, strict=True))
        apart[str(d)] = [[(x[b], y[b]) for b in half] for half in ((0, 2), (1, 3))]
    found = dspreg.measure(net, given, null=False, only="weight")
    halves = [dspreg.measure(net, {d: each[h] for d, each in apart.items()}, null=False, only="weight") for h in (0, 1)]
    by_hand = scipy.stats.spearmanr(*(half.c["weight"].flatten() for half in halves)).statistic
    assert found.reliability == pytest.approx(by_hand, abs=0.02)
    assert by_hand < -0.5


def test_a_benchmark_by_its_name_is_no_anonymous_folder(tmp_path, monkeypatch, capsys):
    (tmp_path / "PACS/photo/dog").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(["data", "verify", "PACS", "--root", "."]) == 3
    assert "lacks the domains" in capsys.readouterr().err


def test_one_batch_in_each_of_two_processes_makes_two_halves(tmp_path):
    (tmp_path / "both.py").write_text(PROGRAM)
    processes = [
        subprocess.Popen([sys.executable, "both.py", str(rank)], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [float(process.communicate()[0]) for process in processes]
    alone = subprocess.run([sys.executable, "both.py", "alone"], cwd=tmp_path, capture_output=True, text=True)
    assert said[0] == said[1] == pytest.approx(float(alone.stdout), abs=1e-9)


PROGRAM = """
import os, sys, torch, dspreg, torch.distributed as dist
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
g = torch.Generator().manual_seed(1)
data = {d: [(torch.randn(11, 6, generator=g, dtype=torch.float64) + i, torch.randint(3, (11,), generator=g))
            for _ in range(2)] for i, d in enumerate("ab")}
if sys.argv[1] == "alone":
    print(dspreg.measure(net, data, null=False).reliability)
else:
    rank = int(sys.argv[1])
    meet = "file://" + os.path.abspath("meet")
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
    own = {d: [each[rank]] for d, each in data.items()}
    print(dspreg.measure(net, own, null=False, group=dist.group.WORLD).reliability)
    dist.destroy_process_group()
"""


# What was found out about a network is found out anew once something about it has changed.


def mix(_module, _inputs, out):
    return out + out.mean(0, keepdim=True)


class Switched(nn.Module):
    """Centres features, by the batch if told to."""

    switches: ClassVar[dict[str, bool]] = {"anywhere": False}

    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.by_batch = False

    def forward(self, x):
        z = self.norm(self.one(x)).tanh()
        if self.by_batch or self.switches["anywhere"]:
            z = z - z.mean(0)
        return self.two(z)


def forget_statistics(net):
    net.norm.track_running_stats = False
    net.norm.running_mean = net.norm.running_var = None


def patch(net):
    forward = net.one.forward
    net.one.forward = lambda x: mix(None, None, forward(x))


def stay_in_training(norm):
    norm.train()
    norm.train = lambda _mode=True: norm


MIXES = {
    "a forward hook": lambda net, _: net.one.register_forward_hook(mix),
    "a hook on the input": lambda net, _: net.two.register_forward_pre_hook(lambda _m, i: (i[0] - i[0].mean(0),)),
    "batch norm without statistics": lambda net, _: forget_statistics(net),
    "batch norm that stays in training mode": lambda net, _: stay_in_training(net.norm),
    "another forward": lambda net, _: patch(net),
    "another forward of its class": lambda _, m: m.setattr(nn.Linear, "forward", mixed_linear(nn.Linear.forward)),
    "a flag": lambda net, _: setattr(net, "by_batch", True),
    "a flag elsewhere": lambda _, m: m.setitem(Switched.switches, "anywhere", True),
}


def mixed_linear(forward):
    return lambda self, x: mix(None, None, forward(self, x))


@pytest.mark.parametrize("refreshed", [False, True])
@pytest.mark.parametrize("how", MIXES)
def test_a_network_that_begins_to_mix_samples_is_noticed(how, refreshed, monkeypatch):
    torch.manual_seed(0)
    net, given = Switched().double(), domains(vectors)
    penalty = dspreg.Penalty(net)

    def measure():
        return penalty.refresh(given) if refreshed else dspreg.measure(net, given)

    measure()
    MIXES[how](net, monkeypatch)
    with pytest.raises(dspreg.DataError, match="the network mixes samples"):
        measure()


class Reversible(nn.Module):
    """Passes samples through a layer in another order, if a hook says so, and puts them back."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3)
        self.enter, self.leave = nn.Identity(), nn.Identity()

    def forward(self, x):
        return self.two(self.leave(self.one(self.enter(x)).tanh()))


def test_a_hook_that_reorders_samples_is_measured_by_another_strategy():
    torch.manual_seed(0)
    net, given = Reversible().double(), domains(vectors)
    dspreg.measure(net, given)
    net.enter.register_forward_hook(lambda _m, _i, x: x.flip(0))
    net.leave.register_forward_hook(lambda _m, _i, x: x.flip(0))
    quick, slow = (dspreg.measure(net, given, estimator=e, key=4) for e in ("persample", "loop"))
    for name in quick.c:
        torch.testing.assert_close(quick.mean[name], slow.mean[name], rtol=1e-6, atol=1e-18, msg=name)
        torch.testing.assert_close(quick.null[name], slow.null[name], rtol=1e-6, atol=1e-9, msg=name)


def test_a_network_that_counts_its_passes_is_compared_once_for_a_measurement(monkeypatch):
    class Counting(nn.Linear):
        passes = 0

        def forward(self, x):
            self.passes += 1
            return super().forward(x)

    compared = []
    compare = estimator.compare_strategies
    monkeypatch.setattr(estimator, "compare_strategies", lambda *a, **k: compared.append(0) or compare(*a, **k))
    net = nn.Sequential(Counting(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    for _ in range(3):
        dspreg.measure(net, domains(vectors, batches=4))
    assert len(compared) <= 3
