"""Which peers may be members of a closed swarm: the shell of ``protocol/admission.py``.

It keeps our own certificate fresh, passes on revocations and what else it has heard, and
remembers over a restart which peer has used which invite.
"""

from __future__ import annotations

from swarmnode.config import SwarmPaths
from swarmnode.env import Env
from swarmnode.errors import CorruptRecord, StorageError
from swarmnode.ids import PeerId
from swarmnode.protocol.admission import Admission, AdmissionState
from swarmnode.protocol.invites import (
    NotAdmitted,
    invite_in,
    is_due_for_renewal,
    make_creator_chain,
    make_member_chain,
)
from swarmnode.protocol.swarm import SwarmLink
from swarmnode.store.invites import (
    load_admission_state,
    load_member_chain,
    load_revocations,
    save_admission_state,
    save_member_chain,
    set_admission_state_aside,
)
from swarmnode.store.keys import load_identity
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.admission import MemberChain, Role
from swarmnode.wire.membership import SwarmHello

_log = get_logger("swarmnode.daemon.membership")


class AdmissionGate:
    """Admits peers to a closed swarm, and shows what admits us.

    Raises:
        NotAdmitted: nothing on this disk or in the link admits us.
    """

    is_open = False

    def __init__(
        self,
        link: SwarmLink,
        *,
        role: Role,
        self_id: PeerId,
        paths: SwarmPaths,
        env: Env,
    ) -> None:
        self._link = link
        self._role: Role = role
        self._self_id = self_id
        self._paths = paths
        self._env = env
        self._saved_changes = 0
        self._greeted: set[PeerId] = set()
        self.admission = Admission(link.swarm_id, link.swarm_key, self._load_state())
        self._chain = self._load_chain()
        self._take_own_revocations()
        self._renew()
        self.admission.admit(self_id, self._chain, env.wall(), role=role)

    def hello(self) -> SwarmHello:
        """See ``members.Gate``."""
        return SwarmHello(self._role, self.admission.credentials(self._chain))

    def admit(self, peer: PeerId, hello: SwarmHello) -> None:
        """See ``members.Gate``.

        Raises:
            NotAdmitted: why this peer is no member.
            RemoteProtocolError: it shows revocations that the swarm's key did not sign.
        """
        shown, now_unix_s = hello.credentials, self._env.wall()
        if shown.revocations is not None:
            self.admission.take_revocations(shown.revocations)
        self.admission.hear(shown.heard, now_unix_s)
        self.admission.admit(peer, shown.chain, now_unix_s, role=hello.role)
        self._greeted.add(peer)

    def is_member(self, peer: PeerId) -> bool:
        """See ``members.Gate``."""
        return peer in self._greeted and self.admission.is_member(peer, self._env.wall())

    def refresh(self) -> None:
        """Renew our certificate, take in revocations made on this machine, save what changed.

        Raises:
            NotAdmitted: we are no member any more.
        """
        self._take_own_revocations()
        self._renew()
        self._save_changes()  # first: a node that is out now knows it after a restart, too
        self.admission.admit(self._self_id, self._chain, self._env.wall(), role=self._role)

    # --- inside -----------------------------------------------------------------------------

    def _save_changes(self) -> None:
        if self.admission.changes == self._saved_changes:
            return
        try:
            save_admission_state(self.admission.state(), self._paths)
            self._saved_changes = self.admission.changes
        except StorageError as error:
            _log.error("who used which invite is not written down", why=str(error))

    def _renew(self) -> None:
        """Make our next certificate if it is time and something here allows it."""
        now_unix_s = self._env.wall()
        if self._chain is not None and not is_due_for_renewal(self._chain, now_unix_s):
            return
        try:
            chain = self._make_chain(now_unix_s)
        except NotAdmitted as error:
            if self._chain is None:
                raise
            _log.warning("our certificate cannot be renewed", why=str(error))
            return
        if chain is not None:
            save_member_chain(chain, self._paths)
            self._chain = chain

    def _make_chain(self, now_unix_s: float) -> MemberChain | None:
        if self._paths.swarm_key.exists():
            swarm = load_identity(self._paths.swarm_key)
            return make_creator_chain(swarm, self._self_id, now_unix_s, role=self._role)
        invite = invite_in(self._link)
        if invite is None:
            return None
        return make_member_chain(
            invite, self._self_id, now_unix_s, role=self._role, previous=self._chain
        )

    def _take_own_revocations(self) -> None:
        """``swarmnode invite revoke`` writes them to the home of the swarm's creator."""
        try:
            revocations = load_revocations(self._paths)
        except StorageError as error:
            _log.error("revocations on this disk cannot be read", why=str(error))
            return
        if revocations is not None:
            self.admission.take_revocations(revocations)

    def _load_state(self) -> AdmissionState:
        try:
            return load_admission_state(self._paths)
        except CorruptRecord as error:
            _log.warning("what was known of other members is lost", why=str(error))
            set_admission_state_aside(self._paths)
            return AdmissionState()

    def _load_chain(self) -> MemberChain | None:
        try:
            return load_member_chain(self._paths)
        except CorruptRecord as error:
            _log.warning("our certificate is made anew", why=str(error))
            return None
