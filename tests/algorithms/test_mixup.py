"""Mixup against DomainBed's loop with the same random numbers, and the hesitation it is meant to teach."""

import pytest
import torch

from dspreg.algorithms import ERM, Mixup
from dspreg.batches import Batch
from dspreg.randomness import seed_for
from dspreg.testing import toy_batches, toy_task
from dspreg.training import train_step
from reference import plain

ALPHA = 0.7


def circle(batches, t):
    """The pairs of step t and their shares, from the same random numbers in the same order."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed_for(*toy_task().key, t, "noise"))
        order = torch.randperm(len(batches)).tolist()
        shares = [float(torch.distributions.Dirichlet(torch.full((2,), ALPHA)).sample()[0]) for _ in batches]
    return [(batches[i], batches[j], m) for i, j, m in zip(order, order[1:] + order[:1], shares, strict=True)]


def mixed_loss(weights, batches, t):
    """m·CE(z, y_i) + (1 − m)·CE(z, y_j) with hard labels, as DomainBed has it; the mean over pairs."""
    total = 0.0
    for a, b, m in circle(batches, t):
        n = min(len(a), len(b))
        x = m * a.x[:n] + (1 - m) * b.x[:n]
        total += m * plain.cross_entropy(weights, x, a.y[:n]) + (1 - m) * plain.cross_entropy(weights, x, b.y[:n])
    return total / len(batches)


@plain.problems
@plain.optimisers
def test_steps_are_those_of_the_loop(domains, optimiser):
    def step(weights, batches, by_hand, t):
        by_hand.step(weights, plain.gradient(mixed_loss(weights, batches, t), weights))

    plain.assert_same_steps(Mixup(alpha=ALPHA), step, domains, optimiser)


def seen_by(algorithm, batches):
    """What the network gets to see when `algorithm` reads the batches."""
    seen = []

    class Eye(ERM):
        def forward(self, batches):
            seen.extend(batches)
            return super().forward(batches)

    stack = plain.ready(algorithm(Eye()), len(batches))
    with torch.random.fork_rng([]):
        torch.manual_seed(seed_for("toy", 0, "noise"))
        out = stack(batches)
    return seen, out


@pytest.mark.parametrize("domains", [2, 3, 5])
def test_images_and_labels_are_the_same_convex_combination(domains):
    batches = toy_batches(0, domains, plain.SIZES)
    seen, out = seen_by(lambda base: Mixup(base, alpha=ALPHA), batches)
    shares = []
    for mixed, (a, b, m) in zip(seen, circle(batches, 0), strict=True):
        assert len(mixed) == min(len(a), len(b))
        assert mixed.domain == a.domain != b.domain
        for i in range(len(mixed)):
            torch.testing.assert_close(mixed.x[i], m * a.x[i] + (1 - m) * b.x[i])
            expected = [m * float(c == a.y[i]) + (1 - m) * float(c == b.y[i]) for c in range(3)]
            assert mixed.y[i].tolist() == pytest.approx(expected)
        shares.append(m)
    assert len(set(shares)) == domains  # one m for each pair
    assert out.weights.tolist() == pytest.approx([1 / domains] * domains)  # pairs count equally, whatever their size
    assert sorted(out.domains) == list(range(domains))


def test_a_domain_alone_is_mixed_with_itself():
    only = toy_batches(0, 1)
    seen, out = seen_by(Mixup, only)
    torch.testing.assert_close(seen[0].x, only[0].x)
    torch.testing.assert_close(out.labels, torch.nn.functional.one_hot(only[0].y, 3).double())


def corners(t):
    """Two classes far apart and nothing between them; the domains list them in opposite order, so that pairs mix."""
    sides = torch.tensor([0, 1] * 8)
    noise = torch.randn(2, 16, 5, generator=torch.Generator().manual_seed(t), dtype=torch.float64)
    labels = [sides, sides.flip(0)]
    return [Batch(0.1 * noise[d] + 2.0 * labels[d][:, None] - 1, labels[d], d) for d in range(2)]


def test_between_classes_it_is_less_sure_than_erm():
    sure, right = {}, {}
    line = torch.linspace(-0.5, 0.5, 21, dtype=torch.float64)[:, None].expand(21, 5)
    for algorithm in (ERM(), Mixup(alpha=1.0)):
        stack = plain.ready(algorithm, 2)
        for t in range(200):
            train_step(stack, corners(t))
        sure[type(algorithm)] = stack.predict(line).softmax(1).max(1).values.mean().item()
        test = corners(999)[0]
        right[type(algorithm)] = (stack.predict(test.x).argmax(1) == test.y).double().mean().item()
    assert right == {ERM: 1.0, Mixup: 1.0}
    assert sure[Mixup] < sure[ERM] - 0.1
