"""The list of files: what it says, and what it refuses to be."""

import hashlib

import pytest

from dspreg.download.manifest import (
    NAME,
    changed_sizes,
    parse_manifest,
    read_manifest,
    take_manifest,
)
from dspreg.errors import IntegrityError

FILES = {"a/x/1.jpg": b"one", "a/y/2.jpg": b"", "b/x/ä b.jpg": b"three"}


@pytest.fixture
def folder(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_it_lists_every_file(folder):
    manifest = take_manifest(folder, {"dataset": "mine"})
    manifest.write(folder / NAME)
    lines = (folder / NAME).read_text().splitlines()
    assert lines[:2] == ["dspreg manifest 1", '{"dataset": "mine"}']
    assert lines[2:] == [f"{hashlib.sha256(FILES[name]).hexdigest()}\t{len(FILES[name])}\t{name}" for name in FILES]
    assert read_manifest(folder / NAME) == manifest == take_manifest(folder, {"dataset": "mine"})  # not itself


def test_differences_are_named(folder):
    before = take_manifest(folder, {})
    (folder / "a/x/1.jpg").write_bytes(b"two")
    (folder / "a/y/2.jpg").unlink()
    (folder / "new.jpg").write_bytes(b"")
    assert before.differences(take_manifest(folder, {})) == [
        "1 file missing: a/y/2.jpg",
        "1 file too many: new.jpg",
        "1 file changed: a/x/1.jpg",
    ]
    assert before.differences(before) == []


def test_sizes_are_looked_at_without_reading(folder):
    manifest = take_manifest(folder, {})
    assert changed_sizes(folder, manifest) == []
    (folder / "a/x/1.jpg").write_bytes(b"other length")
    (folder / "a/y/2.jpg").unlink()
    assert changed_sizes(folder, manifest) == ["a/x/1.jpg", "a/y/2.jpg"]


SHA = "0" * 64


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dspreg manifest 1",
        "dspreg manifest 2\n{}\n",
        "dspreg manifest 1\n[]\n",
        "dspreg manifest 1\n{\n",
        f"dspreg manifest 1\n{{}}\n{SHA}\t1\n",
        f"dspreg manifest 1\n{{}}\n{SHA}\t-1\ta\n",
        f"dspreg manifest 1\n{{}}\n{SHA[1:]}\t1\ta\n",
        f"dspreg manifest 1\n{{}}\n{SHA}\t1\t../a\n",
        f"dspreg manifest 1\n{{}}\n{SHA}\t1\t/a\n",
        f"dspreg manifest 1\n{{}}\n{SHA}\t1\ta\\b\n",
        f"dspreg manifest 1\n{{}}\n{SHA}\t1\ta\n{SHA}\t1\ta\n",
    ],
)
def test_what_is_none_is_refused(text):
    with pytest.raises(IntegrityError, match="is damaged, or no manifest"):
        parse_manifest(text.encode(), "m.tsv")


def test_a_link_in_its_place_is_refused(folder):
    (folder / NAME).symlink_to(folder / "a/x/1.jpg")
    with pytest.raises(IntegrityError, match="a link"):
        read_manifest(folder / NAME)
