"""The random source: a ChaCha20 keystream under one key, addressed by purpose and index.

Every random number of a run is a function of (key, purpose, index). A resumed run therefore
continues with exactly the numbers it would have drawn, no number is ever drawn twice for two
different things, and no generator state has to be saved. ChaCha20 comes from `cryptography`
because torch's generators are seeded with 64 bits and are not cryptographic; where the compiled
kernels are there, they compute the same keystream faster. Neither processor, threads nor kernels
change a number.

Whoever knows the key can subtract the noise. It comes from the operating system unless a seed is
given for tests, lives only in the private part of a run directory, and is erased when the run
ends.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from torch import Tensor

from tacit import native
from tacit.errors import ArgumentError
from tacit.noise import rounding
from tacit.noise.sums import SumLog

KEY_BYTES = 32
NONCE_BYTES = 12
_ENTROPY = "operating-system entropy"
_BLOCK = 1 << 18
"""Words made at once without kernels."""
_GROUP = 256
_ZEROS = memoryview(bytes(4 * _BLOCK))
_PIECE = 1 << 20
"""Bytes under one tag: short enough for collisions to be out of reach."""
_LONGEST = 15 << 32
"""Fewer words than there are before the cipher's counter of blocks would run into the nonce."""


class RandomSource:
    """All randomness of a run.

    >>> a, b = RandomSource.from_seed(7), RandomSource.from_seed(7)
    >>> bool((a.words("sampling", 0, 5) == b.words("sampling", 0, 5)).all())
    True
    """

    def __init__(self, key: bytes, origin: str, log: SumLog | None = None) -> None:
        if len(key) != KEY_BYTES:
            raise ArgumentError(f"the key has {len(key)} bytes; it must have {KEY_BYTES}")
        self.key = key
        self.origin = origin
        self.log = log
        """Checks that a resumed run repeats the sums it noised before; None outside of runs."""

    @classmethod
    def from_entropy(cls) -> RandomSource:
        """A key from the operating system: the only source fit for real data."""
        return cls(secrets.token_bytes(KEY_BYTES), _ENTROPY)

    @classmethod
    def from_seed(cls, seed: int) -> RandomSource:
        """A key that anyone who knows the seed can repeat: for tests and experiments."""
        if seed < 0:
            raise ArgumentError(f"seed is {seed}; it must not be negative")
        key = hashlib.blake2b(f"tacit seed {seed}".encode(), digest_size=KEY_BYTES).digest()
        return cls(key, f"seed {seed}")

    def renewed(self, generation: int) -> RandomSource:
        """A source that shares no number with this one."""
        if self.origin == _ENTROPY:
            return RandomSource.from_entropy()
        message = f"generation {generation}".encode()
        key = hashlib.blake2b(message, key=self.key, digest_size=KEY_BYTES).digest()
        return RandomSource(key, self.origin)

    def apart(self, purpose: str) -> RandomSource:
        """A source for one purpose, which follows from this one and shares no number with it."""
        key = hashlib.blake2b(f"apart {purpose}".encode(), key=self.key, digest_size=KEY_BYTES)
        return RandomSource(key.digest(), self.origin, self.log)

    @property
    def fingerprint(self) -> str:
        """Names the key without telling it, so that a wrong key is noticed."""
        return hashlib.blake2b(b"fingerprint", key=self.key, digest_size=16).hexdigest()

    @property
    def repeatable(self) -> bool:
        """Whether someone who knows a seed could repeat the noise."""
        return self.origin != _ENTROPY

    def perturb_(
        self,
        vector: Tensor,
        purpose: str,
        index: int,
        ends: Sequence[int],
        scales: Sequence[float],
        divisor: float,
    ) -> Tensor:
        """Add Gaussian noise to a vector in its own memory: the single site where noise is drawn.

        Guarantee: each element becomes round((x + z)/γ)·(γ/divisor), exactly rounded, where z is
        an ideal Gaussian of at least the standard deviation asked for and γ a public power of two
        near 2⁻⁸ of it. Nothing but the exact number x + z decides the result, so releasing it is
        post-processing of the ideal Gaussian mechanism (docs/proofs/precision.md).

        Args:
            vector: One-dimensional, of any floating-point type; changed and returned. What is not
                float32 or float64 is noised as float32 and converted back.
            purpose: Address of the noise; see `address`.
            index: More of the address, below 2⁸⁸.
            ends: The scale changes after each of these places; the last is the vector's length.
            scales: Standard deviations, rounded up to single precision.
            divisor: Public number to divide by afterwards.
        """
        assert ends[-1] == vector.numel()
        plain = vector.dtype in (torch.float32, torch.float64) and vector.device.type == "cpu"
        if not (plain and vector.is_contiguous()):
            kind = vector.dtype if vector.dtype == torch.float64 else torch.float32
            copy = vector.detach().to("cpu", kind).contiguous()
            return vector.copy_(self.perturb_(copy, purpose, index, ends, scales, divisor))
        key, nonce = self._address(purpose, index, vector.numel())
        parts = rounding.runs(ends, scales, divisor)
        kernels = native.active()
        values = vector.detach().numpy()
        if kernels is None:
            undecided = rounding.release_(values, parts, _words(key, nonce, vector.numel()))
        else:
            undecided = kernels.release_(vector, key, nonce, parts)
        rounding.settle_(values, parts, undecided, lambda i, level: _word(key, nonce, i, level))
        return vector

    def address(self, purpose: str, content: Tensor, scales: Sequence[float]) -> str:
        """The purpose under which to draw noise of these scales for `content`.

        Guarantee: no other content or scales share it (docs/proofs/names.md), and the run's log of
        noised sums holds it before any noise is drawn. Raises `ReplayError` if this step noised
        something else before a crash.
        """
        message = f"{self.name(content)} {' '.join(float(scale).hex() for scale in scales)}"
        name = hashlib.blake2b(message.encode(), key=self.key, digest_size=KEY_BYTES).hexdigest()
        if self.log is not None:
            self.log.enter(purpose, name)
        return f"{purpose} {name}"

    def name(self, content: Tensor) -> str:
        """A secret name for a tensor's bytes: the same for the same, never the same for others.

        Guarantee: two tensors of other bytes, chosen without knowledge of the key, share a name
        with probability below 2⁻¹¹⁰. Pieces of other bytes share a tag with probability at most
        2⁻¹²⁸ with the compiled kernels, which take NH four times, and 2¹⁷/2¹²⁸ without, by GHASH
        (docs/proofs/names.md); BLAKE2b, keyed, collects tags and length. Names must not be
        published; noise under a name that only the key knows may be. Without kernels tags are
        those of AES-GCM because processors have instructions for it; Poly1305 takes twice as long.
        """
        content = content.detach().resolve_conj().resolve_neg().cpu().contiguous()
        kernels = native.active()
        tags = self._tags(content) if kernels is None else kernels.tags(content, self._tag_key)
        collected = (content.numel() * content.element_size()).to_bytes(8, "little") + tags
        return hashlib.blake2b(collected, key=self.key, digest_size=KEY_BYTES).hexdigest()

    def _tags(self, content: Tensor) -> bytes:
        raw = content.view(-1).view(torch.uint8).numpy().data
        pieces = (raw[at : at + _PIECE] for at in range(0, len(raw), _PIECE))
        return b"".join(self._namer.encrypt(bytes(NONCE_BYTES), b"", piece) for piece in pieces)

    @cached_property
    def _tag_key(self) -> Tensor:
        words = self.words("tags", 0, native.TAG_KEY_WORDS).view(np.int32)
        return torch.from_numpy(words.copy())

    @cached_property
    def _namer(self) -> AESGCM:
        return AESGCM(self.words("names", 0, KEY_BYTES // 4).tobytes())

    def words(self, purpose: str, index: int, count: int) -> NDArray[np.uint32]:
        """`count` independent uniform 32-bit words."""
        stream = _cipher(*self._address(purpose, index, count))
        return np.frombuffer(stream.update(bytes(4 * count)), np.uint32)

    def torch_seed(self, purpose: str, index: int) -> int:
        """A seed for torch's own generator: dropout, augmentation, initial weights."""
        low, high = self.words(purpose, index, 2)
        return int(low) | (int(high) & 0x7FFFFFFF) << 32

    def _address(self, purpose: str, index: int, count: int) -> tuple[bytes, bytes]:
        """Key and nonce of a keystream of its own, the nonce with the number of the first block."""
        if count > _LONGEST:
            raise ArgumentError(
                f"{count} random numbers were asked for under one address; at most {_LONGEST}"
            )
        key = hashlib.blake2b(purpose.encode(), key=self.key, digest_size=KEY_BYTES).digest()
        return key, bytes(4) + index.to_bytes(NONCE_BYTES - 1, "little") + bytes(1)


def _cipher(key: bytes, nonce: bytes) -> CipherContext:
    return Cipher(ChaCha20(key, nonce), mode=None).encryptor()


def _words(key: bytes, nonce: bytes, count: int) -> Iterator[NDArray[np.uint32]]:
    """A word for each of `count` coordinates, in the order of the compiled kernels.

    Groups of 256 coordinates take 16 blocks of the keystream; coordinate 16·w + b of a group has
    word w of block b.
    """
    stream = _cipher(key, nonce)
    for first in range(0, count, _BLOCK):
        groups = min(_BLOCK // _GROUP, -(-(count - first) // _GROUP))
        words = np.frombuffer(stream.update(_ZEROS[: 4 * _GROUP * groups]), np.uint32)
        ordered = words.reshape(groups, 16, 16).transpose(0, 2, 1).reshape(-1)
        yield ordered[: count - first]


def _word(key: bytes, nonce: bytes, place: int, level: int) -> int:
    """A coordinate's word at a level: the same place of a keystream whose nonce ends in `level`."""
    group, inside = divmod(place, _GROUP)
    word, block = divmod(inside, 16)
    start = (16 * group + block).to_bytes(4, "little")
    stream = _cipher(key, start + nonce[4:-1] + bytes([level]))
    return int.from_bytes(stream.update(bytes(64))[4 * word : 4 * word + 4], "little")
