"""Where there is no `fcntl`, no fork and no SIGKILL, as on Windows."""

import json
import subprocess
import sys
from pathlib import Path


def test_everything_imports_and_trains_without_what_windows_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    program = Path(__file__).parent / "helpers/other_systems.py"
    done = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["hidden"]
    assert told["modules"] > 300
    assert told["step"] == 1  # the second of two
    assert "is in use by another training" in told["refused"]
    assert not (tmp_path / "run/lock").exists()
