"""A program ends although an error of its loader is kept, as notebooks keep the last one."""

import subprocess
import sys

PROGRAM = """
from dspreg.data.loader import iterate_batches

class Source:
    def __getitem__(self, i):
        if i == 2:
            raise ValueError("bad")
        return i

try:
    list(iterate_batches(Source(), range(4), 1))
except ValueError as error:
    kept = error
print("at the end")
"""


def test_processes_of_a_loader_end_with_an_error_of_it():
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    assert said.stdout == "at the end\n"
