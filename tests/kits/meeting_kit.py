"""What strangers ask: a mainline DHT of libtorrent's nodes, and a DNS server.

Both are on loopback, or where the thread that opens them is: a host of the laboratory.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dns.flags
import dns.message
import dns.rdatatype
import dns.rrset
import libtorrent

from swarmnode.net.mainline import settings_of

_NEIGHBOURS = (1, 4, 7, 11)


@contextmanager
def mainline_dht(count: int, hosts: Sequence[str] = ()) -> Iterator[tuple[str, ...]]:
    """Yield where some of the nodes of a DHT are, in which each knows a few others.

    Args:
        hosts: an address for each node, which holds to the rules of the real DHT then. It hears
            those whose networks are never seen in the real one, as of the laboratory.
    """
    settings = {**settings_of((), is_local=not hosts), "enable_dht": True}
    settings["dht_ignore_dark_internet"] = False
    at = hosts or ["127.0.0.1"] * count
    sessions = [libtorrent.session({**settings, "listen_interfaces": f"{host}:0"}) for host in at]
    nodes = [(host, each.listen_port()) for host, each in zip(at, sessions, strict=True)]
    for index, session in enumerate(sessions):
        for step in _NEIGHBOURS:
            session.add_dht_node(nodes[(index + step) % count])
    try:
        yield tuple(f"{host}:{port}" for host, port in nodes[:3])
    finally:
        sessions.clear()


@contextmanager
def dns_server(records: Mapping[str, Sequence[str]], at: str = "127.0.0.1") -> Iterator[str]:
    """Answer questions for TXT records over UDP; yield where."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((at, 0))
        thread = threading.Thread(target=_serve, args=(sock, records), daemon=True)
        thread.start()
        host, port = sock.getsockname()
        yield f"{host}:{port}"
        sock.sendto(b"", sock.getsockname())
        thread.join()


def _serve(sock: socket.socket, records: Mapping[str, Sequence[str]]) -> None:
    while True:
        data, asker = sock.recvfrom(4096)
        if not data:
            return
        sock.sendto(_answer(dns.message.from_wire(data), records).to_wire(), asker)


def _answer(query: Any, records: Mapping[str, Sequence[str]]) -> Any:
    response = dns.message.make_response(query)
    response.flags |= dns.flags.AA
    (question,) = query.question
    texts = records.get(question.name.to_text().rstrip("."), ())
    if texts and question.rdtype == dns.rdatatype.TXT:
        quoted = [
            " ".join(f'"{text[at : at + 250]}"' for at in range(0, len(text), 250))
            for text in texts
        ]
        response.answer.append(dns.rrset.from_text(question.name, 60, "IN", "TXT", *quoted))
    return response
