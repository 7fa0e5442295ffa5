"""Answers of routers, whatever bytes they are: read, or refused with one of our errors."""

from __future__ import annotations

import struct
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarmnode import limits
from swarmnode.errors import LimitExceeded, MalformedMessage, Refused, RemoteProtocolError
from swarmnode.protocol.nat import igd, pcp
from swarmnode.protocol.nat.http_answer import (
    AnswerReader,
    HttpAnswer,
    encode_http_request,
    parse_head,
)
from swarmnode.protocol.nat.tree import (
    PORTMAP_XML_DEPTH_MAX,
    PORTMAP_XML_NODES_MAX,
    Node,
    parse_xml,
)

NONCE = bytes(range(12))
GATEWAY = "192.168.1.1"
AT = igd.RouterUrl(GATEWAY, 5000, "/root.xml")
SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"
CONNECTION = igd.Connection(igd.RouterUrl(GATEWAY, 5000, "/ctl"), SERVICE)

addresses = st.ip_addresses(v=4)
ports = st.integers(1, 65_535)
leases = st.integers(0, 2**32 - 1)


def pcp_answer(
    external: IPv4Address, port: int, lease_s: int, *, nonce: bytes = NONCE, result: int = 0
) -> bytes:
    head = struct.pack("!BBBBII12x", 2, 0x81, 0, result, lease_s, 77)
    mapped = bytes(10) + b"\xff\xff" + external.packed
    return head + nonce + struct.pack("!B3xHH", 6, 7337, port) + mapped


def natpmp_answer(port: int, lease_s: int, *, internal: int = 7337, result: int = 0) -> bytes:
    return struct.pack("!BBHIHHI", 0, 130, result, 77, internal, port, lease_s)


def description(*services: tuple[str, str], base: str = "") -> bytes:
    listed = "".join(
        f"<service><serviceType>{kind}</serviceType><controlURL>{url}</controlURL></service>"
        for kind, url in services
    )
    shown = f"<URLBase>{base}</URLBase>" if base else ""
    return (
        f'<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0">{shown}'
        f"<device><serviceList>{listed}</serviceList></device></root>"
    ).encode()


def soap(inner: str) -> bytes:
    return (
        '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/">'
        f"<s:Body>{inner}</s:Body></s:Envelope>"
    ).encode()


# --- every decoder, every input ------------------------------------------------------------------

DECODERS: dict[str, Callable[[bytes], Any]] = {
    "pcp": lambda data: pcp.decode_pcp_map(data, NONCE, 7337),
    "nat-pmp-address": pcp.decode_natpmp_address,
    "nat-pmp-map": lambda data: pcp.decode_natpmp_map(data, 7337),
    "ssdp": lambda data: igd.decode_found(data, GATEWAY),
    "head": parse_head,
    "http": lambda data: AnswerReader().feed(data),
    "xml": parse_xml,
    "description": lambda data: igd.parse_description(data, AT),
    "action": lambda data: igd.decode_action(HttpAnswer(200, {}, data), "AddPortMapping"),
}
SAMPLES = {
    "pcp": pcp_answer(IPv4Address("11.11.11.100"), 7337, 3600),
    "nat-pmp-address": struct.pack("!BBHI4s", 0, 128, 0, 77, bytes((11, 11, 11, 100))),
    "nat-pmp-map": natpmp_answer(7337, 3600),
    "ssdp": (
        b"HTTP/1.1 200 OK\r\nST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r\n"
        b"LOCATION: http://192.168.1.1:5000/root.xml\r\n\r\n"
    ),
    "head": b"HTTP/1.1 200 OK\r\nServer: x",
    "http": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "xml": b"<a><b>text</b></a>",
    "description": description((SERVICE, "/ctl")),
    "action": soap(f'<u:AddPortMappingResponse xmlns:u="{SERVICE}"/>'),
}


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(name: str, data: bytes) -> None:
    check(name, data)


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_a_damaged_answer_is_read_or_refused(name: str, data: st.DataObject) -> None:
    sample = bytearray(SAMPLES[name])
    for place in data.draw(st.lists(st.integers(0, len(sample) - 1), max_size=4)):
        sample[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(sample)))
    check(name, bytes(sample[:cut]) + data.draw(st.binary(max_size=20)))


def test_a_document_that_ends_too_early_is_refused() -> None:
    whole = SAMPLES["xml"]
    for n_bytes in range(len(whole)):
        with pytest.raises(MalformedMessage, match="XML"):
            parse_xml(whole[:n_bytes])


@pytest.mark.parametrize("name", DECODERS)
def test_a_sound_answer_is_read(name: str) -> None:
    assert DECODERS[name](SAMPLES[name])


def check(name: str, data: bytes) -> None:
    said = ""
    try:
        DECODERS[name](data)
    except (RemoteProtocolError, Refused) as error:
        said = str(error)
    assert len(said) < 400  # one line, whatever was sent


# --- PCP and NAT-PMP -----------------------------------------------------------------------------


@given(addresses, ports, leases)
def test_pcp_answers_are_read(external: IPv4Address, port: int, lease_s: int) -> None:
    read = pcp.decode_pcp_map(pcp_answer(external, port, lease_s), NONCE, 7337)
    assert read == pcp.PcpMapping(external, port, min(lease_s, limits.PORTMAP_LEASE_S))


@given(addresses, ports, ports, leases)
def test_a_pcp_request_is_laid_out_as_in_the_rfc(
    client: IPv4Address, port: int, external_port: int, lease_s: int
) -> None:
    request = pcp.encode_pcp_map(NONCE, client, port, external_port=external_port, lease_s=lease_s)
    assert len(request) == 60
    assert request[:8] == bytes((2, 1, 0, 0)) + lease_s.to_bytes(4, "big")
    assert request[8:24] == bytes(10) + b"\xff\xff" + client.packed
    assert request[24:40] == NONCE + bytes((6, 0, 0, 0))
    assert request[40:44] == port.to_bytes(2, "big") + external_port.to_bytes(2, "big")
    assert request[44:] == bytes(10) + b"\xff\xff" + bytes(4)


@given(st.binary(min_size=12, max_size=12).filter(lambda nonce: nonce != NONCE))
def test_without_the_nonce_no_other_answers_for_the_router(nonce: bytes) -> None:
    forged = pcp_answer(IPv4Address("6.6.6.6"), 7337, 3600, nonce=nonce)
    with pytest.raises(MalformedMessage, match="another request"):
        pcp.decode_pcp_map(forged, NONCE, 7337)


@given(st.integers(1, 255))
def test_every_refusal_of_pcp_has_words(result: int) -> None:
    refusal = pcp_answer(IPv4Address(0), 0, 30, result=result)
    with pytest.raises(Refused, match=r"^the router [a-z ]+") as caught:
        pcp.decode_pcp_map(refusal, NONCE, 7337)
    assert ("unknown" in str(caught.value)) == (result > 13)


def test_a_router_that_only_knows_nat_pmp_says_so() -> None:
    with pytest.raises(pcp.OtherVersion):
        pcp.decode_pcp_map(bytes((0, 0x81, 0, 1, 0, 0, 0, 7)), NONCE, 7337)


def test_four_bytes_are_enough_to_say_that_it_is_nat_pmp() -> None:
    with pytest.raises(pcp.OtherVersion):
        pcp.decode_pcp_map(bytes((0, 0x81, 0, 1)), NONCE, 7337)
    with pytest.raises(MalformedMessage):
        pcp.decode_pcp_map(bytes((0, 0x81, 0)), NONCE, 7337)


def test_a_pcp_answer_has_whole_words_and_at_most_those_of_the_rfc() -> None:
    sound = pcp_answer(IPv4Address("11.11.11.100"), 7337, 3600)
    for n_bytes in (60, 64, 1100):  # options may follow
        assert pcp.decode_pcp_map(sound.ljust(n_bytes, b"\0"), NONCE, 7337).port == 7337
    for data in (sound[:56], sound + bytes(2), sound.ljust(1104, b"\0")):
        with pytest.raises(MalformedMessage, match=f"60 bytes, got {len(data)}"):
            pcp.decode_pcp_map(data, NONCE, 7337)


@pytest.mark.parametrize("place", [0, 1, 36, 40, 41])  # version, opcode, protocol, internal port
def test_a_pcp_answer_to_another_request_is_refused(place: int) -> None:
    data = bytearray(SAMPLES["pcp"])
    data[place] += 1
    with pytest.raises(MalformedMessage, match=r"an answer to MAP|another request"):
        pcp.decode_pcp_map(bytes(data), NONCE, 7337)


def test_a_pcp_answer_names_an_ipv4_address() -> None:
    data = SAMPLES["pcp"][:44] + bytes(16)
    with pytest.raises(MalformedMessage, match="expected an IPv4 address, got ::"):
        pcp.decode_pcp_map(data, NONCE, 7337)


@pytest.mark.parametrize("cut", [1, 4])
def test_a_nat_pmp_answer_of_another_length_is_refused(cut: int) -> None:
    address, mapping = SAMPLES["nat-pmp-address"], SAMPLES["nat-pmp-map"]
    assert pcp.decode_natpmp_address(address) == IPv4Address("11.11.11.100")
    for data in (address[:-cut], address + bytes(cut)):
        with pytest.raises(MalformedMessage, match="expected 4 bytes of answer"):
            pcp.decode_natpmp_address(data)
    for data in (mapping[:-cut], mapping + bytes(cut)):
        with pytest.raises(MalformedMessage, match="expected 8 bytes of answer"):
            pcp.decode_natpmp_map(data, 7337)
    with pytest.raises(MalformedMessage, match="8 bytes or more, got 7"):
        pcp.decode_natpmp_address(address[:7])
    for wrong in (mapping, b"\1" + address[1:]):
        with pytest.raises(MalformedMessage, match="expected an answer to 0"):
            pcp.decode_natpmp_address(wrong)


def test_nat_pmp_requests_are_laid_out_as_in_the_rfc() -> None:
    assert pcp.encode_natpmp_address() == bytes(2)
    request = pcp.encode_natpmp_map(7337, external_port=80, lease_s=3600)
    assert request == struct.pack("!BBHHHI", 0, 2, 0, 7337, 80, 3600)


@given(ports, leases)
def test_nat_pmp_answers_are_read(port: int, lease_s: int) -> None:
    read = pcp.decode_natpmp_map(natpmp_answer(port, lease_s), 7337)
    assert read == (port, min(lease_s, limits.PORTMAP_LEASE_S))


@given(st.integers(1, 65_535))
def test_every_refusal_of_nat_pmp_has_words(result: int) -> None:
    for refusal in (natpmp_answer(0, 0, result=result), natpmp_answer(0, 0, result=result)[:8]):
        with pytest.raises(Refused, match=r"^the router "):
            pcp.decode_natpmp_map(refusal, 7337)


def test_nat_pmp_answers_to_another_port_are_refused() -> None:
    with pytest.raises(MalformedMessage, match="7337, got 7338"):
        pcp.decode_natpmp_map(natpmp_answer(7337, 3600, internal=7338), 7337)


# --- HTTP ----------------------------------------------------------------------------------------


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in at})
    pieces = [data[i:j] for i, j in zip([0, *places], [*places, len(data)], strict=True)]
    return [piece for piece in pieces if piece]


def read(pieces: list[bytes]) -> HttpAnswer:
    """Feed pieces up to the last one that is needed."""
    reader = AnswerReader()
    return next(answer for answer in map(reader.feed, pieces) if answer)


@given(st.binary(max_size=300), st.lists(st.integers(0, 600), max_size=8), st.integers(1, 64))
def test_a_body_is_the_same_however_it_is_sent(body: bytes, at: list[int], size: int) -> None:
    head = b"HTTP/1.1 200 OK\r\nServer: x\r\n"
    chunks = [body[i : i + size] for i in range(0, len(body), size)]
    forms = {
        "length": head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        "chunks": head
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"%x;x=y\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
        + b"0\r\n\r\n",
        "rest": head + b"\r\n" + body,
    }
    for name, data in forms.items():
        answer = read([*cut(data, at), b""] if name == "rest" else cut(data, at))
        assert answer.body == body, name
        assert answer.headers["server"] == "x"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 65537\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10001\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + bytes(65_537),
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 65 + b"\r\n",
    ],
    ids=["length", "chunk", "rest", "headers"],
)
def test_no_answer_is_larger_than_a_routers(data: bytes) -> None:
    with pytest.raises(LimitExceeded):
        AnswerReader().feed(data)


def body_forms(n_bytes: int) -> dict[str, bytes]:
    """Return an answer with a body so long, in each form that there is."""
    head, body = b"HTTP/1.1 200 OK\r\n", bytes(n_bytes)
    first, second = body[: n_bytes // 2], body[n_bytes // 2 :]
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (first, second))
    return {
        "length": head + b"Content-Length: %d\r\n\r\n" % n_bytes + body,
        "chunks": head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + b"0\r\n\r\n",
        "rest": head + b"\r\n" + body,
    }


@pytest.mark.parametrize("form", ["length", "chunks", "rest"])
def test_a_body_may_have_the_most_bytes_of_a_routers_and_not_one_more(form: str) -> None:
    most = limits.PORTMAP_HTTP_BODY_BYTES_MAX
    assert read([body_forms(most)[form], b""]).body == bytes(most)
    with pytest.raises(LimitExceeded, match=f"more than {most} bytes"):
        read([body_forms(most + 1)[form], b""])


def test_a_head_may_have_64_headers_and_so_many_bytes_as_long_as_it_is_not_whole() -> None:
    first = b"HTTP/1.1 200 OK"
    most = [b"H%d: %d" % (number, number) for number in range(64)]
    answer = parse_head(b"\r\n".join([first, *most]))
    assert answer == HttpAnswer(200, {f"h{number}": str(number) for number in range(64)})
    with pytest.raises(LimitExceeded, match="65 headers"):
        parse_head(b"\r\n".join([first, *most, b"a: b"]))
    part = (first + b"\r\nA: ").ljust(limits.PORTMAP_HTTP_HEAD_BYTES_MAX, b"a")
    assert AnswerReader().feed(part) is None
    with pytest.raises(MalformedMessage, match=f"no whole head in {len(part) + 1} bytes"):
        AnswerReader().feed(part + b"a")


def test_of_two_headers_of_one_name_the_first_counts() -> None:
    assert parse_head(b"HTTP/1.0 404\r\nA: 1\r\na:\t2 ").headers == {"a": "1"}
    assert parse_head(b"HTTP/1.0 404\r\nA:  1 \t").headers == {"a": "1"}


def test_an_answer_is_whole_as_soon_as_its_length_is_reached() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    assert AnswerReader().feed(head % 0) == HttpAnswer(200, {"content-length": "0"})
    reader = AnswerReader()
    assert reader.feed(head % 3 + b"ab") is None
    answer = reader.feed(b"cd")
    assert answer is not None
    assert answer.body == b"abc", "what follows is no part of it"


@pytest.mark.parametrize(
    ("data", "held"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", 2),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\nab", 3),
    ],
)
def test_an_answer_that_ends_too_early_is_none(data: bytes, held: int) -> None:
    reader = AnswerReader()
    assert reader.feed(data) is None
    with pytest.raises(MalformedMessage, match=f"ended after {held} bytes of body"):
        reader.feed(b"")


def test_a_request_is_laid_out_as_in_the_rfc() -> None:
    bare = encode_http_request("GET", "192.168.1.1:80", "/a?b", headers={})
    assert bare == (
        b"GET /a?b HTTP/1.1\r\nHost: 192.168.1.1:80\r\nUser-Agent: swarmnode UPnP/1.1\r\n"
        b"Connection: close\r\n\r\n"
    )
    full = encode_http_request("POST", "h", "/", body=b"abc", headers={"A": "b"})
    assert full.endswith(b"Connection: close\r\nA: b\r\nContent-Length: 3\r\n\r\nabc")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 300,
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A" * 9000,
        b"ICY 200 OK\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read([data, b""])


def test_the_line_before_a_chunk_may_be_as_long_however_it_is_cut() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    longest, too_long = (b"3;".ljust(n_bytes, b"x") + b"\r\n" for n_bytes in (254, 255))
    rest = b"abc\r\n0\r\n\r\n"
    for place in range(len(longest)):
        assert read([head + longest[:place], longest[place:] + rest]).body == b"abc"
        with pytest.raises(MalformedMessage):
            read([head + too_long[:place], too_long[place:] + rest])
    with pytest.raises(MalformedMessage):
        AnswerReader().feed(head + too_long[:256])  # nothing that follows can make it a line


# --- XML -----------------------------------------------------------------------------------------

names = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
nodes: st.SearchStrategy[Node] = st.recursive(
    st.builds(Node, names, st.from_regex(r"[a-z ]{0,8}", fullmatch=True)),
    lambda inner: st.builds(Node, names, st.just(""), st.lists(inner, max_size=4)),
    max_leaves=30,
)


def written(node: Node) -> str:
    inner = "".join(written(child) for child in node.children)
    return f"<p:{node.name} a='b'>{node.text}{inner}</p:{node.name}>"


@given(nodes)
def test_a_tree_is_read_as_it_was_written(root: Node) -> None:
    assert parse_xml(written(root).encode()) == root


@pytest.mark.parametrize(
    "text",
    [
        '<!DOCTYPE a [<!ENTITY b "bbb">]><a>&b;</a>',
        '<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        '<!DOCTYPE a [<!ENTITY x SYSTEM "http://6.6.6.6/">]><a>&x;</a>',
        "<!DOCTYPE a><a/>",
    ],
)
def test_document_types_are_refused(text: str) -> None:
    with pytest.raises(MalformedMessage, match="document type"):
        parse_xml(text.encode())


@pytest.mark.parametrize("text", ["<a>&b;</a>", "<a>", "", "<a/><b/>", "\0", "<a b=c/>"])
def test_what_is_no_xml_is_refused(text: str) -> None:
    with pytest.raises(MalformedMessage):
        parse_xml(text.encode())


def test_trees_are_bounded() -> None:
    deep, many = PORTMAP_XML_DEPTH_MAX, PORTMAP_XML_NODES_MAX
    assert parse_xml(b"<a>" * deep + b"</a>" * deep)
    with pytest.raises(LimitExceeded, match="deeper"):
        parse_xml(b"<a>" * (deep + 1) + b"</a>" * (deep + 1))
    assert parse_xml(b"<a>" + b"<b/>" * (many - 1) + b"</a>")
    with pytest.raises(LimitExceeded, match="elements"):
        parse_xml(b"<a>" + b"<b/>" * many + b"</a>")


# --- UPnP ----------------------------------------------------------------------------------------

ELSEWHERE = [
    "http://6.6.6.6/ctl",
    "http://192.168.1.2:5000/ctl",
    "//6.6.6.6/ctl",
    "https://192.168.1.1/ctl",
    "http://192.168.1.1@6.6.6.6/ctl",
    "http://user@192.168.1.1/ctl",
    "http://192.168.1.1.evil.example/ctl",
    "http://192.168.1.1:0/ctl",
    "http://192.168.1.1:99999/ctl",
    "http://192.168.1.1:port/ctl",
    "http://[::1]/ctl",
    "http://[oops/ctl",
    "file:///etc/passwd",
    "/ctl with spaces",
    "/ctl\\..\\x",
    "/" + "c" * 600,
]


@pytest.mark.parametrize("url", ELSEWHERE)
def test_a_description_leads_nowhere_but_to_the_router(url: str) -> None:
    with pytest.raises(MalformedMessage):
        igd.parse_description(description((SERVICE, url)), AT)
    if url.startswith("http"):
        with pytest.raises(MalformedMessage):
            igd.parse_description(description((SERVICE, "/ctl"), base=url), AT)
        found = SAMPLES["ssdp"].replace(b"http://192.168.1.1:5000/root.xml", url.encode())
        with pytest.raises(MalformedMessage):
            igd.decode_found(found, GATEWAY)


def test_a_url_of_a_router_may_have_512_characters_and_no_more() -> None:
    url = f"http://{GATEWAY}/".ljust(512, "c")
    assert AT.join(url) == igd.RouterUrl.parse(url, GATEWAY)
    for parse in (AT.join, lambda text: igd.RouterUrl.parse(text, GATEWAY)):
        with pytest.raises(MalformedMessage, match="a URL of 513 characters"):
            parse(url + "c")


def test_a_url_of_a_router_has_a_port_and_a_target_or_those_of_http() -> None:
    for text, port, target in [
        ("http://192.168.1.1", 80, "/"),
        ("http://192.168.1.1/ctl?a=b", 80, "/ctl?a=b"),
        ("http://192.168.1.1:1?a", 1, "/?a"),
        ("http://192.168.1.1:65535/#part", 65_535, "/"),
    ]:
        url = igd.RouterUrl.parse(text, GATEWAY)
        assert url == igd.RouterUrl(GATEWAY, port, target)
        assert str(url) == f"http://192.168.1.1:{port}{target}"


@pytest.mark.parametrize("url", ["http://6.6.6.6/", "http://[", "http://192.168.1.1/ /", "ftp:"])
def test_a_message_shows_the_beginning_of_a_url_that_leads_elsewhere(url: str) -> None:
    for length in (80, 81, 300):
        long = url.ljust(length, "c")
        with pytest.raises(MalformedMessage) as caught:
            igd.RouterUrl.parse(long, GATEWAY)
        assert f"got {long[:80]!r}" in str(caught.value)


@given(st.text(max_size=60))
@example("http:///")
@example("http://\t192.168.1.1/")
@example("//[")
def test_any_reference_stays_at_the_router_or_is_refused(reference: str) -> None:
    try:
        url = AT.join(reference)
    except MalformedMessage:
        return
    assert url.host == GATEWAY
    assert url.target.isascii()
    assert not set(url.target) & set(' "<>\\^`{|}\r\n')


@pytest.mark.parametrize("reference", ["/ctl", "ctl", "http://192.168.1.1:5000/ctl", "./ctl"])
def test_the_service_is_found(reference: str) -> None:
    other = ("urn:schemas-upnp-org:service:Layer3Forwarding:1", "/other")
    found = igd.parse_description(description(other, (SERVICE, reference)), AT)
    assert found == CONNECTION


def test_the_best_service_is_taken() -> None:
    better = SERVICE.replace(":1", ":2")
    listed = description((SERVICE, "/old"), (better, "/new"))
    assert igd.parse_description(listed, AT).url.target == "/new"
    with pytest.raises(Refused, match="no service that maps ports"):
        igd.parse_description(description(("urn:other", "/ctl")), AT)


def test_only_routers_are_found() -> None:
    found = SAMPLES["ssdp"].replace(b"InternetGatewayDevice", b"MediaServer")
    with pytest.raises(MalformedMessage, match="expected an internet gateway"):
        igd.decode_found(found, GATEWAY)


@given(st.integers(100, 9999))
def test_every_refusal_of_upnp_has_words(code: int) -> None:
    body = soap(
        "<s:Fault><detail><UPnPError><errorCode> "
        f"{code}</errorCode><errorDescription>&lt;b&gt;</errorDescription></UPnPError></detail></s:Fault>"
    )
    with pytest.raises(igd.ActionFailed, match=r"^the router .*\(AddPortMapping\)$") as caught:
        igd.decode_action(HttpAnswer(500, {}, body), "AddPortMapping")
    assert caught.value.code == code


def test_what_is_neither_an_answer_to_the_action_nor_an_error_is_refused() -> None:
    answered = SAMPLES["action"]
    result = igd.decode_action(HttpAnswer(200, {}, answered), "AddPortMapping")
    assert result == Node("AddPortMappingResponse")
    for status in (199, 201, 404, 499, 501):
        with pytest.raises(MalformedMessage, match=f"got HTTP {status}"):
            igd.decode_action(HttpAnswer(status, {}, answered), "AddPortMapping")
    with pytest.raises(MalformedMessage, match="or an error code"):
        igd.decode_action(HttpAnswer(500, {}, answered), "AddPortMapping")
    with pytest.raises(MalformedMessage, match="or an error code"):
        igd.decode_action(HttpAnswer(200, {}, answered), "DeletePortMapping")
    for code in ("71", "71800", "7 8"):
        with pytest.raises(MalformedMessage, match="or an error code"):
            igd.decode_action(HttpAnswer(200, {}, soap(f"<errorCode>{code}</errorCode>")), "Add")
    with pytest.raises(igd.ActionFailed, match="gave this port to another machine") as caught:
        igd.decode_action(HttpAnswer(200, {}, soap("<errorCode>718</errorCode>")), "Add")
    assert caught.value.code == igd.CONFLICT


def test_both_kinds_of_routers_are_searched_for_and_found() -> None:
    searches = igd.encode_searches()
    devices = [f"urn:schemas-upnp-org:device:InternetGatewayDevice:{n}".encode() for n in (1, 2)]
    assert [each.rpartition(b"ST: ")[2] for each in searches] == [
        device + b"\r\n\r\n" for device in devices
    ]
    for each, device in zip(searches, devices, strict=True):
        assert each.startswith(b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\n")
        found = SAMPLES["ssdp"].replace(devices[0], device)
        for datagram in (found, found.removesuffix(b"\r\n"), found + b"more"):
            assert igd.decode_found(datagram, GATEWAY) == AT
    with pytest.raises(MalformedMessage, match="expected status 200, got 201"):
        igd.decode_found(SAMPLES["ssdp"].replace(b"200", b"201"), GATEWAY)


@given(st.dictionaries(names, st.text(st.characters(max_codepoint=127, exclude_categories=["C"]))))
def test_values_of_an_action_are_escaped(arguments: dict[str, str]) -> None:
    body, headers = igd.encode_action(CONNECTION, "AddPortMapping", arguments)
    action = next(parse_xml(body).all("AddPortMapping"))
    assert {child.name: child.text for child in action.children} == arguments
    assert headers["SOAPAction"] == f'"{SERVICE}#AddPortMapping"'


@pytest.mark.parametrize(
    ("text", "error"),
    [("", Refused), ("11.11.11", MalformedMessage), ("::1", MalformedMessage)],
)
def test_an_external_address_is_an_ipv4_address(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        igd.decode_external_address(Node("r", "", [Node("NewExternalIPAddress", text)]))
    sound = Node("r", "", [Node("NewExternalIPAddress", " 11.11.11.100 ")])
    assert igd.decode_external_address(sound) == IPv4Address("11.11.11.100")
