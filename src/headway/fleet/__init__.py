"""The store of many runs' ledgers, and the questions asked of it."""
