"""Compiled noise: the published cipher, and the same bits for any number of threads."""

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from tacit import native
from tacit.native import Library
from tacit.noise import rounding
from tacit.noise.source import RandomSource

KEY = bytes(range(32))
GROUP = 256
"""Words of the keystream that kernels make numbers of at once."""


def words_of(library: Library, key: bytes, nonce: bytes, groups: int = 1) -> np.ndarray:
    return library.keystream(key, nonce, groups).numpy().view(np.uint32)


@pytest.mark.parametrize(
    ("key", "block", "nonce", "expected"),
    [
        (
            bytes(range(32)),
            1,
            "000000090000004a00000000",
            "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
            "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
        ),
        (
            bytes(32),
            0,
            "000000000000000000000000",
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
        ),
        (
            bytes(31) + b"\x01",
            1,
            "000000000000000000000000",
            "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
            "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
        ),
        (
            bytes(32),
            0,
            "000000000000000000000002",
            "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
            "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
        ),
    ],
    ids=["2.3.2", "A.1 1", "A.1 3", "A.1 5"],
)
def test_the_vectors_of_rfc_8439(
    kernels: Library, key: bytes, block: int, nonce: str, expected: str
) -> None:
    words = words_of(kernels, key, block.to_bytes(4, "little") + bytes.fromhex(nonce))
    assert words[:16].tobytes().hex() == expected


def test_the_keystream_is_that_of_the_reference_cipher(kernels: Library) -> None:
    nonce = bytes(range(16))
    cipher = Cipher(ChaCha20(KEY, nonce), mode=None).encryptor()
    expected = np.frombuffer(cipher.update(bytes(4 * 40 * GROUP)), np.uint32)
    assert np.array_equal(words_of(kernels, KEY, nonce, 40), expected)


@pytest.mark.parametrize("count", [0, 1, 255, 257, 70_001])
def test_the_number_of_threads_and_of_values_changes_no_bit(kernels: Library, count: int) -> None:
    source, before = RandomSource.from_seed(3), torch.get_num_threads()
    expected = source.perturb_(torch.ones(70_001), "n", 5, [70_001], [1.3], 7.0)[:count]
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            found = source.perturb_(torch.ones(count), "n", 5, [count], [1.3], 7.0)
            assert torch.equal(found, expected)
    finally:
        torch.set_num_threads(before)
    assert kernels is native.active()


def test_no_second_pool_of_threads_is_loaded(kernels: Library) -> None:
    kernels.release_(torch.zeros(100_000), KEY, bytes(16), rounding.runs([100_000], [1.0], 1.0))
    with open("/proc/self/maps", encoding="utf-8") as maps:
        runtimes = {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line}
    ours = {path for path in runtimes if "scikit_learn" not in path}
    assert len(ours) <= 1
