"""Judges a model by its name: a tiny one of each kind on one rank, and on the ranks of each layout."""
