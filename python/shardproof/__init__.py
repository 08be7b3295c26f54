"""Records a sharded PyTorch training run, so that every rank's numbers can be compared with one device.

    with shardproof.record(model, optimizer, out="run") as rec:
        ..                                  # the training loop, unchanged
        rec.scalar("loss", loss, mean_over=("dp",))
"""

from .error import Error
from .global_batch import batch
from .golden import load
from .layout import Partial, Replicate, Shard
from .lift import float64
from .recorder import VERSION as __version__
from .recorder import Recorder, record

__all__ = ["Error", "Partial", "Recorder", "Replicate", "Shard", "batch", "float64", "load", "record"]
