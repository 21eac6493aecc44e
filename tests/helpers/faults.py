"""Crashes and refusals of the disk, at any operation that is chosen."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from dspreg.io import atomic_files as files


class Crash(BaseException):
    """The process is gone: nobody may catch this to tidy up."""


class Disk:
    """Counts open for writing, write, truncate, fsync, replace and unlink, and stops at the n-th.

    Args:
        stop: Which operation, from 0; None lets all pass.
        how: "before" it, "after" it, or "torn": a write of one half of the bytes.
        error: Raised then; a crash or the system's refusal.
    """

    def __init__(self, monkeypatch, stop=None, how="before", error=None):
        self.done, self.stop, self.how, self.error = [], stop, how, error or Crash()
        replace, fsync, unlink, opened = os.replace, os.fsync, pathlib.Path.unlink, files.open_for_writing
        monkeypatch.setattr(
            files, "open_for_writing", lambda *how: Unbuffered(self, self.operation("open", lambda: opened(*how)))
        )
        monkeypatch.setattr(files.os, "replace", lambda a, b: self.operation("replace", lambda: replace(a, b)))
        monkeypatch.setattr(files.os, "fsync", lambda fd: self.operation("fsync", lambda: fsync(fd)))
        monkeypatch.setattr(
            pathlib.Path, "unlink", lambda p, missing_ok=False: self.operation("unlink", lambda: unlink(p, missing_ok))
        )

    def operation(self, name, act, half=None):
        now = len(self.done) == self.stop
        self.done.append(name)
        if now and self.how == "torn" and half:
            half()
        if now and self.how in ("before", "torn"):
            raise self.error
        result = act()
        if now:
            if name == "open":
                result.close()
            raise self.error
        return result


class Unbuffered:
    def __init__(self, disk, handle):
        self.disk, self.handle = disk, handle

    def write(self, data):
        return self.disk.operation("write", lambda: self._write(data), lambda: self._write(data[: len(data) // 2]))

    def _write(self, data):
        self.handle.write(data)
        self.handle.flush()

    def truncate(self, size):
        return self.disk.operation("truncate", lambda: self.handle.truncate(size))

    def flush(self):
        pass

    def fileno(self):
        return self.handle.fileno()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.handle.close()


def operations(act):
    """The durable operations of an act that succeeds."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        act()
    return disk.done


def stopped(act, stop, how, error=None):
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, stop, how, error)
        act()


def as_nobody(program, folder):
    """Run a program as a user who isn't root."""
    command = [sys.executable, "-c", program]
    if os.getuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("runs as root, whom nothing is refused, and there is no setpriv")
        for parent in (folder, *folder.parents):  # pytest keeps its folders to itself
            if parent.stat().st_uid == 0 and parent != parent.parent and "pytest" in str(parent):
                parent.chmod(parent.stat().st_mode | 0o755)
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HOME": "/nonexistent"})
    assert done.returncode == 0, done.stderr
    return done.stdout
