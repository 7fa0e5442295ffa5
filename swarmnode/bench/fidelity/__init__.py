"""What papers claim, tried here: runs, what they found, and the page about it."""
