"""PACS: the same seven things as art, cartoon, photograph and sketch."""

from __future__ import annotations

from dspreg.data.benchmarks.base import Benchmark


class PACS(Benchmark):
    """Objects and animals in four styles; 9,991 images.

    Input (x):
        227 × 227 RGB image.

    Label (y):
        dog, elephant, giraffe, guitar, horse, house, person

    Domain:
        - art_painting: 2,048
        - cartoon: 2,344
        - photo: 1,670
        - sketch: 3,929

    Get it from the authors, domaingeneralization.github.io, or with DomainBed's download script, which names the
    folders as they are wanted here. Some copies call the folder `kfold`: rename it to `PACS`.

    Licence: none is stated by the authors.

    Reference: Li, Yang, Song and Hospedales, "Deeper, Broader and Artier Domain Generalization", ICCV 2017.
    """

    name = "PACS"
    subfolder = "PACS"
    domains = ("art_painting", "cartoon", "photo", "sketch")
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    counts = {"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929}
    example = "art_painting/dog/pic_001.jpg"
    source = "Get it from domaingeneralization.github.io; rename its folder 'kfold' to 'PACS'."
