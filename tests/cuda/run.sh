#!/usr/bin/env bash
# Runs on a GPU what only a GPU can show, and writes a report: tests/cuda/run.sh --help
exec python3 "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"
