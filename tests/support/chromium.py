"""A headless Chromium to look at a page with: started, asked and clicked over its own debugging pipe, no library.

`find()` says where the browser is. `Browser` is a context manager; `Tab` is one page in it. The protocol is the Chrome
DevTools Protocol, one JSON object and a NUL byte a message.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_TIMEOUT_S = 60.0


def find() -> str | None:
    """The browser's path, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A running browser with a profile of its own."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self._count = 0
        self._buffer = b""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        options += ["--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars"]
        options += [f"--user-data-dir={self._profile.name}"]
        # It reads its commands from descriptor 3 and writes to 4, whatever they are here.
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, self._path, *options, "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = ours_out, ours_in
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._in, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(10)
        self._selector.close()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """One command and its answer."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        number = self._count
        while True:
            answer = self._receive(method)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for(self, method: str) -> dict[str, Any]:
        """The next event of a kind, that is not among `events` yet."""
        while True:
            event = self._receive(method)
            self.events.append(event)
            if event.get("method") == method:
                return event

    def _receive(self, what: str) -> dict[str, Any]:
        end = time.monotonic() + _TIMEOUT_S
        while b"\0" not in self._buffer:
            if not self._selector.select(max(0.0, end - time.monotonic())):
                raise TimeoutError(f"no answer to {what} within {_TIMEOUT_S} s")
            read = os.read(self._in, 1 << 16)
            if not read:
                raise RuntimeError(f"the browser went away during {what}")
            self._buffer += read
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def open(self, path: Path, width: int = 1280, height: int = 900) -> Tab:
        """A page of a file, loaded."""
        return Tab(self, path, width, height)


class Tab:
    """One page. Every event since it was opened is in `browser.events`."""

    def __init__(self, browser: Browser, path: Path, width: int, height: int) -> None:
        self.browser = browser
        self._begin = len(browser.events)
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.size(width, height)
        self.call("Page.navigate", url=path.resolve().as_uri())
        browser.wait_for("Page.loadEventFired")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self._session, **parameters)

    def size(self, width: int, height: int, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def dark(self, dark: bool) -> None:
        """What the system prefers."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def eval(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """A key, as from a keyboard."""
        code = {"Enter": 13, " ": 32, "Tab": 9}.get(key, 0)
        parameters = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **parameters, **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", **parameters)

    def click(self, selector: str) -> None:
        """A click of the mouse in the middle of the first element that fits."""
        place = self.eval(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)
        self.eval("new Promise(done => setTimeout(done, 50))")  # what it set off

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.browser.events[self._begin :]
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """What the console and the page's scripts complained about."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(e["params"]) for e in self.browser.events[self._begin :] if e.get("method") in kinds]

    def screenshot(self, path: Path, clip: dict[str, float] | None = None, kind: str = "png") -> None:
        """A picture of the page, or of a part of it, beyond what is in view too."""
        more = {} if clip is None else {"clip": {"scale": 1, **clip}}
        answer = self.call("Page.captureScreenshot", format=kind, captureBeyondViewport=True, **more)
        path.write_bytes(base64.b64decode(answer["data"]))
