"""The documentation site, without building it: navigation, links, anchors, and that nothing comes from elsewhere."""

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

import dspreg

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def imported(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


outside_links = imported(DOCS / "outside_links.py")
OUTSIDE = outside_links.outside()
SITE = [*sorted(DOCS.rglob("*.md")), *sorted(path for path in OUTSIDE if path.suffix == ".md")]
PAGES = [ROOT / "README.md", *SITE]


def config() -> dict:
    class Loader(yaml.SafeLoader):
        """Names of Python functions are left alone."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    return yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def entries(nav) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for each in (nav.values() if isinstance(nav, dict) else nav) for page in entries(each)]


def anchors(page: Path) -> set[str]:
    """Of the headings, as a repository page and the site make them, and of the names whose docstrings are put in."""
    text = outside_links.FENCE.sub("", page.read_text())
    made = set(re.findall(r"^::: (\S+)", text, re.M))
    for heading in re.findall(r"^#+ (.*)", text, re.M):
        plain = re.sub(r"\]\([^)]*\)|[`*\[\]]", "", heading)
        made.add(re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-"))
    return made


def test_every_page_stands_once_in_the_navigation():
    listed = Counter(entries(config()["nav"]))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert not pages - set(listed), "docs/ has pages that mkdocs.yml does not list"
    assert all(count == 1 for count in listed.values()), listed.most_common(3)
    for page in listed:
        assert outside_links.source_of(page).is_file(), page


def test_pages_of_the_repository_that_the_navigation_leaves_out_are_linked():
    listed = {outside_links.source_of(page) for page in entries(config()["nav"])}
    linked = {
        (page.parent / link[1].partition("#")[0]).resolve()
        for page in SITE
        for link in outside_links.links(page.read_text())
    }
    for page in OUTSIDE:
        assert page in listed or page in linked, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_their_anchors_lead_somewhere(page):
    for link in outside_links.links(page.read_text()):
        path, _, anchor = link[1].partition("#")
        if outside_links.is_address(path):
            assert path.startswith("https://"), path
            continue
        target = (page.parent / path).resolve() if path else page
        moved = outside_links.MOVED.get(target.relative_to(ROOT).as_posix())
        target = ROOT / moved if moved else target
        assert target.is_file(), f"{page.name}: {link[1]}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link[1]}; there are {sorted(anchors(target))}"


def test_a_link_that_leaves_docs_leads_to_a_copy():
    rewritten = outside_links.rewritten
    there = "see [tables](../../evidence/tables.md#averages) and `[code](../../evidence/tables.md)`"
    here = there.replace("(../../evidence/tables.md#", "(../repository/evidence/tables.md#")
    assert rewritten(there, "understand/evidence.md") == here
    assert rewritten("[m](docs/extend/method.md)", "repository/CONTRIBUTING.md") == "[m](../extend/method.md)"
    assert rewritten("[p](protocol.md)", "repository/evidence/pacs/README.md") == "[p](protocol.md)"
    assert rewritten("![c](../images/layers.png)", "use/x.md") == "![c](../images/layers.png)"
    for same in ("[w](https://x.org/a.md)", "[a](#anchor)", "```\n[tables](../../evidence/tables.md)\n```"):
        assert rewritten(same, "understand/evidence.md") == same


def test_what_pages_outside_of_docs_link_to_comes_along():
    assert ROOT / "evidence/tables.md" in OUTSIDE
    assert ROOT / "evidence/pacs/protocol.md" in OUTSIDE
    assert not any(path.is_relative_to(DOCS) for path in OUTSIDE)


def test_pages_fetch_nothing():
    site = config()
    assert site["theme"]["font"] is False
    assert all((DOCS / path).is_file() for kind in ("extra_css", "extra_javascript") for path in site.get(kind, []))
    assert not re.search(r"url\(|@import", (DOCS / "site.css").read_text())
    for page in PAGES:
        assert "```mermaid" not in page.read_text(), f"{page}: the theme would fetch mermaid"
        text = outside_links.FENCE.sub("", page.read_text())
        assert not re.search(r"!\[[^\]]*\]\(\s*(https?:)?//", text), page
        assert not re.search(r"<(script|img|link|iframe|source)\b", outside_links.CODE.sub("", text), re.I), page


def test_every_public_name_has_one_place_in_the_reference():
    found = Counter(
        name
        for page in (DOCS / "reference").glob("*.md")
        for name in re.findall(r"^::: dspreg\.(\w+)$", page.read_text(), re.M)
    )
    assert found == Counter(set(dspreg.__all__) - {"__version__"})
