"""Runs `dspreg` for `bench/against_domainbed.py` and `bench/startup.py`; what stands after `--` is for it.

    python bench/peer/launch_dspreg.py [--network mnist-cnn --checkout DIR] [--start-up] -- train --dataset PACS …

`--network` puts another network in the place of `small-cnn`: DomainBed's own for digits, or `pooled`. `--start-up` ends
before the first batch is asked for.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from dspreg.cli import main as run_dspreg


def put_network(name: str, checkout: Path | None) -> None:
    from small_networks import make_featurizer
    from stand_ins import make_importable

    from dspreg.networks import pretrained

    if checkout is not None:
        make_importable(checkout)
    pretrained.SmallCNN = lambda **_: make_featurizer(name)  # dropout, which is 0


def end_at_first_step() -> None:
    from dspreg.training import loop

    def end(*_: Any, **__: Any) -> None:
        raise SystemExit(0)

    if not callable(getattr(loop, "step", None)):
        raise SystemExit("dspreg.training.loop has no function called step any more: say here what begins a step")
    loop.step = end


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network")
    parser.add_argument("--checkout", type=Path)
    parser.add_argument("--start-up", action="store_true")
    split = sys.argv.index("--")
    given, arguments = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    if given.network and given.network != "small-cnn":
        put_network(given.network, given.checkout)
    if given.start_up:
        end_at_first_step()
    return run_dspreg(arguments)


if __name__ == "__main__":
    sys.exit(main())
