"""What stands after --dataset, without looking whether it is there."""

import subprocess
import sys

import pytest

from dspreg.config.dataset_ref import DatasetRef
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
