"""Web pages over a store: read-only, on this machine unless a token is given."""
