"""SWAD's window against its rule on segment numbers, its mean against torch's AveragedModel, and its dead ends."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.swa_utils import AveragedModel

from dspreg.algorithms import SWAD, SourceValidation, parse
from dspreg.algorithms.loss_valley import LossValley, Segment
from dspreg.errors import ConfigError
from dspreg.testing import check_algorithm, ready, toy_batches
from dspreg.training import train_step
from dspreg.training.model import load_tensors, tensors_of
from dspreg.vectors import ParamVector, theta
from reference.swad import averaged_segments

PENALTY = "DSPReg(refresh_steps=3, measure_batches=1)"


def shares(losses, *options):
    """How much of every segment is in the mean, after each evaluation: segment i is the i-th unit vector."""
    valley, found = LossValley(*options), []
    for i, loss in enumerate(losses):
        unit = torch.zeros(len(losses), dtype=torch.float64)
        unit[i] = 1
        valley.add(Segment(i, i, loss, ParamVector({"w": unit})))
        found.append(valley.result().weights["w"])
    return found


def expected_shares(losses, *options):
    for n in range(1, len(losses) + 1):
        chosen = averaged_segments(losses[:n], *options)
        yield torch.tensor([chosen.count(i) / len(chosen) for i in range(len(losses))], dtype=torch.float64)


@settings(max_examples=300, deadline=None)
@given(
    losses=st.lists(st.integers(1, 30).map(lambda n: n / 10), min_size=1, max_size=25),
    options=st.tuples(st.integers(1, 5), st.integers(1, 8), st.sampled_from([0.0, 0.1, 0.3, 1.0])),
)
def test_the_window_is_that_of_the_rule(losses, options):
    for ours, theirs in zip(shares(losses, *options), expected_shares(losses, *options), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_recorded_course_of_losses():
    """Falls, stays, rises: what the defaults make of it, by hand."""
    losses = [2.0, 1.2, 0.8, 0.6, 0.5, 0.52, 0.51, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.9, 1.0, 1.1, 1.2]
    # It converges at segment 4 (0.5, then 0.52 and 0.51), and the threshold is 0.51 · 1.3 = 0.663. When that is known,
    # 1 to 6 wait; of the first four 1 and 2 are above it, so that the window starts with what is behind 3: segment 4.
    # It is added again when it is the oldest that waits. From segment 10 on all are above; 10 to 15 are six of them.
    final = shares(losses, 3, 6, 0.3)[-1]
    counts = {4: 2, 5: 1, 6: 1, 7: 1, 8: 1, 9: 1}
    torch.testing.assert_close(final, torch.tensor([counts.get(i, 0) / 7 for i in range(17)], dtype=torch.float64))


@pytest.mark.parametrize(
    ("losses", "segments"),
    [
        ([5.0, 4.0, 3.0, 2.0, 1.0], [4]),  # falls to the end: the last segment alone
        ([1.0], [0]),
        ([3.0, 1.0, 1.1, 1.2], [2, 3, 1, 2, 3]),  # the end of training comes inside the window
        ([1.0, 1.1, 1.2] + [9.0] * 7, [1, 2, 0, 0, 0, 1, 2]),  # the valley ends as soon as it can
    ],
)
def test_dead_ends(losses, segments):
    expected = torch.tensor([segments.count(i) / len(segments) for i in range(len(losses))], dtype=torch.float64)
    torch.testing.assert_close(shares(losses, 3, 6, 0.3)[-1], expected, rtol=0, atol=1e-12)


def test_a_last_segment_that_is_cut_short_takes_the_one_before_with_it():
    """The authors' runs end on an evaluation; here one may end a step behind it, and that step alone would be ERM."""
    valley = LossValley(3, 6, 0.3)
    for first, last, loss, value in ((0, 0, 3.0, 1.0), (1, 4, 2.0, 2.0), (5, 5, 1.0, 7.0)):
        valley.add(Segment(first, last, loss, ParamVector({"w": torch.tensor([value], dtype=torch.float64)})))
    found = valley.result()
    assert (found.first, found.last) == (1, 5)
    assert float(found.weights["w"]) == pytest.approx((4 * 2.0 + 7.0) / 5)


def test_a_window_is_not_a_fixed_one():
    """Two trainings that differ in one loss alone average different steps."""
    falling = [3.0, 2.0, 1.0, 1.1, 1.2, 1.1, 1.2, 1.3]
    late = [*falling[:4], 0.9, *falling[5:]]
    assert not torch.equal(shares(falling, 3, 6, 0.3)[-1], shares(late, 3, 6, 0.3)[-1])


def evaluate(stack, loss):
    """As the trainer does it; the loss is the mean over domains."""
    names = stack.task.domains
    spread = {name: loss + 0.1 * (d - (len(names) - 1) / 2) for d, name in enumerate(names)}
    validation = SourceValidation(stack.t - 1, dict.fromkeys(names, 0.5), spread)
    stack.stack.report_validation_below(swad_of(stack), validation)


def swad_of(stack):
    return next(layer for layer in stack.layers() if isinstance(layer, SWAD))


@pytest.mark.parametrize("around", ["SWAD", f"SWAD+{PENALTY}", f"{PENALTY}+SWAD", "SAGM+SWAD", "SWAD+Fish", "MTL+SWAD"])
@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_the_mean_and_the_prediction_are_those_of_torch(around):
    """Segments and window as torch's AveragedModel has them, with equal weights, along a training in float64."""
    stack = ready(parse(around))
    losses = [2.0, 1.5, 1.0, 1.1, 1.05, 1.1, 1.2, 1.2, 1.3, 1.2, 1.3]
    segments, t = [], 0
    for n, loss in enumerate(losses):
        segment = AveragedModel(stack.net)
        for _ in range(1 if n == 0 else 2 + n // 4):  # unequal segments
            train_step(stack, toy_batches(t))
            segment.update_parameters(stack.net)
            t += 1
        segments.append(segment.module)
        evaluate(stack, loss)
        window = AveragedModel(stack.net)
        for i in averaged_segments(losses[: n + 1], 3, 6, 0.3):
            window.update_parameters(segments[i])
        layer = swad_of(stack)
        for name, p in window.module.named_parameters():
            torch.testing.assert_close(layer.mean[name], p.data, rtol=0, atol=1e-13)
        if "MTL" not in around:  # whose prediction takes the batch as a domain
            x = toy_batches(99)[0].x
            stack.eval()
            torch.testing.assert_close(stack.predict(x), window.module.eval()(x), rtol=0, atol=1e-12)
            stack.train()
    assert float((swad_of(stack).mean - theta(stack.net)).norm()) > 1e-3


def test_training_is_that_of_the_base_to_the_bit():
    plain, averaged = ready(parse("CORAL")), ready(parse("CORAL+SWAD"))
    for t in range(8):
        for stack in (plain, averaged):
            train_step(stack, toy_batches(t))
        evaluate(averaged, random.Random(t).random())
    assert torch.equal(theta(plain.net).flat(), theta(averaged.net).flat())


def test_after_the_valley_nothing_moves_and_little_is_kept():
    stack, x = ready(SWAD(n_converge=1, n_tolerance=1)), toy_batches(9)[0].x
    for t, loss in enumerate([1.0, 1.0, 9.0]):
        train_step(stack, toy_batches(t))
        evaluate(stack, loss)
    assert stack.valley.ended
    assert not stack.valley.recent
    assert [event["event"] for event in stack.stack.events] == ["valley ends"]
    before = stack.eval().predict(x)
    stack.train()
    train_step(stack, toy_batches(3))
    evaluate(stack, 0.1)
    assert torch.equal(stack.eval().predict(x), before)
    assert not stack.segment


def test_a_saved_model_holds_the_mean_and_not_what_waits():
    stack = ready(SWAD())
    for t in range(6):
        train_step(stack, toy_batches(t))
        evaluate(stack, 1 + 0.01 * t)
    tensors = tensors_of(stack)
    network = {name for name in tensors if not name.startswith("stack.")}
    assert set(tensors) == network | {f"stack.mean.{name}" for name in network} | {"stack.count"}
    fresh = ready(SWAD())
    load_tensors(fresh, tensors, "here")
    assert torch.equal(theta(fresh.net).flat(), stack.mean.flat())


@pytest.mark.parametrize(
    "spec",
    [
        "SWAD(n_converge=2, n_tolerance=3)",
        f"SWAD(n_converge=2, n_tolerance=3)+{PENALTY}",
        f"{PENALTY}+SWAD(n_converge=2, n_tolerance=3)",
        "SAGM+SWAD(n_converge=1, n_tolerance=2)",
        "MTL+SWAD(n_converge=2, n_tolerance=2)",
    ],
)
@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_it_keeps_the_laws(spec):
    assert check_algorithm(spec) is None


def test_one_average_in_a_stack():
    for spec in ("SWAD+EMA", "SWA+SWAD", "SWAD+SWAD", "ERMPlusPlus+SWAD"):
        with pytest.raises(ConfigError, match=r"would not be at the weights that .* Leave one of them out"):
            ready(parse(spec))


@pytest.mark.parametrize(
    "wrong", ["SWAD(n_converge=0)", "SWAD(n_tolerance=0)", "SWAD(tolerance_ratio=-0.1)", "SWAD(bn_batches=0)"]
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ConfigError, match="wanted a number"):
        parse(wrong)
