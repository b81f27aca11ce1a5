"""Power cuts and kills at any moment of random lives: nothing promised is lost, nothing is made up.

A failing seed says how to run it alone. `TAILRACE_SEEDS` sets how many seeds a run takes.
"""

from __future__ import annotations

import os

import pytest

from tests.crash.campaign import Campaign

BLOCKS = 8  # so that several processes can share the work
SEEDS = int(os.environ.get("TAILRACE_SEEDS", "480"))
LONG = 100 * SEEDS


def run(seed: int, *, faults: bool) -> None:
    campaign = Campaign(seed, faults=faults)
    try:
        campaign.run()
    except Exception as error:
        test = "failing" if faults else "cuts"
        error.add_note("\n".join(["what happened:", *campaign.story[-40:]]))
        error.add_note(
            f"replay: TAILRACE_SEED={seed} .venv/bin/python -m pytest "
            f"tests/crash/test_power_cuts.py -k 'replay and {test}'"
        )
        raise


def seeds_of_block(block: int, first: int, count: int) -> range:
    return range(first + block, first + count, BLOCKS)


@pytest.mark.sample(2)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_power_cuts(block: int) -> None:
    for seed in seeds_of_block(block, 0, SEEDS):
        run(seed, faults=False)


@pytest.mark.sample(2)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_power_cuts_and_failing_calls(block: int) -> None:
    for seed in seeds_of_block(block, 0, SEEDS // 3):
        run(seed, faults=True)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("faults", [False, True], ids=["cuts", "failing"])
@pytest.mark.parametrize("block", range(BLOCKS))
def test_long_campaign(block: int, faults: bool) -> None:
    for seed in seeds_of_block(block, SEEDS, LONG):
        run(seed, faults=faults)


@pytest.mark.skipif("TAILRACE_SEED" not in os.environ, reason="set TAILRACE_SEED to replay a seed")
@pytest.mark.parametrize("faults", [False, True], ids=["cuts", "failing"])
def test_replay(faults: bool) -> None:
    run(int(os.environ["TAILRACE_SEED"]), faults=faults)
