#!/usr/bin/env bash
# install.sh FOLDER: makes a virtual environment with torch, transformers and shardproof.
set -euo pipefail
"${PYTHON:-python3}" -m venv "$1"
"$1/bin/pip" install "torch==2.14.1" "transformers==5.23.0" "$(dirname "$0")/../../python"
