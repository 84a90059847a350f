"""Parts of the clipping benchmark; `benchmarks/clipping.py` is its entry point."""
