"""Which network, image size, methods, steps and trials a budget of time has room for, by a few steps of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dspreg.config.train_config import TRAIN_OPTIONS, Execution
from dspreg.data import DomainDataset
from dspreg.errors import ConfigError, DataError, DspregError
from dspreg.io.text import format_duration, join_few, plural
from dspreg.launch.probe import Probed, probe_run
from dspreg.protocol.estimate import format_seconds
from dspreg.runs.run import Run
from dspreg.sites.asked import Asked
from dspreg.sites.check import typical_side
from dspreg.sites.plan import Plan, compares_domains, method_name
from dspreg.specs import shortest_spec

METHODS = ("SWA", "Agreement+SWA")  # what docs/understand/evidence.md supports, the cheapest first
BUDGET = 7200.0  # seconds, unless the user says another
SMALL = 32  # pixels; images up to that size get a small network, as the small benchmarks do
# Cheapest first. Going up, the first rung that does not fit ends the search.
PHOTOGRAPHS = (
    ("resnet18.tv_in1k", 64),
    ("resnet18.tv_in1k", 128),
    ("resnet18.tv_in1k", 224),
    ("resnet50.tv_in1k", 224),
)
SCRATCH = "small-cnn"  # where nothing pretrained is wanted, or to be had
SIZES = (64, 128, 224)  # of a network that was chosen by hand
FEWEST_STEPS, ENOUGH_STEPS = 60, 300  # below the first nothing is said; from the second on, larger images come first
STEPS = (600, 1_000, 2_000, 5_001)
MOST_EPOCHS = 100  # of the images of all sources
IMAGES_PER_STEP = 96  # of all sources together: as three domains in DomainBed
PROBING = 8.0  # seconds of steps for each network and size
EVALUATIONS = 8  # of a training: with fewer it can't be said whether it still improves
SAFETY = 0.85  # of the budget that is planned with: a machine is not always as fast as in its first minute
STARTING = 3.0  # seconds allowed for whatever is around a training


def make_plan(
    data: DomainDataset,
    prints: Mapping[str, str],
    dataset: str,
    asked: Asked,
    execution: Execution,
    *,
    check: bool = False,
    jobs: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Choose what fits, by a few steps of each candidate.

    Args:
        data: The images.
        prints: Of its sites.
        dataset: As it was typed.
        asked: What is fixed.
        execution: How it will be run.
        check: Whether every two sites will be held out, too.
        jobs: Trainings at a time.
        say: Called with each finding.

    Raises:
        ConfigError: Not even the least fits into the budget.
    """
    return _Chooser(data, prints, dataset, asked, execution, check, jobs, say).choose()


class _Chooser:
    """The state of the choice: what was measured, and what was said."""

    def __init__(self, data: DomainDataset, prints: Mapping[str, str], dataset: str, asked: Asked, execution: Execution,
                 check: bool, jobs: int, say: Callable[[str], None]):  # fmt: skip
        self.data, self.prints, self.dataset, self.asked = data, prints, dataset, asked
        self.execution, self.check, self.jobs, self.say_aloud = execution, check, jobs, say
        self.notes: list[str] = []
        self.sites = len(data.domains)
        self.budget = BUDGET if asked.budget is None else asked.budget
        self.probed: dict[str, Probed] = {}  # method → on the first rung
        self.slower = 1.0  # the chosen rung by the first

    def say(self, text: str) -> None:
        self.notes.append(text)
        self.say_aloud(text)

    def choose(self) -> Plan:
        methods = self._methods()
        rungs = self._rungs()
        first = self._first_rung(rungs, methods)
        others = methods[1:] if self.asked.methods else []
        for each in others:
            self._probe(each, first)
        steps = self.asked.steps or FEWEST_STEPS
        trials = self.asked.trials or 1
        chosen_methods = [methods[0], *others]
        least = self._seconds(chosen_methods, steps, trials)
        if least > SAFETY * self.budget:
            self._refuse(least, chosen_methods, steps, first)
        rung = self._climb(
            rungs[rungs.index(first) :], chosen_methods, max(steps, self.asked.steps or ENOUGH_STEPS), trials
        )
        steps, trials, chosen_methods = self._spend(methods, chosen_methods, steps, trials, first)
        options = self._options(rung, steps)
        seconds = {each: self._each(each, steps) for each in chosen_methods}
        total = self._seconds(chosen_methods, steps, trials)
        runs = len(chosen_methods) * trials * self.sites
        extra = f", {math.comb(self.sites, 2)} with two sites held out" if self.check and self.sites > 2 else ""
        self.say(
            f"{rung[0]} at {rung[1]} pixels; {plural(steps, 'step')} of {options['batch_size']} images per site; "
            f"{' and '.join(map(method_name, chosen_methods))}; {plural(trials, 'trial')}"
        )
        self.say(
            f"{plural(runs, 'training')} with a site held out{extra}, 1 on all sites: about {format_duration(total)}"
            f"{f', {self.jobs} at a time' if self.jobs > 1 else ''}, of a budget of {format_duration(self.budget)}"
        )
        return Plan(
            self.dataset, self.data.name, dict(self.prints), tuple(self.data.classes), tuple(chosen_methods), options,
            trials, seconds, tuple(self.notes), self.asked.to_json(),
        )  # fmt: skip

    # Candidates.

    def _methods(self) -> list[str]:
        asked = list(dict.fromkeys(map(shortest_spec, self.asked.methods))) or list(METHODS)
        if self.sites == 2:
            alone = [each for each in asked if compares_domains(each)]
            if alone and self.asked.methods:
                raise ConfigError(
                    f"{join_few(alone)} compares sites with each other, and of two sites one is left to train on once "
                    f"the other is held out. Leave it out, or add a site"
                )
            asked = [each for each in asked if each not in alone]
            for each in alone:
                self.say(f"{method_name(each)} compares sites, and of two one is left to train on: it is left out")
        return asked

    def _rungs(self) -> list[tuple[str, int]]:
        """Networks and image sizes, the cheapest first."""
        side = typical_side(self.data)
        small = self.data.small or side <= SMALL
        model, size = self.asked.model, self.asked.image_size
        if small and model is None and "weights" not in self.asked.options:
            found = [(SCRATCH, size or max(16, min(side, SMALL)))]
        elif model is not None:
            found = [(model, each) for each in ((size,) if size else SIZES)]
        else:
            found = list(dict.fromkeys((name, size or each) for name, each in PHOTOGRAPHS))
        if size is None:  # pixels that the images do not have tell nothing
            found = [(name, each) for n, (name, each) in enumerate(found) if n == 0 or each <= 2 * side]
        self.say(
            f"{plural(self.sites, 'site')}, {plural(self.data.num_classes, 'class', 'classes')}, "
            f"{sum(len(self.data.domain(s)) for s in self.data.domains):,} images of about {side} pixels"
        )
        return found

    def _first_rung(self, rungs: list[tuple[str, int]], methods: Sequence[str]) -> tuple[str, int]:
        """The cheapest that can be had: pretrained weights may be out of reach. `rungs` are then what is left."""
        try:
            self._probe(methods[0], rungs[0])
        except DataError:
            raise
        except DspregError as error:
            if self.asked.model is not None or rungs[0][0] == SCRATCH:
                raise
            self.say(f"no pretrained network can be had ({error}); a small one is trained from scratch")
            rungs[:] = [(SCRATCH, min(rungs[0][1], SIZES[0]))]
            self._probe(methods[0], rungs[0])
        return rungs[0]

    def _climb(
        self, rungs: Sequence[tuple[str, int]], methods: Sequence[str], steps: int, trials: int
    ) -> tuple[str, int]:
        """The largest network and images with which enough steps fit."""
        chosen = rungs[0]
        base = self.probed[methods[0]].prices.step
        for rung in rungs[1:]:
            at_least = self.slower * (rung[1] / chosen[1]) ** 2  # so many more pixels
            if self._seconds(methods, steps, trials, slower=at_least) > SAFETY * self.budget:
                self.say(f"{rung[0]} at {rung[1]} pixels does not fit: {plural(steps, 'step')} would take at least "
                         f"{format_duration(self._seconds(methods, steps, trials, slower=at_least))}")  # fmt: skip
                break
            try:
                found = self._probe(methods[0], rung, keep=False)
            except DspregError as error:
                self.say(f"{rung[0]} is left out: {error}")
                continue
            slower = found.prices.step / base
            if (total := self._seconds(methods, steps, trials, slower=slower)) > SAFETY * self.budget:
                self.say(f"{rung[0]} at {rung[1]} pixels does not fit: {plural(steps, 'step')} would take "
                         f"{format_duration(total)}")  # fmt: skip
                break
            chosen, self.slower = rung, slower
        return chosen

    def _spend(self, methods: Sequence[str], chosen: list[str], steps: int, trials: int,
               first: tuple[str, int]) -> tuple[int, int, list[str]]:  # fmt: skip
        """The rest of the budget, in this order: steps, another method, a second trial, more steps, a third trial."""
        most = self._most_steps()

        def fits(methods: Sequence[str], steps: int, trials: int) -> bool:
            return self._seconds(methods, steps, trials) <= SAFETY * self.budget

        def longer(limit: int) -> None:
            nonlocal steps
            for each in sorted({ENOUGH_STEPS, *STEPS, most, 100, 150, 200}):
                if steps < each <= min(limit, most) and self.asked.steps is None and fits(chosen, each, trials):
                    steps = each

        longer(ENOUGH_STEPS)
        for each in methods:
            if each in chosen:
                continue
            self._probe(each, first)
            if fits([*chosen, each], steps, trials):
                chosen = [*chosen, each]
            else:
                self.say(f"{method_name(each)} does not fit beside {method_name(chosen[0])}")
        longer(STEPS[0])
        for more, limit in ((2, STEPS[1]), (3, STEPS[-1])):
            if self.asked.trials is None and trials == more - 1 and fits(chosen, steps, more):
                trials = more
            longer(limit)
        return steps, trials, chosen

    def _most_steps(self) -> int:
        """So many that the images of the sources are seen a hundred times."""
        images = sum(len(self.data.domain(s)) for s in self.data.domains) * (self.sites - 1) / self.sites
        per_step = self._batch() * (self.sites - 1)
        return int(min(self.data.steps, max(ENOUGH_STEPS, MOST_EPOCHS * images / per_step)))

    # Times.

    def _probe(self, method: str, rung: tuple[str, int], *, keep: bool = True) -> Probed:
        run = Run(dataset=self.dataset, targets=(self.data.domains[0],), algorithm=method, name=self.data.name
                  if self.dataset.startswith(("folder:", "index:")) else None,
                  options=self._options(rung, ENOUGH_STEPS))  # fmt: skip
        found = probe_run(run, self.execution, self.jobs, PROBING)
        self.say(f"tried {plural(found.steps, 'step')} of {method_name(method)}, {rung[0]} at {rung[1]} pixels: "
                 f"{format_seconds(found.prices.step)} a step")  # fmt: skip
        if keep:
            self.probed[method] = found
        return found

    def _each(self, method: str, steps: int, slower: float | None = None) -> float:
        """Seconds of one training with a site held out, and of scoring it."""
        found = self.probed[method]
        options = {**found.experiment.settings.to_mapping(), **self._pace(steps)}
        own = {name: options.pop(name) for name in ("dataset", "targets", "protocol", "trial", "draw")}
        options.pop("algorithm")
        run = Run(**own, algorithm=method, options=options, name=self.data.name
                  if self.dataset.startswith(("folder:", "index:")) else None)  # fmt: skip
        _, seconds = found.seconds(run)
        scoring = 2 * (found.prices.evaluation or 0.0)
        return (seconds + scoring) * (self.slower if slower is None else slower) + STARTING

    def _seconds(self, methods: Sequence[str], steps: int, trials: int, slower: float | None = None) -> float:
        """Of everything."""
        each = [self._each(method, steps, slower) for method in methods]
        held_out = sum(each) * trials * self.sites
        pairs = max(each) * math.comb(self.sites, 2) if self.check and self.sites > 2 else 0.0
        return (held_out + pairs) / self.jobs + max(each) * self.sites / (self.sites - 1)

    def _refuse(self, least: float, methods: Sequence[str], steps: int, rung: tuple[str, int]) -> None:
        what = f"{' and '.join(map(method_name, methods))}, {plural(steps, 'step')} of {rung[0]} at {rung[1]} pixels"
        fewer = (
            ", fewer --methods, --steps or --trials"
            if self.asked.methods or self.asked.steps or self.asked.trials
            else ""
        )
        fewer += ", no --check" if self.check and self.sites > 2 else ""
        raise ConfigError(
            f"the budget of {format_duration(self.budget)} has no room for the least that says anything: {what}, "
            f"with each of {self.sites} sites held out, take about {format_duration(least)}. Give --budget "
            f"{math.ceil(least / SAFETY / 60)}min{fewer}, or smaller images (--image-size)"
        )

    # Options.

    def _batch(self) -> int:
        given = self.asked.options.get("batch_size")
        return int(given) if given else max(4, min(32, round(IMAGES_PER_STEP / (self.sites - 1))))

    def _pace(self, steps: int) -> dict[str, Any]:
        given = self.asked.options.get("evaluate_every")
        return {"steps": steps, "evaluate_every": int(given or max(1, steps // EVALUATIONS))}

    def _options(self, rung: tuple[str, int], steps: int) -> dict[str, Any]:
        """Of every training: plain validation images, since it is not DomainBed's number that is wanted."""
        made = {"model": rung[0], "image_size": rung[1], "batch_size": self._batch(), "augment_validation": False,
                **self._pace(steps), **self.asked.options}  # fmt: skip
        return {name: value for name, value in made.items() if value != TRAIN_OPTIONS[name].default}
