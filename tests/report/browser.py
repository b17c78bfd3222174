"""Opens a page in headless Chromium, by the DevTools protocol over a pipe, and reports what happened."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
]


class Page:
    """One tab: what it fetched, what it logged, and what a script finds in it."""

    def __init__(self, send: int, receive: int):
        self._send, self._receive = send, receive
        self._rest = b""
        self._last = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, width: int, dark: bool = False) -> None:
        """Shows a file in a window of so many pixels, and waits until it is there."""
        self.requests.clear()
        self.problems.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        failure = self.call("Page.navigate", url=path.resolve().as_uri()).get("errorText")
        assert failure is None, failure
        while self.evaluate("document.readyState") != "complete":
            pass
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """The whole page, or its first pixels, as a PNG."""
        size = self.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": height or size[1], "scale": 1}
        path.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])
        )

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._last:
            self._notice(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _notice(self, event: dict[str, Any]) -> None:
        method, details = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.problems.append(json.dumps(details))

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._receive, 1 << 20)
            assert part, "Chromium has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@contextmanager
def chromium(program: str, folder: Path) -> Iterator[Page]:
    """A new Chromium with its profile in `folder`."""
    commands, send = os.pipe()
    receive, answers = os.pipe()
    # The browser reads commands from descriptor 3 and answers on 4; copies above keep one from covering the other.
    high = [os.dup(os.dup(descriptor)) for descriptor in (commands, answers)]

    def place() -> None:
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    browser = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={folder}"],
        preexec_fn=place,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for descriptor in (commands, answers, *high):
        os.close(descriptor)
    try:
        page = Page(send, receive)
        yield page
        with suppress(AssertionError):
            page._session = None
            page.call("Browser.close")
    finally:
        browser.terminate()
        browser.wait(timeout=30)
        os.close(send)
        os.close(receive)
