"""Sets of segments: a tuple to whoever looks, whatever they share with others."""

from __future__ import annotations

import random

import pytest

from tailrace.log.extents import Extent, Extents


def make(rng: random.Random, count: int) -> tuple[Extent, ...]:
    return tuple(Extent(10 * i, rng.randrange(1, 100)) for i in range(count))


def check(extents: Extents, model: tuple[Extent, ...]) -> None:
    assert extents == model
    assert list(extents) == list(model)
    assert (len(extents), bool(extents)) == (len(model), bool(model))
    assert extents.bytes == sum(extent.size for extent in model)
    for index in range(-len(model), len(model)):
        assert extents[index] == model[index]
    for index in (len(model), -len(model) - 1):
        with pytest.raises(IndexError):
            extents[index]


@pytest.mark.parametrize("seed", range(30))
def test_against_a_tuple(seed: int) -> None:
    """None is changed by what is made from it."""
    rng = random.Random(seed)
    model = make(rng, rng.choice([0, 1, 5]))
    known = [(Extents(model), model)]
    for _ in range(200):
        extents, model = rng.choice(known[-10:])
        base = model[-1].base + 10 if model else 0
        match rng.randrange(5):
            case 0 | 1:
                extent = Extent(base, rng.randrange(1, 100))
                known.append((extents.and_then(extent), (*model, extent)))
            case 2:
                extent = Extent(base, rng.randrange(100))
                known.append((extents.ending_with(extent), (*model, extent)))
            case 3:
                part = slice(rng.randrange(-3, 4), rng.choice([None, None, -1, -2, 5]))
                known.append((extents[part], model[part]))
            case 4:
                offset = rng.randrange(-5, base + 15)
                gone = max(sum(extent.base <= offset for extent in model) - 1, 0)
                known.append((extents.from_offset(offset), model[gone:]))
                assert extents.index_of(offset) == sum(e.base < offset for e in model)
    for extents, model in known:
        check(extents, model)
    (first, a), (second, b) = rng.sample(known, 2)
    assert (first == second) == (a == b)


def test_one_after_the_other_shares_one_list() -> None:
    """As a log that rolls, and deletes from the front, does: what is gone is not kept for ever."""
    extents = Extents()
    lists = set()
    for number in range(10_000):
        extents = extents.and_then(Extent(number, 1))
        lists.add(id(extents._all))
    assert len(lists) == 1
    for number in range(10_000, 20_000):
        extents = extents.and_then(Extent(number, 1))[-100:]
    assert len(extents._all) < 500
    assert extents[::-1] == tuple(extents)[::-1]
    assert repr(extents[-1:]) == "Extents([Extent(base=19999, size=1)])"
