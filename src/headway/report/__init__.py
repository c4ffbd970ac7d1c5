"""What a ledger looks like to people and to other tools: one file per output."""
