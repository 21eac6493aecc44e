"""A sweep on a Ray cluster of several nodes while nodes, processes and sweepers are killed; finished without Ray.

    python tests/slow/ray_nodes.py

A head without CPUs and three nodes of one CPU each, all on this machine. The same sweep is done undisturbed on this
machine alone, and both reports must be equal to the byte. Something is only killed while it trains.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dspreg.runs.store import RunStore

WHAT = [
    "--dataset", "digits", "--algorithms", "ERM", "CORAL", "DSPReg", "--trials", "3", "--draws", "2",
    "--only", "training", "--set", "steps=4", "--set", "evaluate_every=4", "--set", "batch_size=16", "--threads", "1",
    "--profile", "never", "--keep", "none", "--save-every", "1", "--attempts", "5",
]  # fmt: skip
MEMORY = 200_000_000  # of each node's object store; Ray's least is not much less
NODES = 3


class Place:
    """Where one of the two sweeps is, and all that its sweepers said."""

    def __init__(self, folder: Path):
        folder.mkdir(exist_ok=True)
        self.folder, self.log, self.store = folder, folder / "said", RunStore(folder / "store")

    def sweep(self, *more: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as said:
            return subprocess.Popen(command("sweep", *WHAT, "--store", "store", *more), cwd=self.folder, stdout=said)

    def report(self) -> bytes:
        return subprocess.run(command("report", "store"), cwd=self.folder, check=True, capture_output=True).stdout

    def states(self) -> Counter[str]:
        return Counter(self.store.status(run).status for run in self.store.planned_runs())

    def finished(self) -> int:
        return len(list(self.store.path.glob("runs/*/result.json")))

    def trained(self) -> Counter[str]:
        """How often each run was said to have been trained to its end."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        ends = [line for line in lines if ": unseen " in line and not line.endswith("as before")]
        return Counter(line.partition("] ")[2].partition(": unseen ")[0] for line in ends)


def command(*more: str) -> list[str]:
    return [sys.executable, "-m", "dspreg.cli", *more]


class Nodes:
    """A cluster, and what can be done to it."""

    def __init__(self, count: int):
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.added() for _ in range(count)]

    def added(self) -> Any:
        return self.cluster.add_node(num_cpus=1, object_store_memory=MEMORY)

    def training(self) -> dict[int, Any]:
        """Numbers of the processes that train now, and their nodes."""
        raylets = {node.all_processes["raylet"][0].process.pid: node for node in self.nodes}
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                title = (place / "cmdline").read_bytes()
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended
                continue
            if title.startswith(b"ray::attempt_run") and parent in raylets:
                found[int(place.name)] = raylets[parent]
        return found

    def kill_process(self, chance: random.Random) -> bool:
        there = self.training()
        if there:
            os.kill(chance.choice(sorted(there)), signal.SIGKILL)
        return bool(there)

    def kill_node(self, chance: random.Random) -> bool:
        """One that trains; another joins."""
        there = self.training()
        if there:
            node = there[chance.choice(sorted(there))]
            self.nodes.remove(node)
            self.cluster.remove_node(node, allow_graceful=False)
            self.nodes.append(self.added())
        return bool(there)


def disturbed(place: Place, nodes: Nodes, chance: random.Random, kills: Counter[str], until: int) -> None:
    """Sweep on the cluster until so many runs are finished; then the sweeper is killed, too."""
    sweeper = place.sweep("--on", "ray", "--ray-address", nodes.cluster.address)
    ways: dict[str, Callable[[random.Random], bool]] = {"process": nodes.kill_process, "node": nodes.kill_node}
    order = ["process", "node"] * 2
    apart = (until - place.finished()) // (len(order) + 1)
    for what in order:
        least = place.finished() + apart
        wait(sweeper, lambda least=least: place.finished() >= least)
        time.sleep(chance.uniform(0, 2))
        while not ways[what](chance):
            time.sleep(0.05)
        kills[what] += 1
        print(f"{place.finished()} finished: a {what} was killed", flush=True)
    wait(sweeper, lambda: place.finished() >= until and bool(nodes.training()))
    sweeper.kill()
    sweeper.wait()
    kills["sweeper"] += 1
    print(f"{place.finished()} finished: the sweeper was killed", flush=True)


def wait(sweeper: subprocess.Popen[bytes], come: Callable[[], bool]) -> None:
    while not come():
        if sweeper.poll() is not None:
            raise SystemExit(f"the sweeper ended by itself, with exit code {sweeper.returncode}")
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the moments and of who is killed")
    parser.add_argument("--undisturbed", metavar="DIR", type=Path, help="keep that sweep here, for the next time")
    options = parser.parse_args()
    chance, kills = random.Random(options.seed), Counter[str]()
    os.environ.update(RAY_worker_niceness="0")  # on a busy machine they would come last, and this take hours
    with tempfile.TemporaryDirectory() as folder:
        quiet, loud = Place(options.undisturbed or Path(folder) / "undisturbed"), Place(Path(folder) / "disturbed")
        began, before = time.monotonic(), quiet.finished()
        if quiet.sweep("--jobs", str(NODES)).wait() != 0:
            raise SystemExit("the undisturbed sweep failed")
        runs = quiet.finished()
        print(f"undisturbed, without Ray: {runs} runs, {runs - before} of them now, "
              f"in {time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
        began, nodes = time.monotonic(), Nodes(NODES)
        try:
            for share in (0.4, 0.8):
                disturbed(loud, nodes, chance, kills, round(share * runs))
        finally:
            nodes.cluster.shutdown()
        on_ray = loud.finished()
        code = loud.sweep("--jobs", str(NODES)).wait()
        states, often = loud.states(), loud.trained()
        same = loud.report() == quiet.report()
        once = max(often.values()) == 1
        print(
            f"{states['finished']} of {runs} runs finished in {time.monotonic() - began:.0f} s, {on_ray} of them on "
            f"Ray and {runs - on_ray} without; killed: {kills['node']} nodes, {kills['process']} processes, "
            f"{kills['sweeper']} sweepers; trained to the end more than once: {sum(n > 1 for n in often.values())}; "
            f"reports {'equal to the byte' if same else 'DIFFER'} ({len(quiet.report()):,} bytes)"
        )
        return 0 if code == 0 and same and once and states == {"finished": runs} else 1


if __name__ == "__main__":
    sys.exit(main())
