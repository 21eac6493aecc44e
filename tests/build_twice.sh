#!/usr/bin/env bash
# Build wheel and sdist into dist/, and again from a copy of the tracked files under another umask: the bytes must agree.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${1:-$here/.venv/bin/python}
elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct)}  # the time of every file in them
export PIP_CONSTRAINT=$here/constraints.txt  # the build backend writes its version into the wheel
rm -rf "$here/dist"
"$python" -m build --outdir "$here/dist" "$here" &> "$elsewhere/log" || { cat "$elsewhere/log"; exit 1; }  # wheel of the sdist
mkdir "$elsewhere/copy"
(cd "$here" && git ls-files -z | tar -c --null -T -) | tar -x -C "$elsewhere/copy"
(umask 077 && "$python" -m build --sdist --wheel --outdir "$elsewhere/dist" "$elsewhere/copy") &> "$elsewhere/log" \
  || { cat "$elsewhere/log"; exit 1; }  # wheel of the files
for file in "$elsewhere"/dist/*; do
  cmp "$file" "$here/dist/$(basename "$file")" || { echo "not the same twice; are there files that git does not know?"; exit 1; }
done
(cd "$here/dist" && sha256sum -- *)
