"""Progress, for people: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from dspreg.training.experiment import Experiment


class Display:
    """Told what happens. This one says nothing."""

    def checking(self, done: int, total: int) -> None:
        """Images are looked at before the first training on them."""

    def started(self, experiment: Experiment, t: int) -> None: ...

    def doing(self, what: str) -> None:
        """Something that takes a while and is no step."""

    def alive(self) -> None:
        """The network computes something."""

    def stepped(self, t: int, log: dict[str, float]) -> None: ...

    def recorded(self, record: dict[str, Any]) -> None: ...

    def ended(self) -> None: ...


class Bar(Display):
    """Step rate, remaining time, loss, source validation and the penalty's share of the gradient."""

    def __init__(self, console: Console, title: str = ""):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        wide = console.width >= 110
        texts = ("{task.description}", "{task.fields[rate]}", "{task.fields[loss]}")
        name, rate, loss = (TextColumn(text) for text in texts)
        more = (TextColumn("{task.fields[validation]}"), TextColumn("{task.fields[penalty]}"))
        left = TimeRemainingColumn(compact=True)
        columns = (name, BarColumn(16), MofNCompleteColumn(), rate, left, loss, *more)
        narrow = (name, MofNCompleteColumn(), rate, left, loss, *more)  # eighty columns: the bar says least
        self.progress = Progress(*(columns if wide else narrow), console=console, transient=True)
        self.room = 40 if wide else 16
        self.title = title
        self.task: Any = None
        self.progress.start()

    def checking(self, done: int, total: int) -> None:
        if self.task is None:
            self.task = self._line("looking at every image, once", total)
        self.progress.update(self.task, completed=done)

    def _line(self, title: str, total: int, done: int = 0) -> Any:
        fields: dict[str, Any] = dict.fromkeys(("rate", "loss", "validation", "penalty"), "")
        title = title if len(title) <= self.room else title[: self.room - 1] + "…"
        return self.progress.add_task(title, total=total, completed=done, **fields)

    def started(self, experiment: Experiment, t: int) -> None:
        s = experiment.settings
        title = self.title or f"{s.algorithm} → {', '.join(s.targets) or 'no target'}"
        if self.task is not None:
            self.progress.remove_task(self.task)
        self.task = self._line(title, s.steps, t)

    def doing(self, what: str) -> None:
        self.progress.update(self.task, loss=what)

    def stepped(self, t: int, log: dict[str, float]) -> None:
        speed = self.progress.tasks[0].speed
        shown = {"rate": f"{speed:.2f}/s" if speed else "", "loss": f"loss {log['loss']:.2f}"}
        ratio = next((value for name, value in log.items() if name.endswith(".ratio")), None)
        if ratio is not None:
            shown["penalty"] = f"pen {ratio:.0%}"
        self.progress.update(self.task, completed=t + 1, **shown)  # type: ignore[arg-type]

    def recorded(self, record: dict[str, Any]) -> None:
        self.progress.update(self.task, validation=f"val {record['validation']:.0%}")

    def ended(self) -> None:
        self.progress.stop()
