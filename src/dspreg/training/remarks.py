"""What a user should know of a finished training before the model is used. In words; read from its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dspreg.io.text import join_few

FEWEST = 8  # evaluations; fewer say nothing about where a training is going
COLLAPSED, PLAUSIBLE = 0.99, 0.9  # share of the predictions that are one class, and of the images that would explain it
BEGINNINGS = COLLAPSES, STOPPED, UNTRAINED = "it predicts", "it was stopped", "it may not be trained out"
RISING = 0.01  # source validation, from the third quarter of the evaluations to the last


def training_remarks(
    records: Sequence[Mapping[str, Any]],
    *,
    steps: int,
    selected: int | None,
    values: Sequence[float | None],
    predicted: Sequence[Sequence[int]] = (),
    classes: Sequence[str] = (),
) -> list[str]:
    """What is odd about a training, a sentence each; none where nothing is.

    Args:
        records: Its evaluations.
        steps: That it was to take.
        selected: The step that was selected by held-out images; None where none are held out.
        values: What it was selected by, at every evaluation, the larger the better.
        predicted: Held-out images of the sources by class, and by the class that the selected model predicts.
        classes: Their names.
    """
    found = []
    if predicted and sum(predicted[1]):
        images = sum(predicted[0])
        most, true = max(predicted[1]), max(predicted[0])
        if len(classes) > 1 and most >= COLLAPSED * images and true < PLAUSIBLE * images:
            name = classes[list(predicted[1]).index(most)]
            found.append(
                f"{COLLAPSES} {name!r} for {100 * most / images:.0f} % of {images:,} held-out images of the "
                "sources, and has learned nothing else. Try a smaller learning rate, more steps, or pretrained weights"
            )
    last = records[-1]["step"] if records else None
    stopped = last is not None and last < steps - 1
    if stopped:
        found.append(f"{STOPPED} after step {last} of {steps:,}: no evaluation was better than that of step {selected}")
    known = [each for each in values if each is not None]
    if selected is None or stopped or len(known) < FEWEST or len(known) < len(values):
        return found
    quarter = len(known) // 4
    before, after = known[-2 * quarter : -quarter], known[-quarter:]
    rising = sum(after) / quarter - sum(before) / quarter
    odd = []
    if selected == last:
        odd.append("the last evaluation is the one selected")
    if rising > RISING:
        odd.append(f"source validation still rises, by {_points(rising)} from the third quarter to the last")
    if odd and (selected == last or rising > RISING):
        found.append(f"{UNTRAINED}: {join_few(odd, 2)}. More --steps may help")
    return found


def _points(value: float) -> str:
    return f"{100 * value:.1f} points"
