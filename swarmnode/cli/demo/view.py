"""What the demo shows while it runs: a table that is redrawn, or plain lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click


@dataclass(frozen=True)
class Row:
    """One node, for the table."""

    name: str
    state: str
    step: int
    loss: float | None
    exchanges: int
    peers: int
    sent_bytes: int


class LiveView:
    """Draws on a terminal, writes a line now and then elsewhere."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._to_stderr = to_stderr
        stream = sys.stderr if to_stderr else sys.stdout
        self._is_terminal = stream.isatty()
        self._lines_drawn = 0
        self._next_line_s = 0.0

    def say(self, text: str) -> None:
        """Print one line that stays."""
        self._lines_drawn = 0
        click.echo(text, err=self._to_stderr)

    def show(self, elapsed_s: float, total_s: float, rows: Sequence[Row]) -> None:
        """Show how far each node is."""
        if self._is_terminal:
            self._redraw(_table(elapsed_s, total_s, rows))
        elif elapsed_s >= self._next_line_s:
            self._next_line_s = elapsed_s + 5.0
            click.echo(_line(elapsed_s, total_s, rows), err=self._to_stderr)

    def _redraw(self, lines: list[str]) -> None:
        if self._lines_drawn:
            click.echo(f"\x1b[{self._lines_drawn}A", nl=False, err=self._to_stderr)
        for line in lines:
            click.echo("\x1b[2K" + line, err=self._to_stderr)
        self._lines_drawn = len(lines)


def swarm_loss(rows: Sequence[Row]) -> float | None:
    """Mean held-out loss of the nodes that have one."""
    losses = [row.loss for row in rows if row.loss is not None]
    return sum(losses) / len(losses) if losses else None


def _table(elapsed_s: float, total_s: float, rows: Sequence[Row]) -> list[str]:
    head = f"{'node':<6} {'state':<9} {'step':>6} {'loss':>8} {'exchanges':>10} {'peers':>6}"
    lines = [head + f" {'MB sent':>8}"]
    for row in rows:
        lines.append(
            f"{row.name:<6} {row.state:<9} {row.step:>6} {_loss(row.loss):>8} {row.exchanges:>10}"
            f" {row.peers:>6} {row.sent_bytes / 1e6:>8.1f}"
        )
    loss = _loss(swarm_loss(rows))
    lines.append(f"swarm loss {loss}   {elapsed_s:.0f} of {total_s:.0f} s")
    return lines


def _line(elapsed_s: float, total_s: float, rows: Sequence[Row]) -> str:
    nodes = "  ".join(
        f"{row.name} {_loss(row.loss)}@{row.step}"
        if row.state == "training"
        else f"{row.name} {row.state}"
        for row in rows
    )
    exchanges = sum(row.exchanges for row in rows) // 2
    sent = sum(row.sent_bytes for row in rows) / 1e6
    return (
        f"{elapsed_s:4.0f}/{total_s:.0f} s  swarm loss {_loss(swarm_loss(rows))}  {nodes}"
        f"  {exchanges} exchanges, {sent:.1f} MB"
    )


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
