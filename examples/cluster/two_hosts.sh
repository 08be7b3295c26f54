#!/usr/bin/env bash
# One command from a fresh clone to a validated job of two "hosts" (docs/cluster.md):
#
#   examples/cluster/two_hosts.sh [torchrun|ssh] [VALIDATE ARGUMENT..]
#
# builds the program if needed, makes two hosts (network namespaces with names and a link, gone when this ends), and runs
# `validate examples/validate/short.yaml` on them, two ranks on each. `torchrun` is the default where .venv has it; `ssh` uses
# ssh_hosts.sh, with nsenter in place of ssh. It needs root and `ip`. SHARDPROOF names a program that is already built.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tree=${here%/examples/cluster}
die() { printf 'two_hosts: %s\n' "$*" >&2; exit 2; }
on() {  # host, command: there
  local holder=$1
  shift
  nsenter --target "$holder" --net --uts -- "$@"
}

if [[ ${1:-} == --as-ssh ]]; then  # HOST COMMAND..: ssh_hosts.sh calls this
  holder_of=HOLDER_$2
  exec nsenter --target "${!holder_of}" --net --uts -- bash -c "${*:3}"
fi

(( EUID == 0 )) || die "making network namespaces needs root; call it with sudo, or in a container with the" \
  "capabilities SYS_ADMIN and NET_ADMIN"
command -v ip >/dev/null || die "making a link needs ip: apt-get install -y iproute2"
cd "$tree"
if [[ -z ${SHARDPROOF:-} ]]; then ./shardproof build; fi
export SHARDPROOF=${SHARDPROOF:-$tree/build/release/shardproof-bin}
launcher=ssh
if [[ -f .venv/bin/torchrun ]]; then launcher=torchrun; fi
if [[ ${1:-} =~ ^(torchrun|ssh)$ ]]; then launcher=$1; shift; fi
(( $# )) || set -- examples/validate/short.yaml

holders=()
trap 'kill "${holders[@]}" 2>/dev/null || true' EXIT
for number in 0 1; do  # a process that sleeps in them holds the namespaces; it ends with this script
  setpriv --pdeathsig KILL unshare --net --uts sh -c "hostname host$number && exec sleep infinity" &
  holders+=($!)
done
for number in 0 1; do
  for ((tries = 0; ; ++tries)); do
    if [[ $(on "${holders[number]}" hostname 2>/dev/null) == "host$number" ]]; then break; fi
    if (( tries == 200 )) || ! kill -0 "${holders[number]}" 2>/dev/null; then
      die "no right to make network namespaces here; a container needs SYS_ADMIN and NET_ADMIN"
    fi
    sleep 0.05
  done
done
ip link add link0 netns "${holders[0]}" type veth peer name link0 netns "${holders[1]}"
for number in 0 1; do
  on "${holders[number]}" ip link set lo up
  on "${holders[number]}" ip address add "10.77.9.$((number + 1))/24" dev link0
  on "${holders[number]}" ip link set link0 up
done
export MASTER_ADDR=10.77.9.1 MASTER_PORT=29500

status=0
if [[ $launcher == ssh ]]; then
  echo "two_hosts: examples/cluster/ssh_hosts.sh -n 2 host0 host1 -- validate $*"
  HOLDER_host0=${holders[0]} HOLDER_host1=${holders[1]} SSH="$here/two_hosts.sh --as-ssh" \
    "$here/ssh_hosts.sh" -n 2 host0 host1 -- validate "$@" || status=$?
else
  echo "two_hosts: torchrun --nnodes 2 --node-rank 0|1 --nproc-per-node 2 .. --no-python shardproof-bin validate $*"
  SHARDPROOF_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
  LD_LIBRARY_PATH=$(.venv/bin/python tests/support/cuda_stand_ins.py .venv)
  export SHARDPROOF_SECRET LD_LIBRARY_PATH OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  agents=()
  for number in 0 1; do
    on "${holders[number]}" .venv/bin/python -m torch.distributed.run --nnodes 2 --node-rank "$number" \
      --nproc-per-node 2 --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" --no-python \
      "$SHARDPROOF" validate "$@" &
    agents+=($!)
  done
  trap 'kill "${agents[@]}" "${holders[@]}" 2>/dev/null || true' EXIT
  wait "${agents[0]}" || status=$?
  wait "${agents[1]}" || status=$((status ? status : $?))
fi
if (( status == 0 )); then echo "two_hosts: two hosts of two ranks are validated, no findings"
else echo "two_hosts: not validated; see the lines above (exit status $status)"; fi
exit "$status"
