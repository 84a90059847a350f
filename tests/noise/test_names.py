"""Names of sums: equal for equal bytes only, and the same with and without compiled kernels."""

import pytest
import torch
from torch import Tensor

from tacit import native
from tacit.noise.names import BLOCK, KEYS, block_tags, in_blocks
from tacit.noise.source import RandomSource


def random_words(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(1 << 31), 1 << 31, (count,), generator=generator).int()


def signed(value: int, bits: int) -> int:
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def test_tags_are_sums_of_products_of_keyed_words() -> None:
    words, keys = random_words(2 * BLOCK), random_words(KEYS * BLOCK, 1).view(KEYS, BLOCK)
    expected = []
    for block in words.view(2, BLOCK).tolist():
        row = []
        for key in keys.tolist():
            keyed = [signed(w + k, 32) for w, k in zip(block, key, strict=True)]
            pairs = zip(keyed[: BLOCK // 2], keyed[BLOCK // 2 :], strict=True)
            row.append(signed(sum(a * b for a, b in pairs), 64))
        expected.append(row)
    assert block_tags(words, keys).tolist() == expected
    with native.limited_to(0):
        assert block_tags(words, keys).tolist() == expected


@pytest.mark.parametrize("blocks", [0, 1, 31, 32, 200])
def test_kernels_give_the_same_tags(blocks: int) -> None:
    words, keys = random_words(blocks * BLOCK), random_words(KEYS * BLOCK, 1).view(KEYS, BLOCK)
    found = block_tags(words, keys)
    assert found.shape == (blocks, KEYS)
    with native.limited_to(0):
        assert torch.equal(block_tags(words, keys), found)


@pytest.mark.parametrize("count", [0, 1, 7, BLOCK, BLOCK + 1, 5 * BLOCK + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_bit_and_the_length_decide_the_name(count: int, dtype: torch.dtype) -> None:
    source, content = RandomSource.from_seed(1), torch.randn(count).to(dtype)
    name = source.name(content)
    assert name == source.name(content.clone()) != RandomSource.from_seed(2).name(content)
    with native.limited_to(0):
        assert source.name(content) == name
    assert source.name(torch.cat([content, torch.zeros(1, dtype=dtype)])) != name
    for place in {0, count // 2, count - 1} - {-1, count}:
        changed = content.clone()
        changed.view(torch.uint8)[place * content.element_size()] ^= 1
        assert source.name(changed) != name


def test_a_part_of_a_tensor_has_the_name_of_its_copy() -> None:
    source, content = RandomSource.from_seed(3), torch.randn(3 * BLOCK).bfloat16()
    part = content[1:]
    assert source.name(part) == source.name(part.clone()) != source.name(content)
    assert source.name(content[::2]) == source.name(content[::2].clone())
    few = content[1:9]
    assert source.name(few) == source.name(few.clone()) != source.name(content[:8])


def test_exchanged_blocks_and_words_change_the_name() -> None:
    source, content = RandomSource.from_seed(4), torch.randn(4 * BLOCK)
    exchanged = content.view(4, BLOCK)[[1, 0, 2, 3]].flatten()
    halves = content.view(4, 2, -1)[:, [1, 0]].flatten()
    assert len({source.name(each) for each in (content, exchanged, halves)}) == 3


def test_whole_blocks_are_not_copied() -> None:
    content = torch.randn(2 * BLOCK + 5)
    whole, rest = in_blocks(content)
    assert whole.data_ptr() == content.data_ptr() and len(whole) == 2 * BLOCK
    assert torch.equal(rest[:5], content[-5:].view(torch.int32)) and not rest[5:].any()
