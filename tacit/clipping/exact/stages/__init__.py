"""The parts of a model as fixed computations in which each row depends on itself alone."""
