"""Every format of one small table, literally, with names that formats would trip over."""

import csv
import io
import json
import shutil
import subprocess

import pytest

from dspreg.reporting.formats import FORMATS
from dspreg.reporting.table import Cell, Row, Table

FAILED = Cell(reason="failed: _&_")
TABLE = Table(
    name="a_b",
    title="a_b: 100 % of & and #",
    selection="training",
    columns=("x_1", "漢字", "mean"),
    rows=(
        Row(
            "IRM|x <b>",
            "ours",
            (Cell(value=12.34, error=0.05, found=2, expected=3), Cell(reason="failed: _&_"), Cell()),
        ),
        Row("IRM|x <b>", "difference", (Cell(value=-1.0, signed=True), Cell(text="3/4"), Cell(value=float("nan")))),
        Row("=cmd()", "ours", (FAILED, Cell(reason="not started"), Cell(value=7, text="x_1"))),
    ),
    notes=("a note of 50 %",),
)


def test_text():
    assert FORMATS["text"]([TABLE]) == (
        "a_b: 100 % of & and #\n"
        "\n"
        "                           x_1   漢字     mean\n"
        "IRM|x <b>     12.3 ± 0.1 (2/3)  – [1]\n"
        "  difference              -1.0    3/4      nan\n"
        "=cmd()                   – [1]  – [2]  7.0 x_1\n"
        "\n"
        "[1] failed: _&_\n"
        "[2] not started\n"
        "a note of 50 %\n"
    )


def test_markdown():
    assert FORMATS["markdown"]([TABLE]) == (
        "**a\\_b: 100 % of \\& and \\#**\n"
        "\n"
        "|  | x\\_1 | 漢字 | mean |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| IRM\\|x \\<b\\> | 12.3 ± 0.1 (2/3) | – \\[1\\] |  |\n"
        "| *difference* | -1.0 | 3/4 | nan |\n"
        "| =cmd() | – \\[1\\] | – \\[2\\] | 7.0 x\\_1 |\n"
        "\n"
        "- \\[1\\] failed: \\_\\&\\_\n"
        "- \\[2\\] not started\n"
        "- a note of 50 %\n"
    )


def test_latex():
    assert FORMATS["latex"]([TABLE]) == (
        "\\begin{table}\n"
        "\\centering\n"
        "\\caption{a\\_b: 100 \\% of \\& and \\#}\n"
        "\\begin{tabular}{lrrr}\n"
        "\\toprule\n"
        " & x\\_1 & 漢字 & mean \\\\\n"
        "\\midrule\n"
        "IRM\\textbar{}x \\textless{}b\\textgreater{} & 12.3 $\\pm$ 0.1 (2/3) & -- [1] &  \\\\\n"
        "\\quad difference & $-$1.0 & 3/4 & nan \\\\\n"
        "=cmd() & -- [1] & -- [2] & 7.0 x\\_1 \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\par\\footnotesize [1] failed: \\_\\&\\_\n"
        "\\par\\footnotesize [2] not started\n"
        "\\par\\footnotesize a note of 50 \\%\n"
        "\\end{table}\n"
    )


def test_csv_has_every_cell_with_its_reason_and_no_formula():
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"]([TABLE]))))
    assert len(rows) == 9
    first = {
        "table": "a_b", "selection": "training", "row": "IRM|x <b>", "source": "ours", "column": "x_1",
        "value": "12.34", "error": "0.05", "found": "2", "expected": "3", "text": "", "reason": "",
    }  # fmt: skip
    assert rows[0] == first
    assert rows[1]["reason"] == "failed: _&_"
    assert rows[3]["value"] == "-1.0"
    assert rows[6]["row"] == "'=cmd()"


def test_json_is_strict_and_has_unrounded_numbers():
    found = json.loads(FORMATS["json"]([TABLE]), parse_constant=lambda name: pytest.fail(name))
    (table,) = found["tables"]
    assert table["rows"][0]["cells"]["x_1"] == {"value": 12.34, "error": 0.05, "found": 2, "expected": 3}
    assert table["rows"][0]["cells"]["漢字"] == {"reason": "failed: _&_"}
    assert table["rows"][1]["cells"]["mean"] == {"value": None}
    assert table["notes"] == ["a note of 50 %"]


def test_a_terminal_is_not_obeyed():
    odd = Table("x", "\x1b[2J", "training", ("\x1b",), (Row("\x07", "ours", (Cell(reason="\x1b[31m"),)),), ("\r",))
    for form in ("text", "markdown", "latex", "csv"):
        assert not {"\x1b", "\x07", "\r"} & set(FORMATS[form]([odd]))


EVIL = "_ & % # { } $ ~ ^ \\ < > | \" ' → ← ± − × √ ≥ – θ é e\u0301 ß … “x” -- '' ,, ?` \\input{x} \\\\ ^^M %"


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("a_b & 5 % #1 ${x}", r"a\_b \& 5 \% \#1 \$\{x\}"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("~^", r"\textasciitilde{}\textasciicircum{}"),
        ("a → b ± c − d", r"a $\to$ b $\pm$ c $-$ d"),
        ("λ ω é", r"$\lambda$ $\omega$ é"),
        ("e\u0301", "é"),  # as macOS names files
        ("a--b ''c'' x,,y ?`", "a-{}-b '{}'c'{}' x,{},y ?{}`"),  # an en dash, quotes and ¿ otherwise
        ("<x|y>", r"\textless{}x\textbar{}y\textgreater{}"),
        ("two\nlines", r"two\textbackslash{}nlines"),
    ],
)
def test_latex_sets_names_as_they_are(name, escaped):
    table = Table("x", name, "training", (name,), (Row(name, "ours", (Cell(text=name),)),), (name,))
    lines = FORMATS["latex"]([table]).splitlines()
    assert rf"\caption{{{escaped}}}" in lines
    assert rf" & {escaped} \\" in lines
    assert rf"{escaped} & {escaped} \\" in lines
    assert rf"\par\footnotesize {escaped}" in lines


@pytest.mark.parametrize("name", ["[2pt]", "*"])
def test_a_row_is_not_taken_for_an_option_of_the_line_before(name):
    """`\\\\[2pt]`, `\\midrule[2pt]` and `\\\\*` mean something else, and a line may end in between."""
    table = Table("x", "x", "training", (), (Row(name, "ours", ()),))
    assert f"\n{{}}{name} \\\\\n" in FORMATS["latex"]([table])


def no_latex():
    found = shutil.which("pdflatex") and shutil.which("kpsewhich")
    return not found or subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True).returncode != 0


@pytest.mark.skipif(no_latex(), reason="no pdflatex with booktabs here")
def test_latex_compiles(tmp_path):
    rows = tuple(
        Row(name, "ours", (Cell(text=name), Cell(value=-1.0, error=0.5, signed=True), Cell(reason=name)))
        for name in (EVIL, "[2pt]", "*", "")
    )
    evil = Table(EVIL, EVIL, "training", (EVIL, "[y]", "*"), rows, (EVIL, "[z]"))
    plain = Table("a_b", TABLE.title, "training", ("x_1", "y", "mean"), TABLE.rows, TABLE.notes)
    text = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n" + FORMATS["latex"]([evil, plain])
    (tmp_path / "t.tex").write_text(text + "\\end{document}\n", encoding="utf-8")
    done = subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in (tmp_path / "t.log").read_text(encoding="latin-1")
    assert (tmp_path / "t.pdf").stat().st_size > 0
