"""The random source: a ChaCha20 keystream under one key, addressed by purpose and index.

Every random number of a run is a function of (key, purpose, index). A resumed run therefore
continues with exactly the numbers it would have drawn, no number is ever drawn twice for two
different things, and no generator state has to be saved. ChaCha20 comes from `cryptography`
because torch's generators are seeded with 64 bits and are not cryptographic; where the compiled
kernels are there, they compute the same keystream faster. Numbers are the same wherever processor,
threads and kernels are the same.

Whoever knows the key can subtract the noise. It comes from the operating system unless a seed is
given for tests, lives only in the private part of a run directory, and is erased when the run
ends.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from torch import Tensor

from tacit import native
from tacit.errors import ArgumentError
from tacit.noise.normals import normals
from tacit.noise.sums import SumLog

KEY_BYTES = 32
NONCE_BYTES = 12
_ENTROPY = "operating-system entropy"
_BLOCK = 1 << 20
"""Numbers made at once at most, in 8 bytes each: smaller blocks take longer for calls of torch."""
_ZEROS = memoryview(bytes(4 * _BLOCK))
_PIECE = 1 << 20
"""Bytes under one tag: short enough for collisions to be out of reach."""
_LONGEST = 15 << 32
"""Fewer words than there are before the cipher's counter of blocks would run into the nonce."""


class RandomSource:
    """All randomness of a run.

    >>> a, b = RandomSource.from_seed(7), RandomSource.from_seed(7)
    >>> bool((a.normal("noise", 0, 5) == b.normal("noise", 0, 5)).all())
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

    def normal(self, purpose: str, index: int, count: int) -> Tensor:
        """`count` independent standard normal numbers: the single site where noise is drawn."""
        address = self._address(purpose, index, count)
        kernels = native.active()
        if kernels is not None:
            return kernels.normals(*address, count)
        out = torch.empty(count, dtype=torch.float32, device="cpu")
        for start, radii, directions in _blocks(*address, count):
            torch.mul(radii, directions, out=out[start : start + len(radii)])
        return out

    def perturb_(
        self,
        vector: Tensor,
        purpose: str,
        index: int,
        ends: Sequence[int],
        scales: Sequence[float],
        divisor: float,
    ) -> Tensor:
        """Make a vector (vector + scale · `normal` numbers) / divisor, in its own memory.

        The scale changes after each of `ends`.
        """
        assert ends[-1] == vector.numel()
        address = self._address(purpose, index, vector.numel())
        kernels = native.active()
        plain = vector.dtype == torch.float32 and vector.device.type == "cpu"
        if kernels is not None and plain and vector.is_contiguous():
            return kernels.perturb_(vector, *address, ends, scales, divisor)
        vector.mul_(1 / divisor)
        for start, radii, directions in _blocks(*address, vector.numel()):
            radii, directions = radii.to(vector.device), directions.to(vector.device)
            for (first, last), scale in zip(pairwise((0, *ends)), scales, strict=True):
                low, high = max(first - start, 0), min(last - start, len(radii))
                if low < high:
                    part = vector[start + low : start + high]
                    part.addcmul_(radii[low:high], directions[low:high], value=scale / divisor)
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
        return key, bytes(4) + index.to_bytes(NONCE_BYTES, "little")


def _cipher(key: bytes, nonce: bytes) -> CipherContext:
    return Cipher(ChaCha20(key, nonce), mode=None).encryptor()


def _blocks(key: bytes, nonce: bytes, count: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Normal numbers without kernels, a piece at a time: where it begins, and their two factors.

    A piece is gone when the next one is asked for. The last words of the last block are left over.
    """
    stream = _cipher(key, nonce)
    blocks = max(1, -(-count // _BLOCK))
    pairs = 16 * -(-count // (32 * blocks))
    quarters = torch.empty(4, pairs, dtype=torch.float32, device="cpu")
    words = quarters[:2].flatten().numpy().view(np.uint8).data
    first = 0
    for _ in range(blocks):
        stream.update_into(_ZEROS[: len(words)], words)
        for radii, directions in normals(quarters):
            kept = slice(max(0, count - first))
            yield first, radii[kept], directions[kept]
            first += pairs
