#!/usr/bin/env bash
# install.sh FOLDER: makes a virtual environment with torch, torchtitan and shardproof. It needs Python 3.11 or later;
# torchtitan 0.3.0 needs a torch after 2.11.
set -euo pipefail
"${PYTHON:-python3}" -m venv "$1"
"$1/bin/pip" install "torch==2.14.1" "torchtitan==0.3.0" "$(dirname "$0")/../../python"
