"""The DHT of a running node: the Trio shell of ``protocol/dht/core.py``.

One service for the whole network, ``dht/1``: a request of the core is a request of a session,
and its answer the answer. A peer that we ask and have no session with is dialled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import trio

from swarmnode import limits
from swarmnode.daemon.driver import CoreDriver, Tasks
from swarmnode.daemon.transport.network import Network, remote_address
from swarmnode.env import Env
from swarmnode.errors import (
    DeadlineExceeded,
    MalformedMessage,
    Overloaded,
    StorageError,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.protocol.dht import events
from swarmnode.protocol.dht.core import DhtConfig, DhtCore
from swarmnode.protocol.dht.keys import LOOPBACK, AddressGroups
from swarmnode.protocol.dht.keys import Network as AddressRange
from swarmnode.protocol.dht.records import RecordRules
from swarmnode.protocol.identity import Identity
from swarmnode.store.contacts import load_contacts, save_contacts
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire import dht as wire
from swarmnode.wire.packing import decode_record, encode_record

DHT_SERVICE = "dht/1"
_MESSAGE: Any = wire.Message  # msgspec reads a union, which mypy does not know as a type
_log = get_logger("swarmnode.daemon.discovery")
_AnswerT = TypeVar("_AnswerT", events.RecordsFound, events.Published)
_Answer = events.PeersFound | events.RecordsFound | events.Published | events.Refused


class Discovery:
    """Finds peers, swarms and blobs, and lets others find ours.

    Args:
        remembered: file with contacts of earlier runs.
        recalls: whether they are asked.
        lan: address ranges of our own networks, where many peers may share one.

    Attributes:
        bootstrapped: set once the neighbourhood of our own id is stable.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        network_id: bytes,
        boot_epoch: int,
        network: Network,
        services: Services,
        env: Env,
        remembered: Path,
        recalls: bool = True,
        lan: tuple[AddressRange, ...] = (),
    ) -> None:
        self.bootstrapped = trio.Event()
        self._network = network
        self._env = env
        self._remembered = remembered
        self._recalls = recalls
        now = env.monotonic()
        config = DhtConfig(
            RecordRules(network_id),
            boot_epoch=boot_epoch,
            unix_offset_s=env.wall() - now,
            groups=AddressGroups((*LOOPBACK, *lan)),
        )
        self.core = DhtCore(identity, config, env.rng, now)
        self._driver: CoreDriver[events.Event, events.Effect] = CoreDriver(
            self.core, self._carry_out, now=env.monotonic
        )
        self._tasks = Tasks()
        self._answers: dict[tuple[PeerId, int], wire.Answer] = {}
        self._waiting: dict[int, tuple[trio.Event, list[_Answer]]] = {}
        self._last_command = 0
        services.add_answer(DHT_SERVICE, self._answer)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take part until cancelled."""
        async with self._tasks.open() as nursery:
            self._driver.feed(events.Discovered(self._recall() if self._recalls else ()))
            nursery.start_soon(self._driver.run)
            task_status.started()
            await self._remember_now_and_then()

    # --- for the rest of the node ---------------------------------------------------------

    def reachable_at(self, addresses: tuple[str, ...]) -> None:
        """Others can dial us there; none: they cannot."""
        self._driver.feed(events.Reachable(addresses))

    def discovered(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """A peer may be there, which may know others."""
        if addresses and peer != self.core.self_id:
            self._network.trust(addresses)
            contact = wire.Contact(bytes(peer), addresses[: limits.DHT_ADDRESSES_MAX])
            self._driver.feed(events.Discovered((contact,)))

    def usable(self, addresses: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of addresses in a record that may be dialled: any node can store one."""
        return self._network.usable(addresses)

    async def get(self, key: bytes, *, quorum: int = 0) -> events.RecordsFound:
        """Return the records under a key; see ``events.GetRecords`` for ``quorum``.

        Raises:
            Overloaded, DeadlineExceeded: nothing came of it.
        """
        return await self._do(events.GetRecords(self._number(), key, quorum), events.RecordsFound)

    async def publish(self, key: bytes, draft: wire.Record) -> events.Published:
        """Store a record now and, until :meth:`withdraw`, again and again.

        Raises:
            Overloaded, DeadlineExceeded: nothing came of it.
        """
        return await self._do(events.Publish(self._number(), key, draft), events.Published)

    def withdraw(self, key: bytes) -> None:
        """Publish nothing more under this key."""
        self._driver.feed(events.Withdraw(key))

    def remember(self) -> None:
        """Write down the nodes to ask first after the next start. Raises StorageError."""
        contacts = self.core.good_contacts()
        if contacts:  # a node that met no other keeps what it knew
            save_contacts(self._remembered, contacts)

    def _recall(self) -> tuple[wire.Contact, ...]:
        try:
            remembered = load_contacts(self._remembered)
            for contact in remembered:  # they have answered there
                self._network.trust(contact.addresses)
            return remembered
        except StorageError as error:  # we only start as if for the first time
            _log.warning("good peers of the last run cannot be read", why=str(error))
            return ()

    # --- commands ---------------------------------------------------------------------------

    def _number(self) -> int:
        self._last_command += 1
        return self._last_command

    async def _do(self, command: events.Command, kind: type[_AnswerT]) -> _AnswerT:
        done, answers = self._waiting[command.command] = (trio.Event(), [])
        try:
            self._driver.feed(command)
            with trio.move_on_after(limits.DHT_COMMAND_S):
                await done.wait()
        finally:
            del self._waiting[command.command]
        if not answers:
            raise DeadlineExceeded(f"DHT {type(command).__name__}", limits.DHT_COMMAND_S)
        answer = answers[0]
        if isinstance(answer, events.Refused):
            raise Overloaded(answer.reason)
        assert isinstance(answer, kind)
        return answer

    # --- messages ---------------------------------------------------------------------------

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Send(peer, _, message) if isinstance(message, wire.Answer):
                self._answers[peer, message.id] = message
            case events.Send():
                self._request(effect)
            case events.Bootstrapped():
                self.bootstrapped.set()
            case _:
                if effect.command in self._waiting:  # else its asker has lost patience
                    done, answers = self._waiting[effect.command]
                    answers.append(effect)
                    done.set()

    def _request(self, send: events.Send) -> None:
        """Ask over the session that there is; dial only if there is none."""
        session = self._network.connected(send.peer, dial_anew=send.anew)
        # Sessions that end after us still say what became of their requests, and the core asks on.
        if self._tasks.are_open and not (session and self._ask(session, send)):
            self._tasks.start_soon(self._dial_and_ask, send)

    async def _dial_and_ask(self, send: events.Send) -> None:
        addresses = self._network.usable(send.addresses)
        try:
            session = await self._network.connect(send.peer, addresses, dial_anew=send.anew)
            if not self._ask(session, send):
                raise Overloaded(
                    f"{send.peer.short} has too many of our requests, or has just gone"
                )
        except SwarmNodeError as error:
            self._failed(send, error)

    def _ask(self, session: Session, send: events.Send) -> bool:
        def on_answer(answer: bytes | SwarmNodeError) -> None:
            if isinstance(answer, SwarmNodeError):
                self._failed(send, answer)
            else:
                self._answered(session, send, answer)

        return session.ask(
            DHT_SERVICE,
            encode_record(send.message),
            deadline_s=limits.DHT_GONE_S,
            on_answer=on_answer,
        )

    def _answered(self, session: Session, send: events.Send, raw: bytes) -> None:
        try:
            answer: wire.Message = decode_record(raw, _MESSAGE)
            if not isinstance(answer, wire.Answer):
                raise MalformedMessage(f"expected an answer, got a {type(answer).__name__}")
            self._driver.feed(events.Received(send.peer, answer, remote_address(session)))
        except SwarmNodeError as error:
            self._failed(send, error)

    def _failed(self, send: events.Send, error: SwarmNodeError) -> None:
        _log.debug("no DHT answer", peer=send.peer.short, why=str(error))
        self._driver.feed(events.SendFailed(send.peer, send.message.id))

    def _answer(self, peer: PeerId, payload: bytes) -> bytes:
        message: wire.Message = decode_record(payload, _MESSAGE)
        if not isinstance(message, wire.Request):
            raise MalformedMessage(f"expected a request of the DHT, got a {type(message).__name__}")
        observed = self._network.remote_address_of(peer)
        self._driver.feed(events.Received(peer, message, observed))
        return encode_record(self._answers.pop((peer, message.id)))

    async def _remember_now_and_then(self) -> None:
        while True:
            await trio.sleep(limits.DHT_REMEMBER_S)
            try:
                self.remember()
            except SwarmNodeError as error:
                _log.warning("good peers are not written down", why=str(error))
