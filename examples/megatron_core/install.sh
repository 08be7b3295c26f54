#!/usr/bin/env bash
# install.sh FOLDER [VERSION]: makes a virtual environment with torch, megatron-core and shardproof. It needs Python 3.10 or
# later; megatron-core 0.17 and later need 3.12: PYTHON=python3.12 install.sh FOLDER 0.19.2
set -euo pipefail
"${PYTHON:-python3}" -m venv "$1"
"$1/bin/pip" install "torch==2.11.0" "megatron-core==${2:-0.16.1}" "$(dirname "$0")/../../python"
