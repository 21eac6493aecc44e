"""Every class of a checkout of DomainBed at the bottom of our stack: does it train, save, load and resume to the bit?

    python tests/slow/domainbed_classes.py PATH [CLASS …]
    python tests/slow/domainbed_classes.py PATH CLASS --kill 3

A few steps on the digits each; the resumed one is stopped in between. With --kill it is a process that is killed so
many times with SIGKILL, each time once it has got further. Ends with how many classes do all of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import dspreg
from dspreg.errors import DspregError, Preempted
from dspreg.io.domainbed_code import DomainBedCode
from dspreg.training import train
from helpers.killing import train_and_kill
from helpers.tiny import ending, stop_at


def try_class(path: str, name: str, folder: Path, kills: int = 0) -> str:
    """What it does, in a word, or why it does not."""
    how = {"dataset": "digits", "targets": ("print",), "algorithm": f"domainbed:{path}:{name}", "steps": 6}
    how |= {"batch_size": 4, "evaluate_every": 3, "evaluation_batch": 512}
    execution = dspreg.Execution(threads=1, workers=0, save_every=2, profile="never")
    try:
        train(how, execution, folder / "whole")
    except DspregError as error:
        return f"refused: {str(error)[:150]}"
    except Exception as error:
        return f"fails: {type(error).__name__}: {str(error)[:120]}"
    try:
        dspreg.load(folder / "whole", trust=(path,))
    except DspregError as error:
        return f"trains, and is not loaded: {str(error)[-120:]}"
    if kills:
        died = train_and_kill(how, execution, folder / "stopped", kills)
        same = ending(folder / "stopped") == ending(folder / "whole")
        return f"trains, loads, killed {died} times resumes " + ("to the bit" if same else "TO OTHER BITS")
    try:
        train(how, execution, folder / "stopped", pause=stop_at(9))
    except Preempted:
        pass
    else:
        return "trains; was not stopped"
    train(how, execution, folder / "stopped")
    same = ending(folder / "stopped") == ending(folder / "whole")
    return "trains, loads, resumes to the bit" if same else "trains and loads; RESUMES TO OTHER BITS"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="a checkout of DomainBed")
    parser.add_argument("classes", nargs="*", help="default: its list ALGORITHMS")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="kill each N times, and not stop it once")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = options.classes or DomainBedCode.open(options.path).module("algorithms").ALGORITHMS
    good = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            said = try_class(options.path, name, Path(folder), options.kill)
        good += said.endswith("to the bit")
        print(f"{name:16} {said}", flush=True)
    print(f"{good} of {len(names)} classes train, load and resume to the bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
