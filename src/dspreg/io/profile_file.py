"""The file of a profile: its digest, its description, its numbers within their bounds. Read without torch.

A safetensors file whose one entry of metadata is named after the format. Since version 2 its text starts with the
SHA-256 of the whole file, computed with zeros in that place, so that a profile is verified wherever it is copied to.
Version 1 had no digest, and is read as before.

A digest says that a file is as it was written, not that `dspreg measure` wrote it: so what it says is checked as well.
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dspreg.errors import ConfigError, IntegrityError, ResourceError
from dspreg.io.atomic_files import open_regular_file

if TYPE_CHECKING:
    import numpy as np

FORMAT, FIRST = "dspreg.profile/2", "dspreg.profile/1"
VECTORS = ("mean", "variance", "c", "c_debiased", "null")
OPTIONAL = ("c_debiased", "null")
START = f'{{"__metadata__":{{"{FORMAT}":"'.encode()  # of the header, after the eight bytes of its length
BLANK = b"0" * 64
DTYPES = ("F32", "F64")
ROUNDING = 1e-5  # relative: bounds are computed in float64 and values stored in float32
LONGEST, MOST_DOMAINS, MOST_TENSORS = 4_096, 10_000, 1_000_000


def metadata_of(description: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of a profile that is not sealed yet."""
    # one entry: safetensors writes several in an order that changes from process to process
    return {FORMAT: f"{BLANK.decode()} {json.dumps(description, allow_nan=False, sort_keys=True)}"}


def seal(data: bytes) -> bytes:
    """The bytes of a profile with their SHA-256 in its place."""
    first, end = 8 + len(START), 8 + len(START) + len(BLANK)
    if data[8:end] != START + BLANK:
        raise RuntimeError("this version of safetensors writes its header in another order")
    return b"".join((data[:first], hashlib.sha256(data).hexdigest().encode(), memoryview(data)[end:]))


@dataclass(frozen=True)
class ProfileFile:
    """A profile that is open. Every tensor is checked when it is read.

    Attributes:
        path: For error messages.
        description: "domains", "names" of parameters, "kinds" of layers, "reliability" and "settings".
        parts: Those of `VECTORS` that it has.
    """

    path: Path
    description: dict[str, Any]
    parts: tuple[str, ...]
    _tensor: Callable[[str], np.ndarray]

    @property
    def domains(self) -> list[str]:
        return list(self.description["domains"])

    @property
    def names(self) -> list[str]:
        return list(self.description["names"])

    def sensitivity(self, domain: int, name: str) -> np.ndarray:
        """s of one parameter on the `domain`-th domain."""
        return self._read(f"s/{domain}/{name}", math.inf)

    def tensor(self, part: str, name: str) -> np.ndarray:
        """One of `VECTORS` of one parameter."""
        most = math.sqrt(len(self.domains) - 1) * (1 + ROUNDING) + ROUNDING
        return self._read(f"{part}/{name}", math.inf if part in ("mean", "variance") else most)

    def _read(self, key: str, most: float) -> np.ndarray:
        values = self._tensor(key)
        if values.size:
            low, high = float(values.min()), float(values.max())  # NaN if any is
            finite = high < math.inf or key.startswith("variance/")  # that of large s may not fit into float32
            if not (low >= 0 and high <= most and finite):
                wanted = "finite numbers" if most == math.inf else f"numbers up to {most:.4g}, which is √(D−1),"
                raise IntegrityError(
                    f"{self.path}: the tensor {reprlib.repr(key)} has values from {low:g} to {high:g}; wanted {wanted} "
                    "at least 0. It was not measured like that"
                )
        return values


@contextmanager
def opened_profile(path: str | Path, *, verified: bool = False) -> Iterator[ProfileFile]:
    """A profile, verified and checked.

    Args:
        path: Of the file.
        verified: Its SHA-256 was compared with another record of it, and need not be computed again.

    Raises:
        ConfigError: There is no such file.
        ResourceError: It can't be read.
        IntegrityError: It is damaged, not a profile, or says what no measurement gives.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        sealed = _verify(path, skip=verified)
        with safe_open(path, framework="np") as file:
            description = _description(path, file.metadata() or {}, sealed)
            parts = _check_tensors(path, description, file)
            yield ProfileFile(path, description, parts, file.get_tensor)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}; give one that `Profile.save` or `dspreg measure` wrote") from error
    except OSError as error:
        raise ResourceError(f"{path} can't be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise IntegrityError(f"{path} is damaged or not a profile: {str(error)[:300]}") from error


def _verify(path: Path, *, skip: bool) -> bool:
    """Compare the SHA-256 in a file with that of the file; False if it has none, as those of version 1."""
    with open(open_regular_file(path, follow=True), "rb") as file:
        if skip:
            return True
        head = file.read(8 + len(START) + len(BLANK))
        if not head[8:].startswith(START):
            return False
        found = hashlib.sha256(head[: -len(BLANK)] + BLANK)
        while block := file.read(2**20):
            found.update(block)
    if found.hexdigest().encode() != head[-len(BLANK) :]:
        raise IntegrityError(f"{path} is damaged or was changed: its SHA-256 is not the one in it")
    return True


def _description(path: Path, metadata: Mapping[str, str], sealed: bool) -> dict[str, Any]:
    if FORMAT in metadata and sealed:
        text = metadata[FORMAT][len(BLANK) :]
    elif FIRST in metadata:
        text = metadata[FIRST]
    else:
        found = ", ".join(map(reprlib.repr, list(metadata)[:3])) or "no description"
        raise IntegrityError(f"{path} is not a profile: it has {found}, wanted {FORMAT!r}")
    description = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_number)
    json.dumps(description, ensure_ascii=False).encode()  # half of a character could be written nowhere
    return _check_description(path, description)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _finite_number(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


# What a description may say.

Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _is_names(value: Any, most: int) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and 1 <= len(set(value)) == len(value) <= most


def _is_per_channel(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(_is_number, value))


def _has(**fields: Check) -> Check:
    """An object that has all of these."""
    return lambda value: isinstance(value, dict) and all(name in value and fields[name](value[name]) for name in fields)


def _of_all(domains: Collection[str], check: Check) -> Check:
    """An object by domain."""
    return lambda value: isinstance(value, dict) and value.keys() == set(domains) and all(map(check, value.values()))


SETTINGS: dict[str, Check] = {
    **dict.fromkeys(("of", "estimator", "loss"), _is_text),
    "draws": _or_none(_is_count),
    "eps": _is_number,
    "variance": lambda value: _is_number(value) or _is_text(value),
}
ABOUT: dict[str, Check] = {
    **dict.fromkeys(("model", "run", "which", "algorithm", "head", "data", "dspreg", "torch"), _is_text),
    **dict.fromkeys(("step", "outputs", "image_size", "batch", "seed"), _or_none(_is_count)),
    **dict.fromkeys(("mean", "std"), _is_per_channel),
    "weights": _has(tag=_is_text, sha256=_or_none(_is_text)),
}


def _check_description(path: Path, value: Any) -> dict[str, Any]:
    """Fields that nothing reads, such as those of a newer version, are left alone."""
    if not isinstance(value, dict):
        _refuse(path, "description", value, "an object")

    def require(field: str, found: Any, check: Check, wanted: str) -> None:
        if not check(found):
            _refuse(path, field, found, wanted)

    domains: Any = value.get("domains")
    names, kinds, settings = value.get("names"), value.get("kinds"), value.get("settings", {})
    require("domains", domains, lambda d: _is_names(d, MOST_DOMAINS) and len(d) > 1, "two or more different names")
    require("names", names, lambda n: _is_names(n, MOST_TENSORS), "different names of parameters")
    require("kinds", kinds, lambda k: isinstance(k, dict) and all(map(_is_text, k.values())), "names by layer")
    sure = _or_none(lambda r: _is_number(r) and abs(r) <= 1 + ROUNDING)
    require("reliability", value.get("reliability"), sure, "a number from −1 to 1, or none")
    require("settings", settings, lambda s: isinstance(s, dict), "an object")
    about = settings.get("about", {})
    require("settings.about", about, lambda a: isinstance(a, dict), "an object")
    counted = _of_all(domains, _has(samples=_is_count, batches=_is_count))
    there = _of_all(domains, _has(images=_is_count, part=lambda part: part in ("all", "in")))
    for start, held, checks in (
        ("settings", settings, {**SETTINGS, "domains": counted}),
        ("settings.about", about, {**ABOUT, "domains": there}),
    ):
        for name, check in checks.items():
            if name in held:
                require(f"{start}.{name}", held[name], check, "what `dspreg measure` writes there")
    if about and not {"model", "data"} <= about.keys():
        _refuse(path, "settings.about", about, "model and data in it")
    return value


def _check_tensors(path: Path, description: Mapping[str, Any], file: Any) -> tuple[str, ...]:
    """The tensors that the description names and no others, of one shape and dtype for each parameter."""
    stored, names = set(file.keys()), description["names"]
    parts = tuple(p for p in VECTORS if p not in OPTIONAL or any(key.startswith(f"{p}/") for key in stored))
    prefixes = [*(f"s/{d}" for d in range(len(description["domains"]))), *parts]
    wanted = {f"{prefix}/{name}" for prefix in prefixes for name in names}
    if stored != wanted:
        odd = min(stored ^ wanted)
        raise IntegrityError(f"{path}: the tensor {odd[:200]!r} is {'missing' if odd in wanted else 'one too many'}")
    total = 0
    for name in names:
        kinds = {key: _kind(file, key) for key in (f"{prefix}/{name}" for prefix in prefixes)}
        shape, dtype = kinds[f"c/{name}"]
        total += math.prod(shape)
        for key, kind in kinds.items():
            if kind != (shape, dtype) or dtype not in DTYPES:
                raise IntegrityError(
                    f"{path}: the tensor {key[:200]!r} is {kind[1]} {list(kind[0])}; wanted {' or '.join(DTYPES)}, and "
                    f"the shape of c, {list(shape)}"
                )
    if not total:
        raise IntegrityError(f"{path} is a profile of no parameters")
    return parts


def _kind(file: Any, key: str) -> tuple[tuple[int, ...], str]:
    part = file.get_slice(key)
    return tuple(part.get_shape()), str(part.get_dtype())


def _refuse(path: Path, field: str, value: Any, wanted: str) -> NoReturn:
    raise IntegrityError(f"{path}: {field} is {reprlib.repr(value)}; wanted {wanted}")
