"""Stop a training, or a sweep, at every operation on its disk, resume it, and compare with one left alone.

    python tests/faults/every_operation.py

Every change of a file is recorded once, from the first folder to the last checkpoint removed: a name made, bytes
written, a file or folder synced, a rename, a removal. The disk is then made again as it was before each of them, after
it, with half of a write, and as a power cut after it may leave it: without anything that was not synced, with all names
and no contents, or with some of each. From every such disk the run must be read without damage and resume to the same
bits. Then the disk refuses each operation instead, once or from then on: that must end with a message about the disk
(exit code 6) or do no harm, and resume to the same bits. That the record is complete is checked, too: played back, it
must give the folder that the training left. Exit code 1 if anything differs.
"""

from __future__ import annotations

import errno
import math
import os
import pickle
import random
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from dspreg.errors import DspregError, ResourceError
from dspreg.io.atomic_files import UNFINISHED
from dspreg.launch import serial
from dspreg.protocol.leave_one_out import leave_one_out
from dspreg.runs.folder import RunFolder
from dspreg.runs.status import RunStatus
from dspreg.runs.store import RunStore
from faults import small
from faults.disk import Fault, Operation, RecordedDisk, Replay, Tree, digest, read_tree, write_tree
from faults.results import Part
from helpers import tiny
from helpers.sweeps import alone

ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS", "EMFILE")
POWER = ("none", "all", "some")  # of the names that were not synced when the power went


class Training:
    """One run."""

    name = "training"

    def __init__(self, folder: Path):
        self.root = small.make_images(folder)

    def act(self, disk: Path) -> None:
        small.run(self.root, disk / "run", save_every=2)

    def look(self, disk: Path) -> None:
        """Read it as it lies there: finished and whole, or unfinished; never damaged."""
        RunFolder(disk / "run").result()

    def progress(self, tree: Tree) -> float:
        """The step that a resumed training begins at; infinite once it is finished."""
        if "run/result.json" in tree:
            return math.inf
        return max((float(p.split("-")[1]) for p in tree if p.startswith("run/checkpoints/step-")), default=-1.0)

    def ending(self, disk: Path) -> Any:
        return small.ending(disk / "run")


class Sweep:
    """Three runs of a store: planned, claimed, trained and completed in one process."""

    name = "sweep"
    options = {name: value for name, value in small.SMALL.items() if name != "algorithm"} | {
        "steps": 2, "weights": "none", "lr": 1e-3, "evaluate_every": 1,
    }  # fmt: skip

    def __init__(self, folder: Path):
        domains = {f"folder:{small.make_images(folder)}": tiny.DOMAINS[:3]}
        self.runs = list(leave_one_out(domains, ["ERM"], trials=1, draws=1, only="training", options=self.options))

    def act(self, disk: Path) -> None:
        store = RunStore(disk / "store")
        store.make()
        store.plan(self.runs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            alone(self.runs, store, tiny.execution(save_every=1))

    def look(self, disk: Path) -> None:
        store = RunStore(disk / "store")
        if not (store.path / "store.json").exists():
            return
        store.check()
        planned = {run.id for run in store.planned_runs()}
        if planned not in (set(), {run.id for run in self.runs}):
            raise AssertionError(f"{len(planned)} runs are planned")
        for run in self.runs:
            state = store.status(run)
            if state.status not in (RunStatus.NOT_STARTED, RunStatus.STOPPED, RunStatus.FINISHED):
                raise AssertionError(f"{run} is {state}")

    def progress(self, tree: Tree) -> float:
        """How many runs are finished."""
        return float(sum(p.endswith("/result.json") for p in tree))

    def ending(self, disk: Path) -> Any:
        store = RunStore(disk / "store")
        found = {run.id: tiny.ending(store.folder(run).path) for run in self.runs}
        # half-made files beside the runs stay: another sweep of the same store might be about to rename them
        others = [name for name in read_tree(disk / "store") if not name.endswith(UNFINISHED)]
        return found, sorted(name for name in others if not name.startswith("runs/"))


class Crashes:
    """All the disks that a crash of one act may leave, and what becomes of them.

    Args:
        act: What is done, looked at and compared.
        folder: To work in.
        seed: Of what a power cut leaves.
    """

    def __init__(self, act: Training | Sweep, folder: Path, seed: int = 0):
        self.act, self.folder, self.chance = act, folder, random.Random(seed)
        act.act(folder / "alone")
        self.expected = act.ending(folder / "alone")
        self.operations, self.others = self._record()
        self.verdicts: dict[str, str] = {}
        self.wrong: Counter[str] = Counter()
        self.examples: list[str] = []

    def _record(self) -> tuple[list[Operation], list[Tree]]:
        """In a process that is gone afterwards, as its lease on a run says."""
        disk, told = self.folder / "recorded", self.folder / "operations"
        disk.mkdir()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                others: list[Tree] = []
                record = RecordedDisk(disk, lambda *_: others.append(_databases(disk)))
                with record.recorded():
                    self.act.act(disk)
                others.append(_databases(disk))
                told.write_bytes(pickle.dumps((record.operations, others)))
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(code)
        if os.waitpid(child, 0)[1]:
            raise RuntimeError("the act that was to be recorded failed")
        operations, others = pickle.loads(told.read_bytes())
        replay = Replay()
        for operation in operations:
            replay.apply(operation)
        if replay.tree() != read_tree(disk):
            raise RuntimeError("something was written that was not recorded: the model of the disk does not see it")
        return operations, others

    def try_all(self, every: int = 1, *, until_wrong: bool = False) -> dict[str, Any]:
        """Crash at every operation, or every so many; the figures."""
        replay, points, lost = Replay(), 0, 0
        safe = -1.0  # how far it had come when a folder was last synced: from then on no power cut may take it back
        variants: Counter[str] = Counter()
        for number, operation in enumerate(self.operations):
            tried = number % every == 0 or number == len(self.operations) - 1
            if tried:
                points += 1
                variants["before"] += self._try(f"before {number}", replay.tree(), number)
                torn = _copy(replay)
                torn.apply(operation, torn=True)  # whatever is no write is done whole, or not at all
                tree = torn.tree() if operation.kind == "write" else replay.tree()
                variants["torn"] += self._try(f"torn {number}", tree, number)
            replay.apply(operation)
            if operation.kind == "sync folder":
                safe = self.act.progress(replay.tree())
            if tried:
                lost += self.act.progress(replay.after_power_cut("none")) < safe
                variants["after"] += self._try(f"after {number}", replay.tree(), number + 1)
                for names in POWER:
                    tree = replay.after_power_cut(names, self.chance)
                    variants["power loss"] += self._try(f"power loss ({names} of the names) {number}", tree, None)
            if until_wrong and (self.wrong or lost):
                break
        figures = {
            "operations": len(self.operations),
            "tried": points,
            "states": sum(variants.values()),
            "different disks": len(self.verdicts),
            "by variant": dict(variants),
            "power cuts that take back what was synced": lost,
            "wrong": sum(self.wrong.values()) + lost,
        }
        return figures | ({"examples": self.examples[:5]} if self.examples else {})

    def _try(self, what: str, tree: Tree, databases: int | None) -> int:
        others = self.others[databases] if databases is not None else {}
        name = digest(tree | others)
        if name not in self.verdicts:
            disk = self.folder / "crashed"
            write_tree(tree | others, disk)
            self.verdicts[name] = self._verdict(disk)
            shutil.rmtree(disk)
        if self.verdicts[name]:
            self.wrong[what.split()[0]] += 1
            self.examples.append(f"{what} ({self._named(what)}): {self.verdicts[name]}")
        return 1

    def _named(self, what: str) -> str:
        operation = self.operations[int(what.split()[-1])]
        return f"{operation.kind} {operation.path}"

    def _verdict(self, disk: Path) -> str:
        """Empty where all is well."""
        try:
            self.act.look(disk)
            self.act.act(disk)
            return "" if self.act.ending(disk) == self.expected else "another ending"
        except (DspregError, AssertionError, OSError) as error:
            return f"{type(error).__name__}: {error}"

    # A disk that refuses.

    def refuse(self, error: str, number: int, *, persistent: bool) -> str:
        """Empty where the refusal is said, or does no harm, and the run can be resumed."""
        disk = self.folder / "refused"
        disk.mkdir()
        fault = Fault(number, getattr(errno, error), persistent)
        try:
            with RecordedDisk(disk, fault).recorded():
                said = self._refused(disk)
            if not fault.given:
                return "the operation never came"
            return said or self._verdict(disk)
        finally:
            shutil.rmtree(disk)

    def _refused(self, disk: Path) -> str:
        try:
            self.act.act(disk)
        except ResourceError:
            return ""
        except Exception as error:
            return f"{type(error).__name__}, not a ResourceError: {error}"
        return ""

    def refuse_all(self, errors: tuple[str, ...], every: int = 1) -> dict[str, Any]:
        count, wrong = 0, list[str]()
        for error in errors:
            for persistent in (False, True):
                for number in range(0, len(self.operations), every):
                    count += 1
                    said = self.refuse(error, number, persistent=persistent)
                    if said:
                        operation = self.operations[number]
                        how = "from then on" if persistent else "once"
                        wrong.append(f"{error} {how} at {number} ({operation.kind} {operation.path}): {said}")
        return {"refusals": count, "refusals wrong": len(wrong)} | ({"examples": wrong[:5]} if wrong else {})


def _databases(disk: Path) -> Tree:
    """SQLite's files as they are now; its shared memory is no part of them."""
    return {
        str(p.relative_to(disk)): p.read_bytes()
        for p in sorted(disk.rglob("claims.db*"))
        if not p.name.endswith("-shm")
    }


def _copy(replay: Replay) -> Replay:
    return pickle.loads(pickle.dumps(replay))


def impatient(change: Callable[[object, str, object], None] = setattr) -> None:
    """A sweep waits for runs that others hold; here nobody does."""
    change(serial, "POLL", 0.01)


def main(words: list[str] | None = None) -> int:
    part = Part("every_operation", __doc__)
    part.parser.add_argument("--every", type=int, default=1, help="only every so many operations")
    part.parser.add_argument("--refuse-every", type=int, default=5, help="the same, of those that are refused")
    part.parser.add_argument("--only", choices=("training", "sweep"), help="not both")
    options = part.parse(words)
    impatient()
    figures: dict[str, Any] = {}
    acts: list[Callable[[Path], Training | Sweep]] = [Training, Sweep]
    for make in acts:
        if options.only not in (None, make.name):  # type: ignore[attr-defined]
            continue
        with small.make_place() as place:
            folder = Path(place)
            crashes = Crashes(make(folder), folder, options.seed)
            found = crashes.try_all(options.every)
            tried = "all" if options.every == 1 else f"{found['tried']} of"
            print(f"{crashes.act.name}: {tried} {found['operations']} operations × 4 variants", flush=True)
            found |= crashes.refuse_all(ERRORS, options.refuse_every)
            figures |= {f"{crashes.act.name}: {name}": value for name, value in found.items()}
    passed = not any(value for name, value in figures.items() if name.endswith("wrong"))
    return part.finish(figures, passed=passed)


if __name__ == "__main__":
    sys.exit(main())
