"""Examples and recipes do what their first lines say."""

import subprocess
import sys
from pathlib import Path

import pytest

from dspreg import describe, parse

ROOT = Path(__file__).parents[2]


def run(*arguments, code=0):
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == code, done.stderr
    return done.stderr + done.stdout


def test_measure_sensitivity_tells_the_two_parameters_apart():
    rows = [line.split() for line in run("examples/measure_sensitivity.py").splitlines()]
    assert len(rows) == 6
    for _, name, _, c, _, null, *_ in rows:
        assert float(c) == pytest.approx(0.707 if name == "specific" else 0.0, abs=0.12)
        assert float(null) < 0.3


def test_an_algorithm_of_ones_own_keeps_the_laws():
    assert "my_algorithm" not in sys.modules
    assert "keeps the laws of stacking" in run("examples/my_algorithm.py")
    assert len((ROOT / "examples/my_algorithm.py").read_text().splitlines()) <= 32


def test_own_loop():
    rows = [line.split() for line in run("examples/own_loop.py").splitlines()]
    assert [row[1] for row in rows] == ["0:", "20:", "40:"]
    mean_c = [float(row[6].rstrip(",")) for row in rows]
    assert mean_c[0] == 1  # not measured yet
    assert 0.2 < mean_c[1] < 1.42 > mean_c[2] > 0.2
    assert all(float(row[-1].rstrip("%")) > 1 for row in rows)


@pytest.mark.parametrize(("example", "steps"), [("lightning", 60), ("accelerate", 60), ("transformers", 30)])
def test_other_trainers_give_the_numbers_of_a_plain_loop(example, steps):
    *_, last = run(f"examples/with_{example}.py").splitlines()
    assert last.endswith(f" {steps} steps, largest difference to the plain loop 0")


def test_recipes_are_specs():
    listed = [line.split()[0] for line in run("recipes/ablations.py").splitlines()]
    assert listed == ["components", "dynamic", "interval", "strength"]
    for name in listed:
        specs = run("recipes/ablations.py", name).splitlines()
        assert len(set(specs)) == len(specs) >= 2
        for spec in specs:
            assert describe(parse(describe(parse(spec)))) == describe(parse(spec))
    assert "there are components" in run("recipes/ablations.py", "everything", code=1)
