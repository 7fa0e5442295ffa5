"""A model on the hub: every byte of it, in one commit, and one sentence where that cannot be."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from swarmnode.config import Paths
from swarmnode.errors import ConfigError, Refused, SwarmNodeError, TransportError
from swarmnode.ipc.spawn import worker_command
from swarmnode.worker.snapshots.atoms import MODEL
from tests.kits.daemon_kit import DEADLINE_S, Answer, environment, free_port, swarmnode
from tests.kits.fake_hub import TOKEN, FakeHub, Repo, serve
from tests.kits.hub_kit import CONTEXT, make_llama

pytestmark = [
    pytest.mark.skipif(find_spec("huggingface_hub") is None, reason="needs huggingface_hub"),
    # Of peft: a former name in transformers.
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]

REPO = "me/mine"
FACTS = {"swarm": "demo", "format": "transformers"}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serve() as hub:
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What an export leaves, with weights that are large beside what a socket holds."""
    files = {
        "README.md": b"---\ntags: [swarmnode]\n---\n# demo\n",
        "swarmnode.json": json.dumps(FACTS).encode(),
        "model.safetensors": os.urandom(3_000_000),
        "tokenizer.json": b"{}",
        "empty.txt": b"",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def repository(hub: FakeHub, name: str = REPO, token: str = TOKEN) -> Any:
    from swarmnode.cli.model.push import Repository

    return Repository(name, endpoint=hub.url, token=token)


def push(hub: FakeHub, folder: Path, *, private: bool = False, **more: str) -> dict[str, Any]:
    found = repository(hub, **more)
    found.look("demo", "transformers", wants_private=private)
    found.make(is_private=private)
    done: dict[str, Any] = found.publish(folder, "step 3")
    return done


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("part_bytes", [0, 1_000_000])
def test_every_byte_arrives_in_one_commit(hub: FakeHub, folder: Path, part_bytes: int) -> None:
    hub.part_bytes = part_bytes
    done = push(hub, folder)
    repo = hub.repos[REPO]
    assert repo.files == {".gitattributes": b"*.gguf lfs\n", **files_of(folder)}
    assert repo.commits == ["step 3"]
    assert not repo.is_private
    assert done["url"] == f"{hub.url}/{REPO}"
    assert done["files"] == {name: len(data) for name, data in files_of(folder).items()}


def test_a_new_repository_is_private_if_asked(hub: FakeHub, folder: Path) -> None:
    push(hub, folder, private=True)
    assert hub.repos[REPO].is_private
    push(hub, folder, private=True)  # again, and it is there already


def test_a_public_repository_is_never_taken_for_a_private_one(hub: FakeHub, folder: Path) -> None:
    hub.repos[REPO] = Repo()
    with pytest.raises(Refused, match="this one is public"):
        push(hub, folder, private=True)
    assert not hub.repos[REPO].commits


def test_a_later_push_leaves_no_weights_of_an_earlier_one(hub: FakeHub, folder: Path) -> None:
    push(hub, folder)
    hub.repos[REPO].files |= {"model-00002-of-00002.safetensors": b"old", "notes.txt": b"mine"}
    (folder / "model.safetensors").write_bytes(b"new")
    push(hub, folder)
    assert set(hub.repos[REPO].files) == {".gitattributes", "notes.txt", *files_of(folder)}
    assert hub.repos[REPO].files["model.safetensors"] == b"new"
    assert hub.repos[REPO].commits == ["step 3", "step 3"]


@pytest.mark.parametrize(
    "files",
    [
        {"model.safetensors": b"of another"},
        {"swarmnode.json": json.dumps(FACTS | {"swarm": "other"}).encode()},
        {"swarmnode.json": json.dumps(FACTS | {"format": "gguf"}).encode()},
        {"swarmnode.json": b"[]"},
        {"swarmnode.json": b"no JSON", "README.md": b""},
        {"swarmnode.json": b" " * (1024 * 1024) + json.dumps(FACTS).encode()},
    ],
)
def test_what_others_published_is_never_replaced(
    hub: FakeHub, folder: Path, files: dict[str, bytes]
) -> None:
    hub.repos[REPO] = Repo(files=dict(files))
    with pytest.raises(Refused, match="it holds other files: choose another"):
        push(hub, folder)
    assert hub.repos[REPO].files == files


def test_a_repository_with_nothing_but_a_readme_is_an_empty_one(hub: FakeHub, folder: Path) -> None:
    hub.repos[REPO] = Repo(files={"README.md": b"soon", ".gitattributes": b""})
    push(hub, folder)
    assert hub.repos[REPO].files["README.md"] != b"soon"


def refused(hub: FakeHub, folder: Path, **more: str) -> SwarmNodeError:
    with pytest.raises(SwarmNodeError) as found:
        push(hub, folder, **more)
    words = str(found.value)
    assert "\n" not in words
    assert TOKEN not in words
    assert not any(repo.commits for repo in hub.repos.values())
    return found.value


def test_a_token_that_is_none_is_said_before_anything_else(hub: FakeHub, folder: Path) -> None:
    error = refused(hub, folder, token="hf_other")
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"{hub.url} does not know this token (401): make one")
    assert hub.requests == ["GET /api/whoami-v2"]


def test_a_place_of_others_is_refused(hub: FakeHub, folder: Path) -> None:
    error = refused(hub, folder, name="others/mine")
    assert isinstance(error, Refused)
    assert str(error).startswith("others/mine: this token may not write there (403)")


@pytest.mark.parametrize(
    ("where", "status", "words"),
    [
        ("/commit/", 404, "knows no such owner or repository (404)"),
        ("/commit/", 403, "may not write there (403)"),
        ("/storage/", 403, "may not write there (403)"),
        ("/objects/batch", 413, f"answered with status 413: {TOKEN[:2]} is too much"),
        ("/api/validate-yaml", 400, "no good answer: Invalid metadata in README.md"),
    ],
)
def test_where_the_hub_says_no_nothing_is_published(
    hub: FakeHub, folder: Path, where: str, status: int, words: str
) -> None:
    hub.refusals[where] = (status, f"{TOKEN[:2]} is too much" if status == 413 else "no")
    assert words in str(refused(hub, folder))


def test_the_hub_cannot_have_us_print_the_token(hub: FakeHub, folder: Path) -> None:
    hub.refusals["/objects/batch"] = (413, f"too much for {TOKEN}")
    assert "too much for …" in str(refused(hub, folder))


def test_where_no_hub_is_it_says_so(folder: Path) -> None:
    gone = FakeHub(url=f"http://127.0.0.1:{free_port()}")
    error = refused(gone, folder)
    assert isinstance(error, TransportError)
    assert f"{gone.url} cannot be reached: " in str(error)
    assert "nothing was published, try again" in str(error)


def test_an_upload_that_was_cut_off_once_comes_whole(hub: FakeHub, folder: Path) -> None:
    hub.cut = 1
    push(hub, folder)
    assert hub.repos[REPO].files["model.safetensors"] == files_of(folder)["model.safetensors"]
    assert sum(one.startswith("PUT") for one in hub.requests) == 2


def test_an_upload_that_never_comes_through_leaves_what_was_there(
    hub: FakeHub, folder: Path
) -> None:
    push(hub, folder)
    before = dict(hub.repos[REPO].files)
    (folder / "model.safetensors").write_bytes(os.urandom(3_000_000))
    hub.cut = 1_000
    with pytest.raises(TransportError, match=r"cannot be reached: .* nothing was published"):
        push(hub, folder)
    assert hub.repos[REPO].files == before


@pytest.mark.parametrize("name", ["mine", "a/b/c", "../mine", "me/", "https://h/me/mine"])
def test_a_name_is_owner_and_name(hub: FakeHub, name: str) -> None:
    with pytest.raises(ConfigError, match="expected OWNER/NAME on the hub, got"):
        repository(hub, name)
    assert not hub.requests


# --- the verb -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that created a swarm and trained it for a few steps."""
    home = tmp_path_factory.mktemp("trained") / "home"
    sizes = ("dim=16", "layers=1", "heads=2", "context=16", "batch=2", "probe_windows=4")
    settings = [part for setting in sizes for part in ("--set", setting)]
    create = ("create", "demo", "--task", "bytes-lm", *settings, "--advertise", "h:1", "--json")
    created = swarmnode(home, *create)
    assert created.code == 0, created.err
    run_steps(home, "bytes-lm", created.json["config"])
    return home


def run_steps(home: Path, task: str, config: dict[str, Any], *places: Path) -> None:
    """Train for a few steps, and keep a snapshot; ``places``: of data, and of a model."""
    script = (
        "import json, sys; from pathlib import Path\n"
        "from swarmnode.worker.model.state import build_state, build_task\n"
        "from swarmnode.worker.snapshots.snapshot import SnapshotStore\n"
        "from swarmnode.strategies.registry import build_strategy\n"
        "folder, name, config, data, model = sys.argv[1:]\n"
        "task = build_task(name, json.loads(config), data, model_dir=model)\n"
        "state = build_state(task, swarm_seed=0, device='cpu')\n"
        "batches = state.batches(0)\n"
        "for _ in range(3): state.take_step(next(batches))\n"
        "strategy = build_strategy('pair-average', {}, state.arena.flat)\n"
        "SnapshotStore(Path(folder)).save(state, strategy)\n"
    )
    data, model = places or ("", "")
    snapshots = Paths(home).swarm("demo").snapshots
    command = [worker_command("x")[0], "-c", script, snapshots, task, json.dumps(config)]
    subprocess.run([*map(str, command), str(data), str(model)], env=environment(home), check=True)


OURS = ("--format", "swarmnode")


def variables(hub: FakeHub, home: Path, token: str = TOKEN) -> dict[str, str]:
    """Return those of a process that knows the hub, and no login of this machine's owner."""
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home / "hf"), "HF_TOKEN": token}
    return own | {"HF_HUB_DISABLE_XET": ""}  # the verb itself sees to it


def test_the_verb_publishes_an_export_with_its_card(home: Path, hub: FakeHub) -> None:
    answer = swarmnode(home, "push", REPO, *OURS, "--json", env=variables(hub, home))
    assert answer.code == 0, answer.err + answer.out
    files = hub.repos[REPO].files
    assert set(files) == {".gitattributes", "README.md", "config.json", "model.safetensors"}
    facts = answer.json
    assert facts["url"] == f"{hub.url}/{REPO}"
    assert facts["files"]["model.safetensors"] == len(files["model.safetensors"])
    card = files["README.md"].decode()
    assert re.search(r"^- recipe: .*cosine", card, re.MULTILINE)
    assert "| this node | `` | 0 | 0 |" in card or "`this node`" in card
    assert f"`swarmnode generate {REPO} " in card
    # Again, over its own; and said for people.
    answer = swarmnode(home, "push", REPO, *OURS, env=variables(hub, home))
    assert answer.code == 0, answer.err
    assert f": {hub.url}/{REPO}" in answer.out
    assert len(hub.repos[REPO].commits) == 2
    assert_token_is_secret(answer, home)


def test_the_verb_wants_a_token(home: Path, hub: FakeHub) -> None:
    answer = swarmnode(home, "push", REPO, *OURS, env=variables(hub, home, ""))
    assert answer.code == 2
    assert f"no token for {hub.url}: put one that may write into HF_TOKEN" in answer.line
    assert not hub.requests


def test_the_verb_takes_the_token_of_a_login(home: Path, hub: FakeHub) -> None:
    (home / "hf").mkdir(exist_ok=True)
    (home / "hf" / "token").write_text("hf_old")
    answer = swarmnode(home, "push", REPO, *OURS, "--json", env=variables(hub, home, ""))
    assert answer.code == answer.json["exit_code"] == 2
    assert "does not know this token (401)" in answer.json["error"]
    (home / "hf" / "token").unlink()


def test_a_push_that_is_ended_midway_leaves_nothing_behind(home: Path, hub: FakeHub) -> None:
    import threading

    hub.stalled = threading.Event()
    before = {path.name for path in home.iterdir()}
    process = subprocess.Popen(
        worker_command("swarmnode", "push", REPO, *OURS),
        env=environment(home, variables(hub, home)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert hub.stalled.wait(DEADLINE_S)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=DEADLINE_S)
    answer = Answer(process.returncode, out, err)
    assert answer.code == 1
    assert answer.line == "swarmnode: stopped by SIGTERM"
    assert hub.repos[REPO].commits == []
    assert {path.name for path in home.iterdir()} - {"hf"} == before - {"hf"}
    assert_token_is_secret(answer, home)


# --- a model of the hub, out again ---------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that tunes adapters for a Llama, beside a folder ``base`` with that model."""
    folder = tmp_path_factory.mktemp("tuned")
    home, base, texts = folder / "home", make_llama(folder / "base"), folder / "texts"
    texts.mkdir()
    line = "the cat and the dog and the tree and the end\n"
    (texts / "text.jsonl").write_text(400 * (json.dumps({"text": 8 * line}) + "\n"))
    sizes = (f"context={CONTEXT}", "batch=4", "lr=0.01")
    settings = [part for size in sizes for part in ("--set", size)]
    places = ("--model", str(base), "--data", str(texts), "--advertise", "h:1")
    created = swarmnode(home, "create", "demo", *places, "--lora", "r=2", *settings, "--json")
    assert created.code == 0, created.err + created.out
    run_steps(home, "hub-lm", created.json["config"], texts, base)
    return home


needs_hub = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("transformers", "peft", "gguf")),
    reason="needs transformers, peft and gguf",
)
TOKENS = [[5, 70, 12, 9, 101, 44, 3, 8]]


def tuned_logits(home: Path) -> Any:
    """Return what the newest snapshot makes of TOKENS, by our own code."""
    import torch
    from safetensors.torch import load_file

    from swarmnode.store.swarms import read_manifest
    from swarmnode.tensor.snapshot_format import find_snapshots
    from swarmnode.worker.model.state import build_state, build_task

    config = read_manifest("demo", Paths(home)).task_config
    task = build_task("hub-lm", config, model_dir=str(home.parent / "base"))
    model = build_state(task, swarm_seed=0, device="cpu").model
    ((_, newest), *_) = find_snapshots(Paths(home).swarm("demo").snapshots)
    found = load_file(newest)
    named = {n.removeprefix(MODEL): t for n, t in found.items() if n.startswith(MODEL)}
    assert any("lora_B" in name and tensor.any() for name, tensor in named.items())
    assert not model.load_state_dict(named, strict=False).unexpected_keys
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor(TOKENS)).logits


def assert_logits(model: Any, home: Path) -> None:
    import torch

    with torch.no_grad():
        found = model.eval()(input_ids=torch.tensor(TOKENS)).logits
    torch.testing.assert_close(found, tuned_logits(home), atol=1e-5, rtol=0)


def fetched(hub: FakeHub, folder: Path) -> Path:
    """Write down what the repository shows."""
    folder.mkdir()
    for name, data in hub.repos[REPO].files.items():
        (folder / name).write_bytes(data)
    return folder


@needs_hub
def test_a_model_of_the_hub_is_pushed_as_transformers_reads_it(
    tuned: Path, hub: FakeHub, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    answer = swarmnode(tuned, "push", REPO, "--json", env=variables(hub, tuned))
    assert answer.code == 0, answer.err + answer.out
    assert not hub.repos[REPO].is_private
    folder = fetched(hub, tmp_path / "there")
    assert_logits(AutoModelForCausalLM.from_pretrained(folder), tuned)
    assert AutoTokenizer.from_pretrained(folder)("the cat").input_ids
    assert json.loads((folder / "swarmnode.json").read_text())["format"] == "transformers"
    assert_token_is_secret(answer, tuned)


@needs_hub
def test_adapters_alone_are_pushed_to_a_private_repository(
    tuned: Path, hub: FakeHub, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    command = ("push", REPO, "--adapter", "--private", "--json")
    answer = swarmnode(tuned, *command, env=variables(hub, tuned))
    assert answer.code == 0, answer.err + answer.out
    assert hub.repos[REPO].is_private
    folder = fetched(hub, tmp_path / "there")
    assert "model.safetensors" not in hub.repos[REPO].files
    plain = AutoModelForCausalLM.from_pretrained(tuned.parent / "base")
    assert_logits(PeftModel.from_pretrained(plain, folder), tuned)
    # Another format there is another's: it is not written over.
    refused = swarmnode(tuned, "push", REPO, env=variables(hub, tuned))
    assert refused.code == 4
    assert "in the same format" in refused.line


@needs_hub
def test_the_verb_exports_one_file_for_llama_cpp(tuned: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    out = tmp_path / "out"
    answer = swarmnode(tuned, "export", str(out), "--format", "gguf", "--json")
    assert answer.code == 0, answer.err + answer.out
    assert {path.name for path in out.iterdir()} >= {"model.gguf", "README.md", "swarmnode.json"}
    assert not list(out.glob("*.safetensors")), "what it is made of goes away again"
    assert answer.json["format"] == "gguf"
    config = AutoConfig.from_pretrained(tuned.parent / "base")
    read = AutoModelForCausalLM.from_pretrained(out, gguf_file="model.gguf", config=config)
    assert_logits(read, tuned)


def assert_token_is_secret(answer: Answer, home: Path) -> None:
    assert TOKEN not in answer.out + answer.err
    for path in home.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
