"""FisherTune: what is selected, what moves and when; and that no table has it."""

import math

import pytest
import torch

import dspreg
from dspreg.algorithms import ERM, FisherTune, parse
from dspreg.algorithms.catalogue import costs, listing, page
from dspreg.algorithms.fisher_tune import EPS, rank, restyle
from dspreg.algorithms.registry import algorithms
from dspreg.batches import Batch
from dspreg.errors import ConfigError
from dspreg.paper.methods import METHODS
from dspreg.randomness import generator
from dspreg.testing import check_algorithm, toy_batches, toy_task
from dspreg.training import train_step
from dspreg.vectors import ParamVector, theta
from reference import plain

SPEC = "FisherTune(warmup=2, growth=4, refresh_steps=2, measure_batches=1)"
FEATURES = ["featurizer.layers.0.weight", "featurizer.layers.0.bias"]


def test_it_keeps_the_laws():
    assert check_algorithm(SPEC) is None
    assert check_algorithm(FisherTune, images=True) is None


def test_it_is_in_no_table_and_found_by_name():
    assert FisherTune.experimental
    assert "FisherTune" not in algorithms()
    assert "FisherTune" in algorithms(experimental=True)
    assert "FisherTune" not in costs()["of_erm"]
    assert "FisherTune" not in METHODS
    rows = [line for line in listing().splitlines() if line.startswith("FisherTune")]
    assert rows == []
    assert "experimental, and in no table: FisherTune" in listing()
    assert "Guessed are:" in page("FisherTune")
    assert isinstance(dspreg.parse("FisherTune"), FisherTune)


def test_the_docstring_names_every_number_that_is_guessed():
    text = " ".join(FisherTune.__doc__.split())
    made = FisherTune()
    for option in ("warmup", "growth", "refresh_steps", "least", "most", "noise", "measure_batches"):
        assert f"{option} = {getattr(made, option)}" in text
    assert f"ε = {EPS:g}" in text


def moves(spec, steps):
    """Which of the featurizer's parameters each step moves."""
    stack, found = plain.ready(parse(spec), 3), []
    for t in range(steps):
        before = theta(stack.net)
        train_step(stack, toy_batches(t))
        found.append((theta(stack.net) - before).map(lambda t: t != 0))
    return stack, found


def test_more_and_more_parameters_move_and_no_other():
    stack, found = moves(SPEC, 9)
    shares = [each.select("featurizer.*").to(torch.float64).flat().mean().item() for each in found]
    count = 48
    assert shares[:2] == [0.0, 0.0]  # the warm-up
    expected = [0.1 * 9 ** (min(4, t - 2) / 4) for t in range(2, 9)]
    assert shares[2:] == pytest.approx([-(-count * share // 1) / count for share in expected], abs=1.01 / count)
    assert shares[6] == shares[8] > 0.85
    assert all(each["classifier.weight"].all() for each in found)
    assert stack.refreshed_at == 8


def test_those_move_whose_score_is_largest():
    found = moves(SPEC, 3)[1]
    again = plain.ready(parse(SPEC), 3)
    for t in range(2):
        train_step(again, toy_batches(t))
    scores = again.measure_scores()
    moved = found[2].select("featurizer.*").flat()
    assert scores.flat()[moved].min() > scores.flat()[~moved].max()
    assert set(scores) == set(FEATURES)


def fisher(weights, batches):
    """The mean over domains of E_x Σ_y p(y|x) (∂ log p(y|x))², every label in turn, of the featurizer's weights."""
    total = [torch.zeros_like(w) for w in weights[:2]]
    for batch in batches:
        for x in batch.x:
            p = plain.logits(weights, x[None])[0].softmax(0).detach()
            for y in range(3):
                g = plain.gradient(plain.cross_entropy(weights, x[None], torch.tensor([y])), weights)
                total = [t + p[y] * each.square() for t, each in zip(total, g, strict=False)]
    return [t / sum(map(len, batches)) for t in total]


def test_scores_are_those_of_the_formula():
    """Up to the labels, which the layer draws and this sums over."""
    stack = plain.ready(FisherTune(measure_batches=20, noise=1.0), 3)
    mean, deviation = torch.randn(2, generator=generator("toy", 0, "FisherTune")).abs().tolist()
    samples = [batch for each in stack.task.samples(0, 20).values() for batch in each]
    restyled = [Batch(restyle(b.x, mean, deviation), b.y, b.domain) for b in samples]
    weights, ours = plain.weights_of(stack), stack.measure_scores()
    pairs = zip(FEATURES, fisher(weights, samples), fisher(weights, restyled), strict=True)
    for name, here, there in pairs:
        assert ((here - there).abs() / torch.minimum(here, there)).max() > 0.5  # the style matters
        expected = here + math.exp(-mean - deviation) * (here - there).abs() / torch.minimum(here, there)
        torch.testing.assert_close(ours[name], expected, rtol=0.3, atol=0.15 * expected.max().item())
        assert torch.corrcoef(torch.stack([ours[name].flatten(), expected.flatten()]))[0, 1] > 0.9


def test_restyled_images_have_the_mean_and_deviation_asked_for():
    x = torch.rand(4, 3, 8, 8, dtype=torch.float64)
    found = restyle(x, 0.2, 0.5)
    torch.testing.assert_close(found.mean((2, 3)), 1.2 * x.mean((2, 3)))
    torch.testing.assert_close(found.std((2, 3)), 1.5 * x.std((2, 3)))
    assert torch.equal(restyle(x, 0.0, 0.0), (x - x.mean((2, 3), keepdim=True)) + x.mean((2, 3), keepdim=True))
    vectors = torch.rand(4, 5, dtype=torch.float64)
    torch.testing.assert_close(restyle(vectors, 0.2, 0.5).mean(1), 1.2 * vectors.mean(1))


def test_ranks_count_what_is_larger():
    scores = ParamVector({"a": torch.tensor([[3.0, 1.0], [2.0, 5.0]]), "b": torch.tensor([4.0])})
    ranks = rank(scores)
    assert ranks["a"].flatten().mul(5).round().tolist() == [2, 4, 3, 0]
    assert ranks["b"].mul(5).round().tolist() == [1]


def test_before_its_warm_up_ends_the_featurizer_is_where_it_began():
    _, found = moves("FisherTune(warmup=5)", 4)
    assert not any(bool(t.any()) for each in found for t in each.select("featurizer.*").values())
    erm = plain.ready(ERM(), 3)
    before = theta(erm.net)
    train_step(erm, toy_batches(0))
    assert bool((theta(erm.net) - before)["featurizer.layers.0.weight"].any())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"least": 0.0}, r"FisherTune: least=0\.0, most=0\.9; wanted shares, 0 < least ≤ most ≤ 1"),
        ({"warmup": -1}, "FisherTune: wanted numbers of steps ≥ 0"),
        ({"noise": -0.1}, r"FisherTune: noise=-0\.1; wanted a finite number ≥ 0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        FisherTune(**options)


def test_one_source_domain_is_refused():
    with pytest.raises(ConfigError, match="FisherTune measures on several source domains and there is 1: domain 0"):
        FisherTune().setup(toy_task(1), torch.optim.Adam)
