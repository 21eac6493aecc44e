"""Methods by name: `"CORAL(weight=0.5)+DSPReg"` ⇄ `DSPReg(CORAL(weight=0.5))`.

`"A+B"` is `B(A())`: what stands later is around what stands before. There is nothing to register. A bare name is looked
up in `dspreg.algorithms`; a dotted one is an import path, e.g. `"my_methods.LogitNorm(weight=0.05)+DSPReg"`.

`dspreg.specs` reads the text; here its names become classes and its values options of their types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from dspreg.algorithms.base import ERM, Algorithm, options_of
from dspreg.errors import ConfigError, IntegrityError
from dspreg.io.domainbed_code import name_folders
from dspreg.io.importing import Trust, import_object
from dspreg.io.text import did_you_mean
from dspreg.specs import LOCATIONS, NOT_LITERAL, Term, format_term, parse_stack

PUBLISHED = 5_001  # steps of DomainBed's runs, for which methods publish what they count in steps


def parse(text: str, trust: Trust = None, *, of_file: bool = False) -> Algorithm:
    """The stack a spec stands for, before `setup`.

    Args:
        text: The spec.
        trust: For a spec that a file holds: modules that it may name besides dspreg's own, as in `dspreg.load`.
        of_file: Whether a file of a run holds it, in which options left out have the defaults of files.
    """
    return StackSpec.parse(text, trust, of_file=of_file).build()


def describe(algorithm: Algorithm) -> str:
    """The shortest spec of a stack: options that differ from their defaults, ERM only where it stands alone."""
    layers = [LayerSpec(type(layer), layer.options()) for layer in algorithm.layers()]
    return str(StackSpec(tuple(layers[::-1])))


def resolve_spec(
    text: str, *, seed: int | None = None, steps: int = PUBLISHED, trust: Trust = None
) -> tuple[str, list[str]]:
    """As `StackSpec.resolve`, from text to text; `trust` as in `parse`."""
    spec, scaled = StackSpec.parse(text, trust).resolve(seed=seed, steps=steps)
    return str(spec), scaled


@dataclass(frozen=True)
class LayerSpec:
    """One method and the options it is given."""

    algorithm: type[Algorithm]
    options: Mapping[str, Any]

    def build(self, base: Algorithm | None = None) -> Algorithm:
        if issubclass(self.algorithm, ERM):
            if base is not None:
                raise ConfigError(f"{self.name} is the bottom of every stack and goes first, or is left out")
            return self.algorithm(**self.options)
        return self.algorithm(base, **self.options)

    @property
    def name(self) -> str:
        """A bare name where `dspreg.algorithms` has one, an import path otherwise."""
        import dspreg.algorithms as index

        cls = self.algorithm
        bare = getattr(index, cls.__name__, None) is cls
        return cls.__name__ if bare else f"{cls.__module__}.{cls.__qualname__}"

    def for_file(self) -> LayerSpec:
        """As `StackSpec.for_file`."""
        then = self.algorithm.file_defaults
        options = self.build().options({*self.options, *then})
        kept = {n: v for n, v in options.items() if n not in then or v != then[n]}
        return LayerSpec(self.algorithm, kept).without_locations()

    def without_locations(self) -> LayerSpec:
        """The same without options that say where something lies, which are no part of what is trained."""
        places = LOCATIONS.get(self.name, ())
        return LayerSpec(self.algorithm, {n: v for n, v in self.options.items() if n not in places})

    def __str__(self) -> str:
        return format_term(self.name, self.options)


@dataclass(frozen=True)
class StackSpec:
    """A spec that was read: classes that exist and options they have. The innermost method is the first."""

    layers: tuple[LayerSpec, ...]

    @classmethod
    def parse(cls, text: str, trust: Trust = None, *, of_file: bool = False) -> StackSpec:
        """Read a spec and build its stack once, so that whatever is wrong with it is said here; as `parse`."""
        made: Algorithm | None = None
        layers = []
        for term in parse_stack(text):
            layer = _layer(term, trust)
            if of_file:
                layer = LayerSpec(layer.algorithm, {**layer.algorithm.file_defaults, **layer.options})
            layers.append(layer)
            made = layer.build(made)
        return cls(tuple(layers))

    def build(self) -> Algorithm:
        """The stack, before `setup`."""
        stack: Algorithm | None = None
        for layer in self.layers:
            stack = layer.build(stack)
        assert stack is not None
        return stack

    def shorten(self) -> StackSpec:
        """The same without options that are given and have their defaults, and without places of files."""
        return StackSpec(tuple(layer.without_locations() for layer in self.resolve()[0].layers))

    def resolve(
        self, *, seed: int | None = None, steps: int = PUBLISHED, settings: Mapping[str, Any] | None = None
    ) -> tuple[StackSpec, list[str]]:
        """The spec with what it leaves open filled in, and in words what was scaled; given options stay.

        Args:
            seed: `seed_hash(draw, trial)`; then every option that search varies is drawn at random.
            steps: Of the run. In one shorter than those that options are published for, options counted in steps (such
                as a warm-up) become shorter by as much: otherwise a short run would be over before they matter.
            settings: All options of the training, for methods with `fill_options`.
        """
        found = [_resolve_layer(layer, seed, steps, settings) for layer in self.layers]
        return StackSpec(tuple(layer for layer, _ in found)), [text for _, scaled in found for text in scaled]

    def for_file(self) -> str:
        """The spec as files of runs have it, whose ids it is part of: their defaults are left out, not today's."""
        return str(StackSpec(tuple(layer.for_file() for layer in self.layers)))

    def __str__(self) -> str:
        """Without the ERM below other methods."""
        layers = self.layers
        shown = layers[1:] if layers[0].algorithm is ERM and len(layers) > 1 else layers
        return "+".join(map(str, shown))


def _resolve_layer(
    spec: LayerSpec, seed: int | None, steps: int, settings: Mapping[str, Any] | None
) -> tuple[LayerSpec, list[str]]:
    cls, given = spec.algorithm, spec.options
    if settings is not None:
        given = cls.fill_options(given, seed, settings)
        spec = LayerSpec(cls, given)
    layer = spec.build()
    for option, prior in cls.space.items():
        if seed is not None and option not in given:
            setattr(layer, option, prior.draw(seed, f"{cls.__name__}.{option}"))
    by_hand, scaled = set(), []
    for option in cls.step_options:
        usual = getattr(layer, option)
        shorter = _shorten(usual, min(1.0, steps / PUBLISHED)) if usual else usual
        if shorter == usual:
            continue
        if given.keys() & set(cls.step_options):  # one that is given fixes the others, as GGA's start its end
            by_hand.add(option)  # written even where it is the default, which a short run would scale
            continue
        setattr(layer, option, shorter)
        scaled.append(f"{cls.__name__}: {option}={shorter} instead of {usual}")
    return LayerSpec(cls, layer.options(by_hand)), scaled


def _shorten(usual: Any, share: float) -> Any:
    """An option counted in steps, for this share of the steps it is published for; a decay looks back so much less."""
    if not 0 < usual < 1:
        return round(usual * share)
    return max(0.0, round(1 - (1 - usual) / share, 6)) if share < 1 else usual


def algorithms(*, experimental: bool = False) -> dict[str, type[Algorithm]]:
    """Every algorithm of the index, by its name; those that are experimental, and so in no table, only if asked for."""
    import dspreg.algorithms as index

    found = {name: getattr(index, name) for name in sorted(index.__all__, key=str.lower)}
    layers = {n: c for n, c in found.items() if isinstance(c, type) and issubclass(c, Algorithm) and c is not Algorithm}
    return {name: cls for name, cls in layers.items() if experimental or not cls.experimental}


def find_algorithm(name: str, trust: Trust = None) -> type[Algorithm]:
    """The class a name or an import path stands for; `trust` as in `parse`."""
    known = algorithms(experimental=True)
    if not all(part.isidentifier() for part in name.split(".")):
        written = name.replace(" - ", "-")  # as the user wrote it
        raise ConfigError(f"{written!r} is not the name of an algorithm.{did_you_mean(written, known)}")
    if "." not in name:
        import dspreg.algorithms as index

        if name in LOCATIONS:  # not of the catalogue: it is nothing without code of the user's
            return cast(type[Algorithm], getattr(index, name))
        if name not in known:
            raise ConfigError(
                f"unknown algorithm {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}. "
                f"For your own class use its import path, e.g. 'my_methods.{name}'"
            )
        return known[name]
    found = import_object(name, trust)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(f"{name!r} is not a subclass of dspreg.Algorithm")
    return found


def _layer(term: Term, trust: Trust) -> LayerSpec:
    cls, name = find_algorithm(term.name, trust), term.name
    if trust is not None and name in LOCATIONS:
        name_folders(trust)
        if given := [option for option in LOCATIONS[name] if option in term.options]:
            raise IntegrityError(f"a file that names code by its {given[0]} was not written by dspreg: {term.text}")
    if term.arguments:
        raise ConfigError(f"{term.text}: options are given by name, and stacks as 'inner+{name}'")
    known, hints = options_of(cls), get_type_hints(cls.__init__)
    for option, value in term.options.items():
        if option not in known:
            raise ConfigError(
                f"{name} has no option {option!r}.{did_you_mean(option, known)} It has: {', '.join(known) or 'none'}"
            )
        if isinstance(value, NOT_LITERAL):
            raise ConfigError(f"{name}: {option}={value.text} is not a number, a quoted string or a list of those")
        if not _fits(value, hints.get(option, Any)):
            wanted, default = _words(hints[option]), known[option].default
            raise ConfigError(f"{name}: {option}={value!r}; wanted {wanted}, such as {default!r}")
    return LayerSpec(cls, term.options)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a literal is what an annotation asks for; whole numbers are numbers, and all are finite."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    if hint in (int, str, bool, NoneType):
        return type(value) is hint
    if get_origin(hint) in (list, Sequence):
        return isinstance(value, list) and all(_fits(each, get_args(hint)[0]) for each in value)
    return True


def _words(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_words(each) for each in get_args(hint))
    known = {float: "a number", int: "a whole number", str: "a quoted string", bool: "True or False", NoneType: "None"}
    return known.get(hint, "a list" if get_origin(hint) in (list, Sequence) else str(hint))
