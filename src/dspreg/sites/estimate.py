"""`estimate`: hold every site out in turn, forecast the next one, train the final model, write the page."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dspreg.config.train_config import Execution, TrainConfig
from dspreg.data import DomainDataset
from dspreg.data.images import Images
from dspreg.errors import Notice, ResourceError
from dspreg.forecast.sites import forecast_new_site
from dspreg.io.atomic_files import make_folder, write
from dspreg.io.text import escape_markdown, format_duration, plural
from dspreg.launch.launcher import Launcher, check_specs, sweep
from dspreg.launch.progress import SweepProgress
from dspreg.launch.queue import OnRun
from dspreg.runs.run import Run
from dspreg.runs.status import RunStatus
from dspreg.runs.store import RunStore
from dspreg.sites.answer import Estimate, percent
from dspreg.sites.asked import Asked, parse_budget
from dspreg.sites.check import check_images, fingerprints, new_site, new_site_name, open_sites, refuse_the_same, remarks
from dspreg.sites.choose import make_plan
from dspreg.sites.page import render_estimate
from dspreg.sites.plan import Plan, compares_domains, method_name, needs_validation
from dspreg.sites.results import (
    Key,
    check_forecasts,
    compare_methods,
    gather_remarks,
    label_free_of_new,
    label_free_of_sites,
    validation_at_end,
)
from dspreg.sites.scores import RunPredictions, SitePredictions, score_new_site, score_run
from dspreg.specs import shortest_spec
from dspreg.training.callbacks import Callback
from dspreg.training.execution import resolve_execution
from dspreg.training.loop import refuse_inside, train

STORE, MODEL, PAGE, PREDICTIONS = "store", "model", "page.html", "predictions"

Pause = Callable[[], None]
Say = Callable[[str], None]
Display = Callable[[RunStore, Sequence[Run]], SweepProgress]


def estimate(
    dataset: str,
    out: str | Path,
    *,
    methods: Sequence[str] = (),
    budget: str | None = None,
    model: str | None = None,
    image_size: int | None = None,
    steps: int | None = None,
    trials: int | None = None,
    options: Mapping[str, Any] | None = None,
    check: bool = False,
    new: str | None = None,
    images: bool = True,
    execution: Execution | None = None,
    launcher: str | Launcher = "serial",
    jobs: int = 1,
    dry_run: bool = False,
    say: Say = lambda _: None,
    pause: Pause = lambda: None,
    on_run: OnRun = lambda *_: None,
    progress: Display | None = None,
    callbacks: Sequence[Callback] = (),
) -> Estimate | None:
    """How well a model will do on a site that nobody has seen, which method to take, and the model.

        found = dspreg.estimate("folder:photos", "result")
        print(found.sentence())

    Every site is held out in turn, methods are compared on held-out images of the sources, and what came of the sites
    that were held out makes a forecast for the next one. Then the final model is trained on all sites, in the same way.
    Killed and called again it goes on; what was done is not done again.

    Args:
        dataset: As in `--dataset`: each domain is a site.
        out: The folder of the answer: `page.html`, `model`, the `store` of all runs. New, or of the same images.
        methods: Specs; without any, ERM and Agreement with averaged weights, as they fit.
        budget: Time for all of it, such as `"30min"`; two hours unless given. What is left open is chosen by it.
        model: Network.
        image_size: In pixels.
        steps: Of every training.
        trials: Trainings for each method and site.
        options: Further ones of every training, by the names of `TrainConfig`.
        check: Also hold out every two sites together, and see whether the forecast of one from the others was right.
        new: `folder:PATH` with images of one new site, without labels.
        images: Show images in the page.
        execution: How it is run.
        launcher: As in `sweep`.
        jobs: Trainings at a time, which the plan is made for.
        dry_run: Say what would be done, and write nothing.
        say: Called with what is being done, in lines.
        pause: Called where it can stop without loss; raises `Preempted` to stop it.
        on_run: As in `sweep`.
        progress: Makes the display of a sweep.
        callbacks: Of the final training.

    Returns:
        The answer; None for a `dry_run`.

    Raises:
        DataError: The sites can't answer: there is one only, one has a single class, images can't be read.
        ConfigError: No plan fits into the budget, or `out` belongs to something else.
        ResourceError: A training failed. Given again, the same call tries it again.
    """
    out, execution = Path(out), replace(execution or Execution(), keep="best", profile="never")
    asked = Asked(
        tuple(map(shortest_spec, methods)), None if budget is None else parse_budget(budget), model, image_size, steps,
        trials, dict(options or {}),
    )  # fmt: skip
    begun = Plan.load(out)
    check_specs(asked.methods)
    inbox = None if new is None else new_site(new)
    data = open_sites(dataset, execution.root, execution.name)
    refuse_inside(out, data)
    prints = fingerprints(data, pause)
    if begun is not None:
        begun.require(data, prints, asked)
    check_images(data, prints, None)
    known = check_new(inbox, data, say) if inbox is not None else []
    execution = resolve_execution(execution, *(begun.methods if begun else asked.methods or ("ERM",)))
    odd = remarks(data)
    for each in odd if begun is None else ():
        say(each)
    plan = begun
    if plan is None:
        plan = make_plan(data, prints, dataset, asked, execution, check=check, jobs=jobs, say=say)
    else:
        say(f"going on with what was begun in {out}: {plan.notes[-2]}")
    if dry_run:
        return None
    plan = replace(plan, dataset=dataset)  # where the files lie now
    if begun is None:
        make_folder(out)
        plan.save(out)
    work = _Work(plan, data, out, execution, launcher, jobs, pause, on_run, progress)
    held_out = plan.held_out_runs()
    work.train(held_out, say)
    scored = work.score(held_out)
    validation = {_key(run): validation_at_end(plan, list(work.store.folder(run).records), run) for run in held_out}
    compared, chosen = compare_methods(plan, validation, scored)
    found = Estimate(
        plan, compared, chosen, forecast_new_site(chosen.sites),
        {site: scored[chosen.spec, site, 0].unseen[site] for site in plan.sites},
        label_free_of_sites(plan, chosen.spec, scored), remarks=(*odd, *gather_remarks(work.remarks(held_out))),
    )  # fmt: skip
    if check:
        found = work.check(found, say)
    if inbox is not None:
        found = work.look_at_new(found, scored, inbox, new_site_name(new or ""), len(known), say)
    found = work.train_final(found, callbacks, say)
    write(out / PAGE, render_estimate(found, data, inbox, images=images).encode())
    return found


def check_new(inbox: Images, data: DomainDataset, say: Say) -> list[str]:
    """The images of a new site that are at a known one, too, once all of them can be read."""
    from dspreg.data.decode import BadImage, decode_image
    from dspreg.errors import DataError

    for path in inbox.files:
        try:
            decode_image(path, inbox.reading)
        except BadImage as bad:
            raise DataError(f"--new: {path} can't be read: {bad.reason}. Mend or remove it") from None
    known = refuse_the_same(inbox, data)
    if known:
        many = f"{plural(len(known), 'image')} of --new {'is' if len(known) == 1 else 'are'}"
        say(
            f"{many} at one of the sites, too, byte for byte, e.g. {known[0]}: what is said of the new site is too good"
        )
    return known


def _key(run: Run) -> Key:
    return run.algorithm, run.targets[0], run.trial


class _Work:
    """What all parts of one estimate share."""

    def __init__(self, plan: Plan, data: DomainDataset, out: Path, execution: Execution, launcher: str | Launcher,
                 jobs: int, pause: Pause, on_run: OnRun, progress: Display | None):  # fmt: skip
        self.plan, self.data, self.out, self.execution = plan, data, out, execution
        self.launcher, self.jobs, self.pause = launcher, jobs, pause
        self.on_run, self.progress = on_run, progress
        self.store = RunStore(out / STORE)

    def train(self, runs: Sequence[Run], say: Say) -> None:
        """All that are not finished, as an ordinary sweep."""
        say(f"{plural(len(runs), 'training')} in {self.store.path}")
        display = self.progress(self.store, runs) if self.progress else False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)  # one of every training; what matters was said before the first
            ended = sweep(
                runs, self.store, launcher=self.launcher, jobs=self.jobs if isinstance(self.launcher, str) else None,
                execution=self.execution, on_run=self.on_run, progress=display, pause=self.pause,
            )  # fmt: skip
        bad = [run for run in runs if ended[run.id].status is not RunStatus.FINISHED]
        if bad:
            raise ResourceError(
                f"{plural(len(bad), 'training')} did not finish, so that there is no answer yet; the first: {bad[0]}: "
                f"{ended[bad[0].id].reason or ended[bad[0].id].status}. dspreg retry {self.store.path} gives them "
                f"their attempts again, then the same command goes on; or leave a method out, in a new --out"
            )

    def score(self, runs: Sequence[Run]) -> dict[Key, RunPredictions]:
        return {_key(run): self.score_one(run) for run in runs}

    def score_one(self, run: Run) -> RunPredictions:
        kept = self.out / PREDICTIONS / f"{run.id}.safetensors"
        make_folder(kept.parent)
        self.pause()
        return score_run(self.store.folder(run), self.data, kept, device=self.execution.device, pause=self.pause)

    def remarks(self, runs: Sequence[Run]) -> dict[Key, list[str]]:
        """What each training says is odd about itself."""
        results = {_key(run): self.store.folder(run).result() for run in runs}
        return {key: list(result.get("remarks", [])) for key, result in results.items() if result is not None}

    def check(self, found: Estimate, say: Say) -> Estimate:
        """With the track record."""
        sites, method = len(self.plan.sites), found.chosen.spec
        if sites < 3:
            return replace(
                found, no_check="There is no track record: of two sites none is left once both are held out."
            )
        if sites == 3 and compares_domains(method):
            why = "There is no track record: of three sites one is left once two are held out, and "
            return replace(found, no_check=f"{why}{method_name(method)} compares several.")
        runs = self.plan.pair_runs(method)
        time = format_duration(self.plan.seconds[method] * len(runs) / self.jobs)
        say(f"--check: every two sites held out together, by {method_name(method)}: about {time}, less what is there")
        self.train(runs, say)
        order = self.plan.sites.index
        pairs = {(a, b): self.score_one(run) for run in runs for a, b in [sorted(run.targets, key=order)]}
        return replace(found, checked=check_forecasts(found.chosen.sites, pairs))

    def look_at_new(self, found: Estimate, scored: Mapping[Key, RunPredictions], inbox: Images, name: str, known: int,
                    say: Say) -> Estimate:  # fmt: skip
        """With what the images of a new site say without labels."""
        say(f"{plural(len(inbox), 'image')} of the new site, seen by the models of the held-out runs")
        method, predicted = found.chosen.spec, dict[Key, SitePredictions]()
        for run in self.plan.held_out_runs():
            if run.algorithm == method or self.plan.trials == 1:  # other methods say whether they agree
                folder = self.store.folder(run)
                predicted[_key(run)] = score_new_site(folder, inbox, device=self.execution.device, pause=self.pause)
        new = replace(label_free_of_new(self.plan, method, scored, predicted), site=name)
        return replace(found, new=new, new_name=name, new_images=len(inbox), new_known=known)

    def train_final(self, found: Estimate, callbacks: Sequence[Callback], say: Say) -> Estimate:
        """On all sites, as the held-out ones were, with the estimate in its card; its remarks join the answer."""
        say(f"the model, {found.chosen.name} on all sites, in {self.out / MODEL}")
        options = self.plan.final_options(found.chosen.spec)
        config = TrainConfig(dataset=self.plan.dataset, algorithm=found.chosen.spec, **options)
        execution = replace(self.execution, name=self.plan.name if is_path(self.plan.dataset) else None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)  # the held-out trainings gave them
            result = train(
                config, execution, self.out / MODEL, callbacks=callbacks, pause=self.pause, note=card_note(found)
            )
        odd = (f"the final model: {each}" for each in result.get("remarks", []))
        return replace(found, remarks=(*found.remarks, *odd))


def is_path(dataset: str) -> bool:
    return dataset.startswith(("folder:", "index:"))


def card_note(found: Estimate) -> str:
    """What the card of the final model says of new sites."""
    which = ""
    if needs_validation(found.chosen.spec):
        which = ' Use the model of the last step, which is what was judged: `dspreg.load(RUN, which="last")`.'
    rows = "\n".join(
        f"| {escape_markdown(each.site)} | {each.images:,} | {percent(each.accuracy)} % |"
        for each in found.chosen.sites
    )
    odd = "".join(f"\n- {escape_markdown(each)}" for each in found.remarks)
    odd = f"\nWhat makes this answer worse:\n{odd}\n" if odd else ""
    return f"""
## On a site it has never seen

{escape_markdown(found.sentence())} {escape_markdown(found.how_little())}

| site, held out | images | accuracy |
|---|---|---|
{rows}

By {plural(len(found.chosen.sites) * found.plan.trials, "training")} like this one, each with one site held out; this
model saw all of them.{which} The forecast holds for a site that is one more of the same kind.
{odd}"""
