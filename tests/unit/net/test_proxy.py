"""CONNECT without sockets: what is asked, every answer there can be; and which hosts it is for."""

from __future__ import annotations

import base64

import pytest

from swarmnode import limits
from swarmnode.errors import ConfigError, DialFailed
from swarmnode.net.proxy import Asking, Proxy, Server, find_proxy

TARGET = "11.11.11.10:443"
OPENED = b"HTTP/1.1 200 Connection established\r\n\r\n"
PASSWORD = "swordfish"


def answer(data: bytes, *, at_once: bool, authorization: str = "") -> bytes | None:
    """Return what comes of an answer, given whole or byte by byte."""
    asking = Asking(TARGET, authorization)
    pieces = [data] if at_once else [data[n : n + 1] for n in range(len(data))]
    found: bytes | None = None
    for piece in pieces:
        found = asking.receive(piece) if found is None else found + piece
    return found


def test_what_is_asked() -> None:
    plain = Asking(TARGET).request
    assert plain.startswith(f"CONNECT {TARGET} HTTP/1.1\r\n".encode())
    assert f"host: {TARGET}\r\n".encode() in plain.lower()
    assert b"authorization" not in plain.lower()
    server = Server.parse(f"http://ann%40b:{PASSWORD}%3A%2F@proxy:3128")
    assert (server.host, server.port, str(server)) == ("proxy", 3128, "proxy:3128")
    asked = Asking(TARGET, server.authorization).request.decode()
    (line,) = [each for each in asked.split("\r\n") if each.lower().startswith("proxy-auth")]
    assert base64.b64decode(line.rpartition(" ")[2]) == f"ann@b:{PASSWORD}:/".encode()
    assert PASSWORD not in repr(server)
    assert line.rpartition(" ")[2] not in repr(server)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "head",
    [
        OPENED,
        b"HTTP/1.0 200 OK\r\nProxy-Agent: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n",  # RFC 9110: it has none, whatever it says
        b"HTTP/1.1 100 Continue\r\n\r\n" + OPENED,
    ],
)
def test_an_open_way_and_what_already_came_on_it(head: bytes, at_once: bool) -> None:
    assert answer(head, at_once=at_once) == b""
    assert answer(head + b"\x16\x03\x01early", at_once=at_once) == b"\x16\x03\x01early"
    assert answer(head[:-1], at_once=at_once) is None


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("data", "says", "cause"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "it answers 403 Forbidden", "proxy"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://login\r\n\r\n", "it answers 302 Found", "proxy"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "it answers 204", "proxy"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "it answers 502 Bad Gateway", "silent"),
        (b"HTTP/1.1 407 Log in\r\n\r\n", "407 Log in: it wants a user and a password", "proxy"),
        (
            b"HTTP/1.1 407 X\r\nProxy-Authenticate: NTLM\r\nProxy-Authenticate: Basic a=b\r\n\r\n",
            "it wants a user and a password",
            "proxy",
        ),
        (
            b"HTTP/1.1 407 X\r\nProxy-Authenticate: NTLM\r\nProxy-Authenticate: Negotiate\r\n\r\n",
            r"a log-in that no node speaks \(NTLM, Negotiate\)",
            "proxy",
        ),
        (b"\x16\x03\x03\x00\x7aServerHello\r\n\r\n", "it does not speak HTTP", "silent"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "it does not speak HTTP", "silent"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "it does not speak HTTP", "silent"),
    ],
)
def test_every_other_answer_is_a_failed_dial(
    data: bytes, says: str, cause: str, at_once: bool
) -> None:
    with pytest.raises(DialFailed, match=says) as caught:
        answer(data, at_once=at_once)
    assert caught.value.cause == cause


def test_a_password_that_is_not_taken_is_not_repeated() -> None:
    server = Server.parse(f"http://ann:{PASSWORD}@proxy:3128")
    with pytest.raises(DialFailed, match="does not take this user and password") as caught:
        answer(b"HTTP/1.1 407 No\r\n\r\n", at_once=True, authorization=server.authorization)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("begins", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-Endless: " + b"a" * 500 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"a" * 500),  # a header without an end
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),  # answers that are none yet
    ],
)
def test_an_answer_without_an_end_is_given_up_early(begins: bytes, piece: bytes) -> None:
    asking = Asking(TARGET)
    taken = 0

    def send_for_ever() -> None:
        nonlocal taken
        data = begins or piece
        while taken < 10 * limits.PROXY_ANSWER_BYTES_MAX:
            assert asking.receive(data) is None
            taken += len(data)
            data = piece

    with pytest.raises(DialFailed, match=f"no end within {limits.PROXY_ANSWER_BYTES_MAX} bytes"):
        send_for_ever()
    assert limits.PROXY_ANSWER_BYTES_MAX / 2 < taken <= limits.PROXY_ANSWER_BYTES_MAX


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 200 OK\r\nVia: x", b"HTTP/1.1 100 Go\r\n\r\n"])
def test_a_proxy_that_hangs_up_says_so(before: bytes) -> None:
    asking = Asking(TARGET)
    if before:
        assert asking.receive(before) is None
    with pytest.raises(DialFailed, match="it closed the connection"):
        asking.receive(b"")


def test_a_reason_cannot_steer_a_terminal() -> None:
    with pytest.raises(DialFailed) as caught:
        answer(b"HTTP/1.1 403 \x80\x9b31m" + b"x" * 500 + b"\r\n\r\n", at_once=True)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 120


# --- which proxy, and what for --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "environ", "found"),
    [
        ("off", {"HTTPS_PROXY": "http://a:1"}, None),
        ("auto", {}, None),
        ("auto", {"HTTP_PROXY": "http://a:1"}, None),
        ("auto", {"HTTPS_PROXY": "http://a:1"}, "a:1"),
        ("auto", {"HTTPS_PROXY": "http://a:1", "https_proxy": "b:2"}, "b:2"),
        ("auto", {"HTTPS_PROXY": "https://a:1"}, None),
        ("auto", {"HTTPS_PROXY": "socks5://a:1"}, None),
        ("auto", {"HTTPS_PROXY": "http://u:p@[2001:db8::1]:3128/"}, "[2001:db8::1]:3128"),
        ("http://c:3", {"HTTPS_PROXY": "http://a:1"}, "c:3"),
    ],
)
def test_the_setting_and_the_environment(
    setting: str, environ: dict[str, str], found: str | None
) -> None:
    proxy = find_proxy(setting, environ)
    assert (proxy and str(proxy.server)) == found


def test_what_is_no_proxy_is_named_without_its_password(caplog: pytest.LogCaptureFixture) -> None:
    for text in (f"ftp://u:{PASSWORD}@a:1", f"http://u:{PASSWORD}@a:99999", f"u:{PASSWORD}/@a:x"):
        with pytest.raises(ConfigError, match=r"\*\*\*@a:") as caught:
            Server.parse(text)
        assert PASSWORD not in str(caught.value)
        assert find_proxy("auto", {"HTTPS_PROXY": text}) is None
    assert PASSWORD not in caplog.text
    assert "the proxy of the environment is not used" in caplog.text


@pytest.mark.parametrize(
    ("host", "leads"),
    [
        ("11.11.11.10", True),
        ("2001:db8::1", True),
        ("relay.example.org", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("::ffff:10.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.7", False),
        ("169.254.169.254", False),
        ("100.64.0.2", False),
        ("fe80::1%eth0", False),
        ("fd00::7", False),
        ("0.0.0.0", False),
        ("localhost", False),
        ("intranet", False),
        ("printer.local", False),
        ("host\r\nX: y.example.org", False),
        ("a" * 300 + ".org", False),
        # NO_PROXY
        ("swarm.corp.example", False),
        ("CORP.example", False),
        ("notcorp.example", True),
        ("a.other.example", False),
        ("192.0.2.1", False),
        ("192.0.3.1", True),
        ("198.51.100.4", False),
    ],
)
def test_only_hosts_out_there_are_reached_through_it(host: str, leads: bool) -> None:
    exceptions = "corp.example, .other.example:443,192.0.2.0/24,198.51.100.4"
    assert Proxy(Server("proxy", 3128), exceptions).leads_to(host) is leads
    assert not Proxy(Server("proxy", 3128), "*").leads_to(host)
