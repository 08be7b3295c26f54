"""Runs a function on ranks, which find imported and looked through what each of them else would when it trains and records."""

import forks
import torch._dynamo  # noqa: F401 (imported by an optimizer's first step)

import shardproof.golden
import shardproof.recorder  # noqa: F401
from shardproof import clipping


def run(world_size, function, *arguments):
    """Calls function(rank, *arguments) on each rank and returns the results in the order of the ranks."""
    clipping.look_through_installed()  # in a fork it copies most of this process
    return forks.run(world_size, function, *arguments)


def run_each(world_size, function, calls):
    """Calls function(rank, *arguments) with the arguments of each call, one call after the other on the same ranks."""
    return run(world_size, lambda rank: [function(rank, *arguments) for arguments in calls])
