"""`dspreg doctor`: is this machine ready, and how long will a run take?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dspreg.cli.options import device_flag
from dspreg.cli.parser import Commands, add_command
from dspreg.io.text import escape_terminal, format_duration

if TYPE_CHECKING:
    from dspreg.doctor import Finding, Throughput

MODEL, IMAGE_SIZE = "resnet50.tv_in1k", 224
MARKS = {"ok": "ok", "notice": "note", "problem": "PROBLEM"}

EXAMPLES = """examples:
  dspreg doctor                                  everything below, in a quarter of a minute
  dspreg doctor --root data --store runs/pacs    also the data sets and the runs that are there
  dspreg doctor --device cuda --bench            also precisions and layouts, and the device's numbers beside the CPU's
  dspreg doctor --no-speed --json                for programs, in two seconds

it looks at versions, device, cores, memory, disk, shared memory, cache, weights and the health of a store, measures for
ten seconds how fast a training is on made images, and says how long a run of PACS will take. It changes nothing.
exit codes: 0; 6 if a training would fail of something that was found"""


def add(commands: Commands) -> None:
    parser = add_command(commands, "doctor", "examine this machine, and say how long a run will take", EXAMPLES)
    device_flag(parser)
    parser.add_argument("--root", metavar="DIR", help="folder that holds data sets, to look into")
    parser.add_argument("--store", metavar="DIR", help="store of a sweep, to look into")
    parser.add_argument("--model", default=MODEL, help=f"backbone that is measured (default: {MODEL})")
    parser.add_argument("--no-speed", action="store_true", help="leave the ten seconds of training out")
    parser.add_argument(
        "--bench", action="store_true", help="also compare precisions, layouts, and the device with the CPU"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    from dspreg.devices import resolve_device
    from dspreg.doctor import examine_machine, measure_throughput

    found = []
    for each in examine_machine(given.device, given.root, given.store, given.model):
        found.append(each)
        if not given.json:
            print("\n".join(finding_lines(each)), flush=True)
    failed = any(each.level == "problem" for each in found)
    speed = None
    if not given.no_speed and not any(each.topic == "device" and each.level == "problem" for each in found):
        speed = measure_throughput(resolve_device(given.device), given.model, IMAGE_SIZE)
    if given.json:
        print(json.dumps({"findings": [asdict(each) for each in found], "speed": speed and asdict(speed)}, indent=1))
    elif speed is not None:
        print("\n".join(speed_lines(speed, given.model, resolve_device(given.device))), flush=True)
        if given.bench:
            for line in bench_lines(resolve_device(given.device), given.model, speed.batch):
                print(line, flush=True)
    return 6 if failed else 0


def finding_lines(each: Finding) -> Iterator[str]:
    yield f"{MARKS[each.level]:8}{each.topic:15}{escape_terminal(each.says)}"
    if each.remedy:
        yield f"{'':23}→ {escape_terminal(each.remedy)}"


def speed_lines(speed: Throughput, model: str, device: str) -> Iterator[str]:
    """What was measured, and how long a run of PACS takes by it."""
    from dspreg.data.benchmarks import PACS
    from dspreg.data.loader import reader_processes
    from dspreg.doctor import estimate_range, estimate_run

    costs = {
        "a step of ERM": speed.train["ERM"],
        "a step of DSP-Reg": speed.train["DSPReg"],
        "measuring c": speed.measure,
        "evaluating": speed.evaluate,
    }
    yield ""
    yield f"{model} at {IMAGE_SIZE} pixels, random weights, batches of 3×1 and 3×{speed.batch} images:"
    yield f"  {'':40}{'ms per image':>14}{'and fixed':>12}"
    yield from (f"  {name:40}{1000 * c.per_image:14.1f}{1000 * c.fixed:12.0f}" for name, c in costs.items())
    yield f"  {'reading and augmenting, on one core':40}{1000 * speed.read_augmented:14.1f}"
    # on a CPU, processes that read take the cores from the training
    workers = 0 if device == "cpu" else reader_processes(None, small=False)
    texts = []
    for name in ("ERM", "DSPReg"):
        low, high = (format_duration(each) for each in estimate_range(PACS, speed, name, workers))
        about = format_duration(estimate_run(PACS, speed, name, workers))
        texts.append(f"{about} ({low} to {high})")
    yield ""
    yield f"a PACS run of ERM (5,001 steps) will take about {texts[0]} here, of DSP-Reg {texts[1]}"


def bench_lines(device: str, model: str, batch: int) -> Iterator[str]:
    """Every precision and layout, and how far the device is from the CPU."""
    from dspreg.doctor.bench import compare_speeds, compare_with_cpu

    yield ""
    yield f"milliseconds per image of an ERM step on {device}, {model} at {IMAGE_SIZE} pixels, 3×{batch} images:"
    for row in compare_speeds(device, model, IMAGE_SIZE, batch):
        yield f"  --precision {row.precision:6}--layout {row.layout:18}{1000 * row.seconds:9.1f}"
    yield ""
    if device == "cpu":
        yield "the device is the CPU: there is nothing to compare it with"
        return
    for name, error in compare_with_cpu(device, model, IMAGE_SIZE).items():
        what = "ERM's gradient" if name == "ERM" else "DSP-Reg's penalty part"
        verdict = "as it should be" if error < 0.05 else "TOO FAR: please report this with the lines above"
        yield f"{what} on {device} and on the CPU: relative difference {error:.1e}, {verdict}"
