#!/usr/bin/env bash
# Build the wheel, install it in a clean environment outside the repository, and use it there.
set -euo pipefail
python=${1:-python3.11}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
bash "$here/tests/build_twice.sh"  # its wheel is built from the sdist, so that both are tried here
"$python" -m venv "$elsewhere/env"
"$elsewhere/env/bin/pip" install --quiet -c "$here/constraints.txt" "$here"/dist/dspreg-*.whl
cd "$elsewhere"
env/bin/dspreg --help
env/bin/python -m dspreg algorithms
env/bin/dspreg --print-completion bash | bash -n
env/bin/dspreg train --dataset digits --target print --algorithm ERM --steps 2 --out run
env/bin/dspreg evaluate run
env/bin/python - <<'PY'
import pathlib, torch, dspreg
assert "site-packages" in dspreg.__file__, dspreg.__file__
assert (pathlib.Path(dspreg.__file__).parent / "py.typed").exists()
assert len(dspreg.data.DomainNet.classes) == 345  # from a text file in the wheel
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
domains = {name: [(scale * torch.randn(16, 4), torch.randint(2, (16,))) for _ in range(2)] for name, scale in (("a", 1), ("b", 3))}
profile = dspreg.measure(net, domains)
assert float(profile.c.flat().mean()) > float(profile.null.flat().mean()) > 0
print(profile)
PY
echo "The wheel works: $(ls "$here"/dist)"
