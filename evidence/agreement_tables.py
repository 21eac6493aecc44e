"""Tables of the second protocol (agreement/protocol.md): screening, tuning and contrasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from contrast_tables import interval
from markdown import print_table

from dspreg import ConfigError, RunResult, SelectedRow, contrast, describe, parse, select_rows

SCREEN, TUNE, STORE, EMOJI = "agreement/screen", "agreement/tune", "agreement/store", "agreement/emoji"
LATER = "agreement/later"  # begun when frozen batch norm was folded; both sides of a contrast are in one store
AVERAGED = "weight_averaging.SWA"  # of examples/, before the catalogue had one
PAIRS = 20  # 4 targets × 5 trials
STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
CONTRASTS = {  # of PACS: what is shown → both sides
    "Agreement − matched control (primary)": ("Agreement(strength=0.3)", "Agreement(strength=1.0, control='matched')"),
    "Agreement − ERM": ("Agreement(strength=0.3)", ""),
    "Agreement − SAM": ("Agreement(strength=0.3)", "SAM"),
    "Consensus − matched control": ("Consensus", "Consensus(control='matched')"),
    **{
        f"DSP-Reg − shuffled c, λ = {w:g}": (
            f"DSPReg(weight={w}, refresh_epochs=1, engine='gauss_newton')",
            f"DSPReg(weight={w}, refresh_epochs=1, engine='gauss_newton', coefficients='shuffled')",
        )
        for w in (0.001, 0.01)
    },
}
CONFIRMATION = {  # on emoji, nothing chosen there
    "Agreement − matched control": ("Agreement(strength=0.3)", "Agreement(strength=1.0, control='matched')"),
    "Agreement − ERM": ("Agreement(strength=0.3)", ""),
}


def print_agreement(stores: Mapping[str, Sequence[RunResult]]) -> None:
    for name, title in (
        (SCREEN, "digits: strengths of Agreement"),
        (TUNE, "PACS, photo and sketch, trial 0: the same"),
    ):
        if runs := stores.get(name):
            print_strengths(
                f"{title}, weights averaged over the second half, last step", runs, shows_target=name == SCREEN
            )
    for places, name, contrasts, start in (
        ((STORE, LATER), "PACS", CONTRASTS, 150),
        ((EMOJI,), "emoji", CONFIRMATION, 100),
    ):
        of_stores = [[run for run in stores.get(place, ()) if run.finished] for place in places]
        if any(of_stores):
            print_second_contrasts(name, [rows_by_label(runs) for runs in of_stores if runs], contrasts, start)


def rows_by_label(runs: Sequence[RunResult]) -> dict[str, SelectedRow]:
    return {row.label: row for row in select_rows(runs, "last") if row.finished}


def print_strengths(title: str, runs: Sequence[RunResult], *, shows_target: bool) -> None:
    """Source validation of every strength and its control; accuracy on the target and difference where seen."""
    rows = {key_of(label): row for label, row in rows_by_label(runs).items()}
    lines = []
    for strength in (0.0, *STRENGTHS):
        sides = [rows.get((strength, control)) for control in ("none", "matched")]
        if any(sides):
            found = [cell(row, shows_target) for row in sides]
            apart = ""
            if shows_target and all(sides):
                c = contrast(*sides)
                apart = f"{c.difference:+.2f} ({interval(c)})"
            name = f"{strength:g}" if strength else "ERM"
            lines.append([name, *(text for each in found for text in each), *([apart] if shows_target else [])])
    columns = ["source validation", "unseen domain"] if shows_target else ["source validation"]
    head = ["strength", *columns, *(f"control: {each}" for each in columns)]
    print_table(title, [*head, "difference (95 %)"] if shows_target else head, lines)


def key_of(label: str) -> tuple[float, str]:
    """Strength and control; ERM has strength 0."""
    spec = label.partition(AVERAGED)[0].rstrip("+")
    options = parse(spec).options(("strength", "control")) if spec else {"strength": 0.0, "control": "none"}
    return float(options["strength"]), options["control"]


def cell(row: SelectedRow | None, shows_target: bool) -> list[str]:
    choices = [] if row is None else [each for each in row.choices.values() if not isinstance(each, str)]
    if not choices:
        return [""] * (1 + shows_target)
    values = [fmean(each.validation for each in choices), fmean(each.accuracy for each in choices)]
    return [f"{100 * value:.1f}" for value in values[: 1 + shows_target]]


def print_second_contrasts(
    data: str, stores: Sequence[Mapping[str, SelectedRow]], contrasts: Mapping[str, tuple[str, str]], start: int
) -> None:
    """Contrasts within one store each; `stores` are their rows by label."""
    lines = []
    for name, sides in contrasts.items():
        labels = [describe(parse("+".join(filter(None, (side, f"SWA(start={start})"))))) for side in sides]
        rows = next((found for found in stores if all(label in found for label in labels)), None)
        if rows is None:
            continue
        try:
            c = contrast(*(rows[label] for label in labels))
        except ConfigError:  # no pair yet
            continue
        if c.pairs < PAIRS:  # nothing is read off it before it is complete
            lines.append([name, "", "", "", "", c.pairs, "not all pairs yet"])
            continue
        names = [part.strip() for part in name.partition("(")[0].split("−")]
        means = [f"{100 * fmean(accuracies(rows[label])):.1f}" for label in labels]
        lines.append([name, *means, f"{c.difference:+.2f}", interval(c), c.pairs, c.verdict(*names)])
    head = ["", "mean", "other's mean", "difference", "95 % interval", "pairs", "verdict"]
    print_table(f"The second protocol: contrasts on {data}, averaged weights, last step", head, lines)


def accuracies(row: SelectedRow) -> list[float]:
    return [each.accuracy for each in row.choices.values() if not isinstance(each, str)]
