"""The parts of bench/against_domainbed.py that need no checkout of DomainBed."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes as Linux shows them")

BENCH = Path(__file__).parents[1] / "bench"
PROGRAM = """
import os, sys, time
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        end = time.process_time() + {seconds}
        while time.process_time() < end:
            pass
        os._exit(0)
    children.append(pid)
if {waits}:
    for pid in children:
        os.waitpid(pid, 0)
else:
    time.sleep({seconds} * 20)  # nobody waits for them: they are adopted
sys.exit({code})
"""


@pytest.fixture
def bench(monkeypatch):
    """Imports a module of the benchmarks by its name."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


@pytest.mark.parametrize("waits", [True, False])
def test_the_work_of_all_processes_of_a_command_counts(bench, tmp_path, waits):
    measure = bench("peer.process_tree").measure_command
    program = PROGRAM.format(seconds=0.3, waits=waits, code=0)
    cost = measure([sys.executable, "-c", program], {}, tmp_path, weigh=True)
    assert cost.cpu >= 0.85  # three children, 0.3 s each by their own clocks; no upper bound: it is a shared machine
    assert (cost.processes, cost.together) == (4, 4)
    assert cost.memory is not None


def test_a_command_that_fails_ends_the_benchmark_with_what_it_printed(bench, tmp_path):
    measure = bench("peer.process_tree").measure_command
    with pytest.raises(SystemExit, match=r"exit code 3:\nno such thing"):
        measure([sys.executable, "-c", "print('no such thing'); raise SystemExit(3)"], {}, tmp_path)
    assert measure([sys.executable, "-c", "raise SystemExit(3)"], {}, tmp_path, ends=3).wall > 0


def test_works_evaluate_as_many_images_per_image_trained_on_as_the_protocol(bench):
    works = bench("peer.works")
    # PACS: 5,001 steps of 96 images; 9,991 images after steps 0, 300, …, 4,800 and 5,000
    assert works.PROTOCOLS["PACS"].evaluated_per_trained == pytest.approx(18 * 9_991 / (5_001 * 96))
    for work in works.RUNS.values():
        sized = work.sized(work.images)
        evaluated_at = [t for t in range(sized.steps) if t % sized.every == 0 or t == sized.steps - 1]
        assert len(evaluated_at) == sized.evaluations
        share = len(evaluated_at) * sized.images / (sized.steps * sized.batch * sized.protocol.sources)
        assert share == pytest.approx(sized.protocol.evaluated_per_trained, rel=0.15)


def test_costs_per_image_solve_two_equations(bench):
    costs = bench("against_domainbed").loading_costs
    found = {"images": 240, "trained": 2_400, "trained_more": 2_592, "evaluations": 2, "evaluations_more": 7}
    few, more = 5 + 2_400 * 0.01 + 480 * 0.004, 5 + 2_592 * 0.01 + 1_680 * 0.004
    assert costs(found, few, more, 5.0) == pytest.approx((0.01, 0.004))


def test_made_data_are_what_both_sides_read(bench, tmp_path):
    data, rng = bench("peer.data"), np.random.default_rng(0)
    assert data.make_photos(tmp_path, 62, rng) == len(list(tmp_path.glob("PACS/*/*/*.jpg")))
    assert {path.name for path in tmp_path.glob("PACS/*")} == set(data.PACS)
    assert data.make_domain_net(tmp_path, 405, rng) == len(list(tmp_path.glob("domain_net/*/*/*.jpg"))) == 405
    assert len(list(tmp_path.glob("domain_net/sketch/*"))) == 345
    data.make_mnist(tmp_path, 70, rng)
    made = bench("peer.rotated").RotatedMNIST(tmp_path)
    assert sum(len(made.domain(name)) for name in made.domains) == 70
    image, label = made.domain("0")[0]
    assert (image.size, image.mode, label) == ((28, 28), "RGB", int(made.labels[0]))
    assert np.array_equal(np.asarray(image)[..., 0], made.pixels[0])


def test_a_folder_that_is_no_checkout_is_refused(bench, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        bench("peer.stand_ins").make_importable(tmp_path)
    assert ended.value.code == 3
    assert "no checkout of DomainBed" in capsys.readouterr().err


def test_a_checkout_may_be_made_importable_twice(bench, tmp_path, monkeypatch):
    (tmp_path / "domainbed" / "scripts").mkdir(parents=True)
    (tmp_path / "domainbed" / "scripts" / "train.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path])
    stand_ins = bench("peer.stand_ins")
    for name in stand_ins.WILDS:
        monkeypatch.setitem(sys.modules, name, None)  # undone at the end
        del sys.modules[name]
    stand_ins.make_importable(tmp_path)
    stand_ins.make_importable(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1
    assert importlib.import_module("wilds.datasets.fmow_dataset").FMoWDataset
