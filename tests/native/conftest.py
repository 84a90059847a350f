"""Compiled kernels, one instruction set after the other."""

from collections.abc import Iterator

import pytest

from tacit import native
from tacit.native import Library


@pytest.fixture(params=[1, 2, 3], ids=["baseline", "avx2", "avx512"])
def kernels(request: pytest.FixtureRequest) -> Iterator[Library]:
    with native.limited_to(request.param):
        library = native.active()
        if library is None:
            pytest.skip("the compiled kernels are not built")
        yield library
