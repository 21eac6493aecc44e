"""Two profiles of one network: how c changed, and whether the same parameters are domain-sensitive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from dspreg.errors import ConfigError
from dspreg.io.profile_file import VECTORS
from dspreg.sensitivity.profile import Profile
from dspreg.sensitivity.summary import agreement
from dspreg.vectors import ParamVector

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SETTINGS = ("of", "estimator", "draws", "eps", "variance", "loss")


@dataclass(frozen=True)
class Comparison:
    """Two profiles of one network, at two times or with different weights. Returned by `compare`."""

    before: Profile
    after: Profile
    notes: tuple[str, ...]  # how the measurements differ, in sentences
    agreement: float | None  # Spearman's rank correlation of c, over parameters that are sensitive in both

    def both(self) -> ParamVector:
        """True for parameters that some domain is sensitive to both before and after."""
        return _alive_in_both(self.before, self.after)

    def by_layer(self) -> pd.DataFrame:
        """One row per layer: kind, size, median and mean of c before and after, their difference, and both nulls."""
        first, second = self.before.by_layer(), self.after.by_layer()
        table = first[["layer", "kind", "parameters"]].copy()
        for which in ("median", "mean"):
            table[f"c {which} before"], table[f"c {which} after"] = first[f"c {which}"], second[f"c {which}"]
            table[f"c {which} change"] = second[f"c {which}"] - first[f"c {which}"]
            for name, layers in (("before", first), ("after", second)):
                if f"null {which}" in layers:
                    table[f"null {which} {name}"] = layers[f"null {which}"]
        return table

    def overall(self) -> dict[str, Any]:
        """c and null (c under random domain labels) before and after: means over the parameters sensitive in both."""
        both = self.both().flat()
        numbers: dict[str, Any] = {"parameters": int(both.numel()), "sensitive_both_times": int(both.sum())}
        for name, profile in (("before", self.before), ("after", self.after)):
            for what, vector in (("c", profile.c), ("null", profile.null)):
                mean = None if vector is None or not both.any() else float(vector.flat()[both].double().mean())
                numbers[f"{what}_{name}"] = mean
            numbers[f"reliability_{name}"] = profile.reliability
        return numbers

    def figure(self, kind: str = "layers", layer: str | None = None) -> Figure:
        """A figure: `"layers"`, both on one scale, or `"map"`, the same parameters of one layer before and after."""
        from dspreg.sensitivity.plots import draw_comparison

        return draw_comparison(self, kind, layer)


def compare(before: Profile, after: Profile) -> Comparison:
    """What changed from one profile to another of the same network.

    Raises:
        ConfigError: The networks differ; the message names the first tensor that does.
    """
    difference = _first_difference(before.c, after.c)
    if difference:
        raise ConfigError(f"these are profiles of different networks, or of different parts of one: {difference}")
    after = _reorder(after, before.c)
    both = _alive_in_both(before, after).flat()
    first, second = before.c.flat()[both], after.c.flat()[both]
    correlation = agreement(first, second) if len(first) > 1 else None
    return Comparison(before, after, tuple(_notes(before, after)), correlation)


def _reorder(profile: Profile, names: ParamVector) -> Profile:
    """`profile` in the order of `names`: modules may be registered in another order, and entries are compared flat."""

    def reorder(vector: ParamVector) -> ParamVector:
        return ParamVector((name, vector[name]) for name in names)

    vectors: dict[str, Any] = {
        name: reorder(vector) for name in VECTORS if (vector := getattr(profile, name)) is not None
    }
    return replace(profile, s={domain: reorder(s) for domain, s in profile.s.items()}, **vectors)


def _alive_in_both(before: Profile, after: Profile) -> ParamVector:
    return before.alive().map(torch.logical_and, after.alive())


def _first_difference(before: ParamVector, after: ParamVector) -> str:
    for name in dict.fromkeys((*before, *after)):
        if name not in after:
            return f"{name} is in the first only ({len(before)} tensors before, {len(after)} after)"
        if name not in before:
            return f"{name} is in the second only ({len(before)} tensors before, {len(after)} after)"
        if before[name].shape != after[name].shape:
            return f"{name} is {list(before[name].shape)} before and {list(after[name].shape)} after"
    return ""


def _notes(before: Profile, after: Profile) -> Iterator[str]:
    for name in SETTINGS:
        first, second = before.settings.get(name), after.settings.get(name)
        if first != second:
            yield f"{name} was {first} and is {second}: the two c are not comparable"
    if set(before.domains) != set(after.domains):
        text = f"the domains were {', '.join(before.domains)} and are {', '.join(after.domains)}"
        if len(before.domains) != len(after.domains):
            text += f", so that the maximum of c is {before.bound:.2f} and {after.bound:.2f}"
        yield text
    samples = [{name: d["samples"] for name, d in p.settings.get("domains", {}).items()} for p in (before, after)]
    shared = [name for name in samples[0] if name in samples[1]]
    differing = [name for name in shared if samples[0][name] != samples[1][name]]
    if differing:
        each = ", ".join(f"{name} {samples[0][name]:,} and {samples[1][name]:,}" for name in differing)
        yield f"the numbers of images differ ({each}): fewer give a higher c and a higher null"
    for when, profile in (("before", before), ("after", after)):
        if profile.null is None:
            yield f"no null was measured {when}: how much of c is noise is unknown"
