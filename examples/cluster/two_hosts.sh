#!/usr/bin/env bash
# One command from a fresh clone to a validated job of two "hosts" (docs/cluster.md):
#
#   examples/cluster/two_hosts.sh [torchrun|ssh] [VALIDATE ARGUMENT..]
#
# builds the program if needed, makes two hosts (network namespaces with names and a link, gone when this ends), and runs
# `validate examples/validate/short.yaml` on them, two ranks on each. `torchrun` is the default where .venv has it; `ssh` uses
# ssh_hosts.sh, with nsenter in place of ssh. It needs root and `ip`. SHARDPROOF names a program that is already built.
# Arguments replace examples/validate/short.yaml: a suite (a path from the clone) and options of validate, except --ranks.
#
# Exit status: that of validate on rank 0; 2 for a wrong call, 130 after Ctrl-C, 143 after SIGTERM.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tree=${here%/examples/cluster}
die() { printf 'two_hosts: %s\n' "$*" >&2; exit 2; }
usage() { sed -n '2,11s/^# \{0,1\}//p' "$here/two_hosts.sh"; }
on() {  # host, command: there
  local holder=$1
  shift
  nsenter --target "$holder" --net --uts -- "$@"
}

if [[ ${1:-} == --as-ssh ]]; then  # HOST COMMAND..: ssh_hosts.sh calls this
  holder_of=HOLDER_$2
  exec nsenter --target "${!holder_of}" --net --uts -- bash -c "${*:3}"
fi

cd "$tree"
launcher=''
if [[ ${1:-} =~ ^(torchrun|ssh)$ ]]; then launcher=$1; shift; fi
for word in "$@"; do
  case $word in
    -h|--help) usage; exit 0;;
    --ranks|--ranks=*) die "there are two ranks on each of two hosts; leave $word out";;
  esac
done
if [[ $# -gt 0 && $1 != -* && ! -f $1 ]]; then
  printf 'two_hosts: %s is neither torchrun, ssh, an option nor a file of %s\n\n' "$1" "$tree" >&2
  usage >&2
  exit 2
fi
(( EUID == 0 )) || die "making network namespaces needs root; call it with sudo, or in a container with the" \
  "capabilities SYS_ADMIN and NET_ADMIN"
command -v ip >/dev/null || die "making a link needs ip: apt-get install -y iproute2"
if [[ -z ${SHARDPROOF:-} ]]; then ./shardproof build; fi
export SHARDPROOF=${SHARDPROOF:-$tree/build/release/shardproof-bin}
if [[ -z $launcher ]]; then
  launcher=ssh
  if [[ -f .venv/bin/torchrun ]]; then launcher=torchrun; fi
fi
(( $# )) || set -- examples/validate/short.yaml

folder=$(mktemp -d)  # what the job says, and torchrun's logs
holders=() jobs=() interrupted=''
trap 'kill ${jobs[@]+"${jobs[@]}"} ${holders[@]+"${holders[@]}"} 2>/dev/null || true; rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
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

interrupt() { interrupted=$1; kill ${jobs[@]+"${jobs[@]}"} 2>/dev/null || true; }
trap 'interrupt 130' INT
trap 'interrupt 143' TERM
trap 'interrupt 129' HUP
mkfifo "$folder/pipe"
tee -i "$folder/text" <"$folder/pipe" &
tee=$!
exec {pipe}>"$folder/pipe"
start() {  # command..: a job in the background, which ends with this script even if that is killed
  setpriv --pdeathsig TERM "$@" >&"$pipe" 2>&1 &
  jobs+=($!)
}
ended() {  # job: its exit status, also if a signal for this script comes while it waits
  local status=0
  wait "$1" || status=$?
  while kill -0 "$1" 2>/dev/null; do status=0; wait "$1" || status=$?; done
  return "$status"
}

status=0
if [[ $launcher == ssh ]]; then
  echo "two_hosts: examples/cluster/ssh_hosts.sh -n 2 host0 host1 -- validate $*"
  export HOLDER_host0=${holders[0]} HOLDER_host1=${holders[1]} SSH="$here/two_hosts.sh --as-ssh"
  start "$here/ssh_hosts.sh" -n 2 host0 host1 -- validate "$@"
else
  echo "two_hosts: torchrun --nnodes 2 --node-rank 0|1 --nproc-per-node 2 .. --no-python shardproof-bin validate $*"
  SHARDPROOF_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
  LD_LIBRARY_PATH=$(.venv/bin/python tests/support/cuda_stand_ins.py .venv)
  export SHARDPROOF_SECRET LD_LIBRARY_PATH OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  for number in 0 1; do
    start nsenter --target "${holders[number]}" --net --uts -- .venv/bin/python -m torch.distributed.run --nnodes 2 \
      --node-rank "$number" --nproc-per-node 2 --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
      --log-dir "$folder/logs" --no-python "$SHARDPROOF" validate "$@"
  done
fi
if [[ -n $interrupted ]]; then interrupt "$interrupted"; fi  # a signal came while the jobs started
for job in "${jobs[@]}"; do ended "$job" || status=$((status ? status : $?)); done
jobs=()
exec {pipe}>&-
ended "$tee" || true
if [[ -n $interrupted ]]; then
  echo "two_hosts: interrupted (exit status $interrupted)"
  exit "$interrupted"
fi

# torchrun ends with 1 whatever its ranks end with: the verdict has the status, else torchrun's list of what failed.
verdict=$(grep -Eo 'validate: [0-9]+ ranks on .*; exit status [0-9]+$' "$folder/text" | tail -n 1 || true)
if [[ $launcher == torchrun ]]; then
  if [[ -n $verdict ]]; then status=${verdict##* }
  elif [[ $(grep -Eo 'exitcode +: [0-9]+' "$folder/text" | tail -n 1) =~ ([0-9]+)$ ]]; then status=${BASH_REMATCH[1]}; fi
  if (( status )); then grep -E '^ *FINDING |^validate: |^all of it: ' "$folder/text" || true; fi
fi
if [[ $status == 0 && $verdict == *' 4 ranks on 2 hosts, no findings '* ]]; then
  echo "two_hosts: two hosts of two ranks are validated, no findings"
elif [[ $status == 0 && -n $verdict ]]; then echo "two_hosts: $verdict"
else
  if (( status == 0 )); then status=3; fi
  echo "two_hosts: not validated; see the lines above (exit status $status)"
fi
exit "$status"
