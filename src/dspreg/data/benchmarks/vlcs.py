"""VLCS: photographs from four other data sets."""

from __future__ import annotations

from dspreg.data.benchmarks.base import Benchmark


class VLCS(Benchmark):
    """Photographs of five classes from four collections, each with its own bias; 10,729 images.

    Input (x):
        RGB photograph of any size.

    Label (y):
        bird, car, chair, dog, person

    Domain:
        - Caltech101: 1,415
        - LabelMe: 2,656
        - SUN09: 3,282
        - VOC2007: 3,376

    Get it with DomainBed's download script, which names the folders as they are wanted here. Copies divided into
    `train`, `crossval` and `test` have one level too many: put the parts of each class together.

    Licence: that of each of the four collections.

    Reference: Fang, Xu and Rockmore, "Unbiased Metric Learning: On the Utilization of Multiple Datasets and Web Images
    for Softening Bias", ICCV 2013.
    """

    name = "VLCS"
    subfolder = "VLCS"
    domains = ("Caltech101", "LabelMe", "SUN09", "VOC2007")
    classes = ("bird", "car", "chair", "dog", "person")
    counts = {"Caltech101": 1_415, "LabelMe": 2_656, "SUN09": 3_282, "VOC2007": 3_376}
    example = "Caltech101/bird/image_0001.jpg"
    source = "Get it with DomainBed's download script (github.com/facebookresearch/DomainBed)."
