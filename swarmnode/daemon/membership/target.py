"""Where training ends: the target of the recipe, or that of the newest extension that was heard."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from swarmnode import limits
from swarmnode.errors import CorruptRecord, MalformedMessage, ProtocolError, Refused, StorageError
from swarmnode.ipc.lr_schedule import Horizon
from swarmnode.protocol.extension import open_extension
from swarmnode.store.files import read_file, write_atomic
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.swarm import Manifest

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
        extension = open_extension(text, self._swarm_key)
        if not self._has_recipe or extension.target_tokens <= self._horizon.target_tokens:
            return False
        self.text = text
        self._horizon = Horizon(extension.target_tokens, extension.resumed_tokens)
        _log.info("the swarm trains on", target_tokens=extension.target_tokens)
        self.on_extended()
        return True
