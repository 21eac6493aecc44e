"""DomainNet: 345 things in six styles."""

from __future__ import annotations

from functools import cache
from importlib import resources

from dspreg.data.benchmarks.base import Benchmark


class _FromFile:
    """The names of the classes, read when they are first asked for."""

    def __get__(self, _: object, owner: type) -> tuple[str, ...]:
        return _classes()


@cache
def _classes() -> tuple[str, ...]:
    text = resources.files("dspreg.data.benchmarks").joinpath("domain_net_classes.txt").read_text(encoding="utf-8")
    return tuple(text.split())


class DomainNet(Benchmark):
    """Things of all kinds in six styles; 586,575 images without duplicates.

    Input (x):
        RGB image of any size.

    Label (y):
        345 categories of Quick, Draw!, from The_Eiffel_Tower to zigzag; capitals sort before small letters.

    Domain:
        - clipart: 48,129
        - infograph: 51,605
        - painting: 72,266
        - quickdraw: 172,500
        - real: 172,947
        - sketch: 69,128

    Get it from the authors, ai.bu.edu/M3SDA, and remove the 9,431 files that DomainBed lists as duplicates. Only the
    total is compared with what is published: how it divides over the domains was worked out, from the sizes of the
    first version and that list.

    Licence: for research; the authors give a notice of fair use, as the images are other people's.

    Reference: Peng, Bai, Xia, Huang, Saenko and Wang, "Moment Matching for Multi-Source Domain Adaptation", ICCV 2019.
    """

    name = "DomainNet"
    subfolder = "domain_net"
    classes = _FromFile()
    domains = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    counts = {
        "clipart": 48_129, "infograph": 51_605, "painting": 72_266, "quickdraw": 172_500, "real": 172_947,
        "sketch": 69_128,
    }  # fmt: skip
    evaluate_every = 1_000
    example = "clipart/aircraft_carrier/clipart_001_000018.jpg"
    source = "Get it from ai.bu.edu/M3SDA and remove the duplicates that DomainBed lists (domain_net_duplicates.txt)."

    def mismatches(self) -> list[str]:
        found, published = sum(self.sizes().values()), sum(self.counts.values())
        if found == published:
            return []
        gap = f"{abs(found - published):,} {'missing' if found < published else 'too many'}"
        table = ", ".join(f"{domain} {size:,} ({self.counts[domain]:,})" for domain, size in self.sizes().items())
        return [f"{found:,} images where {published:,} are published: {gap}. By domain, expected in brackets: {table}"]
