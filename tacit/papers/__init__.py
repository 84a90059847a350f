"""The tables and figures of the four papers, and how each is repeated here."""
