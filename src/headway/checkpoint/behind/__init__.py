"""Saves of a job that knows nothing of it, written behind the training: `headway run --async-save`.

A call takes an image of what is saved and returns; a thread writes it aside, and one rename makes
it the file. Whatever could notice that the file is not there yet waits for it.
"""
