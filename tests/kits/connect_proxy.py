"""A small HTTP proxy that passes connections on (CONNECT), as those of offices do.

``python -m tests.kits.connect_proxy HOST PORT [USER:PASSWORD]`` runs one until it is ended, and
says ``ready`` when it listens. It lets out what goes to port 443, and answers 403 to all else.
"""

from __future__ import annotations

import base64
import contextlib
import sys

import trio

WEB_PORT = 443
_HEAD_BYTES_MAX = 8192


class ConnectProxy:
    """What one proxy does.

    Args:
        password: ``USER:PASSWORD`` that it wants, "" if it wants none.
        leads: where targets really are, HOST:PORT to HOST:PORT, for tests on one machine; then
            no others are there.
        early: what it sends behind the head of its answer, as if it came from the target.

    Attributes:
        asked: the targets, in order; also those that were refused.
        leads: as given; None: targets are where they say.
    """

    def __init__(
        self, password: str = "", leads: dict[str, str] | None = None, early: bytes = b""
    ) -> None:
        self.asked: list[str] = []
        self.leads = leads
        self._early = early
        encoded = base64.b64encode(password.encode()).decode()
        self._authorization = f"proxy-authorization: basic {encoded}".lower() if password else ""

    async def handle(self, stream: trio.SocketStream) -> None:
        """Serve one connection."""
        head = bytearray()
        while b"\r\n\r\n" not in head and len(head) < _HEAD_BYTES_MAX:
            received = await stream.receive_some(4096)
            if not received:
                return
            head += received
        lines = head.decode("ascii", "replace").split("\r\n")
        method, target, _ = lines[0].split(" ")
        self.asked.append(target)
        refusal = self._refusal(method, target, [line.lower() for line in lines[1:]])
        if refusal:
            await stream.send_all(f"HTTP/1.1 {refusal}\r\nContent-Length: 0\r\n\r\n".encode())
            return
        host, _, port = (self.leads or {}).get(target, target).rpartition(":")
        try:
            far = await trio.open_tcp_stream(host.strip("[]"), int(port))
        except OSError:
            await stream.send_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            return
        await stream.send_all(b"HTTP/1.1 200 Connection established\r\n\r\n" + self._early)
        async with far, trio.open_nursery() as nursery:
            nursery.start_soon(_pass_on, stream, far)
            await _pass_on(far, stream)
            nursery.cancel_scope.cancel()

    def _refusal(self, method: str, target: str, headers: list[str]) -> str:
        if self._authorization and self._authorization not in headers:
            challenge = 'Proxy-Authenticate: Basic realm="office"'
            return f"407 Proxy Authentication Required\r\n{challenge}"
        if method != "CONNECT" or not target.endswith(f":{WEB_PORT}"):
            return "403 Forbidden"
        if self.leads is not None and target not in self.leads:
            return "502 Bad Gateway"
        return ""


async def _pass_on(source: trio.SocketStream, target: trio.SocketStream) -> None:
    try:
        while received := await source.receive_some(65536):
            await target.send_all(received)
        await target.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the other direction ends it


async def serve(
    proxy: ConnectProxy,
    host: str,
    port: int = 0,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen until cancelled; report the port."""

    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            # It has gone, or spoke no HTTP.
            with contextlib.suppress(trio.BrokenResourceError, ValueError):
                await proxy.handle(stream)

    listeners = await trio.open_tcp_listeners(port, host=host)
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, handle, listeners)
        name = listeners[0].socket.getsockname()
        task_status.started(name[1])
        await trio.sleep_forever()


async def main(host: str, port: str, password: str = "") -> None:
    """Run one."""
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, ConnectProxy(password), host, int(port))
        print("ready", flush=True)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
