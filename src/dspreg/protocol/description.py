"""run.json: what was trained, on which data, in which environment. Training writes it; everything else reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dspreg.config.train_config import TrainConfig
from dspreg.kinds import CLASSES


@dataclass(frozen=True)
class RunDescription:
    """The contents of run.json.

    Attributes:
        settings: All options, by the names of `TrainConfig`; the data set by its name, weights by their tag. No paths,
            for moving a folder changes nothing.
        domains: Of the data set, in its own order, by which they are split.
        classes: Names of the labels, or of the numbers predicted.
        kind: Of the task, as in `dspreg.kinds`.
        sizes: Domain → number of "in" and "out" images.
        fingerprints: Domain → fingerprint of its images.
        annotations: Domain → SHA-256 of the groups, parts and weights of its images, as far as training used any.
        weights: Where the network's weights come from, with their SHA-256.
        environment: Versions, threads and device, of which the result's bits depend.
        where: Paths, the spec as the user wrote it, and how it was run. No part of the id.
        soup: Where it was not trained but averaged from other runs: which, and how.
        id: The result id; empty before there is a folder.
    """

    settings: Mapping[str, Any]
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    sizes: Mapping[str, Mapping[str, int]]
    fingerprints: Mapping[str, str]
    weights: Mapping[str, Any]
    environment: Mapping[str, Any]
    where: Mapping[str, Any] = field(default_factory=dict)
    soup: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    kind: str = CLASSES

    def to_json(self) -> dict[str, Any]:
        """As `RunFolder.agree` takes it, which adds the id."""
        return {
            "settings": dict(self.settings),
            "data": {
                "domains": list(self.domains),
                "classes": list(self.classes),
                **({} if self.kind == CLASSES else {"kind": self.kind}),
                "sizes": {name: dict(each) for name, each in self.sizes.items()},
                "fingerprints": dict(self.fingerprints),
                **({"annotations": dict(self.annotations)} if self.annotations else {}),
            },
            "weights": dict(self.weights),
            "environment": dict(self.environment),
            "where": dict(self.where),
            **({"soup": dict(self.soup)} if self.soup else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunDescription:
        """From what `RunFolder.description` returns."""
        data = value["data"]
        return cls(
            settings=value["settings"],
            domains=tuple(data["domains"]),
            classes=tuple(data["classes"]),
            sizes=data["sizes"],
            fingerprints=data["fingerprints"],
            weights=value["weights"],
            environment=value["environment"],
            where=value.get("where", {}),
            soup=value.get("soup", {}),
            id=value.get("id", ""),
            annotations=data.get("annotations", {}),
            kind=data.get("kind", CLASSES),
        )

    @cached_property
    def config(self) -> TrainConfig:
        """The settings as a configuration."""
        return TrainConfig.from_record(self.settings)

    @property
    def trials(self) -> tuple[int, ...]:
        """Whose splits decide which images it was trained on: several, where runs of several were averaged."""
        return tuple(self.soup.get("trials", (self.settings["trial"],)))

    @property
    def sources(self) -> tuple[str, ...]:
        """The domains it was trained on, in the data set's order."""
        return tuple(name for name in self.domains if name not in self.settings["targets"])

    def source_of(self, fingerprint: str) -> str | None:
        """The source domain with the same images."""
        return next((name for name in self.sources if self.fingerprints[name] == fingerprint), None)
