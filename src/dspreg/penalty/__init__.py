"""The penalty λ Σ c_k g_k²: engines that compute its gradient, and `Penalty`, which adds it to any training loop."""

from dspreg.penalty.engine_spec import parse_engine
from dspreg.penalty.engines import (
    Engine,
    Figures,
    Memory,
    Penalised,
    Step,
    central,
    exact,
    figures,
    finite_difference,
    gauss_newton,
    inner_of,
    kind_of,
    lazy,
    lookahead,
    momentum,
    part_of,
    penalty_value,
    refuse_half_precision,
    takes_plain,
)
from dspreg.penalty.penalty import Penalty

__all__ = [
    "Engine",
    "Figures",
    "Memory",
    "Penalised",
    "Penalty",
    "Step",
    "central",
    "exact",
    "figures",
    "finite_difference",
    "gauss_newton",
    "inner_of",
    "kind_of",
    "lazy",
    "lookahead",
    "momentum",
    "parse_engine",
    "part_of",
    "penalty_value",
    "refuse_half_precision",
    "takes_plain",
]
