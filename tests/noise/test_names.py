"""Names of sums: equal for equal bytes only."""

import hashlib

import pytest
import torch

from tacit.noise.source import RandomSource

PIECE = 1 << 14
"""Single-precision numbers under one tag."""


@pytest.mark.parametrize("count", [0, 1, 7, PIECE, PIECE + 1, 5 * PIECE + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_bit_and_the_length_decide_the_name(count: int, dtype: torch.dtype) -> None:
    source, content = RandomSource.from_seed(1), torch.randn(count).to(dtype)
    name = source.name(content)
    assert name == source.name(content.clone()) != RandomSource.from_seed(2).name(content)
    assert source.name(torch.cat([content, torch.zeros(1, dtype=dtype)])) != name
    for place in {0, count // 2, count - 1} - {-1, count}:
        changed = content.clone()
        changed.view(torch.uint8)[place * content.element_size()] ^= 1
        assert source.name(changed) != name


def test_a_part_of_a_tensor_has_the_name_of_its_copy() -> None:
    source, content = RandomSource.from_seed(3), torch.randn(3 * PIECE).bfloat16()
    part = content[1:]
    assert source.name(part) == source.name(part.clone()) != source.name(content)
    assert source.name(content[::2]) == source.name(content[::2].clone())
    few = content[1:9]
    assert source.name(few) == source.name(few.clone()) != source.name(content[:8])


def test_exchanged_blocks_and_words_change_the_name() -> None:
    source, content = RandomSource.from_seed(4), torch.randn(4 * PIECE)
    exchanged = content.view(4, PIECE)[[1, 0, 2, 3]].flatten()
    halves = content.view(4, 2, -1)[:, [1, 0]].flatten()
    assert len({source.name(each) for each in (content, exchanged, halves)}) == 3


def test_names_are_poly1305_tags_under_a_key_of_their_own() -> None:
    source, content = RandomSource.from_seed(5), torch.randn(PIECE + 3)
    key = source.words("names", 0, 8).tobytes()
    raw = content.numpy().tobytes()
    tags = [poly1305(key, raw[: 4 * PIECE]), poly1305(key, raw[4 * PIECE :])]
    collected = b"".join([len(raw).to_bytes(8, "little"), *tags])
    expected = hashlib.blake2b(collected, key=source.key, digest_size=32).hexdigest()
    assert source.name(content) == expected


def poly1305(key: bytes, message: bytes) -> bytes:
    """RFC 8439, section 2.5, in integers."""
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total = 0
    for at in range(0, len(message), 16):
        block = int.from_bytes(message[at : at + 16] + b"\x01", "little")
        total = (total + block) * r % ((1 << 130) - 5)
    return ((total + int.from_bytes(key[16:], "little")) % (1 << 128)).to_bytes(16, "little")
