"""A fleet that never ran, with planted regressions and bad hosts, to try things on."""
