"""DomainBed's folders: printed as its collect_results prints them, and written so that it can read them.

The literal tables were printed by collect_results itself (commit b93c22a) for the folders made here.
"""

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspreg.cli import main
from dspreg.domainbed.collect_results import collect_results, read_records
from dspreg.domainbed.jobs import job_id
from dspreg.domainbed.names import ALGORITHMS, DATASETS
from dspreg.domainbed.records import check_record, sweep_arguments
from dspreg.domainbed.write_sweep import write_sweep
from dspreg.errors import ConfigError, DataError, IntegrityError, Notice
from dspreg.runs.folder import RunFolder
from helpers.runs import record, single, trace, write_jobs, write_run

THREE = ("a", "b", "c")
LONG = "SAM+DSPReg(weight=0.001)"


def jobs():
    """ColoredMNIST with ties, NaN, runs and pairs missing, an unknown method, and a data set it does not know."""
    runs = []
    for algorithm, shift in ((LONG, 0.0), ("IRM", 0.05), ("ERM", 0.0)):
        for trial in (0, 1):
            for n, target in enumerate(THREE):
                if algorithm == "IRM" and target == "c":
                    continue
                accuracy = 0.5 + shift + 0.1 * n + 0.03 * trial
                steps = [(0, accuracy, 0.4), (100, accuracy + 0.02, 0.6), (200, accuracy - 0.01, 0.6)]
                made = [single(s, target, a, v, THREE, out=a / 2) for s, a, v in steps]
                runs.append(trace(*made, targets=(target,), trial=trial, algorithm=algorithm, domains=THREE))
    for a, b in (("a", "b"), ("a", "c"), ("b", "c")):
        for trial in (0, 1):
            held = [record(s, dict.fromkeys(THREE, (0.3 + s / 1000, 0.5))) for s in (0, 100, 200)]
            runs.append(trace(*held, targets=(a, b), trial=trial, algorithm="ERM", domains=THREE))
    nan = trace(single(0, "a", 0.11, float("nan"), THREE, out=0.1), single(100, "a", 0.99, 0.9, THREE, out=0.1), draw=1,
                targets=("a",), algorithm="ERM", domains=THREE)  # fmt: skip
    unknown = trace(single(0, "a", 0.5, 0.5, THREE, out=0.1), dataset="digits", targets=("a",), domains=THREE)
    return [_named(run) for run in [*runs, nan]] + [unknown]


def _named(run):
    return trace(*run.records, dataset="ColoredMNIST", algorithm=run.algorithm, targets=run.targets, trial=run.trial,
                 draw=run.draw, domains=run.domains)  # fmt: skip


TEXT = """\
Total records: 69

-------- Dataset: ColoredMNIST, model selection method: training-domain validation set
Algorithm             +90%                  +80%                  -90%                  Avg                  ¶
ERM                   53.5 +/- 1.1          63.5 +/- 1.1          73.5 +/- 1.1          63.5                 ¶
IRM                   58.5 +/- 1.1          68.5 +/- 1.1          X                     X                    ¶
SAM+DSPReg(weight=0.  53.5 +/- 1.1          63.5 +/- 1.1          73.5 +/- 1.1          63.5                 ¶

-------- Averages, model selection method: training-domain validation set
Algorithm                  ColoredMNIST               Avg                       ¶
ERM                        63.5 +/- 1.1               63.5                      ¶
IRM                        63.5 +/- 1.1               63.5                      ¶
SAM+DSPReg(weight=0.001)   63.5 +/- 1.1               63.5                      ¶

-------- Dataset: ColoredMNIST, model selection method: leave-one-domain-out cross-validation
Algorithm             +90%                  +80%                  -90%                  Avg                  ¶
ERM                   50.5 +/- 1.1          60.5 +/- 1.1          70.5 +/- 1.1          60.5                 ¶
IRM                   X                     X                     X                     X                    ¶
SAM+DSPReg(weight=0.  X                     X                     X                     X                    ¶

-------- Averages, model selection method: leave-one-domain-out cross-validation
Algorithm                  ColoredMNIST               Avg                       ¶
ERM                        60.5 +/- 1.1               60.5                      ¶
IRM                        X                          X                         ¶
SAM+DSPReg(weight=0.001)   X                          X                         ¶

-------- Dataset: ColoredMNIST, model selection method: test-domain validation set (oracle)
Algorithm             +90%                  +80%                  -90%                  Avg                  ¶
ERM                   50.5 +/- 1.1          60.5 +/- 1.1          70.5 +/- 1.1          60.5                 ¶
IRM                   55.5 +/- 1.1          65.5 +/- 1.1          X                     X                    ¶
SAM+DSPReg(weight=0.  50.5 +/- 1.1          60.5 +/- 1.1          70.5 +/- 1.1          60.5                 ¶

-------- Averages, model selection method: test-domain validation set (oracle)
Algorithm                  ColoredMNIST               Avg                       ¶
ERM                        60.5 +/- 1.1               60.5                      ¶
IRM                        60.5 +/- 1.1               60.5                      ¶
SAM+DSPReg(weight=0.001)   60.5 +/- 1.1               60.5                      ¶
""".replace("¶", "")  # a pilcrow ends lines that end in a space

LATEX = r"""\documentclass{article}
\usepackage{booktabs}
\usepackage{adjustbox}
\begin{document}
\section{Full DomainBed results}
% Total records: 69

\subsection{Model selection: training-domain validation set}

\subsubsection{ColoredMNIST}

\begin{center}
\adjustbox{max width=\textwidth}{%
\begin{tabular}{lcccc}
\toprule
\textbf{Algorithm}   & \textbf{+90\%}       & \textbf{+80\%}       & \textbf{-90\%}       & \textbf{Avg}         \\
\midrule
ERM                  & 53.5 $\pm$ 1.1       & 63.5 $\pm$ 1.1       & 73.5 $\pm$ 1.1       & 63.5                 \\
IRM                  & 58.5 $\pm$ 1.1       & 68.5 $\pm$ 1.1       & X                    & X                    \\
SAM+DSPReg(weight=0. & 53.5 $\pm$ 1.1       & 63.5 $\pm$ 1.1       & 73.5 $\pm$ 1.1       & 63.5                 \\
\bottomrule
\end{tabular}}
\end{center}

"""


def test_text_is_that_of_collect_results(tmp_path):
    assert collect_results(write_jobs(tmp_path, jobs())) == TEXT


def test_latex_is_that_of_collect_results_with_its_option(tmp_path):
    found = collect_results(write_jobs(tmp_path, jobs()), latex=True)
    assert found.startswith(LATEX)
    assert found.endswith("\n\\bottomrule\n\\end{tabular}}\n\\end{center}\n\\end{document}\n")
    assert found.count("\\subsubsection{ColoredMNIST}") == found.count("\\subsubsection{Averages}") == 3


def test_nothing_at_all_is_a_table_without_rows(tmp_path):
    (tmp_path / "results.txt").write_text("ignored", encoding="utf-8")
    (tmp_path / "begun").mkdir()
    assert collect_results(tmp_path).startswith(
        "Total records: 0\n\n-------- Averages, model selection method: training-"
    )


def test_the_largest_of_equal_draws_and_the_first_of_equal_steps(tmp_path):
    runs = []
    for draw, accuracy in enumerate((0.1, 0.2, 0.3)):
        steps = [single(s, "a", accuracy + s / 1000, 0.5, THREE, out=0.5) for s in (0, 100)]
        runs.append(_named(trace(*steps, targets=("a",), draw=draw, domains=THREE)))
    lines = collect_results(write_jobs(tmp_path, runs)).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("ERM") and "X" in line] == ["30.0", "X", "X", "40.0"]


def test_unfinished_runs_enter(tmp_path):
    write_jobs(tmp_path, [_named(trace(single(0, "a", 0.5, 0.5, THREE, out=0.5), targets=("a",), domains=THREE))])
    for done in tmp_path.rglob("done"):
        done.unlink()
    assert "ERM                   50.0 +/- 0.0          X " in collect_results(tmp_path)


def test_where_collect_results_stops_there_is_an_error(tmp_path):
    only = [trace(single(0, "ash", 0.5, 0.5))]
    with pytest.raises(DataError, match="only trees, none of a data set that DomainBed knows"):
        collect_results(write_jobs(tmp_path / "a", only))
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match="no records"):
        collect_results(tmp_path / "b", latex=True)
    with pytest.raises(ConfigError, match="can't be listed"):
        collect_results(tmp_path / "nowhere")
    write_jobs(
        tmp_path / "c", [_named(trace(record(0, {"a": (None, 0.5), "b": (0.1, 0.1)}), domains=THREE, targets=("a",)))]
    )
    with pytest.raises(IntegrityError, match=r"not laid out as DomainBed's \(KeyError: 'env0_in_acc'"):
        collect_results(tmp_path / "c")


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_torn_line_is_named(tmp_path, cut):
    write_jobs(tmp_path, jobs()[:1])
    (path,) = tmp_path.rglob("results.jsonl")
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(IntegrityError, match="ends in the middle of a line"):
        read_records(tmp_path)
    path.write_text('{"step": 0}\n{"st\n', encoding="utf-8")
    with pytest.raises(IntegrityError, match="line 2, is damaged"):
        read_records(tmp_path)


def test_the_names_are_as_many_as_domainbed_has():
    assert (len(ALGORITHMS), len(set(ALGORITHMS)), len(DATASETS)) == (34, 34, 18)
    assert DATASETS["PACS"] == ("A", "C", "P", "S")


def test_job_names_are_those_of_its_test_sweep():
    """Literally, from domainbed/misc/test_sweep_data."""
    settings = {
        "dataset": "VLCS", "algorithm": "ERM", "targets": ["L", "S"], "holdout": 0.2, "draw": 1, "trial": 0,
        "steps": 1001,
    }  # fmt: skip
    arguments = sweep_arguments(settings, ("C", "L", "S", "V"), "/checkpoint/dlp/datasets_new")
    assert arguments["seed"] == 360234358
    assert job_id(arguments) == "0657090f9a83ff76efe083a104fde93a"
    assert "steps" not in sweep_arguments(settings | {"steps": 5001}, ("C", "L", "S", "V"), "x")


OF_THE_TRAINER = ("uda_holdout_fraction", "checkpoint_freq", "output_dir")  # a sweep does not set them
PACS = ("art_painting", "cartoon", "photo", "sketch")


def ours(root, **changes):
    """Four targets, two trials, as training records them: what selection needs and no more."""
    random = np.random.default_rng(0)
    for n, target in enumerate(PACS):
        for trial in (0, 1):
            steps = [
                single(
                    s, target, round(random.random(), 3), round(random.random(), 3), PACS, out=0.5 if s == 300 else None
                )
                for s in (0, 100, 200, 300)
            ]
            write_run(
                root / f"{n}-{trial}", steps, dataset="PACS", domains=PACS, targets=(target,), trial=trial, **changes
            )
    return root


def test_what_is_written_gives_our_own_numbers(tmp_path):
    from dspreg.reporting.load import read_runs
    from dspreg.reporting.tables import select_rows

    assert write_sweep(ours(tmp_path / "runs"), tmp_path / "sweep") == 8
    (row,) = select_rows(read_runs(tmp_path / "runs")[0])
    cells = [row.cell(target).format(" +/- ") for target in PACS]
    printed = collect_results(tmp_path / "sweep").splitlines()
    assert printed[0] == "Total records: 32"
    assert [printed[4][22 * i : 22 * i + 20].rstrip() for i in range(1, 5)] == cells


def test_what_is_written_has_a_number_for_every_environment_and_the_names_of_a_sweep(tmp_path):
    write_sweep(ours(tmp_path / "runs"), tmp_path / "sweep", data_dir="/data")
    for folder in (tmp_path / "sweep").iterdir():
        assert (folder / "done").read_text() == "done"
        for line in map(json.loads, (folder / "results.jsonl").read_text().splitlines()):
            assert {f"env{i}_out_acc" for i in range(4)} < set(line)
            args = line["args"]
            assert args["data_dir"] == "/data"
            assert job_id({k: v for k, v in args.items() if k not in OF_THE_TRAINER}) == folder.name


def test_the_name_is_the_one_that_was_asked_for(tmp_path):
    write_run(tmp_path / "runs/a", [single(0, "ash", 0.5, 0.5)], algorithm="IRM(weight=3.7)", asked="IRM", draw=1)
    with pytest.warns(Notice, match="collect_results does not know trees"):
        write_sweep(tmp_path / "runs", tmp_path / "sweep")
    (path,) = (tmp_path / "sweep").rglob("results.jsonl")
    assert json.loads(path.read_text())["args"]["algorithm"] == "IRM"


def test_writing_refuses_what_would_be_counted_wrongly(tmp_path):
    runs = ours(tmp_path / "runs")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(ConfigError, match="not empty"):
        write_sweep(runs, tmp_path / "full")
    write_run(
        runs / "again",
        list(RunFolder(runs / "2-0").records),
        dataset="PACS",
        domains=PACS,
        targets=("photo",),
        threads=8,
    )
    with pytest.raises(ConfigError, match=r"2-0 and .*again are one job to DomainBed"):
        write_sweep(runs, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_unfinished_runs_are_not_written(tmp_path):
    runs = ours(tmp_path / "runs")
    write_run(runs / "begun", [], dataset="PACS", domains=PACS, targets=("photo",), trial=7, finish=False)
    with pytest.warns(Notice, match="1 unfinished runs were not written"):
        assert write_sweep(runs, tmp_path / "sweep") == 8


# Folders from strangers.

HUGE = 10**400
TAMPERED = [
    ("args", 3), ("args", None), ("args", []),
    *((name, value) for name in ("args.dataset", "args.algorithm")
      for value in (None, 3, [], "", "x" * 10_000, "a\x1b[2J", "a\nb", "\\input{/etc/hosts}", "^^5cinput", "\u202ea")),
    *(("args.test_envs", value) for value in (None, 0, "0", {}, [True], [-1], [0, 0], [0.5], ["0"], [[0]], [HUGE])),
    *((name, value) for name in ("args.trial_seed", "args.hparams_seed", "step")
      for value in (None, True, "0", [], -1, 0.5, HUGE, float("nan"))),
    *((name, value) for name in ("env0_in_acc", "env3_out_acc")
      for value in (None, True, "0.9", [], {}, -5, 1.5, 1e308, HUGE, float("inf"))),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), TAMPERED, ids=lambda each: str(each)[:30])
def test_a_tampered_job_is_named_with_line_and_field(capsys, tmp_path, field, value):
    runs = [trace(single(0, "art_painting", 0.5, 0.5, PACS), dataset="PACS", domains=PACS, targets=("art_painting",))]
    write_jobs(tmp_path, [*runs, *runs])
    path = tmp_path / f"{1:032x}" / "results.jsonl"
    line = json.loads(path.read_text())
    *way, last = field.split(".")
    (line[way[0]] if way else line)[last] = value
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(IntegrityError) as raised:
        collect_results(tmp_path)
    assert f"{path}, line 1: {field} is " in str(raised.value)
    assert len(str(raised.value)) < 600
    assert main(["report", "--domainbed", str(tmp_path)]) == 4
    assert not set(capsys.readouterr().err) & {"\x1b", "\u202e"}


@pytest.mark.parametrize("text", ["3\n", "[]\n", "null\n", '"x"\n', "{}\n", "[" * 100_000 + "\n", "9" * 5_000 + "\n"])
def test_lines_that_are_no_records(tmp_path, text):
    (tmp_path / "job").mkdir()
    (tmp_path / "job/results.jsonl").write_text(text)
    with pytest.raises(IntegrityError, match=r"results\.jsonl, line 1"):
        collect_results(tmp_path)


def test_a_fifo_in_place_of_records_does_not_wait(tmp_path):
    (tmp_path / "job").mkdir()
    os.mkfifo(tmp_path / "job/results.jsonl")
    with pytest.raises(IntegrityError, match=r"results\.jsonl"):
        collect_results(tmp_path)


NAMES = st.sampled_from(["args", "step", "env0_in_acc", "dataset", "test_envs", "x"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner),
)


@settings(max_examples=200, deadline=None)
@given(ANYTHING)
def test_anything_is_refused_by_name(value):
    with pytest.raises(IntegrityError, match=r"^here: "):
        check_record("here", value)
