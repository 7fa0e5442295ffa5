"""A model and a data set by their names on the hub: exactly one commit of each, and proven.

The hub is a real server on loopback, and the library that fetches is the real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from swarmnode.config import Paths
from swarmnode.errors import ConfigError, Refused
from swarmnode.processes.environment import SwarmEnvironment
from swarmnode.processes.worker_tools import model_folder, run_offline
from swarmnode.store.swarms import read_manifest
from swarmnode.tasks.base import DataError
from swarmnode.tasks.llama_lm import LlamaLM
from tests.kits.daemon_kit import Answer, free_port, swarmnode
from tests.kits.fake_hub import TOKEN, FakeHub, Repo, serve
from tests.kits.hub_kit import make_llama

pytestmark = [
    pytest.mark.skipif(find_spec("huggingface_hub") is None, reason="needs huggingface_hub"),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]
needs_transformers = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("transformers", "peft")),
    reason="needs transformers and peft",
)

MODEL, DATA = "me/base", "me/texts"
LINE = "the cat and the dog and the tree and the end\n"
TEXTS = {
    "README.md": b"# Texts\n",
    "load.py": b"raise SystemExit('executed')\n",
    "more/b.txt": 300 * LINE.encode(),
    "a.jsonl": 100 * (json.dumps({"text": LINE}) + "\n").encode(),
}
SMALL = ("dim=16", "layers=1", "heads=2", "context=16", "batch=2", "probe_windows=4")


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serve() as hub:
        hub.repos[f"datasets/{DATA}"] = Repo()
        yield hub


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a repository with a model holds: what is wanted of it, and what is not."""
    folder = make_llama(tmp_path_factory.mktemp("model") / "llama")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return files | {"modeling_mine.py": b"raise SystemExit", "pytorch_model.bin": b"pickled"}


def changed(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    """Return files with another last byte of one of them: a weight, or a letter."""
    return files | {name: files[name][:-1] + bytes([files[name][-1] ^ 1])}


def machine(hub: FakeHub, folder: Path, **more: str) -> dict[str, str]:
    """Return the variables of a machine that knows this hub, with a cache of its own."""
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "HF_TOKEN": "", **more}


def create(folder: Path, variables: dict[str, str], *options: str) -> Answer:
    where = f"127.0.0.1:{free_port()}"
    return swarmnode(
        folder / "home", "create", "mine", *options, "--listen", where, "--json", env=variables
    )


def of_data(hub: FakeHub, folder: Path, said: str) -> Answer:
    settings = [part for size in SMALL for part in ("--set", size)]
    options = ("--task", "bytes-lm", *settings, "--data-from", said)
    return create(folder, machine(hub, folder), *options)


def be(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Have what this process starts run on that machine."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def build_as_member(config: dict[str, object], model: str) -> None:
    """Fetch a model by its name and build it, as a member of the swarm does. Raises ConfigError."""
    folder, _ = model_folder(model)
    given = (f"--config={json.dumps(config)}", f"--model-dir={folder}")
    run_offline("describe", "--task=hub-lm", *given)


# --- a model ------------------------------------------------------------------------------


@needs_transformers
def test_create_pins_the_commit_that_a_tag_means_and_members_prove_every_byte(
    hub: FakeHub,
    tmp_path: Path,
    model_files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repo = hub.repos[MODEL] = Repo()
    commit = repo.commit(model_files, tag="v1")
    newer = repo.commit(changed(model_files, "model.safetensors"))
    variables = machine(hub, tmp_path)
    created = create(tmp_path, variables, "--model", f"{MODEL}@v1", "--lora", "r=2")
    assert created.code == 0, created.out + created.err
    config = created.json["config"]
    assert (config["model"], config["revision"]) == (MODEL, commit)
    cached = {path.name: path for path in (tmp_path / "hf").rglob("*") if path.is_file()}
    assert cached["model.safetensors"].read_bytes() == model_files["model.safetensors"]
    assert not {"modeling_mine.py", "pytorch_model.bin"} & set(cached), "neither code nor pickles"
    assert not [one for one in hub.requests if one.endswith((".py", ".bin"))]

    be(monkeypatch, machine(hub, tmp_path / "member"))
    build_as_member(config, f"{MODEL}@{commit}")
    # Another commit of it has one other byte.
    with pytest.raises(ConfigError, match=rf"the weights of .* than {commit}"):
        build_as_member(config, f"{MODEL}@{newer}")
    # And so it is if a mirror answers for that commit with another byte, of the tokenizer as well.
    repo.earlier[commit] = model_files | {"tokenizer.json": model_files["tokenizer.json"] + b"\n"}
    be(monkeypatch, machine(hub, tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match=rf"the tokenizer of .* than {commit}"):
        build_as_member(config, f"{MODEL}@{commit}")


@needs_transformers
def test_a_model_that_is_in_the_cache_needs_no_network(
    hub: FakeHub, tmp_path: Path, model_files: dict[str, bytes]
) -> None:
    hub.repos[MODEL] = Repo()
    commit = hub.repos[MODEL].commit(model_files)
    for url in (hub.url, f"http://127.0.0.1:{free_port()}"):
        variables = machine(hub, tmp_path, HF_ENDPOINT=url)
        home = tmp_path / url[-5:].strip(":")
        created = create(home, variables, "--model", f"{MODEL}@{commit}", "--lora", "r=2")
        assert created.code == 0, created.out + created.err
        assert created.json["config"]["revision"] == commit


def refused(hub: FakeHub, folder: Path, model: str, **more: str) -> str:
    """Return why `create` does not take a model; it leaves no swarm behind."""
    answer = create(folder, machine(hub, folder, **more), "--model", model)
    assert answer.code == answer.json["exit_code"] == 2
    assert not Paths(folder / "home").swarm("mine").directory.exists()
    return str(answer.json["error"])


def test_what_the_hub_has_not_is_said_in_one_sentence(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos[MODEL] = Repo()
    hub.repos["me/secret"] = Repo(is_private=True)
    none = f"it cannot be fetched: {hub.url} has none of that name, or it is private"
    assert refused(hub, tmp_path, "me/nothing").startswith(f"--model me/nothing: {none}")
    known = {"HF_TOKEN": TOKEN}
    assert none in refused(hub, tmp_path, "me/nothing", **known)
    assert none in refused(hub, tmp_path, "me/secret")
    said = refused(hub, tmp_path, f"{MODEL}@v9")
    assert f"{hub.url} has it, but no revision v9: name a branch, a tag or a commit" in said


def test_without_a_network_it_says_so(hub: FakeHub, tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    said = refused(hub, tmp_path, MODEL, HF_ENDPOINT=dead)
    assert f"{dead} cannot be reached, and it is not whole in the cache here" in said
    # A proxy that is not there is another error of the library.
    proxy = {"HTTP_PROXY": dead, "HF_ENDPOINT": "http://hub.invalid"}
    assert f"--model {MODEL}: it cannot be fetched: " in refused(hub, tmp_path, MODEL, **proxy)


# --- a data set ---------------------------------------------------------------------------


def fetch_as_member(folder: Path) -> Path:
    """Fetch what the manifest of the creator names. Raises Refused."""
    environment = read_manifest("mine", Paths(folder / "home")).environment
    assert environment
    paths = Paths(folder / "member" / "home").swarm("mine")
    return Path(SwarmEnvironment(environment, paths).fetch_data())


def test_create_pins_a_data_set_at_a_commit_and_members_get_its_very_bytes(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.repos[f"datasets/{DATA}"]
    commit = repo.commit(TEXTS, tag="v1")
    repo.commit(changed(TEXTS, "a.jsonl"))
    created = of_data(hub, tmp_path, f"{DATA}@v1")
    assert created.code == 0, created.out + created.err
    manifest = read_manifest("mine", Paths(tmp_path / "home"))
    assert manifest.environment
    data = manifest.environment.data
    assert data
    assert (data.kind, data.source, data.revision) == ("hub", DATA, commit)
    wanted = {"a.jsonl", "more/b.txt"}
    assert data.size_bytes == sum(len(TEXTS[name]) for name in wanted)
    assert data.sha256
    (said,) = created.json["installs"]
    assert said.startswith(f"data: {DATA} of huggingface.co, revision {commit}, ")
    assert said.endswith(f", SHA-256 {data.sha256.hex()}")
    assert not [one for one in hub.requests if one.endswith((".py", ".md"))]

    # A member has a cache in which another program left more of the repository.
    left = tmp_path / "member" / "hf" / "hub" / "datasets--me--texts" / "snapshots" / commit
    left.mkdir(parents=True)
    (left / "README.md").write_bytes(TEXTS["README.md"])
    be(monkeypatch, machine(hub, tmp_path / "member"))
    folder = fetch_as_member(tmp_path)
    found = {path for path in folder.rglob("*") if path.is_file()}
    assert {str(path.relative_to(folder)) for path in found} == wanted
    assert all(path.read_bytes() == TEXTS[str(path.relative_to(folder))] for path in found)
    # The very same fingerprint as the creator's, so that no member is told of other data.
    config = json.dumps(manifest.task_config)
    described = run_offline(
        "describe", "--task=bytes-lm", f"--config={config}", f"--data-dir={folder}"
    )
    assert described["data_hash"] == manifest.data_hash.hex()


def test_a_changed_byte_of_a_data_set_is_refused_and_named(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.repos[f"datasets/{DATA}"]
    commit = repo.commit(TEXTS)
    created = of_data(hub, tmp_path, DATA)
    assert created.code == 0, created.out + created.err
    repo.earlier[commit] = changed(TEXTS, "more/b.txt")
    be(monkeypatch, machine(hub, tmp_path / "member"))
    with pytest.raises(Refused) as caught:
        fetch_as_member(tmp_path)
    said = str(caught.value)
    wanted = f"data set {DATA} at {commit} is not the data that the swarm's creator signed"
    assert said.startswith(wanted)
    assert str(tmp_path / "member" / "hf") in said  # where the copy is that has to go


@pytest.mark.parametrize(
    ("said", "files", "words"),
    [
        ("me/none", TEXTS, "has none of that name, or it is private"),
        (f"{DATA}@v9", TEXTS, "but no revision v9"),
        (DATA, {"README.md": b"soon"}, "expected files of it that are *.txt"),
    ],
)
def test_what_is_no_data_set_is_refused(
    hub: FakeHub, tmp_path: Path, said: str, files: dict[str, bytes], words: str
) -> None:
    hub.repos[f"datasets/{DATA}"].commit(files)
    answer = of_data(hub, tmp_path, said)
    assert answer.code == 2
    assert f"data set {said.partition('@')[0]}: " in answer.json["error"]
    assert words in answer.json["error"]


# --- a data set that is streamed ------------------------------------------------------------

needs_datasets = pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets")
TINY_LLAMA = ("dim=16", "layers=1", "heads=2", "head_dim=8", "hidden=32", "context=16", "batch=2")


def lines(word: str) -> dict[str, bytes]:
    """Return the files of a data set of which each document is of that word."""
    record = json.dumps({"text": 9 * f"{word} "}) + "\n"
    return {"README.md": b"# Texts\n", "train.jsonl": 40 * record.encode()}


def of_stream(hub: FakeHub, folder: Path, said: str, **more: str) -> Answer:
    settings = [part for size in TINY_LLAMA for part in ("--set", size)]
    options = ("--task", "llama-lm", "--set", f"dataset={said}", *settings)
    return create(folder, machine(hub, folder, **more), *options)


def elsewhere(variables: dict[str, str], folder: Path, program: str, *arguments: str) -> list[str]:
    """Return the lines of a program that has this hub, as a member or a creator has."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


PINNED = """
import sys
from swarmnode.tasks.hub_files import pinned
for name in sys.argv[1:]:
    print(pinned({"dataset": name}, None)["dataset"])
"""
BEGUN = """
import sys
from swarmnode.tasks.base import DataError
from swarmnode.tasks.documents import open_documents
for name in sys.argv[1:]:
    try:
        found = open_documents("", dataset=name, subset="", split="train", text_field="text")
        print(next(found.first(1))[:3])
    except DataError as error:
        print(error)
"""


@needs_datasets
def test_a_streamed_data_set_stays_at_the_commit_that_create_found(
    hub: FakeHub, tmp_path: Path
) -> None:
    repo = hub.repos[f"datasets/{DATA}"]
    tagged, newest = repo.commit(lines("old"), tag="v1"), repo.commit(lines("mid"))
    created = of_stream(hub, tmp_path, f"{DATA}@v1")
    assert created.code == 0, created.out + created.err
    known = created.json["config"]["dataset"]
    assert known == read_manifest("mine", Paths(tmp_path / "home")).task_config["dataset"]
    asked = elsewhere(machine(hub, tmp_path), tmp_path, PINNED, DATA, f"{DATA}@v1", known)
    assert [known, *asked] == [f"{DATA}@{each}" for each in (tagged, newest, tagged, tagged)]

    repo.commit(lines("new"))
    member = machine(hub, tmp_path / "member")
    assert elsewhere(member, tmp_path, BEGUN, known, asked[0]) == ["old", "mid"]


@needs_datasets
def test_a_member_never_streams_whatever_is_the_newest(hub: FakeHub, tmp_path: Path) -> None:
    repo = hub.repos[f"datasets/{DATA}"]
    commit = repo.commit(lines("old"))
    member, other = machine(hub, tmp_path / "member"), "0" * 40
    # What another program has left in the library's cache, of another commit, is not taken for it.
    left = tmp_path / "member" / "hf" / "datasets" / "me___texts" / "default" / "0.0.0" / other
    left.mkdir(parents=True)
    about = {"builder_name": "json", "config_name": "default", "version": {"version_str": "0.0.0"}}
    (left / "dataset_info.json").write_text(json.dumps(about))
    named = (DATA, f"{DATA}@main", f"{DATA}@{commit}")
    said = elsewhere({**member, "HF_HUB_OFFLINE": "1"}, tmp_path, BEGUN, *named)
    assert all(
        each.startswith(f"data set {DATA}: expected its commit as well") for each in said[:2]
    )
    assert said[2].endswith("the hub cannot be reached, and the cache here has another commit")


def test_a_name_of_a_data_set_never_means_a_folder_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / DATA
    private.mkdir(parents=True)
    (private / "letters.jsonl").write_bytes(lines("sec")["train.jsonl"])
    for named in (str(private), f"../{DATA}", f"./{DATA}", f"{DATA}/letters.jsonl", "texts"):
        with pytest.raises(ConfigError, match="dataset"):
            LlamaLM({"dataset": named})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", ModuleType("datasets"))
    with pytest.raises(DataError, match=f"{DATA}: there is a file of that name in {tmp_path}"):
        LlamaLM({"dataset": f"{DATA}@{40 * 'a'}"}).data_hash()


def test_create_says_why_no_commit_is_known(hub: FakeHub, tmp_path: Path) -> None:
    answer = of_stream(hub, tmp_path, "me/none")
    assert answer.code == 2
    assert "data set me/none: its commit cannot be asked for: " in answer.json["error"]
    assert "has none of that name, or it is private" in answer.json["error"]
