# Which folder may include which, and so what its library links: one row for each folder, from the ground up. A row
# lists folders (the files in them, not those of folders below), single headers, and outside libraries by the names
# of tests/tidy/include_table.py. Every folder may include itself and the standard library (POSIX included).
# shardproof_folder (cmake/folders.cmake) makes the library of a row, tests/tidy holds the sources to it.

# --- The sharded stack: code under test. It knows nothing of sim and golden.
shardproof_folder(src/base fmt json)
shardproof_folder(src/mesh src/base fmt)
shardproof_group(sp_tensors)
shardproof_folder(src/tensor src/base src/mesh fmt json torch)
shardproof_folder(src/observe src/base src/mesh torch)
# Never comm.
shardproof_folder(src/random src/base src/tensor src/observe fmt torch)
shardproof_group(sp_collectives)
shardproof_folder(src/comm src/base src/mesh src/tensor fmt torch)
shardproof_folder(src/collective src/base src/tensor/function.h src/comm fmt torch)
shardproof_folder(src/sequence src/base src/mesh src/tensor src/comm src/collective fmt torch)
shardproof_group(sp_models)
# One device: never the rest of mesh, comm, parallel.
shardproof_folder(src/model/moe src/base src/tensor fmt torch)
shardproof_folder(src/model src/base src/mesh/layout.h src/tensor src/observe src/model/moe fmt json
  torch)
shardproof_group()
shardproof_folder(src/optim src/base torch)
shardproof_folder(src/logprob src/base src/mesh src/tensor src/comm src/collective src/sequence fmt
  torch)
shardproof_group(sp_parallel)
shardproof_folder(src/parallel/style src/base src/mesh src/comm src/model fmt torch)
shardproof_folder(src/parallel/tp src/base src/mesh src/tensor src/random src/comm src/collective
  src/model src/parallel/style fmt json torch)
shardproof_folder(src/parallel/cp src/base src/tensor/function.h src/comm src/sequence src/model
  src/parallel/style fmt torch)
shardproof_folder(src/parallel/ulysses src/base src/mesh src/tensor src/comm src/collective
  src/model src/parallel/style fmt json torch)
shardproof_folder(src/parallel/data src/base src/mesh src/tensor src/comm src/model
  src/parallel/style fmt torch)
shardproof_folder(src/parallel/pp src/base src/mesh src/tensor src/comm src/model src/parallel/style fmt torch)
shardproof_folder(src/parallel/experts src/base src/mesh src/tensor src/comm src/collective src/model
  src/model/moe src/parallel/style fmt torch)
shardproof_folder(src/parallel/registry src/parallel/style src/parallel/tp src/parallel/experts src/parallel/cp
  src/parallel/ulysses src/parallel/pp src/parallel/data)
shardproof_folder(src/parallel/reshard src/base src/mesh src/tensor src/comm torch)
shardproof_folder(src/parallel/hf src/base src/tensor src/comm src/model src/parallel/reshard fmt json
  torch)
shardproof_group()
shardproof_folder(src/train src/base src/mesh src/tensor src/observe src/random src/comm
  src/sequence src/model src/model/moe src/optim src/logprob src/parallel/style src/parallel/data fmt torch)
shardproof_folder(src/policy src/base src/tensor src/random src/comm src/model
  src/parallel/registry src/parallel/reshard src/train fmt json torch)

# --- A case: what is run and what is kept of it. The first three take no LibTorch.
shardproof_folder(sim/case src/base src/mesh fmt json)
shardproof_folder(sim/case/scenario src/base src/mesh sim/case fmt json yaml)
shardproof_group(sim_record)
shardproof_folder(sim/case/record src/base src/tensor/tensor_view.h src/observe/phase.h
  src/observe/observation_kind.h fmt)
shardproof_folder(sim/case/recorder src/base src/tensor src/observe src/model sim/case/record fmt torch)
shardproof_group()
shardproof_folder(sim/case/inputs src/model sim/case)

# --- The single device: nothing that is judged, and of the harness the case alone.
shardproof_folder(golden src/base src/tensor src/observe src/model src/model/moe sim/case sim/case/record
  sim/case/recorder sim/case/inputs fmt json torch)

# --- The judge: diff and evidence on ranks, explain and verdict in control. Who judges does not communicate, and needs
# LibTorch only where it watches a rank (probe).
shardproof_group(sim_rank_judge)
shardproof_folder(sim/judge/diff src/base src/mesh src/tensor/tensor_view.h src/observe/phase.h
  src/observe/observation_kind.h sim/case sim/case/record fmt json)
shardproof_folder(sim/judge/evidence src/base src/tensor/tensor_view.h
  src/observe/observation_kind.h sim/case sim/case/record sim/judge/diff fmt)
shardproof_folder(sim/judge/probe src/base src/mesh src/tensor src/observe sim/case sim/case/record
  sim/judge/diff sim/judge/evidence fmt json torch)
shardproof_group(sim_verdict)
shardproof_folder(sim/judge/explain src/base/count_of.h src/base/description_length.h src/mesh
  src/observe/draw_columns.h sim/judge/diff sim/judge/evidence fmt)
shardproof_folder(sim/judge/verdict src/base src/tensor sim/case sim/case/record sim/judge/diff
  sim/judge/evidence sim/judge/probe sim/judge/explain fmt)
shardproof_group()

# --- The worlds: ranks, their network, their processes. Control (launch) knows neither rank nor judge.
shardproof_group(sim_world)
# Calls alone.
shardproof_folder(sim/world/match src/base sim/case/cbor.h)
shardproof_folder(sim/world/clock src/base src/observe sim/case torch)
shardproof_folder(sim/world/calls src/base src/comm sim/case sim/world/clock fmt torch)
shardproof_folder(sim/world/emulated src/base src/comm sim/case sim/world/match sim/world/clock
  torch)
shardproof_folder(sim/world/process src/base src/comm/store.h sim/case sim/world/match fmt json
  sodium torch)
shardproof_group(sim_control)
shardproof_folder(sim/world/external src/base sim/world/process fmt json sodium)
shardproof_folder(sim/world/nodes src/base sim/case sim/world/process fmt)
shardproof_folder(sim/world/launch src/base sim/case sim/world/match sim/world/process
  sim/world/external sim/world/nodes fmt json asio)
shardproof_group()
shardproof_folder(sim/world/rank src/base src/tensor src/observe src/comm src/model src/optim
  src/parallel/tp src/parallel/pp src/parallel/data src/parallel/hf src/train src/policy sim/case sim/case/record sim/case/recorder sim/case/inputs sim/judge/diff sim/judge/probe
  sim/world/match sim/world/clock sim/world/calls sim/world/emulated sim/world/process fmt json
  torch)

# --- Runs that programs of PyTorch recorded.
shardproof_folder(sim/uses/recorded src/base src/mesh src/tensor/tensor_view.h
  src/tensor/safetensors_reader.h src/observe/phase.h src/observe/observation_kind.h sim/case
  sim/case/record sim/judge/diff sim/judge/evidence sim/judge/verdict fmt json)

# --- Two files of logprobs, and the cause of their difference.
shardproof_folder(sim/uses/logprobs src/base src/tensor/tensor_view.h src/tensor/safetensors_reader.h fmt json)

# --- The program.
shardproof_folder(sim/uses/proofs src/base src/mesh src/tensor src/observe src/random src/comm
  src/collective src/model src/logprob src/parallel/tp src/parallel/ulysses src/parallel/registry src/train src/policy
  sim/case sim/case/scenario sim/case/record sim/case/recorder sim/judge/probe sim/world/clock sim/world/calls
  sim/world/rank fmt json torch)
shardproof_folder(sim/report src/base src/tensor src/observe/observation_kind.h sim/case sim/judge/verdict fmt json crc)
shardproof_folder(sim/describe src/base src/mesh src/tensor src/model src/comm src/parallel/tp src/parallel/pp src/train src/policy sim/case
  sim/world/calls sim/world/rank fmt torch)
shardproof_folder(sim/run src/base src/tensor src/model src/parallel/tp sim/case sim/case/inputs sim/case/record
  sim/case/scenario/problems.h sim/judge/verdict
  sim/world/process sim/world/launch sim/world/rank fmt json torch)
shardproof_group(sim_runs)
# Reads and checks scenario files.
shardproof_folder(sim/lint src/base sim/case sim/case/scenario sim/run/case_check.h fmt json)
# Runs cases and changed cases whose values follow from one another.
shardproof_folder(sim/uses/relations src/base src/tensor src/observe/observation_kind.h src/model sim/case sim/case/inputs sim/case/record
  sim/judge/diff sim/judge/verdict sim/run fmt json torch)
# Runs the many cases of a command.
shardproof_folder(sim/uses/runs src/base sim/case sim/judge/verdict sim/world/launch sim/report sim/run
  sim/uses/relations fmt)
shardproof_group()
# Draws cases and makes failing ones smaller.
shardproof_folder(sim/uses/explore src/base sim/case sim/case/scenario sim/judge/verdict sim/run sim/lint
  fmt json)
# Checks the hosts and links of a job.
shardproof_folder(sim/uses/validate src/base src/mesh src/tensor src/observe src/comm sim/case sim/case/scenario
  sim/judge/verdict sim/world/calls sim/world/launch sim/world/rank sim/report sim/run fmt json
  sodium torch)
# The first verdict needs this folder and no command of sim/cli/uses: shardproof-first is built without them.
shardproof_folder(sim/cli src/base src/tensor src/comm src/parallel/tp sim/case
  sim/case/scenario sim/judge/verdict
  sim/world/calls sim/world/external sim/world/nodes sim/world/launch sim/world/rank sim/report sim/run sim/lint
  sim/uses/relations sim/uses/runs fmt cli json torch)
shardproof_folder(sim/cli/uses src/base src/mesh src/model sim/case sim/case/scenario sim/case/inputs sim/judge/verdict
  sim/uses/recorded sim/uses/logprobs sim/world/external sim/world/nodes sim/world/launch sim/world/rank
  sim/report sim/run sim/lint sim/describe sim/uses/explore sim/uses/validate sim/cli fmt json)
# Knows what sim/case/runners.h declares; golden defines it and is linked beside it.
shardproof_folder(sim/program/start sim/case sim/uses/proofs sim/world/nodes sim/world/rank sim/run sim/cli fmt json)
shardproof_folder(sim/program sim/case sim/uses/proofs sim/world/rank sim/uses/validate sim/cli/uses sim/program/start)
