"""A clock that jumps moves no duration: the wall clock is asked for nowhere but where people want the time of day."""

import ast
from pathlib import Path

import dspreg

STAMPS = {"training/trackers/mlflow.py"}  # MLflow wants the time of day with every number
WALL = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today")}


def wall_clocks(text):
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = [
        (getattr(f.value, "id", getattr(f.value, "attr", "")), f.attr) for f in calls if isinstance(f, ast.Attribute)
    ]
    return [name for name in named if name in WALL]


def test_no_module_reads_the_wall_clock():
    source = Path(dspreg.__file__).parent
    found = {p.relative_to(source).as_posix(): wall_clocks(p.read_text()) for p in source.rglob("*.py")}
    assert len(found) > 100
    assert {path for path, names in found.items() if names} == STAMPS


def test_it_would_be_seen():
    assert wall_clocks("import time, datetime\na = time.time()\nb = datetime.datetime.now()") != []
