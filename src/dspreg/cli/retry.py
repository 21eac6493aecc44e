"""`dspreg retry`: failed and cancelled runs get their attempts again."""

from __future__ import annotations

from typing import Any

from dspreg.cli.named_runs import named
from dspreg.cli.parser import Commands, described
from dspreg.errors import ConfigError
from dspreg.launch.queue import ATTEMPTS
from dspreg.names import shown
from dspreg.overview import Looker, Overview
from dspreg.runs.store import RunStore, Standing

EXAMPLES = """examples:
  dspreg retry runs/pacs                     all that failed or were cancelled
  dspreg retry runs/pacs 3f2a90c41b7d5e68    one of them; status and sweep print these ids
  dspreg retry runs/pacs 3f2a 77             the first letters will do

nothing is trained here: the next dspreg sweep takes them up, from their last checkpoints. Runs that came to something
that is not a number would do so again, with the same bits; they are retried only by name."""

DIVERGED = "it diverged, and would again with the same bits; name it to try it all the same"


def add(commands: Commands) -> None:
    parser = described(commands, "retry", "give failed and cancelled runs their attempts again", EXAMPLES)
    parser.add_argument("store", metavar="STORE", help="the --store of a sweep")
    parser.add_argument("runs", metavar="RUN", nargs="*", help="plan ids, or the beginning of them (default: all)")
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    store = RunStore(given.store)
    store.check()
    found = Looker(store, ATTEMPTS).look()
    ids = named(given.runs, found.runs, given.store)
    chosen = wanted(ids, found, store) if ids else all_of(found, store)
    for each, standing in chosen.items():
        store.retry(found.run(each))
        print(f"{line(each, found)}: to be tried again; it was {said(standing)}")
    if chosen:
        print(f"{len(chosen):,} to be tried again; the next dspreg sweep takes them up")
    else:
        print("nothing to retry")
    return 0


def wanted(ids: list[str], found: Overview, store: RunStore) -> dict[str, Standing]:
    """Those that were named, if all of them can be retried."""
    standings = {each: store.standing(found.run(each)) for each in ids}
    refused = [
        f"  {line(each, found)}: {why}" for each, standing in standings.items()
        if (why := refusal(standing, found.states[each] == "running", store.path / "runs" / each))
    ]  # fmt: skip
    if refused:
        raise ConfigError("\n".join(["nothing is retried, for these can't be:", *refused]))
    return standings


def refusal(standing: Standing, running: bool, folder: object) -> str:
    if standing.state == "finished":
        return f"it is finished; to train it anew, remove {folder}"
    if standing.state == "damaged":
        return f"it is damaged ({standing.reason}); remove {folder}, and the next sweep trains it anew"
    if running:
        return "it is being trained"
    return "" if standing.state in ("failed", "cancelled") else "it did not fail; the next sweep takes it up anyway"


def all_of(found: Overview, store: RunStore) -> dict[str, Standing]:
    """Those that failed or were cancelled, but for the ones that it makes no sense for, which are told."""
    chosen = {}
    for each, state in found.states.items():
        if state != "cancelled" and (each not in found.failures or state == "running"):
            continue
        standing = store.standing(found.run(each), weights=False)
        if standing.state == "damaged":
            print(f"{line(each, found)}: left out: {refusal(standing, False, store.path / 'runs' / each)}")
        elif standing.state == "failed" and not standing.attempts:
            print(f"{line(each, found)}: left out: {DIVERGED}")
        elif standing.state in ("failed", "cancelled"):
            chosen[each] = standing
    return chosen


def line(run: str, found: Overview) -> str:
    return f"{run}  {shown(str(found.run(run)))}"


def said(standing: Standing) -> str:
    return "cancelled" if standing.state == "cancelled" else f"failed: {shown(standing.reason)}"
