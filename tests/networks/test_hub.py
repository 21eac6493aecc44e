"""Weights over the network, from a hub on this machine: delivered, kept, missing, and out of reach."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time

import pytest
import timm
import torch
from safetensors.torch import save_file

from dspreg.download.web import first_hop, is_reachable
from dspreg.errors import ResourceError
from dspreg.networks import make_backbone

# One process for all of it: the hub's library reads its settings when it is imported, and torch takes seconds to start.
PROGRAM = """
import json, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

good = Path(sys.argv[1]).read_bytes()
asked = []
stall = threading.Event()

class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        asked.append(self.command + " " + self.path)
        repo = self.path.split("/")[2].split(".")[0]
        code, body, headers = 200, good, {"ETag": '"' + "e" * 40 + '"'}
        if repo == "test_vit":
            code, body, headers = 404, b"", {"X-Error-Code": "EntryNotFound"}
        elif repo == "test_vit2":
            code, body, headers = 401, b"", {"X-Error-Code": "RepoNotFound"}
        elif repo == "test_vit3":
            code, body, headers = 404, b"", {}
        elif repo == "test_efficientnet":
            code, body, headers = 503, b"", {}
        elif repo == "test_efficientnet_gn":
            stall.wait(60)
        elif repo == "test_convnext":
            body = b"PK" + bytes([3, 4]) + good
        self.send_response(code)
        headers |= {"X-Repo-Commit": "c" * 40, "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_GET = do_HEAD = answer

    def log_message(self, *args):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"

import timm
from dspreg.errors import DspregError
from dspreg.networks import make_backbone, hub

hub.RESPONSE_TIMEOUT = 0.5

def tried(name):
    asked.clear()
    began = time.perf_counter()
    try:
        backbone = make_backbone(name, image_size=32)
        said = {"weights": vars(backbone.weights), "first": next(backbone.make().parameters()).flatten()[0].item()}
    except DspregError as error:
        said = {"error": type(error).__name__, "says": str(error)}
    return said | {"seconds": time.perf_counter() - began, "asked": list(asked)}

names = ["test_resnet", "test_vit", "test_vit2", "test_vit3", "test_efficientnet", "test_efficientnet_gn"]
said = {name: tried(name) for name in [*names, "test_convnext"]}
stall.set()
server.shutdown()
server.server_close()
said["again"] = tried("test_resnet.r160_in1k")
said["refused"] = tried("resnet18.tv_in1k")
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """What happened, by the name of the network; and the state that the hub had."""
    folder = tmp_path_factory.mktemp("hub")
    torch.manual_seed(1)
    state = timm.create_model("test_resnet").state_dict()
    save_file(state, folder / "model.safetensors")
    settings = {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "0", "NO_PROXY": "*", "no_proxy": "*"}
    settings |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(folder / "model.safetensors")]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings, timeout=120)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout.splitlines()[-1])
    said["first"] = next(iter(state.values())).flatten()[0].item()
    said["sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    return said


def test_weights_are_delivered(hub):
    came = hub["test_resnet"]
    assert came["weights"] == {"source": "hub", "tag": "test_resnet.r160_in1k", "sha256": hub["sha256"]}
    assert came["first"] == hub["first"]
    assert any(line.startswith("GET /timm/test_resnet.r160_in1k/resolve/") for line in came["asked"])


def test_the_second_time_needs_no_network(hub):
    assert hub["again"]["weights"] == hub["test_resnet"]["weights"]
    assert hub["again"]["first"] == hub["first"]
    assert hub["again"]["asked"] == []


@pytest.mark.parametrize(
    ("case", "model", "why"),
    [
        ("test_vit", "test_vit.r160_in1k", "timm/test_vit.r160_in1k has no model.safetensors, and other formats"),
        ("test_vit2", "test_vit2.r160_in1k", "the hub could not deliver model.safetensors of timm/test_vit2.r160_in1k"),
        ("test_vit3", "test_vit3.r160_in1k", "the hub could not deliver model.safetensors of timm/test_vit3.r160_in1k"),
        ("test_efficientnet", "test_efficientnet.r160_in1k", "503"),
        ("test_efficientnet_gn", "test_efficientnet_gn.r160_in1k", "timed out"),
        ("refused", "resnet18.tv_in1k", "the hub cannot be reached at http://127.0.0.1:"),
    ],
)
def test_failures_name_the_model_the_reason_and_three_ways_out(hub, case, model, why):
    failed = hub[case]
    assert failed["error"] == "ResourceError"
    assert failed["says"].startswith(f"no weights for {model}: ")
    assert why in failed["says"]
    for way in (
        "--weights FILE",
        f"download model.safetensors of timm/{model}",
        "--weights none",
        "connect and try again",
    ):
        assert way in failed["says"]
    assert failed["seconds"] < 5
    assert not any(line.startswith("GET") for line in failed["asked"])


def test_what_the_hub_delivers_is_checked_like_any_file(hub):
    assert hub["test_convnext"]["error"] == "IntegrityError"
    assert "is a pickle" in hub["test_convnext"]["says"]


def test_offline_by_choice_is_said_at_once(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket, "create_connection", None)  # not even tried
    with pytest.raises(ResourceError, match=r"HF_HUB_OFFLINE is set.*--weights FILE"):
        make_backbone("resnet18")


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch):
    def silent(*args, **kwargs):
        time.sleep(30)
        raise OSError  # the thread outlives the test

    monkeypatch.setattr(socket, "create_connection", silent)
    began = time.perf_counter()
    assert not is_reachable("https://hub.invalid")
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("endpoint", ["", "no address", "http://", "http://x:99999", "http://" + "x" * 300])
def test_an_endpoint_that_is_no_address_is_out_of_reach(endpoint):
    assert not is_reachable(endpoint)


def test_behind_a_proxy_the_proxy_is_what_must_be_reached(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert first_hop("https://hub.example") == ("hub.example", 443)
    assert first_hop("http://hub.example:8080") == ("hub.example", 8080)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert first_hop("https://hub.example") == ("proxy.example", 3128)
    monkeypatch.setenv("no_proxy", "hub.example")
    assert first_hop("https://hub.example") == ("hub.example", 443)
    monkeypatch.setenv("https_proxy", "proxy.example:3128")
    assert first_hop("https://other.example") == ("proxy.example", 3128)
