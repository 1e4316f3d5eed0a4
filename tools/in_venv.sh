#!/bin/sh
# in_venv.sh SCRIPT [arguments]: runs a Python script with the packages of build/venv; 77 (skipped) where it is absent.
python="$(dirname "$0")/../build/venv/bin/python"
if ! [ -x "$python" ]; then
  echo "skipped: build/venv is absent (make test creates it)"
  exit 77
fi
exec "$python" "$@"
