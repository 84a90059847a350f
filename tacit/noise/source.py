"""The random source: a ChaCha20 keystream under one key, addressed by purpose and index.

Every random number of a run is a function of (key, purpose, index). A resumed run therefore
continues with exactly the numbers it would have drawn, no number is ever drawn twice for two
different things, and no generator state has to be saved. ChaCha20 comes from `cryptography`
because torch's generators are seeded with 64 bits and are not cryptographic.

Whoever knows the key can subtract the noise. It comes from the operating system unless a seed is
given for tests, lives only in the private part of a run directory, and is erased when the run
ends.
"""

from __future__ import annotations

import hashlib
import math
import secrets

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from tacit.errors import ArgumentError

KEY_BYTES = 32
NONCE_BYTES = 12
_ENTROPY = "operating-system entropy"
_BLOCK = 1 << 16
_ZEROS = bytes(4 * _BLOCK)


class RandomSource:
    """All randomness of a run.

    >>> a, b = RandomSource.from_seed(7), RandomSource.from_seed(7)
    >>> bool((a.normal("noise", 0, 5) == b.normal("noise", 0, 5)).all())
    True
    """

    def __init__(self, key: bytes, origin: str) -> None:
        if len(key) != KEY_BYTES:
            raise ArgumentError(f"the key has {len(key)} bytes; it must have {KEY_BYTES}")
        self.key = key
        self.origin = origin

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

    @property
    def fingerprint(self) -> str:
        """Names the key without telling it, so that a wrong key is noticed."""
        return hashlib.blake2b(b"fingerprint", key=self.key, digest_size=16).hexdigest()

    @property
    def repeatable(self) -> bool:
        """Whether someone who knows a seed could repeat the noise."""
        return self.origin != _ENTROPY

    def normal(self, purpose: str, index: int, count: int) -> torch.Tensor:
        """`count` independent standard normal numbers: the single site where noise is drawn.

        Box–Muller on 32-bit uniforms, so |z| reaches 6.7; computed in blocks that stay in cache.
        """
        stream = self._stream(purpose, index)
        out = torch.empty(count, dtype=torch.float32)
        raw = bytearray(4 * _BLOCK)
        words = torch.frombuffer(raw, dtype=torch.int32)
        half = _BLOCK // 2
        uniform = torch.empty(half, dtype=torch.float64)
        pairs = torch.empty(_BLOCK)
        for start in range(0, count, _BLOCK):
            stream.update_into(_ZEROS, raw)
            uniform.copy_(words[:half]).add_(2.0**31 + 0.5).mul_(2.0**-32)
            radius = uniform.float().log_().mul_(-2).sqrt_()
            angle = words[half:].float().mul_(math.pi * 2.0**-31)
            torch.cos(angle, out=pairs[:half])
            torch.sin(angle, out=pairs[half:])
            pairs.view(2, half).mul_(radius)
            stop = min(start + _BLOCK, count)
            out[start:stop] = pairs[: stop - start]
        return out

    def words(self, purpose: str, index: int, count: int) -> NDArray[np.uint32]:
        """`count` independent uniform 32-bit words."""
        return np.frombuffer(self._stream(purpose, index).update(bytes(4 * count)), np.uint32)

    def torch_seed(self, purpose: str, index: int) -> int:
        """A seed for torch's own generator: dropout, augmentation, initial weights."""
        low, high = self.words(purpose, index, 2)
        return int(low) | (int(high) & 0x7FFFFFFF) << 32

    def _stream(self, purpose: str, index: int) -> CipherContext:
        key = hashlib.blake2b(purpose.encode(), key=self.key, digest_size=KEY_BYTES).digest()
        nonce = bytes(4) + index.to_bytes(NONCE_BYTES, "little")
        return Cipher(ChaCha20(key, nonce), mode=None).encryptor()
