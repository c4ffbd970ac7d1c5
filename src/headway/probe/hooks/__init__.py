"""Hooks, one module per topic; each is loaded when the job imports a module that it hooks."""
