"""A few of `make kills`, which runs thirty."""

import subprocess
import sys
from pathlib import Path


def test_killed_runs_end_in_the_same_bits():
    command = [sys.executable, str(Path(__file__).with_name("kill.py")), "--runs", "3", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the same bits") == 3
    assert "3 endings bit-identical" in done.stdout
