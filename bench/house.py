"""Measures of the code itself, of one tree or of several side by side.

    python bench/house.py
    git worktree add /tmp/before a116559 && python bench/house.py --tree /tmp/before --tree .

Everything is counted below `src/dspreg`. The patterns and the words that decide are printed, so that each count can be
repeated with grep. A training is traced with `sys.setprofile` in a process of its own that imports from that tree.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

IRREGULAR = re.compile(
    "begun|bound|broken|brought|built|caught|chosen|done|drawn|driven|fallen|felt|found|given|gone|grown|held|hidden|"
    "kept|known|left|lent|lost|made|meant|met|said|seen|sent|shown|sought|spent|stood|taken|taught|thought|thrown|told|"
    "won|worn|written"
)
REGULAR = re.compile("(?!(bed|embed|exceed|feed|indeed|need|proceed|red|seed|shed|speed|succeed)$).*ed")
PREDICATES = ("is", "has", "was", "are", "can", "should")  # `is_finished` asks, and does not hide a verb

PLACES = {
    "files that derive a run's status": (
        r'(Standing\(|return f?|state = f?)"(new|started|not started|running|stopped|unfinished|damaged|cancelled'
        r"|failed)|RunState\(RunStatus"
    ),
    "files that parse specs": r"ast\.parse\(",
    "files that read `folder:` from text": r'(kind|dataset).*partition\(":"\)|startswith\(\(?f?"(folder|\{kind\}):',
}

ALGORITHM = """
import json
from torch import nn
from dspreg import Algorithm
print(json.dumps(sorted(n for n in dir(Algorithm) if not n.startswith("_") and not hasattr(nn.Module, n))))
"""
TRACE = """
import json, sys, threading
source, *arguments = sys.argv[1:]
seen = set()

def trace(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(source) and code.co_flags & 1:  # no bodies of modules or classes
        if not code.co_name.startswith("<") or code.co_name == "<lambda>":
            seen.add((code.co_filename, code.co_qualname, code.co_firstlineno))

from dspreg.cli import main
threading.setprofile(trace)
sys.setprofile(trace)
try:
    code = main(arguments)
finally:
    sys.setprofile(None)
    threading.setprofile(None)
print(json.dumps([code, len(seen), len({file for file, _, _ in seen})]))
"""


def is_participle(name: str) -> bool:
    """Whether the last word of a name is a past participle, other than in a question such as `is_finished`."""
    words = name.split("_")
    last = words[-1]
    if len(words) > 1 and words[0] in PREDICATES:
        return False
    return any(each.fullmatch(last) for each in (IRREGULAR, REGULAR))


def public_functions(source: Path) -> Iterator[tuple[str, str]]:
    """Public functions and methods as (kind, file:name); kind is "property", "context manager" or "function"."""
    for path in sorted(source.rglob("*.py")):
        for name, node in _defined(ast.parse(path.read_text(encoding="utf-8"))):
            if not node.name.startswith("_"):
                marks = {ast.unparse(each).split("(")[0].split(".")[-1] for each in node.decorator_list}
                kind = "property" if marks & {"property", "cached_property", "setter"} else "function"
                kind = "context manager" if marks & {"contextmanager", "asynccontextmanager"} else kind
                yield kind, f"{path.relative_to(source).as_posix()}:{name}"


def _defined(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions of a module and methods of its classes, not those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _defined(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from _defined(node, prefix)


def run_python(tree: Path, program: str, *arguments: str) -> Any:
    """What a program prints last, as JSON, with `dspreg` of that tree."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "HOME": home, "OMP_NUM_THREADS": "1"}
        environment.pop("DSPREG_CACHE", None)
        command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=home)
    if ended.returncode:
        raise SystemExit(f"{tree}: {ended.stderr[-2000:]}")
    return json.loads(ended.stdout.splitlines()[-1])


def trace_training(tree: Path, algorithm: str) -> tuple[int, int]:
    """Functions and files of dspreg that three steps on a folder of forty images pass through."""
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        for domain in ("a", "b", "c", "d"):
            for label in ("x", "y"):
                place = Path(folder, "images", domain, label)
                place.mkdir(parents=True)
                for n in range(5):
                    Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(place / f"{n}.png")
        code, functions, files = run_python(
            tree, TRACE, str(tree / "src" / "dspreg"), "train", "--dataset", f"folder:{folder}/images", "--target", "d",
            "--algorithm", algorithm, "--model", "small-cnn", "--weights", "none", "--image-size", "16", "--steps", "3",
            "--batch-size", "4", "--workers", "0", "--threads", "1", "--out", f"{folder}/run",
        )  # fmt: skip
    if code:
        raise SystemExit(f"{tree}: the training ended with exit code {code}")
    return functions, files


def measures(tree: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The rows of a tree, and the names behind some of them."""
    source = tree / "src" / "dspreg"
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(source.rglob("*.py"))}
    lines = [len(text.splitlines()) for text in texts.values()]
    found = list(public_functions(source))
    functions = [name for kind, name in found if kind == "function"]
    participles = [name for name in functions if is_participle(name.split(":")[1].split(".")[-1])]
    managers = [
        name for kind, name in found if kind == "context manager" and is_participle(name.split(":")[1].split(".")[-1])
    ]
    algorithm = run_python(tree, ALGORITHM)
    rows = {
        "files": f"{len(lines):,}",
        "lines": f"{sum(lines):,}",
        "median lines of a file": f"{median(lines):.0f}",
        "public functions and methods": f"{len(functions):,}",
        "named by a participle": f"{len(participles)} ({100 * len(participles) / len(functions):.1f} %)",
        "context managers named by one": f"{len(managers)}",
        "public names of Algorithm": f"{len(algorithm)}",
    }
    for spec in ("ERM", "DSPReg"):
        rows[f"functions in files, train {spec}"] = "{} in {}".format(*trace_training(tree, spec))
    lists = {"participles": participles, "context managers": managers, "names of Algorithm": algorithm}
    for title, pattern in PLACES.items():
        hits = [path.relative_to(source).as_posix() for path, text in texts.items() if re.search(pattern, text)]
        rows[title] = str(len(hits))
        lists[title] = hits
    return rows, lists


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, action="append", help="a checkout (default: this one); repeat to compare")
    trees = parser.parse_args().tree or [Path(__file__).parents[1]]
    found = [measures(tree.resolve()) for tree in trees]
    width = max(map(len, found[0][0]))
    columns = [max(len(value) for value in rows.values()) for rows, _ in found]
    for name in found[0][0]:
        cells = (f"{rows[name]:>{size}}" for (rows, _), size in zip(found, columns, strict=True))
        print(f"{name:<{width}}  {' → '.join(cells)}")
    for n, (_, lists) in enumerate(found):
        for title, names in lists.items():
            print(f"\ntree {n + 1} of {len(found)}, {title} ({len(names)}):\n  " + "\n  ".join(names or ["none"]))
    print("\npatterns:")
    for title, pattern in PLACES.items():
        print(f"  {title}: {pattern}")


if __name__ == "__main__":
    main()
