"""Every method on a second device: what works, by the table of docs/gpu.md.

    python tests/slow/second_device.py

The device is torch's `meta`, which has no numbers: tensors of two devices in one operation, hidden reads and copies
that are waited for are found, wrong numbers are not. Ends with exit code 1 if anything is found.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dspreg.errors import Notice
from helpers.second_device import SPECS, WORK, faults_of


def tried(work: str, spec: str) -> str:
    try:
        faults = faults_of(work, spec)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        faults = [str(error).partition("\n")[0]]
    return faults[0] if faults else "yes"


def main() -> int:
    warnings.simplefilter("ignore", Notice)
    rows = {spec.partition("(")[0]: [tried(work, spec) for work in WORK] for spec in SPECS}
    print(f"| method | {' | '.join(WORK)} |\n|---|{'---|' * len(WORK)}")
    for name, found in rows.items():
        print(f"| {name} | {' | '.join(found)} |")
    return int(any(each != "yes" for found in rows.values() for each in found))


if __name__ == "__main__":
    sys.exit(main())
