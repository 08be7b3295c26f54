#!/usr/bin/env bash
# install.sh FOLDER: makes a virtual environment with torch, megatron-core and shardproof. It needs Python 3.10 or 3.11;
# megatron-core 0.17 and later need 3.12.
set -euo pipefail
"${PYTHON:-python3}" -m venv "$1"
"$1/bin/pip" install "torch==2.11.0" "megatron-core==0.16.1" "$(dirname "$0")/../../python"
