"""The stores of the evidence, one archive each, with their SHA-256 in SHA256SUMS.

    python evidence/archives.py open build/evidence     verifies them, and unpacks those that are not there yet
    python evidence/archives.py pack build/evidence     packs them again, and writes SHA256SUMS

`dspreg report` reads an archive as it is. Sweeps write into folders: open them, train, and pack them again. A folder
that was opened from other archives than those of SHA256SUMS is left alone, for packing it would undo what is newer.
Stores that no sweep has begun are neither here nor there.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from dspreg import ConfigError, DspregError, IntegrityError
from dspreg.runs.archive import SUFFIX, pack_store, unpack_store

HERE = Path(__file__).parent
STORES = (
    "agreement/emoji",
    "agreement/later",
    "agreement/screen",
    "agreement/store",
    "agreement/tune",
    "averages/digits",
    "averages/pacs",
    "averages/probe",
    "averages/probe-tune",
    "digits/batch",
    "digits/store",
    "pacs/store",
)
SUMS = "SHA256SUMS"  # as `sha256sum --check` reads it


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("open", "pack"))
    parser.add_argument("folder", type=Path, help="where the stores are as folders")
    parser.add_argument("--archives", type=Path, default=HERE, help="default: beside this file")
    options = parser.parse_args(arguments)
    try:
        {"open": open_all, "pack": pack_all}[options.action](options.archives, options.folder)
    except DspregError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(archives: Path) -> None:
    """Whether every archive is the one that SHA256SUMS names."""
    for line in (archives / SUMS).read_text().splitlines():
        expected, name = line.split("  ")
        if sha256_of_file(archives / name) != expected:
            raise IntegrityError(f"{archives / name} is damaged or was changed: its SHA-256 is not the one in {SUMS}")


def open_all(archives: Path, folder: Path) -> None:
    verify(archives)
    require_same_origin(archives, folder)
    for name in STORES:
        if (archives / f"{name}{SUFFIX}").exists() and not (folder / name).exists():
            unpack_store(archives / f"{name}{SUFFIX}", folder / name)
    (folder / SUMS).write_bytes((archives / SUMS).read_bytes())


def pack_all(archives: Path, folder: Path) -> None:
    if not (folder / SUMS).exists():
        raise ConfigError(f"{folder} holds no stores that were opened here; open them first")
    require_same_origin(archives, folder)
    begun = [name for name in STORES if (folder / name).exists() or (archives / f"{name}{SUFFIX}").exists()]
    for name in begun:
        pack_store(folder / name, archives / f"{name}{SUFFIX}", only_finished=True)
    files = [f"{name}{SUFFIX}" for name in begun]
    sums = "".join(f"{sha256_of_file(archives / file)}  {file}\n" for file in files).encode()
    (archives / SUMS).write_bytes(sums)
    (folder / SUMS).write_bytes(sums)


def require_same_origin(archives: Path, folder: Path) -> None:
    """A folder keeps the SHA256SUMS of the archives it was opened from or packed into."""
    if (folder / SUMS).exists() and (folder / SUMS).read_bytes() != (archives / SUMS).read_bytes():
        raise ConfigError(f"{folder} was opened from other archives than those in {archives}; remove one or the other")


if __name__ == "__main__":
    sys.exit(main())
