"""Documents of a folder and of a data set that is streamed: dealt out once, the same everywhere."""

from __future__ import annotations

import itertools
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmnode.tasks.base import DataError
from swarmnode.tasks.documents import CorpusDocuments, open_documents
from swarmnode.tasks.llama_lm import LlamaLM
from swarmnode.tasks.tokens import Bytes, find_tokenizer
from swarmnode.worker.model.state import build_state

needs_pyarrow = pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow")
needs_datasets = pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets")
needs_tokenizers = pytest.mark.skipif(find_spec("tokenizers") is None, reason="needs tokenizers")

SMALL = {"dim": 16, "layers": 1, "heads": 2, "head_dim": 8, "hidden": 32, "context": 8, "batch": 4}
TEXTS = [f"document {n} says {n * n}." for n in range(40)]


def opened(folder: Path | str, **changes: str) -> Any:
    about = {"dataset": "", "subset": "", "split": "train", "text_field": "text"}
    return open_documents(str(folder), **(about | changes))


def write_jsonl(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts))


def write_parquet(path: Path, texts: list[str]) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": texts, "url": texts}), path, row_group_size=4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Text, then JSON lines, then in a folder of its own more JSON lines."""
    data = tmp_path / "data"
    (data / "c").mkdir(parents=True)
    (data / "a.txt").write_text(TEXTS[0])
    write_jsonl(data / "b.jsonl", TEXTS[1:20])
    write_jsonl(data / "c" / "d.ndjson", TEXTS[20:])
    (data / "picture.bin").write_bytes(b"\0\1\2")
    return data


def check_dealt(documents: Any, held_out: int = 3) -> None:
    """Every document is held out, or in one shard, once; also of another number of shards."""
    first = list(documents.first(held_out))
    for n_shards in (documents.n_shards, 5):
        shards = [list(documents.shard(s, n_shards, held_out)) for s in range(n_shards)]
        assert sorted(first + list(itertools.chain(*shards))) == sorted(TEXTS)
        assert shards[1] == list(documents.shard(1, n_shards, held_out))
        assert sum(map(bool, shards)) > 1


def test_a_folder_is_dealt_out(folder: Path) -> None:
    documents = opened(folder)
    assert list(documents.all()) == TEXTS
    check_dealt(documents)


@needs_pyarrow
def test_parquet_is_read(folder: Path) -> None:
    (folder / "c" / "d.ndjson").unlink()
    write_parquet(folder / "c" / "e.parquet", TEXTS[20:])
    assert list(opened(folder).all()) == TEXTS
    with pytest.raises(DataError, match=r"expected a text in the field 'body'.*got the fields"):
        list(opened(folder, text_field="body").all())
    (folder / "b.jsonl").unlink()
    with pytest.raises(DataError, match=r"e\.parquet: expected a text in the field 'body'"):
        list(opened(folder, text_field="body").all())


def test_the_hash_is_of_what_all_have(folder: Path) -> None:
    found = opened(folder).fingerprint(b"tokens")
    assert found == opened(folder).fingerprint(b"tokens") != opened(folder).fingerprint(b"others")
    write_jsonl(folder / "b.jsonl", TEXTS[1:19])
    assert opened(folder).fingerprint(b"tokens") != found


def test_what_is_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="expected a folder"):
        opened(tmp_path / "none")
    with pytest.raises(DataError, match="no file in"):
        opened(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n[1]\n')
    with pytest.raises(DataError, match=r"a\.jsonl:3: expected a text in the field 'text'"):
        list(opened(tmp_path).all())
    (tmp_path / "a.jsonl").write_text("{")
    with pytest.raises(DataError, match=r"a\.jsonl:1: expected a JSON object"):
        list(opened(tmp_path).all())
    for name in ("datasets", "pyarrow", "tokenizers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match=r"data set a/b needs the library datasets: pip install"):
        opened("", dataset="a/b")
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="needs pyarrow"):
        list(opened(tmp_path).all())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="needs the library tokenizers"):
        find_tokenizer(str(tmp_path), 300)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes a clone of a data set with so many files."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def make(n_files: int) -> Path:
        place = tmp_path / f"hub{n_files}" / "data"
        place.mkdir(parents=True)
        for n in range(n_files):
            name = f"train-{n:05}-of-{n_files:05}.parquet"
            write_parquet(place / name, TEXTS[n::n_files])
        return place.parent

    return make


@needs_datasets
@pytest.mark.filterwarnings("ignore")  # of the library's
@pytest.mark.parametrize(("n_files", "n_shards"), [(1, 16), (3, 18), (20, 20)])
def test_a_data_set_of_the_hub_is_streamed_and_dealt_out(
    hub: Any, n_files: int, n_shards: int
) -> None:
    place = hub(n_files)
    documents = opened(place, dataset="org/name")
    assert documents.n_shards == n_shards
    check_dealt(documents, held_out=2)
    assert documents.fingerprint() == opened(place, dataset="org/name").fingerprint()
    assert documents.fingerprint() != opened(place, dataset="org/else").fingerprint()


@needs_datasets
@pytest.mark.filterwarnings("ignore")  # of the library's
def test_a_data_set_that_cannot_be_had_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="data set org/name: cannot be opened at"):
        opened(tmp_path / "empty", dataset="org/name")


# --- the task ---------------------------------------------------------------------------------


def test_the_task_trains_on_a_folder(folder: Path) -> None:
    task = LlamaLM(SMALL, data_dir=str(folder))
    state = build_state(task, swarm_seed=0, device="cpu")
    again = build_state(LlamaLM(SMALL, data_dir=str(folder)), swarm_seed=0, device="cpu")
    assert torch.equal(state.arena.flat, again.arena.flat)
    batches, before = state.batches(1), state.evaluate()
    for _ in range(30):
        state.take_step(next(batches))
    assert state.evaluate() < 0.9 * before
    assert len(task.generate(state.model, "document", 20, temperature=0.0, seed=0)) >= 20
    first, same, other = (
        [batch.tolist() for batch in LlamaLM(SMALL, data_dir=str(folder)).shard_batches(*of)]
        for of in ((7, 1, 3), (7, 1, 3), (7, 2, 3))
    )
    assert first == same != other
    assert task.data_hash() == LlamaLM(SMALL, data_dir=str(folder)).data_hash()


def test_windows_are_side_by_side_and_share_an_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("held out, which is long enough")
    (tmp_path / "b.txt").write_text("0123456789abcdefghijklmnopqrstuv")
    task = LlamaLM(SMALL | {"held_out": 1}, data_dir=str(tmp_path))
    (batch,) = task.shard_batches(0, 0, 1)
    text = [*b"0123456789abcdefghijklmnopqrstuv", 0]
    assert sorted(batch.tolist()) == sorted(text[at : at + 9] for at in range(0, 25, 8))


def test_too_little_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    task = LlamaLM(SMALL, data_dir=str(tmp_path))
    with pytest.raises(DataError, match="expected documents of more than 8 tokens"):
        next(task.batches(0))
    with pytest.raises(DataError, match="expected documents of more than 8 tokens"):
        task.evaluate(task.build_model(0))


def test_without_a_folder_it_has_the_texts_of_python() -> None:
    documents = CorpusDocuments()
    held_out = list(documents.first(2))
    shards = [list(documents.shard(s, 16, 2)) for s in range(16)]
    texts = list(documents.first(10**6))
    assert sorted([*held_out, *itertools.chain(*shards)]) == sorted(texts)
    assert 100 < len(texts) < 10**6


def test_positions_turn_and_the_future_is_not_seen() -> None:
    torch.manual_seed(0)
    model = LlamaLM(SMALL).build_model(0)
    tokens = torch.randint(256, (1, 8))
    changed = tokens.clone()
    changed[0, -1] += 1
    with torch.no_grad():
        before, after = model(tokens), model(changed % 256)
        assert torch.equal(before[:, :-1], after[:, :-1])
        assert not torch.equal(before[:, -1], after[:, -1])
        swapped = model(tokens[:, [1, 0, *range(2, 8)]])
    assert not torch.allclose(before[:, -1], swapped[:, -1])


# --- tokens -----------------------------------------------------------------------------------


def test_bytes_are_tokens() -> None:
    assert Bytes().decode([*Bytes().encode("añ"), 0, 300]) == "añ"
    with pytest.raises(DataError, match="bytes are 256 tokens, the swarm's model has 64"):
        find_tokenizer("", 64)


@needs_tokenizers
def test_a_tokenizer_that_lies_beside_the_data_is_used(folder: Path) -> None:
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.train_from_iterator(
        TEXTS,
        tokenizers.trainers.WordLevelTrainer(
            vocab_size=64, special_tokens=["?", "</s>"], show_progress=False
        ),
    )
    without = LlamaLM(SMALL, data_dir=str(folder)).data_hash()
    made.save(str(folder / "tokenizer.json"))
    task = LlamaLM(SMALL | {"vocabulary": 64}, data_dir=str(folder))
    assert task.data_hash() != without
    assert int(next(task.batches(0)).max()) < 64
    tokenizer = find_tokenizer(str(folder), 64)
    assert tokenizer.end == 1
    assert "document" in tokenizer.decode(tokenizer.encode("document says"))
    with pytest.raises(DataError, match="expected at most 8 tokens"):
        find_tokenizer(str(folder), 8)
