"""Rules that make one vector of what several members sent: a module each, beside its paper."""
