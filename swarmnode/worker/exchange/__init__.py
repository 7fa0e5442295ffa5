"""What goes to other nodes and comes from them: views out, merges in."""
