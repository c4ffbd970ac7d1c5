"""Alert rules over a store: conditions, state, and notifications to receivers."""
