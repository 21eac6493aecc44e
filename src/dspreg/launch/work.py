"""What is left of a sweep, handed out run by run under claims: the part that all launchers share.

A launcher asks for a run (`take`), has it attempted somewhere, and says how that ended (`give_back`) or that nobody
knows (`died`). Which runs are finished, tried again or somebody else's is decided here and in the store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from dspreg.errors import DspregError
from dspreg.io.atomic_files import fenced
from dspreg.runs.leases import Claim, LostClaim
from dspreg.runs.run import Run
from dspreg.runs.store import RunStore, Standing

ATTEMPTS = 3  # of a run that fails
POLL = 5.0  # seconds between looks at what others work on

Told = Callable[[Run, Standing, bool], None]  # a run, how it stands, and whether it did before


class Died(DspregError):
    """The process that worked on a run is gone, or was ended."""


@dataclass(frozen=True)
class Taken:
    """A run to work on, and the right to."""

    run: Run
    claim: Claim


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: the run's standing, None where somebody else has it; and whether nothing was to be done."""

    standing: Standing | None
    before: bool = False


class Work:
    """The runs of one sweep, from the first to the last.

    Args:
        runs: Each once.
        store: Made before.
        attempts: How often a run may fail.
        told: Told about every run as soon as it ends, and about every failure that is not the last.
    """

    def __init__(self, runs: Sequence[Run], store: RunStore, *, attempts: int = ATTEMPTS, told: Told = lambda *_: None):
        self.store, self.attempts, self.told = store, attempts, told
        self.left = OrderedDict((run.id, run) for run in runs)
        self.out: dict[str, Taken] = {}
        self.ended: dict[str, Standing] = {}
        self.looked = self.patient = 0.0  # when hung ones were looked for last, and until when nobody counts as hung
        self.lost: dict[str, float] = {}  # when runs that are out were first seen to be no longer ours
        self.claims = store.claims()
        self.claims.bury()  # what a killed sweeper had begun goes on first

    def __enter__(self) -> Work:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for taken in list(self.out.values()):
            self.claims.release(taken.claim)
        self.claims.close()

    @property
    def done(self) -> bool:
        return not self.left and not self.out

    def take(self) -> Taken | None:
        """The next run that nobody works on; None while there is none."""
        claim = self.claims.claim(self.left)
        if claim is None and self.left and self.claims.bury():
            claim = self.claims.claim(self.left)
        if claim is None:
            return None
        taken = self.out[claim.run] = Taken(self.left.pop(claim.run), claim)
        return taken

    def give_back(self, taken: Taken, outcome: Outcome) -> None:
        """An attempt has ended; runs that are to be tried again come last."""
        run, standing = taken.run, outcome.standing
        del self.out[run.id]
        self.lost.pop(run.id, None)
        self.claims.release(taken.claim)
        if standing is not None and standing.settled(self.attempts):
            self.ended[run.id] = standing
        else:
            self.left[run.id] = run
        if standing is not None and standing.state not in ("new", "started"):
            self.told(run, standing, outcome.before)

    def died(self, taken: Taken, why: str) -> None:
        """Whoever attempted it is gone. That counts as a failure of the run, unless it came further than before."""
        try:
            with fenced(self.store.path, lambda: self.claims.writing(taken.claim)):
                standing = self.store.standing(taken.run, weights=False)
                if not standing.settled(self.attempts):  # it may have died after its last file, or been cancelled
                    standing = self.store.fail(taken.run, Died(why))
        except LostClaim:  # the failure is not ours to keep
            self.give_back(taken, Outcome(None))
        else:
            self.give_back(taken, Outcome(standing))

    def hung(self) -> list[Taken]:
        """Runs of ours whose lease is over, for there was no progress; and those that were taken from us a lease ago,
        by `cancel` or another sweeper: whoever attempts them would have noticed."""
        now, grace = self.claims.now(), self.claims.lease / 4
        if now - self.looked > grace:  # it was us who slept: whoever works has to be heard first
            self.patient = now + grace
        self.looked = now
        if not self.out or now < self.patient:
            return []
        ours = {held.run: held.left for held in self.claims.held() if held.holder == self.claims.holder}
        for run in self.out.keys() - ours.keys():
            ours[run] = self.lost.setdefault(run, now) + self.claims.lease - now
        return [taken for taken in self.out.values() if ours[taken.run.id] <= 0]
