"""Predict the ETT of a job that has not run yet."""
