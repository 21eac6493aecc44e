"""Tables of what was measured of kept models: c along training, what it depends on, and how alike penalties are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

Steps = Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]  # arm, step → lines of one of the scripts
LAST = 299
CHOICES = {
    "usual": "as a refresh measures it", "again": "another draw of images", "augmented": "augmented images",
    "1e-08": "ε = 1e-8", "1e-06": "ε = 1e-6", "0.0001": "ε = 1e-4",
}  # fmt: skip


def print_c(found: Steps) -> None:
    print("\nc along training, means over runs and over the parameters that some domain is sensitive to\n")
    print("| | step | c | null | c without noise | above null | sensitive | runs |\n|---|---|---|---|---|---|---|---|")
    for (arm, step), chosen in found.items():
        shown = [fmean(each[k] for each in chosen) for k in ("c", "null", "c_debiased", "above_null", "alive")]
        print(f"| {arm} | {step} | " + " | ".join(f"{x:.3f}" for x in shown) + f" | {len(chosen)} |")
    for arm in ("ERM", "DSP-Reg"):
        runs: dict[str, dict[int, float]] = defaultdict(dict)  # over all parameters, as the protocol has it
        for (name, step), chosen in found.items():
            for each in chosen if name == arm else ():
                runs[each["run"]][step] = each["c_debiased"] * each["alive"]
        moved = [each[LAST] - each[0] for each in runs.values() if 0 in each and LAST in each]
        if moved:
            print(f"\n{arm}: c without noise, over all parameters, from step 0 to {LAST}: {fmean(moved):+.3f}; "
                  f"lower in {sum(m < 0 for m in moved)} of {len(moved)} runs")  # fmt: skip


def print_patterns(found: Steps) -> None:
    print(
        "\nPenalty parts by `exact`, beside that of c: cosine and ratio of lengths; one batch, and the sum over eight\n"
    )
    print("| | step | ‖part‖/‖g‖ | sd/mean of c | another draw of images | shuffled c | mean c | runs |")
    print("|---|---|---|---|---|---|---|---|")
    for (arm, step), chosen in found.items():
        cells = []
        for name in ("again", "shuffled", "mean"):
            one, many = ([fmean(each[k][name][i] for each in chosen) for i in (0, 1)] for k in ("single", "summed"))
            cells.append(f"{one[0]:.2f}, {one[1]:.2f}×; {many[0]:.2f}, {many[1]:.2f}×")
        share, spread = (fmean(each[k] for each in chosen) for k in ("share", "spread_of_c"))
        print(f"| {arm} | {step} | {share:.2f} | {spread:.2f} | {' | '.join(cells)} | {len(chosen)} |")


def by_arm(lines: list[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        found["ERM" if line["algorithm"] == "ERM" else "DSP-Reg", line["step"]].append(line)
    return dict(sorted(found.items(), key=lambda each: (each[0][0] != "ERM", each[0][1])))


def print_measuring(found: Steps) -> None:
    print("\nc after training, by how it is measured: means over runs\n")
    print("| | | c | null | rank correlation with the first | runs |\n|---|---|---|---|---|---|")
    for (arm, _), chosen in found.items():
        for name, words in CHOICES.items():
            lines = [each["choices"][name] for each in chosen]
            numbers = [fmean(line[k] for line in lines) if lines[0].get(k) is not None else None
                       for k in ("c", "null", "agreement")]  # fmt: skip
            cells = ["" if x is None else f"{x:.2f}" for x in numbers]
            print(f"| {arm} | {words} | {' | '.join(cells)} | {len(lines)} |")
