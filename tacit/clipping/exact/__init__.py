"""Clipped sums whose L2 sensitivity is proven for the floating-point program that runs.

Proof: docs/proofs/sums.md.
"""
