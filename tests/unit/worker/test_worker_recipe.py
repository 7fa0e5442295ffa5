"""The recipe at work: learning rate, clipping, accumulation, weight decay, the mean of weights."""

import dataclasses

import pytest
import torch

from swarmnode.ipc.control import Progress, SwarmProgress
from swarmnode.ipc.lr_schedule import Horizon, lr_factor
from swarmnode.tasks.synthetic import Synthetic
from swarmnode.wire.recipe import Recipe
from swarmnode.worker.model.state import build_state
from swarmnode.worker.snapshots.restore import export_weights, load_snapshot
from swarmnode.worker.snapshots.tensorfile import read_tensors
from swarmnode.worker.training.progress import SwarmCount
from tests.kits.worker_kit import Rig


def told(others=0.0, per_s=0.0, lost=0, members=1.0, target=0, resumed=0):
    return SwarmProgress(
        others, per_s, int(others), lost, members, target_tokens=target, resumed_tokens=resumed
    )


def state_with(recipe):
    return build_state(Synthetic({"dim": 8}), swarm_seed=0, device="cpu", recipe=recipe)


@pytest.fixture
def rig(tmp_path):
    rigs = []

    def make(recipe, name="a", task_type=Synthetic):
        rigs.append(Rig(tmp_path / name, recipe=recipe, task_type=task_type))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def test_the_learning_rate_is_that_of_the_swarms_progress(rig):
    recipe = Recipe(schedule="cosine", members_exponent=0.5, members_max=16)
    rig = rig(recipe)
    (group,) = rig.state.optimizer.param_groups
    base, target = group["lr"], 100 * rig.state.task.tokens_per_batch
    for others, members in ((0, 1), (target / 4, 4), (target / 2, 9)):
        rig.tell(told(others, members=members, target=target))
        before = rig.state.tokens
        rig.step(1)
        expected = lr_factor(recipe, others + before, Horizon(target), members)
        assert group["lr"] == pytest.approx(base * expected)
    assert group["lr"] > base  # nine members together take larger steps


def test_no_step_is_taken_before_it_is_known_where_the_swarm_is(rig):
    waiting, other = rig(Recipe()), rig(None, "b")
    assert waiting.loop.is_resting
    assert not other.loop.is_resting
    waiting.tell(told())
    assert not waiting.loop.is_resting


def test_others_are_counted_on_and_progress_never_falls():
    now = [0.0]
    count = SwarmCount(lambda: now[0])
    count.tell(told(1000.0, 100.0, lost=50))
    assert count.tokens(0) == 1050  # others know of 50 that a crash has taken from us
    now[0] = 2.0
    assert count.tokens(70) == 1320
    count.tell(told(1100.0, 100.0, lost=50))  # they were slower than we thought
    assert count.tokens(70) == 1320
    now[0] = 4.0
    assert count.tokens(90) == 1440
    now[0] = 1e6
    assert count.tokens(90) < 10_000  # the daemon is silent: no end of the training follows


def test_who_comes_counts_more_with_each_token_of_the_swarm():
    count = SwarmCount(lambda: 0.0)
    count.tell(SwarmProgress(1000.0, 0.0, 1000, 0, 2.5, at_tokens=1000.0, members_per_token=0.01))
    assert [count.members(tokens) for tokens in (900, 1000, 1020, 9000)] == [2.5, 2.5, 2.7, 3.5]


def test_gradients_are_clipped_and_weight_decay_is_the_recipes():
    free, clipped = state_with(None), state_with(Recipe(clip_norm=0.01, weight_decay=0.0))
    batch = next(free.batches(0))
    free.backward(batch)
    clipped.backward(batch)
    assert float(free.arena.gradient().norm()) > 0.02
    assert float(clipped.arena.gradient().norm()) == pytest.approx(0.01, rel=1e-3)
    assert clipped.optimizer.param_groups[0]["weight_decay"] == 0.0


def test_a_step_accumulates_the_gradients_of_several_batches(rig):
    rig = rig(Recipe(batches_per_step=3))
    rig.tell(told())
    batches = rig.loop.next_batches(rig.state.batches(0))
    assert len(batches) == 3
    other = state_with(None)
    gradients = []
    for batch in batches:
        other.backward(batch)
        gradients.append(other.arena.gradient())
        other.optimizer.zero_grad(set_to_none=True)
    rig.state.backward(*batches)
    assert torch.allclose(rig.state.arena.gradient(), torch.stack(gradients).mean(0), atol=1e-6)
    rig.loop.train_step(*batches)
    assert (rig.state.step, rig.state.tokens) == (1, 3 * rig.state.task.tokens_per_batch)


def test_the_mean_of_the_weights_is_exported_and_survives_a_restart(rig, tmp_path):
    recipe = Recipe(ema_share=0.2)
    first = rig(recipe)
    first.tell(told())
    first.step(20)
    mean = first.state.applied.ema.clone()
    assert not torch.allclose(mean, first.x, atol=1e-4)
    path = first.store.save(first.state, first.strategy)

    again = rig(recipe, "b")
    second = again.state
    again.store.close()
    first.store.close()
    load_snapshot(path, second, again.strategy)
    assert torch.equal(second.applied.ema, mean)
    tensors, about = read_tensors(path)
    exported, _ = read_tensors(export_weights(tensors, about, tmp_path / "export"))
    views = second.arena.views_of(mean)
    assert all(torch.equal(exported[name], views[name]) for name in views)
    assert not [name for name in exported if "/" in name]


def test_the_loss_that_a_node_shows_is_of_what_it_exports(rig):
    with_mean, plain = rig(Recipe(ema_share=0.2)), rig(None, "b")
    with_mean.tell(told())
    for each in (with_mean, plain):
        each.step(3 * Synthetic.eval_every_steps)
    state = with_mean.state
    mean, own = state.applied.ema, state.arena.flat.clone()
    assert not torch.equal(mean, own)
    assert with_mean.loop.reporter.eval_loss == state.evaluate_at(mean) != state.evaluate()
    assert torch.equal(state.arena.flat, own), "training goes on from its own"
    assert plain.loop.reporter.eval_loss == plain.state.evaluate()


def test_a_snapshot_of_before_the_recipe_begins_the_mean_anew(rig):
    plain = rig(None)
    plain.step(3)
    path = plain.store.save(plain.state, plain.strategy)
    with_mean = rig(Recipe(ema_share=0.2), "b")
    load_snapshot(path, with_mean.state, with_mean.strategy)
    assert torch.equal(with_mean.state.applied.ema, plain.x)


def test_at_the_target_the_last_words_are_said_once_and_an_extension_goes_on(rig):
    rig = rig(Recipe())
    batch_tokens = rig.state.task.tokens_per_batch
    rig.tell(told(target=10 * batch_tokens))
    rig.step(3)
    assert not rig.loop.finished
    rig.received()
    rig.tell(told(7.0 * batch_tokens, target=10 * batch_tokens))  # the others took the last step
    rig.loop.see_end()
    rig.loop.see_end()
    rig.loop.keep_books()
    assert rig.loop.finished
    assert rig.loop.is_resting
    (progress,) = rig.received(Progress)
    assert progress.finished
    assert progress.at_target
    rig.tell(told(7.0 * batch_tokens, target=20 * batch_tokens))
    assert not rig.loop.is_resting


def test_the_task_sees_the_progress(rig):
    seen = []

    class Seeing(Synthetic):
        def progressed(self, *args):
            seen.append(args)

    rig = rig(Recipe(), task_type=Seeing)
    rig.tell(told(500.0, target=10**6))
    rig.step(2)
    assert seen == [(500.0, 10**6), (500.0 + rig.state.task.tokens_per_batch, 10**6)]


def test_a_recipe_is_no_part_of_a_state_without_one():
    state = state_with(None)
    before = dataclasses.replace(state).optimizer.param_groups[0]["lr"]
    state.applied.set_lr(1e9, Horizon(1), 64)
    assert state.optimizer.param_groups[0]["lr"] == before
    assert state.applied.exported is state.arena.flat


def test_other_code_that_changes_the_learning_rate_is_noticed():
    state = state_with(Recipe(warmup_tokens=1000))
    (group,) = state.optimizer.param_groups
    asked_for = group["lr"]
    state.applied.set_lr(500, Horizon(), 1)
    assert not state.applied.is_fought
    group["lr"] = asked_for  # as a scheduler does that was taken over
    assert not state.applied.is_fought
    group["lr"] = 0.9 * asked_for
    assert state.applied.is_fought
