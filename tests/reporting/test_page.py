"""The page of a report, read as HTML: numbers, structure, escaping, policy, bytes."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from dspreg.cli import main
from dspreg.io.text import escape_terminal
from dspreg.paper.items import dynamic
from dspreg.paper.scales import SMOKE
from dspreg.runs.store import RunStore
from helpers.items import finish, store_of
from helpers.pages import BAD, page_of, write_bad, write_pacs
from helpers.runs import single, write_run

VOID = {"meta", "img", "br"}


class Tree(HTMLParser):
    """All elements, with what they hold; refuses what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.all, self.open = [], []
        self.feed(text)
        assert [each["tag"] for each in self.open] == ["html"] or not self.open

    def handle_starttag(self, tag, attrs):
        made = {"tag": tag, "text": "", "inside": [], **dict(attrs)}
        for each in self.open:
            each["inside"].append(made)
        self.all.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_endtag(self, tag):
        if self.open[-1]["tag"] == "html" and tag == "html":
            return
        assert self.open.pop()["tag"] == tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data):
        for each in self.open:
            each["text"] += data

    def tagged(self, tag):
        return [each for each in self.all if each["tag"] == tag]


def inside(element, tag):
    return [each for each in element["inside"] if each["tag"] == tag]


@pytest.fixture(scope="module")
def pacs(tmp_path_factory):
    return write_pacs(tmp_path_factory.mktemp("made") / "pacs")


@pytest.fixture(scope="module")
def text(pacs):
    return page_of(pacs, pacs.parent / "page.html", "--contrast", "DSPReg", "ERM")


def test_numbers_are_those_of_the_other_formats(pacs, text, capsys):
    main(["report", str(pacs), "--format", "json", "--contrast", "DSPReg", "ERM"])
    wanted = json.loads(capsys.readouterr().out)["tables"]
    found = [each for each in Tree(text).tagged("table") if each.get("class") == "sortable"]
    assert len(found) == len(wanted) == 3
    for html, table in zip(found, wanted, strict=True):
        assert [each["text"] for each in inside(html, "button")][1:] == table["columns"]
        rows = [row for body in inside(html, "tbody") for row in inside(body, "tr")]
        assert len(rows) == len(table["rows"])
        for row, value in zip(rows, table["rows"], strict=True):
            assert inside(row, "th")[0]["text"] == (value["row"] if value["source"] == "ours" else value["source"])
            for cell, name in zip(inside(row, "td"), table["columns"], strict=True):
                numbers = {k: float(cell[f"data-{k}"]) for k in ("value", "error") if f"data-{k}" in cell}
                assert numbers == {k: v for k, v in value["cells"][name].items() if k in ("value", "error")}


def test_cells_are_shown_as_in_the_terminal(pacs, text, capsys):
    main(["report", str(pacs), "--contrast", "DSPReg", "ERM"])
    lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    tables = [each for each in Tree(text).tagged("table") if each.get("class") == "sortable"]
    rows = [row for table in tables for body in inside(table, "tbody") for row in inside(body, "tr")]
    assert len(rows) == 25
    for row in rows:
        cells = [each["text"] for each in row["inside"] if each["tag"] in ("th", "td")]
        assert [cell for cell in cells if cell] in lines


def test_a_row_is_in_one_group_with_the_papers(text):
    table = next(each for each in Tree(text).tagged("table") if each.get("class") == "sortable")
    names = [[th["text"] for th in inside(body, "th")] for body in inside(table, "tbody")]
    assert names == [
        ["ERM", "paper", "difference"], ["CORAL", "paper", "difference"], ["DSPReg", "paper", "difference"],
        ["IRM", "paper", "difference"],
    ]  # fmt: skip


def test_reasons_are_footnotes(text):
    tree = Tree(text)
    links = [each["href"][1:] for each in tree.tagged("a") if each["href"].startswith("#t1")]
    notes = {each["id"]: each["text"] for each in tree.tagged("li") if "id" in each}
    assert len(links) == 3
    assert [notes[link] for link in links] == [
        "[1] failed: step 3: the loss is not finite, see …/log.txt", "[2] a part of it is missing",
        "[2] a part of it is missing",
    ]  # fmt: skip
    ids = [each["id"] for each in tree.all if "id" in each]
    assert len(ids) == len(set(ids))
    assert {each["href"][1:] for each in tree.tagged("a")} <= set(ids)


def test_heads_can_be_reached_by_keyboard(text):
    for table in Tree(text).tagged("table"):
        if "sortable" in table.get("class", ""):
            (head,) = inside(table, "thead")
            for each in inside(head, "th"):
                assert [b["type"] for b in inside(each, "button")] == ["button"]


def test_the_policy_allows_this_style_and_this_script_and_nothing_else(text):
    def hashed(tag):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.S)
        return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()

    policy = next(each["content"] for each in Tree(text).tagged("meta") if "http-equiv" in each)
    assert policy.split("; ") == [
        "default-src 'none'", "img-src data:", f"style-src '{hashed('style')}'", f"script-src '{hashed('script')}'",
        "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip
    assert not any(name.startswith("on") or name == "style" for each in Tree(text).all for name in each)
    for word in ("http:", "https:", "innerHTML", "eval(", "src=", "url(", "@import"):
        assert word not in text


def test_pictures_have_all_targets_methods_and_runs(text):
    tree = Tree(text)
    labels = [each["aria-label"] for each in tree.tagged("svg") if "aria-label" in each]
    assert sum(each.startswith("accuracy on ") for each in labels) == 4
    assert [each for each in labels if each.startswith("source validation")] == [
        "source validation against step: ERM on PACS, 8 runs",
        "source validation against step: CORAL on PACS, 8 runs",
        "source validation against step: DSPReg on PACS, 8 runs",
        "source validation against step: IRM on PACS, 6 runs",
    ]
    assert sum(each.startswith("loss against step") for each in labels) == 4
    dots = [each["text"] for each in tree.tagged("circle") if each["class"].startswith("dot")]
    assert len(dots) == 4 * 8 - 2
    assert "DSPReg, trial 1: 96.1 %" in dots  # 0.9 + 3/100 + 1/1000 + 300/10000 on sketch


def test_failed_runs_are_listed_with_their_reason(text):
    tree = Tree(text)
    section = next(each for each in tree.tagged("section") if each["id"] == "missing")
    rows = [[td["text"] for td in inside(row, "td")] for row in inside(section, "tr")][1:]
    why = "failed: step 3: the loss is not finite, see …/log.txt"
    assert rows == [["PACS", "IRM", "photo", str(trial), "0", why] for trial in (0, 1)]
    assert "2 failed." in section["text"]


def test_where_it_comes_from_and_no_path(pacs, text):
    facts = next(each for each in Tree(text).tagged("section") if each["id"] == "provenance")
    said = {inside(row, "th")[0]["text"]: inside(row, "td")[0]["text"] for row in inside(facts, "tr")}
    assert said["page made by"].endswith(": dspreg report pacs --format html --contrast DSPReg ERM")
    assert (said["torch"], said["threads"], said["protocol"]) == ("2.10.0", "1", "domainbed")
    assert said["images of photo"] == f"SHA-256 {'0' * 64}"
    assert said["runs"] == "30 finished of 32"
    assert (said["steps"], said["lr"], said["weights"]) == ("5001", "0.001", "none")
    assert "Report of pacs" in text
    for path in (str(pacs.parent), "/home", "/tmp", "alice"):
        assert path not in text


def test_damaged_runs_are_named_from_the_store_on(pacs, tmp_path):
    copy = shutil.copytree(pacs, tmp_path / "copy")
    (copy / "runs/ERM-photo-1/records.jsonl").write_bytes(b"{}\n")
    text = page_of(copy, tmp_path / "page.html")
    section = next(each for each in Tree(text).tagged("section") if each["id"] == "missing")
    assert "2 failed, 1 damaged." in section["text"]
    assert [each["text"][:51] for each in inside(section, "li")] == [
        "runs/ERM-photo-1/records.jsonl is damaged or was ch"
    ]
    assert str(tmp_path) not in text


def test_every_run_is_counted_once(tmp_path):
    """Trial 0 on one thread and trial 1 on two: two rows of each method, in which the other trial is missing."""
    item, store = replace(dynamic(SMOKE), trials=2), RunStore(tmp_path / "store")
    store.make()
    store.plan(list(item.runs()))
    for run in item.runs():
        finish(store, run, item.domains()[run.dataset], 0.5, 3, threads=1 + run.trial)
    text = page_of(store.path, tmp_path / "page.html")
    assert "8 runs, of which 8 are finished and count; 4 methods" in text
    assert "8 finished of 8" in text
    assert "All 8 runs are finished." in text


def test_a_damaged_run_of_a_store_is_counted_once(tmp_path):
    item = dynamic(SMOKE)
    store = store_of(tmp_path / "store", item, lambda run: 0.5)
    store.plan(list(item.runs()))
    bad = next(iter(item.runs()))
    (store.folder(bad) / "records.jsonl").write_bytes(b"{}\n")
    text = page_of(store.path, tmp_path / "page.html")
    assert "4 runs, of which 3 are finished and count" in text
    section = next(each for each in Tree(text).tagged("section") if each["id"] == "missing")
    assert "1 damaged." in section["text"]
    assert "1 damaged, 1 damaged" not in section["text"]


def test_hostile_names_are_text(tmp_path):
    root = write_bad(tmp_path / 'st"<b>ore')
    plain = Tree(page_of(write_pacs(tmp_path / "p", trials=1), tmp_path / "p.html"))
    text = page_of(root, tmp_path / "page.html")
    tree = Tree(text)
    assert {each["tag"] for each in tree.all} <= {each["tag"] for each in plain.all} | {"li", "ul"}
    assert len(tree.tagged("script")) == 1
    assert not tree.tagged("img")
    assert not any(name.startswith("on") for each in tree.all for name in each)
    assert not set(text) & set("\u202e\u2028")
    visible = escape_terminal(BAD)
    assert 'Report of st"<b>ore' in tree.tagged("h1")[0]["text"]
    for section in ("tables", "domains", "training", "missing", "provenance"):
        (found,) = [each["text"] for each in tree.tagged("section") if each["id"] == section]
        assert visible in found, section


def test_the_same_runs_give_the_same_bytes(pacs, text, tmp_path):
    elsewhere = tmp_path / "other" / "pacs"
    shutil.copytree(pacs, elsewhere)
    for n, folder in enumerate(sorted((elsewhere / "runs").iterdir(), reverse=True)):  # found in another order
        folder.rename(folder.with_name(f"{n:03}"))
    assert page_of(elsewhere, tmp_path / "page.html", "--contrast", "DSPReg", "ERM") == text


def test_the_order_of_sets_decides_nothing(tmp_path):
    for n, lr in enumerate((0.1, 0.01, 0.02, 0.5, 0.003)):
        write_run(tmp_path / f"runs/{n}", [single(0, "ash", 0.5, 0.5)], draw=n, lr=lr, algorithm="IRM")
    program = "import sys; from dspreg.cli import main; sys.exit(main(sys.argv[1:]))"
    call = [sys.executable, "-c", program, "report", str(tmp_path / "runs"), "--format", "html"]
    said = [
        subprocess.run(call, check=True, capture_output=True, env=os.environ | {"PYTHONHASHSEED": str(seed)}).stdout
        for seed in range(3)
    ]
    assert said[0] == said[1] == said[2]
    assert b"0.003, 0.01, 0.02, 0.1, 0.5" in said[0]


def test_it_is_printed_where_no_file_is_given(pacs, text, capsys):
    assert main(["report", str(pacs), "--format", "html", "--contrast", "DSPReg", "ERM"]) == 0
    assert capsys.readouterr().out == text
    assert len(text) < 200_000


def test_a_mean_over_late_steps_is_called_one(pacs, tmp_path):
    late, selected = (page_of(pacs, tmp_path / f"{n}.html", "--selection", n) for n in ("late", "training"))
    assert "In %, the mean over the second half of the steps." in late
    assert "dots are the last steps" in late
    assert "In %, of the step and draw that were selected." in selected


def test_the_oracle_is_marked(pacs, tmp_path):
    text = page_of(pacs, tmp_path / "page.html", "--selection", "oracle")
    (remark,) = [each["text"] for each in Tree(text).tagged("p") if each.get("class") == "remark"]
    assert remark == "ORACLE: selected on the target itself"
    assert "--selection oracle" in text


def test_long_lists_are_cut_and_say_so(tmp_path, monkeypatch):
    from dspreg.reporting.html import curves, page

    monkeypatch.setattr(page, "LISTED", 1)
    monkeypatch.setattr(curves, "ROWS", 3)
    text = page_of(write_pacs(tmp_path / "p"), tmp_path / "page.html")
    assert "2 failed; the first 1 of each list." in text
    assert text.count("The first 3 methods; 1 others are in the table.") == 2
    assert text.count("<td>IRM</td>") == 1
