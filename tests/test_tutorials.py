"""The tutorials run as they stand: every block of code, in order, and what they show is what is printed."""

import re
import shlex
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

from dspreg.cli import main

TUTORIALS = sorted((Path(__file__).parent.parent / "docs/tutorials").glob("*.md"))


class Block(NamedTuple):
    language: str
    title: str
    text: str


def blocks(text: str) -> list[Block]:
    found = re.findall(r'^```(\w*)(?: title="([^"\n]*)")?\n(.*?)^```$', text, re.M | re.S)
    return [Block(*each) for each in found]


def normal(text: str, masked: bool) -> str:
    """Without what depends on the machine: runs of spaces, which align figures, and where `masked` the figures."""
    text = re.sub(r"[-+]?\d+(\.\d+)?", "#", text) if masked else text
    return re.sub(r"[ \t]+", " ", text).strip()


def shows(said: str, shown: str, masked: bool) -> bool:
    """Whether `shown` stands within what was printed, line by line; `…` is anything."""
    pattern = ".*?".join(map(re.escape, normal(shown, masked).split("…")))
    return re.search(rf"(?:^|\n) ?{pattern} ?(?:\n|$)", normal(said, masked), re.S) is not None


@pytest.fixture
def forget():
    """Have a module imported anew, now and after the test: others use the same names for theirs."""
    names = []

    def forget(name):
        names.append(name)
        sys.modules.pop(name, None)

    yield forget
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_it_runs_as_it_stands(page, tmp_path, monkeypatch, capsys, forget):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, object] = {}
    said, shown = "", 0
    for language, title, text in blocks(page.read_text()):
        if title.endswith(".py"):
            Path(title).write_text(text)
            forget(Path(title).stem)
        elif language == "python":
            exec(compile(text, page.name, "exec"), names)
        elif language == "bash":
            for line in text.splitlines():
                program, *arguments = shlex.split(line)
                assert program == "dspreg", line
                with warnings.catch_warnings():  # a command sets how they are shown
                    assert main(arguments) == 0, line
        elif language == "text":
            assert shows(said, text, masked=bool(title)), f"{page.name} shows\n{text}\nand this was printed:\n{said}"
            shown += 1
            continue
        else:
            assert (language, text[:6]) == ("", "dspreg"), f"a block that is not run: {text}"
            continue
        said = capsys.readouterr().out
    assert shown >= 2


def test_what_is_shown_is_held_against_what_is_printed():
    said = "a  1.25 %\nb    7 %\nc"
    assert shows(said, "a 1.25 %\n", masked=False)
    assert shows(said, "a 9 %\n…\nc\n", masked=True)
    assert not shows(said, "a 9 %\n", masked=False)
    assert not shows(said, "a\n", masked=True)
    assert not shows(said, "a 1.25 %\nc\n", masked=True)
