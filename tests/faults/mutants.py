"""Twelve faulty versions of dspreg, each of which a check of this folder must catch.

    python tests/faults/mutants.py

Each one is the real code with one mistake patched in, of the kinds that such programs have had. The check that is to
catch it is run without it first, and must pass: a check that always fails proves nothing. Prints which check caught
which; exit code 1 unless it is 12 of 12.
"""

from __future__ import annotations

import io
import math
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from dspreg.errors import CantWrite
from dspreg.io import atomic_files, html
from dspreg.protocol import selection
from dspreg.runs.leases import Lease, Leases
from dspreg.training import checkpoint, loop, serialization
from dspreg.training.state import State
from faults import claims, damage, kill, small
from faults.every_operation import Crashes, Training
from faults.results import Part
from helpers.pages import BAD, page_of, write_bad
from helpers.runs import single, trace

Mutation = AbstractContextManager[None]


# Checks: each returns what it caught, or nothing.


def crash_everywhere(folder: Path) -> str:
    """every_operation: a crash before, after or in the middle of each operation, or a power cut."""
    crashes = Crashes(Training(folder), folder)
    crashes.try_all(until_wrong=True)
    return crashes.examples[0] if crashes.examples else ""


def refuse_writes(folder: Path) -> str:
    """every_operation: the disk is full at one operation."""
    found = Crashes(Training(folder), folder).refuse_all(("ENOSPC",), every=9)
    return str(found.get("examples", [""])[0])


def kill_trainings(folder: Path) -> str:
    """kill: trainings that are killed end in the same bits."""
    figures, passed = kill.kill_runs(12, seed=3, full=0)
    return "" if passed else str(figures["different"][0])


def claim_together(folder: Path) -> str:
    """claims: none doubled, none lost."""
    for seed in range(3):
        found = claims.claim_all(4000, 4, seed)
        if found["claims doubled"] or found["runs lost"]:
            return f"{found['claims doubled']} of {found['claims']} claims doubled"
    return ""


def wake_zombies(folder: Path) -> str:
    """claims: whatever a process writes after its lease is refused."""
    return str(claims.wake_zombies(2, 0).get("zombies wrong", [""])[0])


def open_pickles(folder: Path) -> str:
    """damage: no pickle is opened, whatever it is called."""
    found = damage.open_pickles(folder / "pickles", small.make_images(folder))
    return f"{found['pickles opened']} of {found['pickles']} opened" if found["pickles opened"] else ""


def show_hostile_names(folder: Path) -> str:
    """reporting: names of runs are text in a page."""
    text = page_of(write_bad(folder / "runs"), folder / "page.html")
    return "a tag of a run's name is a tag of the page" if "<img src=x>" in text or BAD in text else ""


def select_among_nan(folder: Path) -> str:
    """reporting: a validation that is no number is never the best."""
    nan = float("nan")
    for values in ((nan, 0.5, 0.7), (0.5, nan, 0.7), (0.5, 0.7, nan)):
        records = [single(step, "ash", 0.1 * step, value) for step, value in enumerate(values)]
        choice = selection.training_domains([trace(*records)], "ash")
        if isinstance(choice, str) or choice.validation != max(v for v in values if not math.isnan(v)):
            return f"of {values} it selects {choice}"
    return ""


# Mutants.


@contextmanager
def everywhere(real: Any, mutant: Any) -> Iterator[None]:
    """Replace a function wherever a module of dspreg has it by name."""
    with ExitStack() as patches:
        for name, module in list(sys.modules.items()):
            if name.startswith("dspreg"):
                for attribute, value in list(vars(module).items()):
                    if value is real:
                        patches.enter_context(mock.patch.object(module, attribute, mutant))
        yield


def write_in_place() -> Mutation:
    def write(path: Path, data: bytes, *, fence: Any = nullcontext) -> None:
        with fence(), path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    return everywhere(atomic_files.write, write)


def replace_before_sync() -> Mutation:
    def write(path: Path, data: bytes, *, fence: Any = nullcontext) -> None:
        unfinished = path.with_name(f".{path.name}.{os.getpid()}{atomic_files.UNFINISHED}")
        with unfinished.open("wb") as file:
            file.write(data)
            with fence():
                os.replace(unfinished, path)
            os.fsync(file.fileno())
        atomic_files._sync(path.parent)

    return everywhere(atomic_files.write, write)


def result_before_files() -> Mutation:
    real = loop.finish_run

    def finish_run(experiment: Any, state: Any, run: str, note: str = "") -> Any:
        records = list(state.folder.records)
        state.folder.finish({"selected": records[-1], "last": records[-1], "run": run})
        return real(experiment, state, run, note)

    return mock.patch.object(loop, "finish_run", finish_run)


def append_after_torn_line() -> Mutation:
    def rewind(self: Any, mark: Any) -> None:
        """Reads on from where the file ends, whatever stands there."""

    return mock.patch.object(atomic_files.Lines, "rewind", rewind)


def forget(change: Callable[[dict[str, Any]], None]) -> Mutation:
    real = State.unpack

    def unpack(self: State, saved: dict[str, Any]) -> None:
        change(saved)
        real(self, saved)

    return mock.patch.object(State, "unpack", unpack)


def forget_optimizer() -> Mutation:
    return forget(lambda saved: saved["optimizer"].update(state={}))


def forget_c() -> Mutation:
    def change(saved: dict[str, Any]) -> None:
        for name, value in saved["algorithm"].items():
            if name.endswith("_extra_state") and "c" in value:
                value["c"] = {each: torch.ones_like(t) for each, t in value["c"].items()}

    return forget(change)


def select_then_update() -> Mutation:
    def acquire(self: Leases, runs: Any) -> Lease | None:
        for run in runs:
            now = self.now()
            there = self._do("SELECT token, holder, expires FROM claims WHERE run = :run", {"run": run})
            if there and there[0][1] is not None and there[0][2] > now:
                continue
            token = there[0][0] + 1 if there else 1
            values = {"run": run, "token": token, "holder": self.holder, "boot": self.boot}
            self._do(
                "INSERT OR REPLACE INTO claims VALUES (:run, :token, :holder, :boot, :expires, 0, 0)",
                values | {"expires": now + self.duration},
            )
            return Lease(run, token, self.holder)
        return None

    return mock.patch.object(Leases, "acquire", acquire)


def lease_without_fence() -> Mutation:
    def guard(self: Leases, lease: Lease) -> Any:
        return nullcontext()

    return mock.patch.object(Leases, "guard", guard)


def swallow_errors() -> Mutation:
    real = atomic_files.write

    def write(path: Path, data: bytes, *, fence: Any = nullcontext) -> None:
        with suppress(CantWrite):
            real(path, data, fence=fence)

    return everywhere(real, write)


def fall_back_to_pickle() -> Mutation:
    real = serialization.unpack

    def unpack(data: bytes, where: str) -> Any:
        try:
            return real(data, where)
        except Exception:
            return torch.load(io.BytesIO(data), weights_only=False), {"format": checkpoint.FORMAT}

    return everywhere(serialization.unpack, unpack)


@contextmanager
def no_escaping() -> Iterator[None]:
    import jinja2

    real = jinja2.Environment

    def environment(*given: Any, **options: Any) -> Any:
        return real(*given, **options | {"autoescape": False, "finalize": None})

    with mock.patch.object(jinja2, "Environment", environment), everywhere(html.escape_terminal, str):
        yield


def nan_wins() -> Mutation:
    return mock.patch.object(selection, "_rank", lambda choice: choice.validation)


@dataclass(frozen=True)
class Mutant:
    number: str
    mistake: str
    mutate: Callable[[], Mutation]
    check: Callable[[Path], str]


MUTANTS = (
    Mutant("M1", "files are written in place", write_in_place, crash_everywhere),
    Mutant("M2", "renamed before it is synced", replace_before_sync, crash_everywhere),
    Mutant("M3", "result.json before the files it names", result_before_files, crash_everywhere),
    Mutant("M4", "lines are appended after a torn one", append_after_torn_line, crash_everywhere),
    Mutant("M5", "the optimizer's state is not restored", forget_optimizer, kill_trainings),
    Mutant("M6", "c is not restored", forget_c, crash_everywhere),
    Mutant("M7", "a claim is a look and then a write", select_then_update, claim_together),
    Mutant("M8", "a lease without a fence", lease_without_fence, wake_zombies),
    Mutant("M9", "errors of the disk are swallowed", swallow_errors, refuse_writes),
    Mutant("M10", "a pickle is opened where safetensors fails", fall_back_to_pickle, open_pickles),
    Mutant("M11", "names are not escaped", no_escaping, show_hostile_names),
    Mutant("M12", "a NaN is the best", nan_wins, select_among_nan),
)


def run_check(check: Callable[[Path], str]) -> str:
    with small.make_place() as place, warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return check(Path(place))


def try_mutants(chosen: tuple[Mutant, ...] = MUTANTS) -> dict[str, Any]:
    """Which check caught which."""
    sound = {check: run_check(check) for check in dict.fromkeys(each.check for each in chosen)}
    caught, missed = {}, []
    for each in chosen:
        started = time.monotonic()
        try:
            with each.mutate():
                said = run_check(each.check)
        except Exception as error:  # the mistake is so gross that nothing works any more
            said = f"{type(error).__name__}: {error}"
        name = (each.check.__doc__ or "").partition(":")[0]
        how, what = f"{name}.{each.check.__name__}", "NOT CAUGHT"
        if said and not sound[each.check]:
            caught[each.number] = how
            what = f"caught by {how}"
        else:
            missed.append(each.number)
        seconds = time.monotonic() - started
        print(f"{each.number:4} {each.mistake:45} {what:45} {seconds:5.1f} s  {said[:100]!r}", flush=True)
    print(f"{len(caught)} of {len(chosen)} caught")
    false = {check.__name__: said for check, said in sound.items() if said}
    return {"mutants": len(chosen), "mutants caught": len(caught), "by check": caught} | (
        {"missed": missed, "false alarms": false} if missed else {}
    )


def main(words: list[str] | None = None) -> int:
    part = Part("mutants", __doc__)
    part.parser.add_argument("--only", nargs="+", help="such as M1 M7")
    options = part.parse(words)
    random.seed(options.seed)
    chosen = tuple(each for each in MUTANTS if not options.only or each.number in options.only)
    figures = try_mutants(chosen)
    return part.finish(figures, passed=figures["mutants caught"] == len(chosen))


if __name__ == "__main__":
    sys.exit(main())
