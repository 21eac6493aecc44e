"""JiGen against its formula with tiles laid one by one, and the puzzles it is meant to solve."""

import pytest
import torch

from dspreg.algorithms import ERM, JiGen, parse
from dspreg.algorithms.jigen import permutations
from dspreg.errors import ConfigError
from dspreg.randomness import seeded
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.testing.toy import IMAGE
from dspreg.training import train_step
from reference import pictures, plain

WEIGHT, WHOLE, ORDERS = 0.8, 0.4, 5
HEAD = ["jigen.weight", "jigen.bias"]


def laid(image, order):
    """Tile by tile: at place n is tile order[n]."""
    result, side = image.clone(), image.shape[-1] // 3
    for n, source in enumerate(order.tolist()):
        (i, j), (k, m) = divmod(n, 3), divmod(source, 3)
        tile = image[:, k * side : (k + 1) * side, m * side : (m + 1) * side]
        result[:, i * side : (i + 1) * side, j * side : (j + 1) * side] = tile
    return result


def draws(t, n):
    with seeded("toy", t, "noise"):
        order, whole = torch.randint(ORDERS + 1, (n,)), torch.rand(n)
    return [0 if u < WHOLE else int(o) for o, u in zip(order, whole, strict=True)]


@plain.problems
@plain.optimisers
def test_steps_are_those_of_the_loop(domains, optimiser):
    known = permutations(ORDERS)

    def step(weights, batches, by_hand, t):
        x, y = torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])
        orders = draws(t, len(x))
        shuffled = torch.stack([laid(image, known[o]) for image, o in zip(x, orders, strict=True)])
        maps = pictures.early(weights, shuffled)
        features = torch.tanh(torch.nn.functional.conv2d(maps, weights[2], weights[3], stride=2, padding=1)).mean(
            (2, 3)
        )
        guess = features @ weights[6].T + weights[7]
        loss = pictures.mean_risk(features @ weights[4].T + weights[5], y)
        loss = loss + WEIGHT * pictures.mean_risk(guess, torch.tensor(orders))
        by_hand.step(weights, plain.gradient(loss, weights))

    algorithm = JiGen(weight=WEIGHT, whole=WHOLE, orders=ORDERS)
    pictures.assert_same_steps(algorithm, step, domains, optimiser, HEAD)


@pytest.mark.parametrize("side", [6, 7, 8, 64])
def test_tiles_are_moved_and_the_rest_stays(side):
    stack = pictures.ready(JiGen(orders=3), 3)
    x = torch.rand(4, 3, side, side, dtype=torch.float64)
    found = stack.lay(x, torch.tensor([0, 1, 2, 3]))
    for image, order, one in zip(x, stack._permutations, found, strict=True):
        assert torch.equal(one, laid(image, order))
    assert torch.equal(found[0], x[0])
    edge = side - side % 3
    assert torch.equal(found[:, :, edge:], x[:, :, edge:])


def test_orders_are_far_apart_and_the_same_in_every_run():
    known = permutations(30)
    assert known.shape == (31, 9)
    assert torch.equal(known, permutations(30))
    assert torch.equal(known[:6], permutations(5))
    assert all(sorted(each) == list(range(9)) for each in known.tolist())
    apart = [(a != b).sum().item() for i, a in enumerate(known) for b in known[:i]]
    assert min(apart) >= 6  # two random ones share a place on average, and some share many


def test_the_puzzle_is_solved_better_than_by_chance():
    stack = pictures.ready(JiGen(whole=0.0, orders=2), 3)
    ramp = torch.linspace(-3, 3, 6).double()
    logs = []
    for t in range(200):
        batches = toy_batches(t, 3, (16, 16, 16), inputs=pictures.IMAGE)
        batches = [type(b)(0.1 * b.x + ramp[:, None] + 2 * ramp, b.y, b.domain) for b in batches]
        logs.append(train_step(stack, batches)["JiGen.jigsaw"].item())
    assert logs[0] > 0.9  # chance is log 3
    assert sum(logs[-20:]) / 20 < 0.4


def test_the_order_is_that_of_the_images_that_enter_the_network():
    """Mixup below puts the domains in another order and crops them; each image that enters has one order."""
    stack = pictures.ready(parse("Mixup+JiGen(whole=0.0)"), 3)
    log = train_step(stack, toy_batches(0, inputs=pictures.IMAGE, sizes=(4, 7, 5)))
    assert torch.isfinite(log["JiGen.jigsaw"])


def test_prediction_and_measuring_see_plain_images():
    plainly, stack = pictures.ready(ERM(), 3), pictures.ready(JiGen(whole=0.0), 3)
    batch = toy_batches(0, inputs=pictures.IMAGE)[0]
    with evaluation_mode(stack):
        assert torch.equal(stack.predict(batch.x), plainly.predict(batch.x))
        assert torch.equal(stack.measured(batch)(batch.x), plainly.predict(batch.x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -1.0}, r"JiGen: weight=-1\.0; wanted a finite number ≥ 0"),
        ({"whole": 1.0}, r"JiGen: whole=1\.0; wanted a probability from 0 to below 1"),
        ({"orders": 0}, "JiGen: orders=0; wanted a number of permutations from 1 to 1000"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        JiGen(**options)


def test_vectors_and_two_of_them_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"JiGen wants images \(B, C, H, W\) of 3 pixels or more, not \(6, 5\)"):
        train_step(plain.ready(JiGen(), 3), toy_batches(0))
    with pytest.raises(ConfigError, match="JiGen stands twice in this stack"):
        pictures.ready(parse("JiGen+JiGen"), 3)


@pytest.mark.parametrize("below", ["RandConv", "DomainDrop"])
def test_outputs_in_another_order_than_the_images_are_refused(below):
    """Its guesses would be compared with the orders of other images, with DomainDrop silently."""
    with pytest.raises(ConfigError, match=f"{below} below it hands on other samples.*'JiGen\\+{below}'"):
        ready(parse(f"{below}+JiGen"), toy_task(inputs=IMAGE))
    stack = ready(parse(f"JiGen+{below}"), toy_task(inputs=IMAGE))
    assert train_step(stack, toy_batches(0, inputs=IMAGE))["loss"].isfinite()
