"""Chromium, driven over its DevTools protocol: one page, what it shows, and what a person does to it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.patience import PATIENCE

Json = dict[str, Any]

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    "--host-resolver-rules=MAP *.example 127.0.0.1",
)
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, "")}
LOOK_SECONDS = 0.05
TEXT = "(document.body ? document.body.innerText : '')"


class Page:
    """A tab. refused: what its content policy and its scripts complained of."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.requests: list[str] = []
        self.refused: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Json:
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            told = json.loads(self._connection.recv(timeout=PATIENCE))
            if told.get("id") == self._number:
                assert "error" not in told, (method, told["error"])
                result: Json = told["result"]
                return result
            self._note(told.get("method"), told.get("params", {}))

    def _note(self, method: str | None, params: Json) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.refused.append(json.dumps(params["exceptionDetails"])[:1000])
        elif method == "Log.entryAdded" and params["entry"]["source"] == "security":
            self.refused.append(params["entry"]["text"])

    def open(self, url: str) -> None:
        """Loads anew, also if only the fragment differs."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        told = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Until the expression is truthy; its value. What it speaks of needn't be there yet."""
        end = time.monotonic() + PATIENCE
        while not (value := self.js(f"(() => {{ try {{ return {expression}; }} catch {{ return null; }} }})()")):
            assert time.monotonic() < end, (expression, self.text(), self.refused)
            time.sleep(LOOK_SECONDS)
        return value

    def text(self) -> str:
        """What a person reads."""
        text: str = self.js(TEXT)
        return text

    def reads(self, *words: str) -> str:
        """Waits until all of the words are shown; white space counts once."""
        for word in words:
            self.wait(f"{TEXT}.replace(/\\s+/g, ' ').includes({json.dumps(word)})")
        return re.sub(r"\s+", " ", self.text())

    def press(self, *keys: str) -> None:
        for key in keys:
            code, text = KEYS[key] if key in KEYS else (ord(key.upper()), key)
            event = {"key": key, "windowsVirtualKeyCode": code}
            self.send("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": text} if text else {}))
            self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.send("Input.insertText", text=text)

    def click(self, selector: str, text: str = "") -> None:
        """The first element that fits the selector and holds the text, once there is one."""
        every = f"[...document.querySelectorAll({json.dumps(selector)})]"
        found = f"{every}.find(one => one.textContent.includes({json.dumps(text)}))"
        self.wait(f"Boolean({found})")
        self.js(f"{found}.click()")

    def choose(self, selector: str, value: str) -> None:
        """Of a select, once it has that value."""
        options = f"[...document.querySelectorAll({json.dumps(selector + ' option')})]"
        self.wait(f"{options}.some(one => one.value === {json.dumps(value)})")
        self.js(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.value = {json.dumps(value)};"
            " one.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def look(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """The size of the window, and the colours that its person prefers."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """A PNG or WebP of the page."""
        kind = "webp" if file.suffix == ".webp" else "png"
        params: Json = {"format": kind, "captureBeyondViewport": whole}
        if kind == "webp":
            params["quality"] = 80
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", **params)["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """A new browser with one tab, and a profile that nobody has used."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                # No pings: between two commands nobody reads the answers, and on a busy machine they are late.
                with connect(
                    _tab(Path(profile)), max_size=None, open_timeout=PATIENCE, ping_interval=None, compression=None
                ) as connection:
                    yield Page(connection)
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()


def _tab(profile: Path) -> str:
    """The address of the first tab, once the browser has told its port."""
    import httpx

    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            port = (profile / "DevToolsActivePort").read_text().split("\n")[0]
            tabs = httpx.get(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE).json()
            return next(str(tab["webSocketDebuggerUrl"]) for tab in tabs if tab["type"] == "page")
        except (OSError, httpx.HTTPError, StopIteration):
            time.sleep(LOOK_SECONDS)
    raise AssertionError("Chromium doesn't answer")
