"""Records a sharded PyTorch training run, so that every rank's numbers can be compared with one device.

    with shardproof.record(model, optimizer, out="run") as rec:
        ..                                  # the training loop, unchanged
        rec.scalar("loss", loss, mean_over=("dp",))
"""

import importlib

# The module of each name. It is imported, and torch with it, when the name is first used: pytest imports this package
# in every session.
_MODULES = {"Error": "error", "Muon": "matrices", "Partial": "layout", "Recorder": "recorder", "Replicate": "layout",
            "Shard": "layout", "batch": "global_batch", "check_coded": "codes", "coded": "codes", "float64": "lift", "load": "golden", "record": "recorder",
            "routes": "expert_routes"}
__version__ = "0.2.0"
__all__ = list(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
