"""A real browser for tests: headless Chromium over its own pipe, without a port and without a driver."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WAIT = 60.0  # seconds for one answer


class Browser:
    """One page. What it asks for, complains about and logs is kept."""

    def __init__(self, profile):
        to_read, self.out = os.pipe()
        self.inn, to_write = os.pipe()
        os.set_blocking(self.inn, False)

        def as_three_and_four():  # where the browser looks for its orders
            for end, place in ((os.dup(to_read), 3), (os.dup(to_write), 4)):
                os.dup2(end, place)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            [CHROMIUM, *flags, "about:blank"], preexec_fn=as_three_and_four, pass_fds=(3, 4), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.events, self.number, self.session = b"", [], 0, None
        targets = self.call("Target.getTargets")["targetInfos"]
        (page,) = [each["targetId"] for each in targets if each["type"] == "page"]
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setScrollbarsHidden", hidden=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(WAIT)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, 9)
                self.process.wait()
            os.close(self.inn)
            os.close(self.out)

    def call(self, method, **parameters):
        self.number += 1
        order = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            order["sessionId"] = self.session
        os.write(self.out, json.dumps(order).encode() + b"\0")
        until = time.monotonic() + WAIT
        while True:
            answer = self._next(until)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path):
        self.events.clear()
        self.call("Page.navigate", url=path if str(path).startswith("http:") else Path(path).as_uri())
        until = time.monotonic() + WAIT
        while not any(each["method"] == "Page.loadEventFired" for each in self.events):
            self._next(until)

    def run(self, expression):
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, expression):
        """With the mouse, in the middle of an element."""
        self.run(f"({expression}).scrollIntoView({{block: 'center'}})")
        where = f"(() => {{ const r = ({expression}).getBoundingClientRect(); "
        x, y = self.run(where + "return [r.x + r.width / 2, r.y + r.height / 2] })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    def prefer(self, theme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # events come with it

    def width(self, pixels, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=pixels, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, path, height=None):
        """A PNG of the page, the whole or its top."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        Path(path).write_bytes(base64.b64decode(found["data"]))

    # What happened since the page was opened.

    def requests(self):
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self):
        """Errors, warnings, breaches of the page's policy, and whatever a script logged."""
        wrong = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Audits.issueAdded")
        return [each for each in self.events if each["method"] in wrong]

    def _next(self, until):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.inn], [], [], max(0.0, until - time.monotonic()))
            if not ready or not (more := os.read(self.inn, 1 << 20)):
                raise TimeoutError(f"the browser does not answer (exit code {self.process.poll()})")
            self.buffer += more
        line, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message
