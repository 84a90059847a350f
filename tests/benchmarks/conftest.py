"""The benchmark turns the compiled kernels off in its process; the tests after it need them."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def kernels_as_before() -> Iterator[None]:
    before = os.environ.get("TACIT_NATIVE")
    yield
    if before is None:
        os.environ.pop("TACIT_NATIVE", None)
    else:
        os.environ["TACIT_NATIVE"] = before
