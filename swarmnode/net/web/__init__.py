"""The HTTP server of control socket, metrics and dashboard."""
