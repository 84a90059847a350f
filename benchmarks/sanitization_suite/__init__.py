"""Figures of paper 000 from runs of our own, at a scale that two cores can do."""
