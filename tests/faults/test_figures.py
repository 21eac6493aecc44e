"""The table of figures says what was measured, and what was not."""

import json

from faults import figures
from faults.results import RECORD, ROOT, Part, command, read_results


def test_a_part_leaves_one_line_and_the_table_shows_it(tmp_path, capsys):
    record = tmp_path / "figures.jsonl"
    for caught in (11, 12):
        part = Part("mutants", "")
        part.parse(["--results", str(record), "--seed", "3"])
        assert part.finish({"mutants": 12, "mutants caught": caught}, passed=caught == 12) == int(caught != 12)
    lines = read_results(record)
    assert [line["passed"] for line in lines] == [False, True]
    assert lines[1]["command"] == "python tests/faults/mutants.py --seed 3"
    assert figures.main(["--results", str(record)]) == 0
    text = capsys.readouterr().out
    assert "12 of 12 faulty versions caught" in text
    assert text.count("not run") == len(figures.PROMISES) - 1
    figures.main(["--results", str(record), "--markdown"])
    assert "| `python tests/faults/mutants.py --seed 3` |" in capsys.readouterr().out


def test_a_failure_is_shown_as_one(tmp_path, capsys):
    record = tmp_path / "figures.jsonl"
    line = {"part": "kill", "command": "c", "date": "d", "revision": "r", "seconds": 1.0, "passed": False}
    record.write_text(json.dumps(line | {"figures": {"runs": 3, "kills": 9, "bit-identical": 2}}) + "\n")
    figures.main(["--results", str(record)])
    assert "FAILED: 3 runs, 9 kills, 2 bit-identical" in capsys.readouterr().out


def test_the_command_is_as_one_types_it():
    assert command("kill", ["--runs", "3", "--results", "/tmp/x", "--seed", "1"]) == (
        "python tests/faults/kill.py --runs 3 --seed 1"
    )


def test_figures_of_the_record_are_sentences():
    for part, line in figures.latest(RECORD).items():
        assert "{" not in figures.describe(part, line), part


def test_the_page_has_the_figures_of_the_record():
    """`python tests/faults/figures.py --page docs/reliability.md` puts them there."""
    page = (ROOT / "docs/reliability.md").read_text("utf-8")
    table = figures.format_markdown(figures.rows(RECORD))
    assert page == figures.put_into_page(page, table)
    assert table in page
