"""The page in headless Chromium: sorting, both themes, and that it asks for nothing and breaks no policy."""

import re

import pytest

from helpers.browser import CHROMIUM, Browser
from helpers.pages import page_of, write_bad, write_pacs
from helpers.runs import single, write_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install chromium to test the page in it")

TABLE = "document.querySelector('table.sortable')"
ROWS = f"[...{TABLE}.rows].slice(1).map(row => row.cells[0].textContent)"
SORTED = f"[...{TABLE}.tHead.rows[0].cells].map(th => th.getAttribute('aria-sort'))"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(22, 24, 28)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    page_of(write_pacs(root / "pacs"), root / "page.html", "--contrast", "DSPReg", "ERM")
    return root / "page.html"


@pytest.fixture
def page(browser, path):
    browser.prefer("light")
    browser.width(1280)
    browser.open(path)
    yield browser
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]


def head(column):
    return f"{TABLE}.tHead.rows[0].cells[{column}].querySelector('button')"


def groups(names):
    """Every method with the rows that belong to it."""
    return [row for name in names for row in (name, "paper", "difference")]


def test_a_click_sorts_by_value_and_another_the_other_way_round(page):
    """On photo: DSPReg 0.95, ERM 0.85, CORAL 0.75; IRM failed there, and stays last both times."""
    assert page.run(ROWS) == groups(["ERM", "CORAL", "DSPReg", "IRM"])
    assert page.run(SORTED) == [None] * 8
    page.click(head(3))
    assert page.run(ROWS) == groups(["DSPReg", "ERM", "CORAL", "IRM"])
    assert page.run(SORTED) == [None, None, None, "descending", None, None, None, None]
    page.click(head(3))
    assert page.run(ROWS) == groups(["CORAL", "ERM", "DSPReg", "IRM"])
    assert page.run(SORTED)[3] == "ascending"
    page.click(head(1))
    assert page.run(ROWS) == groups(["DSPReg", "ERM", "CORAL", "IRM"])
    assert page.run(SORTED) == [None, "descending", None, None, None, None, None, None]


def test_numbers_are_compared_as_numbers(page):
    page.run(
        f"[...{TABLE}.tBodies].forEach((body, n) => "
        "{ body.rows[0].cells[1].dataset.value = ['9', '10', '-1', '1e2'][n] })"
    )
    page.click(head(1))
    assert page.run(ROWS) == groups(["IRM", "CORAL", "ERM", "DSPReg"])


def test_names_are_sorted_too_and_by_keyboard(page):
    page.run(f"{head(0)}.focus()")
    page.press("Enter", 13)
    assert page.run(ROWS) == groups(["CORAL", "DSPReg", "ERM", "IRM"])
    assert page.run(SORTED)[0] == "ascending"
    page.press("Enter", 13)
    assert page.run(ROWS) == groups(["IRM", "ERM", "DSPReg", "CORAL"])


def test_equal_ones_keep_the_order_of_the_report(page):
    page.click(head(7))  # 8/8 runs of all but IRM, which has 6
    assert page.run(ROWS) == groups(["ERM", "CORAL", "DSPReg", "IRM"])
    page.click(head(7))
    assert page.run(ROWS) == groups(["IRM", "ERM", "CORAL", "DSPReg"])


def test_every_table_sorts_for_itself(page):
    count = page.run("document.querySelectorAll('table.sortable').length")
    assert count == 4
    page.click(head(1))
    for n in range(1, count):
        table = f"document.querySelectorAll('table.sortable')[{n}]"
        assert page.run(f"[...{table}.tHead.rows[0].cells].every(th => !th.hasAttribute('aria-sort'))")
        page.click(f"{table}.tHead.rows[0].cells[0].querySelector('button')")
        assert page.run(f"{table}.tHead.rows[0].cells[0].getAttribute('aria-sort')") == "ascending"


def test_the_theme_is_the_readers_until_it_is_toggled(page):
    assert page.run(BACKGROUND) == LIGHT
    page.prefer("dark")
    assert page.run(BACKGROUND) == DARK
    button = "document.getElementById('theme')"
    assert page.run(f"{button}.textContent") == "Light theme"
    page.click(button)
    assert page.run(BACKGROUND) == LIGHT
    page.prefer("light")
    page.click(button)
    assert page.run(BACKGROUND) == DARK
    page.click(button)
    assert page.run(BACKGROUND) == LIGHT


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_drawn_can_be_told_from_the_ground(page, theme):
    page.prefer(theme)
    kinds = "svg text, svg .mean, svg .thin, svg .dot, svg .bar, td, th, p, a, li"
    ink = "const s = getComputedStyle(e); return e.matches('polyline') ? s.stroke : e.closest('svg') ? s.fill : s.color"
    colours = page.run(f"[...document.querySelectorAll('{kinds}')].map(e => {{ {ink} }})")
    assert len(colours) > 300
    ground = _luminance(page.run(BACKGROUND))
    for each in set(colours):
        light, dark = sorted((_luminance(each), ground), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, each


def _luminance(colour):
    """As WCAG 2 defines it."""
    red, green, blue = (int(each) / 255 for each in re.findall(r"\d+", colour)[:3])
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_sticks_out(page, width):
    page.width(width)
    assert page.run("document.documentElement.scrollWidth") <= width


def test_no_word_of_a_picture_sticks_out(browser, tmp_path):
    for n, algorithm in enumerate(("DSPReg", "CORAL+DSPReg", "CORAL+GroupDRO+DSPReg(coefficients='static')")):
        write_run(tmp_path / f"runs/{n}", [single(0, "ash", 0.5, 0.5)], algorithm=algorithm)
    page_of(tmp_path / "runs", tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    outside = browser.run(
        "[...document.querySelectorAll('svg text')].filter(e => { const a = e.getBoundingClientRect(), "
        "b = e.closest('svg').getBoundingClientRect(); return a.left < b.left - 0.5 || a.right > b.right + 0.5 || "
        "a.bottom > b.bottom + 0.5 }).map(e => e.textContent)"
    )
    assert browser.run("document.querySelectorAll('svg text').length") > 30
    assert outside == []


def test_hostile_names_do_nothing(browser, tmp_path):
    page_of(write_bad(tmp_path / "bad"), tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    browser.click(head(0))
    assert (browser.complaints(), browser.requests()) == ([], [(tmp_path / "page.html").as_uri()])
    assert not [each for each in browser.events if each["method"] == "Page.javascriptDialogOpening"]


def test_the_browser_would_have_complained(browser, path, tmp_path):
    """A page that was changed after it was made: another script, a handler, a style, an image from elsewhere."""
    for change in ("<script>1</script>", "<p style='color: red'>", "<img src='http://127.0.0.1:9/x.png'>"):
        (tmp_path / "page.html").write_text(path.read_text(encoding="utf-8").replace("<nav>", change + "<nav>"))
        browser.open(tmp_path / "page.html")
        assert any("Content Security Policy" in str(each) for each in browser.complaints()), change
    (tmp_path / "page.html").write_text("<script>nothing_of_this_name()</script>")
    browser.open(tmp_path / "page.html")
    assert "nothing_of_this_name is not defined" in str(browser.complaints())
    (tmp_path / "page.html").write_text("<img src='http://127.0.0.1:9/x.png'>")
    browser.open(tmp_path / "page.html")
    assert len(browser.requests()) == 2
