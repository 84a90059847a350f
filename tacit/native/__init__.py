"""Optional compiled kernels. Everything works without them; with them it is faster.

They are built with the package where there is a C++ compiler. `TACIT_NATIVE=0` in the environment
turns them off.
"""

from tacit.native.affine import Layer
from tacit.native.exact import ExactProduct, ExactProducts
from tacit.native.library import TAG_KEY_WORDS, Library
from tacit.native.loading import active, available, limited_to
from tacit.native.products import Product, Products, Rows, readable, rows_of

__all__ = [
    "TAG_KEY_WORDS",
    "ExactProduct",
    "ExactProducts",
    "Layer",
    "Library",
    "Product",
    "Products",
    "Rows",
    "active",
    "available",
    "limited_to",
    "readable",
    "rows_of",
]
