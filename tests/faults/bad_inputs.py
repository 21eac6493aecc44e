"""A hundred bad inputs, one command each: what is answered, and is it an answer?

    python tests/faults/bad_inputs.py

Each command runs in a process of its own, forked from one that has torch loaded, beside a data set, a run and a store
that are good. Answered well is: the exit code that the row expects, a message that names what came or what is wanted in
the words that the row expects, no traceback, no more than some seconds, and no file written anywhere.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dspreg.cli import main as command_line
from faults.results import Part
from helpers.small_runs import photos, trained

WATCHDOG = 30.0  # seconds
TRAIN = "train --dataset folder:photos --target dawn --out new --model small-cnn --weights none --steps 2 "
DIGITS = "sweep --dataset digits --algorithms ERM --dry-run "

# What is typed, the exit code, and words of the answer.
ROWS: list[tuple[str, int, tuple[str, ...]]] = [
    # train
    ("train", 2, ("no data set is given", "--dataset digits")),
    ("train --dataset ''", 2, ("no data set is given",)),
    ("train --dataset folder: --target dawn --out new", 2, ("names no folder", "folder:PATH")),
    ("train --dataset folder:fotos --target dawn --out new", 3, ("fotos does not exist", "domain/class/image")),
    (
        "train --dataset folder:letter.txt --target dawn --out new",
        3,
        ("letter.txt is not a folder", "domain/class/image"),
    ),
    ("train --dataset folder:empty --target dawn --out new", 3, ("empty has no sub-folders", "domain/class/image")),
    ("train --dataset index:photos --target dawn --out new", 3, ("photos can't be read", "CSV file")),
    ("train --dataset index:letter.txt --target dawn --out new", 3, ("letter.txt", "line 1")),
    ("train --dataset Digits --target print --out new", 2, ("'Digits'", "Did you mean 'digits'")),
    ("train --dataset photos --target dawn --out new", 2, ("'photos'", "folder:photos")),
    ("train --dataset PACS --root nowhere --target sketch --out new", 3, ("no folder nowhere/PACS",)),
    ("train --dataset digits --name mine --target print --out new", 2, ("'digits'", "has its own")),
    (TRAIN + "--target dawn,dawn", 2, ("dawn, dawn", "twice")),
    (TRAIN + "--target dawn noon dusk", 2, ("dawn, dusk, noon", "leave some to train on")),
    (TRAIN + "--target moon", 2, ("'moon'", "Did you mean 'noon'")),
    (TRAIN + "--algorithm ''", 2, ("spec ''", "A(option=value)")),
    (TRAIN + "--algorithm ERM+ERM", 2, ("ERM is the bottom of every stack",)),
    (TRAIN + "--algorithm \"CORAL(weight='x')\"", 2, ("CORAL: weight='x'", "wanted a number")),
    (TRAIN + "--algorithm 'CORAL(weight=nan)'", 2, ("weight=nan is not a number",)),
    (TRAIN + "--algorithm 'CORAL(wait=1)'", 2, ("no option 'wait'", "It has: weight")),
    (TRAIN + "--algorithm 'CORAL(1)'", 2, ("CORAL(1)", "by name")),
    (TRAIN + "--algorithm os.getcwd", 2, ("'os.getcwd' is not a subclass of",)),
    (TRAIN + "--algorithm \"DSPReg(engine='exakt')\"", 2, ("exakt", "lookahead")),
    (TRAIN + "--algorithm 'DSPReg(weight=1e999)'", 2, ("weight=inf", "wanted a number")),
    (TRAIN + "--steps 1e-3", 2, ("steps='1e-3'", "wanted a whole number at least 1")),
    (TRAIN + "--lr 1,5", 2, ("lr='1,5'", "wanted a number above 0")),
    (TRAIN + "--lr nan", 2, ("lr='nan'", "wanted a number above 0")),
    (TRAIN + "--batch-size 0x10", 2, ("batch_size='0x10'", "wanted a whole number")),
    (TRAIN + "--holdout 20%", 2, ("holdout='20%'", "at least 0 and below 1")),
    (TRAIN + "--dropout 1", 2, ("dropout=1.0", "below 1")),
    (TRAIN + "--save-every never", 2, ("save_every='never'", "wanted a whole number")),
    (TRAIN + "--frozen-bn maybe", 2, ("frozen_bn='maybe'", "true or false")),
    (TRAIN + "--set lr", 2, ("--set 'lr'", "key=value")),
    (TRAIN + "--set =3", 2, ("--set '=3'", "key=value")),
    (TRAIN + "--model resnet5O", 2, ("resnet5O", "Similar names: resnet50")),
    (TRAIN + "--weights gone.safetensors", 2, ("no file gone.safetensors", "safetensors file")),
    (TRAIN + "--weights letter.txt", 4, ("letter.txt", "not a safetensors file")),
    (TRAIN + "--device tpu", 2, ("tpu", "cuda")),
    (TRAIN + "--precision fp8", 2, ("precision='fp8'", "fp32, tf32, bf16, fp16")),
    (TRAIN + "--protocol wilds", 2, ("protocol='wilds'", "domainbed")),
    (TRAIN + "--out letter.txt", 2, ("letter.txt is a file", "folder")),
    (TRAIN + "--out photos", 2, ("inside the data set photos", "outside")),
    (TRAIN + "--out run", 2, ("run holds another training",)),
    (TRAIN + "--config gone.yaml", 2, ("gone.yaml", "can't be read")),
    (TRAIN + "--config photos/dawn/cat/0.png", 2, ("0.png", "can't be read")),
    (TRAIN + "--config list.yaml", 2, ("list.yaml, line 1", "key: value")),
    (TRAIN + "--learning_rate 3", 2, ("--learning_rate", "Did you mean --lr?")),
    (TRAIN + "--lambda 3", 2, ("--lambda", "DSPReg(weight=0.1)")),
    # sweep
    ("sweep", 2, ("a sweep needs datasets", "[PACS]")),
    (DIGITS + "--targets moon", 2, ("target 'moon'", "Known: handwritten")),
    (DIGITS + "--trials 2.5", 2, ("trials='2.5'", "wanted a whole number")),
    (DIGITS + "--draws 1e9", 2, ("draws='1e9'", "at most 1,000,000")),
    (DIGITS + "--only all", 2, ("only='all'", "wanted training")),
    (DIGITS + "--on slurm", 2, ("slurm", "local, ray")),
    (DIGITS + "--max-runs 0", 2, ("--max-runs '0'", "at least 1")),
    (DIGITS + "--set trial=1", 2, ("trial", "write trials: at the top")),
    (DIGITS + "--name mine", 2, ("name='mine'", "there are 0")),
    (DIGITS + "--store letter.txt", 2, ("letter.txt is a file",)),
    ("sweep sweep.json", 2, ("sweep.json is no sweep", "FILE.yaml")),
    ("sweep list.yaml --dry-run", 2, ("list.yaml, line 1",)),
    ("sweep raising.py --dry-run", 2, ("raising.py", "ZeroDivisionError")),
    ("sweep none.py --dry-run", 2, ("none.py", "'runs'")),
    ("sweep numbers.py --dry-run", 2, ("returned 1", "leave_one_out")),
    ("sweep endless.py --dry-run", 2, ("more than 10,000 runs", "--max-runs")),
    ("sweep number.py --dry-run", 2, ("number.py", "returned 3; wanted runs")),
    ("sweep --dataset folder:photos --algorithms ERM --store photos", 2, ("photos is not empty and no store",)),
    ("sweep --dataset digits --algorithms ERM --store new --ray-address here:1", 2, ("here:1", "--on ray")),
    ("sweep --dataset digits --algorithms ERM --store new --on ray --ray-address here", 2, ("here", "HOST:PORT")),
    (
        "sweep --dataset digits --algorithms ERM --store new --on ray --ray-address 127.0.0.1:1",
        6,
        ("127.0.0.1:1", "no Ray cluster answers"),
    ),
    ("sweep --dataset digits --algorithms ERM --store new --only training --jobs two", 2, ("--jobs 'two'", "at least")),
    # status, retry, cancel
    ("status nowhere", 2, ("nowhere", "--store of a sweep")),
    ("status letter.txt", 2, ("letter.txt", "store.json")),
    ("status torn.tar.xz", 4, ("torn.tar.xz is damaged",)),
    ("status store --attempts 0", 2, ("'0'", "at least 1")),
    ("cancel store", 2, ("which runs?", "--all")),
    ("cancel store zzzz", 2, ("'zzzz'", "dspreg status store")),
    ("cancel photos --all", 2, ("photos", "store")),
    ("retry store zzzz", 2, ("'zzzz'", "dspreg status store")),
    ("retry run", 2, ("run", "store")),
    # report
    ("report", 2, ("dspreg report runs",)),
    ("report nowhere", 2, ("nowhere is no folder",)),
    ("report store --format docx", 2, ("docx", "latex")),
    ("report store --selection best", 2, ("best", "training")),
    ("report store --contrast DSPReg ERM", 2, ("DSPReg", "There are: ERM")),
    ("report store --out nowhere/table.tex", 2, ("nowhere", "make it first")),
    ("report store --data-dir x", 2, ("--data-dir", "--write-domainbed")),
    # measure, evaluate, predict, export
    ("measure", 2, ("--model", "--compare")),
    ("measure --model small-cnn --weights none --dataset digits --std 0 0 0", 2, ("--std", "above 0")),
    ("measure --model small-cnn --weights none --dataset digits --mean nan 0 0", 2, ("nan", "wanted")),
    (
        "measure --model small-cnn --weights none --dataset folder:photos --domain dawn",
        2,
        ("two or more are wanted; chosen: dawn",),
    ),
    ("measure --compare letter.txt letter.txt", 4, ("letter.txt is damaged or not a profile",)),
    ("evaluate nowhere", 2, ("nowhere holds no run", "--out folder of a training")),
    ("evaluate run --which 99", 2, ("kept no model '99'", "selected, last")),
    ("evaluate run --domain moon", 2, ("'moon'", "noon")),
    ("predict run gone.png", 3, ("'gone.png' does not exist", "image files")),
    ("predict run letter.txt", 3, ("letter.txt", "1 of 1 images can't be used")),
    ("export run --format safetensors --normalise", 2, ("safetensors", "normalise")),
    # data, algorithms, paper
    ("data verify letter.txt", 3, ("letter.txt, line 1", "path,label,domain")),
    ("algorithms CORAL+", 2, ("'CORAL+' is not the name", "Did you mean 'CORAL'")),
    ("paper tabel1", 2, ("tabel1", "There are: main")),
]
SOME = slice(None, None, 4)  # of them in `make test`


@dataclass(frozen=True)
class Answer:
    typed: str
    code: int | None  # None: none came in time
    stderr: str
    written: tuple[str, ...]

    @property
    def line(self) -> str:
        """The message: the first line that is ours."""
        lines = [line for line in self.stderr.splitlines() if line.startswith("dspreg")]
        return lines[0] if lines else self.stderr.partition("\n")[0]

    def verdict(self, code: int, words: Sequence[str]) -> str:
        """well; weak: the right exit code and not the words; bad."""
        if self.code != code or "Traceback" in self.stderr or "this is a bug" in self.stderr or self.written:
            return "bad"
        return "well" if all(word in self.stderr for word in words) else "weak"


def furnish(place: Path) -> None:
    """A folder with a data set, a run, a store, and files that are none of those."""
    photos(place / "photos")
    trained(place / "photos", place / "run")
    (place / "empty").mkdir()
    (place / "letter.txt").write_text("dear reader,\nthis is a letter\n", encoding="utf-8")
    (place / "list.yaml").write_text("- lr\n- steps\n", encoding="utf-8")
    (place / "sweep.json").write_text("{}", encoding="utf-8")
    (place / "torn.tar.xz").write_bytes(b"\xfd7zXZ\0" + bytes(range(100)))
    (place / "raising.py").write_text("def runs():\n    return 1 / 0\n", encoding="utf-8")
    (place / "none.py").write_text("def ruins():\n    pass\n", encoding="utf-8")
    (place / "numbers.py").write_text("def runs():\n    return [1, 2]\n", encoding="utf-8")
    (place / "number.py").write_text("def runs():\n    return 3\n", encoding="utf-8")
    endless = "from dspreg import Run\n\ndef runs():\n    n = 0\n    while True:\n        n += 1\n        yield "
    endless += "Run(dataset='digits', targets=('print',), algorithm='ERM', trial=n)\n"
    (place / "endless.py").write_text(endless, encoding="utf-8")
    small = "--set model=small-cnn --set weights=none --set image_size=28 --set steps=2 --set batch_size=4 --jobs 0 "
    sweep = (
        f"sweep --dataset folder:{place}/photos --algorithms ERM --targets dawn --trials 1 --draws 1 --only training "
    )
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        code = command_line(shlex.split(f"{sweep} {small} --threads 1 --workers 0 --store {place}/store"))
    assert code in (0, 6), code  # 6: there is no stdout


def files_in(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if "__pycache__" not in path.parts}


def answer(typed: str, place: Path) -> Answer:
    """What a process of its own comes to."""
    before = files_in(place)
    with tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if child == 0:
            _answer(typed, place, stderr.fileno())
        code = _wait(child)
        stderr.seek(0)
        said = stderr.read().decode(errors="replace")
    return Answer(typed, code, said, tuple(sorted(files_in(place) - before)))


def _answer(typed: str, place: Path, stderr: int) -> None:
    code = 1
    try:
        os.chdir(place)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(stderr, 2)
        sys.stdout, sys.stderr = (os.fdopen(os.dup(n), "w", encoding="utf-8") for n in (1, 2))
        code = command_line(shlex.split(typed))
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int) -> int | None:
    until = time.monotonic() + WATCHDOG
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def main() -> int:
    part = Part("bad_inputs", __doc__)
    part.parser.add_argument("--only", help="rows that have this text in them")
    options = part.parse()
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        furnish(place)
        for typed, code, words in ROWS:
            if options.only and options.only not in typed:
                continue
            found = answer(typed, place)
            verdict = found.verdict(code, words)
            verdicts[verdict] += 1
            print(f"{verdict:5} {found.code!s:>4}  dspreg {typed}\n            {found.line[:160]}", flush=True)
            if verdict != "well":
                print(f"            wanted {code} and {words}; written: {found.written}\n{found.stderr[-1500:]}")
    total = sum(verdicts.values())
    print(f"{verdicts['well']} of {total} answered well")
    return part.finish({"inputs": total, **verdicts}, passed=verdicts["well"] == total)


if __name__ == "__main__":
    sys.exit(main())
