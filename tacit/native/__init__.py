"""Optional compiled kernels. Everything works without them; with them it is faster.

They are built with the package where there is a C++ compiler. `TACIT_NATIVE=0` in the environment
turns them off.
"""

from tacit.native.library import TAG_KEY_WORDS, Library
from tacit.native.loading import active, available, limited_to
from tacit.native.products import Product, Products, readable

__all__ = [
    "TAG_KEY_WORDS",
    "Library",
    "Product",
    "Products",
    "active",
    "available",
    "limited_to",
    "readable",
]
