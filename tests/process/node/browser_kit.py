"""Headless Chromium over the DevTools protocol, through a pair of pipes: no library is needed.

Messages are JSON, each ended by a zero byte; the browser reads file descriptor 3 and writes 4.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from tests.kits.daemon_kit import DEADLINE_S, wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_READ_BYTES = 1 << 20
_SCHEMES = ("light", "dark")


class Browser:
    """One page of a browser that has a profile of its own."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._received = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []  # what the page's console said
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to one command; events that come meanwhile are looked at."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        _write(self._to, json.dumps(command).encode() + b"\0")
        while (message := self._next()).get("id") != self._number:
            self._note(message)
        assert "error" not in message, (method, message["error"])
        result: dict[str, Any] = message["result"]
        return result

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str, what: str) -> Any:
        """Return the first value of an expression that is true."""
        try:
            return wait_until(lambda: self.evaluate(expression), what)
        except AssertionError as error:
            text = self.evaluate("document.body.innerText")
            raise AssertionError(f"{error}; {self.complaints}; the page:\n{text}") from None

    def open(self, address: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=address)

    def look(self, *, width: int, height: int, scheme: str = "light", scale: float = 1.0) -> None:
        """Let the page be of a size, in CSS pixels, and of a colour scheme."""
        assert scheme in _SCHEMES
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        # Until the page has been drawn so.
        self.evaluate("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")

    def screenshot(self, path: Path, *, whole: bool = False) -> bytes:
        """Write what the page shows, or all of it, as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        data = smaller(base64.b64decode(answer["data"]))
        path.write_bytes(data)
        return data

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + DEADLINE_S
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._from], [], [], max(0, until - time.monotonic()))
            assert ready, f"the browser says nothing for {DEADLINE_S} s"
            data = os.read(self._from, _READ_BYTES)
            assert data, "the browser has ended"
            self._received += data
        raw, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(parameters["exceptionDetails"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.complaints.append(json.dumps(parameters["entry"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning"):
                self.complaints.append(json.dumps(parameters["args"]))


def smaller(png: bytes) -> bytes:
    """Return the picture with 256 colours, which is enough for a page, and packed well."""
    packed = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return packed.getvalue()


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Run Chromium for a block, without a display and without anything it fetches by itself."""
    assert CHROMIUM is not None
    read_commands, to_browser = os.pipe()
    from_browser, write_answers = os.pipe()
    # The browser wants its ends as 3 and 4; a shell puts them there, whatever they are here.
    script = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, *_flags(profile)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(read_commands, write_answers),
        )
    os.close(read_commands)
    os.close(write_answers)
    try:
        yield Browser(to_browser, from_browser)
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
        os.close(to_browser)
        os.close(from_browser)


def _flags(profile: Path) -> list[str]:
    return [
        "--headless=new",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        "--no-sandbox",  # CI runs as root, and the only page is ours
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-extensions",
        "--no-first-run",
        "--no-default-browser-check",
        "--hide-scrollbars",
        "--force-color-profile=srgb",
    ]


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
