"""Members that lie: each attack as its paper has it, and harmful where nothing is weighed."""

import copy
import json
from functools import partial

import msgspec
import pytest
import torch

from swarmnode.cli.main import main
from swarmnode.errors import ConfigError
from swarmnode.strategies.base import Intent, Kind, View
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.registry import build_strategy
from swarmnode.tasks.bytes_lm import BytesLM
from swarmnode.testing.lab import setups
from swarmnode.testing.lab.attacks.impostors import LyingMembers
from swarmnode.testing.lab.attacks.named import ATTACKS, FIXED, by_gradient, by_update, find_attacks
from swarmnode.testing.lab.attacks.runs import execute_attack, known_attacks, parse_attack
from swarmnode.testing.lab.attacks.scene import STALE_ROUNDS, Overheard, Scene
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.runs import Run, build_arena, execute, settings_of
from swarmnode.testing.lab.sides import would_take
from swarmnode.testing.lab.text import TextTask

HONEST = torch.tensor([[1.0, 2.0, 6.0], [3.0, 2.0, 0.0]])
MEAN, DEVIATION = torch.tensor([2.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 3.0])
VICTIM = torch.tensor([1.0, 1.0, 1.0])
MOVED = torch.tensor([0.1, 0.0, -0.2])


def scene(name="x", is_taken=lambda payload: True, seed=1):
    def of(values):
        return {name: torch.as_tensor(values)}

    return Scene(
        own=of([5.0, 5.0, 5.0]),
        victim=of(VICTIM),
        honest=of(HONEST),
        moved=of(MOVED),
        stale=of([0.5, 0.5, 0.5]),
        untrained=of([0.0, 0.1, 0.0]),
        ratio=4.0,
        rng=torch.Generator().manual_seed(seed),
        ascent=lambda: of([0.0, 0.3, 0.4]),
        is_taken=is_taken,
    )


# --- what each of them sends -------------------------------------------------------------

FORMULAS = {
    ("sign-flip", "x"): -MEAN,
    ("update-flip", "x"): VICTIM - 10 * MOVED,
    ("scaled", "x"): MEAN - 10 * MOVED,
    ("scaled", "delta"): -10 * MOVED,
    ("alie", "x"): MEAN - 1.5 * DEVIATION,
    ("ipm", "x"): -0.1 * MEAN,
    # W is the same for all: T − ε Σ_honest (T_k − T) / f, and there are 4 honest ones for each.
    ("dissensus", "x"): VICTIM - 1.5 * 4 * (MEAN - VICTIM),
    ("free-rider", "x"): VICTIM,
    ("mimic", "x"): HONEST[0],
    ("stale", "x"): torch.tensor([0.5, 0.5, 0.5]),
    ("init", "x"): torch.tensor([0.0, 0.1, 0.0]),
}


@pytest.mark.parametrize(("attack", "view"), FORMULAS)
def test_a_fixed_attack_is_as_its_paper_has_it(attack, view):
    sent = FIXED[attack](scene(view))
    torch.testing.assert_close(sent, {view: FORMULAS[attack, view]})


@pytest.mark.parametrize(
    ("attack", "size"), [("noise", 5 * float(MEAN.square().mean()) ** 0.5), ("huge", 1e4)]
)
def test_noise_is_as_large_as_its_attack_says(attack, size):
    drawn = [FIXED[attack](scene(seed=seed))["x"] - MEAN for seed in range(400)]
    assert float(torch.stack(drawn).std()) == pytest.approx(size, rel=0.1)


@pytest.mark.parametrize(
    ("view", "from_", "by"), [("x", VICTIM, MOVED.norm()), ("delta", 0.0, None)]
)
def test_scattered_liars_push_in_one_direction_and_are_not_alike(view, from_, by):
    drawn = [FIXED["scattered"](scene(view, seed=seed))[view] - from_ for seed in range(2000)]
    by = HONEST.norm(dim=1).median() if by is None else by
    pushed = -2 * by * 0.4 * MOVED / MOVED.norm()
    torch.testing.assert_close(torch.stack(drawn).mean(0), pushed, rtol=0.0, atol=0.1 * float(by))


def test_every_seventh_number_is_none():
    numbers = {"own": torch.ones(20)}
    found = FIXED["nan"](Scene(**{**vars(scene()), "own": numbers}))["own"]
    assert [i for i, value in enumerate(found.tolist()) if value != value] == [0, 7, 14]
    assert bool(torch.isfinite(numbers["own"]).all()), "it is a copy"


@pytest.mark.parametrize(
    ("make", "away"), [(by_update, -MOVED), (by_gradient, torch.tensor([0.0, 0.3, 0.4]))]
)
def test_an_adaptive_one_goes_as_far_as_the_guards_let_it(make, away):
    asked = []

    def is_taken(payload):
        asked.append(float((payload["x"] - VICTIM).norm()))
        return asked[-1] <= 2.0

    attack = make()
    sent = attack(scene(is_taken=is_taken))["x"] - VICTIM
    assert 2.0 * 0.85 < float(sent.norm()) <= 2.0
    torch.testing.assert_close(sent / sent.norm(), away / away.norm())
    first, asked[:] = len(asked), []
    attack(scene(is_taken=is_taken))
    assert len(asked) <= first, "it begins where the last search ended"


def test_an_adaptive_one_is_honest_where_nothing_else_is_taken():
    assert by_update()(scene(is_taken=lambda payload: False))["x"].tolist() == [5.0, 5.0, 5.0]


def test_an_adaptive_one_without_guards_takes_the_longest_step():
    sent = by_update()(scene())["x"]
    torch.testing.assert_close(sent, VICTIM - 64 * MOVED)


# --- what they hear ----------------------------------------------------------------------


def test_they_remember_a_mean_of_sixty_rounds_ago_and_no_older_one():
    heard = Overheard()
    for round_number in range(100):
        heard.note(0, round_number, {"x": torch.full((2,), float(round_number))})
    assert heard.stale["x"].tolist() == [99.0 - STALE_ROUNDS] * 2
    assert heard.honest["x"].tolist() == [[99.0, 99.0]]


@pytest.mark.parametrize(("view", "moved"), [("x", 2.0), ("delta", 5.0)])
def test_an_update_is_a_difference_of_models_or_the_payload_itself(view, moved):
    heard = Overheard()
    for round_number, values in enumerate([(1.0, 3.0), (4.0, 4.0)]):
        for number, value in enumerate(values):
            heard.note(number, round_number, {view: torch.tensor([value])})
    heard.note(2, 1, {view: torch.tensor([7.0])})  # its first: no difference yet
    assert heard.moved()[view].tolist() == [moved]


# --- where it goes out -------------------------------------------------------------------


def lying(arena, *names):
    arena.impostors = LyingMembers(arena, names, lambda x: PairAverage({"every": 4}, x))
    return arena


def pairs(n, **options):
    return setups.digits(PairAverage, {"every": 4}, n=n, **options)


def test_what_they_send_is_coded_and_what_they_go_on_from_is_honest():
    arena = lying(pairs(2, codec="Q8B64"), "sign-flip")
    honest, impostor = arena.task.x.clone()
    intent = Intent(Kind.PAIR, 1, (View("x", "", 0, honest.numel()),))
    forged = arena.impostors.forge(
        {0: (intent, {"x": honest}), 1: (intent, {"x": impostor.clone()})}
    )
    assert list(forged) == [1]
    assert not torch.equal(forged[1]["x"], -honest), "Q8B64 rounds"
    torch.testing.assert_close(forged[1]["x"], -honest, atol=0.01, rtol=0)
    arena.run(4)
    assert arena.tally.exchanges == 1
    victim, other = arena.task.x
    assert float(victim.norm()) < 0.5 * float(honest.norm()), "it met its own mirror image"
    assert float(other.norm()) > 0.9 * float(impostor.norm())


def test_they_leave_each_other_alone():
    arena = lying(pairs(4), "sign-flip", "sign-flip")
    intent = Intent(Kind.PAIR, 1, (View("x", "", 0, arena.task.x.shape[1]),))
    assert arena.impostors.forge({2: (intent, {}), 3: (intent, {})}) == {}


def test_what_no_codec_carries_arrives_nowhere():
    arena = lying(pairs(2, codec="Q8B64"), "nan")
    arena.checks_ranges = False
    arena.run(16)
    assert arena.tally.exchanges == 0
    assert arena.tally.refusals == {(0, 1): 4}
    assert bool(torch.isfinite(arena.task.x).all())


def test_the_ascent_of_an_adaptive_one_makes_the_loss_larger():
    arena = lying(pairs(2), "adaptive-gradient")
    arena.run(40)
    arena.checks_ranges = False
    before = arena.task.measure(arena.task.x[0], [0])["loss"]
    arena.run(8)
    assert arena.task.measure(arena.task.x[0], [0])["loss"] > 2 * before


# --- beside guards -----------------------------------------------------------------------


def test_impostors_take_whatever_comes_and_are_refused():
    arena = lying(pairs(4, codec="Q8B64", guarded=True), "noise")
    arena.run(80)
    assert arena.nodes[3].strategy.guard.totals.contacts == 0
    refused = {edge: count for edge, count in arena.tally.refusals.items() if 3 in edge}
    assert sum(refused.values()) > 3
    assert {whom for _, whom in arena.tally.bans} == {3}


def test_to_ask_what_a_guard_would_take_leaves_no_trace():
    arena = pairs(2, codec="Q8B64", guarded=True)
    arena.run(40)
    node, peer = arena.nodes
    intent = Intent(Kind.PAIR, 11, (View("x", "", 0, node.strategy.x.numel()),))
    own, theirs = {"x": node.strategy.x.clone()}, {"x": peer.strategy.x.clone()}
    guard = node.strategy.guard
    before = copy.deepcopy(guard.totals), guard.kept
    assert not would_take(arena, node, peer, intent, own, {"x": -theirs["x"]})
    assert would_take(arena, node, peer, intent, own, theirs) == would_take(
        arena, node, peer, intent, own, theirs
    )
    assert (guard.totals, guard.kept) == before
    assert node.strategy.guard is guard


def test_defended_it_does_little():
    figures = execute_attack(asked("sign-flip", attackers=2, nodes=8, optimizer="adam", lr=0.003))
    assert figures["clean"] - figures["mean"] < 0.1
    assert figures["mean"] - figures["undefended"] > 0.2


# --- wrong labels ------------------------------------------------------------------------


def test_a_mislabelled_node_learns_that_y_is_nine_minus_y():
    told = Digits(2, seed=1)
    told.mislabel([1])
    honest = Digits(2, seed=1)
    _, gradients = told.gradients([0, 1])
    _, honest_gradients = honest.gradients([0, 1])
    assert torch.equal(gradients[0], honest_gradients[0])
    assert not torch.allclose(gradients[1], honest_gradients[1])
    # Twice wrong is right: the output for y exchanged with that for 9 - y.
    for _ in range(200):
        told.x[1] -= 0.1 * told.gradients([1])[1][0]
        honest.x[1] -= 0.1 * honest.gradients([1])[1][0]
    assert told.judge(told.x[1]) < 0.1 < 0.7 < honest.judge(honest.x[1])


def test_a_mislabelled_text_has_the_same_bytes_in_any_order():
    task = BytesLM({"dim": 8, "layers": 1, "heads": 1, "context": 8, "batch": 4})
    x = TextTask(task, 2, seed=1, model_seed=1), TextTask(task, 2, seed=1, model_seed=1)
    x[1].mislabel([1])
    (honest, wrong), (other_honest, other_wrong) = (each.gradients([0, 1])[1] for each in x)
    assert torch.equal(honest, other_honest)
    assert not torch.allclose(wrong, other_wrong)


# --- runs --------------------------------------------------------------------------------

WORDS = "nodes attackers attack strategy task measure clean undefended mean worst honest_refused"
FIELDS = [*WORDS.split(), "honest_banned", "commits_share", "seeds"]


def asked(attack, *, attackers=1, seeds=(1,), **run):
    run = {"strategy": "pair-average", "task": "digits", "nodes": 5, "steps": 96, **run}
    words = {"run": run, "attack": attack, "attackers": attackers, "seeds": list(seeds)}
    return parse_attack(json.dumps(words))


# Where one of three lies; accuracy that is lost at the least.
HARMFUL = {"sign-flip": 0.3, "ipm": 0.3, "huge": 0.3, "noise": 0.3, "adaptive-update": 0.3}


@pytest.mark.parametrize("attack", HARMFUL)
def test_undefended_it_is_harmful(attack):
    figures = execute_attack(asked(attack, attackers=2, nodes=6, optimizer="adam", lr=0.003))
    assert list(figures) == FIELDS
    assert figures["clean"] - figures["undefended"] > HARMFUL[attack]


def test_a_node_is_judged_at_moments_of_the_end_and_not_at_one():
    """By its last moment alone the worst of twenty is whichever has just had a bad one."""
    run = msgspec.structs.replace(asked("none").run, steps=80, seed=1)
    arena = build_arena(msgspec.structs.replace(run, guarded=True))
    make = partial(build_strategy, run.strategy, run.settings)
    arena.impostors = LyingMembers(arena, ["none"], make)
    arena.run(72)
    found = []
    for _ in range(8):
        arena.run(1)
        found.append([arena.task.judge(x) for x in arena.task.x[:-1]])
    expected = torch.tensor(found, dtype=torch.float64)
    figures = execute_attack(asked("none", steps=80))
    assert figures["mean"] == pytest.approx(float(expected.mean()), abs=1e-6)
    assert figures["worst"] == pytest.approx(float(expected.mean(0).min()), abs=1e-6)
    assert figures["worst"] != pytest.approx(float(expected[-1].min()), abs=1e-6)


def test_members_that_behave_change_nothing():
    figures = execute_attack(asked("none", seeds=(1, 2), steps=48))
    assert figures["mean"] == figures["clean"] > 0.5
    assert figures["worst"] <= figures["mean"]
    assert (figures["honest_refused"], figures["honest_banned"]) == (0.0, 0)
    assert figures["commits_share"] == 1.0
    assert figures["seeds"] == [1, 2]


def test_they_are_in_groups_too():
    run = {"strategy": "streaming", "nodes": 6, "steps": 60}
    figures = execute_attack(asked("scaled,huge", attackers=2, **run))
    assert figures["undefended"] < figures["clean"] - 0.2
    assert figures["commits_share"] > 0


def test_they_are_in_gatherings_too_whose_rule_weighs_messages_itself():
    run = {"strategy": "sparse", "nodes": 6, "steps": 60}
    figures = execute_attack(asked("sign-flip", attackers=2, **run))
    assert figures["undefended"] < figures["clean"]


def test_a_language_model_is_judged_by_its_loss():
    figures = execute_attack(asked("sign-flip", task="bytes-lm", nodes=3, steps=16))
    assert figures["measure"] == "loss"
    assert figures["clean"] < figures["undefended"]
    assert figures["worst"] >= figures["mean"]


def test_a_language_model_learns_as_in_a_swarm_that_was_created():
    """By the strategy's settings that suit its task, its own optimizer, and a rate that decays."""
    run = Run(strategy="streaming", task="bytes-lm", nodes=2, steps=40, settings={"every": 8})
    text = build_arena(run).task
    assert settings_of(run, text) == {**BytesLM.group_settings, "every": 8}
    told = execute(run).figures["own_loss"]
    assert told < execute(msgspec.structs.replace(run, optimizer="adam")).figures["own_loss"] - 0.1


def test_names_are_taken_as_papers_and_people_write_them():
    assert find_attacks("signflip, ALIE,label_flip") == ["sign-flip", "alie", "label-flip"]
    assert find_attacks("FOE,adupd") == ["ipm", "adaptive-update"]
    assert known_attacks().keys() == ATTACKS.keys()
    adaptive = [each for each in ATTACKS.values() if each.is_adaptive]
    assert len(adaptive) == 2
    assert len(ATTACKS) - 1 - len(adaptive) >= 12


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: asked("flip"), "expected a name or several joined by commas, got 'flip'"),
        (lambda: asked("huge", task="lsq"), "expected --task digits or bytes-lm, got lsq"),
        (lambda: asked("huge", attackers=4), "expected at most 3, .* got 4"),
        (lambda: asked("huge", crashes=1), "neither --crashes nor --partition"),
        (lambda: asked("huge", attackers=0), "expected a run of an attack"),
        (lambda: asked("huge", seeds=[]), "expected a run of an attack"),
        (lambda: asked("huge", task="bytes-lm", dirichlet=0.5), "--alpha is the split of labels"),
    ],
)
def test_what_cannot_be_run_is_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        execute_attack(wrong())


# --- the verb ----------------------------------------------------------------------------


def simulate(capfd, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *arguments])
    out, err = capfd.readouterr()
    return ended.value.code, out, err


def test_the_verb_prints_the_figures(capfd):
    options = ["--attack=sign-flip", "--attackers=1", "--nodes=4", "--alpha=0.5", "--steps=16"]
    status, out, err = simulate(
        capfd, *options, "--strategy=pair-average", "--task=digits", "--json"
    )
    assert (status, err) == (0, "")
    figures = json.loads(out)
    assert list(figures) == FIELDS
    assert (figures["nodes"], figures["attackers"], figures["seeds"]) == (4, 1, [1])
    assert figures["measure"] == "accuracy"


def test_the_verb_lists_them(capfd):
    status, out, _ = simulate(capfd, "--attack=list", "--json")
    assert status == 0
    assert json.loads(out).keys() == ATTACKS.keys()


BAD = {
    "--attack=huge": "expected --strategy beside it",
    "--strategy=pair-average --attackers=2": "expected --attack NAME beside it",
    "--strategy=pair-average --seeds=1": "expected --attack NAME beside it",
    "--strategy=pair-average --attack=huge --seeds=one": "expected whole numbers joined by commas",
    "--strategy=pair-average --attack=huge --plot=x.png": "expected no --plot beside it",
}


@pytest.mark.parametrize("options", BAD)
def test_a_bad_option_is_one_line(capfd, options):
    status, out, err = simulate(capfd, *options.split())
    assert (status, out) == (2, "")
    assert BAD[options] in err
    assert err.count("\n") == 1
