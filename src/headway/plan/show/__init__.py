"""A plan for people and for other programs: terminal, JSON, CSV, one HTML file."""
