"""Which layers go together: what a layer demands of the others, and what to write instead where that can't be met."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dspreg.errors import ConfigError, Notice
from dspreg.kinds import CLASSES, KINDS

if TYPE_CHECKING:
    from dspreg.algorithms.base import Algorithm

ONLY_CLASSES = (CLASSES,)
ARROWS = ("build", "forward", "loss", "gradient", "update")


@dataclass(frozen=True, kw_only=True)
class Compatibility:
    """What a layer demands of the stack it is in; `setup` refuses a stack where a demand is not met.

    Attributes:
        replaces: Arrows, or "predict", that on purpose do not call the base, so that what changes them goes above.
        needs_several_domains: It compares domains and is nothing on a single one.
        calls_base_per_domain: It calls the arrow below with one domain at a time.
        trains_featurizer: It can't do with a featurizer that is frozen as a whole.
        predicts_at_other_weights: Its prediction is at other weights than those that are trained, such as an average.
            A layer above it that has its own would read the network elsewhere, and goes below.
        predicts_from_current_weights: They are made of the network's at that moment, so an average may stand above.
        reads_images: It changes images or listens within the featurizer, and so can't be given features of a frozen
            one in their place. Of a method outside of dspreg that is assumed where it changes more than the loss.
        owns_step: At the bottom of a stack: it makes its own steps, so that no layer above can change an arrow.
        rearranges_samples: The samples of its outputs are some of those that the network read, or in another order.
        needs_samples_as_read: It has for every sample that the network reads something that its outputs are compared
            with, so that no layer below may rearrange them.
        differentiates_features: It differentiates the loss by the features, which are then to be those that logits were
            computed from.
        kinds: The kinds of task, of `dspreg.kinds`, that it is defined for.
        option: The option of the layer that demands it, for the message: `"engine 'gauss_newton'"`.
        not_compiled: Why the network can't be compiled under it, as the end of a sentence, with what to do; empty if it
            can: `"listens to features inside the network"`. Hooks that stay on modules are found without this.
        not_weighted: Why samples can't be weighted under it, as the end of a sentence; empty if they can, because what
            it knows of the labels' loss comes from `out.risks()`, `out.weigh` or the base.
    """

    replaces: frozenset[str] = frozenset()
    needs_several_domains: bool = False
    calls_base_per_domain: bool = False
    trains_featurizer: bool = False
    predicts_at_other_weights: bool = False
    predicts_from_current_weights: bool = False
    reads_images: bool = False
    owns_step: bool = False
    rearranges_samples: bool = False
    needs_samples_as_read: bool = False
    differentiates_features: bool = False
    kinds: tuple[str, ...] = tuple(KINDS)
    option: str = ""
    not_compiled: str = ""
    not_weighted: str = ""


def overrides(cls: type[Algorithm], name: str) -> bool:
    """Whether a class has its own `name`, and not what `Algorithm` does."""
    from dspreg.algorithms.base import Algorithm  # which declares a Compatibility itself

    return getattr(cls, name) is not getattr(Algorithm, name)


def arrows_of(cls: type[Algorithm]) -> tuple[str, ...]:
    """The arrows a class changes."""
    return tuple(arrow for arrow in ARROWS if overrides(cls, arrow))


def reads_images(layer: Algorithm) -> bool:
    """Whether a layer needs the images themselves, and not what a frozen featurizer makes of them."""
    own = type(layer).__module__.partition(".")[0] == __name__.partition(".")[0]
    changed = {*arrows_of(type(layer)), *(name for name in ("predict", "measured") if overrides(type(layer), name))}
    return layer.compatibility.reads_images or not (own or changed <= {"loss"})


def require_compatible(layers: tuple[Algorithm, ...]) -> None:
    """Refuse a layer that would silently undo what one below it does, or leave it nothing to do. Outermost first."""
    above_erm = layers[:-1]
    if layers[-1].compatibility.owns_step:
        refuse_changed_arrows(above_erm, layers[-1])
    for i, layer in enumerate(above_erm):
        for below in above_erm[i + 1 :]:
            if reason := conflict(layer, below):
                spec = f"'{type(layer).__name__}+{type(below).__name__}'"
                better = "Leave one of them out" if conflict(below, layer) else f"Put it the other way round: {spec}"
                raise ConfigError(f"{reason}. {better}")


def refuse_changed_arrows(above: tuple[Algorithm, ...], bottom: Algorithm) -> None:
    """Refuse a layer that would change a step which the bottom of the stack makes by itself."""
    for layer in above:
        changed = arrows_of(type(layer))
        if changed:
            name = type(layer).__name__
            raise ConfigError(
                f"{type(bottom).__name__} makes its own steps, with its own loss and optimisers; {name} above it "
                f"would change {' and '.join(changed)}. Above it go layers that leave a step alone, such as SWA; or "
                f"stack {name} on the same method of dspreg, if there is one"
            )


def conflict(above: Algorithm, below: Algorithm) -> str | None:
    """Why one must not stand above the other; None if it may."""
    upper, lower = type(above).__name__, type(below).__name__
    undone = {name for name in above.compatibility.replaces if overrides(type(below), name)}
    if undone:
        who = f"{upper} with {above.compatibility.option}" if above.compatibility.option else upper
        return f"{who} has its own {' and '.join(sorted(undone))} and would undo that of {lower} below it"
    follows = above.compatibility.predicts_at_other_weights and below.compatibility.predicts_from_current_weights
    if below.compatibility.predicts_at_other_weights and overrides(type(above), "predict") and not follows:
        return f"{upper} has its own predict, which would not be at the weights that {lower} below it predicts with"
    a, b = above.compatibility, below.compatibility
    if b.rearranges_samples and a.needs_samples_as_read:
        return f"{upper} compares outputs with what the network read, and {lower} below it hands on other samples"
    for one, other, needs, changes in ((upper, lower, a, b), (lower, upper, b, a)):
        if needs.differentiates_features and changes.rearranges_samples:
            return f"{one} differentiates by the features of a step, and {other} hands on other samples than were read"
    shared = {"gradient", "update"}.intersection(arrows_of(type(above)), arrows_of(type(below)))
    if shared and above.compatibility.calls_base_per_domain and below.compatibility.needs_several_domains:
        return f"{upper} asks for one domain at a time, which leaves {lower} below it nothing to compare"
    return None


def require_kind_known(layers: tuple[Algorithm, ...], kind: str) -> None:
    """Refuse a layer that is not defined for this kind of task: what it compares, such as classes, is not there."""
    for layer in layers:
        if kind not in layer.compatibility.kinds:
            name = type(layer).__name__
            who = f"{name} with {layer.compatibility.option}" if layer.compatibility.option else name
            known = " or ".join(each for each in KINDS if each in layer.compatibility.kinds)
            raise ConfigError(f"{who} needs {known}, and this task is of the kind {kind!r}. Leave {name} out")


def require_weightable(layers: Iterable[Algorithm]) -> None:
    """Refuse a layer that would leave the weights of samples out of account, and warn of one that may."""
    for layer in layers:
        cls, what = type(layer), layer.compatibility
        why = what.not_weighted or ("makes its own steps" if what.owns_step else "")
        if why:
            raise ConfigError(
                f"images can't be weighted in the loss under {cls.__name__}, which {why}. --balance sampling goes with "
                "every method; --image-weights no leaves the column weight out of account"
            )
        changed = [name for name in ("forward", "loss") if overrides(cls, name)]
        if changed and not cls.__module__.startswith("dspreg."):
            warnings.warn(
                f"{cls.__name__} changes {' and '.join(changed)}: images are weighted in what comes from out.risks() "
                "and the base, and not in a loss of labels that it computes itself",
                Notice,
                stacklevel=3,
            )


def require_trainable_featurizer(layers: tuple[Algorithm, ...]) -> None:
    """Refuse a layer that differentiates by the featurizer where all of it is frozen; torch's own error says less."""
    if any(p.requires_grad for p in layers[0].net.featurizer.parameters()):
        return
    for layer in layers:
        if layer.compatibility.trains_featurizer:
            name = type(layer).__name__
            raise ConfigError(
                f"{name} trains the featurizer, and all of it is frozen; leave {name} out, or thaw a part"
            )


# Methods written for version 0.1 declare these names.
RENAMED = {"counted": "step_options", "remembers": "saved_attributes", "tune": "configure_optimizer"}
FLAGS = {
    "replaces": "replaces",
    "compares": "needs_several_domains",
    "one_by_one": "calls_base_per_domain",
    "moves_features": "trains_featurizer",
}


def adopt_old_names(cls: type[Algorithm]) -> None:
    """Let what a class declares under old names count under the new ones, with one notice."""
    own = vars(cls)
    for name in ("commit", "discard"):
        if name in own:
            raise TypeError(f"{cls.__name__}.{name} would not be called: put it into on_step_end(self)")
    found = [name for name in (*RENAMED, *FLAGS) if name in own]
    if not found:
        return
    changes = {FLAGS[name]: own[name] for name in found if name in FLAGS}
    cls.compatibility = replace(cls.compatibility, **changes)
    for name in found:
        if name in RENAMED:
            setattr(cls, RENAMED[name], own[name])
    now = [f"{n} is now {RENAMED[n]}" if n in RENAMED else f"{n} is now Compatibility({FLAGS[n]}=…)" for n in found]
    warnings.warn(f"{cls.__name__} declares old names: {'; '.join(now)}", Notice, stacklevel=4)
