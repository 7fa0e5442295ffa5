"""The texts that nothing was tuned on: they are on this machine, and twice the same."""

from pathlib import Path

from swarmnode.bench.learning.corpora import describe, read_corpora, write_corpora
from swarmnode.tasks.text import load_corpus


def test_there_are_two_and_they_are_of_two_kinds() -> None:
    texts = read_corpora()
    assert list(texts) == ["code", "english"]
    assert all(100_000 <= len(text) <= 600_000 for text in texts.values())
    code, english = texts.values()
    assert code.count(b"    def ") > 20 * english.count(b"    def ")


def test_a_task_reads_them_as_they_are(tmp_path: Path) -> None:
    folders = write_corpora(tmp_path)
    assert {name: load_corpus(str(path)) for name, path in folders.items()} == read_corpora()


def test_none_of_it_is_what_settings_were_tuned_on() -> None:
    tuned_on = load_corpus("")
    middle = len(tuned_on) // 2
    assert all(tuned_on[middle : middle + 200] not in text for text in read_corpora().values())


def test_they_are_named_with_their_hashes() -> None:
    assert describe() == describe()
    assert "SHA-256 code " in describe()
