"""Two processes that train one model with DistributedDataParallel (gloo), and what each of them ended with.

    python tests/helpers/distributed.py RANK WORLD STORE OUT

Run by `together`, which starts them and reads their files.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dspreg
from helpers.environments import ALL, NETWORKS, WEIGHT, Problem, both, scaled_by

WORLD = 2
SIZES = (4, 3, 5, 2, 6)  # of batches
DOMAINS = {"photo": 0.0, "art": 1.0, "sketch": 2.5}


def tiny(out: Tensor, y: Tensor) -> Tensor:
    """So small that squares are scaled, by each process as it sees fit."""
    return F.cross_entropy(out, y, reduction="none") * 1e-20


OF = ({"estimator": "persample"}, {"estimator": "signed"}, {"of": "fisher"}, {"loss": tiny})
TIMES = (1, 1, 1, 2.0**-20)  # what rank 1's samples are multiplied with


def loaders(rank: int | None, times: float = 1) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Batches of three domains: every second is rank 1's, `times` as large. None: all of them. Shares are unequal."""
    random = torch.Generator().manual_seed(3)
    found = {}
    for name, shift in DOMAINS.items():
        x = [torch.randn(n, 2, 5, 5, generator=random, dtype=torch.float64) + shift for n in SIZES]
        y = [torch.randint(3, (n,), generator=random) for n in SIZES]
        x = [each * times if i % WORLD else each for i, each in enumerate(x)]
        found[name] = list(zip(x, y, strict=True))[slice(rank, None, None if rank is None else WORLD)]
    return found


def penalty_part(problem: Problem, engine: str, view: bool, kind: str, mine: slice, **options: bool) -> Tensor:
    """On this process's share, in one closure or in two of unequal size."""
    model = DistributedDataParallel(copy.deepcopy(problem.net), gradient_as_bucket_view=view, **options)
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
    penalty.coefficients = {f"module.{n}": c for n, c in problem.c.items()}
    x, y = problem.x[mine], problem.y[mine]
    sizes = [len(x)] if kind == "whole" else [2, len(x) - 2]
    pieces = list(zip(x.split(sizes), y.split(sizes), strict=True))
    closures = [lambda a=a, b=b: scaled_by(len(a) / len(x), both(model, a, b)) for a, b in pieces]
    return problem.part(model, penalty, lambda: penalty.backward(closures if kind == "parts" else closures[0]))


ACCUMULATED = ("penalty", "penalty then plain", "plain then penalty")


def accumulated(problem: Problem, engine: str, how: str, rank: int, **options: bool) -> Tensor:
    """`.grad` of the second of two steps, each of two micro-batches: the first inside of no_sync, the last outside."""
    model = DistributedDataParallel(copy.deepcopy(problem.net), **options)
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
    penalty.coefficients = problem.c
    halves = [(x[rank::WORLD], y[rank::WORLD]) for x, y in zip(problem.x.split(6), problem.y.split(6), strict=True)]
    for _ in range(2):
        model.zero_grad()
        for i, (x, y) in enumerate(halves):
            with model.no_sync() if i == 0 else nullcontext():
                if how == ("penalty then plain", "plain then penalty")[1 - i]:
                    F.cross_entropy(model(x), y).backward()
                else:
                    penalty.backward(lambda x=x, y=y: both(model, x, y))
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


def enter_no_sync(problem: Problem, engine: str) -> str:
    """What is said to a closure that enters no_sync itself."""
    model = DistributedDataParallel(copy.deepcopy(problem.net))

    def closure() -> tuple[Tensor, Tensor]:
        with model.no_sync():
            return both(model, problem.x, problem.y)

    try:
        dspreg.Penalty(model, engine=engine).backward(closure)
    except dspreg.ConfigError as error:
        return str(error)
    return "nothing"


def work(rank: int, out: Path) -> None:
    found: dict[str, Tensor] = {}
    said: dict[str, object] = {}
    problem = Problem("smooth")
    mine = slice(rank, None, WORLD)
    for view in (False, True):
        for engine in ALL:
            for kind in ("whole", "parts"):
                found[f"part/{view}/{engine}/{kind}"] = penalty_part(problem, engine, view, kind, mine)

    for engine in ALL:
        for how in ACCUMULATED:
            found[f"accumulated/{engine}/{how}"] = accumulated(problem, engine, how, rank)
        for kind in ("whole", "parts"):
            found[f"static/{engine}/{kind}"] = penalty_part(problem, engine, False, kind, mine, static_graph=True)
        said[f"no_sync in the closure/{engine}"] = enter_no_sync(problem, engine)
    for how in ACCUMULATED:
        found[f"views/{how}"] = accumulated(problem, "lookahead", how, rank, gradient_as_bucket_view=True)

    for i, how in enumerate(OF):
        model = DistributedDataParallel(copy.deepcopy(problem.net))
        penalty = dspreg.Penalty(model, weight=WEIGHT)
        profile = penalty.refresh(loaders(rank, TIMES[i]), **how)
        for what in ("c", "null", "c_debiased", "mean"):
            found[f"{what}/{i}"] = getattr(profile, what).flat()
        said[f"reliability/{i}"] = profile.reliability
        said[f"counts/{i}"] = profile.settings["domains"]

    found["same samples"] = penalty.refresh(loaders(0), estimator="signed").c.flat()

    # one process has broken images
    bad = loaders(rank)
    if rank == 1:
        bad["art"][0][0][0] = torch.nan
    try:
        penalty.refresh(bad)
    except dspreg.DataError as error:
        said["broken"] = str(error)
    other = loaders(rank)
    if rank == 1:
        other["clip art"] = other.pop("art")
    try:
        penalty.refresh(other)
    except dspreg.DataError as error:
        said["different"] = str(error)

    # batch norm: no_sync around the first of two micro-batches
    for engine in (None, "lookahead", "exact", "gauss_newton"):
        torch.manual_seed(0)
        net = NETWORKS["batch norm"]().double()
        model = DistributedDataParallel(net)
        penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine or "exact")
        for step in range(4):
            with nullcontext() if step % 2 else model.no_sync():
                if engine is None:
                    both(model, problem.x[mine], problem.y[mine])[0].backward()
                else:
                    penalty.backward(lambda: both(model, problem.x[mine], problem.y[mine]))  # noqa: B023
        found[f"accumulated buffers/{engine}"] = torch.cat([b.double().reshape(-1) for b in model.buffers()])

    # batch norm: one plain step, and one with two passes
    for engine in (None, "lookahead", "exact", "gauss_newton", "finite_difference"):
        torch.manual_seed(0)
        model = DistributedDataParallel(NETWORKS["batch norm"]().double())
        penalty = dspreg.Penalty(model, weight=WEIGHT if engine else 0, engine=engine or "exact")
        for _ in range(2):
            penalty.backward(lambda: both(model, problem.x[mine], problem.y[mine]))  # noqa: B023
        found[f"buffers/{engine}"] = torch.cat([b.double().reshape(-1) for b in model.buffers()])

    try:
        dspreg.Penalty(fully_shard(nn.Linear(2, 2)))
    except dspreg.ConfigError as error:
        said["sharded"] = str(error)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", dspreg.Notice)
        dspreg.Penalty(nn.Linear(2, 2))
    said["no wrapper"] = [str(w.message) for w in caught]
    save_file(found, out / f"{rank}.safetensors")
    (out / f"{rank}.json").write_text(json.dumps(said))


def together(out: Path, script: str = __file__) -> list[tuple[dict[str, Tensor], dict[str, object]]]:
    """Run all processes; what each of them found and said."""
    here = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": here}
    commands = [[sys.executable, script, str(rank), str(WORLD), str(out / "store"), str(out)] for rank in range(WORLD)]
    running = [subprocess.Popen(c, stderr=subprocess.PIPE, text=True, env=environment) for c in commands]
    try:
        for process in running:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
    finally:
        for process in running:
            process.kill()
            process.communicate()
    return [(load_file(out / f"{r}.safetensors"), json.loads((out / f"{r}.json").read_text())) for r in range(WORLD)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    own, size, store, folder = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(own), world_size=int(size))
    warnings.simplefilter("ignore", dspreg.Notice)
    work(int(own), Path(folder))
    dist.destroy_process_group()
