"""The demo, in small: it runs as a command and leaves what it promises."""

import re
import subprocess
import sys
from pathlib import Path

from dspreg import Profile

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


def test_the_demo_ends_in_a_page_with_pictures(tmp_path):
    command = [sys.executable, str(QUICKSTART), "--out", str(tmp_path / "demo"), "--steps", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "demo" / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 10  # the images; three pictures before, after ERM, after DSP-Reg
    assert page.count("<svg") == 4  # accuracies on each target
    order = [page.index(text) for text in ("The four domains", "Accuracy on the target", "How domain-sensitive")]
    assert order == sorted(order)
    assert len(re.findall(r"<td>(?:ERM|DSP-Reg)<td", page)) == 8  # every domain held out once, both methods
    assert "null" in page
    profile = Profile.load(tmp_path / "demo" / "runs" / "ERM-handwritten" / "profiles" / "start.safetensors")
    assert profile.domains == ("outline", "print", "sign")
    assert float(profile.c.flat().mean()) > float(profile.null.flat().mean())
    assert "One seed each" in done.stdout
