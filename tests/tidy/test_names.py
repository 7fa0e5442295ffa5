"""One name for one thing within a package, and nothing that only tests use.

What the product uses is read from its syntax trees: a function, a class or a constant counts as
used where its module reads it or another one imports it; a method where anything reads an attribute
of that name. That lets some idle ones pass, and blames none that is called.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from tests.tidy.test_tidy import PACKAGE, ROOT, TESTS, sources_in, text_of, tree_of

# A package and all below it -> names that two of its modules may have.
TWICE: dict[str, frozenset[str]] = {
    # Each family of messages has its own, read as `wire.dht.Ping`.
    "swarmnode.wire": frozenset(
        {"Answer", "Message", "NONCE_BYTES", "Ping", "Prepared", "Question", "Request", "Want"}
    ),
    # Each core has events and effects of its own, read as `events.Begin`.
    "swarmnode.protocol": frozenset(
        {"Abort", "Begin", "Commit", "Effect", "Event", "PeerLost", "Received", "Send"}
    ),
    # Each framework's callback; what users import.
    "swarmnode.integrations": frozenset({"SwarmCallback"}),
    "swarmnode.daemon": frozenset({"FLOAT32_BYTES", "Piece", "check_names"}),
    "swarmnode.cli": frozenset({"Curve", "Finding", "Plan"}),
}
# Public, and without a caller in the product.
IDLE: dict[str, str] = {
    "swarmnode.tensor.magnitude:measure": "what decoding with a measure is compared with",
    # A merge rule is found by the name of its module, see strategies/merging/rules.py.
    **{
        f"swarmnode.strategies.merging.{rule}": "find_rule"
        for rule in (
            *("best_of:best_of", "bristle:bristle", "flag:flag", "monna:monna"),
            *("nnm:nnm", "sybil_mean:sybil_mean", "trimmed_mean:trimmed_mean"),
        )
    },
    "swarmnode.strategies.merge:rda": "all at once: what the merge of nodes apart is compared with",
    "SlotLessor.unmerged": "what tests watch a lessor by",
}
# What other people's programs call.
PUBLIC = ("swarmnode.api.", "swarmnode.integrations.")
# A class that comes from elsewhere calls methods of those that are made of it.
PLAIN_BASES = ("abc", "collections", "dataclasses", "enum", "msgspec", "typing")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


@dataclass
class Module:
    """One module: what it defines, and what it reads of itself and of others."""

    name: str
    tree: ast.Module
    modules: frozenset[str] = frozenset()  # all there are
    reads: set[tuple[str, str]] = field(default_factory=set)  # module and name; "*": each of it
    attributes: set[str] = field(default_factory=set)
    imports: list[tuple[ast.Import | ast.ImportFrom, ast.alias]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names: Counter[str] = Counter()
        bases: Counter[tuple[str, str]] = Counter()  # of attributes
        for statement in self.tree.body:
            own = {name for name, _ in names_of(statement)}
            for node in ast.walk(statement):
                self._read(node, own, names, bases)
        whole = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node, alias in self.imports
            if isinstance(node, ast.ImportFrom) and f"{node.module}.{alias.name}" in self.modules
        }
        self.reads |= {(whole[name], attribute) for name, attribute in bases if name in whole}
        for (name, _), count in bases.items():
            names[name] -= count
        self.reads |= {(whole[name], "*") for name in whole if names[name]}  # handed on

    def _read(
        self, node: ast.AST, own: set[str], names: Counter[str], bases: Counter[tuple[str, str]]
    ) -> None:
        kind = type(node)  # of half a million nodes: patterns would take minutes
        if kind is ast.Name:
            names[node.id] += 1
            if node.id not in own and isinstance(node.ctx, ast.Load):
                self.reads.add((self.name, node.id))
        elif kind is ast.Attribute:
            if isinstance(node.ctx, ast.Load):
                self.attributes.add(node.attr)
            if type(node.value) is ast.Name:
                bases[node.value.id, node.attr] += 1
        elif kind is ast.Constant:
            if isinstance(node.value, str) and "swarmnode" in node.value:
                self.reads.update(targets_in(node.value))
        elif kind is ast.MatchClass:
            self.attributes.update(node.kwd_attrs)
        elif kind in (ast.Import, ast.ImportFrom):
            self.imports += [(node, alias) for alias in node.names]
            if kind is ast.ImportFrom:
                self.reads |= {(node.module or "", alias.name) for alias in node.names}

    def definitions(self) -> Iterator[tuple[str, Definition]]:
        """Yield what it defines at its top level."""
        for statement in self.tree.body:
            yield from names_of(statement)

    def methods(self) -> Iterator[tuple[ast.ClassDef, str]]:
        """Yield the public methods of its classes, but for those that others call by contract."""
        foreign = {
            alias.asname or alias.name
            for node, alias in self.imports
            if not origin(node, alias).startswith(("swarmnode", *PLAIN_BASES))
        }
        for each in self.tree.body:
            if isinstance(each, ast.ClassDef) and not foreign.intersection(
                map(root_of, each.bases)
            ):
                for node in each.body:
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield each, node.name


def origin(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    return alias.name if isinstance(node, ast.Import) else (node.module or "")


def root_of(base: ast.expr) -> str:
    """Return the first name of ``a.b[c]``."""
    while isinstance(base, ast.Attribute | ast.Subscript):
        base = base.value
    return base.id if isinstance(base, ast.Name) else ""


def targets_in(text: str) -> list[tuple[str, str]]:
    """Return what a string names as an entry point does."""
    return re.findall(r"\b(swarmnode[\w.]*)[:](\w+)", text)


def names_of(statement: ast.stmt) -> Iterator[tuple[str, Definition]]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield statement.name, statement
        case ast.Assign(targets=targets):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, statement
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name, statement


def is_registered(node: Definition) -> bool:
    """Whether it makes itself known: a verb by its decorator, a strategy by its base, a bench

    (``cli/bench.py``) by its name.
    """
    match node:
        case ast.FunctionDef(name=name) if re.fullmatch(r"(run|format)_\w+_bench", name):
            return True
        case ast.FunctionDef(decorator_list=decorators):
            return any(re.search(r"\b(command|group)\(", ast.unparse(each)) for each in decorators)
        case ast.ClassDef(bases=bases):
            return any(root_of(base) == "Strategy" for base in bases)
    return False


def repeated(modules: Iterable[Module]) -> list[str]:
    """Return public names that several modules of one package define."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in modules:
        package, _, short = module.name.rpartition(".")
        for name, node in module.definitions():
            if not (name.startswith("_") or name == "main" or is_registered(node)):
                found[package, name].append(short)
    return sorted(
        f"{package}: {name} in {', '.join(sorted(set(where)))}"
        for (package, name), where in found.items()
        if len(set(where)) > 1
    )


def idle(
    modules: Iterable[Module],
    users: Iterable[Module],
    entry_points: str,
    words: frozenset[str] = frozenset(),
) -> list[str]:
    """Return what of ``modules`` none of ``users`` uses, and what is none of ``words``."""
    reads = set(targets_in(entry_points))
    attributes = set(words)
    for user in users:
        reads |= user.reads
        attributes |= user.attributes
    found = []
    for module in modules:
        if module.name.startswith(PUBLIC) or (module.name, "*") in reads:
            continue
        found += [
            f"{module.name}:{name}"
            for name, node in module.definitions()
            if not (name.startswith("__") or name == "main" or is_registered(node))
            and not (name in words or (module.name, name) in reads)
        ]
        found += [
            f"{each.name}.{name}"
            for each, name in module.methods()
            if not (name.startswith("_") or name in attributes)
        ]
    return found


def modules_of(texts: dict[str, str]) -> list[Module]:
    return [Module(name, ast.parse(text), frozenset(texts)) for name, text in texts.items()]


@pytest.fixture(scope="module")
def product() -> list[Module]:
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sources_in(PACKAGE)
    }
    names = frozenset(paths)
    return [Module(name, tree_of(path), names) for name, path in paths.items()]


def test_a_name_means_one_thing_in_a_package(product: list[Module]) -> None:
    found = repeated(product)
    allowed = {
        each
        for each in found
        for package, names in TWICE.items()
        if f"{each.partition(': ')[0]}.".startswith(f"{package}.")
        and each.partition(": ")[2].partition(" in ")[0] in names
    }
    new = [each for each in found if each not in allowed]
    assert not new, "\n".join(["merge them, or give one another name:", *new])


def test_the_product_uses_what_it_has(product: list[Module]) -> None:
    """Of the kit for tests, whatever a test speaks of is used."""
    kit = [module for module in product if module.name.startswith("swarmnode.testing.")]
    rest = [module for module in product if module not in kit]
    entry_points = (ROOT / "pyproject.toml").read_text()
    words = frozenset(
        word for path in sources_in(TESTS) for word in re.findall(r"\w+", text_of(path))
    )
    found = {*idle(rest, product, entry_points), *idle(kit, product, entry_points, words)}
    new = sorted(found - IDLE.keys())
    assert not new, "\n".join(["only tests use it: delete it, or make it theirs:", *new])
    used = sorted(IDLE.keys() - found)
    assert not used, "\n".join(["it is used now: take it out of IDLE:", *used])


def test_what_is_twice_is_noticed() -> None:
    made = modules_of(
        {
            "swarmnode.a.one": "X = 1\n_Y = 1\ndef main(): ...\n",
            "swarmnode.a.two": "class X: ...\n_Y = 1\ndef main(): ...\n",
            "swarmnode.b": "X = 1\n",
        }
    )
    assert repeated(made) == ["swarmnode.a: X in one, two"]


def test_what_is_not_used_is_noticed() -> None:
    user = """
from swarmnode import whole
from swarmnode.one import used, Used
def main():
    hand_on(whole)
    Used().called()
"""
    one = """
import io
CONSTANT = 1
def used(): ...
def recursive(): recursive()
class Used:
    def called(self): return CONSTANT
    def idle(self): ...
class Foreign(io.TextIOBase):
    def writable(self): ...
"""
    made = modules_of(
        {"swarmnode.one": one, "swarmnode.user": user, "swarmnode.whole": "def any(): ...\n"}
    )
    entry_point = 'x = "swarmnode.one:Foreign"'
    assert idle(made, made, entry_point) == ["swarmnode.one:recursive", "Used.idle"]
