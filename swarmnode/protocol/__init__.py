"""Sans-IO protocol cores: no clock, no socket, no randomness of their own."""
