"""`dspreg doctor`: what it finds on machines that are made up, and what it makes of a machine's speed."""

import json
import shutil
from collections import namedtuple

import pytest

from dspreg.algorithms import DSPReg
from dspreg.cli import main
from dspreg.data.benchmarks import PACS, DomainNet
from dspreg.data.splits import split, steps_per_epoch
from dspreg.doctor import Throughput, checks, estimate_range, estimate_run, measure_throughput, throughput
from dspreg.doctor.bench import compare_speeds, compare_with_cpu
from dspreg.doctor.estimate import work_of
from dspreg.doctor.throughput import Cost, fit_line
from dspreg.io.text import format_duration
from dspreg.testing import ready, toy_task
from helpers.stores import fail, planned

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000\n", None), ("150000 100000\n", 1.5), ("", None), ("nonsense", None)]
)
def test_a_container_may_use_fewer_cores_than_there_are(tmp_path, text, cores):
    file = tmp_path / "cpu.max"
    file.write_text(text)
    assert checks.cpu_quota(file) == cores
    assert checks.cpu_quota(tmp_path / "none") is None


def test_memory_is_at_most_that_of_the_container(tmp_path):
    info, group = tmp_path / "meminfo", tmp_path / "memory.max"
    info.write_text("MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:    8000000 kB\n")
    assert checks.memory_limits(info, group) == (16e6 * 1024, 8e6 * 1024)
    group.write_text("max\n")
    assert checks.memory_limits(info, group) == (16e6 * 1024, 8e6 * 1024)
    group.write_text("4000000000\n")
    assert checks.memory_limits(info, group) == (4e9, 4e9)
    assert checks.memory_limits(tmp_path / "none", tmp_path / "none") == (None, None)


@pytest.mark.parametrize(("free", "level"), [(0.5e9, "problem"), (5e9, "notice"), (50e9, "ok")])
def test_a_full_disk_is_a_problem(monkeypatch, tmp_path, free, level):
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "not" / "there"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1e12, 1e12 - free, free))
    disks = [each for each in checks.check_disks() if each.topic == "disk"]
    assert {each.level for each in disks} == {level}
    assert all(bool(each.remedy) == (level != "ok") for each in disks)


def test_weights_that_are_not_there_are_said_to_be_missing(monkeypatch):
    monkeypatch.setattr(checks, "find_cached", lambda repo: None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = checks.check_weights("resnet50.tv_in1k")
    assert (found.level, "HF_HUB_OFFLINE is set" in found.says, "--weights FILE" in found.remedy) == (
        "notice",
        True,
        True,
    )
    monkeypatch.setattr(checks, "find_cached", lambda repo: repo)
    assert checks.check_weights("resnet50.tv_in1k").level == "ok"
    assert checks.check_weights("resnet5000").level == "problem"


def test_data_and_stores_are_looked_into(tmp_path):
    assert checks.check_data(tmp_path / "none").level == "problem"
    assert checks.check_data(tmp_path).level == "notice"
    (tmp_path / "PACS").mkdir()
    assert "PACS" in checks.check_data(tmp_path).says
    assert checks.check_store(tmp_path / "none").level == "problem"


def test_the_work_of_a_run_is_that_of_a_loop_over_its_steps():
    """PACS by hand: 5,001 steps of 3×32, an evaluation every 300, c at the start of every second epoch."""
    trained, evaluated, measured = [], [], []
    for target in PACS.domains:
        sizes = {
            name: [len(part) for part in split(PACS.counts[name], 0, d, 0.2)] for d, name in enumerate(PACS.domains)
        }
        inside = [sizes[name][0] for name in PACS.domains if name != target]
        layer = ready(DSPReg(), toy_task())
        epoch = steps_per_epoch(inside, 96)
        images, seen, refreshed = 0, 0, 2
        for t in range(5_001):
            images += 96
            if t % 300 == 0 or t == 5_000:
                seen += sum(sizes[name][name != target] for name in PACS.domains)
            refreshed += (t + epoch) % (layer.refresh_epochs * epoch) == 0
        trained.append(images)
        evaluated.append(seen)
        measured.append(refreshed * 3 * 512)
    work = work_of(PACS)
    assert {work.steps * work.images} == set(trained)
    assert work.evaluated == pytest.approx(sum(evaluated) / 4, rel=1e-3)  # a split rounds to whole images
    assert work.refreshes * work.measured == pytest.approx(sum(measured) / 4, rel=1e-2)
    assert work_of(DomainNet).evaluated > 10 * work.evaluated


def test_an_estimate_adds_up_what_everything_costs():
    train = {"ERM": Cost(2.0, 1.0), "DSPReg": Cost(4.0, 2.0)}
    speed = Throughput(train, Cost(8.0, 0.5), Cost(10.0, 3.0), read_augmented=0.25, read_plain=0.125, batch=8)
    w = work_of(PACS)
    evaluating = w.evaluated * (8 / 64 + 0.5)
    erm = 5_001 * (2 + 96 * 1.25) + evaluating + w.evaluated * 0.25
    assert estimate_run(PACS, speed) == pytest.approx(erm)
    refreshing = w.refreshes * (10 + w.measured * 3.125)
    assert estimate_run(PACS, speed, "DSPReg") == pytest.approx(erm + 5_001 * (2 + 96) + refreshing)
    assert estimate_run(PACS, speed, workers=4) == pytest.approx(5_001 * 98 + evaluating)  # reading is hidden behind it
    slow = Throughput(train, Cost(0.0, 0.01), Cost(0.0, 0.0), read_augmented=40.0, read_plain=0.0, batch=8)
    assert estimate_run(PACS, slow, workers=4) == pytest.approx(10 * (5_001 * 96 + w.evaluated))  # it waits for them


def test_a_range_is_from_the_fastest_round_to_batches_that_gain_nothing():
    train = {"ERM": Cost(2.0, 1.0), "DSPReg": Cost(4.0, 2.0)}
    speed = Throughput(train, Cost(8.0, 0.5), Cost(10.0, 3.0), 0.25, 0.125, batch=8, fastest=0.9, slowest=1.5)
    low, high = estimate_range(PACS, speed)
    w = work_of(PACS)
    assert low == pytest.approx(0.9 * estimate_run(PACS, speed))
    step, prediction = 96 * (26 / 24 + 0.25), (20 / 24 + 0.25)  # 24 images took 2 + 24 and 8 + 12 seconds
    assert high == pytest.approx(1.5 * (5_001 * step + w.evaluated * prediction))
    assert low < estimate_run(PACS, speed) < high


class Machine:
    """A clock that goes on by what each work takes."""

    def __init__(self, monkeypatch, per_image):
        self.time, self.per_image = 0.0, per_image
        monkeypatch.setattr(throughput.time, "perf_counter", lambda: self.time)
        monkeypatch.setattr(throughput, "works_of", self.works)
        monkeypatch.setattr(throughput, "read", lambda *_: self.spend(0.001))

    def works(self, _erm, _backbone, _device, batches):
        images = sum(map(len, batches))
        costs = {"ERM": 1, "DSPReg": 2, "measure": 4, "evaluate": 0.3}
        return {name: lambda cost=cost: self.spend(cost * images * self.per_image) for name, cost in costs.items()}

    def spend(self, seconds):
        self.time += seconds


@pytest.mark.parametrize(("per_image", "batch", "most"), [(0.0001, 32, 11), (0.02, 27, 14), (0.3, 2, 17)])
def test_speed_is_measured_in_ten_seconds_however_slow_a_step(monkeypatch, per_image, batch, most):
    machine = Machine(monkeypatch, per_image)
    found = measure_throughput("cpu", "small-cnn", 28)
    assert machine.time < most
    assert found.batch == batch
    for name, cost in (("ERM", 1), ("DSPReg", 2)):
        assert found.train[name].of(96) == pytest.approx(96 * cost * per_image)
    assert found.measure.of(96) == pytest.approx(96 * 4 * per_image)
    assert found.evaluate.of(96) == pytest.approx(96 * 0.3 * per_image)


def test_the_health_of_a_store_is_looked_at(tmp_path):
    store, runs = planned(tmp_path / "store")
    assert checks.check_store(store.path).level == "ok"
    fail(store, runs[0])
    assert "retry" in checks.check_store(store.path).remedy
    (store.path / "runs" / runs[1].id).write_text("a file where a folder belongs")
    found = checks.check_store(store.path)
    assert (found.level, "1 run can't be read" in found.says, runs[1].id in found.remedy) == ("problem", True, True)
    assert next(each for each in checks.examine_machine("cpu") if each.topic == "store").says.startswith("none given")


def test_costs_are_a_line_through_two_sizes():
    assert fit_line([3, 12], [5.0, 14.0]) == pytest.approx((2.0, 1.0))
    assert Cost(2.0, 1.0).of(96) == 98
    assert fit_line([3, 12], [1.0, 14.0]) == pytest.approx((0.0, 14 / 12))  # noise
    assert fit_line([3, 12], [2.0, 1.0]) == pytest.approx((0.0, 1 / 12))


def test_speed_is_measured_and_moves_nothing():
    found = measure_throughput("cpu", "small-cnn", 28, seconds=0.4)
    costs = [*found.train.values(), found.evaluate, found.measure]
    assert all(0 <= each.fixed < 60 and 0 < each.per_image < 60 for each in costs)
    assert 0 < found.read_plain < 60
    assert 0 < found.read_augmented < 60
    assert 2 <= found.batch <= 32
    assert found.fastest <= 1 <= found.slowest


def test_a_device_is_compared_with_the_cpu(monkeypatch):
    assert compare_with_cpu("cpu", "small-cnn", 28) == {"ERM": 0.0, "DSPReg": 0.0}
    monkeypatch.setattr("dspreg.doctor.bench.SECONDS", 0.01)
    rows = list(compare_speeds("cpu", "small-cnn", 28, 1))
    assert {row.precision for row in rows} == {"fp32", "bf16", "fp16"}  # tf32 is for CUDA
    assert {row.layout for row in rows} == {"channels-first", "channels-last"}
    assert all(row.seconds > 0 for row in rows)


def test_the_command_prints_a_line_a_finding(capsys, tmp_path):
    assert main(["doctor", "--no-speed", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for topic in ("versions", "device", "cores", "memory", "disk", "cache", "shared memory", "weights", "store"):
        assert any(line[8:].startswith(topic) for line in lines), topic
    assert main(["doctor", "--no-speed", "--json", "--device", "cpu", "--root", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["speed"] is None
    assert {each["level"] for each in found["findings"]} <= {"ok", "notice"}


def test_what_makes_a_training_fail_is_a_problem_and_an_exit_code(capsys, tmp_path):
    assert main(["doctor", "--no-speed", "--root", str(tmp_path / "none")]) == 6
    assert "PROBLEM data" in capsys.readouterr().out
    assert main(["doctor", "--device", "cuda:99"]) == 6
    out = capsys.readouterr().out
    assert "PROBLEM device" in out
    assert "milliseconds" not in out  # nothing is measured on a device that is not there


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (40, "40 s"),
        (2_460, "41 min"),
        (7_200, "2 h"),
        (9_000, "2.5 h"),
        (100_000, "28 h"),
        (270_000, "3.1 days"),
    ],
)
def test_durations_are_for_people(seconds, text):
    assert format_duration(seconds) == text
