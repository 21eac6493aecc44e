"""Tables of the third protocol (averages/protocol.md): averaged weights, an anchor and a linear probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from agreement_tables import accuracies, rows_by_label
from contrast_tables import interval
from markdown import print_table

from dspreg import RunResult, SelectedRow, contrast

DIGITS, PACS, PROBE, TUNE = "averages/digits", "averages/pacs", "averages/probe", "averages/probe-tune"
PAIRS = 20  # 4 targets × 5 trials
ERM, SWAD, LINEAR = "ERM", "SWAD", "linear probe"
DECAYS = {"digits": "EMA(decay=0.975)", "PACS": "EMA(decay=0.983)"}
ROWS = ("SWAD", "ERMPlusPlus", "EWC", LINEAR)  # each − ERM, − EMA, − DSP-Reg


def print_averages(stores: Mapping[str, Sequence[RunResult]]) -> None:
    found = {place: [run for run in stores.get(place, ()) if run.finished] for place in (DIGITS, PACS, PROBE, TUNE)}
    if found[TUNE]:
        print_rates(found[TUNE])
    for data, place in (("digits", DIGITS), ("PACS", PACS)):
        if found[place]:
            rows = rows_by_label(found[place])
            if data == "PACS" and found[PROBE]:
                (rows[LINEAR],) = rows_by_label(found[PROBE]).values()
            print_means(data, rows)
            print_third_contrasts(data, rows, DECAYS[data])


def print_rates(runs: Sequence[RunResult]) -> None:
    """Source validation of the probe at each learning rate; the target's accuracy decides nothing and is not shown."""
    lines = []
    for rate in sorted({run.settings["lr"] for run in runs}):
        last = [run.records[-1]["validation"] for run in runs if run.settings["lr"] == rate]
        lines.append([f"{rate:g}", f"{100 * fmean(last):.1f}", len(last)])
    print_table("PACS, linear probe, trial 0: source validation at the last step", ["lr", "mean", "targets"], lines)


def print_means(data: str, rows: Mapping[str, SelectedRow]) -> None:
    lines = []
    for label, row in rows.items():
        if len(found := accuracies(row)) == PAIRS:
            domains = row.domains
            means = [100 * fmean(each) for each in by_target(row).values()]
            lines.append([label, *(f"{mean:.1f}" for mean in means), f"{100 * fmean(found):.1f}"])
    if lines:
        print_table(f"The third protocol: {data}, last step, 5 trials", ["", *domains, "mean"], lines)


def by_target(row: SelectedRow) -> dict[str, list[float]]:
    """Accuracies of the trials of every target, in the order of the domains."""
    found: dict[str, list[float]] = {name: [] for name in row.domains}
    for (target, _), choice in row.choices.items():
        if not isinstance(choice, str):
            found[target].append(choice.accuracy)
    return found


def print_third_contrasts(data: str, rows: Mapping[str, SelectedRow], ema: str) -> None:
    sides = [(first, other) for first in ROWS for other in (ERM, ema, "DSPReg")]
    sides += [(ema, ERM), ("SWAD+DSPReg", SWAD)]
    lines = []
    for first, other in sides:
        if first in rows and other in rows:
            c = contrast(rows[first], rows[other])
            if c.pairs < PAIRS:
                lines.append([f"{first} − {other}", "", "", c.pairs, "not all pairs yet"])
            else:
                said = c.verdict(first, other)
                lines.append([f"{first} − {other}", f"{c.difference:+.2f}", interval(c), c.pairs, said])
    head = ["", "difference", "95 % interval", "pairs", "verdict"]
    print_table(f"The third protocol: contrasts on {data}, last step; not corrected for being many", head, lines)
