"""Progress in a notebook: one output, replaced as work goes on; on a terminal Rich as it is."""

import io

import pytest
from rich.console import Console
from rich.progress import MofNCompleteColumn, TextColumn

from dspreg.io import progress_bars
from dspreg.io.progress_bars import in_notebook, make_console, make_progress

IPython_display = pytest.importorskip("IPython.display")
COLUMNS = (TextColumn("{task.description}"), MofNCompleteColumn())


class Output:
    """What `display(…, display_id=True)` returns, with all it has shown."""

    def __init__(self, first):
        self.shown = [first.data]

    def update(self, html):
        self.shown.append(html.data)


@pytest.fixture
def outputs(monkeypatch):
    made = []

    def display(html, display_id):
        assert display_id is True
        made.append(Output(html))
        return made[-1]

    monkeypatch.setattr(progress_bars, "in_notebook", lambda: True)
    monkeypatch.setattr(progress_bars, "EVERY", 0.0)
    monkeypatch.setattr(IPython_display, "display", display)
    return made


@pytest.mark.parametrize("transient", [False, True])
def test_one_output_follows_the_tasks(outputs, transient, capsys):
    with make_progress(*COLUMNS, console=make_console(), transient=transient) as bars:
        assert list(bars.track(range(3), description="<measuring>")) == [0, 1, 2]
    (output,) = outputs
    lines = [each.removeprefix("<pre>").removesuffix("</pre>").strip() for each in output.shown]
    assert [f"&lt;measuring&gt; {n}/3" in lines for n in range(4)] == [True] * 4
    assert lines[-1] == ("" if transient else "&lt;measuring&gt; 3/3")
    assert not any("\x1b" in line for line in lines)
    assert capsys.readouterr() == ("", "")


def test_it_draws_a_few_times_a_second(outputs, monkeypatch):
    monkeypatch.setattr(progress_bars, "EVERY", 3600.0)
    with make_progress(*COLUMNS, console=make_console()) as bars:
        task = bars.add_task("steps", total=1000)
        for _ in range(1000):
            bars.advance(task)
    assert len(outputs[0].shown) == 2  # the first and the last
    assert "1000/1000" in outputs[0].shown[-1]


def test_elsewhere_it_draws_on_its_console():
    assert not in_notebook()
    console = Console(file=io.StringIO(), width=80)
    with make_progress(*COLUMNS, console=console) as bars:
        bars.update(bars.add_task("steps", total=2), completed=2)
    assert "steps 2/2" in console.file.getvalue()
