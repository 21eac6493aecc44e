"""Folders of domains without classes."""

import pytest

from dspreg.data.unlabelled import Unlabelled, without_classes
from dspreg.errors import DataError, Notice
from helpers.images import small_tree, tree


def test_domains_and_images_and_no_classes(tmp_path):
    tree(tmp_path / "inbox", ["b/2.jpg", "b/10.jpg", "a/deep/1.png", "a/0.png", ".hidden/1.jpg"])
    data = Unlabelled(tmp_path / "inbox")
    assert (data.name, data.domains, data.classes, data.num_classes) == ("inbox", ("a", "b"), (), 0)
    assert data.domain("a").names == ["a/0.png", "a/deep/1.png"]
    assert data.domain("b").names == ["b/10.jpg", "b/2.jpg"]
    assert data.domain("b")[0][0].size == (12, 9)
    assert Unlabelled(tmp_path / "inbox", "post").name == "post"


def test_what_is_not_read_is_told(tmp_path):
    tree(tmp_path, ["a/1.jpg", "b/1.jpg"])
    (tmp_path / "a" / "notes.txt").write_text("x")
    with pytest.warns(Notice, match="ignored 1 file of 'a'"):
        Unlabelled(tmp_path)


def test_an_empty_domain_is_refused(tmp_path):
    tree(tmp_path, ["a/1.jpg"])
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"the domain 'b' .* has no images"):
        Unlabelled(tmp_path)


def test_which_folders_have_no_classes(tmp_path):
    assert without_classes(small_tree(tmp_path / "with")) is None
    assert without_classes(tmp_path / "nowhere") is None
    assert without_classes(tree(tmp_path / "mixed", ["a/1.jpg", "b/cat/1.jpg"])) is None  # a mistake: Folder says which
    assert without_classes(tree(tmp_path / "flat", ["a/1.jpg", "b/1.jpg"])) == str(tmp_path / "flat/a/1.jpg")
