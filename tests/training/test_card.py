"""The card of a run, README.md: names from outside are text in it, and nothing else."""

from types import SimpleNamespace

import pytest

from dspreg.training.finalize import card

HOSTILE = [
    "a\n# Verified by nobody\n",
    "| 1 | 2 | 99.9 % |",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "![](http://nobody/x.png)",
    "`code` **bold** _it_ ~~s~~ &lt;",
    "\x1b[2J\x07\u202ereversed",
    "```",
    "{data} {0} %s",
]


def card_of(name):
    settings = SimpleNamespace(
        targets=(f"t{name}",), holdout=0.2, algorithm=f"ERM{name}", steps=3, protocol="domainbed", trial=0, draw=0,
        select_by="accuracy", augment_validation=False, describe_reading=lambda: "RGB",
        model=f"m{name}", image_size=28, lr=1e-3, batch_size=4, weight_decay=0.0,
        optimizer="adam", schedule="constant", warmup=0, layer_decay=1.0, train="all", head="random",
        features="default",
    )  # fmt: skip
    domains = (f"t{name}", f"s{name}")
    experiment = SimpleNamespace(
        settings=settings, backbone=SimpleNamespace(weights=SimpleNamespace(tag=f"w{name}", sha256=None)),
        data=SimpleNamespace(domains=domains, classes=(f"c{name}", "dog"), name=f"d{name}", kind="classes"),
        inputs=None,
        splits=dict.fromkeys(domains, ([0], [1])), execution=SimpleNamespace(keep="best"),
    )  # fmt: skip
    selected = {"step": 2, "validation": 0.5, "accuracy": {domains[0]: {"in": 0.5}, domains[1]: {"out": 0.5}}}
    return card(experiment, {"selected": selected, "last": selected})


def structure(text):
    """Of every line what makes it a heading, a row, an item or text; an escaped sign is none."""
    lines = []
    for line in text.splitlines():
        bare = line.replace("\\\\", "").replace("\\|", "")
        lines.append((line[:2] if line[:1] in "#|-`" else "", bare.count("|")))
    return lines


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text(name):
    text = card_of(name)
    assert structure(text) == structure(card_of("x"))
    assert not set(text) & {"\x1b", "\x07", "\u202e"}
    inside = text.replace("\\\\", "")
    for sign in "<[]*~&":
        plain = card_of("x").count(sign)
        assert inside.count(sign) - inside.count(f"\\{sign}") == plain, sign
