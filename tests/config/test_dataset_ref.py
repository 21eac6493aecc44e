"""What stands after --dataset, without looking whether it is there."""

import subprocess
import sys

import pytest

from dspreg.config.dataset_ref import DatasetRef, check_group, parse_columns
from dspreg.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "kind", "target", "name"),
    [
        ("PACS", "name", "PACS", "PACS"),
        ("my_data.Mine", "name", "my_data.Mine", "my_data.Mine"),
        ("http://x", "name", "http://x", "http://x"),
        ("folders:x", "name", "folders:x", "folders:x"),
        ("folder:photos", "folder", "photos", "photos"),
        ("folder:/mnt/a/photos/", "folder", "/mnt/a/photos/", "photos"),
        ("folder:C:/photos.v2", "folder", "C:/photos.v2", "photos.v2"),
        ("index:/mnt/list.csv", "index", "/mnt/list.csv", "list"),
        ("index:folder:x.csv", "index", "folder:x.csv", "folder:x"),
    ],
)
def test_references(text, kind, target, name):
    ref = DatasetRef.parse(text)
    assert (ref.kind, ref.target, ref.data_name()) == (kind, target, name)
    assert ref.is_path is (kind != "name")
    assert str(ref) == text
    assert ref.data_name("mine") == ("mine" if ref.is_path else name)


@pytest.mark.parametrize(("text", "what"), [("folder:", "folder"), ("index:", "file")])
def test_a_path_must_follow(text, what):
    with pytest.raises(ConfigError, match=f"^'{text}' names no {what}. Write {text}PATH.$"):
        DatasetRef.parse(text)


def test_a_name_is_for_paths():
    DatasetRef.parse("folder:x").check_name("mine")
    DatasetRef.parse("PACS").check_name(None)
    with pytest.raises(ConfigError, match="'PACS' has its own"):
        DatasetRef.parse("PACS").check_name("mine")


def test_references_need_no_torch():
    program = "import sys, dspreg.config.dataset_ref; print('torch' in sys.modules, 'numpy' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "False False\n"


# What is said of a path.


@pytest.mark.parametrize(
    ("text", "target", "says"),
    [
        ("folder:photos?group=p%5B0-9%5D%2B", "photos", {"group": "p[0-9]+"}),
        ("index:a b.csv?label=class&group=patient%20id", "a b.csv", {"label": "class", "group": "patient id"}),
        ("folder:what?", "what?", {}),
        ("folder:what?x=1", "what?x=1", {}),
        ("folder:photos?label=class", "photos?label=class", {}),  # a folder has no columns
        ("index:a?b.csv", "a?b.csv", {}),
        ("index:a?group=x/b.csv", "a?group=x/b.csv", {}),
        ("index:a.csv?group=x&group=y", "a.csv?group=x&group=y", {}),
    ],
)
def test_what_follows_a_path(text, target, says):
    ref = DatasetRef.parse(text)
    assert (ref.target, dict(ref.says)) == (target, says)
    assert str(ref) == text
    assert DatasetRef.parse(str(ref)) == ref


def test_what_is_said_has_one_order_and_is_no_part_of_the_name():
    one = DatasetRef.parse("index:d/photos.csv").with_names({"group": "who & when", "path": "file"})
    other = DatasetRef.parse("index:d/photos.csv?group=x").with_names({"path": "file", "group": "who & when"})
    assert one == other
    assert str(one) == "index:d/photos.csv?path=file&group=who%20%26%20when"
    assert one.data_name() == "photos"
    assert dict(DatasetRef.parse(str(one)).says) == {"path": "file", "group": "who & when"}


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("PACS", {"group": "x"}, "'group' can be said of folder:PATH or index:FILE.csv, and not of 'PACS'"),
        ("folder:x", {"label": "x"}, "'label' can be said of index:FILE.csv"),
        ("hf:a/b", {"group": "x"}, "and not of 'hf:a/b'"),
    ],
)
def test_what_can_not_be_said(text, given, said):
    with pytest.raises(ConfigError, match=said):
        DatasetRef.parse(text).with_names(given)


def test_columns_in_text():
    assert parse_columns("path=filename, label = class,domain=site") == {
        "path": "filename", "label": "class", "domain": "site",
    }  # fmt: skip
    for bad in ("path", "path=", "paths=x", "path=a,path=b", "", "=x"):
        with pytest.raises(ConfigError, match="wanted OURS=YOURS"):
            parse_columns(bad)


def test_a_group_is_an_expression():
    with pytest.raises(ConfigError, match=r"--group '\(' is no regular expression: missing \)"):
        check_group("(")


def test_runs_of_other_groups_are_other_runs():
    from dspreg.runs.run import Run

    runs = [
        Run(dataset=f"folder:x/photos{says}", targets=("a",), algorithm="ERM")
        for says in ("", "?group=p1", "?group=p2")
    ]
    assert len({run.id for run in runs}) == 3
    assert runs[0].identity()["dataset"] == "folder:photos"  # as it was
    assert {run.data_name for run in runs} == {"photos"}
