"""Writes scattering_reference.json with kymatio, which needs an older SciPy than ours:

python3.11 -m venv OLD && OLD/bin/pip install 'numpy<2' 'scipy<1.12' kymatio==0.3.0
OLD/bin/python tests/data/make_scattering_reference.py
"""

import json
from pathlib import Path

import numpy as np

CASES = ((2, 8, 16, 12), (3, 4, 20, 16), (1, 6, 14, 9))
"""Scale, angles, height, width."""


def picture(height, width):
    """A grey image with waves, edges and a ramp."""
    row, column = np.arange(height)[:, None], np.arange(width)[None]
    steps = (row * 7 + column * 3) % 11 / 11
    return (np.sin(0.7 * row + 0.2 * column) + np.cos(0.05 * row * column) + steps).astype("f4")


def main():
    from kymatio.numpy import Scattering2D

    values = {}
    for scale, angles, height, width in CASES:
        transform = Scattering2D(scale, (height, width), L=angles)
        found = transform(picture(height, width))
        texts = [f"{number:.5g}" for number in found.ravel()]
        values[f"{scale} {angles} {height} {width}"] = [list(found.shape), " ".join(texts)]
    path = Path(__file__).with_name("scattering_reference.json")
    path.write_text(json.dumps(values, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
