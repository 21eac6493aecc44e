"""What is installed, released and built into containers: files that name each other agree."""

import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import dspreg

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
NOT_FOR_USERS = {"all", "bench", "dev", "docs"}


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines if "==" in line)}


def test_the_version_is_one():
    assert PROJECT["version"] == dspreg.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == dspreg.__version__
    assert re.search(rf"^## {re.escape(dspreg.__version__)} \(", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)


@pytest.mark.parametrize("needed", PROJECT["dependencies"])
def test_what_is_needed_is_pinned_within_its_range(needed):
    requirement = Requirement(needed)
    assert pins()[canonical(requirement.name)] in requirement.specifier


def test_the_page_lists_every_extra():
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    table = page[page.index("| extra | for |") : page.index("A command that needs one")]
    listed = [name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(EXTRAS)


def test_all_is_every_extra_of_users():
    (everything,) = map(Requirement, EXTRAS["all"])
    assert everything.extras == set(EXTRAS) - NOT_FOR_USERS


def copied_by_docker():
    for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            yield from shlex.split(line)[1:-1]


def copied_by_apptainer():
    text = (ROOT / "apptainer.def").read_text(encoding="utf-8")
    block = re.search(r"^%files\n((?:    .*\n)+)", text, re.M)[1]
    return [line.split()[0] for line in block.splitlines()]


@pytest.mark.parametrize("copied", [copied_by_docker, copied_by_apptainer])
def test_containers_copy_what_is_there_and_what_a_wheel_needs(copied):
    found = set(copied())
    assert all((ROOT / name).exists() for name in found)
    assert found >= {"src", "pyproject.toml", "constraints.txt", PROJECT["readme"], *PROJECT["license-files"]}


def test_docker_is_shown_what_it_copies():
    shown = [line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] == "!"]
    assert all(any(fnmatch(name, pattern) for pattern in shown) for name in copied_by_docker())


def test_commands_of_the_workflows_are_read_by_ours():
    """The systems where they run are not at hand; a misspelt option is found here."""
    from dspreg.cli import build_parser

    calls = []
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
            runs = [step["run"] for step in job["steps"] if "run" in step]
            calls += [
                found
                for text in runs
                for found in re.findall(r"(?:^|docker run .* )dspreg ((?:train|sweep|evaluate|report) .*)", text)
            ]
    assert len(calls) >= 5
    for call in calls:
        assert callable(build_parser().parse_args(shlex.split(call)).run)


def test_make_targets_of_the_workflows_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        used = re.findall(r"run: make (\S+)", path.read_text(encoding="utf-8"))
        assert used
        assert set(used) <= targets
