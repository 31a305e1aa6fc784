"""The books of the KV cache."""

from collections.abc import Callable

import pytest

from tinyrvllm.engine.block_pool import BlockPool, PoolError, chain

SIZE = 4


def hashes(ids: list[int]) -> list[bytes]:
    return chain([], ids, SIZE)


def pool_with(ids: list[int], num_blocks: int = 6) -> tuple[BlockPool, list[int]]:
    """A pool in which a text's whole blocks can be found, though nobody holds them."""
    pool = BlockPool(num_blocks, SIZE)
    table = pool.allocate(len(ids) // SIZE)
    for block, digest in zip(table, hashes(ids), strict=True):
        pool.publish(block, digest)
    pool.release(table)
    pool.check([])
    return pool, table


def test_a_hash_is_of_all_that_came_before() -> None:
    first, second = hashes([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert [first] == hashes([1, 2, 3, 4])
    assert hashes([0, 2, 3, 4, 5, 6, 7, 8])[1] != second
    assert chain([first], [1, 2, 3, 4, 5, 6, 7, 8], SIZE) == [first, second]


def test_the_longest_prefix_is_found_and_shared() -> None:
    text = list(range(12))
    pool, table = pool_with(text)
    assert pool.find(hashes(text)) == table
    assert pool.find(hashes([*text[:8], 99, 99, 99, 99])) == table[:2]
    assert pool.find(hashes([99, *text[1:]])) == []
    for holders in (1, 2):
        pool.share(table)
        pool.check([table] * holders)
        assert pool.num_free == 3
    pool.release(table)
    pool.release(table)
    assert pool.num_free == 6


def test_the_least_recently_used_goes_first_and_texts_go_from_their_ends() -> None:
    text = list(range(12))
    pool, table = pool_with(text)
    fresh = pool.allocate(3)
    assert not set(fresh) & set(table)  # blocks with nothing in them are taken first
    pool.share(table[:1])  # now the first block is the latest in use
    pool.release(table[:1])
    assert pool.allocate(1) == table[2:]
    assert pool.find(hashes(text)) == table[:2]
    assert pool.allocate(1) == table[1:2]
    assert pool.find(hashes(text)) == table[:1]
    assert not pool.can_take(table[:1], 1)
    assert pool.can_take([], 1)
    with pytest.raises(PoolError, match="2 blocks wanted, 1 are free"):
        pool.allocate(2)


def test_the_first_block_with_a_text_stays() -> None:
    text = list(range(4))
    pool, table = pool_with(text)
    twin = pool.allocate(1)
    pool.publish(twin[0], hashes(text)[0], state=[])
    assert pool.find(hashes(text)) == table
    assert pool.states == {table[0]: []}
    pool.check([twin])
    pool.forget(table[0])
    assert pool.find(hashes(text)) == []
    assert pool.states == {}


def one_reference_too_many(pool: BlockPool, table: list[int]) -> None:
    pool.refs[table[0]] += 1


def free_though_held(pool: BlockPool, table: list[int]) -> None:
    pool._free[table[0]] = None


def lost(pool: BlockPool, table: list[int]) -> None:
    del pool._free[5]


def twice_in_one_table(pool: BlockPool, table: list[int]) -> None:
    table.append(table[0])
    pool.refs[table[0]] += 1


def a_flag_that_lies(pool: BlockPool, table: list[int]) -> None:
    pool.cached[table[0]] = 0


def a_block_under_another_name(pool: BlockPool, table: list[int]) -> None:
    pool._blocks[b"x"] = pool._blocks.popitem()[1]


def a_state_of_no_text(pool: BlockPool, table: list[int]) -> None:
    pool.states[5] = []


def shared_but_not_whole(pool: BlockPool, table: list[int]) -> None:
    pool.forget(table[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (one_reference_too_many, "references are"),
        (free_though_held, "free but held"),
        (lost, "held by nobody"),
        (twice_in_one_table, "twice in one table"),
        (a_flag_that_lies, "does not agree with itself"),
        (a_block_under_another_name, "two blocks have one hash"),
        (a_state_of_no_text, "does not agree with itself"),
        (shared_but_not_whole, "shared blocks that are not whole"),
    ],
)
def test_the_check_finds_what_is_wrong(
    change: Callable[[BlockPool, list[int]], None], message: str
) -> None:
    pool, table = pool_with(list(range(8)))
    other = list(table)
    pool.share(table)
    pool.share(other)
    pool.check([table, other])
    change(pool, table)
    with pytest.raises(PoolError, match=message):
        pool.check([table, other])
