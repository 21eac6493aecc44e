"""`dspreg new`: the project works as it is, appears whole or not at all, and nothing is written over."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dspreg.cli import main
from dspreg.errors import ConfigError
from dspreg.starter import create, create_project


def test_a_project_passes_its_own_tests_and_its_sweep_is_one(tmp_path, capsys, monkeypatch):
    project = tmp_path / "my-study"
    assert main(["new", str(project)]) == 0
    said = capsys.readouterr().out
    names = sorted(path.name for path in project.iterdir())
    assert all(f"my-study/{name}" in said for name in names)
    assert (project / "README.md").read_text().startswith("# my-study\n")
    tested = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(tested, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    monkeypatch.chdir(project)
    assert main(["sweep", "sweep.yaml", "--store", "runs", "--dry-run"]) == 0
    assert "12" in capsys.readouterr().out  # three methods, four targets


def test_what_the_readme_lists_is_there(tmp_path):
    made = create_project(tmp_path / "p")
    listed = {line.split("`")[1] for line in made[0].read_text().splitlines() if line.startswith("| `")}
    assert {path.name for path in made} == listed | {"README.md"}
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o755


def test_an_empty_folder_will_do(tmp_path):
    (tmp_path / "p").mkdir()
    assert len(create_project(tmp_path / "p")) == len(create.FILES)


@pytest.mark.parametrize("kind", ["full", "file", "link"])
def test_nothing_is_written_over(tmp_path, kind, capsys):
    place = tmp_path / "p"
    if kind == "full":
        place.mkdir()
        (place / "mine.txt").write_text("mine")
    elif kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="Give the name of a new"):
        create_project(place)
    assert main(["new", str(place)]) == 2
    assert "p" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def fail(path: Path, data: bytes) -> None:
        if path.name == "sweep.yaml":
            raise KeyboardInterrupt
        path.write_bytes(data)

    monkeypatch.setattr(create, "write", fail)
    with pytest.raises(KeyboardInterrupt):
        create_project(tmp_path / "p")
    assert os.listdir(tmp_path) == []
