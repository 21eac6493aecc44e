"""Two processes with DistributedDataParallel have the penalty, and the c, of one process with everything."""

import copy
import math
import threading

import pytest
import torch
from torch import nn

import dspreg
from dspreg import ConfigError
from dspreg.penalty.activation_pattern import ActivationPattern
from helpers.distributed import ACCUMULATED, DOMAINS, OF, TIMES, loaders, tiny, together
from helpers.environments import ALL, WEIGHT, Problem, flat, likeness


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return together(tmp_path_factory.mktemp("ddp"))


@pytest.mark.parametrize("kind", ["whole", "parts"])
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("engine", ALL)
def test_the_penalty_part_is_that_of_one_process_with_the_whole_batch(ranks, engine, view, kind):
    target = Problem("smooth").target(engine)
    (first, _), (second, _) = ranks
    part = first[f"part/{view}/{engine}/{kind}"]
    assert likeness(part, target)[0] < 1e-6
    assert torch.equal(part, second[f"part/{view}/{engine}/{kind}"])


def accumulate(problem, engine, how):
    """The same two steps in one process: every gradient is that of the micro-batches of both."""
    halves = [problem.on(x, y) for x, y in zip(problem.x.split(6), problem.y.split(6), strict=True)]
    calls, mean, mass = 0, dict.fromkeys(problem.g, 0.0), 0.0
    for _ in range(2):
        total = 0.0
        for i, half in enumerate(halves):
            g = half.g
            if how == ("penalty then plain", "plain then penalty")[1 - i]:
                total = total + flat(g)
                continue
            calls += 1
            if engine == "momentum":
                if mass:
                    g = half.gradient({n: 2 * WEIGHT * problem.c[n] * mean[n] / mass for n in g})
                mean, mass = {n: 0.9 * mean[n] + 0.1 * g[n] for n in g}, 0.9 * mass + 0.1
            total = total + flat(g)
            if engine != "momentum" and (not engine.startswith("lazy") or calls % 2 == 0):
                total = total + half.target(engine)
    return total


@pytest.mark.parametrize("how", ACCUMULATED)
@pytest.mark.parametrize("engine", ALL)
def test_no_sync_around_some_micro_batches_is_one_process_with_all_of_them(ranks, engine, how):
    """Every penalty is of the gradient of all processes, and what was accumulated is averaged in the end."""
    expected = accumulate(Problem("smooth"), engine, how)
    (first, _), (second, _) = ranks
    found = first[f"accumulated/{engine}/{how}"]
    assert likeness(found, expected)[0] < 1e-9
    assert torch.equal(found, second[f"accumulated/{engine}/{how}"])
    if engine == "lookahead":
        assert likeness(first[f"views/{how}"], expected)[0] < 1e-9
        assert torch.equal(first[f"views/{how}"], second[f"views/{how}"])


@pytest.mark.parametrize("engine", ALL)
def test_no_sync_inside_of_a_closure_is_refused(ranks, engine):
    for _, said in ranks:
        assert said[f"no_sync in the closure/{engine}"].startswith("the closure enters no_sync")


@pytest.mark.parametrize("engine", ["lookahead", "exact", "gauss_newton"])
def test_buffers_end_as_after_plain_steps_with_no_sync(ranks, engine):
    for found, _ in ranks:
        assert torch.equal(found[f"accumulated buffers/{engine}"], found["accumulated buffers/None"])


@pytest.mark.parametrize("kind", ["whole", "parts"])
@pytest.mark.parametrize("engine", ALL)
def test_a_static_graph(ranks, engine, kind):
    target = Problem("smooth").target(engine)
    (first, _), (second, _) = ranks
    assert likeness(first[f"static/{engine}/{kind}"], target)[0] < 1e-6
    assert torch.equal(first[f"static/{engine}/{kind}"], second[f"static/{engine}/{kind}"])


@pytest.mark.parametrize("i", range(len(OF)))
def test_c_is_the_same_to_the_bit_everywhere(ranks, i):
    (first, said), (second, also) = ranks
    for what in ("c", "null", "c_debiased", "mean"):
        assert torch.equal(first[f"{what}/{i}"], second[f"{what}/{i}"])
    assert said[f"reliability/{i}"] == also[f"reliability/{i}"]
    assert said[f"counts/{i}"] == {d: {"batches": 5, "samples": 20} for d in DOMAINS}


def test_c_of_two_processes_is_that_of_all_their_batches_in_one(ranks):
    """Per-sample squares do not depend on who holds the sample."""
    net = copy.deepcopy(Problem("smooth").net)
    alone = dspreg.measure(net, loaders(None))
    found, said = ranks[0]
    for what in ("c", "c_debiased", "mean"):
        torch.testing.assert_close(found[f"{what}/0"], getattr(alone, what).flat(), rtol=1e-9, atol=1e-12)
    assert 0 < float(found["null/0"].mean()) < float(found["c/0"].mean()) * 1.2
    assert math.isfinite(said["reliability/0"])


def test_processes_that_scale_differently_agree(ranks):
    """Squares too small for a float are scaled, by each process as its own samples want it."""
    alone = dspreg.measure(copy.deepcopy(Problem("smooth").net), loaders(None, TIMES[3]), loss=tiny)
    found, _ = ranks[0]
    torch.testing.assert_close(found["c/3"], alone.c.flat(), rtol=1e-9, atol=1e-12)


def test_processes_draw_signs_of_their_own(ranks):
    """Equal ones, on equal samples, would be one process's draw counted twice."""
    alone = dspreg.measure(copy.deepcopy(Problem("smooth").net), loaders(0), estimator="signed").c.flat()
    assert (ranks[0][0]["same samples"] - alone).abs().mean() > 0.05


def test_a_process_that_cannot_measure_tells_the_others(ranks):
    said = [each["broken"] for _, each in ranks]
    assert "batch 0 of 'art' has NaN" in said[1]
    assert said[0] == f"process 1 could not measure: DataError: {said[1]}"


def test_processes_that_measure_different_domains_are_refused(ranks):
    for _, said in ranks:
        assert "the processes measure different domains" in said["different"]
        assert "clip art" in said["different"]


@pytest.mark.parametrize("engine", ["lookahead", "exact", "gauss_newton", "finite_difference"])
def test_buffers_end_as_after_plain_steps(ranks, engine):
    for found, _ in ranks:
        assert torch.equal(found[f"buffers/{engine}"], found["buffers/None"])


def test_a_model_that_is_not_wrapped_is_remarked_on(ranks):
    for _, said in ranks:
        (text,) = said["no wrapper"]
        assert text.startswith("2 processes, but no DistributedDataParallel in the model")


def test_sharded_models_are_refused(ranks):
    for _, said in ranks:
        assert said["sharded"].startswith("the model is sharded (DTensor, FSDPModule)")
        assert "Use DistributedDataParallel" in said["sharded"]


def test_the_threads_of_data_parallel_are_out_of_sight():
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    pattern = ActivationPattern()
    with pattern.recorded():
        thread = threading.Thread(target=lambda: net(torch.ones(3, 2)))
        thread.start()
        thread.join()
    assert not pattern.pieces, "why it is refused"
    spread = nn.DataParallel(net)
    dspreg.Penalty(spread, engine="finite_difference")
    spread.device_ids = [0, 1]
    with pytest.raises(ConfigError, match=r"DataParallel computes in threads.*DistributedDataParallel"):
        dspreg.Penalty(spread, engine="finite_difference")
    dspreg.Penalty(spread, engine="lookahead")
