"""Make every page of docs/results and README's table of methods again from stored results.

python benchmarks/write_pages.py
"""

from accuracy_suite.everything import write_all

if __name__ == "__main__":
    write_all()
