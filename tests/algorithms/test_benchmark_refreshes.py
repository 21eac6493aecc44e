"""How often c is measured on the five benchmarks, as docs/understand/paper-notes.md says: some refreshes never come."""

from pathlib import Path

import pytest
import torch

from dspreg.algorithms import DSPReg, Task
from dspreg.data.benchmarks.domain_net import DomainNet
from dspreg.data.benchmarks.office_home import OfficeHome
from dspreg.data.benchmarks.pacs import PACS
from dspreg.data.benchmarks.terra_incognita import TerraIncognita
from dspreg.data.benchmarks.vlcs import VLCS
from dspreg.data.splits import steps_per_epoch
from dspreg.networks import TinyMLP

NOTES = (Path(__file__).parents[2] / "docs" / "understand" / "paper-notes.md").read_text()


def epoch_lengths(benchmark, per_domain):
    """E of every target, from the published sizes less the held-out fifth of each domain."""
    for target in benchmark.domains:
        sizes = [n - n // 5 for domain, n in benchmark.counts.items() if domain != target]
        yield steps_per_epoch(sizes, 32 * len(sizes) if per_domain else 32)


def by_algorithm_1(length, steps, interval):
    """Its loops over epochs and mini-batches, counting."""
    step = measured = 0
    for epoch in range(1, steps + 1):
        measured += epoch % interval == 0
        step += length
        if step >= steps:
            return measured


def by_the_layer(length, steps, interval):
    layer = DSPReg(refresh_epochs=interval)
    task = Task(7, ("a", "b", "c"), length, lambda: TinyMLP(5), (), lambda t, n: {})
    layer.setup(task, lambda p: torch.optim.SGD(p, 0.1))
    return sum(layer.due(t) for t in range(steps))


def between(values):
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


ROWS = [
    (PACS, 5_001, True, "50–69", ("73–101", "36–50", "24–33", "18–25")),
    (VLCS, 5_001, True, "61–77", ("65–82", "32–41", "21–27", "16–20")),
    (OfficeHome, 5_001, True, "92–109", ("46–55", "23–27", "15–18", "11–13")),
    (TerraIncognita, 5_001, True, "125–173", ("29–41", "14–20", "9–13", "7–10")),
    (DomainNet, 5_001, True, "2,068–2,692", ("2–3", "1", "0–1", "0")),
    (DomainNet, 15_001, True, "2,068–2,692", ("6–8", "3–4", "2", "1–2")),
    (PACS, 5_001, False, "151–208", ("25–34", "12–17", "8–11", "6–8")),
    (DomainNet, 5_001, False, "10,340–13,461", ("1", "0", "0", "0")),
    (DomainNet, 15_001, False, "10,340–13,461", ("2", "1", "0", "0")),
]


@pytest.mark.parametrize(("benchmark", "steps", "per_domain", "length", "counts"), ROWS)
def test_refreshes_that_happen(benchmark, steps, per_domain, length, counts):
    lengths = list(epoch_lengths(benchmark, per_domain))
    assert between(lengths) == length
    for interval, expected in zip((1, 2, 3, 4), counts, strict=True):
        assert between([by_algorithm_1(e, steps, interval) for e in lengths]) == expected
        assert between([by_the_layer(e, steps, interval) for e in lengths]) == expected
    batch = "32 per domain" if per_domain else "32 in all"
    assert f"| {benchmark.name}, {steps:,} steps | {batch} | {length} | {' | '.join(counts)} |" in NOTES


def test_which_targets_of_domain_net_have_no_third_epoch():
    lengths = dict(zip(DomainNet.domains, epoch_lengths(DomainNet, True), strict=True))
    without = {target for target, length in lengths.items() if by_algorithm_1(length, 5_001, 3) == 0}
    assert without == {"clipart", "infograph", "painting", "sketch"}
