"""One training, from settings to a finished folder. Read it from top to bottom."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import overrides
from dspreg.algorithms.measure import profile_stack
from dspreg.algorithms.task import SourceValidation
from dspreg.batches import Batch
from dspreg.config.train_config import Execution, TrainConfig, resolve_config
from dspreg.data import DomainDataset
from dspreg.data.loader import XY, send_ahead
from dspreg.data.readers import ReaderPool, iterate_batches
from dspreg.data.registry import open_dataset
from dspreg.data.verify import find_leaks
from dspreg.devices import resolve_device
from dspreg.errors import ConfigError, DataError, Diverged, IntegrityError, Notice, Preempted, resource_errors
from dspreg.io.atomic_files import sha256
from dspreg.io.text import join_few
from dspreg.kinds import CLASSES, KINDS
from dspreg.metrics import ACCURACY, recorded_metrics, selection_value
from dspreg.networks.own import is_own_network
from dspreg.precision import LEAST_SCALE, multiplying
from dspreg.randomness import untouched
from dspreg.runs.folder import RunFolder
from dspreg.runs.model_file import model_path_at
from dspreg.runs.status import FAILURE, read_failure
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.training.callbacks import Callback, OldDisplay, notified
from dspreg.training.checkpoint import Checkpoints
from dspreg.training.evaluate import as_arrays, count_classes, tallies
from dspreg.training.execution import resolve_execution, threads
from dspreg.training.experiment import Experiment, prepare_experiment
from dspreg.training.finalize import finish_run, save_model
from dspreg.training.model import saved_attributes_of, tensors_of
from dspreg.training.prolong import keep_checkpoint, prolong
from dspreg.training.records import make_record
from dspreg.training.state import START_PROFILE, Selected, State, StepLog, checksum
from dspreg.training.step import train_step
from dspreg.training.trackers import make_trackers

SECONDS = 120.0  # between checkpoints, unless steps are given
GRACE = 10.0  # seconds that a step may wait for images after it was to stop
SMALLER = "a smaller batch_size or image_size, or fewer --workers, need less; the same command goes on where it was"


def train(
    settings: Mapping[str, Any] | TrainConfig,
    execution: Execution | None = None,
    out: str | Path | RunFolder | None = None,
    *,
    callbacks: Iterable[Callback] = (),
    pause: Callable[[], None] = lambda: None,
    plan: Mapping[str, Any] | None = None,
    data: DomainDataset | None = None,
    note: str = "",
    display: Any = None,
) -> dict[str, Any]:
    """Train one model, or resume where an earlier call was interrupted; returns the contents of result.json.

        config = dspreg.TrainConfig(dataset="folder:photos", targets=("site-4",), algorithm="CORAL+DSPReg")
        result = dspreg.train(config, out="runs/site-4")

    Args:
        settings: What is trained: a `TrainConfig`, or its options by name, `{"dataset": "digits", "targets":
            ("print",), …}`. Other options have the defaults of data set and protocol.
        execution: How it is run: device, threads, files to keep.
        out: The run's folder: new, or of the same training, which is then resumed, or verified if it was finished. If
            it is a `RunFolder` with a fence, every change of a file goes through that fence, which may raise.
        callbacks: Called with the progress, such as `dspreg.training.callbacks.ProgressBar`.
        pause: Called where training can stop without loss; raises `Preempted` to stop it.
        plan: The run of a sweep, as JSON; kept in run.json, but not part of the result id.
        data: The data set of `settings`, if it is already open, such as one of `join_domains`; its files are then not
            listed again.
        note: Markdown that the card of the run ends with; no part of its id.
        display: Old name of `callbacks`, for a single one.
    """
    if out is None:
        raise ConfigError("train needs a folder for the run: train(config, out='runs/first')")
    execution = execution or Execution()
    if data is not None and isinstance(settings, Mapping):
        settings = {"dataset": data.name, **settings}
    folder, config = out if isinstance(out, RunFolder) else RunFolder(out), TrainConfig.of(settings)
    if data is None:
        data = open_dataset(config.dataset, execution.root, execution.name)
    refuse_inside(folder.path, data)  # before the folder is created
    config = as_begun(config, data, folder)
    execution = resolve_execution(execution, config.algorithm)
    stop, every = Stop(pause), [*with_display(callbacks, display), *make_trackers(execution, folder)]
    with (
        notified(every) as on,
        folder.locked(),
        reproducible(execution),
        resource_errors(SMALLER),
        failures_kept(folder),
        ExitStack() as until_the_end,
    ):

        def between_batches() -> None:
            stop.check()
            on.on_progress()

        def on_image(done: int, total: int) -> None:
            on.on_image_check(done, total)
            between_batches()

        experiment = prepare_experiment(
            config, execution, on_image, data=data, on_read=between_batches,
            begun=folder.begun_settings(), begun_in=begun_environment(folder),
        )  # fmt: skip
        readers = until_the_end.enter_context(experiment.reader_pool())  # none is started before it is needed
        algorithm = experiment.algorithm(between_batches, stop.check_waiting, readers)  # errors come before the run
        saved_attributes_of(algorithm)  # and so does the error of a layer whose prediction can't be saved
        require_outputs(experiment, algorithm)
        described = experiment.description(plan).to_json()
        prolong(folder, described)
        was_finished = (folder / "result.json").exists()  # then no result can change
        run = folder.agree(described, changed_environment=was_finished or execution.allow_changed_environment)
        checkpoints = Checkpoints(folder / "checkpoints", run, fence=folder.fence)
        if was_finished:
            result = folder.result()
            checkpoints.clear()
            return result or {}
        raise_if_failed_before(folder)
        for leak in find_leaks(experiment.images, experiment.settings.targets):
            warnings.warn(f"{data.name}: {leak}", Notice, stacklevel=2)

        if experiment.keeps_features:
            on.on_phase("computing features")
            experiment.keep_features(between_batches, stop.check_waiting)
            on.on_phase("")
        state = State(algorithm, folder)
        resume(state, checkpoints)
        on.on_train_start(experiment, state.t)
        if state.t:
            on.on_resume(list(folder.records))
        if (state.t == 0 and should_profile(state, execution)) or START_PROFILE in state.lost:
            on.on_phase("measuring c before training")
            anew = state.t > 0  # only its profile was lost
            first = experiment.algorithm(between_batches, stop.check_waiting, readers) if anew else state.algorithm
            write_start_profile(state, profile_stack(first).to_bytes())
            on.on_phase("")
        steps = experiment.settings.steps
        saved = time.monotonic()
        read = iterate_batches(experiment.steps(), range(state.t, steps), readers, stop.check_waiting)
        batches = send_ahead(read, execution.device)
        stopped = out_of_patience(experiment, state)
        try:
            while True:
                if evaluation_due(experiment, state):
                    on.on_phase("evaluating")
                    record = evaluate(experiment, state, between_batches, stop.check_waiting, readers)
                    folder.records.append(record)
                    on.on_evaluation(record)
                    saved = save(checkpoints, state, on)
                    stopped = out_of_patience(experiment, state)
                stop.check()
                if state.t == steps or stopped:
                    break
                if execution.keep_checkpoint and state.t == steps - 1:
                    keep_checkpoint(folder, run, state.t, state.pack())
                step(experiment, state, batches, on, stop)
                if save_due(execution, state.t, saved):
                    saved = save(checkpoints, state, on)
        except Preempted:
            if not stop.within_step:
                save(checkpoints, state, on)
            raise
        finally:
            batches.close()  # nothing is read ahead any more
        assert state.selected is not None
        on.on_selected(next(each for each in folder.records if each["step"] == state.selected.step))
        if should_profile(state, execution):
            on.on_phase("measuring c after training")
            folder.write("profiles/end.safetensors", profile_stack(state.algorithm).to_bytes())
        result = finish_run(experiment, state, run, note)
        checkpoints.clear()
        return result


def as_begun(config: TrainConfig, data: DomainDataset, folder: RunFolder) -> TrainConfig:
    """With a method; and what is left open as in the run that is resumed, whatever the defaults are by now."""
    begun, given = folder.begun_settings(), config.to_mapping()
    if "algorithm" not in given:
        if begun is not None:
            method = folder.description().get("where", {}).get("algorithm", begun.get("algorithm"))
        else:
            method = resolve_config(config, data).algorithm
        config = replace(config, algorithm=method)
    longer = begun is not None and given.get("steps", 0) > begun.get("steps", 0)
    if begun is not None and longer and "evaluate_every" not in given:
        config = replace(config, evaluate_every=begun["evaluate_every"])  # of a run that is prolonged
    return config


def begun_environment(folder: RunFolder) -> dict[str, Any] | None:
    """The environment in run.json, if there is one."""
    found = folder.description().get("environment") if (folder / "run.json").exists() else None
    return found if isinstance(found, dict) else None


@contextmanager
def failures_kept(folder: RunFolder) -> Iterator[None]:
    """A training that diverges leaves a file that says so, unless it did before."""
    try:
        yield
    except Diverged as failure:
        if not (folder / FAILURE).exists():
            folder.write_json(FAILURE, {"step": failure.step, "reason": str(failure)})
        raise


def write_start_profile(state: State, data: bytes) -> None:
    """c before training; where it was damaged, only if it is to the bit what it was."""
    expected = state.lost.pop(START_PROFILE, sha256(data))
    if sha256(data) != expected:
        raise IntegrityError(
            f"{state.folder / START_PROFILE} is damaged, and measuring it again gave other bits. Put it back from a "
            f"copy, or remove {state.folder / 'checkpoints'} to train again from the start"
        )
    state.folder.write(START_PROFILE, data)


def require_outputs(experiment: Experiment, algorithm: Algorithm) -> None:
    """Refuse a network of the user's own that takes no such inputs, or has not one output for each of `classes`."""
    if not is_own_network(experiment.settings.model):
        return
    part = experiment.part(experiment.sources[0], "in", experiment.transform("none"))
    x = part.transform.normalise(part.batch(range(min(2, len(part))))[0]).to(experiment.execution.device)
    with evaluation_mode(algorithm), torch.no_grad(), untouched():
        try:
            found = algorithm.predict(x)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            brief = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"{experiment.settings.model} takes no inputs of shape {tuple(x.shape)} ({x.dtype}): {brief}"
            ) from error
    wanted = (len(x), experiment.data.num_classes)
    if tuple(found.shape) != wanted:
        raise ConfigError(
            f"{experiment.settings.model} returns {tuple(found.shape)} for {len(x)} inputs; wanted {wanted}, one "
            f"output for each of {join_few(experiment.data.classes, 5)}"
        )


def with_display(callbacks: Iterable[Callback], display: Any) -> list[Callback]:
    """The callbacks, including one given by the old name."""
    if display is None:
        return list(callbacks)
    text = "train(display=…) is now train(callbacks=[…]), with methods on_step_end, on_evaluation, …"
    warnings.warn(text, Notice, stacklevel=3)
    return [*callbacks, display if isinstance(display, Callback) else OldDisplay(display)]


@dataclass
class Stop:
    """Where a training can be stopped: everywhere but within a step, of which nothing could be kept."""

    pause: Callable[[], None]  # raises `Preempted`
    within_step: bool = False
    wanted_at: float | None = None  # when it was first wanted within a step

    def check(self) -> None:
        """Stop, if that is wanted and the training is not within a step."""
        if not self.within_step:
            self.pause()

    def check_waiting(self) -> None:
        """The same while images are waited for: within a step, too, if they do not come for some time.

        The steps since the last checkpoint are then taken again: images that never come must not hold up the stop.
        """
        try:
            self.pause()
        except Preempted:
            self.wanted_at = self.wanted_at or time.monotonic()
            if not self.within_step or time.monotonic() - self.wanted_at > GRACE:
                raise


def step(experiment: Experiment, state: State, made: Iterator[list[XY]], on: Callback, stop: Stop) -> None:
    """One training step, its log and its events. Its time includes waiting for images."""
    started, algorithm = time.perf_counter(), state.algorithm
    device = experiment.execution.device
    normalise = experiment.transform(experiment.settings.augment).normalise
    weights = experiment.batch_weights(state.t)
    batches = [Batch(normalise(x), y, d, w) for d, ((x, y), w) in enumerate(zip(next(made), weights, strict=True))]
    t, recorded = state.t, evaluates_at(experiment, state.t)
    stop.within_step = True
    with experiment.autocast():
        log = train_step(algorithm, batches, record=recorded)
    stop.within_step = False
    if algorithm.stack.scaler is not None and algorithm.stack.scaler.scale < LEAST_SCALE:
        raise Diverged(f"step {t}: gradients overflow in fp16 however losses are scaled. Use bf16, or a smaller lr", t)
    values = StepLog(t, log, checksum(algorithm))
    state.unread.append((values, time.perf_counter() - started))
    if recorded or reads_every_step(device):
        StepLog.read([each for each, _ in state.unread])  # waits for the device, within the time of this step
        state.unread[-1] = (values, time.perf_counter() - started)
        state.read_log(batches)
    keep_events(state)
    on.on_step_end(t, values)


def reads_every_step(device: str) -> bool:
    """Whether the log of a step is looked at right away: where nothing is waited for. Else once per record."""
    return device == "cpu"


def evaluate(
    experiment: Experiment,
    state: State,
    between_batches: Callable[[], None],
    on_wait: Callable[[], None],
    workers: int | ReaderPool = 0,
) -> dict[str, Any]:
    """Evaluate after the last step, select, and return the record."""
    started, s, t = time.perf_counter(), experiment.settings, state.t - 1
    chosen = experiment.evaluation_parts(last=state.t == s.steps)
    validate_below(experiment, state, between_batches, on_wait, workers)
    answers: dict[str, list[tuple[Tensor, Tensor]]] = {}  # of the sources' held-out images, where they are needed
    seen: tuple[list[Tensor], list[Tensor]] = [], []  # classes of these images, and those predicted

    def observe(p: int, logits: Tensor, y: Tensor) -> None:
        name, which, _ = chosen[p]
        if which == "out" and name not in s.targets and experiment.data.kind == CLASSES:
            seen[0].append(y)
            seen[1].append(logits.argmax(1))
            if s.select_by != ACCURACY:
                answers.setdefault(name, []).append((logits, y))

    counted = tallies(
        state.algorithm,
        [part for _, _, part in chosen],
        size=s.evaluation_batch,
        key=(*experiment.key, t, "evaluate"),
        device=experiment.execution.device,
        workers=workers,
        observe=observe,
        losses=any(overrides(type(layer), "on_evaluation") for layer in state.algorithm.layers()),
        pause=between_batches,
        on_wait=on_wait,
    )
    figures: dict[str, Any] = {name: {} for name in KINDS[experiment.data.kind].figures}  # → domain → split → value
    loss: dict[str, float] = {}
    for (domain, which, _), tally in zip(chosen, counted, strict=True):
        if domain not in s.targets and not tally.finite:
            raise Diverged(f"step {t}: the logits of {domain!r}, split {which!r}, are not finite", t)
        for name, value in tally.figures.items():
            figures[name].setdefault(domain, {})[which] = value
        if domain in experiment.sources and which == "out":
            loss[domain] = tally.loss
    accuracy: dict[str, dict[str, float]] = figures[KINDS[experiment.data.kind].figure]
    validation: float | None = None
    if s.holdout:
        validation = sum(accuracy[name]["out"] for name in experiment.sources) / len(experiment.sources)
    figures["validation"] = validation
    if s.select_by != ACCURACY:
        figures["metrics"] = {name: recorded_metrics(*as_arrays(each)) for name, each in answers.items()}
    by: float | None = validation if s.select_by == ACCURACY else selected_value(experiment, figures, t)
    best = None if state.selected is None else state.selected.validation
    if by is None or best is None or by > best:  # without held-out images the last is taken
        of_classes = experiment.data.kind == CLASSES
        predicted = [count_classes(each, experiment.data.num_classes) for each in seen] if of_classes else []
        state.selected = Selected(t, by, tensors_of(state.algorithm), predicted)
    if experiment.execution.keep == "all":
        save_model(experiment, state.folder, model_path_at(t), tensors_of(state.algorithm), t)
    state.recorded, state.told = t, 0
    # not after the last step: the model that was evaluated is the one to save
    if s.holdout and state.t < s.steps and not out_of_patience(experiment, state, more=1):
        sources = {name: accuracy[name]["out"] for name in experiment.sources}
        state.algorithm.stack.report_validation(SourceValidation(t, sources, loss))
        keep_events(state)
    return make_record(experiment, state, t, figures, time.perf_counter() - started)


def selected_value(experiment: Experiment, figures: Mapping[str, Any], t: int) -> float:
    """What the step is selected by, where that is not the mean accuracy."""
    value = selection_value(figures, experiment.sources, experiment.settings.select_by)
    if value is None or math.isnan(value):
        raise DataError(f"step {t}: {experiment.settings.select_by} is not defined of the sources' held-out images")
    return value


def out_of_patience(experiment: Experiment, state: State, more: int = 0) -> bool:
    """Whether too many evaluations in a row were not better than the selected one.

    Args:
        experiment: The training.
        state: Of it; its records are what counts, so that a training that is resumed stops where it would have.
        more: Evaluations that have no record yet.
    """
    patience, best = experiment.settings.patience, state.selected
    if not patience or best is None:
        return False
    since = sum(1 for record in state.folder.records if record["step"] > best.step)
    return since + (more if state.t - 1 > best.step else 0) >= patience


def validate_below(
    experiment: Experiment,
    state: State,
    between_batches: Callable[[], None],
    on_wait: Callable[[], None],
    workers: int | ReaderPool = 0,
) -> None:
    """Tell layers that ask for it, before an evaluation, how what is below them predicts validation images.

    The innermost first, since others may predict with what it changes. An evaluation may be stopped, and begins anew:
    layers that were told before are not told again.
    """
    asking = [layer for layer in state.algorithm.layers() if overrides(type(layer), "before_evaluation")]
    if not asking:
        return
    s, t = experiment.settings, state.t - 1
    parts = [experiment.part(name, "out", experiment.transform(s.validation_augment)) for name in experiment.sources]
    for layer in asking[::-1][state.told :]:
        counted = tallies(
            layer.base,
            parts,
            size=s.evaluation_batch,
            key=(*experiment.key, t, "evaluate"),
            device=experiment.execution.device,
            workers=workers,
            losses=True,
            pause=between_batches,
            on_wait=on_wait,
        )
        found = dict(zip(experiment.sources, counted, strict=True))
        for domain, tally in found.items():
            if not tally.finite:
                raise Diverged(f"step {t}: the logits of {domain!r}, split 'out', are not finite", t)
        accuracy, loss = ({n: getattr(tally, kind) for n, tally in found.items()} for kind in ("accuracy", "loss"))
        state.algorithm.stack.report_validation_below(layer, SourceValidation(t, accuracy, loss))
        state.told += 1
        keep_events(state)


def keep_events(state: State) -> None:
    for event in state.algorithm.stack.events:
        state.folder.refreshes.append(event)


def evaluates_at(experiment: Experiment, t: int) -> bool:
    """Whether there is an evaluation after step t: every `evaluate_every` steps, and after the last."""
    s = experiment.settings
    return t % s.evaluate_every == 0 or t == s.steps - 1


def evaluation_due(experiment: Experiment, state: State) -> bool:
    last = state.t - 1
    return last >= 0 and state.recorded != last and evaluates_at(experiment, last)


def save(checkpoints: Checkpoints, state: State, on: Callback) -> float:
    """Write a checkpoint; returns when that was."""
    checkpoints.save(state.t, state.pack())
    on.on_checkpoint(state.t)
    return time.monotonic()


def save_due(execution: Execution, t: int, saved: float) -> bool:
    if execution.save_every:
        return t % execution.save_every == 0
    return time.monotonic() - saved > SECONDS


def should_profile(state: State, execution: Execution) -> bool:
    """Whether c is measured before and after training: if the method uses it, or on request."""
    if execution.profile == "auto":
        return any(getattr(layer, "uses_c", False) for layer in state.algorithm.layers())
    return execution.profile == "always"


def resume(state: State, checkpoints: Checkpoints) -> None:
    """Restore the newest intact checkpoint, or start anew if there was none."""
    reasons = []
    for _, saved in checkpoints.good():
        try:
            state.unpack(saved)
            return
        except IntegrityError as error:
            reasons.append(str(error))
            warnings.warn(f"{error}; trying the checkpoint before it", Notice, stacklevel=2)
    if checkpoints.files():
        why = f": {reasons[0]}" if reasons else "; all are damaged"
        raise IntegrityError(
            f"no checkpoint in {checkpoints.folder} can be used{why}. With a copy of the damaged file in its place the "
            f"run goes on; without one, remove {checkpoints.folder}, and it is trained again from the start"
        )
    state.restart()


def raise_if_failed_before(folder: RunFolder) -> None:
    """Refuse to resume a run that diverged: the same settings would diverge again."""
    failure = read_failure(folder / FAILURE)
    if failure is not None:
        way = f"Change settings and --out, or remove {FAILURE} to try again from the last finite checkpoint"
        raise Diverged(f"{folder.path} failed before: {failure.reason}. {way}", failure.record["step"])


def refuse_inside(out: Path, data: DomainDataset) -> None:
    """Refuse a run folder inside the data set, which would be a class or a domain next time."""
    images = getattr(data, "folder", None)
    if images is not None and out.resolve().is_relative_to(Path(images).resolve()):
        raise ConfigError(f"--out {out} lies inside the data set {images}; give a folder outside of it")


@contextmanager
def reproducible(execution: Execution) -> Iterator[None]:
    """Set the global state of torch that results depend on, and restore it."""
    memory: Any = torch.utils.deterministic
    count, filled = torch.get_num_threads(), memory.fill_uninitialized_memory
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.set_num_threads(threads(execution))
    # a warning only, on a GPU: some layers have no deterministic backward pass there
    make_deterministic(True, warn_only=resolve_device(execution.device) != "cpu", compiled=execution.compile)
    memory.fill_uninitialized_memory = False  # it is for debugging torch, and costs time at every step
    try:
        with multiplying(execution.precision, resolve_device(execution.device)):
            yield
    finally:
        torch.set_num_threads(count)
        make_deterministic(before[0], warn_only=before[1], compiled=execution.compile)
        memory.fill_uninitialized_memory = filled


def make_deterministic(on: bool, *, warn_only: bool, compiled: bool) -> None:
    """As `torch.use_deterministic_algorithms`, which imports torch's compiler to tell it too: only where it is used."""
    if compiled or "torch._inductor" in sys.modules:  # a layer of the user may compile something itself
        torch.use_deterministic_algorithms(on, warn_only=warn_only)
    else:
        torch.set_deterministic_debug_mode(("warn" if warn_only else "error") if on else "default")
