"""DSP-Reg's spec at a scale. No torch in here."""

from __future__ import annotations

from dspreg.paper.item import ENGINE
from dspreg.paper.scales import Scale

OURS = "DSP-Reg"  # as the paper spells it


def dsp_reg(scale: Scale, engine: str = ENGINE, *, weight: float = 1e-3, T: int | None = 2, c: str = "dynamic") -> str:
    """The spec of DSP-Reg at a scale; λ and T are written out, for what is left open would be drawn in a search."""
    refresh = {} if T is None else {"refresh_epochs": T} if scale.epoch is None else {"refresh_steps": scale.epoch * T}
    options: dict[str, object] = {"weight": weight, **refresh}
    if c != "ones":
        options |= scale.penalty
    options |= ({} if c == "dynamic" else {"coefficients": c}) | ({} if engine == ENGINE else {"engine": engine})
    return f"DSPReg({', '.join(f'{name}={value!r}' for name, value in options.items())})"
