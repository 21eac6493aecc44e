"""Names and values that mean something to a terminal, a spreadsheet, markdown, LaTeX or a browser are text in a report,
also in the messages on runs that were left out."""

import csv
import io
import json
import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from dspreg.cli import main
from dspreg.io.text import escape_terminal
from helpers.runs import single, write_run
from helpers.tampered import Files

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f\u2028\u2029]")
NAMES = [
    "\x1b[2J\x1b]0;owned\x07",
    "a\r\nERM  99.9",
    "\u202elatot",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "|x|[y](javascript:alert(1))`z`",
    "\\input{/etc/hostname}\\write18{id}%",
    "=HYPERLINK(A1)",
    "+1+1",
    "@SUM(A1)",
    "{{ 7*7 }}{% raw %}",
]


@pytest.fixture(params=range(len(NAMES)), ids=lambda n: ascii(NAMES[n])[:20])
def folder(request, tmp_path):
    """A good run and two tampered ones, whose domains, data set, method and values all have the name."""
    name = NAMES[request.param]
    domains = (f"{name}1", f"{name}2", f"{name}3")
    for trial in range(3):
        records = [single(0, domains[0], 0.5, 0.5, domains), single(100, domains[0], 0.625, 0.75, domains)]
        write_run(tmp_path / "runs" / f"r{trial}", records, domains=domains, targets=domains[:1], trial=trial,
                  dataset=name, algorithm="ERM", asked=name)  # fmt: skip
    files = Files(tmp_path / "runs/r1")
    files.put(("records", 0, "accuracy", domains[1], "out"), name)
    files.seal()
    files = Files(tmp_path / "runs/r2")
    files.put(("run", "settings", "targets"), [f"{name}4"])
    files.seal()
    return tmp_path / "runs", name


def printed(capsys, folder, form):
    assert main(["report", str(folder), "--format", form]) == 0
    out, err = capsys.readouterr()
    assert err.count("left out: ") == 2
    assert not CONTROL.search(err)
    assert len(err.splitlines()) == 2  # no name begins a line of its own
    assert not CONTROL.search(out)
    assert "62.5" in out
    return out


def test_text(capsys, folder):
    out = printed(capsys, folder[0], "text")
    assert sum("99.9" in line for line in out.splitlines()) <= sum("ERM" in line for line in out.splitlines())
    assert not any(line.startswith("ERM  99.9") for line in out.splitlines())
    assert out.count("\nleft out: ") == 2


def test_markdown(capsys, folder):
    out = printed(capsys, folder[0], "markdown").replace("\\\\", "")
    rows = [line for line in out.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {8, 4}  # of the data set's table, of averages
    for line in out.splitlines():
        bare = re.sub(r"\\.", "", line)
        assert not set(bare) & set("<>[]`"), line


def test_latex(capsys, folder):
    out = printed(capsys, folder[0], "latex")
    assert "\\input" not in out
    assert "\\write" not in out
    bare = out.replace("\\%", "").replace("\\{", "").replace("\\}", "")
    assert "%" not in bare
    assert bare.count("{") == bare.count("}")


def test_csv(capsys, folder):
    rows = list(csv.reader(io.StringIO(printed(capsys, folder[0], "csv"))))
    assert {len(row) for row in rows} == {11}
    texts = [row[i] for row in rows[1:] for i in (0, 1, 2, 3, 4, 9, 10)]
    assert not [text for text in texts if text.startswith(("=", "+", "-", "@", "\t", "\r"))]


def test_json(capsys, folder):
    path, name = folder
    tables = json.loads(printed(capsys, path, "json"))["tables"]
    assert tables[0]["name"] == name  # data, and as it is
    assert tables[0]["rows"][0]["row"] == name
    assert len([note for note in tables[-1]["notes"] if note.startswith("left out: ")]) == 2


class Tags(HTMLParser):
    """Every tag as a browser sees it, and all text outside of style and script."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts = Counter(), [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


def test_html(capsys, folder):
    path, name = folder
    page = Tags(printed(capsys, path, "html"))
    assert page.tags["script"] == 1
    assert page.tags["img"] == 0
    assert not [attribute for attribute, _ in page.attributes if attribute.startswith("on")]
    assert all(value.startswith("#") for attribute, value in page.attributes if attribute in ("href", "src"))
    shown = escape_terminal(name)
    assert any(shown in text for text in page.texts)  # as text, and no template either
