"""What to change next: each rule reads a ledger and says what a change would have won."""
