"""What a notebook shows in place of a repr: the cells of the same values, escaped, and pictures that load nothing."""

import base64
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import dspreg
from dspreg.reporting.table import Cell, Row, Table
from helpers.pages import BAD, write_bad
from helpers.stores import fail, finish, planned

TABLE = Table(
    name="PACS",
    title="PACS & more",
    selection="training",
    columns=("<photo>", "mean"),
    rows=(
        Row("IRM|x <i>", "ours", (Cell(value=12.34, error=0.05, found=2, expected=3), Cell(reason="failed: <&>"))),
        Row("IRM|x <i>", "difference", (Cell(value=-1.0, signed=True), Cell(text="3/4"))),
    ),
    notes=("a note",),
)


class Cells(HTMLParser):
    """Rows of texts, items of lists, tags, and what is loaded."""

    def __init__(self, value):
        super().__init__()
        self.rows, self.items, self.tags, self.loaded, self.inside = [], [], set(), [], ""
        self.feed(value._repr_html_())

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.inside = tag
        self.loaded += [value for name, value in attributes if name in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "li":
            self.items.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside in ("td", "th"):
            self.rows[-1][-1] += data
        elif self.inside == "li":
            self.items[-1] += data


def test_a_table_has_its_cells_and_its_reasons():
    found = Cells(TABLE)
    assert found.rows == [
        ["", "<photo>", "mean"],
        ["IRM|x <i>", "12.3 ± 0.1 (2/3)", "– [1]"],
        ["\N{EM SPACE}difference", "-1.0", "3/4"],
    ]
    assert found.items == ["[1] failed: <&>", "a note"]
    assert "i" not in found.tags


def test_a_report_shows_every_table_and_names_do_no_harm(tmp_path):
    report = dspreg.report(write_bad(tmp_path))
    found = Cells(report)
    assert len([row for row in found.rows if row[0] == ""]) == len(report.tables)
    assert any("script" in cell for row in found.rows for cell in row)
    assert not {"script", "img"} & found.tags
    assert "\u202e" in BAD
    assert "\u202e" not in report._repr_html_()


def test_the_status_of_a_store(tmp_path):
    store, runs = planned(tmp_path / "store")
    finish(store, runs[0])
    fail(store, runs[1], times=1)
    status = dspreg.status(store.path)
    assert status.counts() == {"runs": 8, "finished": 1, "running": 0, "waiting": 7, "failed": 0, "cancelled": 0}
    found = Cells(status)
    assert found.rows[0] == ["data set", "algorithm", "runs", "finished", "running", "waiting", "failed", "cancelled"]
    assert found.rows[-1] == ["all", "", "8", "1", "0", "7", "0", "0"]
    assert [sum(int(row[k]) for row in found.rows[1:-1]) for k in range(2, 8)] == [8, 1, 0, 7, 0, 0]
    assert found.items == [f"{runs[1]}: no images"]
    assert repr(status) == "StoreStatus(8 runs, 1 finished, 7 waiting)"


def test_no_store_is_an_error(tmp_path):
    with pytest.raises(dspreg.ConfigError, match="store"):
        dspreg.status(tmp_path / "nothing")


def test_a_run_shows_its_settings():
    run = dspreg.Run(dataset="PACS", targets=("photo", "sketch"), algorithm="SAM+DSPReg", trial=2, options={"lr": 1e-4})
    rows = dict(Cells(run).rows)
    assert rows[f"run {run.id}"] == ""
    assert (rows["targets"], rows["algorithm"]) == ("photo, sketch", "SAM+DSPReg")
    assert (rows["trial"], rows["lr"]) == ("2", "0.0001")


def test_a_profile_shows_its_layers_and_a_picture():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    domains = {
        name: [(torch.randn(6, 4) + shift, torch.randint(3, (6,))) for _ in range(2)] for shift, name in enumerate("ab")
    }
    profile = dspreg.measure(model, domains)
    found, layers = Cells(profile), profile.by_layer()
    assert found.rows[0] == list(layers.columns)
    assert [row[:3] for row in found.rows[1:]] == [["0", "Linear", "25"], ["2", "Linear", "18"]]
    place = list(layers.columns).index("c mean")
    assert [row[place] for row in found.rows[1:]] == [f"{c:.3g}" for c in layers["c mean"]]
    (picture,) = found.loaded
    kind, _, data = picture.partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(data).startswith(b"\x89PNG")
