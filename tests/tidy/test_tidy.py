"""House rules that a linter has no words for. Each failure names file, line and rule."""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "swarmnode"
TESTS = ROOT / "tests"

MODULE_LINES_MAX = 800
MODULE_LINES_WARN = 500
FUNCTION_LINES_MAX = 70
FOLDER_MODULES_MAX = 25  # what is still read at a glance
# Modules that may pass MODULE_LINES_WARN, each with the reason why it is not two.
LONG_MODULES: dict[str, str] = {}

# Programs without an event loop, which look again and again until a deadline or work for a while.
SLEEPERS: dict[str, str] = {
    "swarmnode/processes/children.py": "from a signal handler: a killed child needs a moment",
    "swarmnode/processes/stopping.py": "the thread that ends what takes too long to unwind",
    "swarmnode/api/node.py": "the blocking facade: its caller has no event loop",
    "swarmnode/integrations/agent.py": "a user's own training loop waits for its node",
    "tests/integrations/programs.py": "a step of a model that is larger than a test's",
    "tests/integrations/test_agent.py": "as above",
}

# Written apart so that this file does not hold what it forbids.
MARKERS = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK"]) + r")\b")
BROAD = {"Exception", "BaseException"}


@functools.cache
def sources_in(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(folder.rglob("*.py")))


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path), filename=str(path))


def where(path: Path, node: ast.stmt | ast.expr | ast.excepthandler | int) -> str:
    line = node if isinstance(node, int) else node.lineno
    return f"{path.relative_to(ROOT)}:{line}"


def all_sources() -> Iterator[Path]:
    yield from sources_in(PACKAGE)
    yield from sources_in(TESTS)


def sources_with(pattern: str) -> Iterator[Path]:
    """Yield those in which it occurs at all: to parse all of them takes ten seconds."""
    found = re.compile(pattern, re.MULTILINE)
    yield from (path for path in all_sources() if found.search(text_of(path)))


def test_modules_are_short() -> None:
    lines = {str(path.relative_to(ROOT)): text_of(path).count("\n") for path in all_sources()}
    too_long = {name: count for name, count in lines.items() if count > MODULE_LINES_MAX}
    assert not too_long, f"more than {MODULE_LINES_MAX} lines: split them"
    long = {
        name: count
        for name, count in lines.items()
        if count > MODULE_LINES_WARN and name.startswith("swarmnode/")
    }
    assert long.keys() == LONG_MODULES.keys(), f"more than {MODULE_LINES_WARN} lines: {long}"


def test_folders_of_tests_are_short() -> None:
    modules = Counter(path.parent for path in sources_in(TESTS))
    long = {folder: count for folder, count in modules.items() if count > FOLDER_MODULES_MAX}
    assert not long, "make a room by subject, as those of the code"


def test_functions_are_short() -> None:
    too_long = [
        f"{where(path, node)} {node.name}"
        for path in sources_in(PACKAGE)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert not too_long, f"functions of more than {FUNCTION_LINES_MAX} lines"


def test_nothing_is_left_for_later() -> None:
    found = [
        f"{where(path, token.start[0])} {token.string.strip()}"
        for path in all_sources()
        if MARKERS.search(text_of(path))
        for token in tokenize.generate_tokens(io.StringIO(text_of(path)).readline)
        if token.type == tokenize.COMMENT and MARKERS.search(token.string)
    ]
    found += [
        where(path, node)
        for path in sources_with("NotImplementedError")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Name) and node.id == "NotImplementedError"
    ]
    assert not found, "do it now, or say in the docs that it is not done"


def test_no_test_sleeps_on_the_wall_clock() -> None:
    found = [
        where(path, node)
        for path in sources_with(r"\btime\s*\.\s*sleep\b")
        for node in ast.walk(tree_of(path))
        if path.relative_to(ROOT).as_posix() not in SLEEPERS
        and isinstance(node, ast.Attribute)
        and node.attr == "sleep"
        and isinstance(node.value, ast.Name)
        and node.value.id == "time"
    ]
    found += [
        where(path, node)
        for path in sources_with(r"\bfrom\s+time\s+import\b")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom)
        and node.module == "time"
        and any(alias.name == "sleep" for alias in node.names)
    ]
    assert not found, "wait for a condition with a deadline, or use a virtual clock"


def is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(name, ast.Name) and name.id in BROAD for name in names)


def reason_on(line: str) -> str:
    """Return the comment of a line without codes for linters."""
    comment = line.partition("#")[2]
    return re.sub(r"(#\s*)?(noqa|type:|pragma)\S*(\s*[A-Z]+[0-9]+,?)*", "", comment).strip(" #:-")


def silent_excepts(text: str) -> list[ast.ExceptHandler]:
    """Return those that catch everything, and do not say why on their line.

    What only closes something and raises again needs none: ``ExitStack`` does that.
    """
    lines = text.splitlines()
    return [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ExceptHandler)
        and is_broad(node)
        and not reason_on(lines[node.lineno - 1])
    ]


def test_a_broad_except_says_why() -> None:
    silent = [
        where(path, node)
        for path in sources_with(r"\bexcept\s*:|\b(Base)?Exception\b")
        for node in silent_excepts(text_of(path))
    ]
    assert not silent, "catch what you expect, or say on the line why everything"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("except:", False),
        ("except Exception:", False),
        ("except BaseException:", False),
        ("except (OSError, BaseException) as error:", False),
        ("except Exception:  # noqa: BLE001", False),
        ("except BaseException:  # cancelled too: the caller is told", True),
        ("except Exception:  # a supervisor restarts whatever failed", True),
        ("except Exception:  # noqa: BLE001 - a supervisor restarts whatever failed", True),
        ("except Exception:  # why: restart  # noqa: BLE001", True),
    ],
)
def test_a_code_for_the_linter_is_no_reason(line: str, expected: bool) -> None:
    text = f"try:\n    work()\n# a reason above the line\n{line}\n    tidy_up()\n    raise\n"
    assert bool(silent_excepts(text)) != expected


def test_modules_have_docstrings() -> None:
    """Every module with code in it; the empty ``__init__`` of a package has none to describe."""
    bare = [
        where(path, 1)
        for path in sources_in(PACKAGE)
        if tree_of(path).body and not ast.get_docstring(tree_of(path))
    ]
    assert not bare, "say in one line what the module is"


def test_rooms_of_the_daemon_log_under_their_own_name() -> None:
    """An event's key is for users: it names the room, and stays when its modules change."""
    wrong = []
    for path in sources_in(PACKAGE / "daemon"):
        room = path.relative_to(PACKAGE / "daemon").parts[0]
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "get_logger":
                said = ast.unparse(node.args[0])
                wrong += [] if said == f"'swarmnode.daemon.{room}'" else [where(path, node)]
    assert not wrong, "get_logger takes the name of the room"


def test_rooms_of_the_daemon_say_what_is_for_others() -> None:
    """Each module is named in the docstring of its room, or a contract keeps it inside."""
    settings = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]["importlinter"]
    kept = {name for each in settings["contracts"] for name in each.get("protected_modules", ())}
    wrong = []
    for room in sorted(path.parent for path in (PACKAGE / "daemon").glob("*/__init__.py")):
        offered = ast.get_docstring(tree_of(room / "__init__.py")) or ""
        names = set(re.findall(r"``([a-z_.]+)``", offered.partition("For others:")[2]))
        for path in sources_in(room):
            inside = ".".join(path.relative_to(room).with_suffix("").parts)
            if path.name != "__init__.py":
                is_kept = f"swarmnode.daemon.{room.name}.{inside}" in kept
                wrong += [] if is_kept != (inside in names) else [f"{room.name}.{inside}"]
    assert not wrong, "name it under 'For others', or protect it in pyproject.toml; not both"


def test_every_limit_is_used() -> None:
    defined = {
        target.id: (path, node.lineno)
        for path in sources_in(PACKAGE / "limits")
        for node in tree_of(path).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    used = {
        name
        for source in sources_in(PACKAGE)
        for node in ast.walk(tree_of(source))
        for name in names_read(node)
    }
    idle = [f"{where(*place)} {name}" for name, place in defined.items() if name not in used]
    assert not idle, "a bound that nothing keeps"


def names_read(node: ast.AST) -> Iterator[str]:
    """Yield names as read by ``limits.X``, ``from limits import X``, or within limits."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name, ctx=ast.Load()):
            yield name
        case ast.ImportFrom(module="swarmnode.limits", names=aliases):
            yield from (alias.name for alias in aliases)


def test_every_limit_has_a_reason() -> None:
    """A comment directly above it, or above the run of limits that it belongs to."""
    bare = []
    for path in sources_in(PACKAGE / "limits"):
        has_reason = False
        for number, line in enumerate(text_of(path).splitlines(), start=1):
            if line.startswith("# ---") or not line.strip():
                has_reason = False
            elif line.startswith("#"):
                has_reason = True
            elif re.match(r"[A-Z][A-Z0-9_]* =", line) and not (has_reason or "#" in line):
                bare.append(f"{where(path, number)}: {line}")
    units = [line for line in bare if re.search(r": (KIB|MIB|GIB) =", line)]
    assert bare == units, "say why it is this much"


def test_imports_go_downwards() -> None:
    """The contracts of import-linter, as in pyproject.toml."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
