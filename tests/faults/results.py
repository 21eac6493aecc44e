"""What a script of this folder leaves: one JSON line with its figures, and the command that gave them."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "evidence" / "reliability" / "figures.jsonl"  # of the last full run, as it lies in the repository

Emit = Callable[[Any], None]


class Part:
    """One script's run, from the parsing of its options to the line it leaves.

    Args:
        name: Of the script.
        description: Its docstring.
    """

    def __init__(self, name: str, description: str | None):
        self.name = name
        self.parser = argparse.ArgumentParser(
            prog=f"python tests/faults/{name}.py",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
        self.parser.add_argument("--results", type=Path, help="append the figures to this file, as one JSON line")
        self.started = time.monotonic()

    def parse(self, words: list[str] | None = None) -> argparse.Namespace:
        given = self.words = sys.argv[1:] if words is None else words
        self.options = self.parser.parse_args(given)
        return self.options

    def finish(self, figures: dict[str, Any], *, passed: bool) -> int:
        """Print and keep the figures; the exit code."""
        line = {
            "part": self.name,
            "command": command(self.name, self.words),
            "seed": self.options.seed,
            "revision": revision(),
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
            "seconds": round(time.monotonic() - self.started, 1),
            "cores": os.cpu_count(),
            "passed": passed,
            "figures": figures,
        }
        if self.options.results:
            self.options.results.parent.mkdir(parents=True, exist_ok=True)
            with self.options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n")
        for name, value in figures.items():
            print(f"{name:>32}  {value}")
        print(f"{self.name}: {'passed' if passed else 'FAILED'} after {line['seconds']} s", flush=True)
        return 0 if passed else 1


def command(name: str, words: list[str]) -> str:
    """As somebody would type it, without where its figures go."""
    kept = list(words)
    if "--results" in kept:
        at = kept.index("--results")
        del kept[at : at + 2]
    return " ".join(["python", f"tests/faults/{name}.py", *kept])


def revision() -> str:
    """Of the tree, with a mark where it was changed since."""
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10"], cwd=ROOT, capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    return said.stdout.strip() or "unknown"


def read_results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def spread(processes: int, work: Callable[[int, Emit], None]) -> Iterator[Any]:
    """What several forked processes say, as they say it.

    Args:
        processes: How many.
        work: Called with the number of the process and a function that takes what it has to say, as JSON.

    Raises:
        RuntimeError: One of them ended otherwise than by returning.
    """
    ways = selectors.DefaultSelector()
    children = {}
    for number in range(processes):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(reading)
                with os.fdopen(writing, "w", buffering=1) as way:
                    work(number, lambda value, way=way: print(json.dumps(value), file=way, flush=True))
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(code)
        os.close(writing)
        children[reading] = child
        ways.register(reading, selectors.EVENT_READ, bytearray())
    failed = []
    while children:
        for key, _ in ways.select():
            said = os.read(key.fd, 65536)
            key.data.extend(said)
            while b"\n" in key.data:
                line, _, rest = bytes(key.data).partition(b"\n")
                key.data[:] = rest
                yield json.loads(line)
            if not said:
                ways.unregister(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(children.pop(key.fd), 0)
                if status:
                    failed.append(status)
    if failed:
        raise RuntimeError(f"{len(failed)} of {processes} processes ended early")
