"""The texts that nothing was tuned on: they are on this machine, and twice the same."""

from pathlib import Path

import pytest

from swarmnode.bench.learning.corpora import (
    describe,
    describe_untuned,
    read_corpora,
    read_untuned,
    write_texts,
)
from swarmnode.tasks.text import load_corpus

READERS = pytest.mark.parametrize("read", [read_corpora, read_untuned])


@READERS
def test_there_are_two_and_they_are_of_two_kinds(read) -> None:
    texts = read()
    most = 600_000 if read is read_corpora else 4_000_000  # which eight nodes read thrice
    assert all(most - 3 <= len(text) <= most for text in texts.values())
    code, prose = texts.values()
    assert code.count(b"    def ") > 10 * prose.count(b"    def ")


@READERS
def test_a_task_reads_them_as_they_are(tmp_path: Path, read) -> None:
    folders = write_texts(read(), tmp_path)
    assert {name: load_corpus(str(path)) for name, path in folders.items()} == read()


@READERS
def test_none_of_it_is_what_settings_were_tuned_on(read) -> None:
    tuned_on = load_corpus("")
    middle = len(tuned_on) // 2
    assert all(tuned_on[middle : middle + 200] not in text for text in read().values())


def test_the_default_learns_none_of_what_its_rounds_were_chosen_on() -> None:
    chosen_on = read_corpora()["english"]
    assert "english" not in read_untuned()
    middle = len(chosen_on) // 2
    assert all(chosen_on[middle : middle + 200] not in text for text in read_untuned().values())


def test_they_are_named_with_their_hashes() -> None:
    assert describe() == describe()
    assert "SHA-256 code " in describe()
    assert " and docs " in describe_untuned()
