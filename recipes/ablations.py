"""The arms of the paper's ablations, as specs.

    python recipes/ablations.py                 what there is
    python recipes/ablations.py components      its specs, one a line
    dspreg sweep recipes.ablations:components_on_pacs --root data --store runs/components

Each function returns the stacks of one table or figure. The paper's accuracies, PACS, mean over its four targets:
components 87.5 (full), 85.5 (λ = 0), 85.8 (c = 1); dynamic 87.5 against static 85.7; interval and strength are figures
whose only printed number is 87.5 at T = 2 and λ = 1e-3. Ours are filled in from our own runs.
"""

import sys
from collections.abc import Iterator

from dspreg import Run, leave_one_out
from dspreg.data import PACS, Digits


def components() -> list[str]:
    """The full method, without the penalty, without the coefficients; and, not in the paper, with shuffled ones."""
    return ["DSPReg", "DSPReg(weight=0.0)", "DSPReg(coefficients='ones')", "DSPReg(coefficients='shuffled')"]


def dynamic() -> list[str]:
    """Coefficients measured again and again, against once before the first step."""
    return ["DSPReg", "DSPReg(coefficients='static')"]


def interval() -> list[str]:
    """T_update, in epochs."""
    return [f"DSPReg(refresh_epochs={t})" for t in (1, 2, 3, 4)]


def strength() -> list[str]:
    """λ over the paper's four decades."""
    return [f"DSPReg(weight={weight})" for weight in (1e-4, 1e-3, 1e-2, 1e-1)]


def components_on_pacs() -> Iterator[Run]:
    """4 arms × 4 targets × 3 trials = 48 runs."""
    return leave_one_out({"PACS": PACS.domains}, components(), trials=3, draws=1, only="training")


def components_on_digits() -> Iterator[Run]:
    """The same on data that are always there."""
    return leave_one_out({"digits": Digits.domains}, components(), trials=3, draws=1, only="training")


RECIPES = {recipe.__name__: recipe for recipe in (components, dynamic, interval, strength)}

if __name__ == "__main__":
    if len(sys.argv) == 1:
        print("\n".join(f"{name:12}{recipe.__doc__}" for name, recipe in RECIPES.items()))
    elif len(sys.argv) == 2 and sys.argv[1] in RECIPES:
        print("\n".join(RECIPES[sys.argv[1]]()))
    else:
        sys.exit(f"no recipe {' '.join(sys.argv[1:])!r}; there are {', '.join(RECIPES)}")
