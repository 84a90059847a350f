"""Tags of a tensor's bytes that only whoever knows the keys can foresee.

NH (Black, Halevi, Krawczyk, Krovetz and Rogaway 1999) with signed words: blocks of 1,024 words are
added to a key, and the first half is multiplied with the second. It is by far the fastest
universal hash, and what hashes a sum at every step has to be fast.

Guarantee: for two different blocks at most two of 2³² values of one word of a key, whatever the
others are, give equal tags. (Say the words m ≠ m′ of one pair differ. Fix all keys but that of the
word m is multiplied with. Two values of this key that move its two sums by equal integers and gave
equal tags would make (c − c′)·x a multiple of 2⁶⁴, c ≠ c′ the keyed words and 0 < |x| < 2³²; and
the sums move by one of only two different integers.) With three independent keys two different
blocks share their tags with probability at most 2⁻⁹³.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tacit import native

BLOCK = 1024
"""Words of 32 bits."""
KEYS = 3
_AT_ONCE = 64


def block_tags(words: Tensor, keys: Tensor) -> Tensor:
    """Tags [blocks, KEYS] of int32 words [blocks · BLOCK] under int32 keys [KEYS, BLOCK].

    The same numbers with and without compiled kernels: sums and products are modulo 2⁶⁴.
    """
    kernels = native.active()
    if kernels is not None:
        return kernels.block_tags(words, keys)
    found = [_tags(part, keys) for part in words.view(-1, 2, BLOCK // 2).split(_AT_ONCE)]
    return torch.cat(found) if found else torch.empty(0, KEYS, dtype=torch.int64)


def _tags(blocks: Tensor, keys: Tensor) -> Tensor:
    keyed = blocks[:, None] + keys.view(1, KEYS, 2, BLOCK // 2)
    return (keyed[:, :, 0].long() * keyed[:, :, 1]).sum(2)


def in_blocks(content: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor's bytes as words: what fills whole blocks, and the rest filled up with zeros."""
    raw = content.detach().cpu().contiguous().view(-1).view(torch.uint8)
    whole = raw.numel() // (4 * BLOCK) * 4 * BLOCK
    rest = torch.zeros(4 * BLOCK, dtype=torch.uint8)
    rest[: raw.numel() - whole] = raw[whole:]
    filled = raw[:whole]
    if filled.data_ptr() % 4 or filled.storage_offset() % 4:
        filled = filled.clone()
    return filled.view(torch.int32), rest.view(torch.int32)
