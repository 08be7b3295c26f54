"""python -m shardproof score ..: the commands of the package."""

import sys

from .score import command

if __name__ == "__main__":
    if sys.argv[1:2] != ["score"]:
        sys.exit("usage: python -m shardproof score [options] -- COMMAND; the other commands are those of the "
                 "program shardproof")
    sys.exit(command.main(sys.argv[2:]))
