"""Text for people: names from outside made harmless, columns, lists, and what a mistyped name was meant to be."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

HIDDEN = {"Cc", "Cs", "Zl", "Zp"}  # control characters, halves of characters, line and paragraph separators
TURNING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # writing direction
FORMULA = ("=", "+", "-", "@", "\t", "\r")
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "–": "--", "±": r"$\pm$", "−": "$-$", "√": r"$\surd$", "≥": r"$\geq$", "≤": r"$\leq$",
    "→": r"$\to$", "←": r"$\leftarrow$", "×": r"$\times$", "·": r"$\cdot$", "≈": r"$\approx$", "∞": r"$\infty$",
    "²": r"$^2$", "³": r"$^3$", "µ": r"$\mu$",
}  # fmt: skip
GREEK = [  # from α on; LaTeX has no omicron
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi",
    None, "pi", "rho", "varsigma", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega",
]  # fmt: skip
LATEX |= {chr(0x3B1 + n): rf"$\{name}$" for n, name in enumerate(GREEK) if name}
LIGATURES = re.compile("(?<=-)(?=-)|(?<=')(?=')|(?<=`)(?=`)|(?<=,)(?=,)|(?<=[?!])(?=`)")  # one sign drawn for two

# Escaping.


def escape_terminal(text: str) -> str:
    """For a terminal: what would move its cursor, change its colours or turn the line round, as an escape.

    Spaces of all kinds and joined letters stay: they are in ordinary file names.
    """
    if text.isascii() and text.isprintable():  # nearly all are, and pages hold megabytes of it
        return text
    return "".join(_as_escape(c) if unicodedata.category(c) in HIDDEN or c in TURNING else c for c in text)


def escape_csv(text: str) -> str:
    """For a CSV file: as for a terminal, and with an apostrophe before what a spreadsheet would take for a formula.

    Only for text. A number such as -0.5 is to stay a number.
    """
    return f"'{escape_terminal(text)}" if text.startswith(FORMULA) else escape_terminal(text)


def escape_markdown(text: str) -> str:
    """Names may hold what markdown or HTML would take for its own."""
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", escape_terminal(text))


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it is: pdfLaTeX knows Latin letters, other engines all that their font has."""
    composed = unicodedata.normalize("NFC", escape_terminal(text))  # pdfLaTeX refuses é as two characters, as on macOS
    return "{}".join("".join(LATEX.get(c, c) for c in part) for part in LIGATURES.split(composed))


def _as_escape(c: str) -> str:
    return c.encode("unicode_escape").decode()


# Layout.


def align_columns(rows: Sequence[Sequence[str]], left: int = 1) -> Iterator[str]:
    """Lines of columns two spaces apart: the first `left` from the left, the others, numbers mostly, from the right."""
    from rich.cells import cell_len  # as wide as a terminal shows it: 漢 takes two places

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            text + room if i < left else room + text
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
            for room in [" " * (width - cell_len(text))]
        ]
        yield "  ".join(cells).rstrip()


def join_few(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are: `"a, b, c and 40 more"`."""
    first = ", ".join(names[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most:,} more"


def plural(count: int, one: str, many: str = "") -> str:
    """`"1 image"`, `"2,048 images"`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def format_duration(seconds: float) -> str:
    """For people, to two digits or so: `"40 s"`, `"41 min"`, `"2.5 h"`, `"28 h"`, `"3.1 days"`."""
    for unit, size, most in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 72)):
        if seconds < most * size:
            value = seconds / size
            return (
                f"{value:.1f} {unit}" if unit == "h" and value < 9.95 and round(value, 1) % 1 else f"{value:.0f} {unit}"
            )
    return f"{seconds / 86400:.1f} days"


# Names.

SYNONYMS = {  # ours → what others call it: DomainBed, WILDS, timm, Lightning, and people
    "algorithm": ("method", "algo", "loss", "trainer"),
    "algorithms": ("algorithm", "methods", "method", "algo"),
    "augment": ("data_augmentation", "augmentation", "aug"),
    "batch": ("batch_size", "bs"),
    "batch_size": ("bs", "batch", "minibatch", "train_batch_size", "mini_batch_size"),
    "config": ("yaml", "cfg", "config_file", "hparams"),
    "dataset": ("data", "ds", "dataset_name", "datasets", "benchmark"),
    "device": ("gpu", "gpus", "cuda", "accelerator", "gpu_id"),
    "draw": ("hparams_seed", "hparam_seed", "draws", "configuration"),
    "draws": ("n_hparams", "hparams", "draw", "num_hparams", "samples"),
    "dropout": ("resnet_dropout", "drop", "drop_rate"),
    "evaluate_every": ("checkpoint_freq", "eval_every", "eval_freq", "eval_interval", "val_every"),
    "evaluation_batch": ("eval_batch", "eval_batch_size", "test_batch_size", "val_batch_size"),
    "frozen_bn": ("freeze_bn", "bn_freeze"),
    "holdout": ("holdout_fraction", "val_split", "validation_split", "val_fraction", "test_size"),
    "image_size": ("img_size", "size", "resolution", "input_size", "crop_size", "resize"),
    "head": ("classifier", "head_init", "zero_shot", "zeroshot"),
    "keep": ("save_model_every_checkpoint", "keep_models", "save_model"),
    "layer_decay": ("llrd", "layerwise_decay", "layer_lr_decay", "lr_decay"),
    "lr": ("learning_rate", "step_size", "rate"),
    "model": ("arch", "backbone", "network", "architecture", "model_name", "net", "featurizer"),
    "optimizer": ("opt", "optim", "optimiser"),
    "out": ("output", "output_dir", "out_dir", "log_dir", "logdir", "save_dir", "run_dir", "work_dir", "folder"),
    "precision": ("amp", "fp16", "bf16", "half", "dtype"),
    "root": ("data_dir", "root_dir", "data_root", "data_path", "datadir"),
    "save_every": ("checkpoint_every", "save_freq", "save_steps"),
    "schedule": ("sched", "scheduler", "lr_scheduler", "lr_schedule"),
    "selection": ("model_selection", "selection_method"),
    "set": ("override", "opts", "option"),
    "steps": ("epochs", "epoch", "iterations", "iters", "max_steps", "num_steps", "n_steps", "num_epochs"),
    "store": ("out", "output", "output_dir", "out_dir", "work_dir", "folder"),
    "target": ("env", "envs", "test_env", "test_envs", "test_domain", "test_domains", "target_domain", "held_out"),
    "targets": ("target", "env", "envs", "test_env", "test_envs", "test_domain", "test_domains", "target_domain"),
    "threads": ("num_threads", "cpu_threads", "cores", "cpus"),
    "train": ("freeze", "trainable", "finetune", "tune", "peft"),
    "trial": ("seed", "trial_seed", "random_seed", "rng", "trials"),
    "trials": ("n_trials", "seeds", "trial", "repeats", "num_trials"),
    "warmup": ("warmup_steps", "warmup_epochs", "warm_up", "num_warmup_steps", "warmup_length"),
    "weight": ("lambda", "lamda", "lambd", "lam", "reg", "regularization", "regularisation", "strength", "coefficient",
               "penalty", "penalty_weight", "irm_lambda", "coef"),
    "weight_decay": ("wd", "decay", "l2"),
    "weights": ("pretrained", "checkpoint", "ckpt", "init"),
    "workers": ("num_workers", "n_workers", "loaders", "data_workers", "workers_per_gpu"),
}  # fmt: skip


def nearest(name: str, known: Iterable[str], cutoff: float = 0.65) -> str | None:
    """The known name that `name` was probably meant to be, or None where any guess would be a bad one.

    The same but for case and punctuation, what others call it, a typing error, the beginning of one name, or the first
    word of several.

    Args:
        name: What was typed.
        known: Names that exist.
        cutoff: Share of the letters that must be right. One wrong letter may always be.
    """
    bare, names = _bare(name), {each: _bare(each) for each in known}
    if not bare or len(bare) > LONGEST:
        return None
    ours = [_bare(each) for each, others in SYNONYMS.items() if bare in map(_bare, others)]
    for wanted in (bare, *ours):
        if same := next((each for each, letters in names.items() if letters == wanted), None):
            return same
    distances = {}
    for each, letters in names.items():
        longest = max(len(bare), len(letters))
        allowed = min(max(1, int((1 - cutoff) * longest)), longest - 1)
        if (found := edit_distance(bare, letters, allowed)) <= allowed:
            distances[each] = found
    if distances:
        return min(distances, key=lambda each: distances[each])
    begun = [each for each, letters in names.items() if len(bare) > 2 and letters.startswith(bare)]
    whole_words = all(each.replace("-", "_").startswith(f"{name}_") for each in begun)
    return begun[0] if len(begun) == 1 or (begun and whole_words) else None


LONGEST = 100  # letters of a name that somebody may have mistyped


def edit_distance(a: str, b: str, most: int) -> int:
    """Letters to be added, left out, changed or exchanged with their neighbour; `most` + 1 where there are more."""
    if abs(len(a) - len(b)) > most:
        return most + 1
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
        before, last = last, row
    return last[-1]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """For a message: a sentence with a space before it, or nothing."""
    near = nearest(name, known)
    if near is None:
        return ""
    strange = next((c for c in name if not c.isascii() and c not in near), None)  # the eye sees no difference
    says = f" {strange!r} is {unicodedata.name(strange, f'U+{ord(strange):04X}')}." if strange else ""
    return f" Did you mean {near!r}?{says}"


def shorten(value: object, most: int = 60) -> str:
    """A value as a message shows it: whatever came, in one short line."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of that many digits
        return f"a number of more than {sys.get_int_max_str_digits():,} digits"
    return text if len(text) <= most + 20 else f"{text[:most]}… ({len(text) - 2 * isinstance(value, str):,} characters)"


def path_name(path: str | os.PathLike[str]) -> str:
    """The last part of a path, which a data set is called by. A link counts by its own name, not by where it leads."""
    return os.path.basename(os.path.abspath(path))


def _bare(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())
