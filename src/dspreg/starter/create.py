"""Write the files of a new project, which lie in `files` as they are written."""

from __future__ import annotations

import shutil
import tempfile
from importlib.resources import files
from pathlib import Path

from dspreg.errors import ConfigError
from dspreg.io.atomic_files import make_folder, os_errors_as_cant_write, write

FILES = ("README.md", "my_method.py", "my_data.py", "test_my_work.py", "sweep.yaml")
NAME = "PROJECT"  # stands in README.md for the name of the folder


def create_project(path: str | Path) -> list[Path]:
    """Write a project into a new or empty folder; returns its files.

    The folder appears whole: what is there so far has another name until the last file is written.

    Raises:
        ConfigError: There is something at `path` already.
        CantWrite: The disk is full or read-only.
    """
    path = Path(path).absolute()
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ConfigError(f"{path} is there and is no folder. Give the name of a new one.")
    if path.is_dir() and any(path.iterdir()):
        raise ConfigError(f"{path} is not empty. Give the name of a new folder: nothing is written over.")
    make_folder(path.parent)
    with os_errors_as_cant_write(path, 0):
        beside = Path(tempfile.mkdtemp(prefix=f".{path.name[:100]}.", dir=path.parent))
    try:
        for name in FILES:
            text = (files("dspreg.starter") / "files" / name).read_text(encoding="utf-8")
            write(beside / name, text.replace(NAME, path.name).encode())
        with os_errors_as_cant_write(path, 0):
            beside.chmod(0o755)  # `mkdtemp` makes folders that nobody else may read
            beside.rename(path)  # onto an empty folder, too
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return [path / name for name in FILES]
