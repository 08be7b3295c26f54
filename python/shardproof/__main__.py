"""python -m shardproof score .. and python -m shardproof model ..: the commands of the package."""

import importlib
import sys

COMMANDS = ("score", "model")

if __name__ == "__main__":
    if sys.argv[1:2] not in [[name] for name in COMMANDS]:
        sys.exit(f"usage: python -m shardproof {{{','.join(COMMANDS)}}} [options]; the other commands are those of the "
                 "program shardproof")
    command = importlib.import_module(f"shardproof.{sys.argv[1]}.command")
    sys.exit(command.main(sys.argv[2:]))
