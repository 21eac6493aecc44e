"""Where a finished run keeps its models. Without torch: that there is no such run is said before torch is loaded."""

from __future__ import annotations

from pathlib import Path

from dspreg.config.reading import Reading
from dspreg.config.train_config import TrainConfig
from dspreg.errors import ConfigError, IntegrityError
from dspreg.runs.folder import RunFolder
from dspreg.runs.schema import check_description, check_run
from dspreg.runs.status import FAILURE, read_failure


def model_path_at(step: int) -> str:
    """File of the model of an evaluated step, with `keep="all"`."""
    return f"models/step-{step:08d}.safetensors"


def model_file(run: str | Path, which: str = "selected") -> Path:
    """Where a finished run keeps a model, as in `dspreg.load`; every file of the run is verified."""
    folder = RunFolder(run)
    check_run(folder.path, folder.contents())
    result = folder.result()
    if result is None:
        raise _unfinished(folder)
    path = folder / _name(which)
    if path.exists() and _name(which) not in result["files"]:
        raise IntegrityError(f"{path} does not belong to the run: result.json does not name it")
    if not path.exists():
        raise _not_kept(folder, which)
    return path


def reading_of(run: str | Path) -> Reading:
    """How the images of a run were read, by its run.json, which is checked."""
    folder = RunFolder(run)
    described = folder.description()
    check_description(f"{folder.path}/run.json", described)
    return TrainConfig.from_record(described["settings"]).reading


def require_model(run: str | Path, which: str = "selected") -> None:
    """Refuse a folder without a finished run or without this model, by a look at its files: nothing is verified."""
    folder = RunFolder(run)
    folder.description()
    if not (folder / "result.json").exists():
        raise _unfinished(folder)
    if not (folder / _name(which)).exists():
        raise _not_kept(folder, which)


def _name(which: str) -> str:
    return model_path_at(int(which)) if which.isdecimal() else f"{which}.safetensors"


def _unfinished(folder: RunFolder) -> ConfigError:
    failure = read_failure(folder / FAILURE)
    if failure is not None:
        return ConfigError(f"{folder.path} failed and has no model: {failure.reason}")
    return ConfigError(f"{folder.path} is not finished; the command that began it, given again, finishes it")


def _not_kept(folder: RunFolder, which: str) -> ConfigError:
    steps = ", ".join(str(int(each.stem.removeprefix("step-"))) for each in sorted((folder / "models").glob("*")))
    there = [name for name in ("selected", "last") if (folder / f"{name}.safetensors").exists()]
    kept = ", ".join(there + ([f"the steps {steps}"] if steps else [])) or "none: it was trained with --keep none"
    return ConfigError(f"{folder.path} kept no model {which!r}. It has {kept}")
