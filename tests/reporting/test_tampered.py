"""Runs from strangers: sealed with the right digests, and with contents that training never writes.

The oracle is a store in which the same run is damaged the plain way, by a flipped byte: a tampered run has to be left
out of exactly the same tables.
"""

import json
import re
import shutil
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspreg.cli import main
from dspreg.cli.plan_text import plan_text
from dspreg.config.train_config import Execution
from dspreg.errors import Notice
from dspreg.protocol.leave_one_out import leave_one_out
from dspreg.protocol.selection import RULES
from dspreg.reporting.report import report, report_page
from dspreg.runs.store import RunStore
from helpers.runs import DOMAINS, single, write_run
from helpers.tampered import MISSING, Files

PLAN = list(leave_one_out({"trees": DOMAINS}, ["ERM", "IRM"], trials=1, draws=1, only="training"))
BAD = PLAN[-1]  # IRM, cedar held out
NAN, INF, HUGE, LONG = float("nan"), float("inf"), 10**400, "x" * 1_000_000

COUNTS = [None, True, "1", [1], {}, -1, 0.5, 1e308, HUGE, -HUGE, MISSING]
SHARES = [None, True, "0.9", [0.9], {}, -5, -0.001, 1.001, 1e308, HUGE, MISSING]
NUMBERS = [None, True, "1", [1], {}, HUGE, -HUGE]
TEXTS = [True, 5, 0.5, [], ["x"], {}, LONG]
OBJECTS = [None, True, 0, "x", [], [{}], MISSING]
NAMES = [None, True, 3, "ash", {}, [], [None], [["ash"]], [True], ["ash", "ash"], [LONG], MISSING]

TABLE = {
    ("run", "settings"): OBJECTS,
    ("run", "settings", "steps"): [*COUNTS, 0],
    ("run", "settings", "trial"): COUNTS,
    ("run", "settings", "draw"): COUNTS,
    ("run", "settings", "batch_size"): [*COUNTS, 0],
    ("run", "settings", "lr"): [None, True, "1", [], {}, -1.0, 0, HUGE, MISSING],
    ("run", "settings", "weight_decay"): [None, True, "1", [], {}, -1.0, HUGE, MISSING],
    ("run", "settings", "dropout"): [None, True, "1", [], {}, -1.0, 1.0, HUGE, MISSING],
    ("run", "settings", "holdout"): [None, True, "1", [], {}, -1.0, 1, HUGE, MISSING],
    ("run", "settings", "algorithm"): [*TEXTS, None, MISSING],
    ("run", "settings", "dataset"): [*TEXTS, None, MISSING],
    ("run", "settings", "protocol"): [*TEXTS, None, MISSING, "mine"],
    ("run", "settings", "augment"): [None, 0, 1, "true", [], {}, MISSING],
    ("run", "settings", "targets"): [*NAMES, ["nobody's"], [*DOMAINS]],
    ("run", "settings", "of a newer version"): [[], {}, HUGE, LONG],
    ("run", "data"): OBJECTS,
    ("run", "data", "domains"): [*NAMES, ["ash", "birch"], [*DOMAINS, "elm"]],
    ("run", "data", "classes"): NAMES,
    ("run", "data", "sizes"): OBJECTS,
    ("run", "data", "sizes", "ash"): OBJECTS,
    ("run", "data", "sizes", "ash", "in"): [*COUNTS, 0],
    ("run", "data", "fingerprints"): OBJECTS,
    ("run", "data", "fingerprints", "cedar"): [*TEXTS, None, MISSING],
    ("run", "weights"): OBJECTS,
    ("run", "weights", "sha256"): TEXTS,
    ("run", "weights", "tag"): TEXTS,
    ("run", "environment"): OBJECTS,
    ("run", "environment", "threads"): [[], {}, HUGE, LONG],
    ("run", "environment", "torch"): [[], {}, HUGE, LONG],
    ("run", "where"): [None, True, 0, "x", [], [{}], {}],
    ("run", "where", "algorithm"): [None, *TEXTS],
    ("run", "where", "plan"): [None, True, 0, "x", [], {}, {"dataset": 3}, MISSING],
    ("records", 0): [None, True, 0, "x", [], {}],
    ("records", 1, "step"): [*COUNTS, 0, 301],  # 0: twice; 301: after the last
    ("records", 0, "step"): [100, 200],  # the same again, and out of order
    ("records", 0, "validation"): SHARES,
    ("records", 1, "accuracy"): OBJECTS,
    ("records", 1, "accuracy", "cedar"): [*OBJECTS, {}, {"out": 0.5}],
    ("records", 1, "accuracy", "cedar", "in"): SHARES,
    ("records", 0, "accuracy", "ash", "out"): SHARES,
    ("records", 0, "accuracy", "nobody's"): [{"in": 0.5}],
    ("records", 0, "accuracy", "ash", "more"): [1e308, "x"],
    ("records", 0, "log"): OBJECTS,
    ("records", 0, "log", "loss"): NUMBERS,
    ("records", 0, "seconds"): [*OBJECTS, {}],
    ("records", 0, "seconds", "step_seconds"): [*NUMBERS, MISSING],
    ("records",): [[]],
    ("result", "format"): [None, True, 1, "dspreg.result/0", MISSING],
    ("result", "run"): [None, 0, "0" * 64, [], MISSING],
    ("result", "targets"): [None, "cedar", [], ["ash"], ["nobody's"], {"cedar": 1}, MISSING],
    ("result", "environments"): [None, 0, "x", {}, [None], [["x"]], [{"torch": []}], [{"threads": HUGE}], MISSING],
    ("result", "refreshes"): COUNTS,
    ("result", "selected"): [*OBJECTS, {}],
    ("result", "selected", "step"): [*COUNTS, 50, 0.0, False],
    ("result", "selected", "validation"): [None, "0.0", 0.1, [], MISSING],
    ("result", "selected", "accuracy"): [None, {}, {"cedar": {"in": 0.99}}, MISSING],
    ("result", "last"): [*OBJECTS, {}],
    ("result", "last", "step"): [0, 50, None, MISSING],
    ("result", "last", "accuracy"): [{"cedar": {"in": 0.99}}],
    ("result", "files"): [None, 0, "x", [], MISSING],
}  # fmt: skip
CASES = [(field, value) for field, values in TABLE.items() for value in values]
EVERY = [(*field, n) for n, field in enumerate(CASES)]


def brief(value):
    return "missing" if value is MISSING else repr(value)[:20]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A store in which all is as training leaves it."""
    store = RunStore(tmp_path_factory.mktemp("sound") / "store")
    store.make()
    store.plan(PLAN)
    for run in PLAN:
        (target,) = run.targets
        records = [single(0, target, 0.5, 0.5), single(100, target, 0.625, 0.75)]
        given = {"targets": run.targets, "algorithm": run.algorithm, "plan": run.to_json()}
        write_run(store.folder(run).path, records, **given)
    return store.path


@pytest.fixture(scope="module")
def expected(sound, tmp_path_factory):
    """The tables where the same run has a flipped byte."""
    path = shutil.copytree(sound, tmp_path_factory.mktemp("flipped") / "store")
    records = path / "runs" / BAD.id / "records.jsonl"
    records.write_bytes(records.read_bytes().replace(b"0.625", b"0.626"))
    with pytest.warns(Notice, match="left out"):
        return numbers(report(path))


@pytest.fixture
def store(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "store")


def bad(store):
    return store / "runs" / BAD.id


def numbers(found):
    """All but the words on what is wrong."""
    tables = found.to_json()["tables"]
    for table in tables:
        table["notes"] = [note for note in table["notes"] if not note.startswith("left out")]
        for row in table["rows"]:
            for cell in row["cells"].values():
                cell["reason"] = bool(cell.get("reason"))
    return tables


def rows_of(text, label):
    return [line for line in text.splitlines() if line.startswith(label)]


def tamper(store, field, value):
    files = Files(bad(store))
    files.put(field, value)
    files.seal(same_run=field[:2] != ("result", "run"))


def leaves_out(store, expected, file, *names):
    """The run is named with the file and what is wrong in it, and everything else is as it was."""
    with pytest.warns(Notice, match="left out"):
        found = report(store)
    assert numbers(found) == expected
    assert len(found.damaged) == 1
    (said,) = found.damaged
    assert f"{bad(store)}/{file}" in said
    assert all(str(name) in said for name in names), said
    assert len(said) < 1_000
    return found


def test_there_are_enough_of_them():
    assert len(CASES) >= 300


@pytest.mark.parametrize("field", list(TABLE), ids=lambda field: ".".join(map(str, field)))
def test_a_tampered_run_is_named_and_left_out(sound, expected, tmp_path, field):
    for n, value in enumerate(TABLE[field]):
        store = shutil.copytree(sound, tmp_path / str(n))
        tamper(store, field, value)
        file = {"run": "run.json", "records": "records.jsonl", "result": "result.json"}[field[0]]
        with pytest.warns(Notice, match="left out"):
            found = report(store)
        assert numbers(found) == expected, brief(value)
        (said,) = found.damaged
        assert str(bad(store)) in said, brief(value)
        assert len(said) < 1_000, brief(value)
        if (
            field not in (("records",), ("result", "files")) and value != []
        ):  # where nothing is listed, the next file is what does not fit
            assert file in said, brief(value)
            assert str(field[-1]) in said or field[0] == "records", brief(value)


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("records.jsonl", '"validation":0.0', '"validation":NaN'),
        ("records.jsonl", '"in":0.5', '"in":Infinity'),
        ("records.jsonl", '"in":0.5', '"in":NaN'),
        ("records.jsonl", '"in":0.5', '"in":1e999'),
        ("records.jsonl", '"loss":1.5', '"loss":NaN'),
        ("records.jsonl", '"loss":1.5', '"loss":' + "9" * 5_000),
        ("records.jsonl", '"loss":1.5', '"loss":' + "[" * 800 + "]" * 800),
        ("records.jsonl", '"loss":1.5', '"loss":' + "[" * 100_000 + "]" * 100_000),
        ("records.jsonl", '"in":0.5', '"in":"\\ud800"'),
        ("run.json", '"lr":0.001', '"lr":NaN'),
        ("run.json", '"torch":"2.10.0"', '"torch":"\\ud800"'),
        *(
            ("run.json", '"where":{', '"where":{"deep":' + "[" * depth + "]" * depth + ",")
            for depth in (5_000, 100_000)
        ),
        ("result.json", '"refreshes":0', '"refreshes":NaN'),
        *(
            ("result.json", '"refreshes":0', '"refreshes":' + "[" * depth + "]" * depth)
            for depth in (900, 990, 5_000, 100_000)
        ),
    ],
    ids=lambda each: each[:30],
)
def test_what_no_json_of_ours_holds(store, expected, file, before, after):
    Files(bad(store)).seal(raw=lambda name, text: text.replace(before, after, 1) if name == file else text)
    leaves_out(store, expected, file)


@pytest.mark.parametrize("depth", [10, 400, 900, 990])
def test_depth_where_nothing_reads_it(store, depth):
    deep = '"where":{"deep":' + "[" * depth + "]" * depth + ","
    Files(bad(store)).seal(raw=lambda name, text: text.replace('"where":{', deep, 1) if name == "run.json" else text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # how deep Python reads depends on who calls
        assert "62.5" in rows_of(str(report(store)), "ERM")[0]


def test_many_records_are_refused_as_soon_as_one_is_wrong(store, expected):
    files = Files(bad(store))
    line = (bad(store) / "records.jsonl").read_text().splitlines()[0] + "\n"
    files.seal(raw=lambda name, text: line * 100_000 if name == "records.jsonl" else text)
    leaves_out(store, expected, "records.jsonl", "line 2", "step")


def test_settings_of_another_run_than_was_planned(store, expected):
    """Run.json and records agree with each other, and not with the folder they lie in."""
    for name, value in (("trial", 7), ("draw", 3), ("protocol", "swad")):
        shutil.copytree(store, store.parent / name)
        tamper(store.parent / name, ("run", "settings", name), value)
        leaves_out(store.parent / name, expected, "run.json", name)


def test_several_bad_ones_are_all_named(store):
    for n, run in enumerate(PLAN[1:]):
        files = Files(store / "runs" / run.id)
        files.put(("records", 0, "validation"), float(n + 2))
        files.seal()
    with pytest.warns(Notice):
        found = report(store)
    assert len(found.damaged) == len(PLAN) - 1
    assert "62.5" in rows_of(str(found), "ERM")[0]


# Every way to look at it.


WORST = [
    (("records", 0, "log", "loss"), HUGE),
    (("records", 1, "accuracy", "cedar", "in"), 1e308),
    (("run", "settings", "steps"), "many"),
    (("run", "data", "domains"), {}),
    (("run", "where", "algorithm"), ["ERM"]),
    (("result", "environments"), 3),
]


@pytest.mark.parametrize(("field", "value"), WORST, ids=lambda each: str(each)[:40])
def test_every_format_and_selection_has_the_good_runs(capsys, sound, store, field, value):
    tamper(store, field, value)
    for more in (["--format", f] for f in ("text", "markdown", "latex", "csv", "json", "html")):
        assert main(["report", str(store), *more]) == 0
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert "left out: " in err
        assert "62.5" in out
    for rule in ("leave-one-out", "oracle", "late"):
        assert main(["report", str(store), "--selection", rule]) == 0
        assert "Traceback" not in capsys.readouterr().err
    assert main(["status", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all"]["runs"] == len(PLAN)
    assert main(["status", str(store), "--once"]) == 0
    capsys.readouterr()
    assert main(["report", str(store), "--write-domainbed", str(store.parent / "out")]) == 4
    out, err = capsys.readouterr()
    assert str(bad(store)) in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("field", "value"), [*WORST, (("records", 0, "seconds"), {})], ids=lambda each: str(each)[:40])
def test_what_a_sweep_would_do_counts_it_as_no_finished_one(store, field, value):
    tamper(store, field, value)
    with warnings.catch_warnings(record=True, action="always") as said:
        text = plan_text(PLAN, RunStore(store), Execution())
    (row,) = [re.split(" {2,}", line) for line in text.splitlines() if "IRM" in line]
    assert row[2:4] == ["3", "2"]
    assert [str(each.message) for each in said if str(bad(store)) in str(each.message)]


def test_the_page_lists_it(store):
    tamper(store, ("records", 0, "validation"), 2)
    with pytest.warns(Notice):
        page = report_page(store)
    assert "5 are finished and count" in page
    assert "records.jsonl: line 1: validation is 2; wanted a number from 0 to 1" in re.sub(r"&#\d+;", "'", page)
    assert str(store.parent) not in page


# Anything anywhere.

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([HUGE, -HUGE]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def paths(value, way=()):
    """Of every value in it."""
    yield way
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inside:
        yield from paths(each, (*way, name))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_is_put_anywhere_the_good_runs_are_reported(sound, tmp_path_factory, data):
    store = shutil.copytree(sound, tmp_path_factory.mktemp("any") / "store")
    files = Files(bad(store))
    for _ in range(data.draw(st.integers(1, 3))):
        ways = [("run", *w) for w in paths(files.run) if w] + [("result", *w) for w in paths(files.result) if w]
        ways += [("records", *w) for w in paths(files.records) if w]
        files.put(data.draw(st.sampled_from(ways)), data.draw(json_values))
    try:
        files.seal()
    except (UnicodeEncodeError, TypeError):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        found, *_ = [report(store, selection=rule) for rule in RULES]
        page = report_page(store)
    assert "62.5" in page
    text = str(found)
    row, _ = [each for each in rows_of(text, "ERM") if "62.5" in each]
    assert row.count("62.5") >= 4, text
    shutil.rmtree(store.parent)
