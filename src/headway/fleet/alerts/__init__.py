"""Alerts by rules over a store: what is wrong for how long, who is told, and that it is over."""
