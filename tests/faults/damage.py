"""Damage files of runs, and see whether anybody is deceived.

    python tests/faults/damage.py --checkpoints 500 --flips 1000

Checkpoints are cut short, have a bit flipped or a stretch of zeros, come from another run or step, or are of another
format: none may be loaded, and a training that meets one goes on from the one before, to the same bits. Single bits
are then flipped anywhere in the files of finished and unfinished runs. A finished run is verified, loaded, reported and
measured by; an unfinished one is resumed. What comes out is an error or a notice that names the damage (detected), or
all that would have come out without it (harmless). Anything else is silent, and one silent flip is exit code 1.
"""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from safetensors.torch import load as load_safetensors

import dspreg
from dspreg.cli import main as command_line
from dspreg.errors import DspregError, IntegrityError, Notice, Preempted
from dspreg.io.atomic_files import sha256
from dspreg.runs.folder import RunFolder
from dspreg.training import train
from dspreg.training.checkpoint import FORMAT, Checkpoints
from dspreg.training.serialization import pack, unpack
from faults import small
from faults.results import Part
from helpers import tiny

MOMENTS = (0, 3, 7, 12, 16, 19)  # of the pauses of a training at which one is left unfinished
DETECTED, HARMLESS, SILENT, CRASHED = "detected", "harmless", "silent", "another error than ours"


def leave_unfinished(root: Path, out: Path, moment: int, **settings: Any) -> bool:
    """Whether it was stopped before its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = tiny.execution(profile="auto", keep="all", save_every=1)
        try:
            train(tiny.settings(root, **small.SMALL | settings), how, out, pause=tiny.stop_at(moment))
        except Preempted:
            return True
    return False


def flip(path: Path, chance: random.Random) -> str:
    """One bit; which."""
    data = bytearray(path.read_bytes())
    at, bit = chance.randrange(len(data)), chance.randrange(8)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {at} of {len(data)}"


class DamagedCheckpoints:
    """The newest of two checkpoints, damaged in many ways."""

    def __init__(self, folder: Path, root: Path, chance: random.Random):
        self.folder, self.root, self.chance = folder, root, chance
        small.run(root, folder / "alone", save_every=1)
        self.expected = small.ending(folder / "alone")
        assert leave_unfinished(root, folder / "stopped", 12)
        assert leave_unfinished(root, folder / "another", 12, trial=1)
        self.files = self._checkpoints(folder / "stopped").files()
        self.others = self._checkpoints(folder / "another").files()
        assert len(self.files) == 2

    def _checkpoints(self, out: Path) -> Checkpoints:
        return Checkpoints(out / "checkpoints", str(RunFolder(out).description()["id"]))

    def damage(self, kind: str, data: bytes) -> tuple[str | None, bytes]:
        """A file name where it has to change, and bytes."""
        chance = self.chance
        step = int(self.files[0].name.split("-")[1])
        if kind == "cut short":
            return None, data[: chance.randrange(len(data))]
        if kind == "flipped bit":
            at = chance.randrange(len(data))
            return None, data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        if kind == "zeros":
            at, size = chance.randrange(len(data)), chance.choice((1, 64, 512, 4096))
            if not any(data[at : at + size]):
                return self.damage(kind, data)
            return None, data[:at] + bytes(len(data[at : at + size])) + data[at + size :]
        if kind == "of another run":
            other = chance.choice(self.others).read_bytes()
            return f"step-{step:08d}-{sha256(other)}.safetensors", other
        if kind == "of another step":
            return f"step-{step + chance.randint(1, 9):08d}-{sha256(data)}.safetensors", data
        state, about = unpack(data, "checkpoint")
        made = pack(state, **about | {"format": chance.choice((FORMAT[:-1] + "0", FORMAT[:-1] + "2", "", "torch"))})
        return f"step-{step:08d}-{sha256(made)}.safetensors", made

    KINDS = ("cut short", "flipped bit", "flipped bit", "zeros", "of another run", "of another step", "another format")

    def try_one(self, number: int, *, resume: bool) -> tuple[str, bool, bool]:
        """What was done, whether it was noticed, and whether safetensors alone would have noticed."""
        kind, newest = self.KINDS[number % len(self.KINDS)], self.files[0]
        name, data = self.damage(kind, newest.read_bytes())
        out = self.folder / "damaged"
        shutil.copytree(self.folder / "stopped", out)
        try:
            path = out / "checkpoints" / (name or newest.name)
            (out / "checkpoints" / newest.name).unlink()
            path.write_bytes(data)
            try:
                self._checkpoints(out).read(path)
                seen = False
            except IntegrityError:
                seen = True
            if resume:
                small.run(self.root, out, save_every=1)
                seen &= small.ending(out) == self.expected
            try:
                load_safetensors(data)
                stock = False
            except Exception:
                stock = True
            return kind, seen, stock
        finally:
            shutil.rmtree(out)

    def try_many(self, count: int) -> dict[str, Any]:
        seen, stock, unseen = Counter[str](), Counter[str](), []
        kinds = Counter(self.KINDS[n % len(self.KINDS)] for n in range(count))
        for number in range(count):
            kind, noticed, by_stock = self.try_one(number, resume=number % 10 == 0)
            seen[kind] += noticed
            stock[kind] += by_stock
            if not noticed:
                unseen.append(f"{number}: {kind}")
        return {
            "checkpoints damaged": count,
            "checkpoints detected": sum(seen.values()),
            "by kind": {kind: f"{seen[kind]} of {kinds[kind]}" for kind in sorted(kinds)},
            "flips that safetensors alone detects": f"{stock['flipped bit']} of {kinds['flipped bit']}",
        } | ({"not detected": unseen[:5]} if unseen else {})


class Bomb:
    """A pickle of it makes a file when it is opened."""

    def __init__(self, sentinel: Path):
        self.sentinel = sentinel

    def __reduce__(self) -> Any:
        return Path.touch, (self.sentinel,)


def open_pickles(folder: Path, root: Path) -> dict[str, Any]:
    """Pickles in place of a checkpoint, a model, a profile and weights, by names that fit: none may be opened."""
    opened = []
    for kind in ("checkpoint", "model", "profile", "weights"):
        place, sentinel = folder / kind, folder / f"{kind} was opened"
        place.mkdir(parents=True)
        made = io.BytesIO()
        torch.save({"state": Bomb(sentinel)}, made)
        if kind == "checkpoint":
            leave_unfinished(root, place / "run", 12)
            (place / "run" / "checkpoints" / f"step-00000099-{sha256(made.getvalue())}.safetensors").write_bytes(
                made.getvalue()
            )
            act: Callable[[], Any] = lambda place=place: small.run(root, place / "run", save_every=1)  # noqa: E731
        elif kind == "weights":
            (place / "file.pt").write_bytes(made.getvalue())
            settings = small.SMALL | {"weights": str(place / "file.pt")}
            act = lambda place=place, settings=settings: small.run(root, place / "run", settings)  # noqa: E731
        else:
            (place / "file.safetensors").write_bytes(made.getvalue())
            load: Callable[[Path], Any] = dspreg.load if kind == "model" else dspreg.Profile.load
            act = lambda place=place, load=load: load(place / "file.safetensors")  # noqa: E731
        with contextlib.suppress(DspregError):
            act()
        opened += [kind] if sentinel.exists() else []
    return {"pickles": 4, "pickles opened": len(opened)}


class Flips:
    """Single bits of any file of a run."""

    def __init__(self, folder: Path, root: Path, chance: random.Random):
        self.folder, self.root, self.chance = folder, root, chance
        self.finished = folder / "finished"
        small.run(root, self.finished, save_every=1)
        self.expected = small.ending(self.finished)
        self.unfinished = []
        for moment in MOMENTS:
            if leave_unfinished(root, folder / f"stopped-{moment}", moment):
                self.unfinished.append(folder / f"stopped-{moment}")
        self.uses = {name: use(self.finished) for name, use in USES.items()}

    def flip_one(self, *, finished: bool) -> tuple[str, str, str]:
        """Which file, what came of it, and details."""
        source = self.finished if finished else self.chance.choice(self.unfinished)
        out = self.folder / "flipped" / "run"  # a folder of the same name, whatever is shown of it
        shutil.copytree(source, out)
        try:
            files = [p for p in sorted(out.rglob("*")) if p.is_file() and p.stat().st_size]
            # by size half of the time, or nobody would ever hit the small ones
            sizes = [p.stat().st_size for p in files] if self.chance.random() < 0.5 else [1] * len(files)
            path = self.chance.choices(files, sizes)[0]
            where = flip(path, self.chance)
            name = path.relative_to(out).as_posix()
            verdict, why = self._use(out) if finished else self._resume(out)
            return name, verdict, f"{source.name}/{name}, {where}: {why}"
        finally:
            shutil.rmtree(out)

    def _use(self, out: Path) -> tuple[str, str]:
        found = HARMLESS, ""
        for name, use in USES.items():
            try:
                value = use(out)
            except DspregError as error:
                found = (DETECTED, str(error)) if found[0] != SILENT else found
            except Exception as error:
                return CRASHED, f"{name}: {type(error).__name__}: {error}"
            else:
                if value != self.uses[name]:
                    found = SILENT, name
        return found

    def _resume(self, out: Path) -> tuple[str, str]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", Notice)
            try:
                how = tiny.execution(profile="auto", keep="all", save_every=1)
                train(tiny.settings(self.root, **small.SMALL), how, out)
            except DspregError as error:
                return DETECTED, str(error)
            except Exception as error:
                return CRASHED, f"{type(error).__name__}: {error}"
        if small.ending(out) != self.expected:
            return SILENT, "another ending"
        notices = [str(w.message) for w in said if "damaged" in str(w.message) or "can't be" in str(w.message)]
        return (DETECTED, notices[0]) if notices else (HARMLESS, "")

    def flip_many(self, count: int) -> dict[str, Any]:
        found: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        by_file: Counter[str] = Counter()
        wrong = []
        for number in range(count):
            finished = number % 2 == 0
            name, verdict, details = self.flip_one(finished=finished)
            found[finished][verdict] += 1
            by_file[name.split("/")[0]] += 1
            if verdict in (SILENT, CRASHED):
                wrong.append(f"{verdict}: {details}")
        both = found[True] + found[False]
        return {
            "bits flipped": count,
            "of finished runs": dict(found[True]),
            "of unfinished runs": dict(found[False]),
            "by file": dict(sorted(by_file.items())),
            "silent": both[SILENT],
            CRASHED: both[CRASHED],
        } | ({"wrong": wrong[:10]} if wrong else {})


def verify(out: Path) -> Any:
    return RunFolder(out).result()


def read_contents(out: Path) -> Any:
    return RunFolder(out).contents()


def load_model(out: Path) -> Any:
    model, _ = dspreg.load(out)
    return {name: t.numpy().tobytes() for name, t in model.state_dict().items() if hasattr(t, "numpy")}


def read_profiles(out: Path) -> Any:
    return [
        {name: t.numpy().tobytes() for name, t in dspreg.Profile.load(path).c.items()}
        for path in sorted((out / "profiles").glob("*.safetensors"))
    ]


def report(out: Path) -> str:
    """What the command prints; its refusals as errors."""
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        code = command_line(["report", str(out), "--format", "json"])
    if code:
        raise IntegrityError(said.getvalue())
    return printed.getvalue().replace(str(out.parent), "")


USES: dict[str, Callable[[Path], Any]] = {
    "verify": verify, "contents": read_contents, "load": load_model, "profiles": read_profiles, "report": report,
}  # fmt: skip


def main(words: list[str] | None = None) -> int:
    part = Part("damage", __doc__)
    part.parser.add_argument("--checkpoints", type=int, default=100)
    part.parser.add_argument("--flips", type=int, default=100)
    options = part.parse(words)
    chance = random.Random(options.seed)
    figures: dict[str, Any] = {}
    with small.make_place() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(place)
        root = small.make_images(folder)
        (folder / "checkpoints").mkdir()
        figures |= DamagedCheckpoints(folder / "checkpoints", root, chance).try_many(options.checkpoints)
        figures |= open_pickles(folder / "pickles", root)
        (folder / "flips").mkdir()
        figures |= Flips(folder / "flips", root, chance).flip_many(options.flips)
    passed = figures["checkpoints detected"] == options.checkpoints
    return part.finish(
        figures, passed=passed and not any(figures[name] for name in (SILENT, CRASHED, "pickles opened"))
    )


if __name__ == "__main__":
    sys.exit(main())
