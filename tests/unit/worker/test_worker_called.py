"""A node that others call to a mean comes with the step it is at, and answers at once."""

import pytest

from swarmnode.ipc.control import (
    Called,
    Pause,
    PostedIntent,
    Resume,
    SlotReady,
    Stop,
    TakeView,
)
from swarmnode.strategies.diloco import DiLoCo
from tests.kits.worker_kit import Rig

_STEP_S = 100.0  # of which the worker waits a share for the question; here it is always there


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path, strategy=DiLoCo, settings={"every": 16})
    rig.loop.intents.offer_answers(rig.state)
    (rig.answer,) = rig.received(PostedIntent)
    yield rig
    rig.close()


def ask_next(rig):
    """Ask for the view of the next intent, which has no number yet."""
    number = rig.answer.number + 1
    rig.send(TakeView(ticket=1, number=number, peer=None, round=0, base_version=b""))


def end_step(rig, seconds=_STEP_S):
    """End a step that took so long."""
    rig.loop.after_step(0.5, seconds)


def test_a_call_during_a_step_makes_the_mean_due_at_its_end(rig):
    rig.step()
    assert rig.received(PostedIntent) == []
    rig.send(Called(lineage=0))
    rig.step()
    assert rig.intent().kind == "group"


def test_what_came_beside_the_call_is_done_where_all_else_is(rig):
    rig.step()
    rig.send(Pause(), Called(lineage=3))  # of another lineage: nothing is due
    rig.step()
    assert not rig.loop.paused
    rig.loop.listen()
    assert rig.loop.paused


def test_only_a_node_that_rested_asks_for_what_is_further(rig):
    rig.loop.obey(Resume())
    rig.step()
    assert rig.received(PostedIntent) == []
    rig.loop.obey(Pause())
    rig.loop.obey(Pause())
    rig.loop.obey(Resume())
    rig.step()
    assert [intent.kind for intent in rig.received(PostedIntent)] == ["pull"]


def test_a_called_node_waits_for_the_question_and_lends_its_view_before_the_next_step(rig):
    rig.send(Called(lineage=0))
    ask_next(rig)
    end_step(rig)
    assert rig.state.step == 0
    intent, ready = rig.received(PostedIntent | SlotReady)
    assert (intent.kind, ready.ticket) == ("group", 1)


def test_a_node_that_is_due_by_itself_does_not_wait(rig):
    rig.step(15)
    ask_next(rig)
    rig.step()
    assert rig.intent().kind == "group"
    assert rig.received(SlotReady) == []


def test_it_waits_once_a_call(rig):
    rig.send(Called(lineage=0))
    end_step(rig, seconds=0.0)  # no time for a question
    assert rig.intent().kind == "group"
    ask_next(rig)
    end_step(rig)
    assert rig.received(SlotReady) == []


def test_who_is_told_to_stop_waits_no_longer(rig):
    rig.send(Called(lineage=0), Stop())
    end_step(rig, seconds=1e6)  # or the test hangs
    assert rig.loop.stopping
    assert rig.intent().kind == "group"


def test_the_books_of_a_step_are_kept_when_the_daemon_dies_in_it(rig):
    rig.socket.close()
    rig.step()
    assert rig.state.step == 1
    assert rig.loop.counted_tokens == rig.state.tokens
