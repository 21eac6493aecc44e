"""A hook of mkdocs: links that leave docs/ lead to copies under `repository/`.

A page links to any file of the repository by its relative path, as in `[tables](../../evidence/tables.md)`, which a
repository page follows as it stands. On the site Markdown becomes a page, `repository/evidence/tables.md`, and what it
links to comes along; any other file is copied as it is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from os.path import relpath
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
COPIES = "repository"
MOVED = {"docs/engines.md": "docs/understand/engines.md"}  # since a text was frozen that names it
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.M | re.S)
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")


def links(text: str) -> Iterator[re.Match[str]]:
    """Links and pictures of a page, outside of code."""
    covered = FENCE.sub(lambda found: " " * len(found[0]), text)
    covered = CODE.sub(lambda found: " " * len(found[0]), covered)
    return LINK.finditer(covered)


def is_address(link: str) -> bool:
    return bool(re.match(r"[a-z][a-z0-9+.-]*:", link)) or link.startswith("//")


def source_of(page: str) -> Path:
    """The file that a page of the site is made of: `use/data.md` or `repository/SECURITY.md`."""
    inside = page.removeprefix(COPIES + "/")
    return DOCS / page if inside == page else ROOT / inside


def page_of(source: Path) -> str:
    """Where a file of the repository stands on the site."""
    return (
        source.relative_to(DOCS).as_posix()
        if source.is_relative_to(DOCS)
        else f"{COPIES}/{source.relative_to(ROOT).as_posix()}"
    )


def rewritten(text: str, page: str) -> str:
    """The page with its links as the site has them."""
    parts, last = [], 0
    for found in links(text):
        path, mark, anchor = found[1].partition("#")
        if not path or is_address(path):
            continue
        target = (source_of(page).parent / path).resolve()
        if not target.is_relative_to(ROOT):
            continue
        inside = target.relative_to(ROOT).as_posix()
        target = ROOT / MOVED.get(inside, inside)
        new = relpath(page_of(target), Path(page).parent).replace("\\", "/")
        parts += [text[last : found.start(1)], new + mark + anchor]
        last = found.end(1)
    return "".join([*parts, text[last:]])


def in_navigation() -> set[Path]:
    """The files outside of docs/ that mkdocs.yml names."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return {ROOT / name for name in re.findall(rf"{COPIES}/(\S+)", text)}


def outside() -> set[Path]:
    """The files outside of docs/ that the navigation names or pages link to, and those that these link to."""
    found: set[Path] = set()
    waiting = [*sorted(DOCS.rglob("*.md")), *sorted(in_navigation())]
    while waiting:
        page = waiting.pop()
        if not page.is_relative_to(DOCS):
            found.add(page)
        for link in links(page.read_text(encoding="utf-8")):
            path = link[1].partition("#")[0]
            if not path or is_address(path):
                continue
            target = (page.parent / path).resolve()
            if target.is_relative_to(DOCS) or not target.is_file() or target in found:
                continue
            found.add(target)
            if target.suffix == ".md":
                waiting.append(target)
    return found


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File, InclusionLevel

    for source in sorted(outside()):
        made = File.generated(config, page_of(source), abs_src_path=str(source))
        if source.suffix == ".md" and source not in in_navigation():
            made.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(made)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return rewritten(markdown, page.file.src_uri)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Show `|` in the code of tables as a repository page does; warn where the two differ, as in lists with code."""
    from markdown_it import MarkdownIt

    text = source_of(page.file.src_uri).read_text(encoding="utf-8")
    html = re.sub(r"<td.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.S)
    if re.search(r"^::: ", text, re.M):
        return html
    here, there = ({tag: len(re.findall(rf"<{tag}[ >]", each)) for tag in ("li", "pre", "table", "img")} for each in (
        html, MarkdownIt("commonmark").enable("table").render(text)
    ))  # fmt: skip
    if here != there:
        logging.getLogger("mkdocs.hooks.outside_links").warning(  # an error of a strict build
            f"{page.file.src_uri}: the site has {here}, a repository page {there}. Leave a line free before a list, "
            "and indent what belongs to an item, such as code or a list, by four spaces"
        )
    return html
