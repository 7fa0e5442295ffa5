"""``swarmnode push``: the trained model and its card, on the Hugging Face hub.

All files come in one commit: until it is made none of them is seen, so an upload that is cut off
leaves what was there before, and the next one begins anew.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from swarmnode.cli.main import plain, print_json
from swarmnode.cli.model.export import (
    FACTS_BYTES_MAX,
    FORMATS,
    chosen_swarm,
    export_model,
    facts_file,
    is_earlier,
    kind_of,
)
from swarmnode.cli.options import home_option, json_option, merge_option
from swarmnode.config import Paths, resolve_home
from swarmnode.errors import ConfigError, Refused, TransportError
from swarmnode.processes import stopping
from swarmnode.store.files import read_file

_REPO = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")
# What every repository has from its beginning, or may have before its first model.
_HARMLESS = frozenset({".gitattributes", "README.md", "LICENSE"})
# Of an earlier push, whose shards may have been more: with new ones beside they would be read.
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".gguf")
_WHY_CHARACTERS = 200
_UNKNOWN, _FORBIDDEN, _MISSING = 401, 403, 404


@click.command()
@click.argument("repo")
@click.option("--swarm", "swarm_name", help="Which swarm, if this home knows several.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    default="transformers",
    show_default=True,
    help="As of `export`: for from_pretrained of transformers, one file for llama.cpp, or ours.",
)
@click.option("--adapter", is_flag=True, help="The adapters of --lora alone, for peft.")
@click.option(
    "--private",
    is_flag=True,
    help="A new repository is seen by you alone; a public one is refused.",
)
@merge_option(default=None)
@home_option
@json_option
def push(
    repo: str,
    swarm_name: str | None,
    kind: str,
    adapter: bool,
    private: bool,
    merge: str | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """Export the trained model and publish it as REPO, OWNER/NAME on the Hugging Face hub.

    The repository is made if it is not there. One that holds anything but an earlier push of this
    swarm, in the same format, is refused. The card says how the loss fell, by which recipe, and
    what each member trained. The token is that of HF_TOKEN or of `hf auth login`.
    """
    kind = kind_of(kind, is_adapter=adapter)
    paths = Paths(resolve_home(home, os.environ))
    repository = Repository(repo, is_quiet=as_json)
    name = chosen_swarm(paths, swarm_name)
    repository.look(name, kind, wants_private=private)
    with tempfile.TemporaryDirectory(dir=paths.home, prefix="push-") as folder:
        facts = export_model(paths, name, Path(folder), merge=merge, kind=kind, place=repo)
        repository.make(is_private=private)
        words = f"swarm {name}, step {facts['step']:,}, with swarmnode"
        published = repository.publish(Path(folder), words)
    if as_json:
        print_json(facts | published)
        return
    click.echo(
        f"published step {facts['step']:,} of swarm {name}, {facts['bytes'] / 1e6:.1f} MB:"
        f" {plain(published['url'])}"
    )


@dataclass
class Repository:
    """A model's repository on the hub, as the library huggingface_hub reaches it.

    Attributes:
        endpoint, token: of the hub; by default those of the library's own settings and login.

    Raises:
        ConfigError: the name is none, the library or a token is missing.
    """

    name: str
    is_quiet: bool = False
    endpoint: str | None = None
    token: str = field(default="", repr=False)
    files: tuple[str, ...] = ()
    _is_there: bool = False
    _hub: Any = field(init=False, repr=False)
    _api: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not _REPO.fullmatch(self.name):
            raise ConfigError(f"expected OWNER/NAME on the hub, got {self.name!r}")
        # Plain HTTP, each file proven by its SHA-256: one way for all, which tests can follow.
        os.environ["HF_HUB_DISABLE_XET"] = "1"
        try:
            import huggingface_hub
            import huggingface_hub.errors
            import huggingface_hub.utils
        except ImportError as error:
            raise ConfigError(
                "push needs huggingface_hub of the extra hub: pip install '.[hub]' in the clone of"
                " swarmnode"
            ) from error
        if self.is_quiet or not sys.stderr.isatty():
            huggingface_hub.utils.disable_progress_bars()
        huggingface_hub.utils.logging.set_verbosity_error()
        self._hub = huggingface_hub
        self.token = self.token or huggingface_hub.get_token() or ""
        self._api = huggingface_hub.HfApi(endpoint=self.endpoint, token=self.token)
        if not self.token:
            raise ConfigError(
                f"no token for {self._api.endpoint}: put one that may write into HF_TOKEN, or log"
                " in once with `hf auth login`"
            )

    def look(self, swarm: str, kind: str, *, wants_private: bool) -> None:
        """See what is there, and that it may be replaced.

        Raises:
            Refused: it is no earlier push of this swarm alike, or public where it may not be.
            ConfigError, TransportError: the hub says no, or nothing.
        """
        with self._speaking():
            self._api.whoami()  # a token that is none is said before a long export
            try:
                found = self._api.model_info(self.name, files_metadata=True)
            except self._hub.errors.RepositoryNotFoundError:
                return
            self._is_there = True
            sizes = {each.rfilename: each.size or 0 for each in found.siblings or ()}
            self.files = tuple(sorted(sizes))
            facts = facts_file(kind)
            is_ours = set(sizes) <= _HARMLESS
            if sizes.get(facts, FACTS_BYTES_MAX + 1) <= FACTS_BYTES_MAX:
                is_ours = is_ours or is_earlier(self._read(facts), swarm, kind)
        if not is_ours:
            raise Refused(
                f"{self.name}: expected a new repository, an empty one or an earlier push of"
                f" {swarm!r} in the same format, it holds other files: choose another"
            )
        if wants_private and not found.private:
            raise Refused(
                f"{self.name}: --private is of new repositories, and this one is public: change"
                " that in its settings, or choose another"
            )

    def make(self, *, is_private: bool) -> None:
        """Have the hub make it if it is not there. Raises ConfigError, Refused, TransportError."""
        if not self._is_there:
            with self._speaking():
                self._api.create_repo(self.name, private=is_private, exist_ok=True)

    def publish(self, folder: Path, words: str) -> dict[str, Any]:
        """Upload all files of ``folder`` in one commit; return its facts, with the address.

        Raises:
            ConfigError, Refused, TransportError: the hub says no, or the line broke.
        """
        new = {path.name: path for path in sorted(folder.iterdir())}
        stale = [name for name in self.files if name.endswith(_WEIGHTS) and name not in new]
        operations = [self._hub.CommitOperationDelete(name) for name in stale]
        operations += [self._hub.CommitOperationAdd(name, path) for name, path in new.items()]
        with self._speaking():
            stopping.watch()  # threads that send would hold up the end
            done = self._api.create_commit(self.name, operations, commit_message=words)
        return {
            "repo": self.name,
            "url": f"{self._api.endpoint}/{self.name}",
            "commit": done.oid,
            "files": {name: path.stat().st_size for name, path in new.items()},
        }

    def _read(self, name: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            self._api.hf_hub_download(self.name, name, local_dir=folder)
            return read_file(Path(folder) / name, bytes_max=FACTS_BYTES_MAX)

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Turn whatever the hub or the network is like into one line for the caller."""
        # The library's errors are those of the one that it speaks HTTP with, which changes.
        of_http = self._hub.errors.HfHubHTTPError.__bases__
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except (OSError, ValueError, RuntimeError, *of_http) as error:
            raise self._said(error) from None  # what it holds has the token

    def _said(self, error: Exception) -> ConfigError | Refused | TransportError:
        """Return what went wrong in words, without the token."""
        if type(error) is RuntimeError and isinstance(error.__cause__, Exception):
            error = error.__cause__  # of an upload
        where = self._api.endpoint
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        why = getattr(error, "server_message", None) or str(error) or type(error).__name__
        if status == _UNKNOWN:
            return ConfigError(
                f"{where} does not know this token (401): make one that may write at"
                f" {where}/settings/tokens"
            )
        if status == _FORBIDDEN:
            return Refused(
                f"{self.name}: this token may not write there (403): make one that may at"
                f" {where}/settings/tokens, or choose another owner"
            )
        if status == _MISSING:
            return ConfigError(f"{self.name}: {where} knows no such owner or repository (404)")
        why = " ".join(why.replace(self.token, "…").split())[:_WHY_CHARACTERS]
        if status is not None:
            return TransportError(f"{self.name}: {where} answered with status {status}: {why}")
        if isinstance(error, ValueError | RuntimeError):
            return TransportError(f"{self.name}: {where} gave no good answer: {why}")
        return TransportError(
            f"push to {self.name}: {where} cannot be reached: {why}; nothing was published, try"
            " again"
        )
