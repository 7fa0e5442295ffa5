"""The documentation is true: links, commands, errors, tables and the example of a task."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import click
import msgspec
import pytest

from swarmnode import config, errors, limits
from swarmnode.cli.main import cli
from swarmnode.config import NodeConfig
from swarmnode.daemon.membership.progress import RAMP_BEGIN, RAMP_END
from swarmnode.daemon.status.phases import Listening, Serving
from swarmnode.daemon.status.view import NodeView
from swarmnode.ids import encode_base32
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import (
    Hint,
    SwarmLink,
    compatibility_key,
    network_id,
    parse_link,
    sign_manifest,
    swarm_id,
)
from swarmnode.strategies.installed import installed_strategies
from swarmnode.tasks.installed import ENTRY_POINT_GROUP
from swarmnode.telemetry.catalogue import BY_NAME
from swarmnode.tooling import error_index, reference
from swarmnode.wire import membership, swarm
from swarmnode.wire.session import GoodbyeCode
from tests.conftest import ROOT
from tests.golden.messages import EXAMPLES

CHANGES = ROOT / "docs" / "changes"  # fragments of one page
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PROTO = sorted((ROOT / "proto").glob("*.md"))
SPEC = ROOT / "proto" / "swarm.md"
PAGES = [ROOT / "README.md", *DOCS, *PROTO]

# ``code`` and `code`; fenced blocks and indented ones are lines of their own.
SPAN = re.compile(r"(?<!`)(``?)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
# The first cell of a row of errors.md: `` `…` `` if the text itself has backticks.
ERROR_CELL = r"^\| (``?)(.+?)\1 \|"
# Of the compose file, which only passes them on.
DEPLOYMENT_VARIABLES = {"LINK", "TARGET"}
# Programs whose options are not ours.
OTHERS = ("pip", "pytest", "python", "python3", "make", "git", "bash", "ruff", "mypy", "cd")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose_and_code(path: Path) -> tuple[str, list[str]]:
    """Return the text outside of blocks of code, and the lines inside."""
    prose, code, fence = [], [], False
    for line in text_of(path).splitlines():
        if line.startswith("```"):
            fence = not fence
        elif fence or line.startswith("    "):
            code.append(line.strip())
        else:
            prose.append(line)
    return "\n".join(prose), code


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose_and_code(path)[0], re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


# --- links --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_and_code(page)[0]):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize(
    "folder", sorted({page.parent for page in DOCS} - {CHANGES}), ids=lambda path: path.name
)
def test_the_index_has_every_page(folder: Path) -> None:
    index = text_of(folder / "README.md")
    missing = [page.name for page in folder.glob("*.md") if f"({page.name})" not in index]
    assert missing == ["README.md"]


# --- pictures -----------------------------------------------------------------------------------

PICTURES = sorted((ROOT / "docs" / "images").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
# Of a letter, as part of the size of its font: DejaVu Sans, which is wider than most.
LETTER_WIDTH = 0.6
SIZES = {"": 13.0, "h": 14.0, "s": 12.0}  # by class


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_pictures_are_whole_and_legible_in_light_and_dark(picture: Path) -> None:
    text = text_of(picture)
    assert "<!" not in text, "a document type, or a comment"
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title")
    width, height = (float(number) for number in (root.get("viewBox") or "").split()[2:])
    assert (width, height) == (float(root.get("width") or 0), float(root.get("height") or 0))
    style = root.findtext(f"{SVG}style") or ""
    light, dark = style.split("@media(prefers-color-scheme:dark)")
    for selector in re.findall(r"([.\w]+)\{[^}]*#", light):
        assert f"{selector}{{" in dark, f"{selector} has no colour in the dark"
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    drawn = {"rect", "path", "circle", "text", "marker", "defs"}
    assert tags <= {"svg", "title", "style", *drawn}, "scripts, images and links are for pages"
    for element in root.iter(f"{SVG}text"):
        words, kinds = element.text or "", (element.get("class") or "").split()
        size = next((SIZES[kind] for kind in kinds if kind in SIZES), SIZES[""])
        x, y, long = float(element.get("x", 0)), float(element.get("y", 0)), LETTER_WIDTH * size
        before = {"m": 0.5, "e": 1.0}.get(next((k for k in kinds if k in "me"), ""), 0.0)
        begin = x - before * long * len(words)
        assert 0 <= begin < begin + long * len(words) <= width, words
        assert size <= y <= height, words


def test_pictures_are_shown_and_described() -> None:
    shown = {
        (page.parent / target).resolve(): words
        for page in DOCS
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", text_of(page))
    }
    assert {path.resolve() for path in PICTURES} <= shown.keys()
    in_html = {
        (page.parent / target).resolve()
        for page in DOCS
        for target in re.findall(r'(?:src|srcset)="([^"]+)"', text_of(page))
    }
    assert in_html <= set((ROOT / "docs" / "images").iterdir())
    assert all(shown.values())
    for picture in PICTURES:
        title = ElementTree.fromstring(text_of(picture)).findtext(f"{SVG}title")
        assert shown[picture.resolve()] == title


# --- commands -----------------------------------------------------------------------------------


@functools.cache
def verbs() -> dict[str, set[str]]:
    """Return every verb, such as ``bench codec``, with its options."""
    found: dict[str, set[str]] = {}

    def walk(group: click.Group, prefix: str) -> None:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            found[prefix + name] = {
                option
                for param in command.params
                for option in (*param.opts, *param.secondary_opts)
            }
            if isinstance(command, click.Group):
                walk(command, f"{prefix}{name} ")

    walk(cli, "")
    return found


def commands_in(page: Path) -> Iterator[str]:
    """Yield what stands behind ``swarmnode`` in code of the page, but not in texts of errors."""
    prose, code = prose_and_code(page)
    if page.name in ("errors.md", "error-index.md"):
        prose = re.sub(ERROR_CELL, "|", prose, flags=re.MULTILINE)
    spans = [" ".join(match[2].split()) for match in SPAN.finditer(prose)]
    for piece in [*code, *spans]:
        for match in re.finditer(r"(?:^|[\s(`/])(?<!from )swarmnode ([a-z][^`]*)", piece):
            yield match[1].partition("  #")[0]


def split(command: str) -> list[str]:
    """Split as a shell does, also a command that the text around it has cut in a quote."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def options_in(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")} - {"--help"}


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=lambda page: page.name)
def test_verbs_and_their_options_exist(page: Path) -> None:
    wrong = []
    for command in commands_in(page):
        words = split(command)
        name = " ".join(words[:2]) if " ".join(words[:2]) in verbs() else words[0]
        end = words.index("--") if "--" in words else len(words)
        ours, joins = options_in(words[:end]), options_in(words[end + 1 :])
        # Behind `--` are options of `join`, which `service install` passes on.
        if name not in verbs() or ours - verbs()[name] or joins - verbs()["join"]:
            wrong.append(command)
    assert not wrong


def test_commands_are_found_at_all() -> None:
    """Else the test above would pass on anything."""
    found = {split(command)[0] for page in DOCS for command in commands_in(page)}
    assert found >= {"create", "join", "status", "peers", "leave", "export", "generate", "bench"}
    (tried,) = (
        command
        for command in commands_in(ROOT / "docs" / "task-settings.md")
        if "layers=4" in command
    )
    assert split(tried)[-2:] == ["--set", "strategy.every=32"]


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=lambda page: page.name)
def test_options_named_alone_exist(page: Path) -> None:
    known = {"--help", "--version"}.union(*verbs().values())
    wrong = [
        span
        for span in (match[2] for match in SPAN.finditer(prose_and_code(page)[0]))
        if not span.startswith(OTHERS)
        for option in re.findall(r"(?:^|\s)(--[a-z][a-z-]*)", span)
        if option not in known and not span.startswith("--data-dir") and "-seed" not in span
    ]
    assert not wrong


def test_modules_and_files_that_are_named_exist() -> None:
    missing = []
    for page in [*DOCS, SPEC]:
        text = text_of(page)
        for module in re.findall(r"python -m (swarmnode[\w.]*|tests[\w.]*)", text):
            path = ROOT.joinpath(*module.split("."))
            missing += [] if path.with_suffix(".py").exists() else [module]
        for name in re.findall(r"\b((?:[a-z_]+/)+[a-z_]+\.(?:py|c|md|json))\b", text):
            places = [ROOT, ROOT / "docs", ROOT / "swarmnode", ROOT / "proto", ROOT / "native"]
            missing += [] if any((place / name).exists() for place in places) else [name]
    assert sorted(set(missing) - {"proto/gossip.md"}) == []


def test_the_reference_is_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(["--check"]) == 0, capsys.readouterr().err


def test_a_stale_reference_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stale = tmp_path / "reference.md"
    assert reference.main(["--check", "--file", str(stale)]) == 1
    assert reference.main(["--write", "--file", str(stale)]) == 0
    assert reference.main(["--check", "--file", str(stale)]) == 0
    stale.write_text(text_of(stale).replace("--home", "--house"), encoding="utf-8")
    assert reference.main(["--check", "--file", str(stale)]) == 1
    assert "--house" in capsys.readouterr().err


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=lambda page: page.name)
def test_metrics_that_are_named_exist(page: Path) -> None:
    # Files of a release begin with such a name, too.
    named = set(re.findall(r"(?<![:\w])swarmnode_(?!train-)[a-z0-9_]+", text_of(page)))
    parts = {name for name in BY_NAME if BY_NAME[name].kind == "histogram"}
    known = {*BY_NAME, *(f"{name}{end}" for name in parts for end in ("_bucket", "_sum", "_count"))}
    wrong = {
        name
        for name in named - known
        if not (name.endswith("_") and any(one.startswith(name) for one in known))
    }
    assert not wrong


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=lambda page: page.name)
def test_settings_that_are_named_exist(page: Path) -> None:
    outside = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^ {4,}([a-z_]+) = [\[\"\dtf]", outside, re.MULTILINE)
    spans = [match[2] for match in SPAN.finditer(prose_and_code(page)[0])]
    inline = [found[1] for span in spans if (found := re.match(r"([a-z_]+) = [\[\"\dtf]", span))]
    variables = re.findall(rf"\b{config.ENVIRONMENT_PREFIX}([A-Z_]+)\b", text_of(page))
    others = {"HOME", "NATIVE", "REACH", "SUCCESS_EXIT_STATUS"} | DEPLOYMENT_VARIABLES
    settings = {name.lower() for name in variables if name not in others}
    assert {*lines, *inline, *settings} <= set(NodeConfig.__struct_fields__)


def test_settings_are_found_at_all() -> None:
    """Else the test above would pass on anything."""
    assert re.search(r"^ {4}listen = ", text_of(ROOT / "docs" / "operator.md"), re.MULTILINE)
    assert "SWARMNODE_CPU_PERCENT" in text_of(ROOT / "docs" / "volunteer.md")


def test_exit_codes_are_all_described() -> None:
    codes = {error.exit_code for error in vars(errors).values() if hasattr(error, "exit_code")}
    assert codes | {0} == reference._EXIT_CODES.keys()


# --- errors -------------------------------------------------------------------------------------


@functools.cache
def texts_in_code() -> tuple[str, ...]:
    """Return every string of the package; what differs is ``…``."""
    found = []
    for path in sorted((ROOT / "swarmnode").rglob("*.py")):
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.JoinedStr):
                parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


def test_errors_are_those_of_the_code() -> None:
    rows = re.findall(ERROR_CELL, text_of(ROOT / "docs" / "errors.md"), re.MULTILINE)
    assert len(rows) > 80
    unknown = []
    for _, text in rows:
        parts = text.strip().split("…")
        pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
        # To look for the longest part first is a hundred times as fast.
        rare = max(parts, key=len)
        if not any(rare in known and pattern.search(known) for known in texts_in_code()):
            unknown.append(text)
    assert not unknown


def test_every_error_is_in_the_index() -> None:
    page = text_of(ROOT / "docs" / "error-index.md")
    rows = {cell for _, cell in re.findall(ERROR_CELL, page, re.MULTILINE)}
    found = error_index.messages()
    assert len(found) > 300
    assert {message.kind for message in found} >= {
        "ConfigError",
        "NotRunning",
        "Refused",
        "KeyInUse",
    }
    shown = {" ".join(row.replace("\\|", "|").split()) for row in rows}
    assert not {" ".join(one.text.split()) for one in found} - shown
    assert "](errors.md#settings) |" in page, "rows lead to their remedies"


# --- tables -------------------------------------------------------------------------------------


def table_after(text: str, marker: str) -> dict[str, list[str]]:
    """Return the first table behind ``marker``: first cell to the other ones."""
    lines = text.split(marker, 1)[1].splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = {}
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        for name in first.split(", "):
            rows[name.strip("`")] = others
    return rows


@pytest.mark.parametrize(
    ("owner", "settings"),
    [
        ("`bytes-lm`", "swarmnode.tasks.bytes_lm:BytesLM"),
        ("`digits`", "swarmnode.tasks.digits:Digits"),
        ("`hub-lm`", "swarmnode.tasks.hub_lm:HubLM"),
        ("`llama-lm`", "swarmnode.tasks.llama_lm:LlamaLM"),
        ("`synthetic`", "swarmnode.tasks.synthetic:Synthetic"),
    ],
)
def test_tables_of_settings_are_those_of_the_code(owner: str, settings: str) -> None:
    module, _, name = settings.partition(":")
    record = getattr(importlib.import_module(module), name).Config
    table = table_after(text_of(ROOT / "docs" / "task-settings.md"), f"\nSettings of {owner}:\n")
    fields = {field.name: field.default for field in msgspec.structs.fields(record)}
    assert {key: cells[0] for key, cells in table.items()} == {
        name: str(default) or "empty" for name, default in fields.items()
    }


def test_extras_are_listed_with_what_they_bring() -> None:
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    needed = {
        extra: {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}
        for extra, requirements in project["optional-dependencies"].items()
    }
    table = text_of(ROOT / "docs" / "install.md").partition("| extra |")[2].partition("\n\n")[0]
    listed = []
    for names, brings in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", table, re.MULTILINE):
        extras = re.findall(r"`([a-z]+)`", names)
        listed += extras
        named = set(re.split(r", |; | and ", brings))
        all_of_them = set().union(*(needed[extra] for extra in extras))
        has_more = "more" in named
        assert named - {"more"} <= all_of_them, names
        assert has_more or all_of_them - named <= {"torch"}, names
    assert sorted(listed) == sorted(needed)


def test_presets_are_listed() -> None:
    from swarmnode.tasks.installed import PRESETS

    table = table_after(text_of(ROOT / "docs" / "task-settings.md"), "Presets are tasks")
    assert {name: cells[0].strip("`") for name, cells in table.items()} == {
        name: preset.task for name, preset in PRESETS.items()
    }


@pytest.mark.parametrize("name", installed_strategies())
def test_tables_of_strategies_are_those_of_the_code(name: str) -> None:
    from swarmnode.strategies.one_byte import BOUNDED
    from swarmnode.strategies.registry import find_strategy

    text = text_of(ROOT / "docs" / "strategies.md")
    assert name in table_after(text, "## Which one")
    shown = {
        key: cells[0].strip("`") for key, cells in table_after(text, f"of `{name}`:\n").items()
    }
    fields = msgspec.structs.fields(find_strategy(name).Config)
    created = BOUNDED if name == "one-byte" else {}  # what a manifest does not say is of before
    defaults = {field.name: created.get(field.name, field.default) for field in fields}
    assert shown == {key: json.dumps(value).strip('"') for key, value in defaults.items()}


def test_tasks_are_listed_with_their_pace() -> None:
    from swarmnode.tasks.installed import BUILT_IN
    from swarmnode.tasks.registry import load_task

    table = table_after(text_of(ROOT / "docs" / "task-settings.md"), "## Tasks and settings")
    assert table.keys() == BUILT_IN.keys()
    for name, cells in table.items():
        assert cells[-1] == f"{load_task(name).exchange_every_steps} steps"


@pytest.mark.parametrize(
    "record",
    [
        swarm.Signed,
        swarm.Manifest,
        swarm.ManifestRequest,
        swarm.ManifestReply,
        membership.SwarmHello,
    ],
)
def test_the_specification_has_every_field(record: type[msgspec.Struct]) -> None:
    table = text_of(SPEC).split(f"\n| `{record.__name__}` |", 1)[1].split("\n\n", 1)[0]
    shown = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert shown == list(record.__struct_fields__)


def test_the_specification_has_every_state_and_service() -> None:
    states = text_of(SPEC).split("\nStates: ", 1)[1].split(". ", 1)[0]
    assert set(re.findall(r"`(\w+)`", states)) == set(get_args(membership.PeerState))
    cells = table_after(text_of(SPEC), "## 5. Services").keys()
    services = {service for cell in cells for service in cell.replace("`", "").split()}
    constants = {
        service
        for module in service_modules()
        for name, value in vars(module).items()
        if name.endswith("_SERVICE")
        for service in ([value] if "/" in value else [f"{value}/2", f"{value}-payload/2"])
    }
    assert services == constants


def service_modules() -> list[Any]:
    return [
        importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for layer in ("daemon", "net")
        for path in (ROOT / "swarmnode" / layer).rglob("*.py")
        if "_SERVICE = " in text_of(path)
    ]


def test_the_specification_says_what_members_say() -> None:
    rows = re.findall(
        r"^\| (set|counter|register|maximum) \| ([^|]+) \|", text_of(SPEC), re.MULTILINE
    )
    named: dict[str, set[str]] = {}
    for kind, names in rows:
        named.setdefault(kind, set()).update(re.findall(r"`(\w+)`", names))
    absent: Any = None
    node = Listening(
        network=absent,
        discovery=absent,
        key_guard=absent,
        self_id=Identity.from_seed(b"s" * 32).peer_id,
        swarm="",
        role="keeper",
        node_name="me",
        started_monotonic_s=0.0,
        started_unix_s=0.0,
        totals=absent,
        volunteer=absent,
        nat=absent,
        addresses=tuple,
        own_addresses=tuple,
    )
    view = NodeView(node)
    view.work = Serving()
    report = replace(view.report(("mem:me",), 1.0), state="training")
    numbers = dict.fromkeys([*report.numbers, RAMP_BEGIN, RAMP_END], 1.0)
    report = replace(report, numbers=numbers, met="", target="signed", swarm_tokens=1)
    said = report.update(node.self_id, {})
    assert named == {
        "set": {name for name, _ in said.leases},
        "counter": set(said.counters),
        "register": set(said.registers),
        "maximum": set(said.maxima),
    }


@pytest.mark.parametrize("page", [*DOCS, *PROTO], ids=lambda page: page.name)
def test_bounds_are_named_with_their_value(page: Path) -> None:
    named = re.findall(r"\b([A-Z]{3,}(?:_[A-Z]+)+)\b`? \(([\d.]+)(?: s)?\)", text_of(page))
    for name, shown in named:
        assert getattr(limits, name) == float(shown), name
    bare = set(re.findall(r"`([A-Z]{3,}(?:_[A-Z]+)+)`", text_of(page)))
    known = {name for name in bare if hasattr(limits, name)}
    variables = {config.HOME_VARIABLE, "SWARMNODE_THREADS", "SWARMNODE_NATIVE", "HTTPS_PROXY"}
    variables |= {config.ENVIRONMENT_PREFIX + name.upper() for name in config._TYPES}
    assert bare - known - variables - set(GoodbyeCode.__members__) <= {
        "FAMILIES",
        "FORMATS",
        "EXAMPLES",
    }


# --- the vectors of proto/swarm.md --------------------------------------------------------------


def test_vectors_of_the_specification() -> None:
    key = Identity.from_seed(b"s" * 32)
    examples: Any = EXAMPLES
    manifest = msgspec.structs.replace(examples["swarm/manifest"], swarm_key=key.public_key)
    link = SwarmLink("tiny-lm", key.public_key, (Hint(key.peer_id, "192.0.2.1:7337"),))
    shown = {
        name.replace("`", ""): cells[0].replace("<br>", "").replace("`", "")
        for name, cells in table_after(text_of(SPEC), "## 8. Test vectors").items()
    }
    digest = hashlib.sha256(b"swarmnode/swarm/1\0" + key.public_key)
    assert shown == {
        "public key": key.public_key.hex(),
        "in a link": str(link).partition("k=")[2].partition("&")[0],
        "peer id": str(key.peer_id),
        "swarm id": digest.hexdigest(),
        "tag": encode_base32(digest.digest()[:10]),
        "id of the network main": network_id("main").hex(),
        "signature of the manifest": sign_manifest(manifest, key).signature.hex(),
        "compatibility key": compatibility_key(manifest).hex(),
    }
    assert network_id("main") == hashlib.sha256(b"swarmnode/network/1\0main").digest()
    assert swarm_id(key.public_key) == link.swarm_id == digest.digest()
    assert link.tag == shown["tag"]
    (written,) = re.findall(r"^    (swarm:\S+)$", text_of(SPEC), re.MULTILINE)
    assert parse_link(written) == link
    assert str(link) == written


# --- the example of a task ----------------------------------------------------------------------


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def block(page: str, language: str) -> str:
    (found,) = blocks(page, language)
    return found


def install(folder: Path, page: str) -> str:
    """Put both files of the page where an installation would; return the name of the task."""
    project = tomllib.loads(block(page, "toml"))
    (module,) = project["tool"]["setuptools"]["py-modules"]
    ((name, target),) = project["project"]["entry-points"][ENTRY_POINT_GROUP].items()
    (folder / f"{module}.py").write_text(blocks(page, "python")[0], encoding="utf-8")
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{name} = {target}\n")
    return str(name)


def test_the_example_of_a_task_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarmnode.tasks.registry import load_task
    from swarmnode.worker.model.state import build_state, build_task

    name = install(tmp_path, text_of(ROOT / "docs" / "task.md"))
    monkeypatch.syspath_prepend(tmp_path)
    assert load_task(name).name == name
    task = build_task(name, {"hidden": 64})
    state = build_state(task, swarm_seed=1, device="cpu")
    batches, before = state.batches(1), state.evaluate()
    for _ in range(150):
        state.take_step(next(batches))
    assert state.evaluate() < before / 2
    assert state.evaluate() == state.evaluate()
    assert state.tokens == 150 * task.tokens_per_batch
    with pytest.raises(errors.ConfigError, match="unknown setting 'colour'"):
        build_task(name, {"colour": 1})


# --- the example of a strategy ------------------------------------------------------------------


def test_the_example_of_a_strategy_is_found_and_passes_its_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swarmnode import strategies
    from swarmnode.strategies import fit, installed
    from swarmnode.strategies.registry import find_strategy

    code, test = blocks(text_of(ROOT / "docs" / "strategies.md"), "python")
    (tmp_path / "part_average.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(strategies, "__path__", [*strategies.__path__, str(tmp_path)])
    (found,) = installed._in_file(tmp_path / "part_average.py")
    monkeypatch.setitem(installed.installed_strategies(), found.name, found)
    strategy = find_strategy("part-average")
    fit.check_fit(strategy, strategy.parse({"parts": 8}), "Q8B64", "ring")
    with pytest.raises(errors.ConfigError, match="whole weights, which part-average sends"):
        fit.check_fit(strategy, strategy.parse({}), "E3M0", "")
    names: dict[str, Any] = {}
    exec(compile(test, "test_part_average.py", "exec"), names)
    (run,) = (value for name, value in names.items() if name.startswith("test_"))
    run()
