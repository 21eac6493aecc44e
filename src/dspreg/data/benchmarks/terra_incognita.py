"""TerraIncognita: wild animals before four camera traps."""

from __future__ import annotations

from dspreg.data.benchmarks.base import Benchmark, count_mismatches


class TerraIncognita(Benchmark):
    """Animals photographed by camera traps, by day and by night, at four places.

    Input (x):
        RGB or infra-red photograph of any size.

    Label (y):
        bird, bobcat, cat, coyote, dog, empty, opossum, rabbit, raccoon, squirrel

    Domain, as published (24,788 images) and as DomainBed's script of 2021 later downloaded it (24,330):
        - location_100: 4,879 or 4,741
        - location_38: 9,767 or 9,736
        - location_43: 4,020 or 3,970
        - location_46: 6,122 or 5,883

    Either is accepted, and the report says which it is: their results are not results on the same data. The order is
    DomainBed's, where 100 comes before 38.

    Get it from lila.science/datasets/caltech-camera-traps with DomainBed's download script.

    Licence: Community Data License Agreement, permissive.

    Reference: Beery, Van Horn and Perona, "Recognition in Terra Incognita", ECCV 2018.
    """

    name = "TerraIncognita"
    subfolder = "terra_incognita"
    domains = ("location_100", "location_38", "location_43", "location_46")
    classes = ("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel")
    counts = {"location_100": 4_879, "location_38": 9_767, "location_43": 4_020, "location_46": 6_122}
    later = {"location_100": 4_741, "location_38": 9_736, "location_43": 3_970, "location_46": 5_883}
    example = "location_100/bird/image.jpg"
    source = "Get it from lila.science/datasets/caltech-camera-traps with DomainBed's download script."

    def mismatches(self) -> list[str]:
        sizes = self.sizes()
        nearer = min((self.counts, self.later), key=lambda v: sum(abs(sizes[d] - v[d]) for d in self.domains))
        return count_mismatches(sizes, nearer)

    def variant(self) -> str:
        if self.sizes() == self.counts:
            return "24,788 images, as published"
        return "24,330 images, as DomainBed's script of 2021" if self.sizes() == self.later else ""
