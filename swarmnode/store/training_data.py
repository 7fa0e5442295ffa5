"""Which folder a home trains on in a swarm: what `--data` named once counts from then on.

So does what `--model` named, the model that training goes on from.
"""

from __future__ import annotations

import msgspec

from swarmnode import limits
from swarmnode.config import Paths
from swarmnode.errors import ConfigError, CorruptRecord
from swarmnode.protocol.swarm import check_name
from swarmnode.store.files import (
    make_private_dir,
    read_file,
    storage_errors,
    sync_directory,
    write_atomic,
)

# Names of two folders, which have at most 4 KiB, as JSON writes them: six bytes for an odd one.
_DATA_FILE_BYTES_MAX = 64 * limits.KIB

_FILE_NAME = "data.json"


class TrainingData(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the owner of a node has it train on.

    Attributes:
        folder: absolute; "" is the task's own data.
        is_own: other data than the creator's is meant, so no member need be warned.
        model: absolute, with what training goes on from; "": the task has no such thing.
    """

    folder: str = ""
    is_own: bool = False
    model: str = ""


def load_training_data(name: str, paths: Paths) -> TrainingData:
    """Return what this home remembers for a swarm.

    Raises:
        ConfigError: the file is damaged.
        StorageError: the system does not let us read it.
    """
    path = paths.swarm(check_name(name)).directory / _FILE_NAME
    try:
        return msgspec.json.decode(
            read_file(path, bytes_max=_DATA_FILE_BYTES_MAX), type=TrainingData
        )
    except FileNotFoundError:
        return TrainingData()
    except (CorruptRecord, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{path} is damaged ({error}): say again which data is meant, with --data FOLDER or"
            " --no-data"
        ) from error


def save_training_data(name: str, paths: Paths, data: TrainingData) -> None:
    """Remember it for the next start. Raises StorageError."""
    path = paths.swarm(check_name(name)).directory / _FILE_NAME
    if data == TrainingData():
        with storage_errors(path, "remove"):
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                sync_directory(path.parent)
        return
    make_private_dir(path.parent)
    write_atomic(path, msgspec.json.encode(data))
