"""The notebooks of the examples run as they stand, and show what they showed when they were written."""

import warnings
from pathlib import Path

import nbformat
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def shown(notebook):
    """Kinds of the outputs of every cell that are results; progress and its remains are not."""
    return [
        [sorted(each["data"]) for each in cell.outputs if each.output_type == "execute_result"]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def errors(notebook):
    outputs = [each for cell in notebook.cells if cell.cell_type == "code" for each in cell.outputs]
    return [each for each in outputs if each.output_type == "error" or each.get("name") == "stderr"]


def test_there_are_two():
    assert [path.stem for path in NOTEBOOKS] == ["compare_methods", "look_into_a_network"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_as_it_stands(path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent / "src"))
    written = nbformat.read(path, as_version=4)
    fresh = nbformat.from_dict({**written, "cells": [dict(cell) for cell in written.cells]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the machinery of Jupyter, about its own sockets and loops
        from nbclient import NotebookClient

        client = NotebookClient(fresh, timeout=300, kernel_name="python3")
        client.execute()
    assert errors(fresh) == errors(written) == []
    assert shown(fresh) == shown(written)
    assert sum(map(len, shown(fresh))) >= 3
