"""Read-only web pages over a store; reachable from this machine only, unless a token is set."""
