"""Files with any bytes in any place: each is read as it is, or refused by an error of ours.

Hypothesis replaces, cuts out and inserts bytes, in the header of a safetensors file above all. Where a SHA-256 beside a
file would notice first, it is made to fit. `pytest tests/io/test_fuzz_files.py --fuzz 2000` looks further.
"""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dspreg
from dspreg.data import Index
from dspreg.errors import DspregError
from dspreg.io.atomic_files import canonical_json, sha256
from dspreg.networks.pretrained import make_backbone
from dspreg.training.stored_model import load_model_file
from helpers.small_runs import photos, trained

MOST = 2**20  # kB of memory that reading a file of some kB may take, beyond what the process has already
PIECES = st.one_of(
    st.binary(max_size=8),
    st.sampled_from([b"-1", b"1e400", b"9" * 400, b"null", b"[" * 2000, b"{}", b'"', b"\xff\xfe", b"\0", b"NaN",
                     b"true", b"2147483648", b"18446744073709551615", b"F64", b"../x", b"\x1b[2J", b"[1,1,1,1]"]),
)  # fmt: skip
CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 40), PIECES), min_size=1, max_size=4)


def damage(data: bytes, changes, within: int | None = None) -> bytes:
    """Replace some bytes at each place, a share of the first `within` bytes."""
    for place, length, piece in changes:
        at = int(place * min(len(data), within or len(data)))
        data = data[:at] + piece + data[at + length :]
    return data


def header_size(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    images = photos(folder / "photos")
    return trained(images, folder / "runs" / "one", algorithm="DSPReg(refresh_steps=1, measure_batches=1)")


@pytest.fixture
def examples(request):
    """Runs a check on as many examples as asked for."""
    count = request.config.getoption("--fuzz")
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]

    def check(strategy, test):
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        settings(max_examples=count, deadline=None, suppress_health_check=quiet, database=None)(given(strategy)(test))()
        assert memory("VmHWM") - before < MOST

    return check


def memory(field: str) -> int:
    """kB that this process has ("VmRSS"), or had at most ("VmHWM")."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def read(reader, *arguments):
    """Whether it was read; anything but an error of ours is a failure of the test."""
    try:
        reader(*arguments)
    except DspregError:
        return False
    return True


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_models(run, tmp_path, examples):
    good, path = (run / "last.safetensors").read_bytes(), tmp_path / "model.safetensors"
    path.write_bytes(good)
    assert read(load_model_file, path)
    refused = []

    def check(changes):
        path.write_bytes(damage(good, changes, header_size(good)))
        refused.append(not read(load_model_file, path))

    examples(CHANGES, check)
    assert any(refused)


def test_weights(run, tmp_path, examples):
    from safetensors.torch import save_file

    path = tmp_path / "weights.safetensors"
    plain = make_backbone("small-cnn", weights="none", image_size=28).make()
    save_file({name: tensor.contiguous() for name, tensor in plain.state_dict().items()}, path)
    good = path.read_bytes()

    def load():
        make_backbone("small-cnn", weights=str(path), image_size=28).make()

    refused = []

    def check(changes):
        path.write_bytes(damage(good, changes, header_size(good)))
        refused.append(not read(load))

    examples(CHANGES, check)
    assert any(refused)


def test_profiles(tmp_path, examples):
    import torch

    net = torch.nn.Linear(3, 2)
    domains = {name: [(torch.randn(4, 3), torch.randint(2, (4,)))] * 2 for name in ("a", "b")}
    dspreg.measure(net, domains).save(tmp_path / "profile.safetensors")
    path = tmp_path / "profile.safetensors"
    good = path.read_bytes()
    assert read(dspreg.Profile.load, path)

    def check(changes):
        damaged = damage(good, changes)
        path.write_bytes(damaged)
        assert read(dspreg.Profile.load, path) == (damaged == good)  # its SHA-256 is inside of it

    examples(CHANGES, check)


@pytest.mark.parametrize("name", ["run.json", "records.jsonl", "refreshes.jsonl"])
@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_runs_whose_digests_were_made_to_fit(run, tmp_path, examples, name):
    there = tmp_path / "runs" / "one"
    shutil.copytree(run, there)
    good, result = (there / name).read_bytes(), json.loads((there / "result.json").read_text())
    assert len(dspreg.load_runs(there.parent)) == 1

    def check(changes):
        damaged = damage(good, changes)
        (there / name).write_bytes(damaged)
        changed = {k: v for k, v in result.items() if k != "sha256"} | {
            "files": {**result["files"], name: sha256(damaged)}
        }
        (there / "result.json").write_text(
            json.dumps({**changed, "sha256": sha256(canonical_json(changed).encode())}), "utf-8"
        )
        read(dspreg.load_runs, there.parent)
        read(dspreg.report, there.parent)

    examples(CHANGES, check)


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_an_index(run, tmp_path, examples):
    images = run.parents[1] / "photos"
    rows = [f"{path.relative_to(images)},{path.parent.name},{path.parts[-3]}" for path in images.rglob("*.png")]
    good, path = ("path,label,domain\n" + "\n".join(rows) + "\n").encode(), tmp_path / "index.csv"
    path.write_bytes(good)
    assert read(lambda: Index(path, images).domains)

    def check(changes):
        path.write_bytes(damage(good, changes))
        read(lambda: [len(data.domain(name)) for data in [Index(path, images)] for name in data.domains])

    examples(CHANGES, check)
