"""DomainBed's sweep folders, printed byte for byte as its collect_results prints them.

Its faults are part of that: runs that were not finished enter, trials lacking a target enter averages, the oracle
stands beside the others, and cells are cut to their column. For a table to trust, `dspreg report` on runs of our own.
Held to commit b93c22a of DomainBed. Nothing is written; collect_results leaves a results.txt in the folder.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspreg.domainbed.names import ALGORITHMS, DATASETS
from dspreg.domainbed.records import check_record
from dspreg.domainbed.selection import RULES, Record, Rule, select_accuracy
from dspreg.errors import ConfigError, DataError, DspregError, IntegrityError
from dspreg.io.atomic_files import read_regular_file

LARGEST = 2**30  # bytes of one job's records; a usual job has 20 kB
Groups = dict[tuple[Any, str, str, int], float]  # trial, data set, algorithm, environment → accuracy


def collect_results(folder: str | Path, *, latex: bool = False) -> str:
    """What collect_results prints for a folder of job folders; with `latex` what it prints with --latex."""
    records = read_records(Path(folder))
    try:
        return "".join(line + "\n" for line in _document(records, latex))
    except DspregError:
        raise
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise IntegrityError(
            f"a record in {folder} is not laid out as DomainBed's ({type(error).__name__}: {error}), and its "
            "collect_results would stop there too. Remove the job folder it lies in"
        ) from error


def read_records(folder: Path) -> list[Record]:
    """Every line of every results.jsonl, in the order the system lists the folders, which decides ties of duplicates.

    Raises:
        IntegrityError: A line is torn, or not what DomainBed's trainer writes; its program ends with a traceback, or
            averages nonsense. Its tables can't say what is missing in them, so nothing is left out.
    """
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise ConfigError(f"{folder} can't be listed: {error.strerror}. Give the --output_dir of a sweep") from error
    return [record for name in names for record in read_job(folder / name) or ()]


def read_job(folder: Path) -> list[Record] | None:
    """The records of one job, checked; None where there are none: a file among the folders, or a job just begun.

    Raises:
        IntegrityError: As in `read_records`.
    """
    path = folder / "results.jsonl"
    try:
        lines = read_regular_file(path, limit=LARGEST, follow=True).decode().split("\n")
    except OSError:
        return None
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{path} is not text: {error}") from error
    if lines.pop():
        raise IntegrityError(f"{path} ends in the middle of a line; cut that line off, or remove the folder")
    found = [_parse(path, number, line) for number, line in enumerate(lines, 1)]
    for number, record in enumerate(found, 1):
        check_record(f"{path}, line {number}", record)
    return found


def _parse(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}, line {number}, is damaged: {error}") from error


def _document(records: list[Record], latex: bool) -> Iterator[str]:
    if latex:
        yield from (r"\documentclass{article}", r"\usepackage{booktabs}", r"\usepackage{adjustbox}")
        yield from (r"\begin{document}", r"\section{Full DomainBed results}", f"% Total records: {len(records)}")
    else:
        yield f"Total records: {len(records)}"
    for name, rule in RULES.items():
        if latex:
            yield from ("", rf"\subsection{{Model selection: {name}}}")
        yield from _tables(records, name, rule, latex)
    if latex:
        yield r"\end{document}"


def _tables(records: list[Record], method: str, rule: Rule, latex: bool) -> Iterator[str]:
    """One for each data set it knows, then the averages."""
    found = _groups(records, rule)
    seen = dict.fromkeys(record["args"]["algorithm"] for record in records)
    algorithms = [*(a for a in ALGORITHMS if a in seen), *(a for a in seen if a not in ALGORITHMS)]
    there = {record["args"]["dataset"] for record in records}
    datasets = [name for name in DATASETS if name in there]
    if (algorithms and not datasets) or (latex and not algorithms):
        what = f"only {', '.join(sorted(there))}" if there else "no records"
        raise DataError(f"there are {what}, none of a data set that DomainBed knows: its collect_results stops here")
    for dataset in datasets:
        cells = defaultdict(list)
        for (_, d, algorithm, environment), accuracy in found.items():
            if d == dataset:
                cells[algorithm, environment].append(accuracy)
        places = range(len(DATASETS[dataset]))
        rows = [_row(a, [cells[a, i] for i in places], latex) for a in algorithms]
        heading = ["Algorithm", *DATASETS[dataset], "Avg"]
        title = f"Dataset: {dataset}, model selection method: {method}"
        yield from _table(title, dataset, heading, rows, 20, latex)
    averages: dict[tuple[str, str], dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (trial, dataset, algorithm, _), accuracy in found.items():
        averages[algorithm, dataset][trial].append(accuracy)
    rows = []
    for a in algorithms:
        rows.append(_row(a, [[float(np.mean(v)) for _, v in sorted(averages[a, d].items())] for d in datasets], latex))
    title = f"Averages, model selection method: {method}"
    yield from _table(title, "Averages", ["Algorithm", *datasets, "Avg"], rows, 25, latex)


def _groups(records: Iterable[Record], rule: Rule) -> Groups:
    """A run with two targets is in two groups."""
    members: dict[tuple[Any, str, str, int], list[Record]] = defaultdict(list)
    for record in records:
        args = record["args"]
        for environment in args["test_envs"]:
            members[args["trial_seed"], args["dataset"], args["algorithm"], environment].append(record)
    chosen = ((key, select_accuracy(each, rule)) for key, each in members.items())
    return {key: accuracy for key, accuracy in chosen if accuracy is not None}


def _row(label: str, cells: Sequence[Sequence[float]], latex: bool) -> list[str]:
    texts, means = [label], []
    sign = r"$\pm$" if latex else "+/-"
    for values in cells:
        if not values:
            texts.append("X")
            continue
        mean, error = 100 * np.mean(values), 100 * np.std(np.array(values) / np.sqrt(len(values)))
        means.append(mean)
        texts.append(f"{mean:.1f} {sign} {error:.1f}")
    whole = len(means) == len(cells)
    return [*texts, f"{sum(means) / len(means):.1f}" if whole else "X"]


def _table(
    title: str, short: str, heading: Sequence[str], rows: list[list[str]], width: int, latex: bool
) -> Iterator[str]:
    between, end = (" & ", " \\\\") if latex else ("  ", " ")
    if latex:
        heading = [r"\textbf{" + label.replace("%", r"\%") + "}" for label in heading]
        yield from ("", rf"\subsubsection{{{short}}}", "", r"\begin{center}", r"\adjustbox{max width=\textwidth}{%")
        yield from (rf"\begin{{tabular}}{{l{'c' * (len(heading) - 1)}}}", r"\toprule")
    else:
        yield from ("", f"-------- {title}")
    for i, row in enumerate([heading, *rows]):
        yield between.join(cell.ljust(width)[:width] for cell in row) + end
        if latex and i == 0:
            yield r"\midrule"
    if latex:
        yield from (r"\bottomrule", r"\end{tabular}}", r"\end{center}")
