#!/usr/bin/env bash
# install.sh FOLDER: makes a virtual environment with torch, deepspeed and shardproof.
set -euo pipefail
"${PYTHON:-python3}" -m venv "$1"
"$1/bin/pip" install "torch==2.11.0" "deepspeed==0.19.8" "$(dirname "$0")/../../python"
