"""One training step: the plain one, what makes it repeatable, and what a failed one leaves behind."""

import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dspreg.algorithms import CORAL, ERM, SAM, Algorithm, DSPReg, GroupDRO, Task, parse
from dspreg.batches import Batch
from dspreg.errors import Notice
from dspreg.networks import TinyMLP
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.training import train_step
from dspreg.vectors import theta

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
}


def plain_copy(stack):
    """The toy network as plain PyTorch, with the same weights."""
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for ours, theirs in zip(net.parameters(), stack.net.parameters(), strict=True):
            ours.copy_(theirs)
    return net


def same_bits(a, b):
    return all(torch.equal(*pair) for pair in zip(a.net.parameters(), b.net.parameters(), strict=True))


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("sizes", [(4,), (3, 8), (2, 9, 5)])
def test_a_step_of_erm_is_a_plain_step_on_all_samples(optimiser, sizes):
    stack = ERM().setup(toy_task(len(sizes), dropout=0.0), OPTIMISERS[optimiser]).double()
    net = plain_copy(stack)
    plain = OPTIMISERS[optimiser](net.parameters())
    for t in range(3):
        batches = toy_batches(t, len(sizes), sizes)
        log = train_step(stack, batches)
        loss = F.cross_entropy(net(torch.cat([b.x for b in batches])), torch.cat([b.y for b in batches]))
        plain.zero_grad()
        loss.backward()
        plain.step()
        assert log["loss"].item() == pytest.approx(loss.item(), rel=1e-12)
    for ours, theirs in zip(stack.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        assert ours.grad is None
    x = toy_batches(9)[0].x
    torch.testing.assert_close(stack.predict(x), net(x), rtol=0, atol=1e-11)


SPECS = ["ERM", "Mixup+CORAL+SAM", "GroupDRO+DSPReg(engine='lookahead')+Fish", "DSPReg(engine='momentum')"]


def after_steps(spec, key=("toy",), steps=3, start=None, record=False):
    stack = ready(parse(spec), replace(toy_task(), key=key))
    if start is not None:
        stack.net.load_state_dict(start)
    for t in range(steps):
        torch.seed()  # what others draw does not matter
        train_step(stack, toy_batches(t), record=record)
    return stack


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_key_gives_the_same_bits_and_another_does_not(spec):
    start = ready(ERM()).net.state_dict()
    first, again, other = (after_steps(spec, (key,), start=start) for key in ("one", "one", "two"))
    assert same_bits(first, again)
    assert not same_bits(first, other)


def test_a_step_leaves_the_global_generator_alone():
    stack = ready(parse("Mixup+SAM"))
    before = torch.get_rng_state()
    train_step(stack, toy_batches(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_every_step_has_noise_of_its_own():
    stack = ready(ERM())
    start, batches, ends = theta(stack.net), toy_batches(0), []
    for _ in range(2):
        stack.net.load_state_dict({**start})
        stack.stack.optimizer.state.clear()
        train_step(stack, batches)
        ends.append(theta(stack.net))
    assert (ends[0] - ends[1]).norm() > 1e-4


@pytest.mark.filterwarnings("ignore::dspreg.errors.Notice")  # about the size of the penalty, seen only when recording
@pytest.mark.parametrize("spec", [*SPECS, "DSPReg", "DSPReg(engine='lazy(2)')", "SAM+DSPReg"])
def test_recording_does_not_change_the_step(spec):
    quiet, recorded = after_steps(spec, steps=4), after_steps(spec, steps=4, record=True)
    assert same_bits(quiet, recorded)


class Fails(Algorithm):
    """Computes its gradient and then fails, when told to."""

    failing = False

    def gradient(self, objective, batches):
        result = self.base.gradient(objective, batches)
        if self.failing:
            raise ZeroDivisionError
        return result


@pytest.mark.parametrize("spec", ["GroupDRO(eta=1)", "GroupDRO(eta=1)+DSPReg(engine='momentum')", "SAM", "CORAL"])
def test_a_step_that_fails_leaves_nothing_behind(spec):
    stack, undisturbed = ready(Fails(parse(spec))), ready(Fails(parse(spec)))
    for each in (stack, undisturbed):
        train_step(each, toy_batches(0))
    state = {n: t.clone() for n, t in stack.state_dict().items() if isinstance(t, torch.Tensor)}
    stack.failing = True
    with pytest.raises(ZeroDivisionError):
        train_step(stack, toy_batches(5))
    assert stack.t == 1
    assert all(torch.equal(stack.state_dict()[n], t) for n, t in state.items())
    stack.failing = False
    for each in (stack, undisturbed):
        train_step(each, toy_batches(1))
        train_step(each, toy_batches(2))
    assert stack.t == 3
    assert same_bits(stack, undisturbed)
    if spec.startswith("GroupDRO"):
        staged = [layer.log_q for s in (stack, undisturbed) for layer in s.layers() if isinstance(layer, GroupDRO)]
        assert torch.equal(*staged)


def test_the_log_has_the_loss_and_what_layers_noted():
    assert set(train_step(ready(ERM()), toy_batches(0))) == {"loss"}
    log = train_step(ready(SAM(GroupDRO(CORAL()))), toy_batches(0))
    assert set(log) == {"loss", "CORAL.gap", "GroupDRO.largest_weight"}
    assert all(value.shape == () and not value.requires_grad for value in log.values())


class Notes(Algorithm):
    """Notes a number that grows with every evaluation."""

    count = 0

    def loss(self, out):
        self.count += 1
        self.note(count=self.count)
        return self.base.loss(out)


def test_the_first_note_of_a_step_counts():
    stack = ready(SAM(Notes()))
    logs = [train_step(stack, toy_batches(t)) for t in range(2)]
    assert [log["Notes.count"].item() for log in logs] == [1, 3]  # SAM evaluates twice


@pytest.mark.filterwarnings("ignore::dspreg.errors.Notice")
def test_costly_figures_are_there_when_recorded():
    stack = ready(DSPReg())
    assert set(train_step(stack, toy_batches(0))) == {"loss"}
    assert {"DSPReg.R", "DSPReg.ratio", "DSPReg.c_50"} < set(train_step(stack, toy_batches(1), record=True))


@pytest.mark.parametrize("algorithm", [ERM(), SAM(), CORAL(SAM())])
def test_a_step_before_setup_says_what_to_do(algorithm):
    name = type(algorithm).__name__
    with pytest.raises(RuntimeError, match=rf"^{name} has no network yet: call setup\(task, optimizer\) first$"):
        train_step(algorithm, toy_batches(0))


def test_hard_and_soft_labels_in_one_step_are_refused():
    first, second = toy_batches(0, 2)
    soft = Batch(second.x, F.one_hot(second.y, 3).double(), 1)
    with pytest.raises(ValueError, match="hard and soft labels in one step"):
        train_step(ready(ERM(), toy_task(2)), [first, soft])


def test_wrong_calls_say_what_was_wanted():
    with pytest.raises(TypeError, match=r"setup wants a function that makes the optimiser: lambda params"):
        ERM().setup(toy_task(), torch.optim.Adam([torch.nn.Parameter(torch.ones(1))]))
    with pytest.raises(TypeError, match=r"wants a list of dspreg.Batch\(x, y, domain\)"):
        train_step(ready(ERM()), [(torch.ones(2, 5), torch.zeros(2))])
    with pytest.raises(TypeError, match=r"SAM\(base\) was given 'CORAL'; the base is a layer"):
        SAM("CORAL")
    with pytest.raises(TypeError, match="the backbone Linear has no `width`"):
        ready(ERM(), Task(3, ("a", "b"), 2, lambda: torch.nn.Linear(5, 4)))


class Normalised(TinyMLP):
    """With batch norm that trains: every forward pass in training mode moves its statistics."""

    def __init__(self):
        super().__init__(5)
        self.norm = nn.BatchNorm1d(self.width)

    def forward(self, x):
        return self.norm(super().forward(x))


@pytest.mark.parametrize(
    "spec",
    [
        "ERM",
        "SAM",
        "Fish",
        "DSPReg(weight=0.05)",
        "SAM+DSPReg(weight=0.05, engine='central')",
        "DSPReg(weight=0.05, engine='lazy(2)')",
        "DSPReg(weight=0.05, engine='gauss_newton')",
        "DSPReg(weight=0.05, engine='exact(part=0.5)')",
    ],
)
def test_batch_norm_counts_a_batch_once_however_often_it_is_looked_at(spec):
    toy = toy_task()
    task = Task(3, toy.domains, 2, Normalised, toy.key, toy.samples)
    quiet, watched = (ready(parse(spec), task) for _ in range(2))
    for t in range(4):
        train_step(quiet, toy_batches(t))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            train_step(watched, toy_batches(t), record=True)
    assert int(quiet.net.featurizer.norm.num_batches_tracked) == (12 if spec == "Fish" else 4)
    for name, tensor in quiet.net.state_dict().items():
        assert torch.equal(tensor, watched.net.state_dict()[name]), name


def test_sam_under_autocast_still_looks_elsewhere():
    """Autocast keeps casts of the weights; after a displacement they would be those of the old place."""
    stack, plain = (ready(parse(s), toy_task(dropout=0.0)).float() for s in ("SAM(rho=0.5)", "ERM"))
    batches = [Batch(b.x.float(), b.y, b.domain) for b in toy_batches(0)]
    with torch.autocast("cpu", torch.bfloat16):
        (_, g), (_, e) = (a.gradient(lambda b, a=a: a.loss(a(b)), batches) for a in (stack, plain))
    assert float((g - e).norm() / e.norm()) > 0.05
