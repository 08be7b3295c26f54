"""Where the parameters of a model lie: one file per source of layouts."""
