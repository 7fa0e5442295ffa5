"""What a node says of itself in one line."""

from __future__ import annotations

from swarmnode.daemon.status.view import NodeStatus


def in_one_line(status: NodeStatus) -> str:
    """Return what a node does, for whoever looks at its terminal now and then."""
    losses = (status.eval_loss, status.swarm_loss)
    loss, swarm = ("-" if value is None else f"{value:.4f}" for value in losses)
    return (
        f"{status.state} ({status.reason}): step {status.step:,}, held-out loss {loss},"
        f" swarm {swarm}, {status.peers_connected} peers, {status.exchanges_committed} exchanges"
    )
