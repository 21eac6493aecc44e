"""A measured network: c by layer, the most domain-sensitive parameters, figures, and a file."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from dspreg.errors import ConfigError, Notice
from dspreg.io.atomic_files import make_folder, write_output
from dspreg.io.profile_file import VECTORS, metadata_of, opened_profile, seal
from dspreg.io.text import did_you_mean
from dspreg.vectors import ParamVector

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from dspreg.sensitivity.compare import Comparison


@dataclass(frozen=True)
class Profile:
    """Sensitivities of one network on several domains, and how much they differ. Returned by `dspreg.measure`.

    Compare c with `null`: c under random domain labels, on the same samples.
    """

    s: Mapping[str, ParamVector]  # by domain
    mean: ParamVector  # s̄ over domains
    variance: ParamVector  # v over domains, the population variance
    c: ParamVector  # √v / (s̄ + ε), between 0 and √(D−1)
    c_debiased: ParamVector | None  # c without the estimated sampling noise; needs two batches per domain
    null: ParamVector | None
    reliability: float | None  # Spearman correlation of c from odd and from even batches
    kinds: Mapping[str, str]  # layer → class of its module
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.s)

    @property
    def bound(self) -> float:
        """√(D−1), the largest possible c: only one domain is sensitive."""
        return math.sqrt(len(self.s) - 1)

    def alive(self) -> ParamVector:
        """True for parameters that some domain is sensitive to. The others have c = 0 because s = 0."""
        return self.mean.map(lambda s: s > 0)

    def over_alive(self, vector: ParamVector) -> Tensor:
        """The entries of `vector` that are alive, as a 1-D tensor."""
        return vector.flat()[self.alive().flat()]

    def __repr__(self) -> str:
        samples = sum(d["samples"] for d in self.settings.get("domains", {}).values())
        c = self.over_alive(self.c)
        null = "unknown" if self.null is None else f"{float(self.over_alive(self.null).mean()):.3f}"
        reliability = "unknown" if self.reliability is None else f"{self.reliability:.2f}"
        insensitive = 1 - c.numel() / self.c.numel()
        note = f" ({insensitive:.0%} of them no domain is sensitive to)" if insensitive >= 0.005 else ""
        return (
            f"Profile({len(self.c)} tensors, {self.c.numel():,} parameters{note}, {len(self.s)} domains "
            f"({', '.join(self.s)}), {samples} samples, "
            f"mean c {float(c.mean()):.3f} (null {null}), reliability {reliability})"
        )

    def _repr_html_(self) -> str:
        from dspreg.io.notebook import figure_html, table_html, text_html

        layers = self.by_layer()
        layers["insensitive"] = [f"{share:.0%}" for share in layers["insensitive"]]
        rows = [[f"{v:.3g}" if isinstance(v, float) else v for v in row] for row in layers.itertuples(index=False)]
        picture = figure_html(self.figure("layers"), "c of every layer beside its null")
        return text_html(repr(self)) + picture + table_html(list(layers.columns), rows, left=2)

    def by_layer(self) -> pd.DataFrame:
        """One row per layer in the order of the network: kind, size, mean s per domain, c beside its null.

        "insensitive" is the share of parameters with s = 0 on every domain, whose c is 0.
        """
        import pandas as pd

        rows = []
        for layer, names in self.layers().items():
            size = sum(self.c[n].numel() for n in names)
            row: dict[str, Any] = {"layer": layer, "kind": self.kinds.get(layer, "?"), "parameters": size}
            row |= {f"s {domain}": float(_flatten(s, names).mean()) for domain, s in self.s.items()}
            for label, vector in (("c", self.c), ("null", self.null)):
                if vector is not None:
                    values = _flatten(vector, names)
                    each = {"mean": values.mean(), "median": values.median(), "max": values.max()}
                    row |= {f"{label} {which}": float(value) for which, value in each.items()}
            row["insensitive"] = float((_flatten(self.mean, names) == 0).double().mean())
            rows.append(row)
        return pd.DataFrame(rows)

    def top(self, k: int = 50) -> pd.DataFrame:
        """The k parameters with the largest c: name, position in the tensor, c, null, c debiased, s per domain."""
        import pandas as pd

        if k < 1:
            raise ConfigError(f"top({k}); wanted at least 1")
        flat = self.c.flat()
        values, places = flat.topk(min(k, flat.numel()))
        starts = np.cumsum([0, *(t.numel() for t in self.c.values())])
        names = list(self.c)
        rows = []
        for value, place in zip(values.tolist(), places.tolist(), strict=True):
            which = int(np.searchsorted(starts, place, side="right")) - 1
            name, at = names[which], place - int(starts[which])
            position = tuple(int(i) for i in np.unravel_index(at, self.c[name].shape))
            row: dict[str, Any] = {"parameter": name, "position": position, "c": value}
            for label, vector in (("null", self.null), ("c debiased", self.c_debiased)):
                if vector is not None:
                    row[label] = float(vector[name].reshape(-1)[at])
            rows.append(row | {f"s {d}": float(s[name].reshape(-1)[at]) for d, s in self.s.items()})
        return pd.DataFrame(rows)

    def mask(self, quantile: float = 0.9) -> dict[str, Tensor]:
        """True where c is at least its `quantile` over all parameters: the domain-sensitive ones."""
        threshold = upper_quantile(self.c, quantile)
        return {name: c >= threshold for name, c in self.c.items()}

    def layers(self) -> dict[str, list[str]]:
        """Parameter names by the layer that owns them."""
        return owners_of(self.c)

    def compare(self, after: Profile) -> Comparison:
        """How c changed from this profile to a later one of the same network."""
        from dspreg.sensitivity.compare import compare

        return compare(self, after)

    def figure(self, kind: str = "layers", layer: str | None = None) -> Figure:
        """A figure: `"layers"`, `"histogram"`, or `"map"` of one `layer`. c beside null on one scale, 0 … √(D−1)."""
        from dspreg.sensitivity.plots import draw_profile

        return draw_profile(self, kind, layer)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, numbers and description together. An existing file is replaced whole."""
        path = Path(path)
        make_folder(path.parent)
        write_output(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """The contents of the file that `save` writes."""
        tensors = {f"s/{i}/{n}": t for i, s in enumerate(self.s.values()) for n, t in s.items()}
        for part in VECTORS:
            if (vector := getattr(self, part)) is not None:
                tensors |= {f"{part}/{n}": t for n, t in vector.items()}
        described = {"domains": list(self.s), "reliability": self.reliability, "kinds": dict(self.kinds)}
        described |= {"names": list(self.c), "settings": dict(self.settings)}
        return seal(save({k: t.contiguous() for k, t in tensors.items()}, metadata_of(described)))

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read what `save` wrote. The file is verified by the SHA-256 in it, and its numbers by their bounds."""
        with opened_profile(path) as file:

            def vector(part: str) -> ParamVector:
                return ParamVector((n, torch.from_numpy(file.tensor(part, n))) for n in file.names)

            def s(domain: int) -> ParamVector:
                return ParamVector((n, torch.from_numpy(file.sensitivity(domain, n))) for n in file.names)

            found = file.description
            return cls(
                s={name: s(d) for d, name in enumerate(file.domains)},
                mean=vector("mean"),
                variance=vector("variance"),
                c=vector("c"),
                c_debiased=vector("c_debiased") if "c_debiased" in file.parts else None,
                null=vector("null") if "null" in file.parts else None,
                reliability=found["reliability"],
                kinds=found["kinds"],
                settings=found["settings"],
            )


def _flatten(vector: ParamVector, names: list[str]) -> Tensor:
    return ParamVector((n, vector[n]) for n in names).flat().double()


def upper_quantile(c: ParamVector, quantile: float) -> float:
    """The quantile of c over all parameters together."""
    if not 0 <= quantile <= 1:
        raise ConfigError(f"quantile={quantile}; wanted a number from 0 to 1")
    # numpy, because torch.quantile refuses more than 16 million numbers; "higher", because a value that occurs is not
    # subject to rounding.
    threshold = float(np.quantile(c.flat().cpu().numpy(), quantile, method="higher"))
    if threshold == 0 < quantile:
        warnings.warn(
            f"the {quantile} quantile of c is 0, so that every parameter is at or above it: many parameters have no "
            "sensitivity on any domain. Use a larger quantile",
            Notice,
            stacklevel=3,
        )
    return threshold


def layer_of(name: str) -> str:
    """The layer a parameter belongs to: its name without the last part."""
    return name.rpartition(".")[0]


def owners_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Parameter names by the layer that owns them."""
    owners: dict[str, list[str]] = {}
    for name in names:
        owners.setdefault(layer_of(name), []).append(name)
    return owners


def tensors_of(layer: str | None, names: Iterable[str]) -> list[str]:
    """The parameter names of a layer, or an error if there is no such layer."""
    owners = owners_of(names)
    if layer not in owners:
        known = ", ".join(name for name in list(owners)[:12] if name)
        raise ConfigError(
            f"layer={layer!r}; wanted one of the measured layers: {known}{', …' if len(owners) > 12 else ''}."
            f"{did_you_mean(layer or '', owners)}"
        )
    return owners[layer]


def kinds_of(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    return {layer: type(model.get_submodule(layer)).__name__ for layer in map(layer_of, names)}
