#!/usr/bin/env bash
# Starts `shardproof validate` or `rank` on a list of hosts over ssh, without a scheduler (docs/cluster.md).
#
#   ssh_hosts.sh [-n RANKS_PER_HOST] HOST.. -- validate|rank ARGUMENT..
#
# Call it on any host, in the folder that has the same path, program and files on all of them. HOST is what ssh takes,
# with keys, so that ssh does not ask; rank 0 is on the first one. Environment:
#   MASTER_ADDR   an address of the first host that the others reach (default: HOST without USER@)
#   MASTER_PORT   a free port there (default 29500)
#   SHARDPROOF    the program on each host (default: build/release/shardproof-bin of this script's tree)
#   SSH           the command in place of `ssh -o BatchMode=yes -o ConnectTimeout=15 ..`, for instance 'ssh -p 2222 -i key'
#   SHARDPROOF_SECRET   of the run (default: a new one). It goes through ssh's input, so `ps` does not show it.
#   SHARDPROOF_MEETING_S   how many seconds the ranks wait for each other (default 120)
#
# Exit status: that of rank 0; 2 for a wrong call, 3 if ssh or the program could not start, 130 after Ctrl-C.
set -euo pipefail

usage() { sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2; }
say() { printf 'ssh_hosts: %s\n' "$*" >&2; }

per_host=1
if [[ ${1:-} == -n ]]; then per_host=${2:-}; shift $(($# < 2 ? $# : 2)); fi
hosts=()
while (( $# )) && [[ $1 != -- ]]; do hosts+=("$1"); shift; done
if ! [[ $per_host =~ ^[1-9][0-9]*$ && ${2:-} =~ ^(validate|rank)$ && ${hosts[0]:--} != -* ]]; then usage; fi
shift
tree=$(cd "$(dirname "$0")/../.." && pwd)
read -ra ssh <<<"${SSH:-ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15}"
secret=${SHARDPROOF_SECRET:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}
world_size=$((per_host * ${#hosts[@]}))

# What a host's shell reads as its input. The program ends when that input does: after Ctrl-C, or with the connection.
script_of() {  # rank, local rank
  local name
  for name in RANK="$1" LOCAL_RANK="$2" WORLD_SIZE="$world_size" LOCAL_WORLD_SIZE="$per_host" \
      MASTER_ADDR="${MASTER_ADDR:-${hosts[0]#*@}}" MASTER_PORT="${MASTER_PORT:-29500}" SHARDPROOF_SECRET="$secret" \
      ${SHARDPROOF_MEETING_S:+SHARDPROOF_MEETING_S="$SHARDPROOF_MEETING_S"}; do
    printf 'export %s=%q\n' "${name%%=*}" "${name#*=}"
  done
  printf 'cd %q || exit 127\nset --' "$PWD"
  printf ' %q' "${SHARDPROOF:-$tree/build/release/shardproof-bin}" "${arguments[@]}"
  cat <<'TEXT'

{ exec 3<&0 </dev/null
  "$@" 3<&- & program=$!
  { while read -r <&3; do :; done
    trap 'kill "$!"; exit' TERM  # ends the sleep, too
    kill "$program"; sleep 10 & wait "$!"; kill -KILL "$program"; } >/dev/null 2>&1 & watcher=$!
  wait "$program"; status=$?
  kill "$watcher"
  exit "$status"; }
TEXT
}
arguments=("$@")

folder=$(mktemp -d)  # of this user alone; it holds pipes and no data
grace=''
trap 'rm -rf "$folder"; if [[ -n $grace ]]; then kill "$grace"; fi' EXIT
ranks=() pipes=()
for ((rank = 0; rank < world_size; ++rank)); do
  host=${hosts[rank / per_host]}
  mkfifo "$folder/$rank"
  { "${ssh[@]}" "$host" bash -s <"$folder/$rank" 2>&1 | sed -u "s|^|$host: |"; } &
  ranks[$!]=$rank
done

interrupted=
end_all() { for pipe in ${pipes[@]+"${pipes[@]}"}; do exec {pipe}>&-; done; pipes=(); }
trap 'interrupted=1; end_all' INT TERM HUP
trap '' PIPE  # the end of an ssh is seen below
for ((rank = 0; rank < world_size; ++rank)); do
  exec {pipe}>"$folder/$rank"
  pipes+=("$pipe")
  script_of "$rank" $((rank % per_host)) >&"$pipe" || true
done
if [[ -n $interrupted ]]; then end_all; fi

result='' not_started=''
while (( ${#ranks[@]} )); do
  status=0
  wait -n -p ended "${!ranks[@]}" ${grace:+"$grace"} || status=$?
  if [[ -z ${ended:-} ]]; then continue; fi  # a signal came
  if [[ $ended == "$grace" ]]; then grace=''; end_all; continue; fi
  rank=${ranks[ended]}
  unset "ranks[$ended]"
  if (( rank == 0 )); then
    result=$status
    { end_all; exec sleep 20; } & grace=$!  # after that time ranks that have not ended are ended; it holds no pipe
  fi
  if [[ -z $interrupted && -z $not_started && $status =~ ^(126|127|255)$ ]]; then
    say "${hosts[rank / per_host]}: rank $rank did not start, or its connection broke (exit status $status); ending all"
    not_started=1
    end_all
  fi
done
if [[ -n $interrupted ]]; then exit 130; fi
if [[ -n $not_started ]]; then exit 3; fi
exit "$result"
