"""The documents say what is true: snippets run, cited tests and functions exist. Links: test_site.py."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "evidence/tables.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_readme_snippets_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(snippets) == 4
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), names)
    assert (tmp_path / "layers.png").stat().st_size > 5_000
    assert names["penalty"].steps == 12
    assert [each.domain for each in names["evaluation"].domains] == ["handwritten", "outline", "print", "sign"]
    assert len(names["runs"]) == 8


def test_results_in_python_are_those_of_the_evidence(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/use/reporting.md").read_text(), re.S)
    names: dict[str, object] = {}
    exec(compile(snippet, "reporting.md", "exec"), names)
    (row,) = re.findall(r"^\| SAM \| \S+ \| ERM \| \S+ \| (.*?) \| (.*?) … (.*?) \|", TABLES.read_text(), re.M)
    said = capsys.readouterr().out.splitlines()
    assert said[1].startswith("{} points, 95 % from {} to {}: ".format(*row))
    assert set(names["loss"]) == {record["step"] for record in names["run"].records} > {0}


def defined(path: Path) -> set[str]:
    return {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_cited_tests_and_files_exist(page):
    tests = set().union(*(defined(p) for p in (ROOT / "tests").rglob("test_*.py")))
    text = page.read_text()
    for name in re.findall(r"`(test_[a-z0-9_]+…?)", text):
        start = name.removesuffix("…")
        assert any(t == start or (name.endswith("…") and t.startswith(start)) for t in tests), name
    for file in re.findall(r"`((?:tests|src|bench|examples|docs)/[\w/]+\.(?:py|md))`", text):
        assert (ROOT / file).exists(), file


def test_theory_cites_functions_that_exist():
    text = (ROOT / "docs" / "understand" / "theory.md").read_text()
    theory = defined(ROOT / "tests/reference/theory.py")
    uncited = {name for name in theory if f"`{name}" not in text}
    assert all(name.startswith("_") for name in uncited - {"parameter_jacobians", "output"}), uncited


def test_the_package_names_no_folder_outside_the_repository():
    sources = [path for folder in ("src", "examples", "bench") for path in (ROOT / folder).rglob("*.py")]
    for path in [*PAGES, *sources]:
        assert "../shared" not in path.read_text(), path


def test_the_reference_is_what_the_code_says():
    """`python docs/make_reference.py` writes it."""
    done = subprocess.run(
        [sys.executable, ROOT / "docs/make_reference.py", "--check"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
