"""`dspreg watch`: what it says is what is there, to this machine alone, and nothing is written."""

import http.client
import json
import socket
import threading
from contextlib import contextmanager

import pytest

from dspreg.cli import main
from dspreg.errors import ConfigError
from dspreg.runs.run import Run
from dspreg.watch import server as module
from dspreg.watch.answer import LATELY, POINTS, StoreWatcher, thin
from dspreg.watch.server import WatchServer
from helpers.browser import CHROMIUM, Browser
from helpers.pages import BAD
from helpers.runs import seal
from helpers.stores import fail, files, planned, put, start


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch):
    monkeypatch.setattr(module, "FRESH", 0.0)


def train(store, run, values, steps=40):
    """A run in training: its folder, its records, and its lease at the last of them."""
    folder = start(store, run)
    for i, value in enumerate(values):
        folder.records.append({"step": 10 * i, "validation": value})
    leases = store.leases()
    leases.renew(leases.acquire([run.id]), 1, 10 * len(values))
    leases.close()
    return folder


def end(store, run, accuracy):
    folder = start(store, run)
    folder.records.append({"step": 0})
    chosen = {"step": 0, "validation": 0.75, "accuracy": {run.targets[0]: {"in": accuracy}}}
    seal(folder, {"selected": chosen, "targets": list(run.targets)})


@pytest.fixture
def made(tmp_path):
    store, runs = planned(tmp_path / "store")
    end(store, runs[0], 0.625)
    train(store, runs[1], [0.25, 0.5, 0.375])
    fail(store, runs[2])
    put(store, runs[3], "diverged")
    put(store, runs[4], "cancelled")
    return store, runs


@contextmanager
def served(store):
    with WatchServer(StoreWatcher(store, 3)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path="/status.json", method="GET", **headers):
    """The answer: its code, its headers and its bytes."""
    connection = http.client.HTTPConnection(*server.server_address, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_it_says_what_is_there_and_writes_nothing(made):
    store, runs = made
    before = files(store.path)
    with served(store) as server:
        assert ask(server, "/")[0] == 200
        said = json.loads(ask(server)[2])
    assert files(store.path) == before
    wanted = {"runs": 8, "finished": 1, "running": 1, "waiting": 3, "failed": 2, "cancelled": 1}
    assert said["all"] == wanted
    assert [group["algorithm"] for group in said["groups"]] == ["ERM", "CORAL"]
    assert sum(group["runs"] for group in said["groups"]) == 8
    (training,) = said["training"]
    assert (training["title"], training["step"], training["steps"]) == (str(runs[1]), 30, 40)
    assert training["curve"] == [[0, 0.25], [10, 0.5], [20, 0.375]]
    assert {each["title"]: each["reason"] for each in said["failed"]} == {
        str(runs[2]): "no images", str(runs[3]): "the loss is not finite",
    }  # fmt: skip
    (finished,) = said["lately"]
    assert finished == {"title": str(runs[0]), "targets": [[runs[0].targets[0], "62.5 %"]], "held out": "75.0 %"}
    assert not said["over"]


def test_what_finishes_while_it_watches_comes_first(made):
    store, runs = made
    watcher = StoreWatcher(store, 3)
    assert len(watcher.look()["lately"]) == 1
    end(store, runs[5], 0.5)
    assert [each["title"] for each in watcher.look()["lately"]] == [str(runs[5]), str(runs[0])]


def test_a_damaged_result_or_record_is_no_end_of_the_page(made):
    store, runs = made
    (store.folder(runs[0]) / "result.json").write_bytes(b"{}")
    records, half = store.folder(runs[1]) / "records.jsonl", b'{"step": 0, "validation": 0.5}\n[1, "'
    records.write_bytes(half)  # a line is just being written
    assert StoreWatcher(store, 3).look()["training"][0]["curve"] == [[0, 0.5]]
    records.write_bytes(half + b'\n{"step": 10, "validation": 0.5}\n')  # what follows a damaged one is not believed
    said = StoreWatcher(store, 3).look()
    assert said["lately"] == [{"title": str(runs[0]), "targets": [], "held out": ""}]
    assert said["training"][0]["curve"] == [[0, 0.5]]


def test_a_long_curve_keeps_its_ends():
    points = [(i, float(i)) for i in range(10_000)]
    found = thin(points)
    assert len(found) == POINTS == len(set(found))
    assert (found[0], found[-1]) == (points[0], points[-1])
    assert thin(points[:POINTS]) == points[:POINTS]


def test_only_the_latest_are_listed(tmp_path):
    store, runs = planned(tmp_path / "store", algorithms=[f"CORAL(weight={i})" for i in range(1, 5)])
    for run in runs:
        end(store, run, 0.5)
    said = StoreWatcher(store, 3).look()
    assert said["over"]
    assert len(said["lately"]) == LATELY < len(runs)


def test_it_can_only_be_read_and_only_by_its_own_name(made):
    with served(made[0]) as server:
        port = server.server_port
        for path in ("/x", "/../store.json", "/store.json", "/status.json?x", "/runs/"):
            assert ask(server, path)[0] == 404, path
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT"):
            assert ask(server, method=method)[0] == 501, method
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"0.0.0.0:{port}", ""):
            code, _, body = ask(server, Host=host)
            assert code == 403, host
            assert b"PACS" not in body
        assert ask(server, Host=f"localhost:{port}")[0] == 200
        code, headers, body = ask(server, "/", "HEAD")
        assert (code, body) == (200, b"")
        assert int(headers["Content-Length"]) > 1000


def test_the_policy_allows_its_own_style_and_script_and_nothing_else(made):
    with served(made[0]) as server:
        _, headers, page = ask(server, "/")
        _, others, _ = ask(server)
    rules = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))
    assert rules.keys() == {"default-src", "img-src", "style-src", "script-src", "connect-src", "base-uri",
                            "form-action", "frame-ancestors"}  # fmt: skip
    assert {rules[name] for name in ("default-src", "base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert rules["connect-src"] == "'self'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert b"http" not in page.replace(b"http://www.w3.org/2000/svg", b"").replace(b"http-equiv", b"")
    assert others["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
    for found in (headers, others):
        assert found["X-Content-Type-Options"] == "nosniff"
        assert found["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in found


def test_no_other_machine_can_ask(made):
    with served(made[0]) as server:
        assert server.server_address[0] == "127.0.0.1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:  # the address that others know us by; asks nobody
            try:
                way.connect(("192.0.2.1", 9))
            except OSError:
                pytest.skip("no network, so no other address")
            own = way.getsockname()[0]
        if own.startswith("127."):
            pytest.skip("no address but the loopback")
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((own, server.server_port), timeout=5)


def test_pages_that_ask_at_once_are_one_look(made, monkeypatch):
    monkeypatch.setattr(module, "FRESH", 60.0)
    with served(made[0]) as server:
        looked = []
        real = server.watcher.look
        monkeypatch.setattr(server.watcher, "look", lambda: looked.append(1) or real())
        assert ask(server)[2] == ask(server)[2]
        assert looked == [1]


def test_the_command_prints_the_address_and_ends_with_ctrl_c(made, monkeypatch, capsys):
    def interrupted(server):
        assert ask_later(server)
        raise KeyboardInterrupt

    def ask_later(server):
        return server.url in capsys.readouterr().out

    monkeypatch.setattr(WatchServer, "serve_forever", interrupted)
    assert main(["watch", str(made[0].path)]) == 0


def test_what_is_no_store_and_a_port_that_is_taken_are_said(made, tmp_path, capsys):
    assert main(["watch", str(tmp_path)]) == 2
    assert "is no store of runs" in capsys.readouterr().err
    with WatchServer(StoreWatcher(made[0], 3)) as server, pytest.raises(ConfigError, match="leave it out"):
        WatchServer(StoreWatcher(made[0], 3), server.server_port)


# In a browser.

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: install chromium to test the page in it"
)
SUMMARY = "document.querySelector('#summary').textContent"


def until(browser, expression, wanted):
    """Wait until it is so; the browser's own time-out ends what never comes."""
    look = f"const look = () => {wanted}.test({expression}) ? done(true) : setTimeout(look, 20)"
    condition = f"new Promise(done => {{ {look}; look() }})"
    assert browser.run(condition)


@needs_chromium
def test_the_page_follows_the_sweep_without_being_loaded_again(made, tmp_path):
    store, runs = made
    with served(store) as server, Browser(tmp_path / "browser") as browser:
        for width in (1280, 390):
            browser.width(width)
            for theme in ("light", "dark"):
                browser.prefer(theme)
                browser.open(server.url)
                until(browser, SUMMARY, "/^1 finished/")
                assert browser.run("document.documentElement.scrollWidth") <= width
                assert browser.complaints() == []
        grounds = []
        for theme in ("light", "dark"):
            browser.prefer(theme)
            grounds.append(browser.run("getComputedStyle(document.body).backgroundColor"))
        assert grounds == ["rgb(255, 255, 255)", "rgb(21, 21, 21)"]
        browser.run("window.mine = 'still here'")
        end(store, runs[5], 0.5)
        until(browser, SUMMARY, "/^2 finished/")
        assert browser.run("window.mine") == "still here"
        assert browser.run("document.querySelectorAll('#lately tbody tr').length") == 2
        assert set(browser.requests()) == {server.url, f"{server.url}status.json"}
        assert browser.complaints() == []


@needs_chromium
def test_names_of_strangers_are_text(tmp_path):
    store, runs = planned(tmp_path / "store", domains={"PACS": ("a", "b")})
    odd = [Run.from_json({**run.to_json(), "targets": [BAD]}) for run in runs[:1]]
    store.plan(odd)
    fail(store, odd[0], reason=BAD)
    with served(store) as server, Browser(tmp_path / "browser") as browser:
        browser.open(server.url)
        until(browser, SUMMARY, "/failed/")
        shown = browser.run("document.querySelector('#failed').textContent")
        assert "<script>alert(1)</script>" in shown
        assert "\u202e" not in shown
        assert browser.run("document.querySelectorAll('#failed img, #failed script').length") == 0
        assert browser.complaints() == []
