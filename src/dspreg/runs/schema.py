"""What the files of a run may say, checked before anything is made of it. Read without torch.

A SHA-256 says that a file is as it was sealed, not that training wrote it: a run from a stranger may hold whatever JSON
can. `check_run` holds run.json, records.jsonl and result.json to what training writes: types, bounds, and that they
agree with each other. The error names the file, the field and the value. Fields that nothing reads, such as those of a
newer version, are left alone.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from dspreg.config.train_config import TRAIN_OPTIONS
from dspreg.errors import ConfigError, IntegrityError
from dspreg.kinds import CLASSES, KINDS
from dspreg.runs.folder import Contents

FORMAT = "dspreg.result/1"
WHOLE = 2**63  # whole numbers are below: larger ones count nothing, and overflow what they are put into
FINITE = sys.float_info.max  # 10**400 is finite, too, and no float
LONGEST = 4_096  # characters of a name, a spec or a version
MOST_DOMAINS, MOST_CLASSES, MOST_ENVIRONMENTS, MOST_MEMBERS = 10_000, 1_000_000, 10_000, 10_000
LATER = {name for name, each in TRAIN_OPTIONS.items() if each.before is not MISSING}
SETTINGS = (
    TRAIN_OPTIONS.keys() - LATER - {"same_draws", "targets"}
)  # the first runs drew in one way; targets are a list

NUMBERS = (float, int)  # and not bool, which is an int to `isinstance`
COUNT, SHARE, NUMBER = "a whole number, 0 or more", "a number from 0 to 1", "a finite number"
AT_MOST_1 = "a finite number of at most 1"
TEXT, OBJECT = f"a text of at most {LONGEST:,} characters", "an object"
PLAIN = f"a finite number, true, false, null or {TEXT}"
BRIEF = reprlib.Repr()  # a value of any size and depth, in a line
BRIEF.maxlevel, BRIEF.maxdict, BRIEF.maxlist, BRIEF.maxstring = 2, 2, 4, 60


def check_run(path: str | Path, contents: Contents) -> None:
    """Hold all that a run's folder says to what training writes.

    Args:
        path: Of the folder, for the message.
        contents: As `RunFolder.contents` verified it.

    Raises:
        IntegrityError: Says the first thing that is wrong.
    """
    described, result, records = contents
    check_description(f"{path}/run.json", described)
    if result is not None:
        check_records(f"{path}/records.jsonl", records, described)
        check_result(f"{path}/result.json", result, described, records)


def check_description(file: str, described: Mapping[str, Any]) -> None:
    """run.json; its format and id are `RunFolder`'s to check."""
    settings, data, weights, environment = (
        _object(file, name, described.get(name)) for name in ("settings", "data", "weights", "environment")
    )
    domains = _names(file, "data.domains", data.get("domains"), 1, MOST_DOMAINS)
    _names(file, "data.classes", data.get("classes"), 1, MOST_CLASSES)
    if data.get("kind", CLASSES) not in KINDS:
        _refuse(file, "data.kind", data["kind"], f"one of {', '.join(KINDS)}")
    sizes, prints = (_object(file, f"data.{name}", data.get(name)) for name in ("sizes", "fingerprints"))
    for field, value in (("data.sizes", sizes), ("data.fingerprints", prints)):
        if value.keys() != domains.keys():
            _refuse(file, field, value, f"an object with the domains {BRIEF.repr([*domains])}")
    for name, images in sizes.items():
        if type(images) is not dict or not (is_count(images.get("in")) and is_count(images.get("out"))):
            _refuse(file, f"data.sizes[{name!r}]", images, f"an object with 'in' and 'out', each {COUNT}")
        if not images["in"]:
            _refuse(file, f"data.sizes[{name!r}].in", 0, "1 or more: of what is trained on there is an image")
        if not _is_text(prints[name]):
            _refuse(file, f"data.fingerprints[{name!r}]", prints[name], TEXT)
    for name, digest in _object(file, "data.annotations", data.get("annotations", {})).items():
        if name not in domains or not _is_text(digest):
            _refuse(file, f"data.annotations[{BRIEF.repr(name)}]", digest, f"{TEXT}, of one of the domains")
    _check_settings(file, settings, domains)
    for name in ("tag", "sha256"):
        if not (weights.get(name) is None or _is_text(weights[name])):
            _refuse(file, f"weights.{name}", weights[name], TEXT)
    _check_environment(file, "environment", environment)
    _check_soup(file, described.get("soup"))
    where = _object(file, "where", described.get("where", {}))
    if not _is_text(where.get("algorithm", "")):
        _refuse(file, "where.algorithm", where["algorithm"], TEXT)


def _check_settings(file: str, settings: dict[str, Any], domains: Collection[str]) -> None:
    if not settings.keys() >= SETTINGS:
        raise IntegrityError(f"{file}: settings.{min(SETTINGS - settings.keys())} is missing")
    for name, value in settings.items():
        if name != "targets":
            if not _is_plain(value):
                known = TRAIN_OPTIONS.get(name)
                _refuse(file, f"settings.{name}", value, known.range if known else PLAIN)
            if wanted := _wanted(name, value):
                _refuse(file, f"settings.{name}", value, wanted)
    for name in _names(file, "settings.targets", settings.get("targets"), 0, len(domains) - 1):
        if name not in domains:
            _refuse(file, "settings.targets", name, f"one of the domains {BRIEF.repr([*domains])}")


def _check_soup(file: str, soup: Any) -> None:
    """Which runs were averaged; most were trained, and have none."""
    if soup is None:
        return
    trials = _object(file, "soup", soup).get("trials")
    if type(trials) is not list or not 1 <= len(trials) <= MOST_MEMBERS:
        _refuse(file, "soup.trials", trials, f"a list of 1 to {MOST_MEMBERS:,} trials")
    for trial in trials:
        if not is_count(trial) or _wanted("trial", trial):
            _refuse(file, "soup.trials", trial, TRAIN_OPTIONS["trial"].range)
    members = soup.get("members")
    if type(members) is not list or not 1 <= len(members) <= MOST_MEMBERS:
        _refuse(file, "soup.members", members, f"a list of 1 to {MOST_MEMBERS:,} runs")
    for number, each in enumerate(members):
        for name in ("run", "which", "sha256"):
            if not _is_text(_object(file, f"soup.members[{number}]", each).get(name)):
                _refuse(file, f"soup.members[{number}].{name}", each.get(name), TEXT)


def check_records(file: str, records: Sequence[Any], described: Mapping[str, Any]) -> None:
    """records.jsonl of a run whose description is sound: steps go up, every domain is scored, every number is one.

    Ten thousand runs have nearly two hundred thousand records, so all is compared in place.
    """
    settings, domains = described["settings"], described["data"]["domains"]
    needed = {name: "in" if name in settings["targets"] else "out" for name in domains}
    kind = KINDS[described["data"].get("kind", CLASSES)]
    validates = settings.get("holdout") != 0
    known = needed if validates else {n: which for n, which in needed.items() if which == "in"}
    sources = [name for name in domains if needed[name] == "out"]
    steps, before = settings["steps"], -1
    figure, lowest, share = kind.figure, 0 if kind.shares else -FINITE, SHARE if kind.shares else AT_MOST_1
    step: Any
    accuracy: Any
    validation: Any
    for number, record in enumerate(records, 1):
        if type(record) is not dict:
            _refuse(file, f"line {number}", record, OBJECT)
        step, accuracy, validation = record.get("step"), record.get(kind.figure), record.get("validation")
        if type(step) is not int or not before < step < steps:
            _refuse(file, f"line {number}: step", step, f"a whole number above {before} and below {steps}")
        before = step
        if not validates:
            if validation is not None:
                _refuse(file, f"line {number}: validation", validation, "null, where holdout is 0")
        elif type(validation) not in NUMBERS or not lowest <= validation <= 1:
            _refuse(file, f"line {number}: validation", validation, share)
        if type(accuracy) is not dict or not (known.keys() <= accuracy.keys() <= needed.keys()):
            _refuse(file, f"line {number}: {figure}", accuracy, f"an object with the domains {BRIEF.repr(domains)}")
        for name, splits in accuracy.items():
            if type(splits) is not dict or (name in known and needed[name] not in splits):
                _refuse(file, f"line {number}: {figure}[{name!r}]", splits, f"an object with {needed[name]!r}")
            for split, value in splits.items():
                if type(value) not in NUMBERS or not lowest <= value <= 1:
                    _refuse(file, f"line {number}: {figure}[{name!r}][{BRIEF.repr(split)}]", value, share)
        if "metrics" in record:
            _check_metrics(file, number, record["metrics"], sources)
        for part in ("log", "seconds"):
            values: Any = record.get(part)
            if type(values) is not dict:
                _refuse(file, f"line {number}: {part}", values, OBJECT)
            for name, value in values.items():
                if type(value) not in NUMBERS or not -FINITE <= value <= FINITE:
                    _refuse(file, f"line {number}: {part}[{BRIEF.repr(name)}]", value, NUMBER)
        if "step_seconds" not in values or "evaluate_seconds" not in values:
            _refuse(file, f"line {number}: seconds", values, "an object with step_seconds and evaluate_seconds")


def _check_metrics(file: str, number: int, metrics: Any, sources: Sequence[str]) -> None:
    """Further figures of the sources' held-out images, by which the step may be selected."""
    if type(metrics) is not dict or metrics.keys() != {*sources}:
        _refuse(file, f"line {number}: metrics", metrics, f"an object with the domains {BRIEF.repr(sources)}")
    for name, figures in metrics.items():
        if type(figures) is not dict:
            _refuse(file, f"line {number}: metrics[{name!r}]", figures, OBJECT)
        for metric, value in figures.items():
            fits = value is None or (type(value) in NUMBERS and -FINITE <= value <= FINITE)
            if not fits or not _is_text(metric):
                _refuse(file, f"line {number}: metrics[{name!r}][{BRIEF.repr(metric)}]", value, f"{NUMBER} or null")


def check_result(
    file: str, result: Mapping[str, Any], described: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> None:
    """result.json of a run whose description and records are sound: it is that run's, and repeats them as they are."""
    same = (("format", FORMAT), ("run", described["id"]), ("targets", described["settings"]["targets"]))
    for name, value in same:
        if result.get(name) != value:
            _refuse(file, name, result.get(name), BRIEF.repr(value))
    environments = result.get("environments")
    if type(environments) is not list or len(environments) > MOST_ENVIRONMENTS:
        _refuse(file, "environments", environments, f"a list of at most {MOST_ENVIRONMENTS:,}")
    for number, each in enumerate(environments):
        _check_environment(file, f"environments[{number}]", _object(file, f"environments[{number}]", each))
    remarks = result.get("remarks", [])
    if type(remarks) is not list or not all(map(_is_text, remarks)):
        _refuse(file, "remarks", remarks, "a list of texts")
    if not is_count(result.get("refreshes")):
        _refuse(file, "refreshes", result.get("refreshes"), COUNT)
    figure, by_step = KINDS[described["data"].get("kind", CLASSES)].figure, {each["step"]: each for each in records}
    for which in ("selected", "last"):
        quoted = _object(file, which, result.get(which))
        step = quoted.get("step")
        there = by_step.get(step) if type(step) is int else None
        if there is None or (which == "last" and there is not records[-1]):
            _refuse(file, f"{which}.step", step, f"{'the last' if which == 'last' else 'a'} step of records.jsonl")
        for name in ("step", "validation", figure):
            if quoted.get(name) != there[name]:
                wanted = f"{BRIEF.repr(there[name])} as in records.jsonl"
                _refuse(file, f"{which}.{name}", quoted.get(name), wanted)


def check_failure(file: str, record: Any) -> None:
    """failure.json of a run, or of a store: why an attempt ended."""
    if type(record) is not dict or type(record.get("reason")) is not str:
        raise IntegrityError(f"{file} can't be read: it is no failure record")
    if not is_count(record.get("attempts", 0)):
        _refuse(file, "attempts", record["attempts"], COUNT)
    reached = record.get("reached", -1)  # the step of a checkpoint; -1: there was none
    if type(reached) is not int or not -1 <= reached < WHOLE:
        _refuse(file, "reached", reached, "a whole number, -1 or more")
    if type(record.get("cancelled", False)) is not bool:
        _refuse(file, "cancelled", record["cancelled"], "true or false")


def is_count(value: Any) -> bool:
    """Whether it counts something: a whole number, 0 or more, and small enough for any file and table."""
    return type(value) is int and 0 <= value < WHOLE


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= LONGEST


def _is_plain(value: Any) -> bool:
    if type(value) is int:
        return -WHOLE < value < WHOLE
    return value is None or type(value) in (bool, float) or _is_text(value)  # no file of ours is read with NaN in it


@lru_cache(maxsize=10_000, typed=True)  # most runs of a report share most of their settings; True is not 1
def _wanted(name: str, value: str | float | None) -> str:
    """What an option is to be, where it is something else. A setting of a newer version may be anything plain."""
    if name in TRAIN_OPTIONS:
        try:
            TRAIN_OPTIONS[name].check(value)
        except ConfigError:
            return TRAIN_OPTIONS[name].range
    return ""


def _check_environment(file: str, field: str, environment: dict[str, Any]) -> None:
    for name, value in environment.items():
        if not _is_plain(value):
            _refuse(file, f"{field}.{BRIEF.repr(name)}", value, PLAIN)


def _object(file: str, field: str, value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        _refuse(file, field, value, OBJECT)
    return value


def _names(file: str, field: str, value: Any, least: int, most: int) -> dict[str, None]:
    """A list of different names; in their order, and quick to look up."""
    if type(value) is not list or not least <= len(value) <= most:
        _refuse(file, field, value, f"a list of {least:,} to {most:,} names")
    for name in value:
        if not _is_text(name):
            _refuse(file, field, name, TEXT)
    found = dict.fromkeys(value)
    if len(found) < len(value):
        _refuse(file, field, value, "names that differ")
    return found


def _refuse(file: str, field: str, value: Any, wanted: str) -> NoReturn:
    raise IntegrityError(f"{file}: {field} is {BRIEF.repr(value)}; wanted {wanted}. dspreg writes no such thing")
