"""Mutation testing of the files that carry the privacy promise."""
