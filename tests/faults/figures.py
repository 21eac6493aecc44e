"""The figures of the last full run, as a table.

    python tests/faults/figures.py [--markdown] [--results FILE] [--page docs/reliability.md]

Of every part the last line of the record that passed or failed: what was tried, what came out, by which command, when,
and how long it took. What has no line was not run, and is said to be so.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.results import RECORD, read_results

MARK, END = "<!-- figures: python tests/faults/figures.py --page docs/reliability.md -->", "<!-- end -->"

# What each part promises, and the figures that show it.
PROMISES = {
    "kill": (
        "trainings killed with SIGKILL end in the same bits",
        "{runs:,} runs, {kills:,} kills, {bit-identical:,} bit-identical",
    ),
    "every_operation": (
        "so do those that crash at any operation on the disk, or lose power",
        "all {training operations} operations of a training and {sweep operations} of a sweep × 4 variants, "
        "{training wrong} and {sweep wrong} wrong; {refused:,} refusals of the disk, {refused wrong} wrong",
    ),
    "strace_check": (
        "so do those of the real command, killed or refused inside of system calls",
        "{points} points, {same} bit-identical",
    ),
    "damage": (
        "no damage is taken for truth",
        "{checkpoints detected} of {checkpoints damaged} damaged checkpoints detected; {bits flipped:,} bits flipped, "
        "{silent} silent",
    ),
    "claims": (
        "no two processes work on one run",
        "{claims:,} claims by {processes} processes, {claims doubled} doubled, {runs lost} lost; "
        "{zombies refused} of {zombies} sleepers refused; {clocks that jumped} clocks that jumped, "
        "{clocks wrong} wrong",
    ),
    "store_machine": (
        "the invariants of a store hold after any sequence of events",
        "{examples:,} sequences of up to {steps} events, {broken} broken",
    ),
    "environment": (
        "full disks, read-only places, small limits and signals are said, and lose nothing",
        "{cases} cases, {as expected} as expected",
    ),
    "sweeps": ("a sweep that is killed ends like one left alone", "{said}"),
    "ray": ("so does one on a Ray cluster", "{said}"),
    "soak": (
        "a store that fills costs memory and time in step with its runs, and no descriptors",
        "{runs:,} runs beside {reads:,} reads: memory {memory slope}, descriptors {descriptor slope}",
    ),
    "bad_inputs": (
        "a wrong command line or file is answered with what came, what was wanted and what to do",
        "{well} of {inputs} answered well",
    ),
    "mutants": ("the checks above see what they should", "{mutants caught} of {mutants} faulty versions caught"),
}


def latest(results: Path) -> dict[str, dict[str, Any]]:
    return {line["part"]: line for line in read_results(results)}


def describe(part: str, line: dict[str, Any] | None) -> str:
    if line is None:
        return "not run"
    figures = {name.replace(":", ""): value for name, value in line["figures"].items()}  # a colon begins a format
    for name in ("refusals", "refusals wrong"):
        values = [figures[f"{what} {name}"] for what in ("training", "sweep") if f"{what} {name}" in figures]
        figures[name.replace("refusals", "refused")] = sum(values)
    try:
        said = PROMISES[part][1].format_map(figures)
    except (KeyError, ValueError):
        said = json.dumps(line["figures"], ensure_ascii=False)
    return said if line["passed"] else f"FAILED: {said}"


def rows(results: Path) -> list[tuple[str, ...]]:
    found = latest(results)
    made = [("promise", "figures", "command", "date (UTC)", "revision", "seconds")]
    for part, (promise, _) in PROMISES.items():
        line = found.get(part)
        tail = (line["command"], line["date"], line["revision"], f"{line['seconds']:,.0f}") if line else ("",) * 4
        made.append((promise, describe(part, line), *tail))
    return made


def format_markdown(table: list[tuple[str, ...]]) -> str:
    head, *body = table
    cells = [[*row[:2], f"`{row[2]}`" if row[2] else "", *row[3:]] for row in body]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in cells])


def format_text(table: list[tuple[str, ...]]) -> str:
    """Aligned, the figures of a promise below it: one line would be too long for a terminal."""
    lines = []
    for promise, figures, how, date, revision, seconds in table[1:]:
        lines += [promise, f"    {figures}"]
        lines += [f"    {how:82} {date}  {revision:16} {seconds:>7} s"] if how else []
    return "\n".join(lines)


def put_into_page(text: str, table: str) -> str:
    """The page with this table between the two comments that mark its place."""
    start, end = text.index(MARK) + len(MARK), text.index(END)
    return f"{text[:start]}\n{table}\n{text[end:]}"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RECORD)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--page", type=Path, help="put the table into this page instead of printing it")
    options = parser.parse_args(words)
    table = rows(options.results)
    if options.page:
        options.page.write_text(put_into_page(options.page.read_text("utf-8"), format_markdown(table)), "utf-8")
    else:
        print(format_markdown(table) if options.markdown else format_text(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
