"""Which images of a data set a run was trained on: by their contents, wherever they lie, whatever their names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dspreg.data.annotations import annotations_of
from dspreg.data.fingerprint import content_hashes, fingerprint, hash_pixels
from dspreg.data.images import Images
from dspreg.data.registry import open_dataset
from dspreg.errors import DspregError, Notice
from dspreg.protocol.description import RunDescription
from dspreg.runs.folder import RunFolder
from dspreg.runs.trained_images import Hashed, TrainedImages, read_trained_images
from dspreg.training.parts import split_domain


@dataclass
class SeenImages:
    """Answers of one run. What it kept is read when it is first needed; what it did not keep is found out anew.

    Attributes:
        folder: Of the run.
        trained: Its description.
        trust: Modules that its data set may come from, as in `dspreg.load`.
    """

    folder: RunFolder
    trained: RunDescription
    trust: Sequence[str] = ()
    _found: dict[Hashed, TrainedImages | None] = field(default_factory=dict)

    def flags(self, images: Sequence[Any], positions: Sequence[int]) -> list[bool] | None:
        """Whether each of these images was trained on; None where that can't be known."""
        hashed: Hashed = "files" if isinstance(images, Images) else "pixels"
        known = self.trained_images(hashed)
        if known is None:
            return None
        if isinstance(images, Images):
            return [images.hash(i) in known for i in positions]
        return [hash_pixels(images[i][0]) in known for i in positions]

    def trained_images(self, hashed: Hashed) -> TrainedImages | None:
        """What was trained on, by files or by pixels."""
        if hashed not in self._found:
            kept = read_trained_images(self.folder)
            self._found[hashed] = kept if kept is not None and kept.hashed == hashed else self._hash_anew(hashed)
        return self._found[hashed]

    def _hash_anew(self, hashed: Hashed) -> TrainedImages | None:
        """From the run's own data set, if it is still where it was."""
        where, sums = self.trained.where, []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Notice)
                data = open_dataset(where["dataset"], where.get("root"), where.get("name"), trust=self.trust)
                for name in self.trained.sources:
                    images = data.domain(name)
                    if source_of(self.trained, images) != name or (
                        hashed == "files" and not isinstance(images, Images)
                    ):
                        return None
                    inside = split_source(self.trained, images, name)[0]
                    sums += content_hashes(images, inside, pixels=hashed == "pixels")
        except (DspregError, KeyError, TypeError):
            return None
        return TrainedImages.of(hashed, sums)


def source_of(trained: RunDescription, images: Sequence[Any]) -> str | None:
    """The source domain with the same images, in the same groups and parts; None if there is none."""
    source = trained.source_of(fingerprint(images))
    if source is None:
        return None
    used = {"splits": trained.config.split == "grouped", "weights": trained.config.image_weights}
    return source if annotations_of(images).digest(**used) == trained.annotations.get(source, "") else None


def split_source(trained: RunDescription, images: Sequence[Any], source: str) -> tuple[list[int], list[int]]:
    """Positions of the images of a source domain that training saw, and of those that were held out.

    Of a soup, those that a member saw, and those that all members held out.
    """
    position, config = trained.domains.index(source), trained.config
    (seen, out), *others = [split_domain(images, replace(config, trial=t), position) for t in trained.trials]
    for inside, _ in others:
        more = set(inside)
        seen, out = seen + [i for i in out if i in more], [i for i in out if i not in more]
    return seen, out
