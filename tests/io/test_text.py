"""Names that would do something where they are shown."""

import pytest

from dspreg.io.text import escape_csv, escape_terminal


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("photo 1.jpg", "photo 1.jpg"),
        ("Größe 漢字 🦉.png", "Größe 漢字 🦉.png"),
        ("Bild\u202f12\u00a0Uhr.png", "Bild\u202f12\u00a0Uhr.png"),  # spaces that macOS puts into names
        ("👩\u200d🚀.png", "👩\u200d🚀.png"),
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("\x9b2J", "\\x9b2J"),
        ("invoice\u202egpj.exe", "invoice\\u202egpj.exe"),
        ("half \udc80", "half \\udc80"),
        ("line\u2028end", "line\\u2028end"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(name, seen):
    assert escape_terminal(name) == seen
    assert escape_terminal(name).encode()  # no half characters


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-1", "@sum", "\tx", "\rx"])
def test_no_cell_begins_a_formula(name):
    assert escape_csv(name) == "'" + escape_terminal(name)


def test_other_cells_are_left_alone():
    assert [escape_csv(name) for name in ("cat", "", "a=b", "'x", "5")] == ["cat", "", "a=b", "'x", "5"]
