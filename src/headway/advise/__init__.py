"""Advice for a run: each rule reads the ledger and estimates what a change would have saved."""
