"""The grammar of specs: what text becomes, before any name is looked up."""

import pytest

from dspreg.errors import ConfigError
from dspreg.specs import Product, Term, Unreadable, format_term, parse_stack, parse_term, shortest_spec


def test_a_stack_is_its_terms_from_left_to_right():
    inner, outer = parse_stack(" my.own.A(x=-1e-3, y=['a', 2], z=None) + B ")
    assert (inner.name, inner.arguments) == ("my.own.A", ())
    assert list(inner.options.items()) == [("x", -0.001), ("y", ["a", 2]), ("z", None)]
    assert outer == Term("B", (), {}, "B")
    assert [term.name for term in parse_stack("A+(B+C)")] == ["A", "B", "C"]


def test_values_that_are_no_literals_are_kept_apart_and_never_evaluated():
    term = parse_term("lazy(30, lookahead(radius=2*weight), x=1/0, y=print('gone'))")
    every, inner = term.arguments
    assert every == 30
    assert inner.name == "lookahead"
    assert inner.options["radius"] == Product((2, Term("weight", (), {}, "weight")), "2 * weight")
    assert term.options["x"] == Unreadable("1 / 0")
    assert term.options["y"] == Term("print", ("gone",), {}, "print('gone')")


@pytest.mark.parametrize(
    ("text", "is_name"), [("A", True), ("a.b.C", True), ("A-B", False), ("3", False), ("A()()", False)]
)
def test_what_is_a_name(text, is_name):
    (term,) = parse_stack(text)
    assert term.has_name is is_name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "invalid syntax"),
        ("A+", "invalid syntax"),
        ("A B", "invalid syntax"),
        ("A(", "was never closed"),
        ("A\0", "null"),
        ("A(x=1, x=2)", "A: the option 'x' is given twice"),
        ("A(**x)", r"A: options are written one by one, not as \*\*x"),
        ("+".join("A" * 5000), "it has 9,999 characters"),
        ("+".join(["ERM"] * 900), "it has 900 layers; wanted at most 50"),
        ("A(" * 400 + ")" * 400, "nested"),
        ("(" * 1_000 + "A" + ")" * 1_000, "nested"),
        (f"A(x={'[' * 900}{']' * 900})", "nested"),
        ("-" * 3_000 + "A", "nested|layers|name"),
        (f"A(x={'9' * 400})", "999… .400 characters. is too large a whole number"),
        (f"A(x=[1, -{'9' * 400}])", "too large a whole number"),
        (f"A(x={'9' * 4_000})", "too large"),
        (f"A(x=0x{'f' * 4_000})", "too large"),
        ("A" * 300, "too long; wanted at most 200 characters"),
        ("A." * 150 + "B", "too long"),
        ("A(x='\\ud800')", "is not UTF-8"),
        ("A\ud800", "is not UTF-8"),
        ("\N{ZERO WIDTH SPACE}A", "invalid non-printable character U.200B"),
        ("A\N{MULTIPLICATION SIGN}B", "invalid character"),
    ],
)
def test_what_is_no_stack(text, reason):
    with pytest.raises(ConfigError, match=r"^the spec .* is not of the form 'A\(option=value\)\+B': .*" + reason) as e:
        parse_stack(text)
    assert len(str(e.value)) < 300


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A-B", "'A - B' is not a name"),
        ("A(1)", "options of A are given by name"),
        ("A(x=y)", "x=y is not a number, a quoted string or a list of those"),
    ],
)
def test_what_has_no_shortest_form(text, reason):
    with pytest.raises(ConfigError, match=f"is not of the form .*: {reason}$"):
        shortest_spec(text)


def test_a_term_as_text():
    assert format_term("A", {}) == "A"
    assert format_term("A", {"y": 1e-3, "x": "b"}) == "A(y=0.001, x='b')"
