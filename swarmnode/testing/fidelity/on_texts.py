"""The claims about learning on two texts that nothing was tuned on, for 2, 4 and 8 nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarmnode.bench.fidelity.figures import check, claim, mean, number, ratio, standard_error
from swarmnode.bench.fidelity.finding import Check, Finding, Plot, Table
from swarmnode.bench.learning.corpora import describe
from swarmnode.testing.fidelity import texts
from swarmnode.testing.fidelity.kit import line
from swarmnode.testing.fidelity.texts import (
    DILOCO,
    EVERY,
    FULL_PRECISION,
    NOLOCO,
    STREAMING,
    STREAMING_DILOCO,
    Case,
    Size,
)

_HEADER = ["nodes", "run", "loss of a node", "of the mean model", "share, own models"]
_HEADER += ["share, mean model", "kB sent by a node", "of data parallelism"]
_SAME = 1.01  # times another loss, of what is said to be the same
_LIKE = 1.02  # the same, of what is said to be alike
_MUCH = 0.4  # of the gain of data parallelism, where a part of it is claimed
_SOME = 0.25  # the same, of arms that are compared: alike are also two that learn nothing


@dataclass(frozen=True)
class _Results:
    """Cases by arm and number of nodes."""

    size: Size
    by_arm: dict[str, dict[int, list[Case]]]

    def shares(self, arm: str, low: float) -> list[Check]:
        """Return for each number of nodes what own models keep of data parallelism's gain."""
        return [
            claim(
                f"share of data parallelism's gain, own models, {n} nodes: {arm}",
                [case.share_own for case in found],
                low=low,
            )
            for n, found in self.by_arm[arm].items()
        ]

    def losses(self, arm: str, other: str, high: float) -> list[Check]:
        """Return the same of the loss of own models over that of another arm."""
        return [
            claim(
                f"loss of a node over that of {other}, {n} nodes",
                [
                    one.swarm.own / two.swarm.own
                    for one, two in zip(found, self.by_arm[other][n], strict=True)
                ],
                high=high,
            )
            for n, found in self.by_arm[arm].items()
        ]

    def sent_bytes(self, arm: str) -> list[float]:
        """Return what a node has sent, for each number of nodes."""
        return [
            mean(case.swarm.sent_bytes for case in found) for found in self.by_arm[arm].values()
        ]

    def reduced_bytes(self) -> list[float]:
        """Return what a node of data parallelism has sent, for each number of nodes."""
        (found, *_) = self.by_arm.values()
        return [mean(case.parallel.sent_bytes for case in cases) for cases in found.values()]


def _run(arms: Sequence[str], *, is_quick: bool) -> _Results:
    size = texts.QUICK if is_quick else texts.FULL
    return _Results(size, {arm: {n: texts.cases(arm, n, size) for n in size.nodes} for arm in arms})


def _most(what: str, ours: Sequence[float], others: Sequence[float], high: float) -> Check:
    """Return a check of the largest ratio of bytes, over all numbers of nodes."""
    return check(what, max(ratio(*pair) for pair in zip(ours, others, strict=True)), high=high)


def _finding(
    name: str, *, title: str, source: str, claimed: str, results: _Results, checks: list[Check]
) -> Finding:
    size = results.size
    counts = ", ".join(map(str, size.nodes))
    return Finding(
        name=name,
        title=title,
        source=source,
        claim=claimed,
        experiment="The next byte from the eight before it, by a perceptron of 24,320 parameters"
        f" with AdamW and a cosine, on {counts} nodes for {size.steps} steps of 16 examples each,"
        f" H = {EVERY}: {size.steps // EVERY} meetings. Texts: {describe()}. Baselines have the"
        " best of three learning rates on each text, and of the last weights and their EMA; swarms"
        " have one rate, the best of those tried on another text. The share is what a swarm keeps"
        " of what data parallelism gains over one node alone; figures are means over texts and"
        " seeds with their standard error.",
        seeds=list(size.seeds),
        checks=checks,
        table=_table(results),
        plots=[
            Plot(
                name="share",
                title="Share of data parallelism's gain, own models",
                x="nodes",
                y="share",
                series=[
                    line(arm, [(n, mean(case.share_own for case in found[n])) for n in found])
                    for arm, found in results.by_arm.items()
                ],
            )
        ],
    )


def _table(results: _Results) -> Table:
    rows = []
    for n in results.size.nodes:
        (cases, *_) = (found[n] for found in results.by_arm.values())
        rows.append([str(n), "one node alone", number(mean(c.alone for c in cases)), *[""] * 5])
        parallel = number(mean(c.parallel.own for c in cases))
        reduced = mean(c.parallel.sent_bytes for c in cases)
        rows.append([str(n), "data parallel", parallel, parallel, "1", "1", _kb(reduced), "1"])
        rows += [[str(n), arm, *_cells(found[n])] for arm, found in results.by_arm.items()]
    return Table(header=_HEADER, rows=rows)


def _cells(cases: Sequence[Case]) -> list[str]:
    sent = mean(c.swarm.sent_bytes for c in cases)
    reduced = mean(c.parallel.sent_bytes for c in cases)
    return [
        number(mean(c.swarm.own for c in cases)),
        number(mean(c.swarm.mean for c in cases)),
        _share([c.share_own for c in cases]),
        _share([c.share_mean for c in cases]),
        _kb(sent),
        f"1/{reduced / sent:.0f}" if sent else "0",
    ]


def _share(values: Sequence[float]) -> str:
    error = f" ± {standard_error(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{error}"


def _kb(sent_bytes: float) -> str:
    return number(sent_bytes / 1e3)


# --- the claims --------------------------------------------------------------------------------


def streaming_on_texts(quick: bool) -> Finding:
    """Streaming in pairs against whole exchanges in full precision."""
    results = _run([STREAMING, NOLOCO], is_quick=quick)
    sent = results.sent_bytes(STREAMING), results.sent_bytes(NOLOCO)
    return _finding(
        "streaming-texts",
        title="Streaming gossip on two texts: a fifth of the bytes, nearly the same loss",
        source="A. Douillard et al., “Streaming DiLoCo with overlapping communication”,"
        " arXiv:2501.18512, over the pairs of NoLoCo, arXiv:2506.10911",
        claimed="Fragments that are sent one after the other, with outer gradients of four bits,"
        " come within two percent of the loss of whole exchanges in full precision, for a fifth of"
        " their bytes. The more nodes there are, the less they keep of data parallelism's gain.",
        results=results,
        checks=[
            *results.losses(STREAMING, NOLOCO, _LIKE),
            *results.shares(STREAMING, _SOME),
            _most("bytes over those of whole exchanges in full precision", *sent, 0.2),
        ],
    )


def codecs_on_texts(quick: bool) -> Finding:
    """Outer gradients of four bits against those in full precision."""
    results = _run([STREAMING_DILOCO, FULL_PRECISION], is_quick=quick)
    sent = results.sent_bytes(STREAMING_DILOCO), results.sent_bytes(FULL_PRECISION)
    return _finding(
        "codecs-texts",
        title="Outer gradients of four bits on two texts",
        source="A. Douillard et al., “Streaming DiLoCo with overlapping communication”,"
        " arXiv:2501.18512",
        claimed="Pseudo-gradients as E3M0 train as well as in full precision: within a percent of"
        " its loss.",
        results=results,
        checks=[
            *results.losses(STREAMING_DILOCO, FULL_PRECISION, _SAME),
            *results.shares(STREAMING_DILOCO, _SOME),
            _most("bytes over those in full precision", *sent, 0.15),
        ],
    )


def diloco_on_texts(quick: bool) -> Finding:
    """DiLoCo, whole and in fragments, against data parallelism."""
    results = _run([DILOCO, STREAMING_DILOCO], is_quick=quick)
    sent = results.sent_bytes(STREAMING_DILOCO), results.reduced_bytes()
    return _finding(
        "diloco-texts",
        title="DiLoCo on two texts: rarely, and in fragments",
        source="A. Douillard et al., “DiLoCo”, arXiv:2311.08105; “Streaming DiLoCo”,"
        " arXiv:2501.18512",
        claimed="Nodes that exchange once in H steps keep two fifths and more of what data"
        " parallelism gains over one node alone, and in fragments of four bits as much, within a"
        " percent of the loss, for a hundredth of data parallelism's bytes. That nearly all of the"
        " gain is kept, as the papers have it over hundreds of meetings, does not show in so few.",
        results=results,
        checks=[
            *results.shares(DILOCO, _MUCH),
            *results.shares(STREAMING_DILOCO, _MUCH),
            *results.losses(STREAMING_DILOCO, DILOCO, _SAME),
            _most("bytes of Streaming DiLoCo over data parallelism's", *sent, 0.01),
        ],
    )


def noloco_on_texts(quick: bool) -> Finding:
    """Outer steps over random pairs against those over all nodes."""
    results = _run([NOLOCO, DILOCO], is_quick=quick)
    return _finding(
        "noloco-texts",
        title="NoLoCo on two texts: pairs train like all nodes together",
        source="J. Kolehmainen, N. Blagoev, J. Donaghy, O. Ersoy, C. Nies, “NoLoCo: No-all-reduce"
        " Low Communication Training Method for Large Models”, arXiv:2506.10911",
        claimed="Outer steps over random pairs, with the modified momentum, train like those over"
        " all nodes: within two percent of DiLoCo's loss.",
        results=results,
        checks=[*results.losses(NOLOCO, DILOCO, _LIKE), *results.shares(NOLOCO, _SOME)],
    )
