"""TensorBoard: event files in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspreg.training.trackers.tracker import TrackedRun, Tracker


class TensorBoard(Tracker):
    """Writes `tensorboard/` in the folder of the run."""

    name = "TensorBoard"
    writer: Any

    def open(self, run: TrackedRun) -> None:  # noqa: ARG002
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        place = self.folder / "tensorboard"
        self.there: dict[str, set[int]] = {}
        if place.exists():
            events = EventAccumulator(str(place), size_guidance={"scalars": 0})  # 0: all of them
            events.Reload()
            self.there = {name: {each.step for each in events.Scalars(name)} for name in events.Tags()["scalars"]}
        self.writer = SummaryWriter(str(place))

    def has(self, name: str, step: int) -> bool:
        return step in self.there.get(name, ())

    def send(self, step: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, status: str) -> None:  # noqa: ARG002
        self.writer.close()
