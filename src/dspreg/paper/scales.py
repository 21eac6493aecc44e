"""The scale an item of the paper is run at: as published, on a small network, or in minutes. No torch in here.

What the paper says of its search: learning rate, weight decay and dropout "via random search from the distributions
specified in the DomainBed framework", batch size 32, λ = 0.001 and T_update = 2, three seeds. It gives no number of
draws; DomainBed's is 20. Ablations keep "all other experimental settings constant": one draw, DomainBed's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dspreg.specs import DEFAULT_ENGINE

ENGINE = DEFAULT_ENGINE
FORMULA = (ENGINE, "exact")  # engines whose penalty is the paper's formula, up to rounding
OURS = "DSP-Reg"  # as the paper spells it
KINDS = ("methods", "ablation", "map")  # tables of methods, variants of DSP-Reg, two trainings to look into


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large.

    Attributes:
        name: As after `--scale`.
        settings: Of every run, by the names of `TrainConfig`.
        trials: By kind of item.
        draws: By kind of item; 1 has DomainBed's default options.
        data: What stands in for the paper's data sets; None: they themselves.
        targets: Domains held out; None: each in turn.
        penalty: Further options of DSP-Reg.
        epoch: Steps that stand for an epoch of T_update; None: epochs as Algorithm 1 has them.
        image_size, model, steps: As tables have them where `settings` leaves them to the data set.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    trials: Mapping[str, int]
    draws: Mapping[str, int]
    data: str | None = None
    targets: tuple[str, ...] | None = None
    penalty: Mapping[str, Any] = field(default_factory=dict)
    epoch: int | None = None
    model: str = "resnet50.tv_in1k"
    image_size: int = 224
    steps: int = 5_001

    def setting(self, name: str) -> Any:
        """One of model, image_size, steps, as runs have it."""
        return self.settings.get(name, getattr(self, name))


PAPER = Scale(
    name="paper",
    settings={"batch_size": 32},  # which DomainBed's search would draw
    trials={"methods": 3, "ablation": 3, "map": 1},
    draws={"methods": 20, "ablation": 1, "map": 1},
)
SMALL = Scale(
    name="small",
    settings={
        "model": "tf_efficientnet_lite0",
        "image_size": 64,
        "steps": 300,
        "evaluate_every": 60,  # with the first and the last step six evaluations
        "batch_size": 32,
    },
    trials={"methods": 3, "ablation": 5, "map": 1},
    draws={"methods": 1, "ablation": 1, "map": 1},
    epoch=30,
)
SMOKE = Scale(
    name="smoke",
    settings={"steps": 40, "evaluate_every": 20, "batch_size": 8},
    trials={"methods": 1, "ablation": 1, "map": 1},
    draws={"methods": 1, "ablation": 1, "map": 1},
    data="digits",
    targets=("handwritten", "print"),
    penalty={"measure_batches": 2},
    epoch=5,
    model="small-cnn",
    image_size=28,
)
SCALES = {each.name: each for each in (PAPER, SMALL, SMOKE)}


RUNNING = ", running c"  # of a label: c of a running mean over refreshes, each on few images


def running_options(scale: Scale) -> dict[str, Any]:
    """Of DSP-Reg with a running c: a quarter of the images of the default, or of the scale."""
    return {"measure_batches": max(1, scale.penalty["measure_batches"] // 4) if scale.penalty else 4,
            "refresh_memory": 0.75}  # fmt: skip


def dsp_reg(
    scale: Scale,
    engine: str = ENGINE,
    *,
    weight: float = 1e-3,
    T: int | None = 2,
    c: str = "dynamic",
    running: bool = False,
) -> str:
    """The spec of DSP-Reg at a scale; λ and T are written out, for what is left open would be drawn in a search.

    So is the engine: stores hold runs from before it became the default.
    """
    refresh = {} if T is None else {"refresh_epochs": T} if scale.epoch is None else {"refresh_steps": scale.epoch * T}
    options: dict[str, object] = {"weight": weight, **refresh}
    if c != "ones":
        options |= {**scale.penalty, **(running_options(scale) if running else {})}
    options |= ({} if c == "dynamic" else {"coefficients": c}) | {"engine": engine}
    return f"DSPReg({', '.join(f'{name}={value!r}' for name, value in options.items())})"
