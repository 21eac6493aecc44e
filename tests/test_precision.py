"""fp32, tf32, bf16 and fp16: what each sets, what is refused, and that half precision trains what float32 does."""

import warnings
from itertools import pairwise

import pytest
import torch
from torch import nn

from dspreg.algorithms import Algorithm
from dspreg.algorithms.registry import algorithms, parse
from dspreg.batches import Batch
from dspreg.config.parse import parse_option
from dspreg.config.train_config import Execution
from dspreg.errors import ConfigError, Diverged, Notice, Preempted
from dspreg.launch.pool import PoolLauncher
from dspreg.launch.serial import SerialLauncher
from dspreg.precision import (
    LossScaler,
    autocast,
    check_precision,
    full_precision,
    loss_scale,
    losses_scaled,
    multiplying,
)
from dspreg.runs.folder import RunFolder
from dspreg.testing.toy import IMAGE, toy_batches, toy_task
from dspreg.training.loop import train
from dspreg.training.serialization import pack
from dspreg.training.step import train_step
from dspreg.vectors import gradient, theta
from helpers import tiny
from helpers.stacking import ACTING

quiet = pytest.mark.filterwarnings("ignore::dspreg.errors.Notice")
CUDNN = torch.backends.cudnn


def multiplication():
    return torch.backends.cuda.matmul.fp32_precision, CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision


# What is set, and what is refused.


def test_the_word_of_earlier_versions_is_read():
    assert Execution(precision="float32") == Execution(precision="fp32") == Execution()
    assert parse_option("precision", "float32", "--precision") == "fp32"
    assert [Execution(precision=p).recorded_precision for p in ("fp32", "tf32", "bf16", "fp16")] == [
        "float32", "tf32", "bf16", "fp16",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="precision='half'; wanted"):
        Execution(precision="half")


def test_tf32_is_refused_where_there_is_none(tmp_path):
    check_precision("tf32", "cuda:1")
    for device in ("cpu", "mps"):
        with pytest.raises(ConfigError, match=f"'tf32' is for CUDA GPUs, and the device is {device}"):
            check_precision("tf32", device)
    for launcher in (SerialLauncher(), PoolLauncher(1)):
        with pytest.raises(ConfigError, match="'tf32' is for CUDA"):
            launcher.setup(Execution(device="cpu", precision="tf32"))
    with pytest.raises(ConfigError, match="'tf32' is for CUDA"):
        train({"dataset": "digits", "targets": ("print",)}, Execution(device="cpu", precision="tf32"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_gpu_multiplies_as_it_is_told_and_as_before_afterwards():
    before = multiplication()
    with multiplying("tf32", "cuda"):
        assert multiplication() == ("tf32",) * 3
        with full_precision("cuda"):  # of penalties
            assert multiplication() == ("ieee",) * 3
        assert multiplication() == ("tf32",) * 3
    with multiplying("fp32", "cuda:1"):  # torch itself would have convolutions in TF32
        assert multiplication() == ("ieee",) * 3
    with multiplying("tf32", "mps"):
        assert multiplication() == before
    with pytest.raises(KeyError), multiplying("tf32", "cuda"):
        raise KeyError
    assert multiplication() == before


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16),
                                                  ("fp16", torch.float16), ("tf32", torch.float32)])  # fmt: skip
def test_the_network_is_in_the_precision_and_what_needs_it_in_float32(precision, dtype):
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    with autocast(precision, "cpu"):
        assert layer(x).dtype == dtype
        with full_precision("cpu"):
            assert layer(x).dtype == torch.float32


# Gradients with scaled losses.


def test_scaled_losses_have_the_gradients_of_plain_ones_to_the_bit():
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    x = torch.randn(7, 6)
    plain = gradient(net(x).square().mean(), net)
    for scale in (2.0**16, 2.0**-3):
        with losses_scaled(scale):
            assert loss_scale() == scale
            scaled = gradient(net(x).square().mean(), net)
        assert all(torch.equal(plain[name], scaled[name]) for name in plain)
    assert loss_scale() == 1


def test_gradients_that_float16_rounds_to_nothing_survive():
    weight = nn.Parameter(torch.ones(3))
    net = nn.ParameterList([weight])
    small = 1e-9

    def loss():
        return (weight.half() * torch.full((3,), 1.0, dtype=torch.float16)).float().mul(small).sum()

    assert not gradient(loss(), net)["0"].any()
    with losses_scaled(2.0**16):
        assert torch.allclose(gradient(loss(), net)["0"], torch.full((3,), small), rtol=1e-3)


# Training in half precision.


SCALE = 2.0**8  # so that no step of these is left out


def single(batches):
    return [Batch(b.x.float(), b.y, b.domain) for b in batches]


def stack_of(spec, precision):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        task = toy_task(inputs=IMAGE, dropout=0.0)
        measured = task.samples
        object.__setattr__(task, "samples", lambda t, n: {d: single(each) for d, each in measured(t, n).items()})
        made = parse(spec).setup(task, lambda params: torch.optim.SGD(params, lr=0.05))
    if precision == "fp16":
        made.stack.scaler = LossScaler("cpu")
        made.stack.scaler.load_state_dict(made.stack.scaler.state_dict() | {"scale": SCALE})
    return made


def steps(spec, precision, number=6, *, scaled=False):
    """Where some steps lead, and their logs."""
    made = stack_of(spec, "fp16" if scaled else precision)
    batches = [single(toy_batches(t, inputs=IMAGE)) for t in range(number)]
    logs = []
    for each in batches:
        with autocast(precision, "cpu"):
            logs.append(train_step(made, each))
    return made, theta(made.net), logs


ALONE = {"DSPReg": "DSPReg(measure_batches=2)", "Anchor": "Anchor(measure_batches=2)", "IGA": "IGA(weight=0.1)"}


@quiet
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", algorithms())
def test_every_method_leads_where_float32_does(name, precision):
    spec = ALONE.get(name, ACTING.get(name, name))
    start = theta(stack_of(spec, "fp32").net)
    _, expected, _ = steps(spec, "fp32")
    made, found, logs = steps(spec, precision)
    assert all(t.dtype == torch.float32 for t in found.values())
    assert all(torch.isfinite(value) for log in logs for value in log.values())
    way, off = (expected - start).norm(), (found - expected).norm()
    share = {"bf16": 0.5, "fp16": 0.1}[precision]  # of the way that was gone; methods that select differ here and there
    assert off <= share * way + 1e-6
    if precision == "fp16":
        assert {float(log["loss_scale"]) for log in logs} == {SCALE}
        assert {float(log["skipped"]) for log in logs} == {0.0}
        assert made.stack.scaler.state_dict()["_growth_tracker"] >= len(logs)


ENGINES = ("exact", "finite_difference", "gauss_newton", "lookahead", "central", "momentum", "lazy(2)")


@quiet
@pytest.mark.parametrize(
    "spec",
    [ALONE.get(name, ACTING.get(name, name)) for name in algorithms()]
    + [f"CORAL+DSPReg(engine={engine!r}, measure_batches=2)" for engine in ENGINES],
)
def test_scaling_alone_changes_no_bit(spec):
    """Without autocast a power of two goes in and comes out again, through penalties and searches as well."""
    _, expected, _ = steps(spec, "fp32", 4)
    _, found, _ = steps(spec, "fp32", 4, scaled=True)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


class Overflows(Algorithm):
    """Its gradient at step 2 overflows at the first scale, and not at half of it. Notes, stages and counts."""

    saved_attributes = ("sum",)

    def __init__(self, base=None):
        super().__init__(base)
        self.sum, self.ended, self.largest = 0.0, [], 2.0**15

    def gradient(self, objective, batches):
        loss, g = self.base.gradient(objective, batches)
        self.stage("sum", self.sum + 1)
        self.note(length=g.norm())
        if self.t == 2 and loss_scale() > self.largest:
            g = g * float("inf")
        return loss, g

    def on_step_end(self):
        self.ended.append(self.t)


def test_a_step_whose_gradient_overflows_changes_nothing_but_the_scale():
    made = Overflows().setup(toy_task(inputs=IMAGE), lambda params: torch.optim.Adam(params, lr=1e-2))
    made.stack.scaler = LossScaler("cpu")
    points, logs = [theta(made.net)], []
    for t in range(4):
        logs.append(train_step(made, single(toy_batches(t, inputs=IMAGE))))
        points.append(theta(made.net))
    moved = [bool((b - a).norm() > 0) for a, b in pairwise(points)]
    assert moved == [True, True, False, True]
    assert [float(log["skipped"]) for log in logs] == [0, 0, 1, 0]
    assert [float(log["loss_scale"]) for log in logs] == [2.0**16, 2.0**16, 2.0**15, 2.0**15]
    assert ["Overflows.length" in log for log in logs] == [True, True, False, True]
    assert (made.t, made.sum, made.ended) == (4, 3.0, [0, 1, 3])


@quiet
@pytest.mark.parametrize("above", ["Agreement", "Consensus", "DSPReg(coefficients='ones', engine='momentum')", "EMA",
                                   "Fish", "GGA(rho=0.01, start=0, tries=2)", "SAM", "SWA(start=1)"])  # fmt: skip
def test_layers_that_move_parameters_themselves_do_not_where_a_step_is_left_out(above):
    made = parse(f"{Overflows.__module__}.Overflows+{above}")
    made.setup(toy_task(inputs=IMAGE), lambda params: torch.optim.Adam(params, lr=1e-2))
    made.stack.scaler = LossScaler("cpu")
    for t in range(5):
        before = theta(made.net)
        log = train_step(made, single(toy_batches(t, inputs=IMAGE)))
        after = theta(made.net)
        assert float(log["skipped"]) == (t == 2)
        assert all(torch.equal(before[name], after[name]) for name in after) == (t == 2)
        assert all(torch.isfinite(value) for value in (*log.values(), after.norm()))
        assert all(bool(t.isfinite().all()) for t in made.state_dict().values() if isinstance(t, torch.Tensor))


def test_the_scale_is_that_of_a_plain_grad_scaler():
    """Against torch's own protocol: scaled loss, backward, scaler.step, scaler.update."""
    ours, theirs = nn.Linear(3, 1), nn.Linear(3, 1)
    theirs.load_state_dict(ours.state_dict())
    adams = [torch.optim.Adam(net.parameters(), lr=0.1) for net in (ours, theirs)]
    scaler, plain = LossScaler("cpu"), torch.amp.GradScaler("cpu")
    random = torch.Generator().manual_seed(0)
    for t in range(8):
        x = torch.randn(5, 3, generator=random) * (1e38 if t in (2, 3) else 1.0)
        with losses_scaled(scaler.scale):
            for p, g in gradient(ours(x).sum(), ours).items():
                dict(ours.named_parameters())[p].grad = g
        skipped = scaler.step(adams[0])
        adams[0].zero_grad()
        plain.scale(theirs(x).sum()).backward()
        plain.step(adams[1])
        plain.update()
        adams[1].zero_grad()
        assert scaler.scale == plain.get_scale()
        assert skipped == (t in (2, 3))
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert scaler.state_dict() == plain.state_dict()
    again = LossScaler("cpu")
    again.load_state_dict(scaler.state_dict())
    assert (again.scale, again.state_dict()) == (scaler.scale, scaler.state_dict())


# Runs.


@pytest.fixture
def images(tmp_path):
    return tiny.make_images(tmp_path / "images")


@quiet
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_runs_in_half_precision_go_on_in_the_same_bits(images, tmp_path, precision):
    how = tiny.execution(precision=precision)
    train(tiny.settings(images), how, tmp_path / "whole")
    with pytest.raises(Preempted):
        train(tiny.settings(images), how, tmp_path / "run", pause=tiny.stop_at(30))
    train(tiny.settings(images), how, tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == tiny.ending(tmp_path / "whole")
    described = RunFolder(tmp_path / "run").description()
    assert described["environment"]["precision"] == described["where"]["precision"] == precision


class Halves(Overflows):
    """The same in a run: at step 2 a step is left out, and the scale is another one from then on."""


@quiet
def test_the_scale_is_in_the_checkpoint(images, tmp_path):
    how = tiny.execution(precision="fp16", save_every=1)
    settings = tiny.settings(images, algorithm=f"{Halves.__module__}.Halves", steps=8, evaluate_every=8)
    train(settings, how, tmp_path / "whole")

    def pause():
        if list((tmp_path / "run" / "checkpoints").glob("step-00000005-*")):
            raise Preempted("stopped by the test")

    with pytest.raises(Preempted):
        train(settings, how, tmp_path / "run", pause=pause)
    train(settings, how, tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == tiny.ending(tmp_path / "whole")
    logs = [record["log"] for record in RunFolder(tmp_path / "run").records]
    assert logs[-1]["loss_scale"] < 2.0**16
    assert sum(log["skipped"] for log in logs) > 0


class Endless(Algorithm):
    """Its gradients overflow at any scale."""

    def gradient(self, objective, batches):
        loss, g = self.base.gradient(objective, batches)
        return loss, g * float("inf")


def test_gradients_that_overflow_at_any_scale_end_the_run(images, tmp_path):
    settings = tiny.settings(images, algorithm=f"{Endless.__module__}.Endless", steps=60, evaluate_every=60)
    with pytest.raises(Diverged, match="step 26: gradients overflow in fp16 however losses are scaled"):
        train(settings, tiny.execution(precision="fp16", save_every=100), tmp_path / "run")


def test_a_checkpoint_in_float32_is_what_it_was():
    """Nothing is added to it, so that earlier versions read it."""
    made, _, _ = steps("ERM", "fp32", 1)
    assert made.stack.scaler is None
    assert b"scaler" not in pack(dict(made.state_dict()))
