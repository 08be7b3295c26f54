"""`python -m shardproof score -- pytest ..`: plants faults in the collectives and weights of a program, and says which of
them its own tests notice."""
