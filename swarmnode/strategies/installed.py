"""Which strategies this version has, without importing any: importing one imports torch.

A strategy is one file of this folder with a class that has :class:`base.Strategy` as its base, its
last one if there are several, and ``name = "..."`` in its body; ``version = N`` if it is not 1, and
``kinds = "..."`` if it never wants exchanges of other kinds.
That is all there is to its registration.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from swarmnode.errors import ConfigError, SpecMismatch

DEFAULT_STRATEGY = "streaming"

_BASE = "Strategy"
_PACKAGE = __name__.rpartition(".")[0]


@dataclass(frozen=True)
class InstalledStrategy:
    """A strategy of this version: ``target`` is ``module:Class``."""

    name: str
    version: int
    target: str
    kinds: tuple[str, ...] = ()  # of exchange, all that it may want; empty: any

    def may_want(self, kind: str) -> bool:
        """Whether an exchange of this kind may ever be wanted."""
        return not self.kinds or kind in self.kinds


@lru_cache(maxsize=1)
def installed_strategies() -> dict[str, InstalledStrategy]:
    """Return the strategies by name, in order of their names."""
    found = [each for path in Path(__file__).parent.glob("*.py") for each in _in_file(path)]
    return {each.name: each for each in sorted(found, key=lambda each: each.name)}


def look_at_strategy(name: str) -> InstalledStrategy:
    """Return strategy ``name``. Raises ConfigError: there is none."""
    found = installed_strategies()
    if name not in found:
        raise ConfigError(
            f"expected a strategy among {', '.join(found)}, got {name!r}; "
            "a newer swarmnode may have it"
        )
    return found[name]


def check_installed(name: str, version: int) -> None:
    """Make sure that this machine means by a strategy what the swarm means.

    Raises:
        ConfigError: there is none of this name.
        SpecMismatch: it is another version.
    """
    installed = look_at_strategy(name).version
    if installed != version:
        raise SpecMismatch(
            f"the swarm uses version {version} of the strategy {name}, version {installed} is"
            " installed here: install the swarmnode that the swarm's creator has"
        )


def _in_file(path: Path) -> Iterator[InstalledStrategy]:
    source = path.read_bytes()
    if b"Strategy)" not in source:
        return
    for node in ast.parse(source).body:
        if not (isinstance(node, ast.ClassDef) and _is_strategy(node)):
            continue
        literals = dict(_literals(node))
        name, version = literals.get("name"), literals.get("version", 1)
        kinds = literals.get("kinds", "")
        if isinstance(name, str) and isinstance(version, int) and isinstance(kinds, str):
            target = f"{_PACKAGE}.{path.stem}:{node.name}"
            yield InstalledStrategy(name, version, target, tuple(kinds.split()))


def _is_strategy(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base) == _BASE for base in node.bases)


def _literals(owner: ast.ClassDef) -> Iterator[tuple[str, object]]:
    """Yield every ``name = constant`` in the body of a class."""
    for node in owner.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value)):
                yield name, value
