"""Optional compiled kernels. Everything works without them; with them it is faster.

They are built with the package where there is a C++ compiler. `TACIT_NATIVE=0` in the environment
turns them off.
"""

from tacit.native.library import Library
from tacit.native.loading import active, available, limited_to

__all__ = ["Library", "active", "available", "limited_to"]
