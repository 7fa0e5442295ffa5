"""How far the swarm is, and where it ends.

The first is worked out of the shared state, told to the worker, and said in our own words. The
second is the target of the recipe, or that of the newest extension that was heard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from swarmnode import limits
from swarmnode.daemon.membership.report import STEP_TIME_S, PeerReport, SelfReport
from swarmnode.env import Env
from swarmnode.errors import CorruptRecord, MalformedMessage, ProtocolError, Refused, StorageError
from swarmnode.ipc.control import SwarmProgress
from swarmnode.ipc.lr_schedule import Horizon, lr_factor
from swarmnode.protocol.swarm_progress import Said, SwarmProgressCore, SwarmState
from swarmnode.store.files import read_file, write_atomic
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.swarm import Manifest

RAMP_BEGIN, RAMP_END = "ramp_begin", "ramp_end"
if TYPE_CHECKING:
    from swarmnode.daemon.membership.swarm import SwarmPart

_LOOK_S = 0.1  # what is later than this moves a schedule of a minute by less than a percent
_LOOK_MEMBER_S = 0.002  # in a large swarm each look takes longer, and each member matters less


class NoProgress:
    """In place of ``ProgressWatch``: the swarm has no recipe that would follow it."""

    def __init__(self, target: TargetKeeper) -> None:
        self.target = target

    def lr_factor(self) -> float | None:
        """Return nothing: each member's optimizer is as the task made it."""
        return None

    def completed(self, report: SelfReport) -> SelfReport:
        """Return what we say of ourselves, as it is."""
        return report


class ProgressWatch:
    """Looks at what members say, and works out where the swarm is.

    Args:
        own_tokens: of our worker, as it said last.

    Attributes:
        target: where training ends; what members say of that is passed on to it.
        counted_tokens: of the whole swarm, as they were said.
    """

    def __init__(
        self, part: SwarmPart, env: Env, target: TargetKeeper, own_tokens: Callable[[], int]
    ) -> None:
        self.target = target
        self.counted_tokens = 0
        self._part, self._self_id, self._env = part, part.self_id, env
        self._own_tokens, self._lost = own_tokens, 0
        self._core = SwarmProgressCore(part.self_id)
        self._ramp: tuple[float, float] | None = None  # None: we have not begun yet

    async def run(self) -> None:
        """Follow the shared state until cancelled."""
        while True:
            changed = self._part.changed
            self._look()
            n_members = len(self._part.members.live())
            await trio.sleep(_LOOK_S + _LOOK_MEMBER_S * n_members)
            with trio.move_on_after(limits.SWARM_PROGRESS_TOLD_S):
                await changed.wait()

    def state(self) -> SwarmState:
        """Return where the swarm is now."""
        return self._core.state(self._env.monotonic())

    def lr_factor(self) -> float:
        """Return by how much all members multiply the task's learning rate now."""
        state, recipe = self.state(), self._part.manifest.recipe
        assert recipe, "only a swarm with one is watched"
        return lr_factor(recipe, state.tokens, self.target.horizon, state.members)

    def message(self) -> SwarmProgress:
        """Return what the worker is to know now."""
        state, horizon = self.state(), self.target.horizon
        return SwarmProgress(
            others_tokens=state.others_tokens,
            others_per_s=state.others_per_s,
            others_counted=state.others_counted,
            lost_tokens=self._lost_tokens(),
            members=state.members,
            at_tokens=state.tokens,
            members_per_token=state.members_per_token,
            target_tokens=horizon.target_tokens,
            resumed_tokens=horizon.resumed_tokens,
        )

    def begin(self) -> None:
        """Our worker is up and about to train."""
        self._look()
        if self._ramp is None:
            own = self._said(self._part.peer_report(self._self_id))
            self._ramp = self._core.ramp(own.claimed_per_s, self._env.monotonic())
            self._look()

    def completed(self, report: SelfReport) -> SelfReport:
        """Return what we say of ourselves, and of the swarm."""
        numbers = dict(report.numbers)
        if self._ramp is not None:
            numbers[RAMP_BEGIN], numbers[RAMP_END] = self._ramp
        counters = dict(report.counters)
        counters["tokens"] += self._lost_tokens()
        # A member that trains has news all the time; of others the count would be news each time.
        counted = self.counted_tokens if report.state == "training" else 0
        return replace(
            report,
            numbers=numbers,
            counters=counters,
            target=self.target.text,
            swarm_tokens=counted,
        )

    def _lost_tokens(self) -> int:
        """Return what of our earlier lives others have counted, and our worker has not.

        What a crash has taken is trained anew. It counts all the same: else the others would
        count us on while we stand still.
        """
        if self._ramp is not None:  # our worker has said how far it is
            said = self._part.state.view.counters_of(self._self_id).get("tokens", 0)
            self._lost += max(0, said - self._own_tokens() - self._lost)
        return self._lost

    def _look(self) -> None:
        part = self._part
        reports = [part.peer_report(peer) for peer in part.members.live()]
        for report in reports:
            self.target.heard(report.target)
        said = {report.peer: self._said(report) for report in reports}
        # Dead members count, too, and those that all others have forgotten.
        total = max(part.totals().tokens, part.swarm_tokens())
        self.counted_tokens = total
        self._core.note(said, total, self._env.monotonic())

    def _said(self, report: PeerReport) -> Said:
        ramp = (report.numbers.get(RAMP_BEGIN, 0.0), report.numbers.get(RAMP_END, 0.0))
        is_training = report.state == "training" and report.role == "trainer"
        if report.peer == self._self_id and self._ramp is not None:
            ramp, is_training = self._ramp, True  # others hear of it a moment later
        chain = self._part.state.view.ledger.chains.get(report.peer)
        return Said(
            tokens=report.counters.get("tokens", 0),
            steps=report.counters.get("steps", 0),
            step_time_s=report.numbers.get(STEP_TIME_S, 0.0),
            is_training=is_training,
            ramp=ramp,
            heard_at=chain.heard_at if chain is not None else self._env.monotonic(),
        )


def watch_progress(
    part: SwarmPart, extension: Path, env: Env, *, own_tokens: Callable[[], int]
) -> ProgressWatch | NoProgress:
    """Return what follows a swarm, if it has a recipe; ``extension``: where its target is kept."""
    target = TargetKeeper(part.manifest, extension)
    if not part.manifest.recipe:
        return NoProgress(target)
    target.load()
    return ProgressWatch(part, env, target, own_tokens)


# Forgeries of so many members are not verified anew at each look; the next ones cost a signature.
_REFUSED_KEPT = 64
_log = get_logger("swarmnode.daemon.membership")


class TargetKeeper:
    """Holds the newest extension, on disk too.

    Args:
        path: of the file that `swarmnode extend` writes as well.

    Attributes:
        text: of the newest extension, as members say it to each other; "": there is none.
        on_extended: told that training goes on for longer.
    """

    def __init__(self, manifest: Manifest, path: Path) -> None:
        self.text = ""
        self.on_extended: Callable[[], None] = lambda: None
        self._swarm_key = manifest.swarm_key
        self._path = path
        recipe = manifest.recipe or None
        self._has_recipe = recipe is not None
        self._horizon = Horizon(recipe.target_tokens if recipe is not None else 0)
        self._refused: deque[str] = deque(maxlen=_REFUSED_KEPT)

    @property
    def horizon(self) -> Horizon:
        """Where training ends, as far as is known here."""
        return self._horizon

    def load(self) -> None:
        """Take what is on disk; what is damaged there, other members have."""
        try:
            text = read_file(self._path, bytes_max=limits.TEXT_BYTES_MAX).decode("ascii")
            self._take(text.strip())
        except FileNotFoundError:
            return
        except (UnicodeDecodeError, CorruptRecord, ProtocolError, StorageError) as error:
            _log.warning("no extension is read", path=str(self._path), why=str(error))

    def heard(self, text: str) -> None:
        """Take what a member says, if it is signed and leads further; what is not is left alone."""
        if not text or text == self.text or text in self._refused:
            return
        try:
            if not self._take(text):
                self._refused.append(text)
                return
            write_atomic(self._path, text.encode())
        except ProtocolError as error:
            self._refused.append(text)
            _log.warning("an extension is refused", why=str(error))
        except StorageError as error:  # members say it again after the next start
            _log.error("an extension is not written down", why=str(error))

    def extend(self, text: str) -> Horizon:
        """Take what the owner of this node brings.

        Raises:
            Refused: it does not lead further, or the swarm has no recipe.
            AuthenticationFailed, MalformedMessage: the swarm's key has not signed it.
            StorageError: it cannot be written down.
        """
        if not self._has_recipe:
            raise Refused("this swarm was created without a recipe, so that it never ends")
        if not self._take(text) and text != self.text:
            raise Refused(
                f"expected a target beyond {self._horizon.target_tokens:,} tokens, which is the one"
                " that the swarm has"
            )
        write_atomic(self._path, text.encode())
        return self._horizon

    def _take(self, text: str) -> bool:
        """Whether it leads further. Raises AuthenticationFailed, MalformedMessage."""
        if len(text) > limits.EXTENSION_CHARACTERS_MAX:
            raise MalformedMessage(f"expected an extension, got {len(text)} characters")
        from swarmnode.protocol.extension import open_extension  # few swarms are ever extended

        extension = open_extension(text, self._swarm_key)
        if not self._has_recipe or extension.target_tokens <= self._horizon.target_tokens:
            return False
        self.text = text
        self._horizon = Horizon(extension.target_tokens, extension.resumed_tokens)
        _log.info("the swarm trains on", target_tokens=extension.target_tokens)
        self.on_extended()
        return True
