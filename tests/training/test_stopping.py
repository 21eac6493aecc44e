"""A signal stops a training wherever it is, with a checkpoint where there is something to keep, and changes no bit."""

import multiprocessing
import os
import pty
import select
import signal
import threading
import time
from contextlib import suppress

import pytest

from dspreg.cli import main
from dspreg.cli.train import stopping
from dspreg.data import images as data_images
from dspreg.errors import Preempted, ResourceError
from dspreg.training import loop, train
from dspreg.training.callbacks import Callback
from helpers import tiny

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


@pytest.fixture(scope="module")
def whole(images, tmp_path_factory):
    """How a run ends that nobody stops."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(tiny.settings(images, steps=6), tiny.execution(profile="always"), out)
    return tiny.ending(out)


class At(Callback):
    """Does something at the n-th time that a phase, a step, or the check of images is reached; counts what follows."""

    def __init__(self, what, act, nth=1):
        self.what, self.act, self.left, self.after = what, act, nth, 0

    def reached(self, what):
        if what != self.what:
            return
        self.left -= 1
        if self.left == 0:
            self.act()

    def on_image_check(self, done, total):
        self.reached("checking images")

    def on_phase(self, description):
        self.reached(description)

    def on_step_end(self, step, log):
        self.reached("step")

    def on_progress(self):
        self.reached("progress")
        self.after += self.left <= 0


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def stop_readers():
    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.SIGSTOP)


def stop_readers_and_terminate():
    stop_readers()
    threading.Timer(1.5, terminate).start()  # when what was read ahead is used up


def run_stopped(images, out, callback, code=75, **execution):
    settings, how = tiny.settings(images, steps=6), tiny.execution(profile="always", **execution)
    with stopping() as pause, pytest.raises(Preempted) as stopped:
        train(settings, how, out, callbacks=[callback], pause=pause)
    assert stopped.value.exit_code == code


def checkpoints(out):
    return sorted((out / "checkpoints").glob("*.safetensors"))


@pytest.mark.parametrize(
    ("phase", "nth"),
    [
        ("progress", 1),  # hashing the files
        ("checking images", 1),
        ("measuring c before training", 1),
        ("step", 2),
        ("evaluating", 1),
        ("evaluating", 3),
        ("measuring c after training", 1),
    ],
)
def test_sigterm_stops_in_every_phase(images, tmp_path, whole, phase, nth, monkeypatch):
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(data_images, "TOGETHER", 8)
    at = At(phase, terminate, nth)
    run_stopped(images, tmp_path / "run", at, check_images="once")
    assert at.after <= 1 + (phase == "progress")  # nothing more was computed
    assert bool(checkpoints(tmp_path / "run")) == (phase in ("step", "evaluating", "measuring c after training"))
    train(tiny.settings(images, steps=6), tiny.execution(profile="always"), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == whole


def test_sigterm_is_obeyed_while_a_reader_is_waited_for(images, tmp_path, whole):
    run_stopped(images, tmp_path / "run", At("step", stop_readers_and_terminate), workers=1)
    assert checkpoints(tmp_path / "run")
    train(tiny.settings(images, steps=6), tiny.execution(profile="always"), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == whole


def test_sigterm_is_obeyed_while_an_evaluation_waits_for_its_reader(images, tmp_path, whole):
    """The readers are stopped at the second batch of the evaluation, with others to come."""
    at = At("progress", stop_readers_and_terminate)
    at.what, at.on_phase = None, lambda description: setattr(at, "what", "progress" if "eval" in description else None)
    run_stopped(images, tmp_path / "run", at, workers=1)
    assert checkpoints(tmp_path / "run")
    train(tiny.settings(images, steps=6), tiny.execution(profile="always"), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == whole


def test_within_a_step_nothing_is_kept_of_it(images, tmp_path, whole, monkeypatch):
    """c is measured in step 5, and its reader stops: what the step has done so far must be in no checkpoint."""
    monkeypatch.setattr(loop, "GRACE", 0.2)
    take_step = loop.train_step

    def step(algorithm, batches, **options):
        if algorithm.t == 5:
            stop_readers()
            monkeypatch.setattr(loop.Checkpoints, "save", lambda *_: pytest.fail("kept"))
            terminate()
        return take_step(algorithm, batches, **options)

    monkeypatch.setattr(loop, "train_step", step)
    run_stopped(images, tmp_path / "run", Callback(), workers=1)
    monkeypatch.undo()
    train(tiny.settings(images, steps=6), tiny.execution(profile="always"), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == whole


def test_a_reader_that_stalls_ends_the_run_with_its_checkpoint(images, tmp_path, whole, monkeypatch):
    monkeypatch.setenv("DSPREG_READER_PATIENCE", "1")
    settings, how = tiny.settings(images, steps=6), tiny.execution(profile="always", workers=1)
    with pytest.raises(ResourceError, match="it is stopped"):
        train(settings, how, tmp_path / "run", callbacks=[At("step", stop_readers)])
    assert multiprocessing.active_children() == []
    train(tiny.settings(images, steps=6), tiny.execution(profile="always"), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == whole


def test_a_storm_of_sigterms_is_one(images, tmp_path, whole):
    over = threading.Event()

    def storm():
        while not over.is_set():
            terminate()
            time.sleep(0.0005)

    thread = threading.Thread(target=storm)
    try:
        run_stopped(images, tmp_path / "run", At("step", thread.start, 2))
    finally:
        received = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # that of `stopping`, which stays after a signal
        over.set()
        thread.join()
        assert received not in (signal.SIG_DFL, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert len(checkpoints(tmp_path / "run")) >= 1
    train(tiny.settings(images, steps=6), tiny.execution(profile="always"), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == whole


def test_sighup_is_a_sigterm_unless_nohup_ignores_it():
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with stopping() as pause:
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            pause()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with stopping() as pause:
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(Preempted) as stopped:
                pause()
        assert stopped.value.exit_code == 75
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_closed_stops_a_training_with_a_checkpoint(images, tmp_path):
    """Also the progress bar, the notice of the stop and the last message find no terminal any more."""
    s = tiny.SETTINGS
    options = ["train", "--dataset", f"folder:{images}", "--target", "elm", "--out", str(tmp_path / "run"), "--model"]
    options += [s["model"], "--weights", "none", "--threads", "1", "--profile", "never", "--steps", "100000"]
    options += ["--set", "image_size=24", "--set", "batch_size=4", "--save-every", "1", "--workers", "1"]
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have it ignored, and so would the training
        code = 1
        with suppress(BaseException):
            code = main(options)
        os._exit(code)
    until = time.monotonic() + 60
    while not checkpoints(tmp_path / "run") and time.monotonic() < until:
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 4096)
    os.kill(child, signal.SIGSTOP)  # so that the terminal is gone before it knows
    os.close(terminal)
    os.kill(child, signal.SIGCONT)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status), f"ended by signal {os.WTERMSIG(status)}"
    assert os.WEXITSTATUS(status) == 75
    assert checkpoints(tmp_path / "run")
