"""shardproof for PyTorch programs."""
