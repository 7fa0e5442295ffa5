"""Messages about ways to a peer: beacons, NATs, hole punches, relays, signals."""
