"""A comparison of policies for people: a table, and one HTML file."""
