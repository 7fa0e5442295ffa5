"""The home router: which one it is, and a port that it keeps open for us."""
