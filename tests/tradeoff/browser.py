"""Headless Chromium, driven over pipes by its DevTools protocol with the standard library alone."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# The browser reads commands on descriptor 3 and writes answers on 4; what those numbers mean here must not be touched.
LAUNCH = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(read, 3); os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 120.0  # seconds; the first start of a browser on a loaded machine is slow


def executable() -> str | None:
    """The browser, or nothing."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """A page of the browser, and what it has said on its console."""

    def __init__(self, commands: int, answers: int) -> None:
        self.commands, self.answers = commands, answers
        self.numbers = itertools.count(1)
        self.unread = b""
        self.session: str | None = None
        self.scripted = True
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command; what happens until it comes is noted."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == number:
                assert "error" not in told, f"{method}: {told['error']}"
                return dict(told["result"])
            self._note(told)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.answers], [], [], max(until - time.monotonic(), 0))
            assert ready, f"the browser has said nothing for {PATIENCE:g} seconds"
            part = os.read(self.answers, 1 << 20)
            assert part, "the browser has gone"
            self.unread += part
        line, _, self.unread = self.unread.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, told: dict[str, Any]) -> None:
        method, params = told.get("method"), told.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def show(self, width: int, height: int, scheme: str = "light", *, script: bool = True) -> None:
        """The size of the window, light or dark, with JavaScript or without."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send("Emulation.setScriptExecutionDisabled", value=not script)
        self.scripted = script

    def open(self, path: Path) -> None:
        """Load a file and wait until it is drawn."""
        self.complaints.clear()
        self.requests.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + PATIENCE
        while not self.run("document.readyState === 'complete' && location.protocol === 'file:'"):
            assert time.monotonic() < until, f"{path.name} does not load"
            time.sleep(0.05)
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is on the screen; without script nothing moves any more."""
        if not self.scripted:
            return
        self.send(
            "Runtime.evaluate",
            expression="new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))",
            awaitPromise=True,
        )

    def run(self, expression: str) -> Any:
        """The value of an expression, run by the debugger even where the page's own script is off."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def centre(self, selector: str) -> tuple[float, float]:
        """The middle of an element, scrolled into view."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center'}); "
            "const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        return box[0], box[1]

    def hover(self, selector: str) -> None:
        x, y = self.centre(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def click(self, selector: str) -> None:
        x, y = self.centre(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)
        self.settle()

    def press(self, key: str, code: int) -> None:
        """A key and the number that Windows gave it, which the protocol asks for."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)
        self.settle()

    def screenshot(self, *, whole: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])


@contextmanager
def browsing() -> Iterator[Tab]:
    """A tab of a fresh browser, which ends with the block."""
    found = executable()
    assert found, "no Chromium"
    ours_in, theirs_out = os.pipe()
    theirs_in, ours_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-c", LAUNCH, str(theirs_in), str(theirs_out), found, *FLAGS]
        process = subprocess.Popen(
            [*command, f"--user-data-dir={folder}"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            tab = Tab(ours_out, ours_in)
            yield tab
            tab.session = None
            tab.send("Browser.close")
            process.wait(timeout=30)
        finally:
            process.kill()
            process.wait()
            os.close(ours_in)
            os.close(ours_out)
