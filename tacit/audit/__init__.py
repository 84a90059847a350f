"""Attacks on trained models and on training itself, and the lower bounds on ε that they prove."""
