"""Runs that a page trips over if it can, as a folder and as a page."""

from dspreg.cli import main
from helpers.runs import single, write_run

PACS = ("art_painting", "cartoon", "photo", "sketch")
BAD = "<script>alert(1)</script>\"'><img src=x>\u202egnp\u2028&amp;"
LEVELS = {"CORAL": 0.7, "DSPReg": 0.9, "ERM": 0.8, "IRM": 0.6}


def write_pacs(root, trials=2):
    """Four methods, three of them in the paper too; IRM has failed on photo, so that its mean is missing."""
    for algorithm, level in LEVELS.items():
        for n, target in enumerate(PACS):
            for trial in range(trials):
                broken = algorithm == "IRM" and target == "photo"
                records = [
                    single(s, target, level + n / 100 + trial / 1000 + s / 10_000, 0.5 + s / 1000, PACS)
                    | {"validation": 0.5 + s / 1000, "log": {"loss": 2 - s / 200}}
                    for s in (0, 100, 200, 300)
                ]
                write_run(
                    root / "runs" / f"{algorithm}-{target}-{trial}", records, dataset="PACS", domains=PACS, trial=trial,
                    targets=(target,), algorithm=algorithm, steps=5001, model="resnet50.tv_in1k",
                    failure="step 3: the loss is not finite, see /home/alice/PACS/log.txt" if broken else None,
                )  # fmt: skip
    return root


def write_bad(root):
    """Hostile names wherever a run has names."""
    odd = {"dataset": BAD, "domains": (BAD, "b"), "algorithm": f"A{BAD}", "model": BAD, "torch": BAD}
    for n, target in enumerate((BAD, "b")):
        write_run(root / f"{n}", [single(0, target, 0.5, 0.5, (BAD, "b"))], targets=(target,), **odd)
    write_run(root / "failed", [], targets=("b",), trial=1, failure=BAD, **odd)
    return root


def page_of(root, out, *arguments):
    assert main(["report", str(root), "--format", "html", "--out", str(out), *arguments]) == 0
    return out.read_text(encoding="utf-8")
