"""Compiled noise: the published cipher, Box and Muller to rounding, any thread number."""

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from tacit import native
from tacit.native import Library
from tacit.noise.normals import normals
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


def box_muller(words: np.ndarray) -> np.ndarray:
    """The numbers that the kernels should make of a keystream, in double precision.

    Radii are the words at even places of a group's sixteen blocks, angles those next to them.
    """
    radii, angles = words.reshape(-1, 16, 8, 2).transpose(3, 0, 2, 1).astype(float)
    radius = np.sqrt(-2 * np.log((radii + 0.5) / 2**32))
    turned = np.pi * angles / 2**31
    return np.stack([radius * np.cos(turned), radius * np.sin(turned)], 2)


def assert_rounded(found: np.ndarray, exact: np.ndarray) -> None:
    """Pairs are as exact as a single-precision uniform number and angle make them."""
    radius = np.sqrt((exact**2).sum(2, keepdims=True))
    assert (np.abs(found.reshape(exact.shape) - exact) < 2e-7 / radius + 4e-7 * radius).all()
    assert radius.max() > 4.5


def test_every_number_is_box_and_mullers_up_to_rounding(kernels: Library) -> None:
    groups, nonce = 8000, bytes(16)
    found = kernels.normals(KEY, nonce, groups * GROUP)
    assert_rounded(found.numpy(), box_muller(words_of(kernels, KEY, nonce, groups)))


def test_the_portable_numbers_are_box_and_mullers_up_to_rounding() -> None:
    """A radius is that of the word's size, with its sign; an angle's word is for half a turn."""
    words = RandomSource.from_seed(1).words("n", 0, 2_000_000).view(np.int32).reshape(2, -1)
    quarters = torch.empty(4, words.shape[1])
    quarters.view(torch.int32)[:2] = torch.from_numpy(words.copy())
    found = np.stack([(radii * directions).numpy() for radii, directions in normals(quarters)])
    radii, turned = (words[0] + 0.5) / 2**31, np.pi * words[1] / 2**32
    radius = np.sign(radii) * np.sqrt(-2 * np.log(np.abs(radii)))
    exact = radius * np.stack([np.cos(turned), np.sin(turned)])
    assert_rounded(found.T[:, None], exact.T[:, None])


@pytest.mark.parametrize("count", [0, 1, 255, 257, 70_001])
def test_the_number_of_threads_and_of_values_changes_no_bit(kernels: Library, count: int) -> None:
    source, before = RandomSource.from_seed(3), torch.get_num_threads()
    expected = source.normal("n", 5, 70_001)[:count]
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            assert torch.equal(source.normal("n", 5, count), expected)
    finally:
        torch.set_num_threads(before)
    assert kernels is native.active()


def test_no_second_pool_of_threads_is_loaded(kernels: Library) -> None:
    kernels.normals(KEY, bytes(16), 100_000)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        runtimes = {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line}
    ours = {path for path in runtimes if "scikit_learn" not in path}
    assert len(ours) <= 1
