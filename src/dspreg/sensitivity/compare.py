"""Two profiles of one network: what rose, what fell, and whether it is the same parameters that are sensitive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from dspreg.errors import ConfigError
from dspreg.sensitivity.profile import VECTORS, Profile
from dspreg.sensitivity.summary import agreement
from dspreg.vectors import ParamVector

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SETTINGS = ("of", "estimator", "draws", "eps", "variance", "loss")


@dataclass(frozen=True)
class Comparison:
    """One network at two times, or with two weights. Made by `compare`."""

    before: Profile
    after: Profile
    notes: tuple[str, ...]  # in what they were measured differently, in sentences
    agreement: float | None  # Spearman's rank correlation of c, over parameters sensitive both times

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
            for name, one in (("before", first), ("after", second)):
                if f"null {which}" in one:
                    table[f"null {which} {name}"] = one[f"null {which}"]
        return table

    def overall(self) -> dict[str, Any]:
        """c and null before and after: means over the parameters sensitive both times, so that none comes or goes."""
        both = self.both().flat()
        found: dict[str, Any] = {"parameters": int(both.numel()), "sensitive_both_times": int(both.sum())}
        for name, profile in (("before", self.before), ("after", self.after)):
            for what, vector in (("c", profile.c), ("null", profile.null)):
                mean = None if vector is None or not both.any() else float(vector.flat()[both].double().mean())
                found[f"{what}_{name}"] = mean
            found[f"reliability_{name}"] = profile.reliability
        return found

    def figure(self, kind: str = "layers", layer: str | None = None) -> Figure:
        """A picture: `"layers"`, both on one scale, or `"map"`, the same parameters of one layer before and after."""
        from dspreg.sensitivity.plots import draw_comparison

        return draw_comparison(self, kind, layer)


def compare(before: Profile, after: Profile) -> Comparison:
    """What changed from one profile to another of the same network.

    Raises:
        ConfigError: They are of different networks; names the first tensor that differs.
    """
    difference = _first_difference(before.c, after.c)
    if difference:
        raise ConfigError(f"these are profiles of different networks, or of different parts of one: {difference}")
    after = _in_the_order_of(before.c, after)
    both = _alive_in_both(before, after).flat()
    first, second = before.c.flat()[both], after.c.flat()[both]
    found = agreement(first, second) if len(first) > 1 else None
    return Comparison(before, after, tuple(_notes(before, after)), found)


def _in_the_order_of(names: ParamVector, profile: Profile) -> Profile:
    """Modules may have been registered in another order; what is compared number by number lies in one."""

    def ordered(vector: ParamVector) -> ParamVector:
        return ParamVector((name, vector[name]) for name in names)

    found = {name: getattr(profile, name) for name in VECTORS}
    vectors: dict[str, Any] = {name: ordered(each) for name, each in found.items() if each is not None}
    return replace(profile, s={domain: ordered(each) for domain, each in profile.s.items()}, **vectors)


def _alive_in_both(before: Profile, after: Profile) -> ParamVector:
    return before.alive().map(torch.logical_and, after.alive())


def _first_difference(before: ParamVector, after: ParamVector) -> str:
    for name in dict.fromkeys((*before, *after)):
        if name not in after:
            return f"{name} is in the first alone ({len(before)} tensors before, {len(after)} after)"
        if name not in before:
            return f"{name} is in the second alone ({len(before)} tensors before, {len(after)} after)"
        if before[name].shape != after[name].shape:
            return f"{name} is {list(before[name].shape)} before and {list(after[name].shape)} after"
    return ""


def _notes(before: Profile, after: Profile) -> Iterator[str]:
    for name in SETTINGS:
        was, is_now = before.settings.get(name), after.settings.get(name)
        if was != is_now:
            yield f"{name} was {was} and is {is_now}: c of one is not c of the other"
    if set(before.domains) != set(after.domains):
        text = f"the domains were {', '.join(before.domains)} and are {', '.join(after.domains)}"
        if len(before.domains) != len(after.domains):
            text += f", so that c goes to {before.bound:.2f} and to {after.bound:.2f}"
        yield text
    samples = [{name: d["samples"] for name, d in p.settings.get("domains", {}).items()} for p in (before, after)]
    shared = [name for name in samples[0] if name in samples[1]]
    other = [name for name in shared if samples[0][name] != samples[1][name]]
    if other:
        each = ", ".join(f"{name} {samples[0][name]:,} and {samples[1][name]:,}" for name in other)
        yield f"the numbers of images differ ({each}): fewer give a higher c and a higher null"
    for when, profile in (("before", before), ("after", after)):
        if profile.null is None:
            yield f"no null was measured {when}: how much of c is noise is unknown"
